"""A store, an archive and windows of schema 2, made by the code of then, in this version. Source: decision 0201.

``tests/data/schema_2`` says how they were made.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber as command
from support.drawn import needs
from support.inspection import inspect
from support.memories import FACT

import caliber
from caliber.api.opening import plan_migration
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.model import Edge, EdgeRelation, EntityRef, EntityType, FixedClock
from caliber.model.errors import NotFound, SchemaMismatch
from caliber.model.ids import EdgeId
from caliber.model.time import from_us
from caliber.storage.compile.plan import create_statements, enum_check
from caliber.storage.migrate.dropped_relations import PENDING_TRIGGER, POLICY_RUN
from caliber.storage.migrate.migrations import BASELINE_VERSION, MIGRATIONS, OwnerCount, relations_at
from caliber.storage.write.changes import unpack_changes

DATA = Path(__file__).parents[1] / "data" / "schema_2"
EXPECTED = json.loads((DATA / "expected.json").read_text())
LATER = [version for version in sorted(MIGRATIONS) if version > BASELINE_VERSION]


def fingerprint(window: Any) -> dict[str, Any]:
    return {
        "window_id": str(window.window_id),
        "text": window.text,
        "messages": [
            {name: value for name in MESSAGE if (value := getattr(each, name)) or name == "content"}
            for each in window.messages
        ],
        "used_tokens": window.used_tokens,
        "sources": [
            [str(source.id), source.version, repr(source.relevance), source.tokens]
            for section in window.sections
            for source in section.sources
        ],
        "trace": [[str(each.target_id), each.action.value, each.reason] for each in window.assembly_trace],
    }


MESSAGE = ("role", "content", "name", "tool_call_id", "tool_calls")
"""The fields of a message of then, before to_messages repaired what providers refuse."""
NOT_KEPT = ["change", "schema_migration", "event", "config_document", "pending_trigger", "policy_run", "usage"]
"""Relations that migrations convert or begin anew: uses are counted for each reader since schema 9."""


def check_store(settings: Any, *, restored: bool = False) -> None:
    """Open a store that holds what was made, and read, write and search it."""
    clock = FixedClock(EXPECTED["now_us"])
    with caliber.open(settings, clock=clock) as memory:
        assert memory.admin.verify() == []
        tables = inspect(memory).store.plans
        with inspect(memory).store.read() as session:
            rows = {name: session.run(plans.count, ())[0][0] for name, plans in tables.items()}
        for name, count in EXPECTED["rows"].items():
            if name not in NOT_KEPT:
                assert rows[name] == count, name
        if not restored:
            with inspect(memory).store.read() as session:
                records = session.run(tables["change"].page, (0, 1_000))
            assert len(records) >= EXPECTED["rows"]["change"]
            assert all(list(unpack_changes(record[2])) for record in records), "those of schema 2 stay readable"
        for key, content in EXPECTED["notes"].items():
            assert memory.get(uuid.UUID(key)).content == content
        for key, subject in EXPECTED["facts"].items():
            assert memory.records("fact").get(uuid.UUID(key)).subject == subject
        for window in EXPECTED["windows"]:
            # Those with records of several lines read otherwise since these are indented, and say so.
            with contextlib.suppress(NotFound):
                assert fingerprint(memory.replay(uuid.UUID(window["window_id"]))) == window
        hits = memory.search("tomatoes need", limit=5).hits
        found = [[hit.kind, str(hit.id), hit.content] for hit in hits]
        assert found[0] == EXPECTED["hits"][0][:3]
        assert sorted(found) == sorted(hit[:3] for hit in EXPECTED["hits"])
        task = uuid.UUID(EXPECTED["trajectory_id"])
        assert "tomatoes need sun" in memory.assemble_context(task, query="tomatoes").text
        added = memory.records("fact").insert(subject="Ash", kind="claim", content="Ash is new")
        ends = EntityRef(memory.records("fact").relation.name, added.record_id), EntityRef(EntityType.TRAJECTORY, task)
        edge = Edge(EdgeId(uuid.uuid4()), *ends, EdgeRelation.LINK, 0.5, 0.5, from_us(EXPECTED["now_us"]))
        assert memory.storage.edges.insert(edge) == memory.storage.edges.get(edge.edge_id)
        note = memory.add_note(entity="e", entity_type="t", note_type="fact", content="written now", confidence=0.5)
        memory.flush()
    with caliber.open(settings, clock=clock) as memory:
        assert memory.get(note.note_id).content == "written now"
        assert memory.records("fact").get(added.record_id).subject == "Ash"
        assert memory.admin.verify() == []


AGENTS_SESSION = "UPDATE session SET initiator_type = 'agent'"
OWNERS = (OwnerCount("session", 0, 1), OwnerCount("trajectory", 1, 0))


def check_owners(settings: Any) -> None:
    """A task of a user is that user's alone now; the session, which was made an agent's, is everybody's."""
    with caliber.open(settings, clock=FixedClock(EXPECTED["now_us"])) as memory:
        (session,) = memory.storage.sessions.all()
        task = memory.get(EXPECTED["trajectory_id"])
        stranger = memory.acting_as(caliber.Principal.user("stranger"))
        assert stranger.get(session.session_id) == session
        with pytest.raises(NotFound):
            stranger.get(task.trajectory_id)
        assert memory.acting_as(caliber.Principal.application()).get(task.trajectory_id, user=task.initiator) == task


