"""Tenants move between two clusters and files while they are written; whatever ends in between, nothing is lost.

``make soak`` kills a move at every step between every pair of databases. Source: issue 5, item 8; design section 3.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from support.evidence import scale, soaking
from support.inspection import inspect
from support.local_server import LocalServer
from support.memories import FACT, STEP
from support.tenancy.tenancies import (
    FIRST,
    PROCESSES,
    fill,
    lost,
    move_until,
    place_config,
    rows_of,
    tenancy_config,
    variables,
    writing,
)

import caliber
from caliber.config import CaliberConfig
from caliber.model.errors import CaliberError, Conflict, InvalidValue, SchemaMismatch, StorageError, Unavailable
from caliber.storage.migrate.migrations import SCHEMA_VERSION
from caliber.tenancy.move import STEPS

pytestmark = [pytest.mark.prove, pytest.mark.usefixtures("second_postgres")]
ROUTES = [("first", "second"), ("files", "first"), ("second", "files")]
"""Between clusters, and between SQLite and PostgreSQL in both directions."""


@pytest.fixture
def settings(tmp_path: Path) -> CaliberConfig:
    return tenancy_config(tmp_path, memories=[FACT, STEP])


def settled(settings: CaliberConfig, source: str, name: str = "alice") -> dict[str, Any]:
    """Create a tenant in a data source and have it remember something."""
    with caliber.Tenants(settings, create=True) as tenants:
        tenants.create(name, source=source)
    with caliber.open(settings, tenant=name) as memory:
        return fill(memory)


def test_a_tenant_of_another_schema_version_does_not_move(settings: CaliberConfig) -> None:
    # issue 14, item 5: what this version does not know would be left behind
    settled(settings, "files")
    with caliber.Tenants(settings) as tenants:
        file = tenants.config("alice").storage.path
        for version, message in ((SCHEMA_VERSION + 1, "upgrade the package"), (SCHEMA_VERSION - 1, "db migrate")):
            connection = apsw.Connection(file)
            connection.execute("UPDATE schema_migration SET schema_version = ?", (version,)).fetchall()
            connection.close()
            with pytest.raises(SchemaMismatch, match=message):
                tenants.move("alice", "first")


def test_what_is_forgotten_during_a_move_is_in_no_file_afterwards(settings: CaliberConfig, tmp_path: Path) -> None:
    # issue 5: "after `forget`, a byte search of every file and table finds nothing of the subject"
    known = settled(settings, "first")
    with caliber.open(settings, tenant="alice") as memory:
        for number in range(30):
            memory.append_turn(known["scope"], role="user", content=f"{number} Zebulon said {'so ' * 200}")
    reports = []

    def meanwhile(begun: str, *_: Any) -> None:
        if begun == "catch up" and not reports:
            with caliber.open(settings, tenant="alice") as memory:
                reports.append(memory.forget(texts=("Zebulon",)))

    with caliber.Tenants(settings) as tenants:
        tenants.move("alice", "files", progress=meanwhile)
    assert [report.proven for report in reports] == [True]
    files = list(tmp_path.glob("alice.db*"))
    assert files
    assert not [file.name for file in files if b"zebulon" in file.read_bytes().lower()]


# --- under load -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "target"), ROUTES)
def test_a_tenant_moves_while_another_process_writes_and_nothing_is_lost(
    settings: CaliberConfig, source: str, target: str
) -> None:
    # issue 5 item 8, D-005; P-003
    known = settled(settings, source)
    with caliber.Tenants(settings) as tenants:
        left = tenants.get("alice").place
        with writing(settings, "alice", known["scope"]) as did:
            report = tenants.move("alice", target)
        assert not did["error"], did
        assert tenants.get("alice").place == report.tenant.place != left
        frozen = rows_of(place_config(settings, "alice", left))
    assert report.rows == {name: len(rows) for name, rows in frozen.items()}
    there = rows_of(place_config(settings, "alice", report.tenant.place))
    assert lost(frozen, there) == []
    turns = {row[1]: row for row in there["turn"].values()}
    assert {turn.bytes for turn in did["acknowledged"]} <= set(turns)
    assert len(did["acknowledged"]) == len(set(did["acknowledged"]))
    assert did["heard"].get("moved") == 1  # it was told to open the tenant again, once
    with caliber.open(settings, tenant="alice") as memory:
        assert memory.admin.verify() == []
        turns_of_scope = memory.storage.turns.list_by_scope(known["scope"])
        assert [turn.turn_number for turn in turns_of_scope] == list(range(len(turns_of_scope)))
        assert memory.replay(known["window"]).text == known["text"]
        assert memory.search("room 3", limit=3).hits[0].content == "The house has room 3."
        assert memory.conflicts.list() == [known["conflict"]]
        note = memory.storage.notes.get(known["notes"][1])
        assert memory.conflicts.resolve(known["conflict"].conflict_id, keep=note.note_id).kept.id == note.note_id


def test_ordinals_changes_and_versions_go_on_where_they_were(settings: CaliberConfig) -> None:
    # design section 3: windows and change records name rows by ordinal, also after the row is gone
    known = settled(settings, "files")
    before = rows_of(place_config(settings, "alice", caliber.Tenants(settings).get("alice").place))
    last = max(row[0] for row in before["turn"].values())
    with caliber.open(settings, tenant="alice") as memory:
        position = inspect(memory).resident.sequence
        epoch = inspect(memory).store.epoch
        gone = memory.append_turn(known["scope"], role="user", content="to be forgotten")
        inspect(memory).store.write(lambda uow: uow.delete(*_found(uow, gone.turn_id)))
    with caliber.Tenants(settings) as tenants:
        tenants.move("alice", "first")
    with caliber.open(settings, tenant="alice") as memory:
        assert inspect(memory).store.epoch != epoch
        assert inspect(memory).resident.sequence > position
        turn = memory.append_turn(known["scope"], role="user", content="after the move")
    after = rows_of(place_config(settings, "alice", caliber.Tenants(settings).get("alice").place))
    (added,) = (row for row in after["turn"].values() if row[1] == turn.turn_id.bytes)
    assert added[0] > last + 1  # the ordinal of the row that is gone is not given out again


def _found(uow: Any, turn_id: uuid.UUID) -> tuple[Any, Any]:
    from caliber.schema.relations import TURN

    return TURN, uow.get(TURN, turn_id.bytes)


def test_full_text_moves_too(tmp_path: Path) -> None:
    # issue 5 item 8 with item 4: a tenant that is searched in its database
    knobs: dict[str, Any] = {"search__mode": "backend", "search__keyword__similar_words": "none"}
    settings = tenancy_config(tmp_path, vector__index_type="hnsw", **knobs)
    settled(settings, "files")
    with caliber.Tenants(settings) as tenants:
        assert tenants.move("alice", "first").not_indexed is None
    with caliber.open(settings, tenant="alice") as memory:
        found = memory.search("room 7", limit=3)
        assert found.hits[0].content == "The house has room 7."
        indexes, space = inspect(memory).store.vector_index, inspect(memory).resident.snapshot.space_in_use
        assert space is not None
        state = indexes.of(space)
        assert state.usable
        assert memory.admin.verify() == []


# --- killed ---------------------------------------------------------------------------------------

KILLED = STEPS if soaking() else ("last rows", "switch")
KILL_ROUTES = ROUTES if soaking() else ROUTES[:1]


@pytest.mark.parametrize(("source", "target"), KILL_ROUTES)
def test_a_move_that_was_killed_goes_on(settings: CaliberConfig, source: str, target: str) -> None:
    # issue 5 item 8: resumable after a kill at any step; one tenant, killed at each step, one attempt after the other
    known = settled(settings, source)
    with caliber.Tenants(settings) as tenants:
        for step in KILLED:
            _killed_at(settings, target, step)
            moved = tenants.get("alice").place.source == target
            assert moved == (step == "end")
            if tenants.get("alice").state == "switching":
                with pytest.raises(Unavailable) as refused:
                    caliber.open(settings, tenant="alice")
                assert (refused.value.context["reason"], refused.value.retryable) == ("moving", True)
                continue
            with caliber.open(settings, tenant="alice") as memory:
                memory.append_turn(known["scope"], role="user", content=f"after {step}")
        left = None
        if not moved:
            left = tenants.get("alice").place
            tenants.move("alice", target)
        if left is not None:
            frozen = rows_of(place_config(settings, "alice", left))
            assert lost(frozen, rows_of(place_config(settings, "alice", tenants.get("alice").place))) == []
        tenants.drop_old("alice")
    with caliber.open(settings, tenant="alice") as memory:
        assert memory.admin.verify() == []
        assert memory.replay(known["window"]).text == known["text"]
        memory.append_turn(known["scope"], role="user", content="at home")


def _killed_at(settings: CaliberConfig, target: str, step: str) -> None:
    child = PROCESSES.Process(target=move_until, args=(settings, "alice", target, step, variables()))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL, step


@pytest.mark.parametrize(("source", "target"), [("files", "second"), ("first", "files")][: scale(1, 2)])
def test_a_killed_move_can_be_given_up(settings: CaliberConfig, source: str, target: str) -> None:
    known = settled(settings, source)
    before = rows_of(place_config(settings, "alice", caliber.Tenants(settings).get("alice").place))
    _killed_at(settings, target, "finish")
    with caliber.Tenants(settings) as tenants:
        with pytest.raises(Conflict, match="is moving to"):
            tenants.move("alice", next(name for name in ("files", "first", "second") if name not in (source, target)))
        with pytest.raises(Conflict, match="moving"):
            tenants.drop("alice")
        tenants.abort_move("alice")
        with pytest.raises(Conflict, match="not moving"):
            tenants.abort_move("alice")
        assert rows_of(place_config(settings, "alice", tenants.get("alice").place)) == before
        with caliber.open(settings, tenant="alice") as memory:
            memory.append_turn(known["scope"], role="user", content="still here")
        tenants.move("alice", target)  # nothing of the first attempt is in the way
        assert tenants.get("alice").place.source == target


# --- attempts that meet ---------------------------------------------------------------------------


def test_of_two_attempts_the_later_one_moves_the_tenant(settings: CaliberConfig) -> None:
    known = settled(settings, "first")
    done: list[Any] = []
    with caliber.Tenants(settings) as one, caliber.Tenants(settings) as other:

        def overtaken(step: str, *_: Any) -> None:
            if step == "tell writers" and not done:
                done.append(other.move("alice", "files"))

        with pytest.raises(Conflict):
            one.move("alice", "files", progress=overtaken)
        assert one.get("alice").place == done[0].tenant.place
    with caliber.open(settings, tenant="alice") as memory:
        memory.append_turn(known["scope"], role="user", content="moved once")
        assert memory.admin.verify() == []


@pytest.mark.parametrize("step", ["tell writers", "fence", "copy", "last rows"][: scale(1, 4)])
def test_a_move_given_up_by_another_process_leaves_writers_in(settings: CaliberConfig, step: str) -> None:
    known = settled(settings, "first")
    with caliber.Tenants(settings) as one, caliber.Tenants(settings) as other:

        def given_up(begun: str, *_: Any) -> None:
            if begun == step:
                other.abort_move("alice")

        with pytest.raises(CaliberError):
            one.move("alice", "files", progress=given_up)
        assert one.get("alice").place.source == "first"
        assert one.get("alice").state == "active"
    with caliber.open(settings, tenant="alice") as memory:
        memory.append_turn(known["scope"], role="user", content="still here")


# --- the fence ------------------------------------------------------------------------------------


def test_a_writer_that_does_not_end_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    settings = tenancy_config(tmp_path, tenancy__fence_ms=400)
    known = settled(settings, "first")
    with caliber.Tenants(settings) as tenants:
        place = tenants.get("alice").place
        with psycopg.connect(variables()[FIRST]) as writer:
            # What every write transaction of ours begins with; then it holds a row.
            writer.execute(f'SELECT count(*) FROM "{place.location}".text_state'.encode())
            writer.execute(f'UPDATE "{place.location}".scope SET version = version + 1'.encode())
            with pytest.raises(Unavailable) as refused:
                tenants.move("alice", "files")
            assert refused.value.reason == "busy"
            assert tenants.get("alice").state == "copying"
            writer.rollback()
        with caliber.open(settings, tenant="alice") as memory:
            memory.append_turn(known["scope"], role="user", content="writers are let in")
        tenants.move("alice", "files")


@pytest.mark.parametrize("source", ["first", "files"])
def test_the_database_refuses_whoever_writes_behind_the_fence(
    settings: CaliberConfig, source: str, second_postgres: LocalServer
) -> None:
    # single writes, loads, and handles that were opened before, which then read nothing stale either
    known = settled(settings, source)
    target = "second"
    heard: list[CaliberError] = []
    with caliber.open(settings, tenant="alice") as memory, caliber.Tenants(settings) as tenants:
        table = memory.storage.bulk_read("note").read_all()
        attempts: list[Callable[[], Any]] = [
            lambda: memory.append_turn(known["scope"], role="user", content="x"),
            lambda: memory.storage.bulk_load("note", table, on_existing="skip"),
            lambda: caliber.open(settings, tenant="alice"),
        ]

        def tried(step: str, *_: Any) -> None:
            if step == "last rows":
                for attempt in attempts:
                    with pytest.raises(Unavailable) as refused:
                        attempt()
                    heard.append(refused.value)

        tenants.move("alice", target, progress=tried)
        assert [error.context["reason"] for error in heard] == ["moving"] * 3
        assert all(error.retryable for error in heard)
        with pytest.raises(Unavailable) as stale:
            memory.search("room", limit=1, consistency="latest")
        assert stale.value.context["reason"] == "moved"
        with pytest.raises(Unavailable, match="open it again"):
            memory.get(known["notes"][0])


def test_a_copy_that_differs_is_noticed_and_not_used(settings: CaliberConfig) -> None:
    # a checker is itself tested: a row is changed in the copy, which the change feed says nothing of
    known = settled(settings, "files")
    with caliber.Tenants(settings) as tenants:

        def tampered(step: str, *_: Any) -> None:
            if step == "fence":
                schema = inspect(tenants).directory.new_place("alice", "first").location
                with psycopg.connect(variables()[FIRST]) as connection:
                    connection.execute(f"UPDATE \"{schema}\".note SET content = 'changed' WHERE ordinal = 3".encode())

        with pytest.raises(StorageError, match="note differs"):
            tenants.move("alice", "first", progress=tampered)
        with caliber.open(settings, tenant="alice") as memory:
            memory.append_turn(known["scope"], role="user", content="writers are let in")
        tenants.move("alice", "first")  # going on finds the row, and puts it right


def test_writers_wait_for_less_where_rows_are_compared_before(tmp_path: Path) -> None:
    settings = tenancy_config(tmp_path, tenancy__verify_in_fence=False)
    known = settled(settings, "first")
    with caliber.open(settings, tenant="alice") as memory, caliber.Tenants(settings) as tenants:
        left = tenants.get("alice").place

        def written(step: str, *_: Any) -> None:
            if step in ("catch up", "fence"):
                memory.append_turn(known["scope"], role="user", content=f"before {step}")

        report = tenants.move("alice", "files", progress=written)
        assert "turn" not in report.rows
        assert "event" in report.rows
        frozen = rows_of(place_config(settings, "alice", left))
        assert rows_of(place_config(settings, "alice", report.tenant.place)) == frozen
        assert len(frozen["turn"]) == 42


def test_what_cannot_be_moved_says_why(settings: CaliberConfig) -> None:
    settled(settings, "files")
    with caliber.Tenants(settings) as tenants:
        with pytest.raises(InvalidValue, match="in files already"):
            tenants.move("alice", "files")
        with pytest.raises(InvalidValue, match="no such data source"):
            tenants.move("alice", "elsewhere")
        schema = inspect(tenants).directory.new_place("alice", "first").location
        with psycopg.connect(variables()[FIRST], autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{schema}" CREATE TABLE kept (a int)'.encode())
            with pytest.raises(Conflict, match="something else"):
                tenants.move("alice", "first")
            tenants.abort_move("alice")
            assert connection.execute(f'SELECT count(*) FROM "{schema}".kept'.encode()).fetchone() == (0,)
        tenants.move("alice", "second")
        with pytest.raises(Conflict, match="old data"):
            tenants.move("alice", "files")
