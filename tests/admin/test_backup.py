"""Backups and restoring: whole, consistent, verified, atomic, from any database into any other. P-083, P-084."""

from __future__ import annotations

import json
import resource
import signal
import stat
import subprocess
import sys
import threading
import uuid
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.configs import USER
from support.drawn import needs
from support.inspection import inspect
from support.threads import begin

import caliber
from caliber.admin.checking import check_full_text, rebuild_full_text
from caliber.backends.sqlite.moving.fence import fence
from caliber.dump.archive import Archive, only_one
from caliber.dump.dumped_relations import dump_relations
from caliber.model.erasure import Erasure, ErasureKind
from caliber.model.errors import CaliberError, Conflict, InvalidValue, PermissionDenied, StorageError, Unavailable
from caliber.model.time import FixedClock, from_us
from caliber.schema.catalog import BUILT_IN
from caliber.schema.relations import RELATIONS
from caliber.storage.maintain.maintenance import FenceState

AT_ONCE = {"embedding__embed": {"default": "commit"}}
"""Nothing is written behind, so that two looks at a store that nobody writes to see the same."""
MEGABYTE = bytes(range(256)) * 4096


def fill(memory: caliber.Caliber, *, large: bool = True) -> Any:
    """Write records of most kinds, among them what is hard to carry; return a window of them."""
    trajectory = memory.start_trajectory("carry everything", initiator=USER, tags=("ü", "it's"))
    scope = memory.current_scope(trajectory.trajectory_id)
    assert scope is not None
    for place in range(6):
        memory.append_turn(scope.scope_id, role="user", content=f"früh 🌅 {place}\n\0")
    memory.append_turn(scope.scope_id, role="tool", tool_call_id="1", content=MEGABYTE if large else b"\xff\0")
    memory.create_artifact(
        scope.scope_id, artifact_type="fact", content=b"\0\xff binary", extraction_method="explicit", confidence=0.5
    )
    notes = [
        memory.add_note(
            entity="engine", entity_type="part", note_type="fact", content=f"fact \0 {place}", confidence=0.1 * place
        )
        for place in range(8)
    ]
    memory.storage.notes.update(notes[0].note_id, content="changed since")
    window = memory.assemble_context(trajectory.trajectory_id, query="engine")
    memory.flush()
    # The last ordinal is gone with its row, and must never be given out again.
    memory.storage.notes.delete(notes[-1].note_id)
    memory.flush()
    return window


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def rows_of(memory: caliber.Caliber) -> dict[str, list[Any]]:
    """Return every row of every relation that a backup carries, as stored, ordinals among them."""
    store = inspect(memory).store
    with store.maintenance.snapshot() as snapshot:
        return {
            relation.name: [row for batch in snapshot.read(relation) for row in batch.to_pylist()]
            for relation in dump_relations(BUILT_IN)
        }


def ordinals(memory: caliber.Caliber) -> dict[str, int]:
    """Return the last ordinal that was given out, by relation."""
    with inspect(memory).store.maintenance.snapshot() as whole:
        return whole.ordinals()


def check_same(got: dict[str, list[Any]], right: dict[str, list[Any]]) -> None:
    """Compare a restored store that was opened since, which notes its configuration."""
    documents = got.pop("config_document")
    assert all(document in documents for document in right["config_document"])
    assert got == {name: rows for name, rows in right.items() if name != "config_document"}


@pytest.fixture
@needs("reopen")  # a store in memory is backed up by the same code
def filled(backend: Any) -> caliber.Caliber:
    memory: caliber.Caliber = backend.open(**AT_ONCE)
    fill(memory, large=False)
    return memory


