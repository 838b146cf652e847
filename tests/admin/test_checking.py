"""Checks and maintenance of stores.

``check``: sound stores have no findings, and a planted fault of each kind is found, counted and explained. Maintenance:
views for people, the state of a store, vacuum. C-005, C-197 to C-201, K-107, K-192, P-084, P-087.
"""

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
from caliber.model.knowledge import Edge, EdgeRelation, Usage
from caliber.model.references import EdgeId, EntityRef, EntityType
from caliber.model.time import from_us
from caliber.schema.relation import Column, ColumnType
from caliber.schema.relations import BY_NAME, RELATIONS
from caliber.schema.views import VIEWS, Shown, View
from caliber.storage.maintain.integrity import EXAMPLES, Finding
from caliber.storage.maintain.views import MARK

AT_ONCE = {"embedding__embed": {"default": "commit"}}


@pytest.fixture
@needs("reopen")  # what is asked is the same in memory
def filled(backend: Any) -> caliber.Caliber:
    """A store in which one record of most kinds hangs on another."""
    from support.configs import USER

    memory: caliber.Caliber = backend.open(**AT_ONCE)
    trajectory = memory.start_trajectory("be sound", initiator=USER)
    scope = memory.current_scope(trajectory.trajectory_id)
    assert scope is not None
    for place in range(EXAMPLES + 2):
        memory.append_turn(scope.scope_id, role="user", content=f"turn {place}")
    memory.create_artifact(scope.scope_id, artifact_type="fact", content="artifact", extraction_method="explicit")
    notes = [
        memory.add_note(entity="e", entity_type="t", note_type="fact", content=f"note {place}", confidence=0.5)
        for place in range(2)
    ]
    memory.storage.notes.update(notes[0].note_id, content="another text")
    ends = [EntityRef(EntityType.NOTE, note.note_id) for note in notes]
    now = datetime.now(UTC)
    memory.storage.edges.insert(Edge(EdgeId(uuid.uuid4()), ends[0], ends[1], EdgeRelation.SUPPORTS, 0.5, 0.5, now))
    memory.storage.usages.insert(Usage(EntityType.NOTE, notes[1].note_id, 1, now))
    memory.assemble_context(trajectory.trajectory_id, query="note")
    memory.flush()
    return memory


def found(memory: caliber.Caliber) -> dict[tuple[str, str], Finding]:
    """Return findings of the store by kind and relation; memory was loaded before the fault, and differs."""
    return {(item.kind.value, item.relation): item for item in memory.admin.check() if item.kind.value != "memory"}


def test_a_sound_store_has_no_findings(filled: caliber.Caliber) -> None:
    told: list[tuple[str, int, int]] = []
    assert filled.admin.check(progress=lambda *step: told.append(step)) == []
    assert {what for what, *_ in told} == {"checking rules", "checking hashes"}


FAULTS = {
    "a reference": ("DELETE FROM {trajectory}", {("reference", "scope"): 1, ("reference", "turn"): 7}),
    "a scope's number": ("UPDATE {scope} SET next_sequence = 3", {("counter", "scope"): 1}),
    "a trajectory's count": ("UPDATE {trajectory} SET turn_count = 1", {("counter", "trajectory"): 1}),
    "a scope's label": ("UPDATE {scope} SET trust = 'system'", {("label", "scope"): 1}),
    "a kept version": ("UPDATE {content_version} SET owner_version = 99", {("version", "content_version"): 1}),
    "an owner of a kept version": ("UPDATE {content_version} SET owner_id = (SELECT target_id FROM {edge})",
                                   {("version", "content_version"): 1}),
    "a note's text": ("UPDATE {note} SET content = 'damaged'", {("hash", "note"): 2}),
    "an artifact's bytes": ("UPDATE {artifact} SET content = {bytes}", {("hash", "artifact"): 1}),
    "a goal": ("UPDATE {trajectory} SET goal = 'another'", {("hash", "trajectory"): 1}),
    "a configuration": ("UPDATE {config_document} SET body = '{{}}'", {("hash", "config_document"): 1}),
    "an owner of vectors": ("DELETE FROM {artifact}", {("embedding", "embedding"): 1}),
    "a vector's size": ("UPDATE {embedding_space} SET dimensions = 31", {("embedding", "embedding"): 10}),
    "a space": ("DELETE FROM {embedding_space}", {("embedding", "embedding"): 10}),
    "an end of an edge": (
        "DELETE FROM {note} WHERE note_id = (SELECT target_id FROM {edge})",
        {("orphan", "edge"): 1, ("orphan", "usage"): 2},  # uses by the administrator, and by the agent
    ),
    "an index": ('DROP INDEX {prefix}"ix_note_find_by_entity"', {("schema", ""): 1}),
    "a number of rows": ("{forget_numbers}", {("counter", "turn"): 1}),
}  # fmt: skip


TOGETHER = {
    "rows that are gone": ("a reference", "an end of an edge", "an owner of a kept version"),
    "an owner of vectors": ("an owner of vectors",),
    "a space": ("a space",),
}
TOGETHER["values"] = tuple(fault for fault in FAULTS if not any(fault in group for group in TOGETHER.values()))
"""Faults that are planted in one store: none is found by what is asked for another."""


