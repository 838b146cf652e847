"""Relations kept in memory even with ``search.mode = "backend"``, and the error for reading any other there.

Source: design, section 5; docs/decisions/0209.
"""

from __future__ import annotations

from caliber.model.errors import Unavailable
from caliber.schema.relation import Relation
from caliber.schema.relations import MIRRORED

FRAME: tuple[Relation, ...] = tuple(relation for relation in MIRRORED if relation.resident.framed)
"""The relations in memory of a tenant whose records are not: tasks, scopes, pending injections, spaces."""


def not_resident(relation: str) -> Unavailable:
    """Return the error for a read of a relation that is not in memory."""
    return Unavailable(
        f'this call reads every {relation} from memory, and search.mode = "backend" keeps none there; use search() and'
        ' get(), or open the store with search.mode = "resident"',
        reason="not_resident",
        retryable=False,
    )
