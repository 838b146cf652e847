"""Standard logging: named by rooms, silent by default, without content. Issue 17, Build 10."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
from support.configs import USER
from support.inspection import inspect

_SILENT = """
import sys
import caliber
from caliber.config import profiles
with caliber.open(profiles.reference(":memory:"), create=True) as memory:
    if len(sys.argv) > 1:
        import logging
    memory._engine.record_error("a test", ValueError("violet"))
    print("logging" in sys.modules)
"""


@pytest.mark.parametrize(("arguments", "loaded"), [([], "False"), (["log"], "True")])
def test_nothing_is_printed_by_default(arguments: list[str], loaded: str) -> None:
    done = subprocess.run([sys.executable, "-c", _SILENT, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", loaded)


def test_errors_and_recoveries_are_logged_without_content(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="caliber")
    memory = backend.open(jobs__poll_ms=0)
    task = memory.start_trajectory("find violet paint", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    checkpoint = memory.pcp.checkpoint(task.trajectory_id)
    memory.append_turn(scope.scope_id, role="user", content="violet")
    memory.pcp.recover(task.trajectory_id, preview=True)
    assert "recovered" not in caplog.text
    memory.pcp.recover(task.trajectory_id, checkpoint.checkpoint_id)
    again = memory.pcp.recover(task.trajectory_id, checkpoint.checkpoint_id)
    assert again.reason is not None
    assert caplog.text.count("was recovered") == 1
    inspect(memory).engine.record_error("a test", ValueError("violet"))
    said = {record.name: record.getMessage() for record in caplog.records}
    assert said["caliber.engine"] == "a test failed: ValueError"
    assert str(task.trajectory_id) in said["caliber.pcp"]
    assert "opened" in said["caliber.api"]
    assert "violet" not in caplog.text
