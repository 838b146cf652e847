"""The team example: three agents on every database, and the program itself. Source: issue 18, Done when."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.databases import Backend

import caliber
from caliber.model import Principal

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "team.py"
_SPEC = importlib.util.spec_from_file_location("team", EXAMPLE)
assert _SPEC is not None
assert _SPEC.loader is not None
team = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = team
_SPEC.loader.exec_module(team)


@pytest.mark.databases("all")
def test_three_agents_build_a_module(backend: Backend, tmp_path: Path) -> None:
    memory = backend.open(principal=Principal.admin(), write_behind__trace_enabled=True)
    folder = tmp_path / "built"
    folder.mkdir()
    task, part, window = team.run(memory.acting_as(Principal.application()), folder)
    memory.flush()

    assert (folder / "durations.py").read_text(encoding="utf-8") == team.SECOND
    (delegation,) = memory.agents.delegations.list()
    assert (delegation.status, delegation.child_trajectory_id) == ("completed", part)
    assert delegation.result.summary == "durations.py: OK"
    versions = [memory.get(each) for each in delegation.result.produced_artifacts]
    assert [each.content.decode() for each in versions] == [team.FIRST, team.SECOND]
    (handoff,) = memory.agents.handoffs.list()
    assert (handoff.status, handoff.trajectory_id) == ("completed", task)
    assert memory.pcp.task_state(task).trajectory.status == "completed"
    assert memory.agents.locks.list() == []
    assert {each.outcome for each in memory.agents.messages.list()} == {"acknowledged"}

    events = [event.event_type for event in memory.trace(part)]
    for kind in ("delegation_accept", "message_send", "context_assemble", "delegation_complete", "trajectory_complete"):
        assert kind in events, kind
    included = [memory.get(each["id"]).content.decode() for each in memory.explain(window)["inclusions"]]
    assert any("Release durations.py" in each for each in included)


@pytest.mark.databases("one")
def test_the_note_is_shared_with_the_builder_alone(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = backend.open(principal=Principal.application())
    seen: dict[str, Any] = {}
    complete = team.say

    def say(me: caliber.Caliber, task: Any, text: str) -> Any:
        if text.startswith("I write"):
            reviewer = memory.acting_as(Principal.agent("reviewer"))
            for who, each in (("builder", me), ("reviewer", reviewer)):
                seen[who] = [hit.content for hit in each.search("empty text", kinds=["note"]).hits]
        return complete(me, task, text)

    monkeypatch.setattr(team, "say", say)
    team.run(memory, tmp_path)
    assert seen == {"builder": [team.RULE], "reviewer": []}


@pytest.mark.prove
def test_the_program_shows_its_story(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLE)]
    for _ in range(2):  # also with the store of an earlier run
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        parts = done.stdout.split("$ caliber")
        assert len(parts) == 4
        for part, texts in (
            (parts[1], ("work is delegated (delegator lead)", "receiver reviewer", "the task ends (status success)")),
            (parts[2], ("delegatee builder", "2 artifacts", "a message is sent", "1 window")),
            (parts[3], ("included: 3", "Handoff: The module is built.")),
        ):
            for text in texts:
                assert text in part


@pytest.mark.prove
def test_the_example_is_typed_and_short(known_types: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(known_types), str(EXAMPLE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 150
