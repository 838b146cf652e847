"""Power is cut at every sync point and after every acknowledged write; what was unsynced is lost in every way it can.

After each cut the store is opened as always and must hold every acknowledged write, whole. The same run with a build
that does not sync is caught. A creation that was cut can be repeated; the first page of its file is torn at each byte.
Source: design section 10; issue 12, First, item 1.
"""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.configs import USER
from support.crash.powerloss import NAME, Cut, Disk, put
from support.crash.workload import Worker, check, settings_for
from support.evidence import record, scale, seed, soaking

import caliber
from caliber.backends.sqlite import open_records
from caliber.backends.sqlite.connecting import connection
from caliber.config.tenancy import SqliteDirectory
from caliber.model.errors import CaliberError, Conflict

pytestmark = pytest.mark.prove

STEPS = scale(14, 160)
CUTS_CHECKED = scale(24, 10**9)


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.unregister()


class Run:
    """A workload on the disk, and every moment at which its power may be cut."""

    def __init__(self, disk: Disk, folder: Path, durability: str, steps: int, threads: int = 1) -> None:
        self.ledger: list[dict[str, Any]] = []
        self.cuts: list[Cut] = []
        self._disk = disk
        folder.mkdir(parents=True, exist_ok=True)
        settings = settings_for(
            str(folder / "store.db"), storage__durability=durability, storage__wal_autocheckpoint_pages=25,
        )  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "VFS", NAME)
            self._use(settings, disk, durability, steps, threads)
        self._cut("the end")
        disk.at_sync = lambda _: None
        disk.files.clear()

    def _use(self, settings: Any, disk: Disk, durability: str, steps: int, threads: int) -> None:
        disk.at_sync = lambda name: self._cut(f"sync of {Path(name).name}")
        caliber.create(settings)
        self.while_creating, self.cuts = self.cuts, []
        with caliber.open(settings) as memory:
            if threads == 1:
                self._work(memory, 0, steps)
            else:
                workers = [threading.Thread(target=self._work, args=(memory, at, steps)) for at in range(threads)]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join(120)

    def _work(self, memory: caliber.Caliber, number: int, steps: int) -> None:
        worker = Worker(memory, random.Random(seed() + number), f"w{number}", self._acknowledge)
        worker.begin()
        for _ in range(steps):
            worker.step()

    def _acknowledge(self, entry: dict[str, Any]) -> None:
        self.ledger.append(entry)
        self._cut(f"acknowledged {entry['kind']}")

    def _cut(self, why: str) -> None:
        # The ledger's length is taken first: what is acknowledged meanwhile is on the disk later.
        acknowledged = len(self.ledger)
        self.cuts.append(self._disk.now(why, acknowledged))


def faults_after(run: Run, cut: Cut, folder: Path, rng: random.Random) -> tuple[int, list[str]]:
    """Open what each possible cut leaves; return how many there were, and what they broke."""
    tried = 0
    faults = []
    for name, files in cut.images(rng):
        tried += 1
        put(files, folder)
        found = check(settings_for(str(folder / "store.db")), run.ledger[: cut.acknowledged])
        faults += [f"{cut.why}, {name}: {fault}" for fault in found]
    return tried, faults


def chosen(cuts: list[Cut], rng: random.Random) -> list[Cut]:
    """Return all cuts at full scale, else some of each kind."""
    return cuts if len(cuts) <= CUTS_CHECKED else rng.sample(cuts, CUTS_CHECKED)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("durability", ["commit", "group"])
def test_every_acknowledged_write_survives_a_power_cut(durability: str, disk: Disk, tmp_path: Path) -> None:
    # design section 10: power loss
    started = time.monotonic()
    rng = random.Random(seed())
    print(f"seed {seed()}")
    run = Run(disk, tmp_path / "run", durability, STEPS, threads=3 if durability == "group" else 1)
    assert {cut.why for cut in run.cuts} >= {"sync of store.db-wal", "sync of store.db", "acknowledged trajectory"}
    assert any(pending for cut in run.cuts for _, pending in cut.files.values()), "nothing was ever unsynced"
    tried = 0
    for cut in chosen(run.cuts, rng):
        states, faults = faults_after(run, cut, tmp_path / "after", rng)
        tried += states
        assert faults == [], faults[:5]
    record(
        f"power-loss-{durability}",
        f"Power cut at every sync point and after every acknowledged write, durability {durability}",
        {
            "seed": seed(),
            "sync points": disk.syncs,
            "moments of a cut": len(run.cuts),
            "states of the disk opened and checked": tried,
            "acknowledged writes": len(run.ledger),
            "faults": 0,
            "seconds": round(time.monotonic() - started),
        },
    )


