"""Schema versions that add a relation, columns, a path and a member of an enum, used by several versions at once.

Source: issue 14, item 5; decision 0201. Planted: see ``support.storage.planted_versions``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from support.configs import USER
from support.crash.processes import Child
from support.drawn import needs
from support.evidence import scale, seed
from support.storage.planted_versions import CODE
from support.storage.schema_changes import DEFAULTS, possible, undone, widened
from support.storage.schemas import postgres_schema, sqlite_schema

import caliber
from caliber.backends.postgres.dialect import dialect_of
from caliber.backends.postgres.schema import validate_checks
from caliber.backends.postgres.store import shared_of
from caliber.model.errors import SchemaMismatch
from caliber.schema.relation import Relation, uuid_
from caliber.schema.relations import RELATIONS
from caliber.storage.compile.plan import create_statements
from caliber.storage.migrate import migrations
from caliber.storage.migrate.migrations import SCHEMA_VERSION, MigrationStep
from caliber.storage.migrate.schema_changes import (
    AddColumn,
    AddRelation,
    DropRelation,
    Relations,
    changed,
    statements_between,
)

CHILD = Path(__file__).parent / "planted_process.py"
OWN = SCHEMA_VERSION


class Version(Child):
    """A process of a planted version."""

    def __init__(self, planted: int) -> None:
        super().__init__(CHILD, planted)

    def use(self, backend: Any) -> None:
        self.ask("use", [backend.path, {**backend.knobs, "embedding_provider": None}])


@pytest.fixture(scope="module")
def versions(postgres: str) -> Iterator[list[Version]]:
    """Processes of the planted versions 1, 2 and 3; the first place is this process's."""
    started = [Version(planted) for planted in (1, 2, 3)]
    for process in started:
        assert process.answer() == "ready"
    yield [None, *started]  # type: ignore[list-item]
    for process in started:
        process.end()


@pytest.fixture
@needs("reopen")
def store(backend: Any, versions: list[Version]) -> Iterator[Any]:
    """A store of this version, which planted ones are about to migrate."""
    for process in versions[1:]:
        process.use(backend)
    yield backend
    forsake(backend)


@pytest.fixture
def unmade(another: Any) -> Iterator[Any]:
    """Make one more database of a kind, in which a planted version creates a store: no schema that served before."""
    made = []

    def make(name: str) -> Any:
        made.append(another(name))
        forsake(made[-1])
        return made[-1]

    yield make
    for backend in made:
        forsake(backend)


def forsake(backend: Any) -> None:
    """Give up a schema, whoever made it: it is no other test's."""
    if backend.adapter == "postgres":
        backend.tamper(None, f'CREATE SCHEMA IF NOT EXISTS "{backend.config().storage.schema_name}"')
        backend.forsake()


