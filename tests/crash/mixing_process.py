"""One of many processes that use one tenant at the same time, for a while, with nothing but the public API.

Run as ``mixing_process.py`` with a JSON object on the command line. Prints ``ready``, begins at ``go``, prints what it
did as a line of JSON, waits until all others have stopped too, and prints in what its memory differs from the store.
With ``"writes": false`` it only listens: it looks at its memory, which hears of the others' commits.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.configs import USER
from support.crash.workload import settings_for

import caliber
from caliber.model.errors import Conflict, LockAcquisitionFailed

KEYS_A_SECOND = 8
KEPT_ARTIFACTS = 3
LEAST_STEPS = 4
PATIENCE_S = 90
"""How much longer a busy machine may take for the least there is to see."""


class Writer:
    """One writing thread."""

    def __init__(self, memory: caliber.Caliber, order: dict[str, Any], name: str) -> None:
        self.memory, self.order, self.name = memory, order, name
        self.appended: list[list[Any]] = []
        self.keys: dict[int, list[str]] = {}
        self.made: list[str] = []
        self.kept: list[str] = []
        self.deleted: list[str] = []
        self.tokens: list[int] = []
        self.counted = self.lost_races = self.windows = 0
        task = memory.start_trajectory(f"of {name}", initiator=USER)
        scope = memory.current_scope(task.trajectory_id)
        assert scope is not None
        self.scope = scope.scope_id

    def step(self) -> None:
        memory, order = self.memory, self.order
        turn = memory.append_turn(order["scope"], role="user", content=f"{self.name} {len(self.appended)}")
        self.appended.append([turn.turn_number, turn.sequence, turn.text])
        self._count()
        self._race_for_a_key()
        artifact = memory.create_artifact(
            self.scope, artifact_type="fact", content=f"{self.name} {len(self.made)}", extraction_method="explicit"
        )
        self.made.append(str(artifact.artifact_id))
        self.kept.append(self.made[-1])
        if len(self.kept) > KEPT_ARTIFACTS:
            self.deleted.append(self.kept.pop(0))
            assert memory.storage.artifacts.delete(self.deleted[-1])
        self._lock()
        if len(self.appended) % 10 == 0:
            window = memory.assemble_context(order["trajectory"], consistency="latest")
            assert window.used_tokens <= window.max_tokens
            assert_in_order(window)
            assert memory.search("counter", limit=3, consistency="latest").hits
            self.windows += 1

    def _count(self) -> None:
        """A conditional update that loses says so, and is tried again with what is there now."""
        while True:
            note = self.memory.get(self.order["counter"])
            assert int(note.content) == note.version - 1, "a torn record"
            try:
                self.memory.storage.notes.update(
                    self.order["counter"], expected_version=note.version, content=str(int(note.content) + 1)
                )
            except Conflict:
                self.lost_races += 1
                continue
            self.counted += 1
            return

    def _race_for_a_key(self) -> None:
        """All processes write the same thing under the same key at the same time."""
        # The first one is the same for all, however busy the machine is.
        key = int((time.time() - self.order["epoch"]) * KEYS_A_SECOND) if self.keys else 0
        if key in self.keys:
            return
        turn = self.memory.append_turn(
            self.order["scope"], role="user", content=f"once {key}", idempotency_key=f"key {key}"
        )
        note = self.memory.add_note(
            entity="e", entity_type="t", note_type="fact", content=f"once {key}", confidence=1, idempotency_key=f"{key}"
        )
        self.keys[key] = [str(turn.turn_id), str(note.note_id)]

    def _lock(self) -> None:
        with contextlib.suppress(LockAcquisitionFailed):
            self.tokens.append(self.memory.agents.locks.acquire("shared", holder=self.name, lease_ms=5).token)

    def done(self) -> dict[str, Any]:
        names = ("appended", "keys", "made", "kept", "deleted", "tokens", "counted", "lost_races", "windows")
        return {name: getattr(self, name) for name in names}


def assert_in_order(window: Any) -> None:
    """Assert that what is shown of each writer is one after the other, each once."""
    last: dict[str, int] = {}
    for message in window.to_messages():
        writer, _, number = str(message["content"]).rpartition(" ")
        if message["role"] == "user" and writer.startswith("process"):
            assert last.get(writer, int(number) - 1) == int(number) - 1, f"{writer}: {number} after {last[writer]}"
            last[writer] = int(number)


def listen(memory: caliber.Caliber, order: dict[str, Any], until: float) -> dict[str, Any]:
    """Look at memory alone, again and again: it goes forward, and every state of it is one that was."""
    seen, looks = 0, 0
    while time.time() < until or (seen < 2 and time.time() < until + PATIENCE_S):
        note = memory.get(order["counter"])
        assert int(note.content) == note.version - 1, "a torn record"
        assert note.version >= seen, "memory went backwards"
        seen, looks = note.version, looks + 1
        assert_in_order(memory.assemble_context(order["trajectory"]))
        time.sleep(0.005)
    return {"looks": looks, "seen": seen}


def main() -> None:
    order = json.loads(sys.argv[1])
    with caliber.open(settings_for(order["path"], resident__feed_poll_ms=20, **order["overrides"])) as memory:
        heard: list[str] = []
        listens = not order["threads"] and bool(order["overrides"].get("storage__feed_dsn"))
        memory.events.subscribe(
            lambda event: heard.append(str(event.subject_id)), event_type="artifact_create", remote=listens
        )
        writers = [Writer(memory, order, f"process {order['name']}.{at}") for at in range(order["threads"])]
        print("ready", flush=True)
        sys.stdin.readline()
        until = time.time() + order["seconds"]
        failures: list[str] = []

        def write(writer: Writer) -> None:
            try:
                while time.time() < until or (len(writer.appended) < LEAST_STEPS and time.time() < until + PATIENCE_S):
                    writer.step()
            except BaseException as error:
                failures.append(f"{writer.name}: {error!r}")
                raise

        threads = [threading.Thread(target=write, args=(writer,)) for writer in writers]
        for thread in threads:
            thread.start()
        listened = None if writers else listen(memory, order, until)
        for thread in threads:
            thread.join()
        for writer in writers:
            own = set(writer.made)
            if [one for one in heard if one in own] != writer.made:
                failures.append(f"{writer.name}: the listener heard of {len(heard)} events, or in another order")
        memory.flush()
        retried = memory.admin.stats()["store"].get("retried", 0)
        print(json.dumps([[writer.done() for writer in writers], listened, failures, retried, len(heard)]), flush=True)
        made = int(sys.stdin.readline())
        memory.search("counter", limit=1, consistency="latest")
        limit = time.monotonic() + 120
        while listens and len(heard) < made and time.monotonic() < limit:
            time.sleep(0.01)
        print(json.dumps([[str(fault) for fault in memory.admin.verify()], heard if listens else None]), flush=True)


main()
