"""Looking after a store: views for people, its state, vacuum. C-005, C-197 to C-201, K-107, K-192, P-084, P-087."""

from __future__ import annotations

import os
import re
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.drawn import needs
from support.inspection import inspect

import caliber
from caliber.model.errors import Conflict
from caliber.model.knowledge import Edge, EdgeRelation
from caliber.model.references import EdgeId, EntityRef, EntityType
from caliber.model.time import from_us
from caliber.schema.relation import Column, ColumnType
from caliber.schema.relations import BY_NAME, RELATIONS
from caliber.schema.views import VIEWS, Shown, View
from caliber.storage.maintain.views import MARK

LONG_AGO = datetime(1969, 7, 20, 20, 17, 40, 123456, tzinfo=UTC)


@pytest.fixture
@needs("reopen")  # what is asked is the same in memory
def filled(backend: Any, agent: Any) -> caliber.Caliber:
    """A store with rows in most relations, among them what is hard to show."""
    memory = agent.memory
    memory.append_turn(agent.scope_id, role="user", content="früh 🌅", occurred_at=LONG_AGO)
    memory.append_turn(agent.scope_id, role="assistant", content="it's done")
    if backend.adapter == "postgres":  # a driver of SQLite gives such bytes as they are, or refuses them
        for content in (b"\xff\x00\xfe", b"\xe0\x80\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xc0\xaf"):
            memory.append_turn(agent.scope_id, role="tool", content=content)
    memory.create_artifact(
        agent.scope_id, artifact_type="fact", content="x" * 1000, extraction_method="explicit", confidence=0.5
    )
    notes = [
        memory.add_note(
            entity="engine", entity_type="component", note_type=kind, content=f"a {kind}", confidence=0.25 * place
        )
        for place, kind in enumerate(("fact", "fact", "gotcha"))
    ]
    memory.storage.edges.insert(
        Edge(
            EdgeId(uuid.uuid4()),
            EntityRef(EntityType.NOTE, notes[0].note_id),
            EntityRef(EntityType.NOTE, notes[1].note_id),
            EdgeRelation.SUPPORTS,
            0.5,
            0.5,
            LONG_AGO,
        )
    )
    memory.assemble_context(agent.trajectory_id, query="engine")
    memory.flush()
    return memory


def select(backend: Any, memory: caliber.Caliber, text: str) -> list[tuple[Any, ...]]:
    """Ask the database as a person would: on a connection of one's own, with nobody's codecs."""
    if backend.adapter == "postgres":
        return backend.ask(text)
    with inspect(memory).store.read() as session:
        found: list[tuple[Any, ...]] = session.command(text)  # type: ignore[attr-defined]
    return found


def shown(column: Column, how: Shown, value: Any, adapter: str) -> Any:
    """Return a stored value as a view shows it, worked out without SQL."""
    if value is None:
        return None
    kind = column.type
    if how is Shown.SIZE:
        unit = {ColumnType.VECTOR: 4, ColumnType.UUID_ARRAY: 16}.get(kind, 1)
        return len(value) // unit
    if kind is ColumnType.UUID:
        return str(uuid.UUID(bytes=value))
    if kind is ColumnType.UUID_ARRAY:
        return [str(uuid.UUID(bytes=value[at : at + 16])) for at in range(0, len(value), 16)]
    if kind is ColumnType.INSTANT:
        return from_us(value).isoformat(sep=" ", timespec="microseconds").removesuffix(":00")
    if kind is ColumnType.BOOL:
        return bool(value)
    if kind is ColumnType.BYTES and column.content:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = "\0"
        return text if "\0" not in text or adapter == "sqlite" else escaped(value)
    if kind is ColumnType.BYTES:
        return value.hex()
    return value


def escaped(raw: bytes) -> str:
    return "".join("\\\\" if byte == 92 else chr(byte) if 0 < byte < 128 else f"\\{byte:03o}" for byte in raw)


def plain(value: Any) -> Any:
    """Return the value of a view's cell in one form for both drivers."""
    import json

    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(sep=" ", timespec="microseconds").removesuffix(":00")
    if value in ("true", "false"):
        return value == "true"
    if isinstance(value, str) and value[:1] in "[{":
        return json.loads(value)
    return value