def test_power_cut_while_a_store_is_created_can_be_repeated(disk: Disk, tmp_path: Path) -> None:
    """A creation that was cut short is repeated, or left a store; nothing stands in the way."""
    rng = random.Random(seed())
    run = Run(disk, tmp_path / "run", "commit", 0)
    assert len(run.while_creating) >= 3
    for cut in run.while_creating:
        for name, files in cut.images(rng):
            put(files, tmp_path / "after")
            settings = settings_for(str(tmp_path / "after" / "store.db"))
            caliber.create(settings, exist_ok=True)
            assert check(settings, []) == [], f"{cut.why}, {name}"


@pytest.mark.parametrize("durability", ["commit", "group"])
@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
def test_build_that_does_not_sync_is_caught(
    synchronous: str, durability: str, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker is itself tested: OFF never syncs, NORMAL not at each commit; both lose what they acknowledged."""
    monkeypatch.setattr(connection, "SYNCHRONOUS", synchronous)
    run = Run(disk, tmp_path / "run", durability, 8)
    monkeypatch.undo()
    rng = random.Random(seed())
    found: list[str] = []
    for cut in run.cuts:
        # A checkpoint syncs what came before it, so not every moment shows the loss; one is enough.
        if cut.why.startswith("acknowledged") and not found:
            found = faults_after(run, cut, tmp_path / "after", rng)[1]
    assert any("is lost" in fault or "does not open" in fault for fault in found), found[:5]
    record(
        f"power-loss-{durability}-synchronous-{synchronous.lower()}",
        f"A build with synchronous={synchronous}, durability {durability}: what the power cut test makes of it",
        {
            "seed": seed(),
            "caught": "yes",
            "faults at the first cut that shows it": len(found),
            "such as": _shape(found[0]),
        },
    )


def _shape(fault: str) -> str:
    """Return a fault without the ids and folders in it."""
    return re.sub(r"/\S*/", "", re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "…", fault))


def test_disk_forgets_what_was_not_synced_and_nothing_else(disk: Disk, tmp_path: Path) -> None:
    """The disk under test is tested too, with bare SQLite."""
    import apsw

    path = tmp_path / "plain.db"
    database = apsw.Connection(
        f"file:{path}?vfs={NAME}", flags=apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    )
    database.execute("PRAGMA journal_mode = WAL").fetchall()
    database.execute("PRAGMA synchronous = FULL; CREATE TABLE t (a)").fetchall()
    database.execute("INSERT INTO t VALUES (1)").fetchall()
    database.execute("PRAGMA synchronous = OFF").fetchall()
    database.execute("INSERT INTO t VALUES (2)").fetchall()
    cut = disk.now("now", 0)
    assert database.execute("SELECT count(*) FROM t").fetchall() == [(2,)], "while there is power, all is seen"
    database.close()
    for name, files in cut.images(random.Random(1)):
        folder = tmp_path / name.replace(" ", "-")
        put(files, folder)
        after = apsw.Connection(str(folder / "plain.db"))
        rows = after.execute("SELECT a FROM t ORDER BY a").fetchall()
        after.close()
        assert rows[0] == (1,), name
        if name == "unsynced writes gone":
            assert rows == [(1,)]
        if name == "everything there":
            assert rows == [(1,), (2,)]


FEW = (1, 2, 3, 9, 15, 16, 17, 100, 512, 4095)
LENGTHS: Collection[int] = range(1, 4096) if soaking() else FEW
"""How many bytes of the first page are there."""


@dataclass(frozen=True)
class Created:
    """Something that is created as one file: how, and how it is used afterwards."""

    name: str
    create: Callable[[Path], None]
    use: Callable[[Path], None]


def _create_store(path: Path) -> None:
    # Pages are never mapped into memory: the VFS would not see what is written there.
    with contextlib.suppress(Conflict):  # it is whole
        caliber.create(settings_for(str(path)))


def _use_store(path: Path) -> None:
    with caliber.open(settings_for(str(path))) as memory:
        memory.start_trajectory("goal", initiator=USER)
        assert memory.admin.verify() == []


def _open_directory(path: Path, *, create: bool) -> None:
    settings = SqliteDirectory(adapter="sqlite", path=str(path))
    open_records(settings, create=create, clock_us=lambda: 1).close()


STORE = Created("store", _create_store, _use_store)
DIRECTORY = Created(
    "directory of tenants",
    lambda path: _open_directory(path, create=True),
    lambda path: _open_directory(path, create=False),
)


def cuts_of(create: Callable[[Path], None], disk: Disk, folder: Path, files: dict[str, bytes]) -> list[Cut]:
    """Return a cut for each sync point of a creation in a folder with such files, and one for its end."""
    put(files, folder)
    disk.files.clear()
    for path in folder.iterdir():
        disk.opened(str(path))
    cuts: list[Cut] = []
    disk.at_sync = lambda name: cuts.append(disk.now(f"sync of {Path(name).name}", 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "VFS", NAME)
        create(folder / "store.db")
    disk.at_sync = lambda _: None
    return [*cuts, disk.now("the end", 0)]


def states_of(cuts: list[Cut], lengths: Collection[int], rng: random.Random) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield each different state that a power cut may leave, and how it came about."""
    seen = set()
    for cut in cuts:
        images = [*cut.images(rng), *cut.sector_images(rng, 2)]
        # Of the log and what is copied from it, SQLite knows by checksums; other writes are torn at each byte.
        if all(len(pending) < 2 for _, pending in cut.files.values()):
            images += cut.torn_images(lengths)
        for name, files in images:
            state = tuple(sorted(files.items()))
            if state not in seen:
                seen.add(state)
                yield f"{cut.why}, {name}", files


@pytest.mark.timeout(0)
@pytest.mark.parametrize("created", [STORE, DIRECTORY], ids=lambda created: created.name)
def test_power_cut_at_any_byte_of_a_creation_can_be_repeated(created: Created, disk: Disk, tmp_path: Path) -> None:
    # issue 12, First, item 1
    started = time.monotonic()
    print(f"seed {seed()}")
    rng = random.Random(seed())
    after = tmp_path / "after"
    tried = 0
    for name, files in states_of(cuts_of(created.create, disk, tmp_path / "run", {}), LENGTHS, rng):
        # At once, and when somebody has tried to use it before.
        for used_before in (False, True):
            tried += 1
            put(files, after)
            try:
                if used_before:
                    with contextlib.suppress(CaliberError):
                        created.use(after / "store.db")
                created.create(after / "store.db")
                created.use(after / "store.db")
            except CaliberError as error:
                raise AssertionError(f"{name}, used before: {used_before}") from error
            assert {path.name for path in after.iterdir()} == {"store.db"}, name
    assert tried > 2 * len(LENGTHS)
    record(
        f"power-loss-creation-{created.name.replace(' ', '-')}",
        f"Power cut at every sync point of the creation of a {created.name}, its first page torn at each byte",
        {
            "seed": seed(),
            "states of the disk in which it was created again": tried,
            "faults": 0,
            "seconds": round(time.monotonic() - started),
        },
    )


@pytest.mark.timeout(0)
@pytest.mark.parametrize("length", [1, 9] if not soaking() else range(1, 4096, 45))
def test_power_cut_while_a_creation_is_repeated_can_be_repeated(length: int, disk: Disk, tmp_path: Path) -> None:
    # issue 12, First, item 1
    rng = random.Random(seed())
    cuts = cuts_of(STORE.create, disk, tmp_path / "run", {})
    first_page = next(cut for cut in cuts if cut.why == "sync of store.db")
    ((_, files),) = first_page.torn_images([length])
    assert (len(files["store.db"]), len(files["store.db-journal"])) == (length, 512)
    cuts = cuts_of(STORE.create, disk, tmp_path / "again", files)
    assert len(cuts) > 7
    for name, again in states_of(cuts, FEW if soaking() else (1, 2), rng):
        put(again, tmp_path / "after")
        try:
            STORE.create(tmp_path / "after" / "store.db")
            STORE.use(tmp_path / "after" / "store.db")
        except CaliberError as error:
            raise AssertionError(name) from error
