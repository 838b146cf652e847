"""Base of delegations and handoffs: the acting agent, the addressed one, the principals who see a record, its events.

A delegation or handoff is seen by its two agents, by every agent of the type that it is addressed to while it waits,
by the user of its task, and by admins. The application sees those of tasks without a user, and of the user that a call
names; it acts for every task.

A handoff's snapshot is the window of a task with its texts, packed text by text. It holds what its giver could read. So
each text keeps its source, and a reader gets the texts of records that this reader may read by now.

Source: C-383, C-402, C-426, C-427, C-430, K-039.
"""

from __future__ import annotations

import builtins
import dataclasses
import hashlib
import itertools
import json
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from caliber.access.acting import ActingAgent, acting_agent, agent_named, find_agent
from caliber.access.corrections import key_of
from caliber.access.identities import require_registered
from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers, require
from caliber.agents.mail.receiving import PAYLOAD_MAX_BYTES
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal, PrincipalKind
from caliber.model.agents.delegation import DelegationStatus, Handoff, HandoffSnapshot, HandoffStatus
from caliber.model.agents.registry import Agent
from caliber.model.errors import InvalidValue, NotFound, PermissionDenied, StorageError
from caliber.model.events import EventType
from caliber.model.references import EntityRef, EntityType, Id
from caliber.model.trajectory import Trajectory
from caliber.model.windows import ContextSection, ContextWindow, SourceRef
from caliber.pcp.checkpoints import window_as_json
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.erase import CHECKPOINT_HEAD
from caliber.schema.relation import Relation
from caliber.schema.relations import AGENT, TRAJECTORY
from caliber.storage.compile.codec import UNREADABLE, codec_of, dump_json
from caliber.storage.write.unit_of_work import UnitOfWork

R = TypeVar("R")
T = TypeVar("T")
MAX_ITEMS: Final = 1_000
"""The most entries of a list that one record holds."""


class Addressee(NamedTuple):
    """The agent, or the type of agents, that work is for: exactly one of them."""

    agent: ActingAgent | None
    type: str | None


