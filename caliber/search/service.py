"""Reads of one principal: ``search``, which embeds the query and returns hits, and ``get``, a record by id.

While the records are in memory, ``search`` and ``get`` run no SQL on the calling path.
"""

from __future__ import annotations

import copy
import functools
import itertools
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.embedding.embedder import Embedder
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.engine.pacing import embedding_share_s
from caliber.engine.write_behind import Entry
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.deadline import TIMEOUT, check, within
from caliber.model.embedding import EmbeddingSpace, SpaceState
from caliber.model.errors import (
    CaliberError,
    ConstraintViolation,
    InvalidValue,
    LlmError,
    ProviderNotConfigured,
    Unavailable,
    VectorError,
)
from caliber.model.references import EntityRef, EntityType, SpaceId
from caliber.model.storage import ReadConsistency, ResultStatus, ValidationMode
from caliber.model.time import to_us
from caliber.model.windows import Position, QueryAnalysis, SearchHit, SearchResult
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot, is_gone
from caliber.schema.derived import Sha256
from caliber.schema.predicate import Predicate, all_of, columns_in
from caliber.schema.relation import Relation
from caliber.search.filtering import filters
from caliber.search.filtering.filters import Found, Where
from caliber.search.filtering.visible import variables
from caliber.search.in_database.stored import NOT_RESIDENT
from caliber.search.opening import SearchEngine
from caliber.search.ranking.roles import RoleScoring, used
from caliber.search.request import Asked, Outcome
from caliber.search.usage import Count, Uses
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.derived import wrong_hash
from caliber.text.dates import Moment

T = TypeVar("T")

NO_PROVIDER = "no_embedding_provider"
NO_VECTOR = "query_not_embedded"
NO_SPACE = "space_being_filled"
OTHER_SPACE = "space_of_another_model"


Embedded = tuple[NDArray[np.float32] | None, str | None]
"""The vector of a query, or None and why; without a reason where none is wanted."""
LIMIT_MAX: Final = 999
"""Most hits that a caller may ask for. Source: K-204."""
DEFAULT_LIMIT: Final = 10
"""Hits of a search that names no limit."""
_TYPES: Final = {each.value: each for each in EntityType}
_SHARED: Final = "nothing that everybody may see was found; pass user= to search what is of a user too"


def in_one_space(
    engine: Engine, consistency: ReadConsistency | str | None, ask: Callable[[ResidentSnapshot], T]
) -> tuple[ResidentSnapshot, T]:
    """Return a snapshot to read from, and the result of ``ask`` for the embedding space that this very snapshot
    searches.

    Embedding a query takes a while; if the active space changes meanwhile, the query is embedded again.
    """
    before = engine.memory.snapshot
    while True:
        answer = ask(before)
        snapshot = engine.snapshot(consistency)
        if snapshot.space_in_use == before.space_in_use:
            return snapshot, answer
        before = snapshot


def query_vector(
    embedder: Embedder | None, query: str | None, passed: Any, snapshot: ResidentSnapshot
) -> NDArray[np.float32] | None:
    """Return the vector of a query: the caller's, or the provider's; None where there is nothing to embed it with.

    Raises: InputError kinds for the caller's, LlmError kinds of the provider.
    """
    if query is not None:
        arguments.as_text(query, "query", allow_empty=True)
    space_id = snapshot.space_in_use
    if passed is not None:
        dimensions = None if embedder is None or space_id is None else snapshot.spaces[space_id].dimensions
        return filters.check_vector(passed, "query_embedding", dimensions)
    target = None if embedder is None else embedder.answering(space_id)
    if query is None or not query.strip() or target is None:
        return None
    vector: NDArray[np.float32] = target.query(query)
    return vector


Search = Callable[[Asked], tuple[Outcome, Position]]


def _not_ours(snapshot: ResidentSnapshot, configured: EmbeddingSpace) -> str:
    """Return why no provider here can embed a query for the space that is searched."""
    own_space = snapshot.spaces.get(configured.space_id)
    if own_space is not None and own_space.state is SpaceState.BUILDING:
        return f"{NO_SPACE}: {own_space.name}"
    in_use = None if snapshot.space_in_use is None else snapshot.spaces[snapshot.space_in_use]
    return f"{OTHER_SPACE}: {'none' if in_use is None else in_use.name}"


