"""Online move of a tenant to another database: copy, catch up, short write fence, switch; resumable.

A process may die after each step. The directory records the progress of a move and changes only from the state that was
read; a copy is filled by the attempt that took it over last; a fence is lifted by the attempt that put it up. So a move
is resumed by starting again: existing rows are compared, not copied.

Until the directory names the new place, the tenant is at the old one, where nothing was changed.

Source: design section 3; docs/decisions/0131.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from caliber.backends import backend
from caliber.config.storage import StorageConfig
from caliber.dump.dumped_relations import BATCH_ROWS, dump_relations
from caliber.dump.moving import (
    Proof,
    Reading,
    Replica,
    bring_up,
    copy_all,
    erasures_of,
    make_equal,
    named_since,
    taken_over,
    verify,
)
from caliber.model.errors import CaliberError, Conflict, InvalidValue, Unavailable
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interrupts import let_through
from caliber.model.progress import Progress, unheard
from caliber.model.tenants import MOVE_STATES, Tenant, TenantPlace, TenantState
from caliber.schema.catalog import BUILT_IN, Catalog
from caliber.schema.relation import Relation
from caliber.schema.relations import CHANGE
from caliber.storage.maintain.maintenance import FenceState
from caliber.storage.migrate.migrations import check_needed
from caliber.tenancy.directory import Directory

ROUNDS_MOST: Final = 8
"""How often a copy is brought up to date before writers are blocked for the rest."""
FEW: Final = 2_000
"""Rows written since the last round that are few enough to have writers wait for them."""


def _not_named(catalog: Catalog) -> tuple[Relation, ...]:
    """Return the relations that the change feed does not name the rows of."""
    return tuple(relation for relation in dump_relations(catalog) if not relation.mirrored)


@dataclass(frozen=True, slots=True)
class MoveReport:
    """The outcome of a move. ``rows`` and ``hashes``: of every relation, equal in both places when writers waited."""

    tenant: Tenant
    left: TenantPlace
    rounds: int
    caught_up_rows: int
    fence_ms: int
    rows: Mapping[str, int] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    not_indexed: str | None = None
    """Why the database's own index of its vectors could not be made in the new place: searches compare them all."""


@dataclass
class Hooks:
    """Callbacks during a move."""

    progress: Progress = unheard
    """Called at the beginning of each step, and with the rows that are copied."""
    check: Callable[[Any], None] = lambda _: None
    """Called with the storage section of the tenant's place: refuses a store that this version cannot copy."""
    complete: Callable[[Any, Any, bool], None] = lambda _, __, ___: None
    """Called with the storage sections of both places once the new one is a store, before anybody uses it, and with
    whether its files may hold what was forgotten since they were begun."""


STEPS: Final = ("begin", "prepare", "copy", "catch up", "fence", "last rows", "finish", "tell writers", "switch", "end")


def open_replica(storage: Any, clock_us: Callable[[], int]) -> Replica:
    """Return one side of a move."""
    return backend(storage.adapter).open_replica(storage, clock_us=clock_us)


def make_role(storage: Any) -> None:
    """Make the login role of a place, where its source has such roles."""
    if getattr(storage, "login_role", None) is not None:
        backend(storage.adapter).create_role(storage)


def prepare_place(storage: Any) -> None:
    """Create the prerequisites of a new place: the folder of a file, or the login role. Raises: Unavailable."""
    if isinstance(storage, StorageConfig):
        folder = Path(storage.resolve_path()).parent
        try:
            folder.mkdir(exist_ok=True)  # but none above it: a mistyped path is an error
        except OSError as error:
            let_through(error)
            reason = error.strerror or "not a usable path"
            raise Unavailable(f"the folder {folder} of tenants cannot be made: {reason}", reason="folder") from error
    make_role(storage)


def remove_role(storage: Any) -> None:
    """Remove the login role of a place whose store was dropped."""
    if getattr(storage, "login_role", None) is not None:
        backend(storage.adapter).drop_role(storage)


