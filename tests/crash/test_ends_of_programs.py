"""A program that ends, however, has written what was written behind. Source: design section 4."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.crash.workload import settings_for
from support.evidence import proving, share

import caliber

TESTS = str(Path(__file__).resolve().parents[1])


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
        used = [use.access_count for use in memory.storage.usages.all() if str(use.owner_id) == note_id]
        assert used == [1, 1], "the window was the user's, the read was the application's"
        kinds = [event.event_type for event in memory.trace(trajectory_id)]
        assert "context_assemble" in kinds
        assert "trajectory_start" in kinds
