"""A week of an agent's work under policies, with a clock that is set: what is done, and what the log says of it.

Everything that happens is said by the plan alone, so that every database is to leave the same log.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import caliber
from caliber.config import CaliberConfig
from caliber.model.errors import CaliberError
from caliber.model.time import to_us
from support.configs import USER
from support.inspection import inspect
from support.providers import ScriptedSummarizer

MONDAY = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIMING = ("duration_ms", "took_ms", "position")


class SetClock:
    """A clock that tests set, forward or back."""

    def __init__(self, at: datetime = MONDAY) -> None:
        self.at = at

    def now_us(self) -> int:
        return to_us(self.at)


@dataclass
class Week:
    """Works through a week; ``tasks`` a day, looking for what is due every ``look_hours``.

    On Wednesday afternoon the store is closed and opened again while a task is under way, on Friday nothing looks
    for what is due from midnight to noon, and on Tuesday the provider fails for half of the day.
    """

    open: Callable[[CaliberConfig, SetClock, ScriptedSummarizer], caliber.Caliber]
    config: CaliberConfig
    tasks: int
    look_hours: int
    days: int = 7
    done: Counter[str] = field(default_factory=Counter)

    def run(self) -> caliber.Caliber:
        """Do it all, and return the store as it is left."""
        self._clock, self._summarizer = SetClock(), ScriptedSummarizer()
        self._memory = self.open(self.config, self._clock, self._summarizer)
        self._memory.jobs.run_due()
        self._long = self._step(lambda: self._memory.start_trajectory("goes on all week", initiator=USER))
        self.done["task_start"] += 1
        for day in range(self.days):
            every = max(24 // self.tasks, 1)
            for hour in range(24):
                self._clock.at = MONDAY + (24 * day + hour) * HOUR
                if hour % self.look_hours == 0 and not (day == 4 and hour < 12):
                    self._step(self._memory.jobs.run_due)
                self._summarizer.failing = {"summarize", "extract_artifacts"} if day == 1 and 3 <= hour < 15 else set()
                if hour % every == every // 2 and hour // every < self.tasks:
                    self._task(day, hour, last=hour // every == self.tasks - 1)
        self._clock.at = MONDAY + 24 * self.days * HOUR
        self._step(self._memory.jobs.run_due)
        return self._memory

    def _step(self, call: Callable[[], Any]) -> Any:
        """Do one thing; no two happen at the same time, so that the log says which was first."""
        self._clock.at += SECOND
        return call()

    def _task(self, day: int, hour: int, *, last: bool) -> None:
        """Do one task in a session of its own; the last of a day ends it before the task is over."""
        session = self._step(lambda: self._memory.start_session(initiator=USER)).session_id
        task = self._step(
            lambda: self._memory.start_trajectory(f"task of {day} at {hour}", initiator=USER, session=session)
        )
        self.done["task_start"] += 1
        scope = self._memory.current_scope(task.trajectory_id)
        for part in range(2 if self.tasks > 1 or day < 3 else 1):
            if part:
                scope = self._step(lambda: self._memory.open_scope(task.trajectory_id))
            self._talk(task, scope, f"{day}.{hour}.{part}")
            if day == 2 and part == 0 and hour >= 12 and not self.done["restarts"]:
                self._memory.close()
                self._memory = self.open(self.config, self._clock, self._summarizer)
                self.done["restarts"] += 1
            self._step(lambda scope=scope: self._memory.close_scope(scope.scope_id))
            self.done["scope_close"] += 1
        ongoing = self._memory.current_scope(self._long.trajectory_id)
        self._step(lambda: self._memory.append_turn(ongoing.scope_id, role="user", content=f"by the way {day}.{hour}"))
        self.done["turn"] += 1
        if last:
            self._step(lambda: self._memory.end_session(session))
        self._step(lambda: self._memory.complete_trajectory(task.trajectory_id, status="success", summary="done"))
        self.done["task_end"] += 1

    def _talk(self, task: Any, scope: Any, name: str) -> None:
        memory = self._memory
        for role, text in (("user", f"KEEP what was said in {name}"), ("assistant", f"answer of {name}")):
            self._step(lambda role=role, text=text: memory.append_turn(scope.scope_id, role=role, content=text))
            self.done["turn"] += 1
        for confidence in (0.1, 0.35, 0.9):
            self._step(
                lambda confidence=confidence: memory.add_note(
                    entity=f"thing {name[0]}", entity_type="topic", note_type="fact", confidence=confidence,
                    content=f"note {name} {confidence}", source_trajectory_ids=[task.trajectory_id],
                )
            )  # fmt: skip
        self._step(
            lambda: memory.create_artifact(
                scope.scope_id, artifact_type="fact", content=f"artifact {name}", extraction_method="explicit",
                confidence=0.4 if name.endswith("1") else 0.6,
            )
        )  # fmt: skip
        for own in ("scratch", "visit", "finding", "recipe", "digest", "principle"):
            self._own(own, task, scope, f"{own} {name}")
        self._step(lambda: memory.assemble_context(task.trajectory_id, query="what was said"))

    def _own(self, name: str, task: Any, scope: Any, content: str) -> None:
        fields: dict[str, Any] = {"content": content}
        if name == "finding" and content.endswith("1"):
            fields["confidence"] = 0.2
        own = self._memory.records(name)
        self._step(lambda: own.insert(fields, trajectory=task.trajectory_id, scope=scope.scope_id))


def log_of(memory: caliber.Caliber) -> list[tuple[Any, ...]]:
    """Return the event log without what must differ: ids are numbered as they appear, times taken are left out."""
    memory.flush()
    lines = []
    for event in memory.storage.events.all():
        payload = {name: value for name, value in event.payload.items() if name not in _TIMING}
        line = (
            event.created_at.isoformat(), event.event_type, str(event.principal),
            json.dumps([payload, event.trajectory_id, event.scope_id, event.subject_id], sort_keys=True, default=str),
        )  # fmt: skip
        lines.append(line)
    # What is written with a change and what is written behind it are told in the order of what they say.
    lines.sort(key=lambda line: (*line[:3], _ID.sub("", line[3])))
    known: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return known.setdefault(found[0], f"<{len(known)}>")

    return [(*line[:3], _ID.sub(number, line[3])) for line in lines]


def kept_of(memory: caliber.Caliber) -> dict[str, list[str]]:
    """Return the active records, by memory."""
    storage = memory.storage
    out = {
        "turn_buffer": [turn.text for turn in storage.turns.all()],
        "artifact": [item.text for item in storage.artifacts.all() if item.retired_at is None],
        "note": [note.content for note in storage.notes.all() if note.active],
    }
    for name, own in inspect(memory).store.catalog.memories.items():
        snapshot = inspect(memory).resident.snapshot[own.relation.name]
        rows = [row for row in range(len(snapshot.live_mask)) if snapshot.live_mask[row]]
        found = [inspect(memory).resident.entity(snapshot, row) for row in rows]
        out[name] = [item.content for item in found if item.archived_at is None]
    return {name: sorted(found) for name, found in out.items()}


__all__ = ["CaliberError", "SetClock", "Week", "kept_of", "log_of"]