class Searching:
    """Searches and single records, as one principal reads them."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal
        self._label = principal.label
        self._shared = engine.part(SearchEngine)
        self._embeddings = engine.part(Embeddings)
        self._names = {relation: name for name, relation in self._shared.kinds.items()}
        self.readers = Readers(engine.part(TaskOwners), principal)

    def seen_by(self, user: str | EntityRef | None) -> Searching:
        """Return the same with the eyes of a user; an unknown name sees what is shared, and is not stored.

        Raises: as ``Readers.seeing_for``.
        """
        return self if user is None else self.with_readers(self.readers.seeing_for(user))

    def with_readers(self, readers: Readers) -> Searching:
        """Return the same with other readers."""
        seen = copy.copy(self)
        seen.readers = readers
        return seen

    def search_many(
        self,
        queries: Sequence[str],
        *,
        kinds: Sequence[str] | None,
        limit: int | None,
        conditions: Mapping[str, Any] | str | None,
        as_of: datetime | None,
        consistency: ReadConsistency | str | None,
        vector: Any = None,
        meaning: float | None = None,
        author: Principal | str | None = None,
        archived: bool = False,
        floor: bool = True,
        by_role: RoleScoring | None = None,
    ) -> list[SearchResult]:
        """Search for each query; an empty one without ``vector`` returns recent and important records.

        All are embedded together, read from one snapshot, and seen from one instant. ``vector`` is that of the queries,
        ``meaning`` its weight beside words. Without ``floor`` all that a leg finds is a hit. ``by_role`` re-ranks the
        hits of a single kind.
        """
        engine = self._engine
        engine.check_open()
        kind_names = filters.check_kinds(kinds, self._shared.kinds)
        count, archived = self.limit_of(limit), arguments.as_flag(archived, "include_archived")
        weight = None if meaning is None else arguments.as_fraction(meaning, "meaning")
        with within(embedding_share_s()):
            embed = functools.partial(self.embedded_many, queries, vector=vector, meaning=weight)
            snapshot, vectors = in_one_space(engine, consistency, embed)
        check("the query was embedded")
        now = engine.clock.now_us()
        at_us = now if as_of is None else to_us(as_of, "as_of")
        where = self._where(conditions, author, kind_names, at_us, named=kinds is not None)
        if where is not None:
            kind_names = tuple(where.predicates)
            for kind, predicate in where.predicates.items():
                self.readers.require_columns(engine.store.catalog.by_name[kind], columns_in(predicate))
        space = self._embeddings.searched(snapshot, given=vector is not None)
        answers = []
        with self._boundary(snapshot) as search:
            for query, (near, without) in zip(queries, vectors, strict=True):
                alone = near is not None and (weight == 1 or not query.strip())
                asked = Asked(
                    text="" if alone else query,
                    vector=near,
                    without_vector=without,
                    space=space,
                    kinds=kind_names,
                    limit=count if by_role is None else by_role.candidates,
                    readers=self.readers,
                    as_of_us=at_us,
                    now_us=now,
                    check=functools.partial(check, "the database was searched"),
                    where=where,
                    floor=floor,
                    by_role=by_role,
                    moment=Moment(now, self._shared.zone),
                    meaning=1.0 if alone else weight,
                    archived=archived,
                )
                answers.append((asked, *search(asked)))
        # After the reads of the search have ended: what is read here needs a connection of its own.
        return list(itertools.starmap(self._answered, answers))

    def _where(
        self,
        conditions: Mapping[str, Any] | str | None,
        author: Principal | str | None,
        kinds: Sequence[str],
        at_us: int,
        *,
        named: bool,
    ) -> Where | None:
        """Return the condition of each kind that it can be asked of; None without any."""
        by_name, predicates = self._engine.store.catalog.by_name, dict[str, Predicate]()
        if isinstance(conditions, str):
            predicates |= self._shared.filters.of(conditions, kinds, named=named)
        elif conditions is not None and (values := arguments.as_mapping(conditions, "filter")):
            predicates |= filters.conditions_of([by_name[kind] for kind in kinds], values)
        elif author is None:
            return None
        if author is not None:
            written = filters.written_by(author, [by_name[kind] for kind in predicates or kinds])
            predicates = {kind: all_of(each, predicates.get(kind)) or each for kind, each in written.items()}
        return Where(predicates, variables(self._principal, at_us))

    def limit_of(self, limit: int | None) -> int:
        """Return how many hits are asked for. Raises: InvalidValue, DTypeError."""
        count = DEFAULT_LIMIT if limit is None else arguments.as_whole(limit, "limit", 1)
        if count > LIMIT_MAX:
            raise InvalidValue(field="limit", reason=f"must be at most {LIMIT_MAX}")
        return count

    def recently_used(self, kind: str, values: Mapping[str, Any], limit: int | None) -> list[Any]:
        """Return the visible records of a kind with some values that were used last, or else entered last.

        The latest come first, ties by id.
        """
        engine, count = self._engine, self.limit_of(limit)
        engine.check_open()
        now, relation = engine.clock.now_us(), engine.store.catalog.by_name[kind]
        where = Where(filters.conditions_of([relation], values), {})
        stored = self._shared.stored
        if stored is not None:
            asked = Asked("", None, None, None, (kind,), count, self.readers, now, now, where=where)
            return [codec_of(relation).decode(row) for row in stored.recently_used(kind, asked)]
        snapshot = engine.snapshot()
        owners = snapshot[kind]
        visibility = self._shared.searcher.visibility(owners, self.readers, now, now)
        rows = np.flatnonzero(visibility.meeting(owners, where, engine.memory.texts))
        _, times = used(owners, rows, Uses(snapshot["usage"], self.readers.used_by))
        high, low = owners.ties()[rows].T
        best = rows[np.lexsort((low, high, -times))[:count]]
        return [engine.memory.entity(owners, row) for row in best.tolist()]

    def nearest(
        self, kind: str, to: Any, predicate: Predicate | None, most: int, least: float
    ) -> tuple[RelationSnapshot, NDArray[np.int64], NDArray[np.float32]]:
        """Return the visible records of a kind that meet a condition and are nearest to a text or vector, best first.

        Shapes: rows ``int64[n]``, similarities ``f32[n]``
        """
        engine, stored = self._engine, self._shared.stored
        snapshot, (space, vector) = in_one_space(engine, None, functools.partial(self._vector_of, to))
        check("the text was embedded")
        now = engine.clock.now_us()
        where = None if predicate is None else Where({kind: predicate}, variables(self._principal, now))
        if stored is not None:
            due = functools.partial(check, "the database was searched")
            asked = Asked("", vector, None, space, (kind,), most, self.readers, now, now, check=due, where=where)
            owners, vectors = stored.nearest(kind, asked)
            allowed = owners.live_mask
        else:
            owners, vectors = snapshot[kind], snapshot.vectors.get((kind, space.space_id))
            visibility = self._shared.searcher.visibility(owners, self.readers, now, now)
            allowed = visibility.visible if where is None else visibility.meeting(owners, where, engine.memory.texts)
        if vectors is None:
            return owners, np.empty(0, np.int64), np.empty(0, np.float32)
        return owners, *vectors.best(vector, owners, allowed, most, least)

    def _vector_of(self, to: Any, snapshot: ResidentSnapshot) -> tuple[EmbeddingSpace, NDArray[np.float32]]:
        """Return the space that is searched, and the vector of a text, or the caller's, in it."""
        space, embedder = self._embeddings.searched(snapshot, given=True), self._embeddings.embedder
        if space is not None and not isinstance(to, str):
            return space, filters.check_vector(to, "to", space.dimensions)
        target = None if space is None or embedder is None else embedder.answering(space.space_id)
        if space is None or target is None:
            raise ProviderNotConfigured(capability="embedding")
        return space, target.query(arguments.as_text(to, "to"))

    def _boundary(self, snapshot: ResidentSnapshot) -> AbstractContextManager[Search]:
        """Return the searcher at one boundary: that of the snapshot, or the database's own."""
        stored = self._shared.stored
        if stored is not None:
            return stored.at_one_boundary()
        return nullcontext(functools.partial(self._in_memory, snapshot))

    def _answered(self, asked: Asked, outcome: Outcome, position: Position) -> SearchResult:
        engine = self._engine
        reason = outcome.degraded
        if self._shared.stored is not None:
            reason = ", ".join(filter(None, (NOT_RESIDENT, reason)))
        check("memory was searched")
        hits = self._hits(outcome)
        if outcome.traversed and engine.config.write_behind.usage_enabled:
            by, erased = asked.readers.used_by[0], engine.memory.erasures
            used = self._shared.usage.of(EntityType.EDGE.value, outcome.traversed, by, erased, asked.now_us)
            engine.behind.put(*used)
        status = ResultStatus.DEGRADED if reason else ResultStatus.OK if hits else ResultStatus.EMPTY
        embedder = self._embeddings.embedder
        serves = self.readers.serves_tasks  # the application may name any user, and is told of all their records
        sees = None if serves or self.readers.everything else functools.partial(self.readers.sees, unknown=False)
        pending = 0 if embedder is None else embedder.waiting(sees)
        is_shared = serves and not self.readers.everything
        hint = _SHARED if is_shared and not hits else None
        checked = self._shared.read_check
        issues = () if checked is None else checked.issues(asked.readers, [hit.id for hit in hits])
        below, understood = outcome.below, _understood(outcome)
        return SearchResult(hits, status, reason, position, pending, understood, below, hint, issues)

    def _in_memory(self, snapshot: ResidentSnapshot, asked: Asked) -> tuple[Outcome, Position]:
        request = asked.over(snapshot, texts=self._engine.memory.texts)
        return self._shared.searcher.search(request), snapshot.position

    def embedded(self, query: str, snapshot: ResidentSnapshot) -> Embedded:
        """Return the query's vector, or why there is none: an outage costs one leg, not the search (M-040)."""
        return self.embedded_many((query,), snapshot)[0]

    def embedded_many(
        self, queries: Sequence[str], snapshot: ResidentSnapshot, *, vector: Any = None, meaning: float | None = None
    ) -> list[Embedded]:
        """Return the vector of each query, the caller's if given, or why it has none; one request embeds all."""
        embedder = self._embeddings.embedder
        weight = self._engine.config.search.weights.vector if meaning is None else meaning
        if vector is not None:
            space = self._embeddings.searched(snapshot, given=True)
            given = filters.check_vector(vector, "vector", None if space is None else space.dimensions)
            if not weight and meaning is None and any(map(str.strip, queries)):
                reason = "counts nothing beside words, as search.weights.vector is 0: state its weight as meaning="
                raise InvalidValue(field="vector", reason=reason)
            return [(None, NO_PROVIDER) if space is None else (given, None)] * len(queries)
        if embedder is None:
            return [(None, NO_PROVIDER)] * len(queries)
        if not weight:
            return [(None, None)] * len(queries)
        target = embedder.answering(snapshot.space_in_use)
        if target is None:
            return [(None, _not_ours(snapshot, embedder.space))] * len(queries)
        spoken = list(filter(str.strip, queries))
        found: list[Embedded] = []
        erased = self._engine.memory.erasures
        try:
            vectors = target.queries(spoken) if spoken else []
            found = list(map(self._vector_or_why, vectors, itertools.repeat(erased)))
        except (LlmError, VectorError, Unavailable) as error:
            found = [self._vector_or_why(error, erased)] * len(spoken)
        if len(spoken) == len(queries):
            return found
        remaining = iter(found)
        return [next(remaining) if query.strip() else (None, None) for query in queries]

    def _vector_or_why(self, answer: NDArray[np.float32] | CaliberError, erased: int) -> Embedded:
        if not isinstance(answer, CaliberError):
            return answer, None
        timed_out = isinstance(answer, Unavailable) and answer.reason == TIMEOUT
        if not timed_out and not isinstance(answer, LlmError | VectorError):
            raise answer
        self._engine.record_error("embedding of a query", answer, erased)
        return None, f"{NO_VECTOR}: {TIMEOUT if timed_out else answer.kind}"

    def _hits(self, outcome: Outcome) -> tuple[SearchHit, ...]:
        found, places = outcome.found, defaultdict[RelationSnapshot, list[int]](list)
        words = () if outcome.query is None else outcome.query.surfaces
        for place, item in enumerate(found):
            places[item.relation].append(place)
        hits: dict[int, SearchHit] = {}
        for relation, some in places.items():
            of_kind = list(map(found.__getitem__, some))
            hits.update(zip(some, self._hits_of(relation, of_kind, words), strict=True))
        return tuple(map(hits.__getitem__, range(len(found))))

    def texts(self, snapshot: RelationSnapshot, rows: Sequence[int]) -> Sequence[Any]:
        """Return the searched texts of hits, a field a line."""
        memory, text = self._engine.memory, snapshot.relation.text
        apart = snapshot.layout.codec.names[snapshot.layout.text_place]
        searched = (apart,) if text is None else text.searched
        if searched == (apart,):
            return memory.texts(snapshot, rows)
        fields = [
            memory.texts(snapshot, rows) if name == apart else snapshot.packed_values(name, rows) for name in searched
        ]
        return ["\n".join(filter(None, parts)) for parts in zip(*fields, strict=True)]

    def _hits_of(self, snapshot: RelationSnapshot, found: Sequence[Found], words: tuple[str, ...]) -> list[SearchHit]:
        """Return hits of one kind, their texts read at once."""
        rows = [item.row for item in found]
        kind = self._names.get(snapshot.relation.name, snapshot.relation.name)
        hits = []
        for item, raw, key in zip(found, self.texts(snapshot, rows), snapshot.entity_ids(rows), strict=True):
            text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw or ""
            hits.append(SearchHit(key, kind, text, item.score, item.breakdown, item.found_by, words))
        return hits

    # --- single records --------------------------------------------------------------------------

    def locate(self, record_id: uuid.UUID) -> tuple[ResidentSnapshot, RelationSnapshot, int]:
        """Return the place of a visible record. Raises: NotFound, also for a hidden one."""
        snapshot = self._engine.snapshot()
        found = snapshot.locate(record_id.bytes)
        readers = self.readers
        if found is None or not (readers.everything or readers.allows(*found)):
            raise readers.not_found("record", record_id)
        if found[0].relation.gone_at is not None and is_gone(*found, self._engine.clock):  # of few kinds
            raise readers.not_found("record", record_id)
        return snapshot, *found

    def get(self, record_id: uuid.UUID, only: str | None = None) -> Any:
        """Return one record, of relation ``only`` if that is given, counting its use."""
        engine, erased = self._engine, self._engine.memory.erasures
        snapshot, relation, row = self.locate(record_id)
        if only is not None and relation.relation.name != only:
            raise self.readers.not_found(only, record_id)
        entity = engine.memory.entity(relation, row)
        if engine.config.validation_mode is ValidationMode.ALWAYS:
            check_stored(relation.relation, entity)
        if self.readers.limited:
            entity = self.readers.shown(relation.relation, entity)
        kind = relation.relation.usage.retrieved
        if kind is not None:
            now, name = engine.clock.now_us(), relation.relation.name
            used: tuple[Entry, ...] = ()
            if engine.config.write_behind.usage_enabled:
                owner, by = record_id.bytes, self.readers.visibility(snapshot).used_by[0]
                used = ((self._shared.usage, (owner, by), Count(name, owner, by, erased, now)),)
            of: Any = {"principal": self._label, "subject": (_TYPES[name], record_id), "at_us": now}
            task_of = relation.relation.task_of
            engine.publish_later(lambda: engine.event(kind, trajectory_id=task_of(entity), **of), erased, used)
        return entity

    def similarity(self, record_id: uuid.UUID, space_id: SpaceId, query: NDArray[np.float32]) -> float | None:
        """Return the similarity of a record's present vector to a query, or None when it has none."""
        snapshot = self._engine.memory.snapshot
        found = snapshot.locate(record_id.bytes)
        if found is None:
            return None
        owners, row = found
        vectors = snapshot.vectors.get((owners.relation.name, space_id))
        if vectors is None:
            return None
        scores, present = vectors.scores(query, owners, np.array([row], np.int64))
        return float(scores[0]) if present[0] else None

    def sees(self, relation: Relation, record_id: uuid.UUID) -> bool:
        """Return whether a record of a relation exists and may be read."""
        if relation.by_id:
            found = self._engine.memory.snapshot.locate(record_id.bytes)
            return found is not None and found[0].relation.name == relation.name and self.readers.allows(*found)
        plans = self._engine.store.plans[relation.name]  # such as a task, which ``get`` does not find
        with self._engine.store.read() as session:
            rows = session.run(plans.get, (record_id.bytes,)) if len(relation.key) == 1 else ()
        return any(self.readers.allows_row(relation, row) for row in rows)


def check_stored(relation: Relation, entity: Any) -> None:
    """Raise ConstraintViolation when a row differs from the one that was written (C-240)."""
    codec = codec_of(relation)
    wrong = wrong_hash(relation, dict(zip(codec.names, codec.encode(entity), strict=True)), Sha256)
    if wrong is not None:
        reason = f"the stored {wrong.of[0]} is damaged; run `caliber doctor`"
        raise ConstraintViolation(constraint=wrong.column, reason=reason)


def _understood(outcome: Outcome) -> QueryAnalysis:
    query = outcome.query
    if query is None:
        return QueryAnalysis()
    return QueryAnalysis(
        words=query.terms,
        stop_words=query.stop_words,
        phrases=tuple(map(" ".join, query.phrases)),
        prefixes=query.prefixes,
        names=outcome.names,
        days=None if query.when is None else (query.when.first, query.when.last),
        asks_time=query.asks_time,
        cut=query.cut,
        weights=outcome.weights,
    )
