"""Class ``Caliber``, the public handle of a tenant: search, get, windows, explain, trace, forget, close."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from caliber.api.subsystems import Facets
from caliber.config import CaliberConfig
from caliber.context.service import ContextService
from caliber.engine.engine import Engine
from caliber.knowledge.facet import NoteMethods
from caliber.learning.facet import LearningMethods
from caliber.memories.facet import RecordMethods
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.erasure import ForgetReport
from caliber.model.events import Event, EventType
from caliber.model.joining import refuse_inside
from caliber.model.knowledge import Note
from caliber.model.process.interrupts import managed
from caliber.model.references import ArtifactId, EntityRef, Id, NoteId, ScopeId, SessionId, TrajectoryId, TurnId
from caliber.model.storage import ReadConsistency
from caliber.model.trajectory import Artifact, Scope, Session, Trajectory, Turn
from caliber.model.windows import ContextWindow, SearchResult
from caliber.policies.policy_engine import tasks_of
from caliber.search.service import Searching

if TYPE_CHECKING:
    from caliber.explain.service import Explaining


class Caliber(LearningMethods, NoteMethods, RecordMethods, Facets, AbstractContextManager["Caliber"]):
    """The memory of one tenant, used as one principal. Safe to share between threads.

    Every call raises Unavailable once the handle is closed, or in a child process after ``fork``.
    """

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._searching = Searching(engine, principal)
        self._reader = ContextService(engine, principal, self._searching)
        super().__init__(engine, principal, tasks_of(engine, principal, self._reader.assemble_only))

    # --- reading -----------------------------------------------------------------------------------

    @overload
    def get(self, id: TrajectoryId, *, user: str | EntityRef | None = None) -> Trajectory: ...

    @overload
    def get(self, id: ScopeId, *, user: str | EntityRef | None = None) -> Scope: ...

    @overload
    def get(self, id: TurnId, *, user: str | EntityRef | None = None) -> Turn: ...

    @overload
    def get(self, id: ArtifactId, *, user: str | EntityRef | None = None) -> Artifact: ...

    @overload
    def get(self, id: NoteId, *, user: str | EntityRef | None = None) -> Note: ...

    @overload
    def get(self, id: SessionId, *, user: str | EntityRef | None = None) -> Session: ...

    @overload
    def get(self, id: Id, *, user: str | EntityRef | None = None) -> Any: ...

    def get(self, id: Id, *, user: str | EntityRef | None = None) -> Any:  # noqa: A002  (the pinned name)
        """Return the trajectory, scope, turn, artifact, note, session or edge under an id.

        ``user`` is whom the call is for, as in ``search``: the application sees without it what is shared.

        Raises: NotFound, also for what the principal may not see; PermissionDenied for another user.
        """
        record_id = id if type(id) is UUID else arguments.as_uuid(id, "id")
        return (self._searching if user is None else self._searching.seen_by(user)).get(record_id)

    def assemble_context(
        self,
        trajectory_id: Id,
        *,
        query: str | None = None,
        query_embedding: Any = None,
        max_tokens: int | None = None,
        as_of: datetime | None = None,
        extra_sections: Mapping[str, str | None] | None = None,
        consistency: ReadConsistency | str | None = None,
    ) -> ContextWindow:
        """Assemble the context for the next prompt: never over budget, every candidate accounted for.

        - ``trajectory_id``: the task; the window holds what its user may see.
        - ``query``: what is asked, which chooses what is recalled; None for the last message of the user, else the goal
          of the task, and "" for nothing.
        - ``query_embedding``: the vector of the query, if the caller has it; else the provider makes it.
        - ``max_tokens``: the budget; None for ``token_budget``, which is the most.
        - ``as_of``: valid time: notes and artifacts count as they were valid then; None for now.
        - ``extra_sections``: texts by the name of a section of the profile, such as ``system``; None leaves one out.
        - ``consistency``: ``latest`` waits for what other processes committed; None for the store's default.

        Raises: NotFound, InputError kinds, BudgetTooSmall, LlmError kinds, DimensionMismatch.
        """
        return self._reader.assemble(
            arguments.as_uuid(trajectory_id, "trajectory_id"),
            query=query,
            query_embedding=query_embedding,
            max_tokens=max_tokens,
            as_of=arguments.as_instant(as_of, "as_of"),
            extra_sections=extra_sections,
            consistency=consistency,
        )

    def search(
        self,
        query: str = "",
        *,
        vector: Any = None,
        meaning: float | None = None,
        kinds: Sequence[str] | None = None,
        limit: int | None = None,
        filter: Mapping[str, Any] | str | None = None,  # noqa: A002  (the pinned name)
        author: Principal | str | None = None,
        include_archived: bool = False,
        as_of: datetime | None = None,
        user: str | EntityRef | None = None,
        consistency: ReadConsistency | str | None = None,
    ) -> SearchResult:
        """Search notes, artifacts, turns and summaries by words, meaning, links, names and days.

        - ``vector``: the vector of the query, if the caller has it; without words the search is by meaning alone.
        - ``meaning``: the weight of meaning from 0.0 to 1.0; the rest is that of words, and links count nothing. None
          for the weights of the configuration.
        - ``filter``: columns with a value or a list of values, or a condition in words: ``"confidence > 0.5 and
          valid_until > now()"``, where ``now()`` is ``as_of``. Without ``kinds`` those it can be asked of are searched.
        - ``author``: only what this principal wrote, in any role; or its label, such as ``agent:planner``.
        - ``include_archived``: archived records too.
        - ``user``, a name or reference, is whom the call is for: it sees what a window of that user's task may hold.
          The application sees without it what is shared (docs/access.md).

        k hits come back whenever k records match and have enough in common with the query (docs/search.md, The floor);
        where none has, the status is ``empty``, and ``below_floor`` says how much was missing. An empty query without
        ``vector`` gives what is recent and important. When a leg is out of order the others answer, and the status says
        ``degraded``.

        Raises: InputError kinds, DimensionMismatch; PermissionDenied when a user names another one.
        """
        return self._searching.seen_by(user).search_many(
            [arguments.as_text(query, "query", allow_empty=True)],
            vector=vector,
            meaning=meaning,
            kinds=kinds,
            limit=limit,
            conditions=filter,
            author=author,
            archived=include_archived,
            as_of=arguments.as_instant(as_of, "as_of"),
            consistency=consistency,
        )[0]

    def search_many(
        self,
        queries: Iterable[str],
        *,
        meaning: float | None = None,
        kinds: Sequence[str] | None = None,
        limit: int | None = None,
        filter: Mapping[str, Any] | str | None = None,  # noqa: A002  (the pinned name)
        author: Principal | str | None = None,
        include_archived: bool = False,
        as_of: datetime | None = None,
        user: str | EntityRef | None = None,
        consistency: ReadConsistency | str | None = None,
    ) -> list[SearchResult]:
        """Search several queries with the same options; results in their order.

        They are embedded together and read from one snapshot of memory.

        Raises: as ``search``.
        """
        asked = arguments.as_items(queries, "queries", "an iterable of str")
        return self._searching.seen_by(user).search_many(
            [arguments.as_text(query, "query", allow_empty=True) for query in asked],
            meaning=meaning,
            kinds=kinds,
            limit=limit,
            conditions=filter,
            author=author,
            archived=include_archived,
            as_of=arguments.as_instant(as_of, "as_of"),
            consistency=consistency,
        )

    def explain(
        self, window_id: Id, *, exclusion: Id | None = None, user: str | EntityRef | None = None
    ) -> dict[str, Any]:
        """Return why each record of a window was included or excluded; with ``exclusion``, the reason for one record.

        ``user`` is whom the call is for: the application explains windows of a user's tasks for that user alone.

        Raises: NotFound for a window that was never persisted, has expired, or is another principal's;
            PermissionDenied for another user.
        """
        record_id = None if exclusion is None else arguments.as_uuid(exclusion, "exclusion")
        return self._explaining(user).explain(arguments.as_uuid(window_id, "window_id"), record_id)

    def replay(self, window_id: Id, *, user: str | EntityRef | None = None) -> ContextWindow:
        """Return a persisted window byte for byte, even if its source records have changed since.

        ``user`` is whom the call is for, as in ``explain``.

        Raises: NotFound for the window, or for a source that was erased; PermissionDenied for another user.
        """
        return self._explaining(user).replay(arguments.as_uuid(window_id, "window_id"))

    def trace(
        self,
        trajectory_id: Id,
        *,
        event_type: EventType | str | None = None,
        limit: int | None = None,
        user: str | EntityRef | None = None,
    ) -> list[Event]:
        """Return the events of a trajectory and of its session, newest first.

        ``user`` is whom the call is for, as in ``search``.

        Raises: NotFound, InvalidValue; PermissionDenied for another user.
        """
        return self._reader.seen_by(user).trace(arguments.as_uuid(trajectory_id, "trajectory_id"), event_type, limit)

    def _explaining(self, user: str | EntityRef | None) -> Explaining:
        from caliber.explain.service import Explaining

        return Explaining(self._engine, self._reader.seen_by(user))

    # --- around ------------------------------------------------------------------------------------

    def acting_as(self, principal: Principal) -> Caliber:
        """Return a handle on the same tenant for another principal; closing either closes both.

        The application may act as everybody, also as an administrator: it is the same process.

        Raises: PermissionDenied unless this handle's principal is an admin, the application, or the same one;
            DTypeError, InvalidValue.
        """
        self._engine.check_open()
        identity = arguments.as_principal(principal)
        if identity != self._principal and not self._principal.serves:
            self._principal.require_admin("act as", identity.label)
        return Caliber(self._engine, identity)

    def as_user(self, name: str) -> Caliber:
        """Return ``acting_as(Principal.user(name))``: what a user sees, and writes. Raises: as ``acting_as``."""
        return self.acting_as(Principal.user(name))

    def as_agent(self, name: str) -> Caliber:
        """Return ``acting_as(Principal.agent(name))``: an agent without a role. Raises: as ``acting_as``."""
        return self.acting_as(Principal.agent(name))

    @property
    def principal(self) -> Principal:
        """The principal that this handle acts for."""
        return self._principal

    @property
    def config(self) -> CaliberConfig:
        """The configuration this tenant was opened with."""
        return self._engine.config

    # --- erasing -----------------------------------------------------------------------------------

    def forget(
        self,
        *,
        user: str | EntityRef | None = None,
        entity: EntityRef | None = None,
        texts: Sequence[str] = (),
        dry_run: bool = False,
        even_if_shared: bool = False,
        wait_ms: int | None = None,
        scrub_log: bool = False,
    ) -> ForgetReport:
        """Erase a subject from everything that is stored: records, versions, windows, vectors, files, memory.

        ``user`` is a person by name, and counts as ``texts`` with every name that ``identities`` has for them, but for
        plain words: to redact ``maria`` everywhere, give it in ``texts``. ``entity`` is a user, agent or record;
        ``texts`` are names and identifiers, matched as whole words. The subject's records are deleted, mentions in
        other records redacted; ``dry_run`` only counts them. ``scrub_log`` also overwrites the log of a PostgreSQL
        server. The report lists what was searched afterwards, and what cannot be reached; docs/forgetting.md.

        Raises: PermissionDenied unless the principal is an admin, or is the application and names a user without
            ``even_if_shared`` and ``scrub_log``; AmbiguousSubject for texts that name others too, unless
            ``even_if_shared``; RequiredFieldMissing, DTypeError, Unavailable.
        """
        from caliber.erasure.service import Forgetting

        refuse_inside("forget erases in transactions of its own", self._engine.store)
        for field, flag in (("dry_run", dry_run), ("even_if_shared", even_if_shared), ("scrub_log", scrub_log)):
            arguments.as_flag(flag, field)
        return Forgetting(self._engine, self._principal).forget(
            entity,
            texts,
            user,
            dry_run=dry_run,
            even_if_shared=even_if_shared,
            wait_ms=wait_ms,
            scrub_log=scrub_log,
        )

    # --- several writes --------------------------------------------------------------------------

    @managed
    def transaction(self) -> Iterator[None]:
        """Commit the writes of all calls in a ``with`` block together at its end, or, after an error in it, none.

        Calls of any facet and view of this handle take part, in this thread or task and in tasks begun in the block.
        They return what they store; searches, ``get`` and windows show it only afterwards. Other writers wait meanwhile
        (all of them, in SQLite): keep it short. Calls that wait, for a lock, a message or a provider, are refused in
        it, and so are administration and calls that have transactions of their own. A block in another one joins that.
        Nothing is done again by itself: after a retryable error run the block anew.

        Raises: Unavailable where others write for too long; Conflict and TransactionFailed at the end, where another
            writer was first; TransactionFailed for a call after one that failed.
        """
        from caliber.engine.transaction import transaction

        with transaction(self._engine):
            yield

    def flush(self) -> None:
        """Return once nothing is behind: vectors made, usage counts, events and windows on disk."""
        self._engine.flush()

    def close(self) -> None:
        """Drain the queues and release everything; closing twice is harmless."""
        self._engine.close()

    def __enter__(self) -> Caliber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Caliber({self._engine.store.adapter}, principal={self._principal.label}, {self._engine.state})"