def test_an_archive_restores_into_the_other_database(
    backend: Any, another: Any, filled: caliber.Caliber, tmp_path: Path
) -> None:
    # Into the same one the other tests restore.
    into = "sqlite" if backend.adapter == "postgres" else "postgres"
    session = filled.start_trajectory("carry much", initiator=USER)
    scope = filled.current_scope(session.trajectory_id)
    filled.append_turn(scope.scope_id, role="tool", tool_call_id="1", content=MEGABYTE)
    made = filled.admin.backup(tmp_path / "all.zip")
    assert made.rows["note"] == filled.storage.notes.count() == 7
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert not [name for name in names(tmp_path) if name.endswith(".part")]
    before = rows_of(filled)
    position = filled.admin.stats()["position"]
    assert (made.epoch, made.sequence) == (position["epoch"], position["sequence"])

    target = another(into)
    told: list[tuple[str, int, int]] = []
    report = caliber.restore(target.config(), made.path, progress=lambda *step: told.append(step))
    target.created.add(target.store_of(target.config()))
    assert {what for what, *_ in told} >= {"checking the archive", "restoring rows", "verifying rows"}
    restored = target.open(**AT_ONCE)
    check_same(rows_of(restored), before)
    assert report.rows["note"] == 7
    assert restored.admin.stats()["position"]["epoch"] == report.epoch != position["epoch"]
    assert restored.admin.verify() == []
    window = filled.storage.context_windows.list_oldest()[0].window_id
    assert restored.replay(window).text == filled.replay(window).text != ""
    # What is written now gets an ordinal that no record of the backed up store ever had.
    highest = max(each["ordinal"] for each in before["note"])
    fresh = restored.add_note(entity="x", entity_type="y", note_type="fact", content="new", confidence=1.0)
    ordinals = {each["note_id"]: each["ordinal"] for each in rows_of(restored)["note"]}
    assert ordinals[fresh.note_id.bytes] > highest + 1
    assert restored.admin.verify() == []


@needs("snapshots")
def test_a_backup_is_of_one_boundary_while_others_write(backend: Any, agent: Any, tmp_path: Path) -> None:
    memory = agent.memory
    fill(memory, large=False)
    stop, wrote = threading.Event(), threading.Event()

    def write() -> None:
        place = 0
        while not stop.is_set():
            memory.append_turn(agent.scope_id, role="user", content=f"turn {place}")
            memory.add_note(entity="n", entity_type="t", note_type="fact", content=f"turn {place}", confidence=0.5)
            place += 1
            wrote.set()

    thread = begin(write)
    try:
        assert wrote.wait(30)

        def slowly(what: str, done: int, total: int) -> None:
            # Of each record batch: only once somebody has written again is the next one read.
            wrote.clear()
            assert wrote.wait(30)

        made = memory.admin.backup(tmp_path / "all.zip", progress=slowly)
    finally:
        stop.set()
        thread.result()
    archive = Archive(made.path)
    try:
        whole = {each.name: each for each in dump_relations(BUILT_IN)}
        scopes = {row["scope_id"]: row for batch in archive.batches(whole["scope"]) for row in batch.to_pylist()}
        turns = [row for batch in archive.batches(whole["turn"]) for row in batch.to_pylist()]
        notes = [row for batch in archive.batches(whole["note"]) for row in batch.to_pylist()]
    finally:
        archive.close()
    counted = scopes[agent.scope_id.bytes]["turn_count"]
    assert sum(row["scope_id"] == agent.scope_id.bytes for row in turns) == counted > 0
    # A note is written after its turn: at one boundary there is at most one turn more.
    assert counted - sum(row["entity"] == "n" for row in notes) in (0, 1)
    assert memory.storage.turns.count_by_scope(agent.scope_id) > counted


