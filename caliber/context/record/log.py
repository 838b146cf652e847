"""Write-behind of persisted windows: the writer thread packs each window's record and inserts its row."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable
from typing import Any

from caliber.engine.write_behind import Deferred, WriteBehind
from caliber.model.context import StoredWindow
from caliber.schema.relations import CONTEXT_WINDOW, TRAJECTORY
from caliber.storage.write.unit_of_work import UnitOfWork


class WindowLog(Deferred):
    """Items are windows by id, or functions without arguments that make one."""

    def __init__(self) -> None:
        self.windows = 0
        """Windows written so far, and their size."""
        self.bytes = 0

    def make(self, items: dict[Hashable, Any]) -> None:
        for key, window in items.items():
            if not isinstance(window, StoredWindow):
                items[key] = window()

    def write(self, uow: UnitOfWork, items: Iterable[StoredWindow]) -> None:
        # A window goes with its trajectory, also when that was deleted before the window reached the disk.
        windows = list(items)
        trajectories = {window.trajectory_id.bytes for window in windows}
        alive = {key for key in trajectories if uow.find(TRAJECTORY, key) is not None}
        for window in windows:
            if window.trajectory_id.bytes in alive:
                uow.insert_new(CONTEXT_WINDOW, window)

    def written(self, items: Iterable[StoredWindow]) -> None:
        for window in items:
            self.windows += 1
            self.bytes += len(window.record)

    def pending(self, behind: WriteBehind, window_id: uuid.UUID) -> StoredWindow | None:
        """Return a window that may not be on disk yet."""
        found = behind.find(self, window_id)
        window: StoredWindow | None = found if found is None or isinstance(found, StoredWindow) else found()
        return window
