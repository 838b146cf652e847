"""Diagnosis of a missed record: its rank and the hits above it, or the reason why it was not found."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final

import numpy as np

from caliber.cli import show
from caliber.cli.evaluating.judging import ask, ask_without_floor, matches, rank_of
from caliber.cli.evaluating.questions import Expected, Question
from caliber.embedding.service import Embeddings
from caliber.model.errors import NotFound
from caliber.model.knowledge import Note
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import from_us, to_us
from caliber.model.windows import SearchHit, SearchResult
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.predicates import held_texts, mask
from caliber.schema.validity import asked_us, why_not
from caliber.search.filtering import filters
from caliber.search.in_database.stored import NOT_RESIDENT
from caliber.search.opening import SearchEngine
from caliber.storage.compile.filters import filterable

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber

_BEFORE: Final = 3
"""The number of higher hits that are shown."""

_BATCH_ROWS: Final = 4_096


@dataclass(frozen=True, slots=True)
class Leg:
    """One leg's part of a record's score, and the record's rank by that part alone."""

    part: float
    rank: int


@dataclass(frozen=True, slots=True)
class Before:
    """A hit above the expected one; ``gains`` is its advantage in each leg."""

    id: uuid.UUID
    kind: str
    label: str
    rank: int
    score: float
    gains: dict[str, float]


@dataclass(frozen=True, slots=True)
class Missed:
    """One expected record that was not among the first hits, and why; ``code`` is stable, for programs."""

    place: str
    query: str
    expected: str
    code: str
    why: str
    id: uuid.UUID | None = None
    kind: str | None = None
    label: str | None = None
    rank: int | None = None
    score: float | None = None
    legs: dict[str, Leg] = field(default_factory=dict)
    before: tuple[Before, ...] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    """A record where it lives."""

    relation: RelationSnapshot
    number: int
    kind: str
    """Its kind as searches name it; for an unsearched record, its relation."""

    @property
    def id(self) -> uuid.UUID:
        return self.relation.entity_id(self.number)


