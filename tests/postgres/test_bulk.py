"""Bulk loading into PostgreSQL: what only a server can do wrong, and what COPY must not change. # C-195, K-106"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from support.configs import USER
from support.inspection import inspect
from support.waits import until

from caliber.model.errors import Conflict, InvalidRow, Unavailable


@pytest.fixture
def backend(pg: Any) -> Any:
    return pg


@pytest.fixture
def store(backend: Any) -> Any:
    return backend.open(backend.config(embedding_provider=None))


def notes(first: int, count: int, **columns: Any) -> pa.Table:
    numbers = range(first, first + count)
    values = {
        "entity": ["thing"] * count,
        "entity_type": ["topic"] * count,
        "note_type": ["fact"] * count,
        "content": [f"note {number}" for number in numbers],
        "confidence": [1.0] * count,
        **columns,
    }
    return pa.table(values)


def test_a_connection_that_is_cut_in_the_middle_of_copy_leaves_nothing(store: Any, postgres: str) -> None:
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY %' AND pid <> pg_backend_pid()"
    for on_existing in ("error", "skip"):
        killed: list[Any] = []

        def batches(killed: list[Any] = killed) -> Iterator[pa.RecordBatch]:
            yield notes(0, 3_000).combine_chunks().to_batches()[0]
            with psycopg.connect(postgres) as other:
                killed.extend(other.execute(cut).fetchall())
            for start in range(3_000, 300_000, 3_000):  # until it is noticed
                yield notes(start, 3_000).combine_chunks().to_batches()[0]

        stream = pa.RecordBatchReader.from_batches(notes(0, 1).schema, batches())
        with pytest.raises(Unavailable, match="connection lost") as caught:
            store.storage.bulk_load("note", stream, on_existing=on_existing)
        assert killed
        assert caught.value.retryable
        assert store.storage.notes.count() == 0
    assert store.storage.bulk_load("note", notes(0, 10)).loaded == 10
    assert store.admin.verify() == []


def test_texts_that_postgresql_cannot_hold_come_back(store: Any) -> None:
    texts = ["a\0b", "\0", "\ufdd0", "\ufdd00\0\ufdd01", "plain"]
    given = notes(0, 5, content=texts, tags=[["\0"], ["x", "\ufdd0"], [], ["y"], ["z"]])
    store.storage.bulk_load("note", given)
    loaded = store.storage.bulk_read("note").read_all()
    assert sorted(loaded.column("content").to_pylist()) == sorted(texts)
    found = {note.content: note.tags for note in store.storage.notes.all()}
    assert found["a\0b"] == ("\0",)
    assert found["\0"] == ("x", "\ufdd0")
    by_content = dict(zip(loaded.column("content").to_pylist(), loaded.column("tags").to_pylist(), strict=True))
    assert by_content == {content: list(tags) for content, tags in found.items()}
    assert store.admin.verify() == []


def test_json_is_what_it_was(store: Any) -> None:
    trajectory = store.start_trajectory("t", initiator=USER)
    odd = '[["c","f\\u0000","{\\"n\\":1e+22}"]]'
    scope = store.current_scope(trajectory.trajectory_id)
    store.append_turn(scope.scope_id, role="user", content="x")
    store.append_turn(scope.scope_id, role="user", content="y")
    turns = store.storage.bulk_read("turn").read_all()
    store.storage.turns.delete(uuid.UUID(bytes=turns.column("turn_id")[1].as_py()))
    number = turns.schema.get_field_index("tool_calls")
    again = turns.slice(1).set_column(number, turns.schema.field(number), pa.array([odd]))
    store.storage.bulk_load("turn", again)
    assert store.storage.bulk_read("turn").read_all().column("tool_calls").to_pylist() == ["[]", odd]
    assert store.admin.verify() == []


def test_a_row_is_named_in_whatever_batch_it_is(store: Any) -> None:
    store.storage.bulk_load("note", notes(40, 1))
    with pytest.raises(Conflict, match="row 40, fingerprint"):
        store.storage.bulk_load("note", notes(0, 60), batch_rows=7)
    ids = [uuid.uuid4().bytes for _ in range(60)]
    later = pa.array([bytes(15) + b"\1" if row == 33 else None for row in range(60)], pa.binary(16))
    given = notes(100, 60, note_id=pa.array(ids, pa.binary(16)), superseded_by=later)
    with pytest.raises(InvalidRow, match="row 33, superseded_by: refers to no note") as caught:
        store.storage.bulk_load("note", given, batch_rows=7)
    # The driver's words would quote the key.
    cause: BaseException | None = caught.value
    while cause is not None:
        assert "00000001" not in str(cause)
        cause = cause.__cause__ or cause.__context__
    assert store.storage.notes.count() == 1


def test_of_equal_rows_of_a_load_the_first_is_kept(store: Any) -> None:
    ids = [bytes([row + 1]) * 16 for row in range(7)]
    given = pa.concat_tables([notes(0, 3), notes(1, 4)]).append_column("note_id", [pa.array(ids, pa.binary(16))])
    report = store.storage.bulk_load("note", given, on_existing="skip", batch_rows=2)
    assert report.skipped_rows.tolist() == [3, 4]
    assert {note.note_id.bytes for note in store.storage.notes.all()} == {*ids[:3], *ids[5:]}
    assert store.admin.verify() == []


def notes_in_memory(handle: Any) -> int:
    """Return how many notes a handle knows of, once it has looked for what others wrote."""
    return int(inspect(handle).snapshot("latest")["note"].live_mask.sum())


def test_others_write_while_a_load_is_under_way(store: Any, backend: Any) -> None:
    other = backend.open(backend.config(embedding_provider=None))
    written: list[Any] = []

    def progress(_: str, rows: int, __: int | None) -> None:
        thread = threading.Thread(
            target=lambda: written.append(
                other.add_note(entity="e", entity_type="t", note_type="fact", content=f"beside {rows}", confidence=1.0)
            )
        )
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        # Nobody sees a part of it.
        assert notes_in_memory(other) == len(written)

    assert store.storage.bulk_load("note", notes(0, 600), progress=progress, batch_rows=200).loaded == 600
    assert len(written) == 3
    for handle in (store, other):
        assert notes_in_memory(handle) == 603
        assert len(handle.search("note", limit=5).hits) == 5
        assert handle.admin.verify() == []


def test_no_connection_is_left_behind(store: Any, postgres: str) -> None:
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'caliber'"
    kept = inspect(store).pool.idle
    store.flush()
    with psycopg.connect(postgres, autocommit=True) as other:

        def left() -> int:
            return other.execute(count).fetchone()[0] - len(kept)  # type: ignore[index]

        until(lambda: not left())  # those of tests before this one
        store.storage.bulk_load("note", notes(0, 20))
        with pytest.raises(Conflict):
            store.storage.bulk_load("note", notes(0, 20))
        store.storage.bulk_read("note", batch_rows=3).read_all()
        half = store.storage.bulk_read("note", batch_rows=3)
        assert half.read_next_batch().num_rows == 3
        assert left() > 0
        half.close()
        del half
        until(lambda: not left())
