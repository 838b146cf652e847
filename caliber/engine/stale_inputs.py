"""Error ``StaleInputs`` (sources that a provider used were changed), and the check that nothing was erased.

A provider takes seconds. The transaction that writes a summary checks whether anything was erased since the sources
were read; if so, the summary is made again from the remaining sources. Source: decisions 0135, 0172.
"""

from __future__ import annotations

from caliber.engine.engine import Engine
from caliber.model.errors import Conflict
from caliber.schema.relations import ERASURE
from caliber.storage.write.unit_of_work import UnitOfWork


class StaleInputs(Conflict):
    """Prepared work no longer fits the store: prepare it again."""


def erasures(engine: Engine) -> int:
    """Return how often something was erased from the store; asked before the sources are read. Raises: Unavailable."""
    engine.check_open()
    with engine.store.read() as session:
        count: int = session.run(engine.store.plans[ERASURE.name].count, ())[0][0]
    return count


def check_erasures(uow: UnitOfWork, before: int | None, now: int | None = None) -> None:
    """Refuse to write a result whose sources were read before an erasure; ``now`` is the number of erasures.

    Raises: StaleInputs.
    """
    if before is not None and (uow.count(ERASURE) if now is None else now) != before:
        raise StaleInputs(entity_type=ERASURE.name, reason="a record was forgotten while a provider worked on it")