def test_a_copy_of_the_file_restores(backend: Any, another: Any, filled: caliber.Caliber, tmp_path: Path) -> None:
    if backend.adapter == "postgres":
        with pytest.raises(InvalidValue, match="archive"):
            filled.admin.backup(tmp_path / "all.db")
        return
    before = rows_of(filled)
    made = filled.admin.backup(tmp_path / "all.db")
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert not list(tmp_path.glob("all.db-*"))
    target = another("sqlite")
    report = caliber.restore(target.config(), made.path)
    target.created.add(target.store_of(target.config()))
    restored = target.open(**AT_ONCE)
    check_same(rows_of(restored), before)
    assert report.epoch != made.epoch
    assert restored.admin.verify() == []
    with pytest.raises(InvalidValue, match="SQLite"):
        caliber.restore(another("postgres").config(), made.path)


# design, section 3: never what was there without being asked
@needs("reopen")
def test_nothing_is_overwritten_unless_asked(backend: Any, filled: caliber.Caliber, tmp_path: Path) -> None:
    path = tmp_path / "all.zip"
    filled.admin.backup(path)
    raw = path.read_bytes()
    with pytest.raises(Conflict, match="there already"):
        filled.admin.backup(path)
    assert path.read_bytes() == raw
    note = filled.add_note(entity="x", entity_type="y", note_type="fact", content="since", confidence=1.0)
    filled.flush()
    before = rows_of(filled)
    with pytest.raises(Conflict, match="--force"):
        caliber.restore(backend.config(), path)
    assert rows_of(filled) == before
    caliber.restore(backend.config(), path, replace=True)
    assert filled.storage.notes.get(note.note_id) is None


@needs("reopen")
def test_restoring_says_what_was_forgotten_since(backend: Any, tmp_path: Path) -> None:
    memory = backend.open()
    now = datetime.now(UTC)
    for restored_undoes in (0, 1):
        memory.storage.erasures.insert(Erasure(uuid.uuid4(), ErasureKind.SUBJECT, {}, now, now))
        if not restored_undoes:
            memory.admin.backup(tmp_path / "all.zip")
        report = caliber.restore(backend.config(), tmp_path / "all.zip", replace=True)
        assert report.erasures_undone == restored_undoes


@needs("reopen")
def test_a_store_that_was_only_opened_is_restored_into(backend: Any, another: Any, tmp_path: Path) -> None:
    memory = backend.open()
    fill(memory, large=False)
    made = memory.admin.backup(tmp_path / "all.zip")
    target = another(backend.name)
    opened = target.open()
    caliber.restore(target.config(), made.path)
    assert len(opened.search("fact", limit=9, consistency="latest").hits) > 1
    assert opened.admin.verify() == []


@needs("sharing")
def test_who_has_the_store_open_reads_it_anew(backend: Any, filled: caliber.Caliber, tmp_path: Path) -> None:
    path = tmp_path / "all.zip"
    made = filled.admin.backup(path)
    other = backend.open()
    since = [
        other.add_note(entity="x", entity_type="y", note_type="fact", content=f"since {place}", confidence=1.0)
        for place in range(3)
    ]
    assert filled.search("since", limit=5, consistency="latest").hits
    report = caliber.restore(backend.config(), path, replace=True)
    for memory in (filled, other):
        found = memory.search("since", limit=50, consistency="latest")
        assert not {hit.id for hit in found.hits} & {note.note_id for note in since}
        assert found.position.epoch == report.epoch != made.epoch
        assert memory.admin.verify() == []
    # Both go on, and see each other.
    fresh = other.add_note(entity="x", entity_type="y", note_type="fact", content="after restoring", confidence=1.0)
    hits = filled.search("after restoring", limit=5, consistency="latest").hits
    assert fresh.note_id in {hit.id for hit in hits}
    assert filled.admin.verify() == other.admin.verify() == []


