"""Steps and progress of a change of embedding model: create its space, find missing vectors in it, switch to it.

A row of the store names the active space, and is changed in one transaction. No text is embedded twice, since a missing
vector is a missing row. Source: relations.md "embedding_space", K-101, C-494, C-495;
docs/decisions/0078-a-new-space-beside-the-old.md.

A store whose records are all in memory has no vector index in the database, so that its writes stay cheap; a store that
has one keeps one, also when the model changes. Source: design, section 3; docs/decisions/0121.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from caliber.config import CaliberConfig
from caliber.embedding.embedding_target import EmbeddingTarget, MissingVector, embedded_text, says_something
from caliber.engine.engine import Engine
from caliber.events import event_log
from caliber.jobs import fixed
from caliber.jobs.claims import Claim
from caliber.jobs.queue import JobQueue
from caliber.kernels import uuid7
from caliber.llm.protocols import EmbeddingProvider
from caliber.model.embedding import DistanceMetric, EmbeddingSpace, SpaceState
from caliber.model.errors import CaliberError
from caliber.model.events import Event, EventFamily, EventType
from caliber.model.jobs import JobOutcome
from caliber.model.lazy_dataclass import dataclass
from caliber.model.progress import Progress
from caliber.model.references import EntityType, SpaceId
from caliber.model.time import from_us
from caliber.schema.relations import EMBEDDING_SPACE
from caliber.storage.compile.codec import Row, last_of
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork

LAST: Final = 2**62
"""Beyond every ordinal."""

STRICT_ATTEMPTS: Final = 5
"""Attempts to switch that wait for the very last vector; after that a single provider call may follow the switch."""

REFUSED_SHARE: Final = 0.1
"""Part of the records above which a model that refuses them does not take over by itself."""


@dataclass(frozen=True, slots=True)
class FillStatus:
    """The state of filling a space. Units: records; ``refused`` are those that its provider did not embed."""

    space: str
    done: int
    total: int
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Reembedded:
    """The outcome of re-embedding. ``switched_from`` names the space that was searched before, if it changed."""

    space: str
    made: int
    done: int
    total: int
    refused: int
    in_use: bool
    switched_from: str | None = None


def in_use_of(spaces: Sequence[EmbeddingSpace]) -> EmbeddingSpace | None:
    """Return the space that is searched, of all spaces in the order of their ordinals."""
    active = [space for space in spaces if space.state is SpaceState.ACTIVE]
    return active[-1] if active else None


def fill_kind(space: EmbeddingSpace) -> str:
    """Return the kind of the job that fills a space; its id is that of the space."""
    return f"embedding.fill:{space.name}"


def enter_space(engine: Engine, provider: EmbeddingProvider) -> EmbeddingSpace:
    """Return the space of a provider's vectors: active at once if there is no other, else one to be filled.

    Only one is filled at a time: that of the most recently opened configuration. With ``embedding.reembed`` behind a
    job fills it, unless that job was cancelled.
    """
    config, jobs, behind = engine.config, engine.part(JobQueue), engine.config.embedding.reembed == "behind"
    metric = config.vector.distance_metric if config.vector is not None else DistanceMetric.COSINE
    wanted = (provider.model_id, provider.dimensions, metric)

    def mine(spaces: Sequence[EmbeddingSpace]) -> EmbeddingSpace | None:
        found = (space for space in spaces if (space.model_id, space.dimensions, space.metric) == wanted)
        return next(found, None)

    stored = list(engine.memory.snapshot.spaces.values())
    known = mine(stored)
    if known is not None and known.state is not SpaceState.RETIRED and _alone(known, stored):
        if behind and known.state is SpaceState.BUILDING:
            fixed.resume(jobs, fill_kind(known), known.space_id)
        return known

    def work(uow: UnitOfWork) -> EmbeddingSpace:
        spaces: list[EmbeddingSpace] = uow.select_path(EMBEDDING_SPACE, "list_all")
        before = in_use_of(spaces)
        own = mine(spaces)
        empty = before is None or not uow.select("embedding.of_space", before.space_id.bytes)
        state = SpaceState.ACTIVE if before is None or before == own or empty else SpaceState.BUILDING
        for space in spaces:
            if space != own and space.state is state:
                uow.update(EMBEDDING_SPACE, dataclasses.replace(space, state=SpaceState.RETIRED))
                fixed.end(uow, space.space_id, JobOutcome.CANCELLED)
        if own is None:
            own = EmbeddingSpace(SpaceId(uuid7()), *wanted, state, from_us(uow.now_us))
            if not uow.insert_new(EMBEDDING_SPACE, own):  # another program was quicker
                own = mine(uow.select_path(EMBEDDING_SPACE, "list_all")) or own
        elif own.state is not state:
            own = uow.update(EMBEDDING_SPACE, dataclasses.replace(own, state=state))
        if before is not None and before.space_id != own.space_id:
            kind = EventType.SPACE_FILL if state is SpaceState.BUILDING else EventType.SPACE_SWITCH
            event_log.audit(uow, space_event(engine, kind, own, {"in_use": before.name}))
        if behind and state is SpaceState.BUILDING:
            fixed.renew(jobs, uow, fill_kind(own), own.space_id)
        return own

    return jobs.write(work)


def _alone(known: EmbeddingSpace, spaces: Sequence[EmbeddingSpace]) -> bool:
    """Return whether a space is the only one in its state, beside an active one if it is being filled."""
    rivals = [space for space in spaces if space.state is known.state and space.space_id != known.space_id]
    return not rivals and in_use_of(spaces) is not None


def space_event(engine: Engine, kind: EventType, space: EmbeddingSpace, payload: dict[str, Any]) -> Event:
    """Return the audit record of a change of a space's state."""
    return engine.event(
        kind,
        subject=(EntityType.EMBEDDING_SPACE, space.space_id),
        payload={"space": space.name, **payload},
        family=EventFamily.AUDIT,
    )


