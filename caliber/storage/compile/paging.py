"""Full scan of a relation in pages inside one session, ordered by ordinal or key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, Final

from caliber.schema.relation import ColumnType, Relation
from caliber.storage.compile.codec import Row, last_of
from caliber.storage.compile.plan import Plan, RelationPlans
from caliber.storage.compile.session import StatementSession

_LEAST: Final[dict[ColumnType, Any]] = {
    ColumnType.INT: -(2**63),
    ColumnType.BYTES: b"",
    ColumnType.UUID: bytes(16),  # PostgreSQL takes no shorter one, and nothing has this
}
"""Values before all others; before texts and values kept as text that is the empty text."""


def filled(session: StatementSession, relations: Sequence[RelationPlans]) -> set[str]:
    """Return the names of those relations that have rows, by one statement: most are empty in most stores."""
    # By maps, and no comprehension: opening a tenant pays for each call of a function.
    parts = "), (".join(map(attrgetter("any.sql"), relations))
    (found,) = session.run(Plan("filled", f"SELECT ({parts})", (), is_kept=False), ())
    return set(map(attrgetter("relation.name"), compress(relations, found)))


def pages(session: StatementSession, plans: RelationPlans, rows: int) -> Iterator[list[Row]]:
    """Yield every row that a session sees, as the driver stores it, at most ``rows`` at a time."""
    relation: Relation = plans.relation
    after: tuple[Any, ...] = (-1,)
    if not relation.ordinal:
        after = tuple(_LEAST.get(relation.column(name).type, "") for name in relation.key)
    while True:
        page = session.run(plans.page, (*after, rows))
        if page:
            yield page
        if len(page) < rows:
            return
        after = (last_of(page, after[0]),) if relation.ordinal else plans.codec.key_of(page[-1])