@needs("full text", "reopen")
def test_words_are_found_after_a_restore_as_before(backend: Any, tmp_path: Path) -> None:
    memory = backend.open(**AT_ONCE)
    fill(memory, large=False)
    rebuild_full_text(backend.config())
    for name in ("all.zip", "all.db") if backend.adapter == "sqlite" else ("all.zip",):
        memory.admin.backup(tmp_path / name)
        memory.add_note(entity="x", entity_type="y", note_type="fact", content=f"since {name}", confidence=1.0)
        caliber.restore(backend.config(), tmp_path / name, replace=True)
        full_text = inspect(memory).store.full_text
        assert full_text.state().complete
        assert check_full_text(inspect(memory).store, backend.config()) == []
        assert memory.admin.verify() == []


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_a_restored_store_that_is_searched_in_its_database_has_its_indexes(
    backend: Any, another: Any, tmp_path: Path
) -> None:
    memory = backend.open(**AT_ONCE)
    fill(memory, large=False)
    made = memory.admin.backup(tmp_path / "all.zip")
    target = another("postgres")
    searched = target.config(search__mode="backend", vector__index_type="hnsw")
    assert caliber.restore(searched, made.path).not_indexed is None
    target.created.add(target.store_of(searched))
    restored = target.open(searched)
    space = inspect(restored).resident.snapshot.space_in_use
    state = inspect(restored).store.vector_index.of(space)
    assert state.usable
    assert restored.search("fact", limit=3).hits


class _StopError(Exception):
    """Raised by the test to interrupt."""


@needs("reopen")
def test_an_interrupted_restore_leaves_the_old_store(backend: Any, filled: caliber.Caliber, tmp_path: Path) -> None:
    path = tmp_path / "all.zip"
    filled.admin.backup(path)
    filled.add_note(entity="x", entity_type="y", note_type="fact", content="since", confidence=1.0)
    filled.flush()
    before, epoch, given = rows_of(filled), filled.admin.stats()["position"]["epoch"], ordinals(filled)
    there = names(tmp_path)
    stages = ["checking the archive", "restoring rows", "verifying rows"]
    stages += ["taking over"] if backend.adapter == "sqlite" else []
    for stage in stages:

        def stop(what: str, done: int, total: int, stage: str = stage) -> None:
            if what == stage and done >= total // 2:
                raise _StopError

        with pytest.raises(_StopError):
            caliber.restore(backend.config(), path, replace=True, progress=stop)
        assert rows_of(filled) == before
        assert filled.admin.stats()["position"]["epoch"] == epoch
        assert names(tmp_path) == there
    assert filled.admin.verify() == []
    now = ordinals(filled)
    assert all(now[name] >= last for name, last in given.items())  # those that came since have theirs
    with pytest.raises(_StopError):
        filled.admin.backup(tmp_path / "other.zip", progress=lambda *_: (_ for _ in ()).throw(_StopError()))
    assert names(tmp_path) == there


_KILLED = """
import os, pickle, signal, sys
from pathlib import Path
import caliber
config, path, stage = pickle.loads(bytes.fromhex(sys.argv[1]))
def at(what, done, total):
    if what == stage and done >= total // 2:
        os.kill(os.getpid(), signal.SIGKILL)
caliber.restore(config, path, replace=True, progress=at)
"""


