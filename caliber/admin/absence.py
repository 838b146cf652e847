"""Diagnosis of a search that does not find a record, or finds it late."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np

from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.model.errors import NotFound
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import from_us, to_us
from caliber.model.windows import SearchHit, SearchResult
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.predicates import held_texts, mask
from caliber.schema.validity import asked_us, why_not
from caliber.search.filtering import filters
from caliber.search.opening import SearchEngine
from caliber.search.ranking.floor import REST
from caliber.search.service import LIMIT_MAX, Searching

_BEFORE: Final = 3
_BATCH_ROWS: Final = 4_096


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected answer: the record under an id, or any record that contains a text."""

    id: uuid.UUID | None
    text: str

    def matches(self, record_id: uuid.UUID, content: str) -> bool:
        """Return whether a record is the expected one."""
        return self.id == record_id if self.id is not None else folded(self.text) in folded(content)

    def rank_in(self, hits: Sequence[SearchHit]) -> int | None:
        """Return the rank of the first expected hit, from 1."""
        return next((rank for rank, hit in enumerate(hits, 1) if self.matches(hit.id, hit.content)), None)


@dataclass(frozen=True, slots=True)
class Miss:
    """A record that is not among the first hits; ``code`` of the reason is stable, ``why`` a sentence.

    ``id``, ``kind`` and ``content`` are None where the principal sees no such record, ``rank`` unless the search finds
    it, ``hit`` unless it would without the floor. ``before``: the best hits, of those that rank above it.
    """

    code: str
    why: str
    before: tuple[SearchHit, ...]
    id: uuid.UUID | None = None
    kind: str | None = None
    content: str | None = None
    rank: int | None = None
    hit: SearchHit | None = None


def folded(text: str) -> str:
    """Return a text normalized for comparison: case and white space folded."""
    return " ".join(text.casefold().split())


class _Row(NamedTuple):
    """A record where it lives; ``kind`` as searches name it, or the relation of an unsearched record."""

    relation: RelationSnapshot
    number: int
    kind: str

    @property
    def id(self) -> uuid.UUID:
        return self.relation.entity_id(self.number)