class Reasons:
    """Explains misses in one store, as its principal sees it."""

    def __init__(self, memory: Caliber, kinds: Sequence[str] | None, depth: int) -> None:
        self._memory = memory
        self._kinds = kinds
        self._depth = depth
        self._widest = memory.config.search.limit_max
        self._searched = memory._engine.part(SearchEngine).kinds
        self._names = {relation: kind for kind, relation in self._searched.items()}

    def explain(self, question: Question, expected: Expected) -> Missed:
        """Return why ``expected`` was not among the first hits."""
        found = ask(self._memory, question, question.kinds or self._kinds, self._widest)
        asked = (question.place, question.query, expected.text)
        rank = rank_of(expected, found.hits)
        if rank is not None:
            return self._ranked(asked, question, found.hits, rank)
        before = tuple(self._before(hit, at, None) for at, hit in enumerate(found.hits[:_BEFORE], 1))
        every = ask_without_floor(self._memory, question, question.kinds or self._kinds, self._widest)
        rank = rank_of(expected, every.hits)
        if rank is not None:
            hit = every.hits[rank - 1]
            why, legs = self._below(hit, found), legs_of(hit, every.hits)
            return Missed(
                *asked, "below_floor", why, hit.id, hit.kind, self._label(hit.id), None, hit.score, legs, before
            )
        if found.reason is not None and found.reason.startswith(NOT_RESIDENT):
            why = 'records are not in memory (search.mode = "backend"): nobody can look at all of them'
            return Missed(*asked, "degraded", why, before=before)
        row = self._best_of(question, self._rows(expected))
        if row is None:
            why = f"no record that {self._memory.principal.label} can see {_says(expected)}"
            return Missed(*asked, "no_such_record", why, before=before)
        code, why = self._unreachable(question, row, found.reason)
        return Missed(*asked, code, why, row.id, row.kind, self._label(row.id), before=before)

    def record_of(self, question: Question, expected: Expected) -> tuple[uuid.UUID, str] | None:
        """Return id and text of the expected record; None when the principal sees none."""
        row = self._best_of(question, self._rows(expected))
        return None if row is None else (row.id, self._text(row.relation, [row.number])[0])

    def _text(self, relation: RelationSnapshot, rows: list[int]) -> list[str]:
        """Return the searched text of some rows."""
        texts = self._memory._searching.texts(relation, rows)
        return [raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw or "" for raw in texts]

    def _label(self, record_id: uuid.UUID) -> str:
        entity = show.peek(self._memory, record_id)
        name = show.label(entity)
        return f"{name}: {show.first_line(entity.content)}" if isinstance(entity, Note) else name

    # --- it came, but late -----------------------------------------------------------------------

    def _ranked(self, asked: tuple[str, str, str], question: Question, hits: Sequence[SearchHit], rank: int) -> Missed:
        hit = hits[rank - 1]
        above = [(at, other) for at, other in enumerate(hits[: rank - 1], 1) if not _wanted(question, other)]
        before = tuple(self._before(other, at, hit) for at, other in above[:_BEFORE])
        why = f"it came {ordinal(rank)} of {len(hits):,}"
        if rank <= self._depth:
            # A larger limit means more candidates of the vector leg, which changes scores scaled by them.
            why += f", though not where {self._depth:,} were asked for: of fewer candidates others were best"
        label = self._label(hit.id)
        return Missed(*asked, "ranked", why, hit.id, hit.kind, label, rank, hit.score, legs_of(hit, hits), before)

    def _before(self, hit: SearchHit, rank: int, than: SearchHit | None) -> Before:
        gains: dict[str, float] = {}
        if than is not None:
            parts = dict.fromkeys([*hit.breakdown, *than.breakdown])
            gains = {name: hit.breakdown.get(name, 0.0) - than.breakdown.get(name, 0.0) for name in parts}
        return Before(hit.id, hit.kind, self._label(hit.id), rank, hit.score, gains)

    def _below(self, hit: SearchHit, found: SearchResult) -> str:
        """Return why a hit of some leg does not count as found."""
        if found.below_floor is not None:
            return f"the question finds nothing: {show.evidence_line(found.below_floor)}"
        least = self._memory.config.search.floor.rest
        return f"its score {hit.score:.3f} is below search.floor.rest = {least:g}, and it has no evidence of its own"

    # --- it could not come -----------------------------------------------------------------------

    def _rows(self, expected: Expected) -> Iterator[_Row]:
        """Yield the visible records that are expected, whether or not a search can find them."""
        engine = self._memory._engine
        if expected.id is not None:
            try:
                _, relation, number = self._memory._searching.locate(expected.id)
            except NotFound:
                return
            name = relation.relation.name
            yield _Row(relation, number, self._names.get(name, name))
            return
        snapshot = engine.memory.snapshot
        for kind, name in self._searched.items():
            relation = snapshot[name]
            seen = relation.live_mask.copy()
            mask = self._memory._searching.readers.over(relation)
            rows = np.flatnonzero(seen if mask is None else seen & mask.mask())
            for start in range(0, len(rows), _BATCH_ROWS):
                part = rows[start : start + _BATCH_ROWS].tolist()
                for number, text in zip(part, self._text(relation, part), strict=True):
                    if matches(expected, relation.entity_id(number), text):
                        yield _Row(relation, number, kind)

    def _best_of(self, question: Question, rows: Iterator[_Row]) -> _Row | None:
        """Return the record that least keeps from being found: of several that hold a text, one may be searchable."""
        first: _Row | None = None
        for row in rows:
            if self._kept_out(question, row) is None:
                return row
            first = first or row
        return first

    def _unreachable(self, question: Question, row: _Row, degraded: str | None) -> tuple[str, str]:
        """Return code and sentence for a record that exists and did not come among as many hits as there can be."""
        kept_out = self._kept_out(question, row)
        if kept_out is not None:
            return kept_out
        if degraded is not None:
            return "degraded", f"search was degraded: {degraded}"
        alone = ask(self._memory, question, (row.kind,), self._widest)
        if len(alone.hits) >= self._widest or any(hit.id == row.id for hit in alone.hits):
            return "beyond_limit", f"more than {self._widest:,} records came before it (search.limit_max)"
        return self._no_match(question, row)

    def _kept_out(self, question: Question, row: _Row) -> tuple[str, str] | None:
        """Return the reason, in the question or the record's own state, that keeps it out, or None."""
        if row.kind not in self._searched:
            return "not_searchable", f"it is a {row.kind}; search finds {', '.join(self._searched)}"
        kinds = question.kinds or self._kinds
        if kinds and row.kind not in kinds:
            return "other_kind", f"it is a {row.kind}; only {', '.join(kinds)} was searched"
        for name, value in question.filter.items():
            relation = row.relation.relation
            if name not in filterable(relation):
                return "filtered", f"the filter keeps only records with {name}, which a {row.kind} has not"
            condition = filters.conditions_of([relation], {name: value})[relation.name]
            if not mask(condition, row.relation, {}, held_texts)[row.number]:
                return "filtered", f"the filter {name} = {value} leaves it out"
        return self._invalid(question, row)

    def _invalid(self, question: Question, row: _Row) -> tuple[str, str] | None:
        now_us = self._memory._engine.clock.now_us()
        as_of_us = now_us if question.as_of is None else to_us(question.as_of, "as_of")
        entity = show.peek(self._memory, row.id)
        text = row.relation.relation.text
        if text is not None and text.tokens is not None and not getattr(entity, text.tokens, 0):
            return "invalid", f"the {row.kind} has no {text.searched[0]} (yet), and is searched by nothing else"
        if filters.alive(row.relation, as_of_us, now_us)[row.number]:
            return None
        at = from_us(asked_us(row.relation.relation, as_of_us, now_us))
        found = why_not(row.relation.relation, entity, at)
        return "invalid", "it does not count any more" if found is None else found[1]

    def _no_match(self, question: Question, row: _Row) -> tuple[str, str]:
        """Return why an active record is no hit, though there are fewer hits than the limit."""
        memory = self._memory
        embedder = memory._engine.part(Embeddings).embedder
        if embedder is None:
            return "no_vector", "it shares no word with the question, and there is no embedding_provider"
        relation = row.relation.relation
        if relation.name not in embedder.embedded:
            declared = memory._engine.store.catalog.declared.get(relation.name)
            lacks = f"embedding.embed.{memory.config.embedding.entry_of(row.kind)} is off"
            if declared is not None and declared.embedded is None:
                lacks = f"{row.kind} has no embedding"
            return "no_vector", f"it shares no word with the question, and {lacks}"
        target = embedder.answering(memory._engine.memory.snapshot.space_in_use)
        if target is None:
            return "no_vector", "it shares no word with the question, and vectors of another model are being made"
        similarity = memory._searching.similarity(row.id, target.space.space_id, target.query(question.query))
        if similarity is None:
            return "no_vector", "it shares no word with the question, and has no vector: it is empty, or was refused"
        least = memory.config.search.min_similarity
        if similarity >= least:
            return "no_match", f"it shares no word with the question, and others are nearer than its {similarity:.3f}"
        return "no_match", f"it shares no word with the question, and its similarity is {similarity:.3f} of {least:g}"


def legs_of(hit: SearchHit, hits: Sequence[SearchHit]) -> dict[str, Leg]:
    """Return each leg's part of ``hit`` among ``hits``; equal parts share the better rank."""
    out = {}
    for name in dict.fromkeys(name for other in hits for name in other.breakdown):
        part = hit.breakdown.get(name, 0.0)
        better = sum(other.breakdown.get(name, 0.0) > part for other in hits)
        out[name] = Leg(part, better + 1)
    return out


def _wanted(question: Question, hit: SearchHit) -> bool:
    return any(matches(expected, hit.id, hit.content) for expected in question.expected)


def _says(expected: Expected) -> str:
    return "has this id" if expected.id is not None else "holds this text"


def ordinal(number: int) -> str:
    """Return a rank in words: ``1st``, ``12th``."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"
