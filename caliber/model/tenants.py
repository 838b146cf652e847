"""Data types of the tenant directory: a tenant, its place and its state. Source: O-1, P-006."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from caliber.model.errors import InvalidValue

NAME_PATTERN: Final = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
"""Valid tenant names: they become part of file, schema and role names."""


class TenantState(StrEnum):
    """The state of a tenant.

    CREATING: its store is being created. ACTIVE: open. COPYING: open, while its rows are copied to another place.
    SWITCHING: closed for reads and writes, for the moment in which it changes places. DROPPING, DROPPED: removed.
    """

    CREATING = "creating"
    ACTIVE = "active"
    COPYING = "copying"
    SWITCHING = "switching"
    DROPPING = "dropping"
    DROPPED = "dropped"


OPEN_STATES: Final = frozenset({TenantState.ACTIVE, TenantState.COPYING})
MOVE_STATES: Final = frozenset({TenantState.COPYING, TenantState.SWITCHING})


@dataclass(frozen=True, slots=True)
class TenantPlace:
    """The location of a tenant: a data source of the configuration, and the file or schema in it."""

    source: str
    location: str

    def __str__(self) -> str:
        return f"{self.location} in {self.source}"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. ``target_*`` are set while it moves, ``old_*`` until its old store is dropped."""

    tenant_id: uuid.UUID
    name: str
    state: TenantState
    source: str
    location: str
    created_at: datetime
    updated_at: datetime
    target_source: str | None = None
    target_location: str | None = None
    move_id: uuid.UUID | None = None
    old_source: str | None = None
    old_location: str | None = None
    version: int = 1

    @property
    def place(self) -> TenantPlace:
        """The present location."""
        return TenantPlace(self.source, self.location)

    @property
    def target(self) -> TenantPlace | None:
        """The location of the move's target."""
        if self.target_source is None or self.target_location is None:
            return None
        return TenantPlace(self.target_source, self.target_location)

    @property
    def old(self) -> TenantPlace | None:
        """The earlier location, until it is dropped."""
        if self.old_source is None or self.old_location is None:
            return None
        return TenantPlace(self.old_source, self.old_location)


def check_tenant_name(name: object) -> str:
    """Return ``name`` if a tenant may be called that.

    Raises: InvalidValue. Source: O-1.
    """
    if not isinstance(name, str) or not NAME_PATTERN.match(name):
        raise InvalidValue(
            field="tenant", reason="must be a lower-case letter and then letters, digits or _, at most 40 together"
        )
    return name
