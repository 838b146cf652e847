"""The process of ``test_kill_transactions``: it dies before one statement of a transaction, or reports its end."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

from support.databases import DSN
from support.memories import FACT

import caliber
from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.backends.sqlite.connecting.connection import SqliteConnection

COUNTER = {
    "name": "counter",
    "type": "working",
    "fields": [{"name": "name", "type": "text"}, {"name": "label", "type": "text"}],
    "key": ["name"],
}
KNOBS: dict[str, Any] = {"memories": [FACT, COUNTER]}
_ASKING = ((SqliteConnection, ("command", "run", "insert", "changed")), (PgConnection, ("exchange",)))
_asked = 0


def write(memory: Any, label: str, scope: Any) -> None:
    """Write in five ways, in one transaction, what all says ``label``."""
    with memory.transaction():
        memory.records("fact").insert(subject=label, kind="claim", content=label)
        memory.add_note(entity=label, entity_type="thing", content=label, confidence=1.0)
        memory.records("counter").put(name="only", label=label)
        memory.append_turn(scope, role="user", content=label)
        memory.workspace.values.set(label, label)


def written(memory: Any, label: str) -> list[bool]:
    """Return which of the five writes of a label are there."""
    return [
        memory.records("fact").count(subject=label) == 1,
        memory.records("note").count(entity=label) == 1,
        memory.records("counter").at(name="only").label == label,
        any(turn.content == label.encode() for turn in memory.records("turn_buffer").find()),
        memory.workspace.values.get(label) is not None,
    ]


def work(path: str, knobs: dict[str, Any], dsn: str, label: str, scope: Any, at: int, reports: Connection) -> None:
    """Write, and die before statement ``at`` of the transaction; report how many it has, where it has no such."""
    os.environ[DSN] = dsn
    from support.configs import config

    with caliber.open(config(path, **knobs)) as memory:
        for kind, names in _ASKING:
            for name in names:
                setattr(kind, name, _counted(getattr(kind, name), at))
        write(memory, label, scope)
        reports.send(_asked)


def _counted(method: Any, at: int) -> Any:
    def call(*arguments: Any) -> Any:
        global _asked
        if threading.current_thread().name == "caliber-transaction":
            if _asked == at:
                os.kill(os.getpid(), signal.SIGKILL)
            _asked += 1
        return method(*arguments)

    return call
