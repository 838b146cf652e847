"""Three agents plan, build and review a Python module, and share nothing but a store. Offline: the agents are scripted.

    python examples/team.py [FOLDER]

The lead plans and delegates, the builder writes durations.py, the reviewer tests it and takes the task over. The store,
its configuration and the module are in FOLDER (./team). At the end `caliber trace` and `caliber explain` show the work.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import caliber

CONFIG = 'base = "reference"\n\n[storage]\nadapter = "sqlite"\npath = "team.db"\n'
WAIT_MS = 60_000
RULE = "An empty text is no duration: seconds() raises ValueError for it."
FIRST = '''import re


def seconds(text: str) -> int:
    """Return the seconds of a duration such as 1h30m."""
    return sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in re.findall(r"(\\d+)([hms])", text))
'''
SECOND = FIRST.replace("    return", '    if not text:\n        raise ValueError("a duration is empty")\n    return')
TESTS = """import unittest

from durations import seconds


class Durations(unittest.TestCase):
    def test_units_add_up(self):
        self.assertEqual(seconds("1h30m"), 5400)

    def test_an_empty_text_is_refused(self):
        with self.assertRaises(ValueError):
            seconds("")
"""


def say(me: caliber.Caliber, task: uuid.UUID, text: str) -> uuid.UUID:
    """Append a turn to a task; return the scope that it is in."""
    scope = me.current_scope(task)
    assert scope is not None  # a task that is active has one
    return me.append_turn(scope.scope_id, role="assistant", content=text).scope_id


def lead(me: caliber.Caliber) -> tuple[uuid.UUID, uuid.UUID | None]:
    """Plan the task, delegate the building, hand the rest over; return the task, and that of the builder."""
    task = me.start_trajectory("A module that reads durations").trajectory_id
    say(me, task, "Plan: the builder writes durations.py, the reviewer tests it.")
    rule = me.add_note(
        entity="durations.py", entity_type="file", content=RULE, confidence=1.0, visible_to=["agent:lead"]
    )
    given = me.agents.delegations.delegate(
        "Write durations.py", parent=task, to_type="builder", notes=[rule.note_id], constraints=["no dependencies"]
    )
    me.agents.messages.request({"delegation": str(given.delegation_id)}, to_type="builder", timeout_ms=WAIT_MS)
    built = me.agents.delegations.get(given.delegation_id)
    summary = "" if built.result is None else built.result.summary
    say(me, task, f"The builder: {summary}")
    handoff = me.agents.handoffs.initiate(
        task, to="reviewer", reason="The module is built.", notes=summary, next_steps=["Release durations.py"]
    )
    me.agents.messages.send({"handoff": str(handoff.handoff_id)}, to="reviewer")
    return task, built.child_trajectory_id


def build(me: caliber.Caliber, folder: Path) -> None:
    """Accept the delegation, write the module, and mend it until the reviewer is content."""
    messages, delegations = me.agents.messages, me.agents.delegations
    for message in messages.listen(idle_ms=WAIT_MS):
        work = delegations.accept(message.payload["delegation"])
        assert work.child_trajectory_id is not None  # accepting began a task for the builder
        delegations.start(work.delegation_id)
        scope = say(me, work.child_trajectory_id, "I write durations.py.")
        me.assemble_context(work.child_trajectory_id, query="What is a duration?")  # a model would get this window
        produced, verdict = [], {"findings": ""}
        for code in (FIRST, SECOND):  # and would write this code
            with me.agents.locks.hold("durations.py", wait_ms=WAIT_MS) as token:
                (folder / "durations.py").write_text(code, encoding="utf-8")
                made = me.create_artifact(
                    scope, artifact_type="code_patch", content=code, extraction_method="explicit", guard=token
                )
            produced.append(made.artifact_id)
            question, about = {"review": str(made.artifact_id)}, work.child_trajectory_id
            verdict = messages.request(question, to="reviewer", timeout_ms=WAIT_MS, trajectory_id=about).payload
            say(me, work.child_trajectory_id, f"The reviewer: {verdict['findings']}")
            if verdict["passed"]:
                break
        delegations.complete(work.delegation_id, summary=f"durations.py: {verdict['findings']}", artifacts=produced)
        messages.reply(message, "done")
        return


def review(me: caliber.Caliber, folder: Path) -> uuid.UUID:
    """Test each version that the builder sends, then take the task over and end it; return the last window."""
    messages, handoffs = me.agents.messages, me.agents.handoffs
    for message in messages.listen(idle_ms=WAIT_MS):
        if "review" in message.payload:
            with me.agents.locks.hold("durations.py", mode="shared", wait_ms=WAIT_MS):
                (folder / "test_durations.py").write_text(TESTS, encoding="utf-8")
                command = [sys.executable, "-m", "unittest", "test_durations"]
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
            findings = done.stderr.splitlines()[-1]  # "OK", or the number of failures
            messages.reply(message, {"passed": done.returncode == 0, "findings": findings})
        else:
            task = handoffs.accept(message.payload["handoff"]).trajectory_id
            window = me.assemble_context(task, query="What is to be done?")
            say(me, task, "Released durations.py.")
            handoffs.complete(message.payload["handoff"])
            me.complete_trajectory(task, status="success", summary="durations.py is built, reviewed and released.")
            messages.ack(message)
            return window.window_id
    raise TimeoutError("no message came")


def run(memory: caliber.Caliber, folder: Path) -> tuple[uuid.UUID, uuid.UUID | None, uuid.UUID]:
    """Let the agents work, two of them in threads; return the task, the builder's part, and the reviewer's window."""
    memory.agents.register("lead", type="lead", can_delegate_to=["builder"])
    memory.agents.register("builder", type="builder", reports_to="lead", capabilities=["python"])
    memory.agents.register("reviewer", type="reviewer", reports_to="lead")
    me = {name: memory.as_agent(name) for name in ("lead", "builder", "reviewer")}
    with ThreadPoolExecutor(2) as threads:
        building = threads.submit(build, me["builder"], folder)
        reviewing = threads.submit(review, me["reviewer"], folder)
        task, part = lead(me["lead"])
        building.result()
        return task, part, reviewing.result()


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "team.toml"
    settings.write_text(CONFIG, encoding="utf-8")
    with caliber.open(caliber.load_config(settings), create=True) as memory:
        task, part, window = run(memory, folder)
    for command in (["trace", str(task)], ["trace", str(part)], ["explain", str(window)]):
        print(f"\n$ caliber --config {settings} {' '.join(command)}", flush=True)
        subprocess.run([sys.executable, "-m", "caliber", "--config", str(settings), *command], check=True)  # noqa: S603


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "team"))
