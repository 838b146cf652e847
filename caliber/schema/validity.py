"""Rules for active and currently valid records, from their traits: predicates, and checks of one record.

``storage.compile.predicates`` compiles them to SQL conditions, ``resident.validity`` computes masks of the same traits;
tests compare both. Source: K-080, C-452, C-453.
"""

from __future__ import annotations

import functools
from datetime import datetime
from typing import Any

from caliber.schema.predicate import OPEN_BOUNDS, Comparison, Either, Operator, Predicate, Variable, all_of
from caliber.schema.relation import Relation


@functools.lru_cache(maxsize=512)
def active(relation: Relation) -> Predicate | None:
    """Return the condition under which a record is active; None if all are."""
    return all_of(*(_unset(name) for name in relation.active))


@functools.lru_cache(maxsize=512)
def validity(relation: Relation, *, archived: bool = False) -> Predicate | None:
    """Return the condition under which a record counts now (``now()``), ``archived`` ones too; None: each does."""
    parts: list[Predicate] = [_unset(name) for name in relation.active if not archived or name != relation.archive]
    bounds = ((relation.times.since, Operator.AT_MOST), (relation.times.until, Operator.GREATER))
    parts += [_bound(name, operator) for name, operator in bounds if name is not None]
    return all_of(*parts)


def _unset(column: str) -> Comparison:
    return Comparison(column, Operator.EQUAL, None)


def _bound(column: str, operator: Operator) -> Predicate:
    kept = Comparison(column, operator, Variable.NOW)
    return kept if column in OPEN_BOUNDS else Either((_unset(column), kept))


def is_active(relation: Relation, record: Any) -> bool:
    """Return whether a record is active."""
    return all(getattr(record, name) is None for name in relation.active)


def is_valid(relation: Relation, record: Any, at: datetime) -> bool:
    """Return whether a record is active and valid at an instant."""
    return why_not(relation, record, at) is None


def why_not(relation: Relation, record: Any, at: datetime, now: datetime | None = None) -> tuple[str, str] | None:
    """Return why a record is not active or valid at an instant, in a word and a sentence; None if it is.

    Retirement after ``now``, if given, is no reason.
    """
    replaced = None if relation.ends is None else relation.ends.supersede
    for name in relation.active:
        value = getattr(record, name)
        if value is None:
            continue
        if name == replaced:
            return "superseded", f"{relation.name} {value} superseded it"
        if now is None or value <= now:
            word = name.removesuffix("_at")
            return word, f"it was {word.replace('_', ' ')} at {value.isoformat()}"
    times = relation.times
    since = None if times.since is None else getattr(record, times.since)
    until = None if times.until is None else getattr(record, times.until)
    if since is not None and since > at:
        return "not_yet_valid", f"it holds from {since.isoformat()}, not yet at {at.isoformat()}"
    if until is not None and until <= at:
        return "expired", f"it held until {until.isoformat()}, no longer at {at.isoformat()}"
    return None


def asked_us(relation: Relation, as_of_us: int, now_us: int) -> int:
    """Return the instant at which a record must hold: ``as_of`` moves valid time, and nothing else."""
    return as_of_us if relation.times.as_of else now_us
