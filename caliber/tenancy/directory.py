"""Tenant directory: one row per tenant with its place and state, updated with optimistic locking.

Every change carries the version it is based on: of two processes that change a tenant at once, one gets an error.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from caliber.backends import backend
from caliber.config.tenancy import TenancyConfig
from caliber.model.errors import Conflict, InvalidValue, NotFound, Unavailable
from caliber.model.tenants import OPEN_STATES, Tenant, TenantPlace, TenantState, tenant_name
from caliber.model.time import from_us
from caliber.schema.relations import TENANT
from caliber.storage.write.unit_of_work import UnitOfWork

_REFUSED: Final = {
    TenantState.CREATING: ("creating", False, "it was never finished: `caliber db tenant create` goes on with it"),
    TenantState.SWITCHING: (
        "moving",
        True,
        (
            "it is just moving to another place: try again; if nobody is moving it, `caliber db tenant move` goes on,"
            " and `caliber db tenant move --abort` gives it up"
        ),
    ),
    TenantState.DROPPING: ("dropped", False, "it is being dropped"),
    TenantState.DROPPED: ("dropped", False, "it was dropped"),
}


def require_open(tenant: Tenant) -> Tenant:
    """Return a tenant that may be opened. Raises: Unavailable with the reason why it may not."""
    if tenant.state in OPEN_STATES:
        return tenant
    reason, retryable, advice = _REFUSED[tenant.state]
    raise Unavailable(f"tenant {tenant.name} is not open: {advice}", reason=reason, retryable=retryable)


class Directory:
    """An open directory of tenants. Safe to share between threads."""

    def __init__(self, config: TenancyConfig, *, clock_us: Callable[[], int], create: bool = False) -> None:
        self.config = config
        self._clock_us = clock_us
        settings: Any = config.directory
        self._records = backend(settings.adapter).open_records(settings, create=create, clock_us=clock_us)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release everything."""
        self._records.close()

    # --- reading ---------------------------------------------------------------------------------

    def all(self) -> list[Tenant]:
        """Return every tenant, dropped ones included, by name."""
        return self._records.read(lambda uow: uow.select_path(TENANT, "list_all"))

    def find(self, name: str) -> Tenant | None:
        """Return a tenant, or None. Raises: InvalidValue for an invalid name."""
        known_as = tenant_name(name)
        found: Tenant | None = self._records.read(lambda uow: uow.find(TENANT, known_as))
        return found

    def get(self, name: str) -> Tenant:
        """Return a tenant. Raises: NotFound, InvalidValue."""
        found = self.find(name)
        if found is None:
            raise NotFound(
                f"there is no tenant {name}; `caliber db tenants` lists them, `caliber db tenant create` makes one",
                entity_type="tenant",
                id=name,
            )
        return found

    # --- changing --------------------------------------------------------------------------------

    def enter(self, name: str, place: TenantPlace) -> Tenant:
        """Return the row of a tenant to be created: a new one, or that of an earlier attempt.

        Raises: Conflict when the tenant exists, or its place is taken.
        """
        name = tenant_name(name, new=True)
        now = from_us(self._clock_us())
        new = Tenant(uuid.uuid4(), name, TenantState.CREATING, place.source, place.location, now, now)

        def work(uow: UnitOfWork) -> Tenant:
            if uow.insert_new(TENANT, new):
                return new
            known: Tenant | None = uow.find(TENANT, name)
            if known is None:
                raise Conflict(f"{place} belongs to another tenant", entity_type="tenant", id=name, reason="place")
            if known.state is TenantState.CREATING:
                return known
            if known.state is not TenantState.DROPPED:
                raise Conflict(f"tenant {name} is there already", entity_type="tenant", id=name, reason="exists")
            again: Tenant = uow.update(TENANT, dataclasses.replace(new, version=known.version))
            return again

        return self._records.work(work)

    def change(self, tenant: Tenant, **fields: Any) -> Tenant:
        """Write a tenant if its row is unchanged since ``tenant`` was read, and return it as written.

        Raises: Conflict when another process changed it meanwhile.
        """
        changed = dataclasses.replace(tenant, updated_at=from_us(self._clock_us()), **fields)

        def work(uow: UnitOfWork) -> Tenant:
            known: Tenant | None = uow.find(TENANT, tenant.name)
            if known is None or known.version != tenant.version:
                raise Conflict(
                    f"another process changed tenant {tenant.name} meanwhile: look at it with `caliber db tenants`",
                    entity_type="tenant",
                    id=tenant.name,
                    reason="changed",
                )
            written: Tenant = uow.update(TENANT, changed)
            return written

        return self._records.work(work)

    # --- places ----------------------------------------------------------------------------------

    def new_place(self, name: str, source: str | None) -> TenantPlace:
        """Return the place of a new tenant in a data source. Raises: InvalidValue."""
        name = tenant_name(name)
        wanted = self.config.new_tenants if source is None else source
        found = self.config.sources.get(wanted)
        if found is None:
            names = ", ".join(self.config.sources)
            raise InvalidValue(field="source", reason=f"there is no such data source; there are {names}")
        location = found.location_of(name)
        if found.adapter == "postgres" and len(location) > 63:
            raise InvalidValue(field="tenant", reason="too long for this data source: a schema's name has at most 63")
        return TenantPlace(wanted, location)

    def storage(self, tenant: Tenant, place: TenantPlace) -> Any:
        """Return the ``storage`` section of a tenant at a place. Raises: InvalidValue for a removed source."""
        source = self.config.sources.get(place.source)
        if source is None:
            raise InvalidValue(
                field="tenancy.sources",
                reason=f"tenant {tenant.name} is in {place.source}, which the configuration does not name",
            )
        return source.store_at(place.location, tenant.name)
