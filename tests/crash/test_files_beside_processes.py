"""Two processes write to one SQLite file, and one of them forgets: the file stays whole, and nothing is lost.

The short form of the program that found lost turns. Source: issue, No descriptor of ours on a live store's files.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import apsw
import pytest
from support.configs import AGENT, config

import caliber

pytestmark = pytest.mark.prove

TESTS = str(Path(__file__).resolve().parents[1])
OTHER = textwrap.dedent("""
    import sys
    sys.path.insert(0, sys.argv[2])
    import caliber
    from support.configs import AGENT, config
    while sys.stdin.readline():
        with caliber.open(config(sys.argv[1])) as memory:
            scope = memory.current_scope(memory.start_trajectory("b", initiator=AGENT).trajectory_id).scope_id
            turns = memory.append_turns(scope, [{"role": "user", "content": f"{n}" + "y" * 100} for n in range(50)])
        print(" ".join(turn.turn_id.hex for turn in turns), flush=True)
""")
ROUNDS = 6


def test_forgetting_beside_writers_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    acknowledged: list[uuid.UUID] = []
    command = [sys.executable, "-c", OTHER, str(path), TESTS]
    with caliber.open(config(str(path)), create=True) as memory:
        scope = memory.current_scope(memory.start_trajectory("a", initiator=AGENT).trajectory_id)
        assert scope is not None
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            for number in range(ROUNDS):
                memory.remember([{"role": "user", "content": "hello"}], user=f"carl{number}@example.org")
                memory.forget(user=f"carl{number}@example.org")
                other.stdin.write("\n")
                other.stdin.flush()
                turns = [{"role": "user", "content": f"{number} {n}" + "x" * 100} for n in range(50)]
                acknowledged += [turn.turn_id for turn in memory.append_turns(scope.scope_id, turns)]
                acknowledged += map(uuid.UUID, other.stdout.readline().split())
                assert Path(f"{path}-wal").exists()  # the other process, which has closed the store, left it
            other.stdin.close()
    connection = apsw.Connection(str(path))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    stored = {uuid.UUID(bytes=turn) for (turn,) in connection.execute("SELECT turn_id FROM turn")}
    assert len(acknowledged) == ROUNDS * 100
    assert not set(acknowledged) - stored
