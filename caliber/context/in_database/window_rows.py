"""Loader of every row that one window may need from the database, for ``search.mode = "backend"``.

It reads the conversation, the records of the task, the hits of the searches and the records that rules may select, in
one session and therefore at one commit boundary.

Source: design, section 5 (What a window is for); docs/search.md.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, TypeAlias

from caliber.config.cron import zone_of
from caliber.context import limits
from caliber.context.conversation import PASSAGE, SCOPES, TASKS, TURNS, moment_of
from caliber.context.gather.asking import NO_QUERY, DefaultQuery, default_query
from caliber.context.gather.dialogue import Earlier
from caliber.context.gather.recall import InReach
from caliber.context.gather.turns import TurnReader
from caliber.context.in_database.rule_rows import RuleRows
from caliber.context.inputs import TextSource
from caliber.context.plan import AssemblyPlan, SectionPlan
from caliber.embedding.embedder import Embedder
from caliber.model.access import Principal
from caliber.model.embedding import EmbeddingSpace
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import uuid_from_bytes
from caliber.model.time import from_us
from caliber.model.windows import Position
from caliber.resident.partial import PartialMirrors
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.predicate import Predicate, Variable
from caliber.schema.relation import Relation
from caliber.schema.traits import Enters
from caliber.search.in_database.candidates import rows_of
from caliber.search.in_database.stored import StoredRecords, StoredSearch, open_scope
from caliber.search.request import Asked
from caliber.storage.compile.codec import Row, codec_of, dump_json
from caliber.storage.compile.conditions import Listing
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store
from caliber.text.dates import Moment


@dataclass(frozen=True, slots=True)
class WindowAsked:
    """The request for a window. ``query`` None: the question of the last user turn, or the goal.

    Units: ``as_of_us`` is valid time, ``now_us`` the clock.
    """

    plan: AssemblyPlan
    trajectory_id: uuid.UUID
    max_tokens: int
    query: DefaultQuery | None
    search: Asked
    """The principal, the instants and the space; words, vector and kinds are those of each search."""
    principal: Principal
    embedder: Embedder | None = None
    """The embedder of a question that waits for its vector."""
    user_names: frozenset[str] = frozenset()
    """The names of the task's user, and the id."""
    block_owners: frozenset[bytes] = frozenset()
    """The ids whose memory blocks stand in the window."""


@dataclass(frozen=True, slots=True)
class WindowRead:
    """A snapshot for a window, its query, and how many records there are; see ``AssemblyInputs``."""

    snapshot: ResidentSnapshot
    query: DefaultQuery
    totals: Mapping[str, int]


def read_window(
    store: Store,
    search: StoredSearch,
    records: StoredRecords,
    texts: TextSource,
    resident: ResidentSnapshot,
    asked: WindowAsked,
) -> WindowRead:
    """Return a snapshot for a window.

    Raises: SchemaMismatch when the full text cannot be trusted
    """
    with store.read() as session:
        mirrors = PartialMirrors(resident.evaluator, store.catalog)
        position = records.position(session)
        window = WindowRows(store, search, texts, mirrors, session, asked, position)
        rows = asked.search.readers.readable(store.catalog, records.read(session, asked.trajectory_id, None))
        window.read(rows, resident)
        snapshot = records.snapshot(session, resident, rows, window)
        return WindowRead(snapshot, window.query, window.totals)


_TAIL: Final = 50
"""Turns that may stand behind the last user message, and are no passages."""

Rows: TypeAlias = dict[str, list[Row]]
"""Records by kind."""


