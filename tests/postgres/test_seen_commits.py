"""Memory has what a transaction saw of another thread's commit before its call goes on."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.databases import PostgresBackend

from caliber.backends.postgres.writing.order import CommitSequencer
from caliber.backends.postgres.writing.writer import PostgresWriter
from caliber.schema.relations import TRAJECTORY
from caliber.storage.write.unit_of_work import RowChange

PATIENCE_S = 60


def test_a_conversation_that_another_thread_just_began_is_found(
    pg: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = pg.open(embedding_provider=None, jobs__poll_ms=0)
    committed, go = threading.Event(), threading.Event()
    ends: dict[str, Any] = {}
    publish, wait = PostgresWriter._publish, CommitSequencer.wait

    def published(writer: PostgresWriter, ticket: Any, sequence: int, xid: int, changes: list[RowChange]) -> None:
        begins = any(change.relation is TRAJECTORY for change in changes)
        if threading.current_thread().name == "first" and begins and not committed.is_set():
            committed.set()
            assert go.wait(PATIENCE_S)
        publish(writer, ticket, sequence, xid, changes)

    def waited(order: CommitSequencer, *args: Any) -> bool:
        if threading.current_thread().name == "second":
            go.set()
        return wait(order, *args)

    def talk() -> None:
        name = threading.current_thread().name
        try:
            ends[name] = memory.remember([{"role": "user", "content": f"I like {name} tea."}], user="maria").state.value
        except Exception as error:
            ends[name] = error

    monkeypatch.setattr(PostgresWriter, "_publish", published)
    monkeypatch.setattr(CommitSequencer, "wait", waited)
    first, second = (threading.Thread(target=talk, name=name) for name in ("first", "second"))
    first.start()
    assert committed.wait(PATIENCE_S)
    second.start()
    second.join()
    go.set()
    first.join()
    assert ends == {"first": "done", "second": "done"}