def expected(memory: caliber.Caliber, view: View, adapter: str) -> list[dict[str, Any]]:
    """Return a view's rows from the store's own plans."""
    relation = BY_NAME[view.relation]
    plans = inspect(memory).store.plans[view.relation]
    first = {ColumnType.INT: -(2**63), ColumnType.BYTES: b"", ColumnType.UUID: bytes(16)}
    start = (-1,) if relation.ordinal else tuple(first.get(relation.column(name).type, "") for name in relation.key)
    with inspect(memory).store.read() as session:
        rows = session.run(plans.page, (*start, 10_000))
    out = []
    for row in rows:
        stored = dict(zip(plans.codec.names, row, strict=True))
        if any(stored[name] != value for name, value in view.only):
            continue
        cells = {}
        for each in view.columns:
            column = Column("ordinal", ColumnType.INT) if each.column == "ordinal" else relation.column(each.column)
            cells[each.name] = plain(shown(column, each.shown, stored[each.column], adapter))
        out.append(cells)
    return out


# C-197, C-198, C-199, C-200, C-201, K-192
def test_each_view_selects_without_error_and_gives_the_rows_of_its_relation(
    backend: Any, filled: caliber.Caliber
) -> None:
    names = filled.admin.create_views()
    assert names == [view.name for view in VIEWS]
    assert {view.relation for view in VIEWS} == {relation.name for relation in RELATIONS}
    seen = 0
    for view in VIEWS:
        columns = [each.name for each in view.columns]
        counted = [each.name for each in view.counted]
        wanted = ", ".join(f'"{name}"' for name in (*columns, *counted))
        rows = select(backend, filled, f"SELECT {wanted} FROM {backend.qualified(view.name)}")
        got = [dict(zip(columns, map(plain, row), strict=False)) for row in rows]
        right = expected(filled, view, backend.adapter)
        assert sorted(map(repr, got)) == sorted(map(repr, right)), view.name
        seen += len(right)
        for place, count in enumerate(view.counted, start=len(columns)):
            total = filled.storage.get(BY_NAME[count.relation].plural).count()
            assert sum(row[place] for row in rows) == total > 0
        if view.descending in columns:
            ordered = [row[columns.index(view.descending)] for row in rows]
            assert ordered == sorted(ordered, reverse=True)
    assert seen > 50
    if backend.adapter == "postgres":  # C-201
        text = f"SELECT obj_description('{backend.qualified('heart_facts')}'::regclass)"
    else:
        text = "SELECT sql FROM sqlite_schema WHERE name = 'heart_facts'"
    assert MARK in select(backend, filled, text)[0][0]


def test_views_can_be_made_again_and_removed_and_are_read_only(backend: Any, filled: caliber.Caliber) -> None:
    filled.admin.create_views()
    assert filled.admin.create_views() == [view.name for view in VIEWS]
    before = filled.storage.notes.count()
    for statement in ("DELETE FROM {}", "UPDATE {} SET content = 'x'"):
        with pytest.raises(Exception, match=r"view|SQLError"):
            backend.tamper(filled, statement.format(backend.qualified("memories")))
    assert filled.storage.notes.count() == before
    assert filled.admin.drop_views() == sorted(view.name for view in VIEWS)
    assert filled.admin.drop_views() == []
    assert filled.admin.verify() == []


def test_a_view_of_somebody_else_stays_and_is_not_overwritten(backend: Any, filled: caliber.Caliber) -> None:
    backend.tamper(filled, "CREATE VIEW memories AS SELECT 1 AS mine")
    with pytest.raises(Conflict, match="memories"):
        filled.admin.create_views()
    assert filled.admin.drop_views() == []
    assert select(backend, filled, f"SELECT mine FROM {backend.qualified('memories')}") == [(1,)]
    backend.tamper(filled, "DROP VIEW memories")


# C-005, C-201
def test_views_that_somebody_builds_on_are_said_to_be(backend: Any, filled: caliber.Caliber) -> None:
    if backend.adapter != "postgres":
        return  # SQLite's views are found by name, each time they are asked
    filled.admin.create_views()
    backend.tamper(filled, "CREATE VIEW theirs AS SELECT * FROM memories")
    try:
        for attempt in (filled.admin.drop_views, filled.admin.create_views):
            with pytest.raises(Conflict, match="depend on the views"):
                attempt()
    finally:
        backend.tamper(filled, "DROP VIEW theirs")
    assert "memories" in filled.admin.drop_views()


