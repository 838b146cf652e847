"""Diagnosis of a missed record: its rank and the hits above it, or the reason why it was not found."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from caliber.cli import show
from caliber.cli.evaluating.questions import Expected, LabelledQuestion, ask
from caliber.embedding.service import Embeddings
from caliber.model.errors import NotFound
from caliber.model.time import from_us, to_us
from caliber.model.windows import SearchHit
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.predicates import held_texts, mask
from caliber.schema.validity import asked_us, why_not
from caliber.search.filtering import filters
from caliber.search.opening import SearchEngine
from caliber.search.ranking.floor import REST
from caliber.search.service import LIMIT_MAX
from caliber.storage.compile.filters import filterable

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber

_BEFORE, _BATCH_ROWS = 3, 4_096


class _Row(NamedTuple):
    """A record where it lives; ``kind`` as searches name it, or the relation of an unsearched record."""

    relation: RelationSnapshot
    number: int
    kind: str

    @property
    def id(self) -> uuid.UUID:
        return self.relation.entity_id(self.number)


class Reasons:
    """Explains misses in one store, as its principal sees it."""

    def __init__(self, memory: Caliber, kinds: Sequence[str] | None) -> None:
        self._memory = memory
        self._kinds = kinds
        self._searched = memory._engine.part(SearchEngine).kinds
        self._names = {relation: kind for kind, relation in self._searched.items()}

    def explain(self, question: LabelledQuestion, expected: Expected) -> dict[str, Any]:
        """Return why ``expected`` was not among the first hits, as a JSON document; ``code`` is stable."""
        found = ask(self._memory, question, self._kinds, LIMIT_MAX)
        rank = expected.rank_in(found.hits)
        above = found.hits[:_BEFORE] if rank is None else found.hits[: rank - 1][:_BEFORE]
        missed = {
            **dict.fromkeys(("id", "kind", "label", "rank", "score")),
            "place": question.place,
            "query": question.query,
            "expected": expected.text,
            "before": [self._hit(hit, at) for at, hit in enumerate(above, 1)],
        }
        if rank is not None:
            missed |= self._hit(found.hits[rank - 1], rank)
            return {**missed, "code": "ranked", "why": f"it came as number {rank:,} of {len(found.hits):,}"}
        every = self._memory._searching.search_many(
            (question.query,), kinds=question.kinds or self._kinds, limit=LIMIT_MAX,
            conditions=question.filter or None, as_of=question.as_of, consistency=None, floor=False,
        )[0].hits  # fmt: skip
        rank = expected.rank_in(every)
        if rank is not None:
            why = f"its score is below {REST:g}"
            if found.below_floor is not None:
                why = f"the question finds nothing: {show.evidence_line(found.below_floor)}"
            return {**missed, **self._hit(every[rank - 1], None), "code": "below_floor", "why": why}
        if found.reason is not None:
            return {**missed, "code": "degraded", "why": f"search was degraded: {found.reason}"}
        row = self._best_of(question, expected)
        if row is None:
            says = "has this id" if expected.id is not None else "holds this text"
            why = f"no record that {self._memory.principal.label} can see {says}"
            return {**missed, "code": "no_such_record", "why": why}
        code, why = self._kept_out(question, row) or self._unreached(question, row)
        return {**missed, "id": row.id, "kind": row.kind, "label": self._label(row.id), "code": code, "why": why}

    def record_of(self, question: LabelledQuestion, expected: Expected) -> tuple[uuid.UUID, str] | None:
        """Return id and text of the expected record; None when the principal sees none."""
        row = self._best_of(question, expected)
        return None if row is None else (row.id, self._text(row.relation, [row.number])[0])

    def _hit(self, hit: SearchHit, rank: int | None) -> dict[str, Any]:
        return {
            "id": hit.id, "kind": hit.kind, "label": self._label(hit.id),
            "rank": rank, "score": hit.score, "breakdown": dict(hit.breakdown),
        }  # fmt: skip

    def _text(self, relation: RelationSnapshot, rows: list[int]) -> list[str]:
        """Return the searched text of some rows."""
        texts = self._memory._searching.texts(relation, rows)
        return [raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw or "" for raw in texts]

    def _label(self, record_id: uuid.UUID) -> str:
        return show.label(show.peek(self._memory, record_id))

    def _rows(self, expected: Expected) -> Iterator[_Row]:
        """Yield the visible records that are expected, whether or not a search can find them."""
        searching = self._memory._searching
        if expected.id is not None:
            try:
                _, relation, number = searching.locate(expected.id)
            except NotFound:
                return
            name = relation.relation.name
            yield _Row(relation, number, self._names.get(name, name))
            return
        for kind, name in self._searched.items():
            relation = self._memory._engine.memory.snapshot[name]
            readers = searching.readers.over(relation)
            rows = np.flatnonzero(relation.live_mask if readers is None else relation.live_mask & readers.mask())
            for start in range(0, len(rows), _BATCH_ROWS):
                part = rows[start : start + _BATCH_ROWS].tolist()
                for number, text in zip(part, self._text(relation, part), strict=True):
                    if expected.matches(relation.entity_id(number), text):
                        yield _Row(relation, number, kind)

    def _best_of(self, question: LabelledQuestion, expected: Expected) -> _Row | None:
        """Return the record that least keeps from being found: of several that hold a text, one may be searchable."""
        first: _Row | None = None
        for row in self._rows(expected):
            if self._kept_out(question, row) is None:
                return row
            first = first or row
        return first

    def _kept_out(self, question: LabelledQuestion, row: _Row) -> tuple[str, str] | None:
        """Return the reason, in the question or the record's own state, that keeps it out, or None."""
        if row.kind not in self._searched:
            return "not_searchable", f"it is a {row.kind}; search finds {', '.join(self._searched)}"
        kinds = question.kinds or self._kinds
        if kinds and row.kind not in kinds:
            return "other_kind", f"it is a {row.kind}; only {', '.join(kinds)} was searched"
        relation = row.relation.relation
        for name, value in question.filter.items():
            if name not in filterable(relation):
                return "filtered", f"the filter keeps only records with {name}, which a {row.kind} has not"
            condition = filters.conditions_of([relation], {name: value})[relation.name]
            if not mask(condition, row.relation, {}, held_texts)[row.number]:
                return "filtered", f"the filter {name} = {value} leaves it out"
        entity, text = show.peek(self._memory, row.id), relation.text
        if text is not None and text.tokens is not None and not getattr(entity, text.tokens, 0):
            return "invalid", f"the {row.kind} has no {text.searched[0]} (yet), and is searched by nothing else"
        now_us = self._memory._engine.clock.now_us()
        as_of_us = now_us if question.as_of is None else to_us(question.as_of, "as_of")
        if filters.alive(row.relation, as_of_us, now_us)[row.number]:
            return None
        found = why_not(relation, entity, from_us(asked_us(relation, as_of_us, now_us)))
        return "invalid", "it does not count any more" if found is None else found[1]

    def _unreached(self, question: LabelledQuestion, row: _Row) -> tuple[str, str]:
        """Return code and sentence for an active record that did not come among as many hits as there can be."""
        memory, relation = self._memory, row.relation.relation
        alone = ask(memory, replace(question, kinds=(row.kind,)), None, LIMIT_MAX)
        if len(alone.hits) >= LIMIT_MAX or any(hit.id == row.id for hit in alone.hits):
            return "beyond_limit", f"more than {LIMIT_MAX:,} records came before it"
        embedder = memory._engine.part(Embeddings).embedder
        lacks = "it has no vector: it is empty, was refused, or vectors of another model are being made"
        if embedder is None:
            lacks = "there is no embedding_provider"
        elif relation.name not in embedder.embedded:
            declared = memory._engine.store.catalog.declared.get(relation.name)
            is_off = declared is None or declared.embedded is not None
            entry = memory.config.embedding.entry_of(row.kind)
            lacks = f"embedding.embed.{entry} is off" if is_off else f"{row.kind} has no embedding"
        elif target := embedder.answering(memory._engine.memory.snapshot.space_in_use):
            near = memory._searching.similarity(row.id, target.space.space_id, target.query(question.query))
            if near is not None:
                least = memory.config.search.min_similarity
                return "no_match", f"no word in common; its similarity is {near:.3f} (min_similarity = {least:g})"
        return "no_vector", f"it shares no word with the question, and {lacks}"