def check_jobs(settings: Any) -> None:
    """The trigger that waited, and how far the rule on a schedule was, are jobs now."""
    with caliber.open(settings, clock=FixedClock(EXPECTED["now_us"])) as memory:
        jobs = {job.kind.partition(":")[0]: job for job in memory.jobs.list()}
        assert sorted(jobs) == ["schedule", "trigger"]
        assert jobs["schedule"].payload["covered_us"] > 0
        assert jobs["trigger"].state == "waiting"
        assert str(jobs["trigger"].trajectory_id) == EXPECTED["trajectory_id"]


@pytest.fixture
@needs("reopen")
def settings(backend: Any) -> Any:
    return backend.config(memories=[FACT])


def test_a_file_of_the_version_before_opens_after_migrating(file_backend: Any, tmp_path: Path) -> None:
    settings = file_backend.config(memories=[FACT])
    shutil.copyfile(DATA / "store.sqlite", settings.storage.path)
    with contextlib.closing(sqlite3.connect(settings.storage.path)) as connection, connection:
        connection.execute(AGENTS_SESSION)
    for call in (caliber.open, lambda config: caliber.create(config, exist_ok=True)):
        with pytest.raises(SchemaMismatch, match=r"schema version 2 is older than .* run `caliber db migrate`"):
            call(settings)
    plan = plan_migration(settings)
    assert (list(plan.versions), plan.owners) == (LATER, OWNERS)
    assert caliber.migrate(settings) == LATER
    assert caliber.migrate(settings) == []
    assert plan_migration(settings).owners == ()
    check_jobs(settings)
    check_store(settings)
    check_owners(settings)


def test_the_command_migrates_a_file_of_the_version_before(tmp_path: Path) -> None:
    shutil.copyfile(DATA / "store.sqlite", tmp_path / "store.db")
    document = tmp_path / "caliber.toml"
    command("init", "--path", document, "--store", "store.db", "--embedding", "none")
    planned = command("db", "migrate", "--plan", "--config", document).stdout
    assert "trajectory: 1 of users would become their own, 0 would stay shared" in planned
    applied = command("db", "migrate", "--config", document).stdout
    assert f"schema version {', '.join(map(str, LATER))}" in applied
    assert "trajectory: 1 of users are their own, 0 stay shared" in applied
    assert "up to date" in command("db", "migrate", "--config", document).stdout


