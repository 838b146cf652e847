"""Visibility of notes: one rule, and its mask over resident columns.

A note without ``visible_to`` is seen by all. Otherwise its list names roles (``executor``) and single
principals (``agent:planner``). An admin sees everything; nobody else sees more than the list says.

Source: M-118 to M-141, K-130 to K-132.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.evaluator import Allowed
from caliber.model.access import Principal, PrincipalKind
from caliber.model.knowledge import Note
from caliber.resident.mirror import RelationSnapshot


def may_see(visible_to: Sequence[str] | None, principal: Principal) -> bool:
    """Return whether ``principal`` may see a note with this ``visible_to``."""
    if visible_to is None or principal.admin:
        return True
    return principal.label in visible_to or (principal.role is not None and principal.role.value in visible_to)


def may_change(note: Note, principal: Principal, *, ownership: str) -> bool:
    """Return whether ``principal`` may change or remove ``note``: its owner, or an admin. Source: M-130, M-137."""
    if principal.admin:
        return True
    if note.created_by is None:
        return False
    author, _, role = note.created_by.rpartition("@")
    if ownership == "role" and principal.role is not None:
        return role == principal.role.value
    return author == principal.label


def author_of(principal: Principal) -> str:
    """Return how ``created_by`` names a principal: its label, ``@`` and its role, if it has one."""
    return f"{principal.label}@{principal.role.value if principal.role else ''}"


def default_visible_to(principal: Principal, roles: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the ``visible_to`` of a note that does not say: by the author's role, and the author (M-131)."""
    if principal.kind is not PrincipalKind.AGENT or roles is None:
        return None
    return (principal.label, *roles)


class NoteMask:
    """The notes a principal may see, as a mask by code over the mirror's rows; distinct lists are judged once."""

    __slots__ = ("_cached", "_principal")

    def __init__(self, principal: Principal) -> None:
        self._principal = principal
        # (the mirror's list of distinct values, one verdict each): replaced as one, so that threads may share it.
        self._cached: tuple[list[object], NDArray[np.bool_]] = ([], np.zeros(0, np.bool_))

    def over(self, notes: RelationSnapshot) -> Allowed | None:
        """Return the mask, or None when everything may be seen."""
        if self._principal.admin:
            return None
        lists = notes.interned("visible_to")
        known, verdicts = self._cached
        # A compaction makes a new list with other numbers; within one, values are only ever added.
        if known is not lists or len(verdicts) != len(lists):
            seen = [may_see(None if text is None else json.loads(text), self._principal) for text in list(lists)]
            verdicts = np.array(seen, np.bool_)
            self._cached = (lists, verdicts)
        return Allowed(notes.column("visible_to"), verdicts)

    def among(self, lists: Sequence[str]) -> list[str]:
        """Return those of stored lists of readers, JSON as in ``visible_to``, that let the principal see a note."""
        return [text for text in lists if may_see(json.loads(text), self._principal)]

    def allows(self, notes: RelationSnapshot, number: int) -> bool:
        """Return whether one row may be seen."""
        if self._principal.admin:
            return True
        text = notes.packed(number)[notes.layout.codec.index("visible_to")]
        return may_see(None if text is None else json.loads(text), self._principal)
