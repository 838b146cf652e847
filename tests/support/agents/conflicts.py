"""A task with two notes that contradict each other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from support.databases import Backend
from support.weeks import SetClock

GROUNDING = {"require_source_for_facts": False, "confidence_threshold": 0.0, "stale_data_max_age_ms": 10**12}


def grounding(strategy: str = "manual") -> dict[str, Any]:
    return {**GROUNDING, "conflict_resolution": strategy}


class Pair:
    """A task with two notes that contradict each other; the first is surer, the second is newer."""

    def __init__(self, start: Any, backend: Backend, clock: SetClock, strategy: str = "manual", **options: Any) -> None:
        self.clock = clock
        self.agent = start(backend.open(clock=clock, pcp__grounding=grounding(strategy), **options))
        self.memory = self.agent.memory
        self.surer = self.home("Berlin", confidence=0.9)
        clock.at += timedelta(microseconds=1_000_000)
        self.newer = self.home("Lisbon", confidence=0.6)
        self.memory.flush()

    def home(self, place: str, **options: Any) -> Any:
        content = f"Nadia lives in {place}."
        source = [self.agent.trajectory_id]
        return self.agent.note(content, entity="Nadia", entity_type="person", source_trajectory_ids=source, **options)

    def record(self) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self.memory.pcp.validate(self.agent.trajectory_id, record=True).conflicts
        return found

    def conflict(self) -> Any:
        (found,) = self.record()
        return found

    def note(self, note: Any) -> Any:
        return self.memory.get(note.note_id)
