"""Power is cut at every sync point of a creation, and of the creation that repeats it: it can always be repeated.

The first page of the file is torn at each byte. Source: design section 10; issue 12, First, item 1.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.configs import USER
from support.crash.powerloss import NAME, Cut, Disk, put
from support.crash.workload import settings_for
from support.evidence import record, seed, soaking

import caliber
from caliber.backends.sqlite import open_records
from caliber.backends.sqlite.connecting import connection
from caliber.config.tenancy import SqliteDirectory
from caliber.model.errors import CaliberError, Conflict

pytestmark = pytest.mark.prove

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


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.unregister()


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
