"""Two processes write one file at the same time: no error that the user must handle, no lost update, both see both.

Three seconds in ``make test``, twenty in ``make soak``. Source: design section 10, issue: Done when.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support.configs import USER
from support.crash.workload import settings_for
from support.evidence import proving, record, scale, share

import caliber

SECONDS = scale(1, 20)
CHILD = Path(__file__).parent / "counting_process.py"
TESTS = str(Path(__file__).resolve().parents[1])


@pytest.mark.parametrize("durability", ["commit", pytest.param("group", marks=pytest.mark.prove)])
def test_two_processes_on_one_file(durability: str, tmp_path: Path) -> None:
    settings = settings_for(str(tmp_path / "store.db"), storage__durability=durability)
    caliber.create(settings)
    with caliber.open(settings) as memory:
        trajectory = memory.start_trajectory("goal", initiator=USER)
        scope = memory.current_scope(trajectory.trajectory_id)
        assert scope is not None
        counter = memory.add_note(entity="counter", entity_type="t", note_type="fact", content="0", confidence=1)
    arguments = [str(trajectory.trajectory_id), str(scope.scope_id), str(counter.note_id)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(CHILD), settings.storage.path, name, str(SECONDS), durability, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in ("left", "right")
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready", process.communicate()[1]
    outputs = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        out, errors = process.communicate(timeout=SECONDS + 120)
        assert process.returncode == 0, errors
        assert errors == ""
        outputs.append(json.loads(out))
    appended = sorted(turn for output in outputs for turn in output["appended"])
    assert [turn[0] for turn in appended] == list(range(len(appended))), "turn numbers are unique and without gaps"
    assert [turn[1] for turn in appended] == list(range(len(appended)))
    counted = sum(output["counted"] for output in outputs)
    with caliber.open(settings) as memory:
        stored = memory.storage.turns.list_by_scope(scope.scope_id)
        assert [[turn.turn_number, turn.sequence, turn.text] for turn in stored] == appended
        assert memory.get(counter.note_id).content == str(counted), "an update was lost"
        assert memory.get(counter.note_id).version == 1 + counted
        assert memory.storage.context_windows.count() == sum(output["windows"] for output in outputs), (
            "what was written behind is on disk once a process has ended"
        )
        assert memory.admin.verify() == []
    for output in outputs:
        assert len(output["appended"]) > 5, "it hardly got to write"
        assert output["seen"] == ["left", "right"], "both see both"
    record(
        f"two-processes-{durability}",
        f"Two processes writing one file, durability {durability}",
        {
            "seconds": SECONDS,
            "turns appended, by process": " and ".join(str(len(output["appended"])) for output in outputs),
            "conditional updates of one record": counted,
            "updates lost": 0,
            "errors the user had to handle": 0,
            "windows assembled and persisted": sum(output["windows"] for output in outputs),
        },
    )


_ENDS = """
    import sys
    sys.path.insert(0, sys.argv[2])
    import caliber
    from support.configs import USER
    from support.crash.workload import settings_for
    memory = caliber.open(settings_for(sys.argv[1], write_behind__flush_interval_ms=60_000))
    trajectory = memory.start_trajectory('goal', initiator=USER)
    note = memory.add_note(entity='e', entity_type='t', note_type='fact', content='c', confidence=1)
    window = memory.assemble_context(trajectory.trajectory_id, query="")
    memory.get(note.note_id)
    print(window.window_id, trajectory.trajectory_id, note.note_id)
    {ending}
"""

ENDINGS = {
    "end of the program": "",
    "close": "memory.close()",
    "sys.exit": "sys.exit(0)",
    "an uncaught error": "raise SystemExit(0) from ValueError()",
}


@pytest.mark.parametrize("ending", share(ENDINGS, 1 if proving() else 4))
def test_what_was_written_behind_is_on_disk_at_the_end(ending: str, tmp_path: Path) -> None:
    # design section 4: flush() and close() drain it; so does the end of a program that forgot to
    settings = settings_for(str(tmp_path / "store.db"))
    caliber.create(settings)
    script = textwrap.dedent(_ENDS).replace("{ending}", ENDINGS[ending])
    done = subprocess.run(
        [sys.executable, "-c", script, settings.storage.path, TESTS],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    window_id, trajectory_id, note_id = done.stdout.split()
    with caliber.open(settings) as memory:
        assert memory.replay(window_id).window_id is not None
        assert memory.storage.usages.get(_uuid(note_id)).access_count == 2
        kinds = [event.event_type for event in memory.trace(trajectory_id)]
        assert "context_assemble" in kinds
        assert "trajectory_start" in kinds


def _uuid(text: str) -> Any:
    import uuid

    return uuid.UUID(text)
