"""The process of ``test_kill_transactions``: it dies at one moment of a transaction, or reports its end."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any, Final

from support.databases import DSN
from support.memories import FACT

import caliber
from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.backends.sqlite.connecting.connection import SqliteConnection
from caliber.model import EntityRef

COUNTER = {
    "name": "counter",
    "type": "working",
    "fields": [{"name": "name", "type": "text"}, {"name": "label", "type": "text"}],
    "key": ["name"],
}
KNOBS: dict[str, Any] = {"memories": [FACT, COUNTER]}
WRITES = ("record", "note", "put", "deleted", "link", "turn", "value", "artifact")
_ASKING: Final = (
    (SqliteConnection, ("command", "run", "run_many", "changed"), True),
    (PgConnection, ("exchange", "_results"), False),  # before statements are sent, and when they are, unanswered
)
_reached = 0


def spare(memory: Any) -> None:
    """Have the record that ``write`` deletes."""
    memory.records("counter").put(name="spare", label="")


def write(memory: Any, label: str, scope: Any) -> None:
    """Write each of ``WRITES``, in one transaction, so that all says ``label``."""
    facts, counters = memory.records("fact"), memory.records("counter")
    with memory.transaction():
        fact = facts.insert(subject=label, kind="claim", content=label)
        note = memory.add_note(entity=label, entity_type="thing", content=label, confidence=1.0)
        counters.put_many([{"name": "only", "label": label}, {"name": label, "label": label}])
        counters.delete_at(name="spare")
        ends = EntityRef("note", note.note_id), EntityRef(facts.relation.name, fact.record_id)
        memory.links.add(ends[0], "supports", ends[1])
        memory.append_turn(scope, role="user", content=label)
        memory.workspace.values.set(label, label)
        memory.create_artifact(scope, artifact_type="fact", content=label, extraction_method="explicit")


def written(memory: Any, label: str) -> list[bool]:
    """Return which of the writes of a label are there, as ``WRITES``."""
    notes, counters = memory.records("note").find(entity=label), memory.records("counter")
    return [
        memory.records("fact").count(subject=label) == 1,
        len(notes) == 1,
        sorted(each.name for each in counters.find(label=label)) == sorted(["only", label]),
        counters.count(name="spare") == 0,
        any(memory.links.list(note.note_id) for note in notes),
        any(turn.content == label.encode() for turn in memory.records("turn_buffer").find()),
        memory.workspace.values.get(label) is not None,
        any(each.content == label.encode() for each in memory.records("artifact").find()),
    ]


def work(path: str, knobs: dict[str, Any], dsn: str, label: str, scope: Any, at: int, reports: Connection) -> None:
    """Write, and die at moment ``at`` of the transaction; report how many it has, where it has no such."""
    os.environ[DSN] = dsn
    from support.configs import config

    with caliber.open(config(path, **knobs)) as memory:
        for kind, names, after in _ASKING:
            for name in names:
                setattr(kind, name, _counted(getattr(kind, name), at, after=after))
        write(memory, label, scope)
        reports.send(_reached)


def _counted(method: Any, at: int, *, after: bool) -> Any:
    def call(*arguments: Any) -> Any:
        if threading.current_thread().name != "caliber-transaction":
            return method(*arguments)
        _pass(at)
        result = method(*arguments)
        if after:
            _pass(at)
        return result

    return call


def _pass(at: int) -> None:
    global _reached
    if _reached == at:
        os.kill(os.getpid(), signal.SIGKILL)
    _reached += 1
