"""Class ``Tenants``: opens tenants from a pool of open stores; lists, creates, moves and drops them.

::

    with Tenants("caliber.toml", max_open=256) as tenants:
        with tenants.open("user@example.com", create=True) as memory:
            ...
        tenants.move("user@example.com", "cluster_b")

Source: O-1, design section 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Any, Final, Self

from caliber.admin.checking import complete_full_text, rebuild_full_text
from caliber.api.caliber import Caliber
from caliber.api.starting import handle_of, start_engine
from caliber.backends import backend, bare_store
from caliber.config import AioConfig, CaliberConfig
from caliber.dsl.loading import ConfigSource, config_of
from caliber.embedding.reembedding import build_index
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import CaliberError, Conflict, MissingRequired, NotFound, Unavailable
from caliber.model.process.interrupts import managed
from caliber.model.progress import Progress, Tracer, unheard
from caliber.model.tenants import Tenant, TenantState, tenant_name
from caliber.model.time import Clock
from caliber.tenancy.directory import Directory, require_open
from caliber.tenancy.move import Hooks, Move, MoveReport, abort, drop_old, drop_store, prepare_place
from caliber.tenancy.pool import HandlePool, PoolStats

_SCRUB_S: Final = 10.0
WAIT_MS: Final = 30_000
"""The longest wait for a place in the pool, unless the caller says another."""
_CREATED_ANEW: Final = (None, "creating", "dropped")
"""The reasons for which a tenant is not open that creating it ends; None of a tenant that was never there."""
MISSING: Final = "missing"
"""The ``reason`` that databases give for a missing store."""


class PooledCaliber(Caliber):
    """A handle that a pool of tenants lends: the pool closes its tenant."""

    def close(self) -> None:
        """Do nothing: the pool closes the tenant when it needs the place."""


def _is_usable(engine: Engine) -> bool:
    try:
        engine.check_open()
    except Unavailable:  # it moved, or this is a child of the process that opened it
        return False
    return True


class Tenants:
    """The tenants of a configuration. Safe to share between threads; several processes may use one directory."""

    def __init__(
        self,
        config: ConfigSource,
        *,
        max_open: int = 256,
        clock: Clock | None = None,
        create: bool = False,
        tracer: Tracer | None = None,
    ) -> None:
        """Open the directory; ``create`` makes it first where it is not there.

        ``max_open`` is the number of tenants that stay open between two uses of ``open``. ``tracer`` is told of the
        operations of all of them, as in ``caliber.open``.

        Raises: MissingRequired without the section tenancy; Unavailable, SchemaMismatch
        """
        self._config = config_of(config)
        self._clock = arguments.as_clock(clock)
        self._clock_us = self._clock.now_us
        self._tracer = arguments.as_tracer(tracer)
        arguments.as_flag(create, "create")
        places = arguments.as_whole(max_open, "max_open", 1)
        if self._config.tenancy is None:
            raise MissingRequired(
                "tenant= needs the section [tenancy]: where the directory of tenants is, and its data sources",
                field="tenancy",
            )
        self._directory = Directory(self._config.tenancy, clock_us=self._clock_us, create=create)
        self._pool = HandlePool(places, opening=self._start, closing=Engine.close, usable=_is_usable)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release everything; a tenant that is in use is closed when its last user leaves it."""
        self._pool.close()
        self._directory.close()

    # --- using -----------------------------------------------------------------------------------

    @managed
    def open(
        self,
        name: str,
        *,
        create: bool = False,
        principal: Principal | None = None,
        wait_ms: int = WAIT_MS,
    ) -> Iterator[Caliber]:
        """Open a tenant for as long as the block runs; ``create`` creates one that the directory does not know.

        The last ``max_open`` tenants used stay open, so the next use of one costs microseconds. Threads share a tenant.
        The handle is the pool's: its ``close`` does nothing, and it is not to be used after the block. Where all places
        are in use, ``open`` waits ``wait_ms``.

        Raises: NotFound; Unavailable (``busy``, retryable; ``closed``; a tenant that is moving or was dropped);
            InvalidValue, DTypeError, and what opening its store raises.
        """
        tenant, lease = tenant_name(name), object()
        try:
            yield self.take(tenant, lease, create=create, principal=principal, wait_ms=wait_ms)
        finally:
            try:
                self.give_back(tenant, lease)
            finally:
                self.give_back(tenant, lease)  # the first one was interrupted, perhaps

    def take(
        self, tenant: str, lease: object, *, create: bool = False, principal: Principal | None = None, wait_ms: int = 0
    ) -> PooledCaliber:
        """Return the handle of a tenant by its ``tenant_name``, which stays open until ``give_back`` of the lease.

        For programs without a block, which make the lease: any object that is no other lease.
        """
        arguments.as_flag(create, "create")
        who = self._config.principal.to_principal() if principal is None else arguments.as_principal(principal)
        wait_s = arguments.as_whole(wait_ms, "wait_ms") / 1_000
        try:
            engine = self._pool.take(tenant, lease, wait_s)
        except (NotFound, Unavailable) as error:
            if not create or error.context.get("reason") not in _CREATED_ANEW:
                raise
            self.create(tenant, exist_ok=True)
            engine = self._pool.take(tenant, lease, wait_s)
        return handle_of(PooledCaliber(engine, who))

    def give_back(self, tenant: str, lease: object) -> None:
        """End the use of a lease, whatever became of its ``take``; again does no harm."""
        self._pool.give_back(tenant, lease)

    @property
    def aio_settings(self) -> AioConfig:
        """The knobs of asynchronous use."""
        return self._config.aio

    def stats(self) -> PoolStats:
        """Return how many tenants are open and in use, and how often one was opened, reused and closed."""
        return self._pool.stats()

    def _start(self, name: str) -> Engine:
        return start_engine(self.config(name), clock=self._clock, tracer=self._tracer)

    # --- asking ----------------------------------------------------------------------------------

    def all(self, *, dropped: bool = False) -> list[Tenant]:
        """Return the tenants by name, with dropped ones on request."""
        return [each for each in self._directory.all() if dropped or each.state is not TenantState.DROPPED]

    def get(self, name: str) -> Tenant:
        """Return a tenant. Raises: NotFound, InvalidValue."""
        return self._directory.get(name)

    def config(self, name: str) -> CaliberConfig:
        """Return the configuration of one tenant: this one, with its store.

        Raises: NotFound; Unavailable while it is moving, or when it was dropped
        """
        return self._at(require_open(self._directory.get(name)))

    def _at(self, tenant: Tenant) -> CaliberConfig:
        return self._with(self._directory.storage(tenant, tenant.place))

    def _with(self, storage: Any) -> CaliberConfig:
        # A tenant's configuration must not name other tenants, nor must its windows, which record the configuration.
        return self._config.with_storage(storage)

    # --- changing --------------------------------------------------------------------------------

    def create(self, name: str, *, source: str | None = None, exist_ok: bool = False) -> Tenant:
        """Create a tenant with an empty store, in ``source`` or where the configuration puts new ones.

        A name is any text of up to 1,024 bytes of UTF-8 without control characters; files, schemas and roles are named
        after it, escaped. Two spellings of one Unicode form (NFC), and white space around a name, make no difference.
        An attempt that was cut short is gone on with. Raises: Conflict when it is there and ``exist_ok`` is false,
            InvalidValue, Unavailable, and what making its store raises
        """
        try:
            tenant = self._directory.enter(name, self._directory.new_place(name, source))
        except Conflict:
            if exist_ok:
                existing = self._directory.find(name)
                if existing is not None and existing.state in (TenantState.ACTIVE, TenantState.COPYING):
                    return existing
            raise
        storage = self._directory.storage(tenant, tenant.place)
        prepare_place(storage)
        backend(storage.adapter).create(self._with(storage), exist_ok=True, clock_us=self._clock_us)
        try:
            return self._directory.change(tenant, state=TenantState.ACTIVE)
        except Conflict:
            if exist_ok:
                return self._directory.get(name)  # another process was as far
            raise

    def migrate(self, name: str) -> list[int]:
        """Bring a tenant's store up to this version's schema; return the versions applied."""
        config = self.config(name)
        applied = backend(config.storage.adapter).migrate(config, clock_us=self._clock_us)
        if config.memories:
            complete_full_text(config)
        return applied

    def move(self, name: str, source: str, *, progress: Progress | None = None) -> MoveReport:
        """Move a tenant to another data source while it is used; resume a move that was interrupted.

        Other programs read and write meanwhile. At the end writers get ``Unavailable(moving)``, retryable, for the time
        it takes to copy and verify the last rows, and from then on ``Unavailable(moved)``: they open the tenant again.
        The old store stays until ``drop_old``. ``progress`` is called as each step begins, and with the number of rows
        copied.

        Raises: Conflict, Unavailable, StorageError; then the tenant is where it was, open to writers
        """
        on_progress = arguments.as_callback(progress, "progress") or unheard
        hooks = Hooks(check=self._check, complete=self._complete, progress=on_progress)
        report = Move(self._directory, name, source, self._clock_us, hooks).run()
        try:
            config = self._at(report.tenant)
            with bare_store(config, self._clock_us) as store:  # others use the tenant meanwhile
                build_index(store, config)
        except CaliberError as error:
            return dataclasses.replace(report, not_indexed=error.message)
        return report

    def _check(self, source: Any) -> None:
        """Refuse a store of another version: it is to be migrated before it moves. Raises: SchemaMismatch."""
        with bare_store(self._with(source), self._clock_us):
            pass

    def _complete(self, source: Any, entered: Any, forgotten: bool) -> None:
        """Build the structures a store keeps besides its rows: full text, if the old store had it or searches need it.

        Records that were erased during the move had been copied before: the new files are cleaned too. Raises:
        Unavailable
        """
        config = self._with(entered)
        with bare_store(config, self._clock_us) as store:
            able = store.full_text is not None
            remaining = store.eraser.scrub(_SCRUB_S) if forgotten else []
        if remaining:
            raise Unavailable(
                f"files of the copy may still contain data forgotten during the move: {remaining[0]}; move it again,"
                " or give the move up and begin anew",
                reason="busy",
            )
        if able and config.search.mode != "backend":
            with bare_store(self._with(source), self._clock_us) as store:
                able = store.full_text is not None and store.full_text.state() is not None
        if able:
            rebuild_full_text(config)

    def abort_move(self, name: str) -> Tenant:
        """Give a move up: the tenant stays where it is. Raises: Conflict when it is not moving."""
        return abort(self._directory, name, self._clock_us)

    def drop_old(self, name: str) -> Tenant:
        """Remove the old store of a tenant that has moved. Raises: Conflict when there is none."""
        return drop_old(self._directory, name, self._clock_us)

    def drop(self, name: str) -> Tenant:
        """Remove a tenant with all that it remembers, wherever it is. Its name may be used again.

        Raises: Conflict while it is moving, or in use through ``open``; NotFound, Unavailable
        """
        with self._pool.excluded(tenant_name(name)):
            return self._drop(name)

    def _drop(self, name: str) -> Tenant:
        tenant = self._directory.get(name)
        if tenant.state in (TenantState.COPYING, TenantState.SWITCHING):
            raise Conflict(
                f"tenant {name} is moving: wait, or `caliber db tenant move --abort`",
                entity_type="tenant",
                id=name,
                reason="moving",
            )
        if tenant.state is TenantState.DROPPED:
            return tenant
        # Another object may occupy the place where its store could not be made; then there is nothing to remove.
        perhaps = suppress(Conflict) if tenant.state is TenantState.CREATING else nullcontext()
        tenant = self._directory.change(tenant, state=TenantState.DROPPING)
        for place in (tenant.old, tenant.place):
            if place is not None:
                with perhaps:
                    drop_store(self._directory.storage(tenant, place), self._clock_us)
        return self._directory.change(tenant, state=TenantState.DROPPED, old_source=None, old_location=None)


def tenant_config(config: CaliberConfig, name: str) -> CaliberConfig:
    """Return the configuration of one tenant; without a directory there is none yet. Raises: as ``Tenants.config``."""
    name = tenant_name(name)
    try:
        tenants = Tenants(config)
    except Unavailable as error:
        if error.context.get("reason") != MISSING:
            raise
        raise NotFound(f"there is no tenant {name}: {error.message}", entity_type="tenant", id=name) from error
    with tenants:
        return tenants.config(name)