def test_no_code_reads_a_view() -> None:
    package = Path(caliber.__file__).parent
    declaring = package / "schema" / "views.py"
    names = re.compile(r"\b(" + "|".join(view.name for view in VIEWS if view.name not in _WORDS) + r")\b")
    for path in sorted(package.rglob("*.py")):
        if path == declaring:
            continue
        found = [
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if names.search(line) and re.search(r"\b(FROM|JOIN|SELECT|from|select)\b", line)
        ]
        assert not found, (path, found)
    assert names.search("SELECT * FROM caliber_debug_context")


_WORDS = frozenset({"messages", "memories"})
"""Also words of this language; the next test is about them."""


def test_no_statement_reads_messages_or_memories() -> None:
    package = Path(caliber.__file__).parent
    read = re.compile(r"\b(FROM|JOIN|INTO|UPDATE)\s+[\"{]?(messages|memories)\b")
    assert read.search('SELECT id FROM "messages"')
    for path in sorted(package.rglob("*.py")):
        assert not read.search(path.read_text(encoding="utf-8")), path


def test_status_tells_sizes_rows_position_and_indexes(backend: Any, filled: caliber.Caliber) -> None:
    status = filled.admin.status()
    rows = {each.name: each.rows for each in status.relations}
    for relation in RELATIONS:
        assert rows[relation.name] == filled.storage.get(relation.plural).count()
    position = filled.admin.stats()["position"]
    assert (status.epoch, status.sequence) == (position["epoch"], position["sequence"])
    assert status.changes == rows["change"] > 0
    assert status.adapter == backend.adapter
    assert status.bytes >= sum(each.table_bytes for each in status.relations) > 0
    assert status.schema_version >= status.min_writer_version >= status.min_reader_version >= 1
    assert "uq_note_fingerprint" in {index.name for index in status.indexes}
    assert all(index.valid for index in status.indexes)
    if backend.adapter == "postgres":
        assert 0 < status.connections < status.connections_max
        assert status.wal_bytes > 0
    elif backend.name == "sqlite":
        assert status.wal_bytes >= 0


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_vacuum_says_which_tables_it_has_no_right_to(backend: Any, filled: caliber.Caliber) -> None:
    role = f"reader_{uuid.uuid4().hex[:12]}"
    schema = backend.qualified("note").partition(".")[0]
    backend.tamper(filled, f"CREATE ROLE {role} LOGIN PASSWORD 'reader'")
    try:
        backend.tamper(filled, f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        backend.tamper(filled, f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
        backend.tamper(filled, f"ALTER TABLE note OWNER TO {role}")
        maintenance = inspect(filled).store.maintenance
        with psycopg.connect(os.environ["CALIBER_TEST_DSN"], autocommit=True) as connection:
            connection.execute(f"SET ROLE {role}")
            assert maintenance.skipped(connection) == [
                relation.name for relation in RELATIONS if relation.name != "note"
            ]
        assert filled.admin.vacuum().skipped == ()
    finally:
        backend.tamper(filled, f"REASSIGN OWNED BY {role} TO CURRENT_USER")
        backend.tamper(filled, f"DROP OWNED BY {role}")
        backend.tamper(filled, f"DROP ROLE {role}")


# P-087
def test_vacuum_gives_room_back_and_loses_nothing(backend: Any, filled: caliber.Caliber, agent: Any) -> None:
    for place in range(60):
        filled.append_turn(agent.scope_id, role="user", content=f"{place}" + uuid.uuid4().hex * 500)
    filled.flush()
    before = filled.admin.status().bytes
    filled.storage.turns.delete_by_scope(agent.scope_id)
    backend.tamper(filled, "DELETE FROM content_version")
    told: list[tuple[int, int]] = []
    done = filled.admin.vacuum(full=True, progress=lambda _, at, of: told.append((at, of)))
    assert done.bytes_after < before
    assert told[-1][0] == told[-1][1] > 0
    assert filled.admin.verify() == []
    assert filled.append_turn(agent.scope_id, role="user", content="goes on").sequence >= 60