class Move:
    """One attempt to move one tenant."""

    def __init__(self, directory: Directory, name: str, source: str, clock_us: Callable[[], int], hooks: Hooks) -> None:
        self._directory = directory
        self._hooks = hooks
        self._token = uuid.uuid4().hex
        hooks.progress("begin", 0, None)
        self._tenant = self._begin(directory.get(name), directory.new_place(name, source))
        assert self._tenant.target is not None
        self._left_storage = directory.storage(self._tenant, self._tenant.place)
        self._entered_storage = directory.storage(self._tenant, self._tenant.target)
        self._left = open_replica(self._left_storage, clock_us)
        self._entered = open_replica(self._entered_storage, clock_us)
        self._epoch = str(self._tenant.move_id)
        self._catalog = BUILT_IN
        self._caught_up = 0
        self._forgotten: str | None = None
        """The erasures before the copy began; None if unknown."""

    def _begin(self, tenant: Tenant, target: TenantPlace) -> Tenant:
        """Write down where a tenant is going; take over from an attempt that was going there."""
        name = tenant.name
        if tenant.state in MOVE_STATES:
            if tenant.target != target:
                raise Conflict(
                    f"tenant {name} is moving to {tenant.target}: continue that move, or cancel it with"
                    " `caliber db tenant move --abort`",
                    entity_type="tenant",
                    id=name,
                    reason="moving",
                )
            # The state stays: where a fence may exist, the tenant must not be opened.
            return self._directory.change(tenant)
        if tenant.state is not TenantState.ACTIVE:
            raise Conflict(f"tenant {name} is {tenant.state.value}", entity_type="tenant", id=name, reason="state")
        if tenant.place.source == target.source:
            raise InvalidValue(field="source", reason=f"tenant {name} is in {target.source} already")
        if tenant.old is not None:
            raise Conflict(
                f"the old data of tenant {name} in {tenant.old} still exists: `caliber db tenant drop {name} --old`",
                entity_type="tenant",
                id=name,
                reason="old place",
            )
        return self._directory.change(
            tenant,
            state=TenantState.COPYING,
            target_source=target.source,
            target_location=target.location,
            move_id=uuid.uuid4(),
        )

    # --- the steps -------------------------------------------------------------------------------

    def run(self) -> MoveReport:
        """Move the tenant. Raises: Conflict, Unavailable, StorageError; then it is where it was, open to writers."""
        try:
            self._hooks.progress("prepare", 0, None)
            self._hooks.check(self._left_storage)
            prepare_place(self._entered_storage)
            with self._left.reading() as source:
                self._catalog = source.catalog
                check_needed(self._left.shown, source.schema_version)
            empty = self._entered.prepare(self._epoch, self._token, self._catalog)
            # The fence of an interrupted attempt; this attempt owns it from now on.
            self._left.lift(None)
            if self._tenant.state is TenantState.SWITCHING:
                self._tenant = self._directory.change(self._tenant, state=TenantState.COPYING)
            mark, rounds = self._approach(empty)
            return self._switch(mark, rounds)
        except BaseException:
            with contextlib.suppress(CaliberError):  # the caller gets the first error
                self._let_go()
            raise
        finally:
            self._left.close()
            self._entered.close()

    def _approach(self, empty: bool) -> tuple[Any, int]:
        """Copy, and bring the copy up to date until little is left; return the boundary it is at."""
        self._hooks.progress("copy", 0, None)
        with self._left.reading() as source:
            self._check_memories(source)
            if empty:
                self._forgotten = erasures_of(source)
                copy_all(source, self._entered, self._token, self._hooks.progress)
            else:
                make_equal(source, self._entered, self._token, dump_relations(self._catalog))
            mark = source.mark
        rounds = 0
        while rounds < ROUNDS_MOST:
            self._hooks.progress("catch up", 0, None)
            rounds += 1
            with self._left.reading() as source:
                written = self._follow(source, mark)
                mark = source.mark
                last = written <= FEW or rounds == ROUNDS_MOST
                if last and not self._directory.config.verify_in_fence:
                    with self._entered.reading() as copy:
                        verify(source, copy, dump_relations(self._catalog))
            if last:
                break
        return mark, rounds

    def _follow(self, source: Reading, mark: Any) -> int:
        """Bring the copy from one boundary to another; return how many rows that took."""
        self._check_memories(source)
        named = named_since(source, mark)
        if named is None:
            rows = make_equal(source, self._entered, self._token, dump_relations(self._catalog)) * BATCH_ROWS
        else:
            rows = bring_up(source, self._entered, self._token, named)
            make_equal(source, self._entered, self._token, _not_named(self._catalog))
        self._caught_up += rows
        return rows

    def _check_memories(self, source: Reading) -> None:
        """Refuse to continue if the schema or memories were changed since the copy was prepared for them."""
        check_needed(self._left.shown, source.schema_version)
        if source.catalog.revision != self._catalog.revision:
            raise Conflict(
                f"the memories of tenant {self._tenant.name} were changed while it moved: move it again",
                entity_type="tenant",
                id=self._tenant.name,
                reason="memories",
                retryable=True,
            )

    def _switch(self, mark: Any, rounds: int) -> MoveReport:
        """Have writers wait, copy the last rows, prove it, and change places."""
        config = self._directory.config
        self._hooks.progress("fence", 0, None)
        self._tenant = self._directory.change(self._tenant, state=TenantState.SWITCHING)
        begun = time.monotonic()
        self._left.fence(FenceState.MOVING, self._token, config.fence_ms)
        self._hooks.progress("last rows", 0, None)
        with self._left.reading() as source:
            self._follow(source, mark)
            numbers = {**source.ordinals(), CHANGE.name: source.sequence}
            forgotten = erasures_of(source)
            with self._entered.reading() as copy:
                relations = (dump_relations if config.verify_in_fence else _not_named)(self._catalog)
                proof: Proof = verify(source, copy, relations)
        self._hooks.progress("finish", 0, None)
        self._entered.finish(self._epoch, self._token, numbers, self._catalog)
        self._hooks.complete(
            self._left_storage, self._entered_storage, forgotten is not None and forgotten != self._forgotten
        )
        if self._left.fenced_by() != self._token:
            raise taken_over(self._tenant.name)
        self._hooks.progress("tell writers", 0, None)
        self._left.fence(FenceState.MOVED, self._token, config.fence_ms)
        self._hooks.progress("switch", 0, None)
        left, target = self._tenant.place, self._tenant.target
        assert target is not None
        tenant = self._directory.change(
            self._tenant,
            state=TenantState.ACTIVE,
            source=target.source,
            location=target.location,
            target_source=None,
            target_location=None,
            move_id=None,
            old_source=left.source,
            old_location=left.location,
        )
        fence_ms = int((time.monotonic() - begun) * 1_000)
        self._hooks.progress("end", 0, None)
        return MoveReport(tenant, left, rounds, self._caught_up, fence_ms, proof.rows, proof.hashes)

    def _let_go(self) -> None:
        """Let writers in again after a failure, unless the tenant has moved or another attempt continues."""
        known = self._directory.find(self._tenant.name)
        if known is None or known.place != self._tenant.place:
            return
        self._left.lift(self._token)
        if known.version == self._tenant.version and known.state is TenantState.SWITCHING:
            self._directory.change(known, state=TenantState.COPYING)