def switch(engine: Engine, target: EmbeddingTarget, kinds: Sequence[str], tolerated: int, claim: Claim | None) -> bool:
    """Make a filled space the active one, unless a record would lose its vector by that; return whether it is now.

    The check, the change and the end of the job are one transaction, so each search before it sees the old space only,
    and each one after it the new one only. Without a claim it ends the job of any other process that fills the space.

    Raises: Superseded.
    """

    def work(uow: UnitOfWork) -> bool:
        spaces: list[EmbeddingSpace] = uow.select_path(EMBEDDING_SPACE, "list_all")
        own = next((space for space in spaces if space.space_id == target.space.space_id), None)
        if own is None or own.state is SpaceState.RETIRED:
            return False
        before = in_use_of(spaces)
        if before is not None and before.space_id == own.space_id:
            return True
        if before is not None:
            if _would_lose(uow, target, before, kinds, tolerated):
                return False
            uow.update(EMBEDDING_SPACE, dataclasses.replace(before, state=SpaceState.RETIRED))
        uow.update(EMBEDDING_SPACE, dataclasses.replace(own, state=SpaceState.ACTIVE))
        name = None if before is None else before.name
        event_log.audit(
            uow, space_event(engine, EventType.SPACE_SWITCH, own, {"from": name, "refused": len(target.refused)})
        )
        if claim is not None:
            claim.ack(uow)
        else:
            fixed.end(uow, own.space_id, JobOutcome.DONE)
        return True

    return engine.write(work)


def _would_lose(
    uow: UnitOfWork, target: EmbeddingTarget, before: EmbeddingSpace, kinds: Sequence[str], tolerated: int
) -> bool:
    """Return whether more records than tolerated have a vector in the space before, and none in this one."""
    for kind in kinds:
        last = -1
        while rows := uow.select(f"embedding.unmoved_{kind}", target.key, before.space_id.bytes, last, 1_000):
            tolerated -= sum(row[1] not in target.refused for row in rows)
            if tolerated < 0:
                return True
            last = last_of(rows, last)
    return False