@pytest.mark.parametrize("group", sorted(TOGETHER))
def test_planted_faults_are_found_and_counted(backend: Any, filled: caliber.Caliber, group: str) -> None:
    right = {}
    for fault in TOGETHER[group]:
        statement, expected = FAULTS[fault]
        assert not right.keys() & expected.keys()
        right.update(expected)
        backend.damage(filled, statement)
    seen = found(filled)
    for key, count in right.items():
        assert key in seen, seen
        assert seen[key].count == count, seen[key]
        assert seen[key].what
        assert seen[key].advice
        assert len(seen[key].examples) <= EXAMPLES
        assert seen[key].harmless == (key[0] == "orphan")
    if group == "rows that are gone":
        assert len(seen["reference", "turn"].examples) == EXAMPLES
        uuid.UUID(seen["reference", "turn"].examples[0])
    if group == "values":
        assert seen.keys() == right.keys()
        backend.tamper(filled, "CREATE INDEX ix_note_find_by_entity ON note (entity, entity_type, created_at, ordinal)")


def test_a_mirror_that_differs_is_found(backend: Any, filled: caliber.Caliber) -> None:
    backend.tamper(filled, "UPDATE note SET confidence = 0.75")
    findings = [item for item in filled.admin.check() if item.kind.value == "memory"]
    assert [item.relation for item in findings] == ["note"] * len(findings)
    assert {item.count for item in findings} == {2}
    assert findings[0].examples[0].startswith("ordinal ")


def test_a_missing_column_is_said_and_nothing_else_is_asked(backend: Any, filled: caliber.Caliber) -> None:
    backend.tamper(filled, "ALTER TABLE edge RENAME COLUMN auto_linked TO linked")
    try:
        assert [item.what for item in filled.admin.check() if item.kind.value == "schema"] == [
            "column auto_linked of edge is missing"
        ]
    finally:
        backend.tamper(filled, "ALTER TABLE edge RENAME COLUMN linked TO auto_linked")


@needs("full text", "reopen")
def test_full_text_that_differs_is_found(backend: Any, filled: caliber.Caliber) -> None:
    from caliber.admin.checking import rebuild_full_text

    rebuild_full_text(backend.config())
    assert filled.admin.check() == []
    backend.tamper(filled, "DELETE FROM text_note_entry")
    assert ("full_text", "") in found(filled)


def test_a_damaged_file_is_found(backend: Any, filled: caliber.Caliber) -> None:
    if backend.adapter == "postgres":
        mark = "UPDATE pg_index SET indisvalid = {} WHERE indexrelid = 'uq_note_idempotency_key'::regclass"
        backend.tamper(filled, mark.format("false"))
        try:
            seen = found(filled)
        finally:
            backend.tamper(filled, mark.format("true"))
    else:
        # An index that lacks a row, as a lost write leaves it.
        store = inspect(filled).connection
        text = store.command("SELECT sql FROM sqlite_schema WHERE name = 'ix_note_find_by_entity'")[0][0]
        store.command("PRAGMA writable_schema = ON")
        partial = text + " WHERE entity = ''"
        store.command("DROP INDEX ix_note_find_by_entity")
        store.command(partial)
        store.command(f"UPDATE sqlite_schema SET sql = '{text}' WHERE name = 'ix_note_find_by_entity'")
        store.command("PRAGMA writable_schema = RESET")
        seen = found(filled)
    assert seen["database", ""].count >= 1
    assert "backup" in seen["database", ""].advice


LONG_AGO = datetime(1969, 7, 20, 20, 17, 40, 123456, tzinfo=UTC)


@pytest.fixture
@needs("reopen")  # what is asked is the same in memory
def many_rows(backend: Any, agent: Any) -> caliber.Caliber:
    """A store with rows in most relations, among them what is hard to show."""
    memory = agent.memory
    memory.append_turn(agent.scope_id, role="user", content="früh 🌅", occurred_at=LONG_AGO)
    memory.append_turn(agent.scope_id, role="assistant", content="it's done")
    if backend.adapter == "postgres":  # a driver of SQLite gives such bytes as they are, or refuses them
        for content in (b"\xff\x00\xfe", b"\xe0\x80\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xc0\xaf"):
            memory.append_turn(agent.scope_id, role="tool", tool_call_id="1", content=content)
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
    backend: Any, many_rows: caliber.Caliber
) -> None:
    names = many_rows.admin.create_views()
    assert names == [view.name for view in VIEWS]
    assert {view.relation for view in VIEWS} == {relation.name for relation in RELATIONS}
    seen = 0
    for view in VIEWS:
        columns = [each.name for each in view.columns]
        counted = [each.name for each in view.counted]
        wanted = ", ".join(f'"{name}"' for name in (*columns, *counted))
        rows = select(backend, many_rows, f"SELECT {wanted} FROM {backend.qualified(view.name)}")
        got = [dict(zip(columns, map(plain, row), strict=False)) for row in rows]
        right = expected(many_rows, view, backend.adapter)
        assert sorted(map(repr, got)) == sorted(map(repr, right)), view.name
        seen += len(right)
        for place, count in enumerate(view.counted, start=len(columns)):
            total = many_rows.storage.get(BY_NAME[count.relation].plural).count()
            assert sum(row[place] for row in rows) == total > 0
        if view.descending in columns:
            ordered = [row[columns.index(view.descending)] for row in rows]
            assert ordered == sorted(ordered, reverse=True)
    assert seen > 50
    if backend.adapter == "postgres":  # C-201
        text = f"SELECT obj_description('{backend.qualified('heart_facts')}'::regclass)"
    else:
        text = "SELECT sql FROM sqlite_schema WHERE name = 'heart_facts'"
    assert MARK in select(backend, many_rows, text)[0][0]