def abort(directory: Directory, name: str, clock_us: Callable[[], int]) -> Tenant:
    """Give a move up: the tenant stays where it is, the copy goes. Raises: Conflict when it is not moving."""
    tenant = directory.get(name)
    if tenant.state not in MOVE_STATES or tenant.target is None:
        if tenant.state is TenantState.ACTIVE and _lift_stray(directory, tenant, clock_us):
            return tenant
        raise Conflict(f"tenant {name} is not moving", entity_type="tenant", id=name, reason="state")
    # An attempt that is still at work can change nothing in the directory from here on.
    tenant = directory.change(tenant)
    assert tenant.target is not None
    left_storage = directory.storage(tenant, tenant.place)
    entered_storage = directory.storage(tenant, tenant.target)
    left = open_replica(left_storage, clock_us)
    try:
        left.lift(None)  # first: writers continue whatever happens to the copy
        discard(entered_storage, str(tenant.move_id), clock_us)
    finally:
        left.close()
    return directory.change(tenant, state=TenantState.ACTIVE, target_source=None, target_location=None, move_id=None)


def _lift_stray(directory: Directory, tenant: Tenant, clock_us: Callable[[], int]) -> bool:
    """Lift the fence of a dead attempt: one that was killed just after another process took over."""
    replica = open_replica(directory.storage(tenant, tenant.place), clock_us)
    try:
        if replica.fenced_by() is None:
            return False
        replica.lift(None)
        return True
    finally:
        replica.close()


def discard(storage: Any, epoch: str, clock_us: Callable[[], int]) -> None:
    """Remove an unfinished copy, and the login role that was made for it."""
    try:
        make_role(storage)  # without it no one could log in to check
    except Conflict:
        return  # the place belongs to another store: nothing was created
    entered = open_replica(storage, clock_us)
    try:
        entered.discard(epoch)
    finally:
        entered.close()
    remove_role(storage)


def drop_old(directory: Directory, name: str, clock_us: Callable[[], int]) -> Tenant:
    """Remove the old store of a tenant that has moved. Raises: Conflict when there is none."""
    tenant = directory.get(name)
    if tenant.old is None:
        raise Conflict(f"tenant {name} has no old data", entity_type="tenant", id=name, reason="old place")
    drop_store(directory.storage(tenant, tenant.old), clock_us)
    return directory.change(tenant, old_source=None, old_location=None)


def drop_store(storage: Any, clock_us: Callable[[], int]) -> None:
    """Remove a store, and its login role."""
    make_role(storage)
    replica = open_replica(storage, clock_us)
    try:
        replica.drop()
    finally:
        replica.close()
    remove_role(storage)
