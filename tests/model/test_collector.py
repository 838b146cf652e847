"""The pause of the garbage collector: no collection inside, and nothing of the program's own choice is undone."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from caliber.model.process.interpreter import collector_paused


@pytest.fixture(autouse=True)
def as_found() -> Iterator[None]:
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.unfreeze()
    gc.enable()
    yield
    gc.unfreeze()
    if frozen:
        gc.freeze()
    (gc.enable if enabled else gc.disable)()


def rings(count: int) -> None:
    """Make objects that only the collector finds."""
    for _ in range(count):
        ring: list[object] = []
        ring.append(ring)


def test_nothing_is_collected_inside_and_garbage_afterwards() -> None:
    gc.collect()
    with collector_paused():
        before = gc.get_stats()
        rings(10_000)
        assert [each["collections"] for each in gc.get_stats()] == [each["collections"] for each in before]
    assert gc.isenabled()
    gc.collect()
    assert sum(each["collected"] for each in gc.get_stats()) >= sum(each["collected"] for each in before) + 10_000


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with collector_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_it_runs_again_after_an_error_and_after_a_pause_within_a_pause() -> None:
    with pytest.raises(ValueError, match="halfway"), collector_paused(), collector_paused():
        raise ValueError("halfway")
    assert gc.isenabled()


def test_objects_that_the_program_froze_stay_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with collector_paused():
        pass
    assert gc.get_freeze_count() > frozen // 2 > 0  # some may have been freed


_FRESH = """
import gc, json
full = []
gc.callbacks.append(lambda phase, info: full.append(info["generation"]) if phase == "start" else None)
import caliber
config = caliber.profiles.reference(":memory:")
before = len(full)
caliber.open
with caliber.open(config):
    print(json.dumps([before, full]))
"""


def test_a_fresh_process_opens_a_store_without_a_full_collection() -> None:
    # Each looks at every object there is: some 40 ms of a start.
    done = subprocess.run([sys.executable, "-c", _FRESH], capture_output=True, text=True, check=True)
    before, generations = json.loads(done.stdout)
    assert 2 not in generations
    assert len(generations) <= 25, (before, generations)


_CLOSED = """
import weakref
import caliber
config = caliber.profiles.reference(":memory:")
most, stores = 0, []
for _ in range(40):
    memory = caliber.open(config)
    stores.append(weakref.ref(memory._engine.memory))
    memory.close()
    del memory
    rows = [[[number] for number in range(1_000)] for _ in range(20)]  # what a program does in between
    most = max(most, sum(store() is not None for store in stores))
print(most)
"""


def test_stores_that_are_closed_leave_memory_without_being_asked() -> None:
    # The memory of a closed store is a cycle. What was made during the pause must not count as old: nothing would look.
    done = subprocess.run([sys.executable, "-c", _CLOSED], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10


def test_what_lasts_is_left_to_full_collections() -> None:
    old = len(gc.get_objects(generation=2))
    with collector_paused(lasting=True):
        lists = [[number] for number in range(10_000)]
    assert len(gc.get_objects(generation=2)) > old + len(lists) // 2
