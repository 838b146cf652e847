"""When a record of a memory counts, as a predicate: not taken back, and holding at an instant (``now()``).

``resident.validity`` says the same over columns; tests hold both against each other. Source: K-080, C-452, C-453.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from caliber.schema.predicate import All, Comparison, Either, Operator, Predicate, Variable


def _unset(column: str) -> Comparison:
    return Comparison(column, Operator.EQUAL, None)


_NOTE: Final = All(
    (
        _unset("archived_at"),
        _unset("superseded_by"),
        # Without a value both bounds are open.
        Comparison("valid_from", Operator.AT_MOST, Variable.NOW),
        Comparison("valid_until", Operator.GREATER, Variable.NOW),
    )
)
_ARTIFACT: Final = All(
    (
        _unset("superseded_by"),
        _unset("rolled_back_at"),
        _unset("retired_at"),
        Either((_unset("expires_at"), Comparison("expires_at", Operator.GREATER, Variable.NOW))),
    )
)
_OF: Final[Mapping[str, Predicate]] = {"note": _NOTE, "artifact": _ARTIFACT}
OWN: Final[Predicate] = _unset("archived_at")
"""For a memory that was declared."""


def in_force(relation: str) -> Predicate | None:
    """Return the condition under which a record of a built-in relation counts; None where each does."""
    return _OF.get(relation)
