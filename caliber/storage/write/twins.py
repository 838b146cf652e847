"""Uniqueness check before an update: finds a row that already holds the new unique values."""

from __future__ import annotations

from caliber.storage.compile.codec import Row
from caliber.storage.compile.plan import RelationPlans
from caliber.storage.compile.session import StatementSession


def has_twin(session: StatementSession, plans: RelationPlans, old: Row, new: Row) -> bool:
    """Return whether a row that changes to ``new`` would hold values that another row holds, and one row may hold."""
    place = plans.codec.index
    for unique in plans.relation.uniques:
        if all(old[place(name)] == new[place(name)] for name in (*unique.columns, *dict(unique.where))):
            continue
        values = [new[place(name)] for name in unique.columns]
        if None in values or any((new[place(name)] is None) != is_null for name, is_null in unique.where):
            continue
        if any(row[0] != old[0] for row in session.run(plans.unique[unique.columns], values)):
            return True
    return False
