"""Search for tenants whose records are not in memory: the database finds candidates, the usual searcher ranks them.

Candidates are read into a small mirror, which the same ``Searcher`` as that of resident memory searches. To it they are
the whole store: words are as rare as they are among them.

Windows, closing and completing work on a task: its scopes, turns and artifacts, and notes on given subjects. All rows
of one snapshot are read in one session, hence at one commit boundary.

Source: design, section 5; docs/search.md; docs/decisions/0209.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Final, Protocol

from caliber.config import CaliberConfig
from caliber.config.search import SearchConfig
from caliber.kernels.evaluator import Evaluator
from caliber.model.embedding import EmbeddingSpace
from caliber.model.errors import InvalidConfigValue, SchemaMismatch
from caliber.model.process.interrupts import managed
from caliber.model.windows import Position
from caliber.resident.memory import ResidentMemory
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.partial import PartialMirrors
from caliber.resident.snapshot import ResidentSnapshot
from caliber.resident.vectors import VectorSnapshot
from caliber.schema.relation import Relation
from caliber.schema.relations import MIRRORED
from caliber.schema.traits import Enters, Mirror
from caliber.search.in_database.candidates import Candidates, StoredVectors
from caliber.search.in_database.full_text import WordIndexer, indexer_name, indexer_of
from caliber.search.query import Query
from caliber.search.ranking.days import newest_day
from caliber.search.request import Asked, Outcome, Request
from caliber.search.searcher import Searcher
from caliber.search.usage import keys_of
from caliber.storage.compile.codec import Codec, Row, dump_json
from caliber.storage.compile.paging import filled
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store
from caliber.storage.sql.full_text import FullText, FullTextState, holds, texts_of
from caliber.text.dates import Moment

NOT_RESIDENT: Final = "not_resident"
"""Why every result of this mode is degraded."""

_MAKE_ANEW: Final = "run `caliber db rebuild-search`"

_WORDS_KEPT: Final = 200_000
"""Distinct words of records read that are remembered between searches."""


def check_state(state: FullTextState | None, settings: SearchConfig, store: str, texts: Iterable[Relation]) -> None:
    """Refuse to search a full-text index that is missing, incomplete, made by other rules, or without some of
    ``texts``.

    Raises: SchemaMismatch, which names the command to run
    """
    expected = indexer_name(settings.keyword.language)
    if state is None:
        reason = 'search.mode is "backend", and it has no full text'
    elif state.analyzer != expected:
        reason = f"its full text was made by the rules {state.analyzer}, and {expected} are configured"
    elif not state.complete:
        reason = "its full text is not complete"
    elif not holds(state.memories, texts):
        reason = "its full text does not hold every memory as this process knows it"
        raise SchemaMismatch(store=store, reason=f"{reason}; open it again, or {_MAKE_ANEW} if that changes nothing")
    else:
        return
    raise SchemaMismatch(store=store, reason=f"{reason}; {_MAKE_ANEW}")


class StoredSearch:
    """Searches of one store that is not in memory. Safe to share between threads."""

    def __init__(
        self, store: Store, full_text: FullText, memory: ResidentMemory, settings: SearchConfig, evaluator: Evaluator
    ) -> None:
        self._settings = settings
        self._store = store
        self._full_text = full_text
        self.statements: Mapping[str, Plan] = full_text.statements
        self._name = str(store.facts()["path"])
        self._memory = memory
        self._evaluator = evaluator
        self._mirrors = PartialMirrors(evaluator, store.catalog)
        self._lock = threading.Lock()
        self.kinds = tuple(relation.name for relation in texts_of(store.catalog))
        """The relations that it searches."""
        self._vectors = StoredVectors(store, self.kinds)
        self._searcher = self._fresh()
        forms = ((each.name, each.resident) for each in store.catalog.mirrored)
        read = (name for name, resident in forms if resident.form is Mirror.ROWS and not resident.framed)
        self.blank = {name: self._mirrors.mirror(name, ()) for name in (*self.kinds, *read)}
        """Empty snapshots, against which filters are checked."""

    def forget_words(self) -> None:
        """Clear the caches of words and vectors: some may no longer be of any text."""
        self._vectors.forget(self._memory.sequence)
        self._searcher = self._fresh()

    def searcher(self) -> Searcher:
        """Return the searcher, a fresh one when this one remembers too many words."""
        with self._lock:
            if len(self._searcher.keywords.dictionary) > _WORDS_KEPT:
                self._searcher = self._fresh()
            return self._searcher

    def _fresh(self) -> Searcher:
        return Searcher(self._memory, self._settings, self.kinds)

    @managed
    def at_one_boundary(self) -> Iterator[Callable[[Asked], tuple[Outcome, Position]]]:
        """Yield a search of the store at one commit: it returns the best hits, and that position.

        Raises: SchemaMismatch; each search InvalidValue
        """
        with self._store.read() as session:
            state = self._full_text.state(session)
            sequence = session.run(self._store.statements["change.bounds"], ())[0][1]
            position = Position(self._store.epoch, sequence)
            yield lambda asked: (self._search(session, state, asked, position), position)

    def _search(
        self, session: StatementSession, state: FullTextState | None, asked: Asked, position: Position
    ) -> Outcome:
        self._check(state, asked)
        candidates = self.candidates(session, asked)
        has_query = asked.text.strip() or asked.vector is not None
        query = self.read(candidates, asked, position) if has_query else None
        rows = candidates.recent() if query is None else candidates.found(query)
        return self.searcher().search(self._request(candidates, asked, position, rows, query))

    def _check(self, state: FullTextState | None, asked: Asked) -> None:
        relations = self._store.catalog.by_name
        check_state(state, self._settings, self._name, [relations[kind] for kind in asked.kinds])

    def candidates(self, session: StatementSession, asked: Asked) -> Candidates:
        """Return the candidates of a search in a session; none is read yet."""
        return Candidates(session, self._store, self.statements, self._settings, self._vectors, asked)

    def checked(self, session: StatementSession, asked: Asked) -> None:
        """Refuse a full text that lacks searched texts. Raises: SchemaMismatch"""
        self._check(self._full_text.state(session), asked)

    def read(self, candidates: Candidates, asked: Asked, position: Position) -> Query:
        """Return the parsed query of a search; its days are relative to the newest record."""
        searcher = self.searcher()

        def newest(now: Moment) -> date:
            request = self._request(candidates, asked, position, candidates.listed("newest", 1), None)
            return newest_day(searcher.searched(request), now)

        return searcher.read(asked.text, asked.moment or Moment(asked.now_us), newest)

    def recently_used(self, kind: str, asked: Asked) -> list[Row]:
        """Return the records of a kind that were used last, or else entered last, the latest first."""
        with self._store.read() as session:
            return self.candidates(session, asked).listed("used", asked.limit)[kind]

    def nearest(self, kind: str, asked: Asked) -> tuple[RelationSnapshot, VectorSnapshot | None]:
        """Return the records of a kind nearest to a vector, as many as a search reads, and their vectors."""
        with self._store.read() as session:
            candidates = self.candidates(session, asked)
            found, space = candidates.nearest()[kind], asked.space
            owners = self._mirrors.mirror(kind, found)
            vectors = [] if space is None else candidates.vectors_of(space, [row[1] for row in found])
        made = {} if space is None else self._mirrors.vectors(space, vectors, {kind: owners})
        return owners, next(iter(made.values()), None)

    def _request(
        self,
        candidates: Candidates,
        asked: Asked,
        position: Position,
        rows: Mapping[str, Sequence[Row]],
        query: Query | None,
    ) -> Request:
        keys = [row[1] for some in rows.values() for row in some]
        mirrored = {**rows, "edge": list(candidates.edges.values())}
        if query is None or asked.by_role is not None:
            mirrored["usage"] = candidates.usage_of(keys_of(keys, asked.readers.used_by))
        made = {name: self._mirrors.mirror(name, some) for name, some in mirrored.items() if some}
        relations = {**self.blank, **made}
        spaces: dict[uuid.UUID, EmbeddingSpace] = {} if asked.space is None else {asked.space.space_id: asked.space}
        vectors: dict[tuple[str, uuid.UUID], VectorSnapshot] = {}
        if query is not None and asked.space is not None and asked.vector is not None:
            vectors = self._mirrors.vectors(asked.space, candidates.vectors_of(asked.space, keys), relations)
        return asked.over(ResidentSnapshot(position, relations, vectors, spaces, self._evaluator), query)


_OF_TASK = "list_by_trajectory"
_EMPTY = tuple(relation.name for relation in MIRRORED if relation.resident.form is Mirror.ROWS)


class Ranked(Protocol):
    """The records of a snapshot to be ranked: their space, their reader, and the turns that searches found."""

    @property
    def space(self) -> EmbeddingSpace | None:
        """The space that is searched."""
        ...

    @property
    def used_by(self) -> Sequence[bytes]:
        """The ids whose uses of records count."""
        ...

    @property
    def found_turns(self) -> Sequence[bytes]:
        """The keys of turns that searches found, and of those beside them."""
        ...


def open_scope(codec: Codec, scopes: Iterable[Row]) -> bytes | None:
    """Return the key of the newest open scope, if there is one."""
    closed_at, number_at = codec.index("closed_at"), codec.index("sequence_number")
    still_open = [row for row in scopes if row[closed_at] is None]
    return bytes(max(still_open, key=lambda row: int(row[number_at]))[1]) if still_open else None


class StoredRecords:
    """Reads the records that a call about one trajectory needs."""

    def __init__(self, store: Store, search: StoredSearch, config: CaliberConfig) -> None:
        self._store = store
        self._search = search
        self._max_depth = config.pcp.context_dag.max_depth if config.pcp.context_dag.enabled else 0

    def around(
        self,
        resident: ResidentSnapshot,
        trajectory_id: uuid.UUID,
        scopes: Iterable[uuid.UUID],
        things: Sequence[tuple[str, str]] = (),
    ) -> ResidentSnapshot:
        """Return a snapshot of a trajectory and those above it, their artifacts, its scopes and the turns of some.

        Its notes are those on ``things``, by name and type.
        """
        with self._store.read() as session:
            rows = self.read(session, trajectory_id, [scope.bytes for scope in scopes])
            rows["note"] = [row for thing in things for row in self._list(session, "note", "find_by_entity", *thing)]
            return self.snapshot(session, resident, rows)

    def read(
        self, session: StatementSession, trajectory_id: uuid.UUID, scopes: Sequence[bytes] | None
    ) -> dict[str, Sequence[Row]]:
        """Return the rows of a trajectory; ``scopes`` None: with the turns of the newest open one.

        Summaries of turns are those of all its scopes.
        """
        rows: dict[str, Sequence[Row]] = dict.fromkeys(_EMPTY, ())
        rows["trajectory"] = lineage = self._lineage(session, trajectory_id.bytes)
        rows["scope"] = self._list(session, "scope", "list_by_trajectory", trajectory_id.bytes)
        newest = open_scope(self._store.plans["scope"].codec, rows["scope"])
        scope_ids = scopes if scopes is not None else [] if newest is None else [newest]
        rows["turn"] = [row for key in scope_ids for row in self._list(session, "turn", "list_by_scope", key)]
        rows["turn_summary"] = self._list(session, "turn_summary", "list_by_trajectory", trajectory_id.bytes)
        for relation in self._store.catalog.mirrored:
            if relation.window is not None and relation.window.enters is Enters.TASK:
                name = relation.name
                rows[name] = [row for owner in lineage for row in self._list(session, name, _OF_TASK, owner[1])]
        return rows

    def snapshot(
        self,
        session: StatementSession,
        resident: ResidentSnapshot,
        rows: dict[str, Sequence[Row]],
        ranked: Ranked | None = None,
    ) -> ResidentSnapshot:
        """Return a snapshot of rows, with vectors, links and usage counts of those that are to be ranked."""
        vectors: dict[tuple[str, uuid.UUID], VectorSnapshot] = {}
        spaces = dict(resident.spaces)
        space = None if ranked is None else ranked.space
        found: Sequence[Row] = ()
        if ranked is not None:
            statements = self._search.statements
            kinds = [relation.name for relation in texts_of(self._store.catalog) if relation.neighbours is None]
            keys = [*(row[1] for kind in kinds for row in rows.get(kind, ())), *ranked.found_turns]
            packed = dump_json([key.hex().upper() for key in dict.fromkeys(keys)])
            uses = keys_of(dict.fromkeys(keys), ranked.used_by)
            rows["usage"] = session.run(
                statements["search.usage_of"], (dump_json([key.hex().upper() for key in uses]),)
            )
            rows["edge"] = session.run(statements["search.edges_of"], (packed,))
            if space is not None:
                found = session.run(statements["search.vectors_of"], (space.space_id.bytes, packed))
        mirrors = PartialMirrors(resident.evaluator, self._store.catalog)
        relations = {name: mirrors.mirror(name, part) for name, part in rows.items()}
        relations |= {name: each for name, each in resident.relations.items() if each.relation.rights.ends}  # conflicts
        if space is not None:
            vectors = mirrors.vectors(space, found, relations)
            spaces[space.space_id] = space
        position = self.position(session)
        return ResidentSnapshot(position, relations, vectors, spaces, resident.evaluator, resident.space_in_use)

    def position(self, session: StatementSession) -> Position:
        """Return the change-feed position of a session."""
        sequence = session.run(self._store.statements["change.bounds"], ())[0][1]
        return Position(self._store.epoch, sequence)

    def _list(self, session: StatementSession, relation: str, path: str, *key: object) -> list[Row]:
        return session.run(self._store.plans[relation].lists[path], key)

    def _lineage(self, session: StatementSession, key: bytes) -> list[Row]:
        """Return a trajectory and those above it, nearest first."""
        plans = self._store.plans["trajectory"]
        parent_at = plans.codec.index("parent_trajectory_id")
        out: list[Row] = []
        following: bytes | None = key
        while following is not None and len(out) <= self._max_depth and all(row[1] != following for row in out):
            rows = session.run(plans.get, (following,))
            out += rows
            following = rows[0][parent_at] if rows else None
        return out


def open_stored_search(store: Store, memory: ResidentMemory, config: CaliberConfig) -> StoredSearch | None:
    """Return the search in the database; None where ``search.mode`` keeps records in memory.

    A store without records gets its index at once. In either mode our writes keep the index that a store has.

    Raises: SchemaMismatch for a store whose index is missing, incomplete, or of another language;
        InvalidConfigValue for a database that has no full text
    """
    if store.full_text is not None:
        store.full_text.keep(indexer_of)
    if config.search.mode != "backend":
        return None
    full_text = full_text_of(store)
    state = full_text.state()
    if (state is None or not state.complete) and _is_empty(store):
        full_text.rebuild(WordIndexer(config.search.keyword.language), unless_there=True)
        state = full_text.state()
    check_state(state, config.search, str(store.facts()["path"]), texts_of(store.catalog))
    return StoredSearch(store, full_text, memory, config.search, memory.snapshot.evaluator)


def full_text_of(store: Store) -> FullText:
    """Return a store's own full text. Raises: InvalidConfigValue."""
    if store.full_text is None:
        reason = f"the adapter {store.adapter} has no full text of its own; search its records in memory"
        raise InvalidConfigValue(field="search.mode", value="backend", reason=reason)
    return store.full_text


def _is_empty(store: Store) -> bool:
    with store.read() as session:
        return not filled(session, [store.plans[relation.name] for relation in texts_of(store.catalog)])