class Question(NamedTuple):
    """A search, and the record that it should find; ``who`` asks."""

    who: str
    engine: Engine
    searching: Searching
    query: str
    expected: Expected
    kinds: Sequence[str] | None
    where: Mapping[str, Any]
    as_of: datetime | None

    def absence(self) -> Miss:
        """Return why the search does not find the record, or finds it late."""
        found = self._asked(self.kinds)
        rank = self.expected.rank_in(found.hits)
        before = found.hits[:_BEFORE] if rank is None else found.hits[: rank - 1][:_BEFORE]
        if rank is not None:
            why = f"it came as number {rank:,} of {len(found.hits):,}"
            return self._of_hit("ranked", why, before, found.hits[rank - 1], rank)
        every = self._asked(self.kinds, floor=False).hits
        place = self.expected.rank_in(every)
        if place is not None:
            why = f"its score is below {REST:g}"
            if found.below_floor is not None:
                why = f"the question finds nothing: {found.below_floor}"
            return self._of_hit("below_floor", why, before, every[place - 1], None)
        # A search in the database has no records here to look through.
        row = self._best() if self.engine.part(SearchEngine).stored is None else None
        content = None if row is None else self._texts(row.relation, [row.number])[0]
        about = (None, None, None) if row is None else (row.id, row.kind, content)
        if found.reason is not None:
            return Miss("degraded", f"search was degraded: {found.reason}", before, *about)
        if row is None:
            says = "has this id" if self.expected.id is not None else "holds this text"
            return Miss("no_such_record", f"no record that {self.who} can see {says}", before)
        return Miss(*(self._kept_out(row) or self._unreached(row)), before, *about)

    def _of_hit(self, code: str, why: str, before: tuple[SearchHit, ...], hit: SearchHit, rank: int | None) -> Miss:
        return Miss(code, why, before, hit.id, hit.kind, hit.content, rank, hit)

    def _asked(self, kinds: Sequence[str] | None, *, floor: bool = True) -> SearchResult:
        return self.searching.search_many(
            (self.query,), kinds=kinds, limit=LIMIT_MAX, conditions=self.where or None, as_of=self.as_of,
            consistency=None, floor=floor,
        )[0]  # fmt: skip

    def _searched(self) -> Mapping[str, str]:
        return self.engine.part(SearchEngine).kinds

    def _texts(self, relation: RelationSnapshot, rows: list[int]) -> list[str]:
        """Return the searched text of some rows."""
        texts = self.searching.texts(relation, rows)
        return [raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw or "" for raw in texts]

    def _rows(self) -> Iterator[_Row]:
        """Yield the visible records that are expected, whether or not a search can find them."""
        searched = self._searched()
        if self.expected.id is not None:
            try:
                _, relation, number = self.searching.locate(self.expected.id)
            except NotFound:
                return
            name = relation.relation.name
            yield _Row(relation, number, {relation: kind for kind, relation in searched.items()}.get(name, name))
            return
        for kind, name in searched.items():
            relation = self.engine.memory.snapshot[name]
            readers = self.searching.readers.over(relation)
            rows = np.flatnonzero(relation.live_mask if readers is None else relation.live_mask & readers.mask())
            for start in range(0, len(rows), _BATCH_ROWS):
                part = rows[start : start + _BATCH_ROWS].tolist()
                for number, text in zip(part, self._texts(relation, part), strict=True):
                    if self.expected.matches(relation.entity_id(number), text):
                        yield _Row(relation, number, kind)

    def _best(self) -> _Row | None:
        """Return the record that least keeps from being found: of several that hold a text, one may be searchable."""
        first: _Row | None = None
        for row in self._rows():
            if self._kept_out(row) is None:
                return row
            first = first or row
        return first

    def _kept_out(self, row: _Row) -> tuple[str, str] | None:
        """Return the reason, in the question or the record's own state, that keeps it out, or None."""
        searched = self._searched()
        if row.kind not in searched:
            return "not_searchable", f"it is a {row.kind}; search finds {', '.join(searched)}"
        if self.kinds and row.kind not in self.kinds:
            return "other_kind", f"it is a {row.kind}; only {', '.join(self.kinds)} was searched"
        relation = row.relation.relation
        for name, value in self.where.items():
            if name not in filters.comparable(relation):
                return "filtered", f"the filter keeps only records with {name}, which a {row.kind} has not"
            condition = filters.conditions_of([relation], {name: value})[relation.name]
            if not mask(condition, row.relation, {}, held_texts)[row.number]:
                return "filtered", f"the filter {name} = {value} leaves it out"
        entity, text = self.engine.memory.entity(row.relation, row.number), relation.text
        if text is not None and text.tokens is not None and not getattr(entity, text.tokens, 0):
            return "invalid", f"the {row.kind} has no {text.searched[0]} (yet), and is searched by nothing else"
        now_us = self.engine.clock.now_us()
        as_of_us = now_us if self.as_of is None else to_us(self.as_of, "as_of")
        at_us = asked_us(relation, as_of_us, now_us)
        if filters.alive(row.relation, at_us)[row.number]:
            return None
        found = why_not(relation, entity, from_us(at_us))
        return "invalid", "it does not count any more" if found is None else found[1]

    def _unreached(self, row: _Row) -> tuple[str, str]:
        """Return code and sentence for an active record that did not come among as many hits as there can be."""
        engine, relation = self.engine, row.relation.relation
        alone = self._asked((row.kind,))
        if len(alone.hits) >= LIMIT_MAX or any(hit.id == row.id for hit in alone.hits):
            return "beyond_limit", f"more than {LIMIT_MAX:,} records came before it"
        embedder = engine.part(Embeddings).embedder
        lacks = "it has no vector: it is empty, was refused, or vectors of another model are being made"
        if embedder is None:
            lacks = "there is no embedding_provider"
        elif relation.name not in embedder.embedded:
            declared = engine.store.catalog.declared.get(relation.name)
            is_off = declared is None or declared.embedded is not None
            entry = engine.config.embedding.entry_of(row.kind)
            lacks = f"embedding.embed.{entry} is off" if is_off else f"{row.kind} has no embedding"
        elif target := embedder.answering(engine.memory.snapshot.space_in_use):
            near = self.searching.similarity(row.id, target.space.space_id, target.query(self.query))
            if near is not None:
                least = engine.config.search.min_similarity
                return "no_match", f"no word in common; its similarity is {near:.3f} (min_similarity = {least:g})"
        return "no_vector", f"it shares no word with the question, and {lacks}"
