"""Searches of one principal: what a query is embedded to, what is asked of memory, and the hits as callers see them.

While what it touches is in memory, a search runs no SQL on the calling path.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from caliber.access.visibility import NoteMask
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.entities import EmbeddingSpace
from caliber.model.enums import EntityType, ReadConsistency, ResultStatus, SpaceState
from caliber.model.errors import CaliberError, InvalidValue, LlmError, Unavailable, VectorError
from caliber.model.ids import uuid_from_bytes
from caliber.model.time import to_us
from caliber.model.windows import Position, SearchHit, SearchResult, Understood
from caliber.resident.memory import ResidentSnapshot
from caliber.resident.mirror import RelationSnapshot
from caliber.runtime.engine import Engine
from caliber.runtime.records.filters import variables
from caliber.runtime.support import bounded
from caliber.search import filters
from caliber.search.filters import Found
from caliber.search.in_database.stored import NOT_RESIDENT
from caliber.search.request import Asked, Outcome, Request
from caliber.search.where import Where

T = TypeVar("T")

NO_PROVIDER = "no_embedding_provider"
NO_VECTOR = "query_not_embedded"
NO_SPACE = "space_being_filled"
OTHER_SPACE = "space_of_another_model"
TIMEOUT = "timeout"

_KEPT_SHARE = 4
_KEPT_MOST_MS = 100
"""What embedding may not use of a deadline, a quarter or this: memory is searched in the rest."""


Embedded = tuple[NDArray[np.float32] | None, str | None]
"""The vector of a query, or None and why; without a reason where none is wanted."""


class Deadline:
    """When a call must have ended; checked between its steps."""

    __slots__ = ("_until",)

    def __init__(self, deadline_ms: int | None) -> None:
        self._until = None
        if deadline_ms is not None:
            self._until = time.monotonic() + arguments.as_whole(deadline_ms, "deadline_ms") / 1000

    def check(self, what: str) -> None:
        """Raise Unavailable when the time is up."""
        if self._until is not None and time.monotonic() > self._until:
            raise Unavailable(f"the deadline passed while {what}", reason=TIMEOUT)

    @property
    def left_ms(self) -> int | None:
        """How much of it is left, not below 0; None without one."""
        return None if self._until is None else max(0, int((self._until - time.monotonic()) * 1000))


def for_embedding(deadline_ms: int | None) -> int | None:
    """Return the part of a deadline that embedding may use up, so that the other legs still answer (M-040)."""
    if deadline_ms is None:
        return None
    whole = arguments.as_whole(deadline_ms, "deadline_ms")
    return whole - min(whole // _KEPT_SHARE, _KEPT_MOST_MS)


def in_one_space(
    engine: Engine, consistency: ReadConsistency | str | None, ask: Callable[[ResidentSnapshot], T]
) -> tuple[ResidentSnapshot, T]:
    """Return a snapshot to read from, and what ``ask`` got for the embedding space that this very snapshot searches.

    Embedding a query takes a while; when another space comes into use meanwhile, it is asked again.
    """
    before = engine.memory.snapshot
    while True:
        answer = ask(before)
        snapshot = engine.snapshot(consistency)
        if snapshot.space_in_use == before.space_in_use:
            return snapshot, answer
        before = snapshot


def query_vector(
    engine: Engine, query: str | None, given: Any, snapshot: ResidentSnapshot
) -> NDArray[np.float32] | None:
    """Return the vector of a query: the caller's, or the provider's; None where there is nothing to embed it with.

    Raises: InputError kinds for the caller's, LlmError kinds of the provider.
    """
    if query is not None:
        arguments.as_text(query, "query", allow_empty=True)
    embedder = engine.embedder
    space_id = snapshot.space_in_use
    if given is not None:
        known = None if embedder is None or space_id is None else snapshot.spaces[space_id].dimensions
        return filters.check_vector(given, "query_embedding", known)
    lane = None if embedder is None else embedder.answering(space_id)
    if query is None or not query.strip() or lane is None:
        return None
    vector: NDArray[np.float32] = lane.query(query)
    return vector


Search = Callable[[Asked], tuple[Outcome, Position]]


def _not_ours(snapshot: ResidentSnapshot, configured: EmbeddingSpace) -> str:
    """Return why nobody here can embed a question for the space that is searched."""
    own = snapshot.spaces.get(configured.space_id)
    if own is not None and own.state is SpaceState.BUILDING:
        return f"{NO_SPACE}: {own.name}"
    in_use = None if snapshot.space_in_use is None else snapshot.spaces[snapshot.space_in_use]
    return f"{OTHER_SPACE}: {'none' if in_use is None else in_use.name}"


class Searching:
    """The searches of one principal."""

    def __init__(self, engine: Engine, principal: Principal, notes: NoteMask) -> None:
        self._engine = engine
        self._principal = principal
        self._names = {relation: name for name, relation in engine.kinds.items()}
        self._notes = notes

    @bounded
    def search_many(
        self,
        queries: Sequence[str],
        *,
        kinds: Sequence[str] | None,
        limit: int | None,
        conditions: Mapping[str, Any] | str | None,
        as_of: datetime | None,
        consistency: ReadConsistency | str | None,
        deadline_ms: int | None,
        floor: bool = True,
    ) -> list[SearchResult]:
        """Search for each query; an empty one asks for what is recent and important.

        All are embedded together, read from one snapshot, and seen from one instant. Without ``floor`` all that a leg
        finds is a hit.
        """
        engine = self._engine
        engine.check_open()
        deadline = Deadline(deadline_ms)
        settings = engine.config.search
        wanted = filters.check_kinds(kinds, engine.kinds)
        count = settings.default_limit if limit is None else arguments.as_whole(limit, "limit", 1)
        if count > settings.limit_max:
            raise InvalidValue(field="limit", reason=f"must be at most search.limit_max = {settings.limit_max}")
        with engine.within(for_embedding(deadline_ms)):
            snapshot, vectors = in_one_space(engine, consistency, lambda at: self.embedded_many(queries, at))
        deadline.check("the query was embedded")
        now = engine.clock.now_us()
        at_us = now if as_of is None else to_us(as_of, "as_of")
        given: dict[str, Any] = {}
        where = None
        if isinstance(conditions, str):
            predicates = engine.filters.of(conditions, wanted, named=kinds is not None)
            where = Where(predicates, variables(self._principal, at_us))
            wanted = tuple(predicates)
        else:
            given = arguments.as_mapping(conditions, "filter")
        space = engine.searched(snapshot)
        out = []
        within = functools.partial(deadline.check, "the database was searched")
        with self._boundary(snapshot) as search:
            for query, (vector, without) in zip(queries, vectors, strict=True):
                asked = Asked(
                    text=query,
                    vector=vector,
                    without_vector=without,
                    space=space,
                    kinds=wanted,
                    limit=count,
                    conditions=given,
                    notes=self._notes,
                    as_of_us=at_us,
                    now_us=now,
                    check=within,
                    where=where,
                    floor=floor,
                )
                out.append(self._answered(asked, search, deadline))
        return out

    def _boundary(self, snapshot: ResidentSnapshot) -> AbstractContextManager[Search]:
        """Return what searches at one boundary: that of the snapshot, or the database's own."""
        stored = self._engine.stored_search
        if stored is not None:
            return stored.at_one_boundary()
        return nullcontext(lambda asked: self._in_memory(asked, snapshot))

    def _answered(self, asked: Asked, search: Search, deadline: Deadline) -> SearchResult:
        engine = self._engine
        outcome, position = search(asked)
        reason = outcome.degraded
        if engine.stored_search is not None:
            reason = ", ".join(filter(None, (NOT_RESIDENT, reason)))
        deadline.check("memory was searched")
        hits = self._hits(outcome)
        if outcome.traversed and engine.config.write_behind.usage_enabled:
            engine.behind.used(EntityType.EDGE.value, outcome.traversed, asked.now_us)
        status = ResultStatus.DEGRADED if reason else ResultStatus.OK if hits else ResultStatus.EMPTY
        pending = 0 if engine.embedder is None else engine.embedder.waiting()
        return SearchResult(hits, status, reason, position, pending, _understood(outcome), outcome.below)

    def _in_memory(self, asked: Asked, snapshot: ResidentSnapshot) -> tuple[Outcome, Position]:
        if asked.conditions:
            filters.check_filter([snapshot[kind] for kind in asked.kinds], asked.conditions)
        request = Request(
            snapshot=snapshot,
            text=asked.text,
            vector=asked.vector,
            without_vector=asked.without_vector,
            space_id=None if asked.space is None else asked.space.space_id,
            kinds=asked.kinds,
            limit=asked.limit,
            conditions=asked.conditions,
            notes=asked.notes,
            as_of_us=asked.as_of_us,
            now_us=asked.now_us,
            where=asked.where,
            floor=asked.floor,
            texts=self._engine.memory.texts,
        )
        return self._engine.searcher.search(request), snapshot.position

    def embedded(self, query: str, snapshot: ResidentSnapshot) -> Embedded:
        """Return the query's vector, or why there is none: an outage costs one leg, not the search (M-040)."""
        return self.embedded_many((query,), snapshot)[0]

    def embedded_many(self, queries: Sequence[str], snapshot: ResidentSnapshot) -> list[Embedded]:
        """Return the vector of each query, or why it has none; all are asked for at once."""
        embedder = self._engine.embedder
        if embedder is None:
            return [(None, NO_PROVIDER)] * len(queries)
        if not self._engine.config.search.weights.vector:
            return [(None, None)] * len(queries)
        lane = embedder.answering(snapshot.space_in_use)
        if lane is None:
            return [(None, _not_ours(snapshot, embedder.space))] * len(queries)
        spoken = [query for query in queries if query.strip()]
        found: list[Embedded] = []
        try:
            found = [self._vector_or_why(vector) for vector in lane.queries(spoken)] if spoken else []
        except (LlmError, VectorError, Unavailable) as error:
            found = [self._vector_or_why(error)] * len(spoken)
        left = iter(found)
        return [next(left) if query.strip() else (None, None) for query in queries]

    def _vector_or_why(self, answer: NDArray[np.float32] | CaliberError) -> Embedded:
        if not isinstance(answer, CaliberError):
            return answer, None
        timed_out = isinstance(answer, Unavailable) and answer.reason == TIMEOUT
        if not timed_out and not isinstance(answer, LlmError | VectorError):
            raise answer
        self._engine.record_error("embedding of a query", answer)
        return None, f"{NO_VECTOR}: {TIMEOUT if timed_out else answer.kind}"

    def _hits(self, outcome: Outcome) -> tuple[SearchHit, ...]:
        found = outcome.found
        if not found:
            return ()
        words = () if outcome.query is None else outcome.query.surfaces
        first = found[0].relation
        if all(item.relation is first for item in found):
            return tuple(self._hits_of(first, found, words))
        places: dict[str, list[int]] = {}
        for place, item in enumerate(found):
            places.setdefault(item.relation.relation.name, []).append(place)
        hits: dict[int, SearchHit] = {}
        for some in places.values():
            of_kind = [found[place] for place in some]
            hits.update(zip(some, self._hits_of(of_kind[0].relation, of_kind, words), strict=True))
        return tuple(hits[place] for place in range(len(found)))

    def texts(self, snapshot: RelationSnapshot, rows: Sequence[int]) -> Sequence[Any]:
        """Return what hits say: of a declared memory all that they were searched by, a field a line."""
        memory, searched = self._engine.memory, snapshot.relation.searched
        if not searched:
            return memory.texts(snapshot, rows)
        apart = snapshot.layout.codec.names[snapshot.layout.text_place]
        fields = [
            memory.texts(snapshot, rows) if name == apart else snapshot.packed_values(name, rows) for name in searched
        ]
        return ["\n".join(filter(None, said)) for said in zip(*fields, strict=True)]

    def _hits_of(self, snapshot: RelationSnapshot, found: Sequence[Found], words: tuple[str, ...]) -> list[SearchHit]:
        """Return hits of one kind, their texts read at once."""
        rows = [item.row for item in found]
        kind = self._names.get(snapshot.relation.name, snapshot.relation.name)
        texts = self.texts(snapshot, rows)
        whole = snapshot.ties().take(rows, axis=0).astype(">u8").tobytes()
        ids = [uuid_from_bytes(whole[at : at + 16]) for at in range(0, len(whole), 16)]
        return [
            SearchHit(key, kind, _text(raw), item.score, item.breakdown, item.found_by, words)
            for item, raw, key in zip(found, texts, ids, strict=True)
        ]


def _text(raw: Any) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else (raw or "")


def _understood(outcome: Outcome) -> Understood:
    query = outcome.query
    if query is None:
        return Understood()
    return Understood(
        words=query.terms,
        left_out=query.left_out,
        phrases=tuple(" ".join(phrase) for phrase in query.phrases),
        beginnings=query.beginnings,
        names=outcome.names,
        days=None if query.when is None else (query.when.first, query.when.last),
        asks_time=query.asks_time,
        cut=query.cut,
        weights=outcome.weights,
    )