@pytest.mark.soak
@needs("sharing")
def test_a_killed_restore_leaves_the_old_store(backend: Any, filled: caliber.Caliber, tmp_path: Path) -> None:
    import pickle

    path = tmp_path / "all.zip"
    filled.admin.backup(path)
    filled.add_note(entity="x", entity_type="y", note_type="fact", content="since", confidence=1.0)
    filled.flush()
    before = rows_of(filled)
    stage = "taking over" if backend.adapter == "sqlite" else "verifying rows"
    given = pickle.dumps((backend.config(), path, stage)).hex()
    done = subprocess.run([sys.executable, "-c", _KILLED, given], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert rows_of(filled) == before
    assert filled.admin.verify() == []
    caliber.restore(backend.config(), path, replace=True)  # what the killed one left is in nobody's way
    assert filled.search("since", limit=50, consistency="latest").position.epoch
    assert filled.admin.verify() == []
    assert not [name for name in names(tmp_path) if name.endswith(".restoring")]


def test_what_a_lost_store_left_beside_it_is_not_taken_for_the_restored_ones(
    file_backend: Any, another: Any, tmp_path: Path
) -> None:
    # P-083: SQLite would play the log of the store that was deleted into the file that takes its place
    lost = file_backend.open()
    fill(lost)
    store = Path(file_backend.path)
    log = Path(f"{store}-wal").read_bytes()
    assert log
    lost.close()
    right = another("sqlite").open()
    fill(right, large=False)
    for name in ("all.zip", "all.db"):
        right.admin.backup(tmp_path / name)
        store.unlink()
        Path(f"{store}-wal").write_bytes(log)
        caliber.restore(file_backend.config(), tmp_path / name)
        with caliber.open(file_backend.config()) as memory:
            check_same(rows_of(memory), rows_of(right))


def test_two_do_not_write_one_file_at_once(file_backend: Any, tmp_path: Path) -> None:
    # P-083: what is whole under its name was written by one
    memory = file_backend.open()
    for name in ("all.zip", "all.db"):
        path = tmp_path / name
        with only_one(path), pytest.raises(Conflict, match="another process is writing it"):
            memory.admin.backup(path, replace=True)
        memory.admin.backup(path)
        with only_one(Path(file_backend.path)), pytest.raises(Conflict, match="another process is writing it"):
            caliber.restore(file_backend.config(), path, replace=True)
        caliber.restore(file_backend.config(), path, replace=True)
    assert not [name for name in names(tmp_path) if name.endswith(".lock")]


def test_a_store_that_somebody_makes_meanwhile_is_not_replaced(file_backend: Any, another: Any, tmp_path: Path) -> None:
    # P-083, design section 10: never lose an acknowledged write
    memory = file_backend.open()
    made = memory.admin.backup(tmp_path / "all.zip")
    other = another("sqlite")

    def meanwhile(what: str, _: int, __: int) -> None:
        if what == "verifying rows" and not Path(other.path).exists():
            with other.open() as there:
                there.start_trajectory("created it meanwhile", initiator=USER)

    with pytest.raises(Conflict, match="meanwhile"):
        caliber.restore(other.config(), made.path, replace=True, progress=meanwhile)
    with other.open() as there:
        assert there.admin.status().relations
        assert rows_of(there)["trajectory"]


# design, section 1: never lose an acknowledged write
@pytest.mark.parametrize("stage", ["restoring rows", "taking over"])
def test_what_is_written_while_a_store_is_restored_into_stays(
    file_backend: Any, another: Any, stage: str, tmp_path: Path
) -> None:
    memory = file_backend.open()
    made = another("sqlite").open().admin.backup(tmp_path / "all.zip")
    kept: list[Any] = []

    def meanwhile(what: str, _: int, __: int) -> None:
        if what == stage and not kept:
            note = memory.add_note(
                entity="x", entity_type="y", note_type="fact", content="acknowledged", confidence=1.0
            )
            kept.append(note)

    with pytest.raises(Conflict, match="--force"):
        caliber.restore(file_backend.config(), made.path, progress=meanwhile)
    assert memory.get(kept[0].note_id).content == "acknowledged"
    assert memory.admin.verify() == []


# docs/decisions/0131: who moves a tenant relies on nobody writing where it was
def test_a_store_that_moves_is_not_replaced_and_a_copy_of_it_does_not_move(
    file_backend: Any, another: Any, tmp_path: Path
) -> None:
    memory = file_backend.open(**AT_ONCE)
    archive = memory.admin.backup(tmp_path / "all.zip").path
    for state in FenceState:
        fence(inspect(memory).connection, state, str(uuid.uuid4()))
        with pytest.raises(Unavailable, match=state.value):
            caliber.restore(file_backend.config(), archive, replace=True)
    other = another("sqlite").config()
    caliber.restore(other, memory.admin.backup(tmp_path / "all.db").path)
    with caliber.open(other) as restored:
        restored.start_trajectory("written there", initiator=USER)


def _damages(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield an archive with each kind of damage."""
    raw = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        infos = {info.filename: info for info in file.infolist()}
    for name in ("note.parquet", "turn.parquet", "schema_migration.parquet", "config_document.parquet"):
        if name in infos:
            at = infos[name].header_offset + 30 + len(name) + infos[name].file_size // 2
            yield name, raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
    yield "cut short", raw[: len(raw) // 2]
    yield "empty", b""
    yield "not an archive", b"PK but not really" * 100
    at = raw.rindex(b"manifest.json", 0, len(raw) - 200)
    yield "manifest", raw.replace(b'"rows_sha256": "', b'"rows_sha256": "0', 1)
    yield "format", raw.replace(b"caliber-archive-2", b"caliber-archive-1")


@needs("reopen")
def test_a_damaged_backup_is_refused_and_changes_nothing(backend: Any, agent: Any, tmp_path: Path) -> None:
    memory = agent.memory
    fill(memory, large=False)
    path = tmp_path / "all.zip"
    memory.admin.backup(path)
    before = rows_of(memory)
    seen = []
    for what, raw in list(_damages(path)):
        path.write_bytes(raw)
        with pytest.raises((InvalidValue, StorageError)) as caught:
            caliber.restore(backend.config(), path, replace=True)
        assert str(path.name) in str(caught.value), what
        seen.append(what)
    assert len(seen) >= 7
    for name in ("missing.zip", "missing.db", "folder.txt"):
        with pytest.raises(CaliberError):
            caliber.restore(backend.config(), tmp_path / name, replace=True)
    if backend.adapter == "sqlite":
        (tmp_path / "other.db").write_bytes(b"SQLite format 3\0" + bytes(4080))
        with pytest.raises(CaliberError):
            caliber.restore(backend.config(), tmp_path / "other.db", replace=True)
    assert rows_of(memory) == before
    assert memory.admin.verify() == []


def test_an_archive_made_to_do_harm_is_refused(file_backend: Any, tmp_path: Path) -> None:
    # P-083: an archive may come from anybody, and its manifest says numbers that statements are made with
    memory = file_backend.open()
    made = memory.admin.backup(tmp_path / "all.zip")
    memory.close()
    with zipfile.ZipFile(made.path) as file:
        parts = {info.filename: file.read(info) for info in file.infolist()}
    right = json.loads(parts["manifest.json"])
    evil = tmp_path / "evil.db"
    sql = f"1); COMMIT; ATTACH '{evil}' AS e; CREATE TABLE e.x (a); --"
    harm: dict[str, Any] = {name: {"last_ordinal": value} for name, value in (("sql", sql), ("below", -5))}
    harm |= {"beyond": {"last_ordinal": 2**70}, "rows": {"rows": "x"}, "digest": {"rows_sha256": None}}
    first, *others = right["relations"]
    members = {name: [{**first, **each}, *others] for name, each in harm.items()}
    members |= {"twice": [first, first, *others]}
    manifests = {name: {**right, "relations": each} for name, each in members.items()}
    raws = {name: json.dumps(manifest).encode() for name, manifest in manifests.items()}
    raws |= {"version": json.dumps({**right, "schema_version": "9"}).encode(), "number": b"5", "deep": b"[" * 900_000}
    for what, raw in raws.items():
        with zipfile.ZipFile(made.path, "w") as file:
            for name, content in {**parts, "manifest.json": raw}.items():
                file.writestr(name, content)
        with pytest.raises(InvalidValue, match="is not an archive"):
            caliber.restore(file_backend.config(), made.path, replace=True)
        assert not evil.exists(), what


@needs("reopen")
def test_rows_that_do_not_come_back_are_noticed(backend: Any, agent: Any, tmp_path: Path) -> None:
    memory = agent.memory
    fill(memory, large=False)
    made = memory.admin.backup(tmp_path / "all.zip")
    # A whole archive whose manifest promises other rows than it holds: only reading back can tell.
    with zipfile.ZipFile(made.path) as file:
        parts = {info.filename: file.read(info) for info in file.infolist()}
    digest = next(member.rows_sha256 for member in _manifest(made.path).relations if member.relation == "note")
    parts["manifest.json"] = parts["manifest.json"].replace(digest.encode(), digest[::-1].encode())
    with zipfile.ZipFile(made.path, "w") as file:
        for name, raw in parts.items():
            file.writestr(name, raw)
    before = rows_of(memory)
    with pytest.raises(StorageError, match="note did not come back"):
        caliber.restore(backend.config(), made.path, replace=True)
    assert rows_of(memory) == before


def _manifest(path: Path) -> Any:
    archive = Archive(path)
    archive.close()
    return archive.manifest


def test_a_full_disk_leaves_no_half_backup(backend: Any, filled: caliber.Caliber, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    there = names(tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(Unavailable, match="cannot be written"):
            filled.admin.backup(tmp_path / "all.zip")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == there
    with pytest.raises(Unavailable, match="folder does not exist"):
        filled.admin.backup(tmp_path / "missing" / "all.zip")
    assert filled.admin.verify() == []


@needs("reopen")
def test_the_audit_is_exported_and_then_pruned(backend: Any, start: Any, tmp_path: Path) -> None:  # M-139
    clock = FixedClock()
    memory = backend.open(clock=clock)
    note = start(memory).note("one")
    memory.update_note(note.note_id, content="two é")
    clock.advance(ms=1)
    cut = from_us(clock.now_us())
    memory.update_note(note.note_id, content="three")
    assert memory.admin.export_audit(tmp_path / "all.jsonl") == 2
    assert memory.admin.export_audit(tmp_path / "old.jsonl", before=cut, prune=True) == 1
    (line,) = (tmp_path / "old.jsonl").read_text(encoding="utf-8").splitlines()
    assert (tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()[0] == line
    assert stat.S_IMODE((tmp_path / "old.jsonl").stat().st_mode) == 0o600
    exported = json.loads(line)
    assert exported["payload"]["changes"]["content"] == ["one", "two é"]
    assert (exported["event_type"], exported["principal"]) == ("note_update", "admin:owner")
    left = [event for event in memory.storage.events.all() if event.family == "audit"]
    assert [event.event_type for event in left] == ["note_update", "audit_export"], "never silent"
    assert left[1].payload == {"removed": 1}
    assert memory.undo_note(note.note_id).content == "two é"
    with pytest.raises(Conflict, match="no correction"):
        memory.undo_note(note.note_id)
    for path, failure in ((tmp_path / "old.jsonl", Conflict), (tmp_path / "none" / "a.jsonl", Unavailable)):
        with pytest.raises(failure):
            memory.admin.export_audit(path, prune=True)
    assert len([event for event in memory.storage.events.all() if event.family == "audit"]) == 3
    with pytest.raises(PermissionDenied):
        memory.as_user("anna").admin.export_audit(tmp_path / "hers.jsonl")
    assert not [name for name in names(tmp_path) if "hers" in name or name.endswith((".part", ".lock"))]


def test_every_relation_is_carried_or_belongs_to_the_database() -> None:
    assert {relation.name for relation in RELATIONS} - {each.name for each in dump_relations(BUILT_IN)} == {
        "change",
        "schema_migration",
    }


def test_a_file_system_without_links_is_restored_on_too(
    file_backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    memory = file_backend.open()
    fill(memory, large=False)
    made = memory.admin.backup(tmp_path / "all.zip")
    rows = rows_of(memory)
    memory.close()
    Path(file_backend.path).unlink()
    monkeypatch.setattr("os.link", no_links)
    caliber.restore(file_backend.config(), made.path)
    with caliber.open(file_backend.config()) as again:
        check_same(rows_of(again), rows)
