"""Rules of which principal may see or change a record, by its readers and author, and masks of visible rows.

Everybody may see a record without such a list. Otherwise its list names roles (``executor``) and single principals
(``agent:planner``). An admin sees everything; other principals see a record only if the list names them.

Source: M-118 to M-141, K-130 to K-132.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.evaluator import Allowed
from caliber.model.access import Principal, PrincipalKind
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.relation import Relation
from caliber.storage.compile.codec import Row, codec_of


def may_see(visible_to: Sequence[str] | None, principal: Principal) -> bool:
    """Return whether ``principal`` may see a record with this ``visible_to``."""
    if visible_to is None or principal.is_admin:
        return True
    return principal.label in visible_to or (principal.role is not None and principal.role.value in visible_to)


def may_change(created_by: str | None, principal: Principal, *, ownership: str) -> bool:
    """Return whether ``principal`` may change or remove a record: its author, or an admin. Source: M-130, M-137."""
    if principal.is_admin:
        return True
    if created_by is None:
        return False
    author, _, role = created_by.rpartition("@")
    if ownership == "role" and principal.role is not None:
        return role == principal.role.value
    return author == principal.label


def author_of(principal: Principal) -> str:
    """Return how ``created_by`` names a principal: its label, ``@`` and its role, if it has one."""
    return f"{principal.label}@{principal.role.value if principal.role else ''}"


def default_visible_to(principal: Principal, roles: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the default ``visible_to`` of a note: by the author's role, and the author (M-131)."""
    if principal.kind is not PrincipalKind.AGENT or roles is None:
        return None
    return (principal.label, *roles)


class Readers:
    """The records a principal may see, where records list their readers; distinct lists are judged once."""

    __slots__ = ("_known", "_principal")

    def __init__(self, principal: Principal) -> None:
        self._principal = principal
        # By relation (the mirror's list of distinct values, one verdict each): replaced as one, so that threads may
        # share it.
        self._known: dict[str, tuple[list[object], NDArray[np.bool_]]] = {}

    def over(self, rows: RelationSnapshot) -> Allowed | None:
        """Return the mask over the rows of a relation, or None when everything may be seen."""
        column = rows.relation.readers
        if column is None or self._principal.is_admin:
            return None
        lists = rows.interned(column)
        known = self._known.get(rows.relation.name)
        # A compaction makes a new list with other numbers; within one, values are only ever added.
        if known is None or known[0] is not lists or len(known[1]) != len(lists):
            seen = [self._listed(text) for text in list(lists)]
            known = self._known[rows.relation.name] = (lists, np.array(seen, np.bool_))
        return Allowed(rows.column(column), known[1])

    def masks(self, snapshot: ResidentSnapshot) -> dict[str, Allowed]:
        """Return the mask of each relation of which not everything may be seen, by name."""
        if self._principal.is_admin:
            return {}
        masks = {name: self.over(rows) for name, rows in snapshot.relations.items()}
        return {name: mask for name, mask in masks.items() if mask is not None}

    def among(self, lists: Sequence[str]) -> list[str]:
        """Return those of stored lists of readers, as JSON, that let the principal see a record."""
        return [text for text in lists if self._listed(text)]

    def allows(self, rows: RelationSnapshot, number: int) -> bool:
        """Return whether one row may be seen."""
        return self.allows_row(rows.relation, rows.packed(number))

    def allows_row(self, relation: Relation, row: Row) -> bool:
        """Return whether a row as it is stored may be seen."""
        if relation.readers is None or self._principal.is_admin:
            return True
        return self._listed(row[codec_of(relation).index(relation.readers)])

    def allows_entity(self, relation: Relation, entity: Any) -> bool:
        """Return whether a record may be seen."""
        return relation.readers is None or may_see(getattr(entity, relation.readers), self._principal)

    def _listed(self, names: Any) -> bool:
        """Return whether a list of readers as it is stored, JSON or None, lets the principal see a record."""
        return may_see(None if names is None else json.loads(names), self._principal)
