"""Check whether a tenant's records are kept in memory (``search.mode``), and the reduced memory if not.

Source: design, section 5; docs/decisions/0082.
"""

from __future__ import annotations

from caliber.model.errors import Unavailable
from caliber.schema.relation import Relation
from caliber.schema.relations import MIRRORED

FRAME: tuple[Relation, ...] = tuple(relation for relation in MIRRORED if relation.framed)
"""What stays in memory where records do not fit: tasks, their stretches, what waits for their windows, and spaces."""


def not_resident(relation: str) -> Unavailable:
    """Return the error of what reads a relation from memory that is not there."""
    return Unavailable(
        f'this call reads every {relation} from memory, and search.mode = "backend" keeps none there; use search() and'
        ' get(), or open the store with search.mode = "resident"',
        reason="not_resident",
        retryable=False,
    )