class WindowRows:
    """Reads the rows of one window in a session."""

    def __init__(
        self,
        store: Store,
        search: StoredSearch,
        texts: TextSource,
        mirrors: PartialMirrors,
        session: StatementSession,
        asked: WindowAsked,
        position: Position,
    ) -> None:
        self._store = store
        self._search = search
        self._texts = texts
        self._mirrors = mirrors
        self._session = session
        self._asked = asked
        self._position = position
        self._plan = asked.plan
        self._key = asked.trajectory_id.bytes
        self._turn = store.plans[TURNS].codec
        self.space: EmbeddingSpace | None = asked.search.space
        self.used_by = asked.search.readers.used_by
        self._scope: uuid.UUID | None = None
        self._moment = Moment(asked.search.now_us, zone_of(asked.plan.config.time_zone))
        self.query = asked.query or NO_QUERY
        self.totals: dict[str, int] = {}
        self.found_turns: list[bytes] = []
        """The keys of turns that searches found, and of those beside them."""

    # --- reading ---------------------------------------------------------------------------------

    def read(self, rows: dict[str, Sequence[Row]], resident: ResidentSnapshot) -> None:
        """Add the other rows that a window needs to those of its task, which include the turns of the open scope."""
        if not rows[TASKS]:
            return
        self._resident = resident
        for kind in (*self._search.kinds, *self._plan.declared.values()):
            rows.setdefault(kind, ())
        self._search.checked(self._session, replace(self._asked.search, kinds=self._search.kinds))
        self._scope = self._open_scope(rows[SCOPES])
        self._add(rows, {TURNS: self._earlier(rows, resident)})
        self._resolve(rows, resident)
        found: list[Rows] = [] if self._plan.blocks is None else [self._blocks(self._plan.records[self._plan.blocks])]
        if not self._plan.governed:
            found += self._unruled()
        if self._plan.rule_sections:
            matching = self._matching(replace(self._base, kinds=self._knowledge))
            self.totals = {**matching, **self.totals}
            found += self._ruled()
        for part in found:
            self.found_turns += [row[1] for row in part.get(TURNS, ())]
            self._add(rows, part)
        self._add(rows, {TASKS: self._owners(found)})

    def _add(self, rows: dict[str, Sequence[Row]], part: Mapping[str, Iterable[Row]]) -> None:
        for name, more in self._asked.search.readers.readable(self._store.catalog, part).items():
            rows[name] = list({row[0]: row for row in (*rows.get(name, ()), *more)}.values())

    def _open_scope(self, scopes: Sequence[Row]) -> uuid.UUID | None:
        key = open_scope(self._store.plans[SCOPES].codec, scopes)
        return None if key is None else uuid.UUID(bytes=key)

    def _readable_turns(self, statement: str, *key: object) -> Sequence[Row]:
        found = {TURNS: self._session.run(self._store.statements[statement], key)}
        return self._asked.search.readers.readable(self._store.catalog, found)[TURNS]

    def _partial(self, resident: ResidentSnapshot, rows: Mapping[str, Sequence[Row]]) -> ResidentSnapshot:
        """Return a snapshot of nothing but some rows, with their vectors."""
        relations = {name: self._mirrors.mirror(name, part) for name, part in rows.items()}
        vectors = {}
        if self.space is not None:
            keys = dump_json([row[1].hex().upper() for row in rows.get(TURNS, ())])
            statement = self._search.statements["search.vectors_of"]
            found = self._session.run(statement, (self.space.space_id.bytes, keys))
            vectors = self._mirrors.vectors(self.space, found, relations)
        return ResidentSnapshot(self._position, relations, vectors, {}, resident.evaluator)

    # --- the conversation ------------------------------------------------------------------------

    def _earlier(self, rows: Mapping[str, Sequence[Row]], resident: ResidentSnapshot) -> list[Row]:
        """Return the newest turns of closed scopes, as many as the conversation examines."""
        limit = limits.MAX_TURNS
        number_at = self._store.plans[SCOPES].codec.index("sequence_number")
        current = None if self._scope is None else self._scope.bytes
        out: list[Row] = []
        looked = Earlier(self._plan, self._asked.max_tokens, limit, len(rows[TURNS]))
        for scope in sorted(rows[SCOPES], key=lambda row: -int(row[number_at])):
            if looked.enough:
                break
            if scope[1] == current:
                continue
            turns = self._readable_turns("turn.newest", scope[1], limit)
            if turns:
                mirror = self._mirrors.mirror(TURNS, turns)
                part = ResidentSnapshot(self._position, {TURNS: mirror}, {}, {}, resident.evaluator)
                looked.add(TurnReader(part, self._texts, self._plan).lengths(mirror.rows()))
                out += turns
        return out

    def _resolve(self, rows: dict[str, Sequence[Row]], resident: ResidentSnapshot) -> None:
        """Determine the moment of the question, and the default query: the last user turn, or the goal."""
        last_turns = self._readable_turns("turn.last_said", self._key)
        part = {TASKS: rows[TASKS], SCOPES: rows[SCOPES], TURNS: last_turns}
        snapshot = self._partial(resident, part)
        space_id = None if self.space is None else self.space.space_id
        self._moment = moment_of(snapshot, self._key, self._asked.search.now_us, zone_of(self._plan.config.time_zone))
        if self._asked.query is None:
            asked = self._asked
            self.query = default_query(snapshot, self._texts, asked.trajectory_id, space_id, asked.embedder)

    # --- searches --------------------------------------------------------------------------------

    @cached_property
    def _base(self) -> Asked:
        query = self.query
        return replace(
            self._asked.search,
            text=query.text or "",
            vector=query.vector,
            kinds=self._search.kinds,
            limit=1,
            moment=self._moment,
        )

    @property
    def _asks(self) -> bool:
        return bool(self._base.text.strip()) or self._base.vector is not None

    @property
    def _by_words(self) -> bool:
        """True when a search judges relevance."""
        return self._asks and self._plan.config.assembly.relevance == "search"

    def _matching(self, asked: Asked) -> dict[str, int]:
        return self._search.candidates(self._session, asked).matching()

    def _newest(self, asked: Asked, limit: int) -> Rows:
        return self._search.candidates(self._session, asked).listed("newest", limit)

    def _asking(self, asked: Asked) -> Rows:
        candidates = self._search.candidates(self._session, asked)
        if not self._by_words:
            return candidates.nearest()
        return candidates.found(self._search.read(candidates, asked, self._position))

    def _unruled(self) -> list[Rows]:
        config, plan = self._plan.config, self._plan
        known = [] if plan.about is None else [self._about_user(plan.records[plan.about.source])]
        if self._by_words and config.recall.limit:
            asked = replace(self._base, limit=config.recall.limit, reach=self._reach)
            self.totals = self._matching(asked)
            kinds = tuple(kind for kind, total in self.totals.items() if total)
            return [*known, self._asking(replace(asked, kinds=kinds))]
        knowledge = replace(self._base, kinds=self._knowledge, limit=max(1, limits.NOTE_SEARCH_LIMIT))
        self.totals = self._matching(knowledge)
        found = [self._asking(knowledge)] if self._asks else []
        return [*known, *found, self._newest(knowledge, config.assembly.notes_without_query)]

    def _blocks(self, relation: Relation) -> Rows:
        """Return the core memory blocks of the owners, and those that are shared with them."""
        from caliber.context.gather.blocks import owned_by  # few configurations have any

        name = relation.name
        listing = Listing(self._store.plans[name].relation, owned_by(self._asked.block_owners), self._store.dialect)
        return {name: [*listing.rows(self._session, {Variable.NOW: from_us(self._asked.search.now_us)})]}

    def _about_user(self, relation: Relation) -> Rows:
        """Return the records about the user of the task, by each name."""
        plan = self._store.plans[relation.name].lists["find_by_entity"]
        assert relation.erase is not None
        pairs = itertools.product(sorted(self._asked.user_names), relation.erase.people)
        return {relation.name: [row for pair in pairs for row in self._session.run(plan, pair)]}

    @property
    def _knowledge(self) -> tuple[str, ...]:
        """Read the records that belong to no task and enter without a query too."""
        return tuple(self._plan.records[source].name for source in self._plan.entering[Enters.KNOWLEDGE])

    # --- whose records ---------------------------------------------------------------------------

    @cached_property
    def _in_reach(self) -> InReach:
        return InReach.of(self._resident[TASKS], self._asked.trajectory_id, self._plan.reach)

    @cached_property
    def _reach(self) -> dict[str, tuple[Predicate | None, ...]]:
        """Conditions of which a record meets one if a window may recall it, by kind."""
        trust, relations = self._plan.config.recall.trust, self._store.catalog.by_name
        return {kind: self._in_reach.conditions_of(relations[kind], trust) for kind in self._search.kinds}

    def _owners(self, found: Iterable[Rows]) -> list[Row]:
        """Return the tasks whose records are within reach of recall."""
        tasks, ordinals = self._in_reach.tasks, set()
        if tasks is None:
            return []
        for part in found:
            for kind, rows in part.items():
                relation = self._store.catalog.by_name[kind]
                if rows and relation.has("trajectory_id"):
                    at = codec_of(relation).index("trajectory_id")
                    ordinals |= {tasks.get(uuid_from_bytes(row[at])) for row in rows if row[at] is not None}
        return rows_of(self._session, self._store, TASKS, [item for item in ordinals if item is not None])

    # --- rules -----------------------------------------------------------------------------------

    @cached_property
    def _rules(self) -> RuleRows:
        asked = self._asked
        return RuleRows(
            asked.plan,
            asked.trajectory_id,
            self._scope,
            asked.principal,
            asked.search.readers,
            asked.search.as_of_us,
            asked.search.now_us,
        )

    def _ruled(self) -> list[Rows]:
        """Return the records that rules could select: the newest of each, and the hits within its filter."""
        out: list[Rows] = []
        for section in self._plan.rule_sections:
            if section.source == PASSAGE:
                out += self._passages(section)
            elif self._plan.records[section.source].in_windows.enters in (Enters.KNOWLEDGE, Enters.FOUND):
                out += self._records(section)
        return out

    def _records(self, section: SectionPlan) -> list[Rows]:
        """Return the records that belong to no task, and the hits of a search."""
        rule, kind = section.rule, self._plan.records[section.source].name
        assert rule is not None
        out: list[Rows] = [{kind: self._rules.newest(self._store, self._session, section)}]
        if rule.asks and self._asks and kind in self._search.kinds:
            out.append(self._asking(self._rules.question(section, self._base)))
        return out

    def _passages(self, section: SectionPlan) -> list[Rows]:
        """Return turns in reach."""
        assert section.rule is not None
        asked = replace(self._rules.question(section, self._base), reach=self._reach)
        out = [self._newest(asked, self._rules.limit(section.rule) + _TAIL)]
        if self._asks:
            out.append(self._asking(asked))
        return out
