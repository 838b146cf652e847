"""``scrub_log``: what a PostgreSQL server's log still holds of the subject is written over.

The search reads the whole data directory of the server, file by file, and shares nothing with the library's.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.configs import USER, config
from support.folders import open_folder
from support.local_server import LocalServer
from support.tenancy.tenancies import SECOND

import caliber
from caliber.backends.postgres.maintaining.erasing import PostgresEraser

pytestmark = pytest.mark.prove

TESTS = str(Path(__file__).resolve().parents[1])
NAME = "Hotblack Desiato"
SECRET = "he is spending a year dead"
"""Said of the subject without its name."""


def needles() -> list[bytes]:
    """Return the needles, lower-case; UTF-16 without its first or last zero is the same in both orders."""
    return [text.lower().encode(code).strip(b"\0") for text in (NAME, SECRET) for code in ("utf-8", "utf-16-be")]


scrub_log = PostgresEraser.scrub_log


class World:
    """A store on a server whose files the test may read."""

    def __init__(self, dsn: str, variable: str) -> None:
        self._dsn = dsn
        self.knobs: dict[str, Any] = {
            "storage__adapter": "postgres",
            "storage__schema_name": f"log_{uuid.uuid4().hex[:12]}",
        }
        self.place = f"env:{variable}"
        self.settings = config(self.place, **self.knobs)
        self.folder = Path(self.ask("SHOW data_directory")[0][0])
        caliber.create(self.settings)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return [] if cursor.description is None else cursor.fetchall()

    def fill(self, memory: caliber.Caliber) -> None:
        """Have the subject in tables, in segments in use, and in some that wait to be used again."""
        trajectory = memory.start_trajectory(f"help {NAME}", initiator=USER)
        scope = memory.current_scope(trajectory.trajectory_id)
        for number in range(3):
            memory.append_turn(scope.scope_id, role="user", content=f"I am {NAME}, {number}")
            values = {"entity": NAME, "entity_type": "person", "note_type": "fact", "confidence": 0.5}
            memory.add_note(content=f"{SECRET} {number}", **values)
            memory.flush()
            self.ask("SELECT pg_switch_wal()")
            self.ask("CHECKPOINT")

    def found(self, under: str = ".") -> set[str]:
        """Return the files of the server that hold anything of the subject."""
        self.ask("CHECKPOINT")
        wanted = needles()
        out = set()
        for file in (self.folder / under).rglob("*"):
            if file.is_file():
                raw = file.read_bytes().lower()
                if any(needle in raw for needle in wanted):
                    out.add(str(file.relative_to(self.folder)))
        return out

    def told(self) -> tuple[Any, ...]:
        """Return the settings of the server, in its files and as they are active."""
        files = tuple((self.folder / name).read_bytes() for name in ("postgresql.conf", "postgresql.auto.conf"))
        return files, self.ask("SELECT name, setting FROM pg_settings WHERE name !~ '^in_hot_standby$' ORDER BY name")

    def tables(self) -> list[tuple[Any, ...]]:
        """Return the files of the tables: they change when one is rewritten."""
        schema = self.knobs["storage__schema_name"]
        return self.ask(
            f"SELECT relname, relfilenode FROM pg_class WHERE relnamespace = '{schema}'::regnamespace ORDER BY 1"
        )


@pytest.fixture
def world(second_postgres: LocalServer) -> Iterator[World]:
    made = World(second_postgres.dsn, SECOND)
    yield made
    caliber.purge(made.settings)


def test_after_the_scrub_no_file_of_the_server_holds_the_subject(world: World) -> None:
    # issue 5, Done when: "after forget, a byte search of every file and table finds nothing of the subject"
    with caliber.open(world.settings) as memory:
        world.fill(memory)
        assert world.found("pg_wal"), "the search must be able to find"
        told = world.told()
        report = memory.forget(texts=(NAME,), scrub_log=True)
        assert report.proven, report.remaining
        assert world.found() == set()
        assert world.told() == told
        logs = [place for place in report.searched if place.name.startswith("log ")]
        assert logs
        assert {(place.kind, place.findings) for place in logs} == {("file", 0)}
        (erasure,) = memory.storage.erasures.all()
        assert erasure.finished_at is not None


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Wait for older transactions as long as it takes, and for who holds the log hardly at all."""
    monkeypatch.setattr(PostgresEraser, "scrub_log", lambda self, _: scrub_log(self, 0.02))
    return monkeypatch


