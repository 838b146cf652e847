"""Identities: the names by which an application calls users and agents, and reports of merging two of them."""

from __future__ import annotations

from datetime import datetime

from caliber.model.ids import IdentityId
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityRef


@dataclass(frozen=True, slots=True)
class Identity:
    """One name of a user or an agent, in a namespace of the application; several names may have one entity."""

    identity_id: IdentityId
    entity: EntityRef
    namespace: str
    name: str
    created_at: datetime
    updated_at: datetime
    version: int = 1


@dataclass(frozen=True, slots=True)
class MergedIdentities:
    """Report of merging one entity into another: changed ``records`` by relation, and how many still name it."""

    old: EntityRef
    entity: EntityRef
    names: tuple[str, ...]
    records: dict[str, int]
    remaining: int