def count(store: Store, space_id: bytes, kinds: Sequence[str]) -> tuple[int, int]:
    """Return how many records are to have a vector, and how many lack it in a space."""
    total = pending = 0
    with store.read() as session:
        for kind in kinds:
            ((wanted, lacking),) = session.run(store.statements[f"embedding.progress_{kind}"], (space_id,))
            total += wanted
            pending += lacking
    return total, pending


class Walk:
    """Pages over the records that lack a vector in a space, kind by kind; it never goes back.

    Records written after a kind was begun are not included: it would never end. The newest come first, or the oldest:
    two programs that walk from both ends meet, and repeat little.
    """

    def __init__(self, store: Store, space_id: bytes, kinds: Sequence[str], *, upwards: bool = False) -> None:
        self._store = store
        self._space_id = space_id
        self._kinds = list(kinds)
        self._upwards = upwards
        self._at: int | None = None
        self._end = LAST

    def page(self, limit: int) -> list[MissingVector] | None:
        """Return the texts of up to ``limit`` rows that have one, or None at the end."""
        while self._kinds:
            kind = self._kinds[0]
            with self._store.read() as session:
                rows = self._rows(session, kind, limit)
            if rows:
                self._at = rows[-1][0]
                return [item for row in rows if says_something((item := _missing_vector(kind, *row[1:])).text)]
            self._kinds.pop(0)
            self._at = None
        return None

    def _rows(self, session: StatementSession, kind: str, limit: int) -> list[Row]:
        down = self._store.statements[f"embedding.pending_{kind}"]
        if not self._upwards:
            return session.run(down, (self._space_id, LAST if self._at is None else self._at, limit))
        if self._at is None:
            newest = session.run(down, (self._space_id, LAST, 1))
            self._at, self._end = -1, newest[0][0] if newest else -1
        up = self._store.statements[f"embedding.pending_up_{kind}"]
        return [row for row in session.run(up, (self._space_id, self._at, limit)) if row[0] <= self._end]


def _missing_vector(kind: str, owner: bytes, head: str | None, raw: str | bytes) -> MissingVector:
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    return MissingVector(kind, owner, embedded_text(head, text))


def open_index(engine: Engine) -> None:
    """Index the active space, if the database searches it and it holds few vectors yet.

    Without an index searches are slower, and results equally right: a failure is recorded, and does not prevent
    opening.
    """
    store, space_id = engine.store, engine.memory.snapshot.space_in_use
    if store.vector_index is None or engine.config.search.mode != "backend" or space_id is None:
        return
    plans = store.plans[EMBEDDING_SPACE.name]
    with store.read() as session:
        rows = session.run(plans.get, (space_id.bytes,))
    if rows:
        try:
            store.vector_index.open(plans.codec.decode(rows[0]))
        except CaliberError as error:
            engine.record_error("embedding index", error)


def complete_index(engine: Engine, space: EmbeddingSpace) -> None:
    """Index a space that has been filled and is about to be searched instead of the one before."""
    indexes, before = engine.store.vector_index, engine.memory.snapshot.space_in_use
    if indexes is None:
        return
    try:
        if engine.config.search.mode == "backend" or (before is not None and indexes.of(before) is not None):
            indexes.build(space)
    except CaliberError as error:
        engine.record_error("embedding index", error)


def build_index(store: Store, config: CaliberConfig, progress: Progress | None = None) -> bool:
    """Index the active space as configured, whatever its size, where the database searches it or has an index.

    Raises: Unavailable
    """
    indexes = store.vector_index
    if indexes is None:
        return False
    plans = store.plans[EMBEDDING_SPACE.name]
    with store.read() as session:
        space = in_use_of([plans.codec.decode(row) for row in session.run(plans.lists["list_all"], ())])
    if space is None or (config.search.mode != "backend" and indexes.of(space.space_id) is None):
        return False
    return indexes.build(space, progress)
