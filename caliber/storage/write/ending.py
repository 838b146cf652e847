"""Retirement of records as their relation declares it: one is archived, or given ones archived or deleted.

Source: C-157, C-228, K-063, K-095, K-190.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from typing import Any

from caliber.model.errors import InternalError, NotFound
from caliber.model.time import from_us
from caliber.schema.relation import Relation
from caliber.schema.traits import Pruned
from caliber.schema.validity import is_active
from caliber.storage.write.unit_of_work import UnitOfWork


def archive(uow: UnitOfWork, relation: Relation, record: Any) -> Any:
    """Take a record out of use: it stays in the store, out of windows and searches. Return it as it is stored."""
    if relation.ends is None or relation.ends.archive is None:
        raise InternalError(f"records of {relation.name} are not archived")
    column = relation.ends.archive
    if getattr(record, column) is not None:
        return record
    now = from_us(uow.now_us)
    return uow.update(relation, dataclasses.replace(record, **{column: now, "updated_at": now}))


def prune(uow: UnitOfWork, relation: Relation, records: Iterable[Any]) -> int:
    """Archive or delete records of a relation, as its retention declares; return the number of them.

    Deleted records keep their content for replay; another process may have deleted some already.
    """
    if relation.ends is None:
        raise InternalError(f"retention does not reach records of {relation.name}")
    count = 0
    for record in records:
        if relation.ends.pruned is Pruned.DELETED:
            with contextlib.suppress(NotFound):
                uow.delete(relation, record)
                count += 1
        elif is_active(relation, record):
            archive(uow, relation, record)
            count += 1
    return count
