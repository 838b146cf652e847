"""Grants: rights of one user or agent on another user's task, session or record, until an instant or revoked."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from caliber.model.ids import GrantId
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityRef


class Right(StrEnum):
    """The rights that a grant gives. ``write`` includes ``read``."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Grant:
    """A right of the user or agent ``to`` on the task, session or note ``on``; ``granted_by`` names a principal.

    It ends at ``until``, where that is given, and once it is revoked. Source: C-422.
    """

    grant_id: GrantId
    to: EntityRef
    on: EntityRef
    right: Right
    granted_by: str
    until: datetime | None
    revoked_at: datetime | None
    created_at: datetime
    updated_at: datetime
    version: int = 1
