"""Error ``StaleInputs`` (sources that a provider used were changed), and the check that nothing was erased.

A provider takes seconds. The transaction that writes a summary checks whether anything was erased since the sources
were read; if so, the summary is made again from the remaining sources. Source: decisions 0135, 0172.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final

from caliber.engine.engine import Engine
from caliber.model.errors import Conflict
from caliber.model.trajectory import Turn
from caliber.schema.relations import ERASURE, TURN
from caliber.storage.write.unit_of_work import UnitOfWork

_FEW: Final = 8
"""Turns that are looked up one by one, not with their whole scope."""


class StaleInputs(Conflict):
    """Prepared work no longer fits the store: prepare it again."""


def erasures(engine: Engine) -> int:
    """Return how often something was erased from the store; asked before the sources are read. Raises: Unavailable."""
    engine.check_open()
    with engine.store.read() as session:
        count: int = session.run(engine.store.plans[ERASURE.name].count, ())[0][0]
    return count


def check_turns(uow: UnitOfWork, turns: Iterable[Turn]) -> None:
    """Refuse to write a result that was drawn from turns of which one was deleted since. Raises: StaleInputs."""
    drawn: dict[uuid.UUID, set[uuid.UUID]] = {}
    for turn in turns:
        drawn.setdefault(turn.scope_id, set()).add(turn.turn_id)
    for scope_id, ids in drawn.items():
        if len(ids) > _FEW:
            gone = ids - {turn.turn_id for turn in uow.select_path(TURN, "list_by_scope", scope_id.bytes)}
        else:
            gone = {key for key in ids if uow.find(TURN, key.bytes) is None}
        if gone:
            raise StaleInputs(entity_type=TURN.name, reason="a turn was deleted while a provider worked on it")


def check_erasures(uow: UnitOfWork, before: int | None, now: int | None = None) -> None:
    """Refuse to write a result whose sources were read before an erasure; ``now`` is the number of erasures.

    Raises: StaleInputs.
    """
    if before is not None and (uow.count(ERASURE) if now is None else now) != before:
        raise StaleInputs(entity_type=ERASURE.name, reason="a record was forgotten while a provider worked on it")
