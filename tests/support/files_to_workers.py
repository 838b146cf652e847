"""A pytest plugin that lets a run end when a worker dies: ``pytest -p tests.support.files_to_workers``.

xdist replaces a dead worker, but with ``--dist loadfile`` the new one may wait for ever: it is handed a file whose
tests the dead one had all run, or a single test, which a worker does not begin before it knows of the next one. And a
message to a worker whose death is not known yet ends the whole run with an internal error.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


SLOW = ("tests/crash/", "tests/instructions/")
"""Files of few tests that take seconds each. As the last of a run they would leave the other workers idle."""


class FilesToWorkers(LoadFileScheduling):
    """Hands whole files to workers, slow ones early, and what a dead worker has left to the others."""

    def schedule(self) -> None:
        """Hand out files, those of most tests first; after the first ones, those that are slow."""
        begun = self.collection is not None
        super().schedule()
        if not begun:
            for name in sorted(self.workqueue, key=lambda name: not name.startswith(SLOW)):
                self.workqueue[name] = self.workqueue.pop(name)

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker; return the test that it died in, if there is one, which no other worker is handed."""
        files = self.assigned_work.pop(node)
        left = {
            name: {test: False for test, done in tests.items() if not done}
            for name, tests in files.items()
            if not all(tests.values())
        }
        if not left:
            return None
        name, tests = next(iter(left.items()))
        died_in = next(iter(tests))
        del tests[died_in]
        if not tests:
            del left[name]
        self.workqueue.update(left)
        for other in self.nodes:
            self._reschedule(other)
        return died_in

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return  # it has not told its tests yet, and is asked again when it has
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        # A worker that is dead without anybody knowing keeps its files until that is known: then they are handed on.
        with contextlib.suppress(OSError):
            super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesToWorkers | None:
    return FilesToWorkers(config, log) if config.getoption("dist") == "loadfile" else None
