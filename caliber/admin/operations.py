"""Figures of the operations that all processes recorded in the event log of a store of late."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Final

from caliber.engine.engine import Engine
from caliber.model.events import Event, EventFamily, EventType
from caliber.model.storage import OperationStats
from caliber.schema.relations import EVENT

_MOST: Final = 100_000


def recent_operations(engine: Engine, window_ms: int) -> list[OperationStats]:
    """Return figures of the operations that ended within the last ``window_ms``, the most frequent first."""
    since_us = engine.clock.now_us() - window_ms * 1_000
    decode = engine.store.plans[EVENT.name].codec.decode
    with engine.store.read() as session:
        rows = session.run(engine.store.statements["event.recent"], (EventFamily.ACTIVITY.value, since_us, _MOST))
    by_name: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in map(decode, rows):
        if event.event_type == EventType.OPERATION:
            by_name[event.payload["kind"], event.payload["operation"]].append(event)
    found = [_figures(kind, name, events, window_ms) for (kind, name), events in by_name.items()]
    return sorted(found, key=lambda each: (-each.per_second, each.kind, each.operation))


def _figures(kind: str, name: str, events: list[Event], window_ms: int) -> OperationStats:
    took = sorted(event.payload["duration_us"] for event in events)
    return OperationStats(
        operation=name,
        kind=kind,
        recorded=len(events),
        per_second=sum(1 / event.payload["share"] for event in events) * 1_000 / window_ms,
        p50_us=_quantile(took, 0.5),
        p95_us=_quantile(took, 0.95),
        max_us=took[-1],
        errors=sum("error" in event.payload for event in events),
    )


def _quantile(ordered: list[int], share: float) -> int:
    """Return the value that a share of sorted values does not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]
