"""What was forgotten while something was being made of it does not come back by what was made.

A provider takes seconds to sum up what it is given. Who writes what came of that asks in the same transaction whether
anything was erased since the sources were read; if so, it is made again of what is left. Source: decisions 0135, 0172.
"""

from __future__ import annotations

from caliber.runtime.engine import Engine
from caliber.runtime.policies.notes import Changed
from caliber.schema.relations import ERASURE
from caliber.storage.unit_of_work import UnitOfWork


def erasures(engine: Engine) -> int:
    """Return how often something was erased from the store; asked before the sources are read. Raises: Unavailable."""
    engine.check_open()
    with engine.store.read() as session:
        count: int = session.run(engine.store.plans[ERASURE.name].count, ())[0][0]
    return count


def check_erasures(uow: UnitOfWork, before: int | None, now: int | None = None) -> None:
    """Refuse to write what was made of sources that were read before an erasure; ``now`` is how many there are.

    Raises: Changed.
    """
    if before is not None and (uow.count(ERASURE) if now is None else now) != before:
        raise Changed(entity_type=ERASURE.name, reason="something was forgotten while a provider was asked about it")