def schema_of(backend: Any) -> Any:
    if backend.adapter == "postgres":
        return postgres_schema(backend.ask, backend.config().storage.schema_name)
    connection = apsw.Connection(backend.path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return sqlite_schema(lambda text: connection.execute(text).fetchall())
    finally:
        connection.close()


def note(memory: caliber.Caliber, content: str) -> Any:
    return memory.add_note(entity="e", entity_type="t", note_type="fact", content=content, confidence=0.5)


def mood(said: str, feeling: str = "glad", **fields: Any) -> dict[str, Any]:
    return {"said": said, "feeling": feeling, **fields}


def test_migrating_to_a_version_is_creating_at_it(store: Any, versions: list[Version], unmade: Any) -> None:
    store.create(store.config())
    at_once = unmade(store.name)
    for planted in (1, 2, 3):
        assert versions[planted].ask("migrate") == [OWN + planted]
        assert versions[planted].ask("migrate") == []
        fresh = unmade(store.name)
        versions[planted].use(fresh)
        assert versions[planted].ask("create") is None
        assert schema_of(store) == schema_of(fresh)
        versions[planted].use(store)
    at_once.create(at_once.config())
    versions[3].use(at_once)
    assert versions[3].ask("migrate") == [OWN + 1, OWN + 2, OWN + 3]
    assert schema_of(at_once) == schema_of(store)


def test_versions_that_expand_are_used_side_by_side(store: Any, versions: list[Version]) -> None:
    _, first, second, third = versions
    old = store.open(embedding_provider=None, write_behind__trace_enabled=False, write_behind__usage_enabled=False)
    old.start_trajectory("goal", initiator=USER)
    first.ask("migrate")
    first.ask("open")
    first.ask("write", mood("first"))
    # A process that does not know the relation passes over its change records.
    note(old, "beside moods")
    assert [hit.content for hit in old.search("", kinds=["note"], consistency="latest").hits] == ["beside moods"]
    assert old.admin.verify() == []

    second.ask("migrate")
    second.ask("open")
    first.ask("write", mood("second"))  # a writer that does not know the columns
    second.ask("write", mood("third", strength=9, trajectory_id=None))
    assert first.ask("moods") == [
        ["first", "glad", None, None],
        ["second", "glad", None, None],
        ["third", "glad", None, None],
    ]
    by_default = [["first", "glad", 5, []], ["second", "glad", 5, []], ["third", "glad", 9, ["new"]]]
    assert second.ask("moods") == by_default
    assert [process.ask("verify") for process in (first, second)] == [[], []]
    note(old, "beside columns")

    third.ask("migrate")
    third.ask("open")
    third.ask("write", mood("fourth", "calm", strength=0))
    assert third.ask("moods") == sorted([*by_default, ["fourth", "calm", 0, ["new"]]])
    # A member that they cannot read shuts older processes out.
    for process in (first, second):
        assert process.ask("moods").startswith("SchemaMismatch")
        process.ask("close")
    with pytest.raises(SchemaMismatch, match="upgrade the package"):
        note(old, "too late")
    assert third.ask("verify") == []
    third.ask("close")


def test_what_is_not_known_is_not_carried_elsewhere(store: Any, versions: list[Version], tmp_path: Path) -> None:
    """A backup by a process of an older version would lack what later ones added."""
    old = store.open(embedding_provider=None)
    made = old.admin.backup(tmp_path / "before.zip").path
    versions[2].ask("migrate")
    old.start_trajectory("goal", initiator=USER)
    with pytest.raises(SchemaMismatch, match="upgrade the package"):
        old.admin.backup(tmp_path / "all.zip")
    assert list(tmp_path.glob("all*")) == []
    with pytest.raises(SchemaMismatch, match="upgrade the package"):
        caliber.restore(store.config(), made, replace=True)
    if store.adapter == "sqlite":
        assert old.admin.backup(tmp_path / "all.db").bytes > 0, "a copy has all of it"


def test_a_member_that_is_none_is_refused_after_a_migration(store: Any, versions: list[Version]) -> None:
    store.create(store.config())
    versions[3].ask("migrate")
    columns = "mood_id, feeling, said, felt_at, version"
    if store.adapter == "postgres":
        values = "gen_random_uuid(), '{}', 's', now(), 1"
        refused = r"mood_feeling_check"
    else:
        values = "zeroblob(16), '{}', 's', 1, 1"
        refused = "CHECK constraint failed"
    insert = f"INSERT INTO {store.qualified('mood')} ({columns}) VALUES ({values})"

    def run(text: str) -> None:
        if store.adapter == "postgres":
            store.tamper(None, text)
        else:
            apsw.Connection(store.path).execute(text).fetchall()

    run(insert.format("calm"))
    with pytest.raises(Exception, match=refused):
        run(insert.format("sad"))


def test_archives_and_tables_of_a_version_are_read_by_later_ones(
    store: Any, versions: list[Version], unmade: Any, tmp_path: Path
) -> None:
    _, first, _, third = versions
    store.create(store.config())
    first.ask("migrate")
    first.ask("open")
    first.ask("write", mood("early"))
    first.ask("backup", str(tmp_path / "early.zip"))
    first.ask("write", mood("exported"))
    first.ask("export", str(tmp_path / "early.parquet"))
    first.ask("close")
    for name in ("sqlite", "postgres"):
        into = unmade(name)
        third.use(into)
        assert third.ask("restore", str(tmp_path / "early.zip")) is None
        assert third.ask("open") is None
        assert third.ask("moods") == [["early", "glad", 5, []]]
        assert third.ask("load", str(tmp_path / "early.parquet")) is None
        assert third.ask("moods") == [["early", "glad", 5, []], ["exported", "glad", 5, []]]
        assert third.ask("verify") == []
        third.ask("close")


def test_a_copy_of_a_version_is_restored_by_later_ones(versions: list[Version], unmade: Any, tmp_path: Path) -> None:
    _, first, _, third = versions
    copied, into = unmade("sqlite"), unmade("sqlite")
    first.use(copied)
    first.ask("create")
    first.ask("open")
    first.ask("write", mood("early"))
    first.ask("backup", str(tmp_path / "early.db"))
    first.ask("close")
    raw = (tmp_path / "early.db").read_bytes()
    third.use(into)
    assert third.ask("restore", str(tmp_path / "early.db")) is None
    assert third.ask("migrate") == []
    assert third.ask("open") is None
    assert third.ask("moods") == [["early", "glad", 5, []]]
    assert third.ask("verify") == []
    third.ask("close")
    assert (tmp_path / "early.db").read_bytes() == raw, "the copy stays as it was"


def test_the_rows_of_a_relation_that_is_dropped_are_converted(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Relation(
        name="draft",
        plural="drafts",
        entity=dict,
        code=CODE,
        comment="Planted.",
        key=("agent_id",),
        columns=(uuid_("agent_id"),),
        derived=None,
        erase=None,
        links=None,
        trust=None,
        exported=None,
    )

    def filled(dialect: Any) -> tuple[str, ...]:
        tables = dialect.table("draft"), dialect.table("trajectory")
        return ("INSERT INTO {} (agent_id) SELECT trajectory_id FROM {}".format(*tables),)

    def converted(dialect: Any) -> tuple[str, ...]:
        table = dialect.table("draft")
        update = f"UPDATE {dialect.table('trajectory')} SET agent_id = (SELECT agent_id FROM {table})"
        return update, f"DROP TABLE {table}"

    with store.open(embedding_provider=None) as memory:
        task = memory.start_trajectory("goal", initiator=USER)
    steps = {
        OWN + 1: MigrationStep("drafts", OWN, OWN, (AddRelation("draft"),), filled),
        OWN + 2: MigrationStep("no drafts", OWN, OWN, (DropRelation(draft),), converted),
    }
    before = schema_of(store)
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", {**migrations.MIGRATIONS, **steps})
        assert caliber.migrate(store.config()) == [OWN + 1, OWN + 2]
    assert schema_of(store) == before
    with caliber.open(store.config(embedding_provider=None)) as memory:
        assert memory.get(task.trajectory_id).agent_id == task.trajectory_id
        assert memory.admin.verify() == []


def test_todays_schema_follows_from_less_of_it(pg: Any) -> None:
    """PostgreSQL; SQLite and more ways there: ``tests/schema/test_memory_types.py``."""
    pg.forsake()
    name = pg.config().storage.schema_name
    dialect = dialect_of(name, "public")
    planted = [replace(widened(column), name=f"turn_{at}", _by_name={}) for at, column in enumerate(DEFAULTS)]
    after = (*RELATIONS, *planted)
    before, taken = undone(after, [*possible(), *(AddColumn(relation.name, "added") for relation in planted)])
    assert len(taken) > 100

    def make(relations: Relations) -> None:
        lines = [line for relation in relations for line in create_statements(relation, dialect)]
        pg.tamper(None, "; ".join([f'DROP SCHEMA IF EXISTS "{name}" CASCADE', f'CREATE SCHEMA "{name}"', *lines]))

    make(after)
    right = postgres_schema(pg.ask, name)
    make(before)
    steps = [line for old, new in changed(before, after) for line in statements_between(old, new, dialect)]
    pg.tamper(None, "; ".join(steps))
    assert postgres_schema(pg.ask, name) != right, "rows are not compared with the checks yet"
    validate_checks(shared_of(pg.config()), name, 0)
    assert postgres_schema(pg.ask, name) == right
    pg.tamper(None, f'DROP SCHEMA "{name}" CASCADE')


def test_a_store_in_memory_has_what_versions_added(versions: list[Version]) -> None:
    third = versions[3]
    third.ask("use", [":memory:", {}])
    third.ask("open")
    third.ask("write", mood("here", "calm"))
    assert third.ask("moods") == [["here", "calm", 7, ["new"]]]
    assert third.ask("verify") == []
    third.ask("close")


@pytest.mark.prove
def test_a_migration_killed_anywhere_is_finished_by_the_next(store: Any, versions: list[Version], unmade: Any) -> None:
    """SIGKILL before each statement of a migration over several versions; all start with this version's."""
    third = versions[3]
    fresh = unmade(store.name)
    third.use(fresh)
    third.ask("create")
    right = schema_of(fresh)
    third.use(store)
    finished: list[list[int]] = []

    def renew() -> Any:
        if store.adapter == "sqlite":
            for ending in ("", "-wal", "-shm"):
                Path(store.path + ending).unlink(missing_ok=True)
            store.created.clear()
        else:
            forsake(store)
        store.create(store.config())
        return schema_of(store)

    store.create(store.config())
    before = renew()
    kills = 0
    # In all runs together each statement of SQLite's was killed at: they begin at another one.
    stride = scale(3, 1) if store.adapter == "sqlite" else 1
    first = seed() % stride
    while third.ask("kill", 1 + first + kills * stride):
        kills += 1
        if schema_of(store) == before and store.adapter == "postgres":
            continue  # it is all or nothing there, and making a schema takes long
        finished.append(third.ask("migrate"))
        found = schema_of(store)
        assert {name: found[name] for name in right} == right
        before = renew()
    assert kills > 20 // stride
    assert third.ask("migrate") == []
    found = schema_of(store)
    assert {name: found[name] for name in right} == right
    if store.adapter == "sqlite":
        assert [OWN + 3] in finished, "some were killed between two versions"
    else:
        assert [] in finished, "some were killed before rows were compared with the new checks"
    assert third.ask("open") is None
    assert third.ask("verify") == []
    third.ask("close")
