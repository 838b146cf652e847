"""One of two processes that use one file at the same time, for a while, with nothing but the public API.

Run as ``counting_process.py PATH NAME SECONDS DURABILITY TRAJECTORY SCOPE COUNTER``. Prints one line of JSON: what it
appended, how often it counted, and what it saw of the other.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.crash.workload import settings_for

import caliber
from caliber.model.errors import Conflict
from caliber.schema.relations import NOTE
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.testing import inspect

LEAST_TURNS = 10
PATIENCE_S = 90
"""How much longer a busy machine may take for the least there is to see."""


def main() -> None:
    path, name, seconds, durability, trajectory, scope, counter = sys.argv[1:]
    key = uuid.UUID(counter).bytes

    def count(uow: UnitOfWork) -> None:
        note: Any = uow.get(NOTE, key)
        uow.update(NOTE, dataclasses.replace(note, content=str(int(note.content) + 1)))

    appended, counted, seen, windows = [], 0, set(), 0
    with caliber.open(settings_for(path, storage__durability=durability, resident__feed_poll_ms=20)) as memory:
        print("ready", flush=True)
        sys.stdin.readline()
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until or (
            (len(appended) < LEAST_TURNS or len(seen) < 2) and time.monotonic() < until + PATIENCE_S
        ):
            turn = memory.append_turn(scope, role="user", content=f"{name} {len(appended)}")
            appended.append([turn.turn_number, turn.sequence, turn.text])
            inspect(memory).write(count)
            counted += 1
            # A conditional update that loses says so, and is tried again with what is there now.
            while True:
                note = memory.get(counter)
                try:
                    more = str(int(note.content) + 1)
                    memory.storage.notes.update(counter, expected_version=note.version, content=more)
                except Conflict:
                    continue
                counted += 1
                break
            if len(appended) % 10 == 0 or len(seen) < 2:
                window = memory.assemble_context(trajectory, consistency="latest")
                assert window.used_tokens <= window.max_tokens
                windows += 1
                messages = [message for message in window.to_messages() if message["role"] == "user"]
                # What was found is a message of the user's too; it has a name, and a heading before what it holds.
                seen |= {message["content"].split()[0] for message in messages if "name" not in message}
    done = {"appended": appended, "counted": counted, "seen": sorted(seen), "windows": windows}
    print(json.dumps(done), flush=True)


main()
