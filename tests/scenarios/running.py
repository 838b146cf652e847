"""Runs written scenarios: what was said and kept, a question, and what the window must and must not hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import caliber
from caliber import EntityRef
from caliber.model.access import Principal, PrincipalKind

sys.path.insert(0, str(Path(__file__).parent))
import fillers

HERE = Path(__file__).parent
_ARTIFACTS = {
    "code": "code_patch",
    "decision": "design_decision",
    "preference": "user_preference",
    "fact": "fact",
    "error": "error_log",
    "document": "custom",
    "plan": "custom",
}


@dataclass(frozen=True)
class Outcome:
    """One window of a scenario: what it lacks of what it must hold, and holds of what it must not."""

    scenario: str
    category: str
    budget: int
    missing: tuple[str, ...]
    unwanted: tuple[str, ...]
    used_tokens: int
    text: str

    @property
    def right(self) -> bool:
        return not self.missing and not self.unwanted


def load(name: str) -> list[dict[str, Any]]:
    """Return the scenarios of a file beside this one."""
    loaded: list[dict[str, Any]] = json.loads((HERE / name).read_text(encoding="utf-8"))
    return loaded


def owner_of(name: str) -> EntityRef:
    return EntityRef.user(name)


class _Run:
    def __init__(self, memory: Any, scenario: Mapping[str, Any]) -> None:
        self.memory = memory
        self.scenario = scenario
        self.tasks: dict[str, Any] = {}
        self.owners: dict[str, str] = {}
        self.notes: dict[str, Any] = {}
        self.at: datetime | None = None
        self.calls = 0

    def scope(self, task: str) -> Any:
        found = self.memory.current_scope(self.tasks[task])
        return found if found is not None else self.memory.open_scope(self.tasks[task])

    def time(self, step: Mapping[str, Any]) -> datetime | None:
        if step.get("at"):
            self.at = datetime.fromisoformat(step["at"].replace("Z", "+00:00"))
        elif self.at is not None:
            self.at += timedelta(seconds=20)
        return self.at

    def append(self, task: str, turns: list[dict[str, Any]]) -> None:
        for turn in turns:
            if turn.get("occurred_at") is None:
                turn.pop("occurred_at", None)
        self.memory.append_turns(self.scope(task).scope_id, turns)

    def step(self, step: Mapping[str, Any]) -> None:
        getattr(self, f"do_{step['do']}")(step)

    def do_task(self, step: Mapping[str, Any]) -> None:
        task = self.memory.start_trajectory(step["goal"], initiator=owner_of(step["owner"]))
        self.tasks[step["task"]] = task.trajectory_id
        self.owners[step["task"]] = step["owner"]

    def do_turn(self, step: Mapping[str, Any]) -> None:
        turn: dict[str, Any] = {
            "role": step["role"],
            "content": step["content"],
            "name": step.get("name"),
            "occurred_at": self.time(step),
        }
        if step.get("tool_calls"):
            turn["tool_calls"] = [caliber.ToolCall(c["id"], c["name"], c["arguments"]) for c in step["tool_calls"]]
        if step.get("tool_call_id"):
            turn["tool_call_id"] = step["tool_call_id"]
        self.append(step["task"], [turn])

    def do_filler(self, step: Mapping[str, Any]) -> None:
        turns = []
        for asked, answer in fillers.exchanges(step["style"], step["exchanges"], step["words"], step["seed"]):
            turns.append({"role": "user", "content": asked, "occurred_at": self.time({})})
            turns.append({"role": "assistant", "content": answer, "occurred_at": self.time({})})
        self.append(step["task"], turns)

    def do_tool_output(self, step: Mapping[str, Any]) -> None:
        self.calls += 1
        key, name = f"call_out_{self.calls}", step.get("name") or "run"
        output = fillers.tool_output(step["style"], step["bytes"], step["seed"])
        call = caliber.ToolCall(key, name, "{}")
        turns = [
            {"role": "assistant", "content": "", "tool_calls": [call], "occurred_at": self.time({})},
            {"role": "tool", "content": output, "name": name, "tool_call_id": key, "occurred_at": self.time({})},
        ]
        self.append(step["task"], turns)

    def do_artifact(self, step: Mapping[str, Any]) -> None:
        scope = self.scope(step["task"])
        self.memory.create_artifact(
            scope.scope_id,
            artifact_type=_ARTIFACTS.get(step["type"], "custom"),
            content=step["content"],
            extraction_method="explicit",
        )

    def do_note(self, step: Mapping[str, Any]) -> None:
        owner = step.get("owner")
        note = self.memory.add_note(
            entity=step["entity"],
            entity_type="user",
            note_type="fact",
            content=step["content"],
            confidence=step.get("confidence") or 0.9,
            visible_to=None if owner is None else [f"human:{owner}"],
        )
        self.notes[step["key"]] = note
        earlier = step.get("supersedes")
        if earlier:
            self.memory.storage.notes.update(self.notes[earlier].note_id, superseded_by=note.note_id)

    def do_close_scope(self, step: Mapping[str, Any]) -> None:
        self.memory.close_scope(self.scope(step["task"]).scope_id)

    def do_complete_task(self, step: Mapping[str, Any]) -> None:
        self.memory.complete_trajectory(self.tasks[step["task"]], status="success", summary=step["summary"])


def run(scenario: Mapping[str, Any], *, flush: bool = True, **overrides: Any) -> Iterator[Outcome]:
    """Yield what each budget's window of a scenario holds."""
    overrides = {"resident.feed_poll_ms": 0, **overrides}
    profile = caliber.profiles.PROFILES[scenario["profile"]]
    config = profile(":memory:", **overrides)
    with caliber.open(config, principal=caliber.Principal.admin()) as memory:
        running = _Run(memory, scenario)
        for step in scenario["steps"]:
            running.step(step)
        ask = scenario["ask"]
        turn = {"do": "turn", "task": ask["task"], "role": "user", "content": ask["question"], "at": ask.get("at")}
        running.step(turn)
        if flush:
            memory.flush()
        who = Principal(PrincipalKind.HUMAN, running.owners[ask["task"]])
        asker = memory.acting_as(who)
        for budget in scenario["budgets"]:
            window = asker.assemble_context(running.tasks[ask["task"]], max_tokens=min(budget, config.token_budget))
            text = window.text.casefold()
            missing = tuple(
                " | ".join(wanted)
                for wanted in scenario["must_hold"]
                if not any(one.casefold() in text for one in wanted)
            )
            unwanted = tuple(word for word in scenario["must_not_hold"] if word.casefold() in text)
            yield Outcome(
                scenario["id"], scenario["category"], budget, missing, unwanted, window.used_tokens, window.text
            )


def main(name: str) -> int:
    """Print what went wrong in the scenarios of a file, and how many went right."""
    windows = [outcome for scenario in load(name) for outcome in run(scenario)]
    wrong = [outcome for outcome in windows if not outcome.right]
    for outcome in wrong:
        print(outcome.scenario, outcome.category, outcome.budget, "lacks", outcome.missing, "holds", outcome.unwanted)
    scenarios = {outcome.scenario for outcome in windows}
    failed = {outcome.scenario for outcome in wrong}
    print(f"windows right: {len(windows) - len(wrong)} of {len(windows)}")
    print(f"scenarios right: {len(scenarios) - len(failed)} of {len(scenarios)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "open.json"))
