"""Data types of the tenant directory (tenant, place, state), and normalization of tenant names. Source: O-1, P-006."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
import uuid
from datetime import datetime
from enum import StrEnum
from typing import Final

from caliber.model.errors import DTypeError, InvalidValue
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import is_invisible

NAME_BYTES_MAX: Final = 1_024
"""Longest name of a tenant, in UTF-8."""
_PLAIN: Final = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
_OTHER: Final = re.compile(r"[^a-z0-9]+")
_READABLE_CHARS: Final = 12
_DIGEST_BYTES: Final = 16


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


def tenant_name(name: object, *, new: bool = False) -> str:
    """Return the name by which the directory knows a tenant: in Unicode form NFC, without white space around it.

    Two spellings of one form are one tenant (``é`` as one character or two); case, and letters that only look alike,
    make two. Raises: DTypeError; InvalidValue for a name that is empty, longer than 1,024 bytes of UTF-8, or holds
    control characters or surrogates; for a ``new`` tenant also for one of invisible characters alone.
    """
    if not isinstance(name, str):
        raise DTypeError(field="tenant", expected="str", got=type(name).__name__)
    plain = unicodedata.normalize("NFC", name).strip() if len(name) <= NAME_BYTES_MAX else name
    if not plain:
        raise InvalidValue(field="tenant", reason="must not be empty")
    if new and is_invisible(plain):  # one that exists can still be opened, and dropped
        raise InvalidValue(field="tenant", reason="must not be of invisible characters alone")
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in plain[:NAME_BYTES_MAX]):
        raise InvalidValue(field="tenant", reason="must not contain control characters or surrogates")
    if len(plain) > NAME_BYTES_MAX or len(plain.encode()) > NAME_BYTES_MAX:
        raise InvalidValue(field="tenant", reason=f"must be at most {NAME_BYTES_MAX} bytes long")
    return plain


def place_name(name: str) -> str:
    """Return the part that a tenant's name has in names of files, schemas and roles: at most 40 of a to z, 0 to 9, _.

    A name of that kind that begins with a letter stays as it is; any other becomes ``_``, a few of its characters and
    128 bits of its hash. No two names share a part.
    """
    if _PLAIN.match(name):
        return name
    readable = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    words = _OTHER.sub("_", readable).strip("_")[:_READABLE_CHARS].strip("_")
    digest = base64.b32encode(hashlib.sha256(name.encode()).digest()[:_DIGEST_BYTES]).decode().rstrip("=").lower()
    return f"_{words}_{digest}" if words else f"_{digest}"