def test_views_can_be_made_again_and_removed_and_are_read_only(backend: Any, many_rows: caliber.Caliber) -> None:
    many_rows.admin.create_views()
    assert many_rows.admin.create_views() == [view.name for view in VIEWS]
    before = many_rows.storage.notes.count()
    for statement in ("DELETE FROM {}", "UPDATE {} SET content = 'x'"):
        with pytest.raises(Exception, match=r"view|SQLError"):
            backend.tamper(many_rows, statement.format(backend.qualified("memories")))
    assert many_rows.storage.notes.count() == before
    assert many_rows.admin.drop_views() == sorted(view.name for view in VIEWS)
    assert many_rows.admin.drop_views() == []
    assert many_rows.admin.verify() == []


def test_a_view_of_somebody_else_stays_and_is_not_overwritten(backend: Any, many_rows: caliber.Caliber) -> None:
    backend.tamper(many_rows, "CREATE VIEW memories AS SELECT 1 AS mine")
    with pytest.raises(Conflict, match="memories"):
        many_rows.admin.create_views()
    assert many_rows.admin.drop_views() == []
    assert select(backend, many_rows, f"SELECT mine FROM {backend.qualified('memories')}") == [(1,)]
    backend.tamper(many_rows, "DROP VIEW memories")


# C-005, C-201
def test_views_that_somebody_builds_on_are_said_to_be(backend: Any, many_rows: caliber.Caliber) -> None:
    if backend.adapter != "postgres":
        return  # SQLite's views are found by name, each time they are asked
    many_rows.admin.create_views()
    backend.tamper(many_rows, "CREATE VIEW theirs AS SELECT * FROM memories")
    try:
        for attempt in (many_rows.admin.drop_views, many_rows.admin.create_views):
            with pytest.raises(Conflict, match="depend on the views"):
                attempt()
    finally:
        backend.tamper(many_rows, "DROP VIEW theirs")
    assert "memories" in many_rows.admin.drop_views()


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


def test_status_tells_sizes_rows_position_and_indexes(backend: Any, many_rows: caliber.Caliber) -> None:
    status = many_rows.admin.status()
    rows = {each.name: each.rows for each in status.relations}
    for relation in RELATIONS:
        assert rows[relation.name] == many_rows.storage.get(relation.plural).count()
    position = many_rows.admin.stats()["position"]
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
def test_vacuum_says_which_tables_it_has_no_right_to(backend: Any, many_rows: caliber.Caliber) -> None:
    role = f"reader_{uuid.uuid4().hex[:12]}"
    schema = backend.qualified("note").partition(".")[0]
    backend.tamper(many_rows, f"CREATE ROLE {role} LOGIN PASSWORD 'reader'")
    try:
        backend.tamper(many_rows, f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        backend.tamper(many_rows, f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
        backend.tamper(many_rows, f"ALTER TABLE note OWNER TO {role}")
        maintenance = inspect(many_rows).store.maintenance
        with psycopg.connect(os.environ["CALIBER_TEST_DSN"], autocommit=True) as connection:
            connection.execute(f"SET ROLE {role}")
            assert maintenance.skipped(connection) == [
                relation.name for relation in RELATIONS if relation.name != "note"
            ]
        assert many_rows.admin.vacuum().skipped == ()
    finally:
        backend.tamper(many_rows, f"REASSIGN OWNED BY {role} TO CURRENT_USER")
        backend.tamper(many_rows, f"DROP OWNED BY {role}")
        backend.tamper(many_rows, f"DROP ROLE {role}")


# P-087
def test_vacuum_gives_room_back_and_loses_nothing(backend: Any, many_rows: caliber.Caliber, agent: Any) -> None:
    for place in range(60):
        many_rows.append_turn(agent.scope_id, role="user", content=f"{place}" + uuid.uuid4().hex * 500)
    many_rows.flush()
    before = many_rows.admin.status().bytes
    many_rows.storage.turns.delete_by_scope(agent.scope_id)
    backend.tamper(many_rows, "DELETE FROM content_version")
    told: list[tuple[int, int]] = []
    done = many_rows.admin.vacuum(full=True, progress=lambda _, at, of: told.append((at, of)))
    assert done.bytes_after < before
    assert told[-1][0] == told[-1][1] > 0
    assert many_rows.admin.verify() == []
    assert many_rows.append_turn(agent.scope_id, role="user", content="goes on").sequence >= 60