def test_a_tenant_of_the_version_before_opens_after_migrating(pg: Any) -> None:
    """PostgreSQL: restored from the archive; then it is given the index, checks and relations that schema 2 had."""
    settings = pg.config(memories=[FACT])
    caliber.restore(settings, DATA / "archive.zip")
    pg.adopt(settings)
    pg.tamper(None, "UPDATE schema_migration SET schema_version = 2, min_reader_version = 2, min_writer_version = 2")
    pg.tamper(None, "DROP INDEX uq_note_idempotency_key, uq_note_created_by_idempotency_key")
    pg.tamper(
        None, "CREATE UNIQUE INDEX uq_note_idempotency_key ON note (idempotency_key) WHERE idempotency_key IS NOT NULL"
    )
    edge = next(relation for relation in relations_at(BASELINE_VERSION) if relation.name == "edge")
    for name in ("source_type", "target_type"):
        pg.tamper(None, f"ALTER TABLE edge ADD CHECK ({enum_check(edge.column(name))})")
    dialect = PostgresDialect(pg.schema, "public")
    for relation in (PENDING_TRIGGER, POLICY_RUN):
        for statement in create_statements(relation, dialect):
            pg.tamper(None, statement)
    pg.tamper(
        None,
        "INSERT INTO pending_trigger (trigger_id, trajectory_id, scope_id, trigger, principal_kind, principal_id,"
        " principal_role, principal_admin, created_at, begun_at, attempts, version) SELECT job_id, trajectory_id,"
        " scope_id, split_part(kind, ':', 2), principal_kind, principal_id, principal_role, principal_admin,"
        " created_at, begun_at, attempts, 1 FROM job WHERE trajectory_id IS NOT NULL",
    )
    pg.tamper(
        None,
        "INSERT INTO policy_run (rule_id, covered_at, actions_done, attempts, version)"
        " SELECT job_id, due_at, 0, 0, 1 FROM job WHERE trajectory_id IS NULL",
    )
    pg.tamper(
        None,
        "DROP TABLE job, identity, person_fact, access_grant, conflict, group_member, agent_group, agent, lock_waiter,"
        " agent_message, delegation, handoff, workspace_value, task, task_dependency, calendar_event",
    )
    pg.tamper(None, "DROP INDEX ix_event_list_audit_by_subject")
    pg.tamper(None, "ALTER TABLE trajectory DROP COLUMN user_id, DROP COLUMN agent_id")
    for name in ("turn", "scope"):
        pg.tamper(None, f"ALTER TABLE {name} DROP COLUMN rolled_back_at")
    pg.tamper(None, "ALTER TABLE turn DROP COLUMN thinking, DROP COLUMN is_error, DROP COLUMN utc_offset_s")
    pg.tamper(None, "ALTER TABLE erasure DROP COLUMN unread")
    for name in ("turn", "artifact", "content_version"):
        pg.tamper(None, f"ALTER TABLE {name} DROP COLUMN author_id")
    pg.tamper(None, "ALTER TABLE checkpoint DROP COLUMN recovered_to")
    pg.tamper(None, AGENTS_SESSION)
    with pytest.raises(SchemaMismatch, match="run `caliber db migrate`"):
        caliber.open(settings)
    assert plan_migration(settings).owners == OWNERS
    assert caliber.migrate(settings) == LATER
    assert caliber.migrate(settings) == []
    check_store(settings, restored=True)
    check_owners(settings)
    check_jobs(settings)
    pg.forsake()


def test_an_archive_of_the_version_before_restores(backend: Any, settings: Any) -> None:
    backend.create(backend.config())
    caliber.restore(settings, DATA / "archive.zip", replace=True)
    with pytest.raises(SchemaMismatch, match=r"records of memory fact have no readers.*run `caliber db migrate`"):
        caliber.open(settings)
    assert caliber.migrate(settings) == [], "no version, but a step of a memory"
    check_jobs(settings)
    check_store(settings, restored=True)


def test_a_copy_of_the_version_before_restores(file_backend: Any, tmp_path: Path) -> None:
    settings = file_backend.config(memories=[FACT])
    copy = tmp_path / "copy.db"
    shutil.copyfile(DATA / "store.sqlite", copy)
    caliber.restore(settings, copy)
    assert caliber.migrate(settings) == []
    check_store(settings, restored=True)
    assert (DATA / "store.sqlite").read_bytes() == copy.read_bytes(), "the copy stays as it was"