class Parties(Generic[R]):
    """The two sides of the records of one relation, as one principal acts among them."""

    _relation: ClassVar[Relation]
    _agents: ClassVar[tuple[str, str]]
    """The columns of the agent that gives a record, and of the one that takes it."""
    _addressed: ClassVar[str]
    """The column of the type of agents that a record is for."""
    _waits: ClassVar[DelegationStatus | HandoffStatus]
    """The status of a record that waits for an agent."""
    _tasks_of: ClassVar[tuple[str, ...]]
    """The columns of the tasks whose traces tell of a record."""
    _told: ClassVar[Mapping[str, str]]
    """The columns that these events tell, by their names there."""
    _paths: ClassVar[Mapping[str, tuple[str, ...]]]
    """The access paths to the records of a task, an agent, the agent that takes them, a status, and a type."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal
        self._owners = engine.part(TaskOwners)
        self._readers = Readers(self._owners, principal)

    # --- arguments -------------------------------------------------------------------------------

    def _addressee(self, to: str | EntityRef | None, to_type: str | None) -> Addressee:
        """Return the agent or type that work is for. Raises: InputError kinds."""
        if (to is None) == (to_type is None):
            raise InvalidValue(
                field="to", reason="give to or to_type: one agent, or the type of the first that accepts"
            )
        if to is not None:
            return Addressee(agent_named(self._engine, to, "to"), None)
        return Addressee(None, arguments.as_text(to_type, "to_type", limit=arguments.MAX_NAME_CHARS))

    @staticmethod
    def _texts(values: Iterable[str], field: str) -> tuple[str, ...]:
        """Return a list of texts. Raises: InputError kinds."""
        found = tuple(
            arguments.as_text(each, f"{field}[{at}]")
            for at, each in enumerate(arguments.as_items(values, field, "a sequence of str"))
        )
        return _limited(found, field)

    def _check_length(self, field: str, *texts: str | None) -> None:
        """Raise InvalidValue for words that are longer together than a message may be: an agent reads them whole."""
        size = sum(len(text.encode()) for text in texts if text is not None)
        if size > PAYLOAD_MAX_BYTES:
            reason = (
                f"has, with the other words, {size} bytes, more than {PAYLOAD_MAX_BYTES}; store an artifact or a note,"
                " and name it"
            )
            raise InvalidValue(field=field, reason=reason)

    @staticmethod
    def _ids(values: Iterable[Any], field: str) -> tuple[uuid.UUID, ...]:
        """Return a list of ids, each once. Raises: InputError kinds."""
        return _limited(tuple(dict.fromkeys(arguments.as_uuids(values, field))), field)

    def _writes(self, task: uuid.UUID) -> None:
        """Raise NotFound or PermissionDenied unless the principal may write to a task."""
        require(self._engine, self._readers, TRAJECTORY, task, write=True)

    def _check_open(self) -> None:
        """Raise Unavailable when the handle was closed, and NotRegistered for an agent that is to be registered."""
        self._engine.check_open()
        require_registered(self._engine, self._principal)

    # --- agents ----------------------------------------------------------------------------------

    def _acting(self, agent: str | EntityRef | None, action: str) -> ActingAgent:
        """Return the agent that acts. Raises: as ``acting_agent``."""
        return acting_agent(self._engine, self._principal, agent, action)

    def _acting_on(self, agent: str | EntityRef | None, action: str) -> uuid.UUID:
        """Return the id of the agent that acts, while the store is open. Raises: as ``acting_agent``."""
        self._check_open()
        return self._acting(agent, action).ref.id

    def _type_of(self, agent_id: uuid.UUID) -> str | None:
        """Return the type of an agent; None for one that is not registered."""
        known = find_agent(self._engine, EntityRef(EntityType.AGENT, agent_id))
        return None if known is None else known.agent_type

    def _check_addressed(self, agent_id: uuid.UUID | None, agent_type: str | None, me: Agent, key: uuid.UUID) -> None:
        """Raise PermissionDenied unless work is for an agent, by its name or its type."""
        is_mine = agent_id == me.agent_id if agent_id is not None else agent_type == me.agent_type
        if not is_mine:
            raise self._denied("accept", key)

    def _denied(self, action: str, key: uuid.UUID) -> PermissionDenied:
        return self._principal.denied(action, f"{self._relation.name} {key}")

    # --- visibility ------------------------------------------------------------------------------

    def _task_of(self, record: Any) -> uuid.UUID:
        task: uuid.UUID = getattr(record, self._relation.rights.task or "")
        return task

    def _parties(self, record: Any) -> builtins.list[uuid.UUID | None]:
        """Return the agents of a record."""
        return [getattr(record, name) for name in self._agents]

    def _may_name(self, record: Any, uow: UnitOfWork | None = None, *, once: bool = False) -> bool:
        """Return whether a call may name a record to change it: the principal sees it, or acts for users.

        ``once``: or could see it before another agent accepted it.
        """
        return self._principal.serves or self._sees(record, self._readers, uow, once=once)

    def _may_accept(self, record: Any, uow: UnitOfWork | None = None) -> bool:
        """Return whether a call may name a record to accept it, which another agent may have done."""
        return self._may_name(record, uow, once=True)

    def _shown(self, user: str | EntityRef | None) -> Callable[[Any], bool]:
        """Return which records a call for ``user`` shows. Raises: as ``Readers.seeing_for``."""
        readers = self._readers if user is None else self._readers.seeing_for(user)
        if not readers.everything:
            self._engine.snapshot()  # another process may have begun the task
        return lambda record: self._sees(record, readers, None, named=user is not None)

    def _sees(
        self, record: Any, readers: Readers, uow: UnitOfWork | None, *, once: bool = False, named: bool = False
    ) -> bool:
        """Return whether ``readers`` may know of a record; ``named``: for a user that the call names."""
        if readers.everything:
            return True
        principal, wanted = self._principal, getattr(record, self._addressed)
        if principal.kind is PrincipalKind.AGENT:
            own = self._readers.visibility().ids
            if any(each is not None and each.bytes in own for each in self._parties(record)):
                return True
            waits = once or record.status is self._waits
            if wanted is not None and waits and wanted in self._own_types(own, uow):
                return True
        task = self._task_of(record)
        if principal.is_application and not named:
            return readers.sees_task(task.bytes)
        # A task without a user is seen by every user, none of whom is a party to what its agents agree on.
        is_for_user = named or principal.is_user
        return (
            is_for_user
            and readers.sees_task(task.bytes)
            and readers.reads_subject(TRAJECTORY.name, task)
            and self._user_of(task) is not None
        )

    def _user_of(self, task: uuid.UUID) -> EntityRef | None:
        """Return the user of a task, if it has one."""
        self._readers.visibility()  # follows the tasks that were committed since
        owners = self._owners.of.get(task.bytes)
        return None if owners is None else EntityRef(EntityType.USER, uuid.UUID(bytes=owners[0]))

    def _own_types(self, ids: Iterable[bytes], uow: UnitOfWork | None) -> set[str]:
        """Return the types that the principal is registered under, as the database has them."""

        def types(uow: UnitOfWork) -> set[str]:
            return {each.agent_type for each in (uow.find(AGENT, key) for key in ids) if each is not None}

        return self._engine.read(types) if uow is None else types(uow)

    def _not_found(self, key: uuid.UUID) -> NotFound:
        return NotFound(entity_type=self._relation.name, id=key)

    def _seen(self, key: uuid.UUID, user: str | EntityRef | None) -> R:
        """Return a record that a call for ``user`` shows. Raises: NotFound; as ``Readers.seeing_for``."""
        self._check_open()
        record = self._found(key)
        shows = self._shown(user)
        if record is None or not shows(record):
            raise self._not_found(key) if user is not None else self._readers.not_found(self._relation.name, key)
        return record

    # --- reading ---------------------------------------------------------------------------------

    def _read(self, path: str, *key: Any) -> builtins.list[Any]:
        """Return the records of an access path, as the database has them. Raises: Unavailable."""
        return self._engine.read(lambda uow: uow.select_path(self._relation, path, *key))

    def _listed(self, of: str, key: Any) -> builtins.list[Any]:
        return [each for path in self._paths[of] for each in self._read(path, key)]

    def _key(self, record: Any) -> bytes:
        return key_of(self._relation, record).bytes

    def pending(self, *, agent: str | EntityRef | None = None, limit: int = 100) -> builtins.list[R]:
        """Return the records that wait for an agent, by its name or its type, the oldest first.

        Raises: InputError kinds; PermissionDenied for another agent than the principal.
        """
        most = arguments.as_whole(limit, "limit", 1)
        acting = self._acting_on(agent, "list as")
        found = [each for each in self._listed("taker", acting.bytes) if self._parties(each)[1] == acting]
        found += [] if (own := self._type_of(acting)) is None else self._listed("type", own)
        return sorted((each for each in found if each.status is self._waits), key=self._key)[:most]

    def list(
        self,
        *,
        status: DelegationStatus | HandoffStatus | str | None = None,
        task: Id | None = None,
        agent: str | EntityRef | None = None,
        user: str | EntityRef | None = None,
        limit: int = 100,
        after: Id | None = None,
    ) -> builtins.list[R]:
        """Return the records that the principal may see, the oldest first, at most ``limit``.

        They are those of one ``status``, of a ``task`` (of a delegation its parent), or given or accepted by an
        ``agent``. ``after`` is the id of the last record of the page before. ``user`` is whom the call is for: the
        application sees those of tasks without a user, and with ``user`` those of that user's tasks.

        Raises: InputError kinds; PermissionDenied for another user.
        """
        # Ids rise with time, so the page goes on behind a record that is hidden or gone by now.
        states = type(self._waits)
        wanted = None if status is None else arguments.as_enum(status, states, "status")
        of = None if task is None else arguments.as_uuid(task, "task")
        most = arguments.as_whole(limit, "limit", 1)
        last = None if after is None else arguments.as_uuid(after, "after")
        self._check_open()
        party = None if agent is None else agent_named(self._engine, agent).ref.id
        if of is not None:
            found = self._listed("task", of.bytes)
        elif party is not None:
            found = self._listed("agent", party.bytes)
        else:
            found = [each for one in states if wanted in (None, one) for each in self._listed("status", one.value)]
        fitting = {
            self._key(each): each
            for each in found
            if wanted in (None, each.status) and (party is None or party in self._parties(each))
        }
        behind = (fitting[key] for key in sorted(fitting) if last is None or key > last.bytes)
        return list(itertools.islice(filter(self._shown(user), behind), most))

    def _found(self, key: uuid.UUID) -> R | None:
        return self._engine.read(lambda uow: uow.find(self._relation, key.bytes))

    # --- writing ---------------------------------------------------------------------------------

    def _locked(
        self, uow: UnitOfWork, key: uuid.UUID, sees: Callable[[Any, UnitOfWork], bool]
    ) -> tuple[Any, Trajectory]:
        """Return a record and its task, both locked: the task first, as a deletion does.

        Raises: NotFound for a record that does not exist or is hidden.
        """
        record = uow.find(self._relation, key.bytes)
        if record is None or not sees(record, uow):
            raise self._not_found(key)
        task_id = self._task_of(record)
        uow.lock(TRAJECTORY, task_id.bytes)
        uow.lock(self._relation, key.bytes)
        task, record = uow.find(TRAJECTORY, task_id.bytes), uow.find(self._relation, key.bytes)
        if record is None or task is None or not sees(record, uow):
            raise self._not_found(key)
        return record, task

    def _logged(self, uow: UnitOfWork, kind: EventType, record: Any) -> None:
        """Write the events of a step, as ``log_step`` does."""
        values = {name: getattr(record, column) for name, column in self._told.items()}
        told = {name: None if value is None else str(value) for name, value in values.items()}
        tasks, key = [getattr(record, name) for name in self._tasks_of], key_of(self._relation, record)
        log_step(self._engine, uow, self._principal.label, kind, self._relation.name, key, tasks, told)


def log_step(
    engine: Engine,
    uow: UnitOfWork,
    by: str,
    kind: EventType,
    relation: str,
    key: uuid.UUID,
    tasks: Iterable[uuid.UUID | None],
    payload: dict[str, Any],
) -> None:
    """Write the audit event of a step in its transaction, and a trace event for each task that it concerns."""
    about, fields = (relation, key), {"id": str(key), **payload}
    for task in tasks:
        if task is not None:
            engine.emit(uow, kind, principal=by, trajectory_id=task, subject=about, payload=fields)
    engine.audit(uow, kind, principal=by, subject=about, payload=fields)


def _limited(values: tuple[T, ...], field: str) -> tuple[T, ...]:
    if len(values) > MAX_ITEMS:
        raise InvalidValue(field=field, reason=f"{len(values)} entries are more than the limit of {MAX_ITEMS}")
    return values


_HEAD: Final = len(CHECKPOINT_HEAD) + hashlib.sha256().digest_size
_MAX_BYTES: Final = 64 << 20


def packed(window: ContextWindow, records: ResidentSnapshot) -> bytes:
    """Return the snapshot of a window, in the layout of a checkpoint, which erasing knows.

    Each text is a section of its own with its source and, as a record may be deleted later, the task of that record.
    """
    body = window_as_json(window)
    parts = []
    for section, shown in zip(body["sections"], window.sections, strict=True):
        for text, source in _texts(shown):
            sources = [] if source is None else [_source(source, records)]
            parts.append({**section, "content": text, "sources": sources})
    body["sections"] = parts
    raw = zlib.compress(dump_json({"context_snapshot": body}).encode())
    return CHECKPOINT_HEAD + hashlib.sha256(raw).digest() + raw


def _texts(section: ContextSection) -> Iterator[tuple[str, SourceRef | None]]:
    """Yield the texts of a section, each with its source and what separates it from the next; the title first."""
    starts = [source.span[0] for source in section.sources]
    yield section.content[: starts[0] if starts else None], None
    for source, start, end in zip(section.sources, starts, [*starts[1:], None], strict=True):
        yield section.content[start:end], source


def _source(source: SourceRef, records: ResidentSnapshot) -> list[Any]:
    key = None if source.id is None else str(source.id)
    return [source.source_type.value, key, source.version, _task_of(source.id, records)]


def _task_of(record_id: uuid.UUID | None, records: ResidentSnapshot) -> str | None:
    """Return the task that alone decides who may read a record; None for a record with readers of its own."""
    found = None if record_id is None else records.locate(record_id.bytes)
    if found is None:
        return None
    rows, number = found
    relation, row, index = rows.relation, rows.packed(number), codec_of(rows.relation).index
    rights = relation.rights
    if rights.task is None or (rights.readers is not None and row[index(rights.readers)] is not None):
        return None
    task = row[index(rights.task)]
    return None if task is None else str(uuid.UUID(bytes=task))


def without_snapshot(handoff: Handoff) -> Handoff:
    """Return a handoff without the packed texts, which not everybody who sees the handoff may read."""
    return dataclasses.replace(handoff, snapshot=b"")


def unpacked(
    handoff: Handoff, readers: Readers, records: ResidentSnapshot, tokens: Callable[[str], int]
) -> HandoffSnapshot:
    """Return the snapshot of a handoff with the texts that ``readers`` may read, and the ``tokens`` of these.

    Raises: StorageError if damaged.
    """
    digest, body = handoff.snapshot[len(CHECKPOINT_HEAD) : _HEAD], handoff.snapshot[_HEAD:]
    try:
        if hashlib.sha256(body).digest() != digest:
            raise ValueError
        window = json.loads(zlib.decompressobj().decompress(body, _MAX_BYTES))["context_snapshot"]
        sections = _readable(window["sections"], readers, records)
        used = tokens("\n\n".join(section["content"] for section in sections))
        return HandoffSnapshot.from_json({**window, "sections": sections, "used_tokens": used})
    except (*UNREADABLE, zlib.error) as error:
        raise StorageError(f"the snapshot of handoff {handoff.handoff_id} is damaged") from error


def _readable(parts: list[dict[str, Any]], readers: Readers, records: ResidentSnapshot) -> list[dict[str, Any]]:
    """Return the sections of the texts that may be read; a section without any is left out."""
    sections: dict[str, list[str]] = {}
    titles: dict[str, str] = {}
    for part in parts:
        name, sources = part["name"], part["sources"]
        if not sources:
            titles[name] = part["content"]
        elif all(_may_read(source, readers, records) for source in sources):
            sections.setdefault(name, [titles.get(name, "")]).append(part["content"])
    # Lines that end a section separate it from one behind, which may be hidden.
    return [{"name": name, "content": "".join(texts).rstrip("\n")} for name, texts in sections.items()]


def _may_read(source: list[Any], readers: Readers, records: ResidentSnapshot) -> bool:
    """Return whether a source of a text may be read: as it is now or, if it was deleted since, as its task may be."""
    if readers.everything or source[1] is None:
        return True
    found = records.locate(uuid.UUID(source[1]).bytes)
    if found is not None:
        return readers.allows(*found)
    task = source[3] if len(source) > 3 else None
    return task is not None and readers.sees_task(uuid.UUID(task).bytes)