def test_who_holds_the_log_is_named_and_waited_for(world: World, impatient: pytest.MonkeyPatch) -> None:
    # issue 5, item 8: "with a report of what was proven"
    slot = f"slot_{uuid.uuid4().hex[:12]}"
    with caliber.open(world.settings) as memory:
        world.ask(f"SELECT pg_create_physical_replication_slot('{slot}', true)")
        try:
            world.fill(memory)
            report = memory.forget(texts=(NAME,), scrub_log=True)
            assert not report.proven
            assert len(report.remaining) == 1
            assert slot in report.remaining[0]
            assert world.found("base") == set(), "tables are done"
            assert world.found("pg_wal")
            files = world.tables()
            memory.admin.maintain()
            (resumed,) = memory.admin.resume_forgetting()
            assert slot in resumed.remaining[0]
            assert world.tables() == files, "nothing is rewritten twice"
            assert memory.storage.erasures.list_unfinished()
        finally:
            world.ask(f"SELECT pg_drop_replication_slot('{slot}')")
        impatient.undo()
        (resumed,) = memory.admin.resume_forgetting()
        assert not resumed.remaining
        assert not memory.storage.erasures.list_unfinished()
    assert world.found("pg_wal") == set()


_DIE = """
    import json, os, signal, sys
    sys.path.insert(0, sys.argv[2])
    import caliber
    from caliber.backends.postgres.maintaining.log import LogScrub
    from support.configs import config
    LogScrub._pass_all = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    caliber.open(config(sys.argv[1], **json.loads(sys.argv[3]))).forget(texts=(sys.argv[4],), scrub_log=True)
"""


@pytest.mark.soak
def test_who_is_killed_amid_the_log_leaves_settings_as_they_were(world: World) -> None:
    # issue 5, item 8: killed in the middle, and finished by who comes next
    with caliber.open(world.settings) as memory:
        world.fill(memory)
    told = world.told()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_DIE), world.place, TESTS, json.dumps(world.knobs), NAME],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert world.told() == told
    with caliber.open(world.settings) as memory:
        (resumed,) = memory.admin.resume_forgetting()
        assert not resumed.remaining
        assert not memory.storage.erasures.list_unfinished()
    assert world.found() == set()
    assert world.told() == told


def test_a_log_that_is_too_long_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.backends.postgres.maintaining.log.MOST_SEGMENTS", 1)
    with caliber.open(world.settings) as memory:
        world.fill(memory)
        report = memory.forget(texts=(NAME,), scrub_log=True)
    assert not report.proven
    assert "still to be written over" in report.remaining[0]


@pytest.mark.soak
def test_archiving_and_segments_kept_for_standbys(impatient: pytest.MonkeyPatch) -> None:
    told = {
        "min_wal_size": "32MB", "max_wal_size": "64MB", "wal_keep_size": "48MB", "summarize_wal": "on",
        "archive_mode": "on", "archive_command": "false",
    }  # fmt: skip
    with open_folder() as folder, LocalServer.start(folder / "server", fsync=False, settings=told) as server:
        impatient.setenv("ARCHIVING", server.dsn)
        world = World(server.dsn, "ARCHIVING")
        with caliber.open(world.settings) as memory:
            world.fill(memory)
            report = memory.forget(texts=(NAME,), scrub_log=True)
            assert not report.proven
            assert "wait to be archived" in report.remaining[0]
            world.ask("ALTER SYSTEM SET archive_command = 'true'")
            world.ask("SELECT pg_reload_conf()")
            impatient.setattr(PostgresEraser, "scrub_log", lambda self, _: scrub_log(self, 20.0))
            report = memory.forget(texts=(NAME,), scrub_log=True)
            assert report.proven, (report.remaining, [place for place in report.searched if place.findings])
            assert memory.storage.erasures.list_unfinished() == [], "the one before waited for the same log"
        assert world.found() == set()


@pytest.mark.soak
def test_a_purged_store_is_gone_from_the_log_too(world: World) -> None:
    # issue 5, item 8: purge of a tenant
    with caliber.open(world.settings) as memory:
        world.fill(memory)
    assert caliber.purge(world.settings, scrub_log=True).proven
    assert world.found() == set()
    caliber.create(world.settings)
