"""Write-behind of persisted windows: the writer thread packs each window's record and inserts its row."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from caliber.engine.deferred_reads import DeferredReads, made, row_of
from caliber.engine.write_behind import WriteBehind
from caliber.model.context import StoredWindow
from caliber.schema.relations import CONTEXT_WINDOW, TRAJECTORY
from caliber.storage.write.unit_of_work import UnitOfWork


class WindowLog(DeferredReads):
    """Rows are windows, by id."""

    def __init__(self) -> None:
        self.windows = 0
        """Windows written so far, and their size."""
        self.bytes = 0

    def insert(self, uow: UnitOfWork, rows: Sequence[StoredWindow]) -> None:
        # A window goes with its trajectory, also when that was deleted before the window reached the disk.
        trajectories = {window.trajectory_id.bytes for window in rows}
        alive = {key for key in trajectories if uow.find(TRAJECTORY, key) is not None}
        for window in rows:
            if window.trajectory_id.bytes in alive:
                uow.insert_new(CONTEXT_WINDOW, window)

    def written(self, items: Iterable[Any]) -> None:
        for window in map(row_of, items):
            self.windows += 1
            self.bytes += len(window.record)

    def pending(self, behind: WriteBehind, window_id: uuid.UUID) -> StoredWindow | None:
        """Return a window that may not be on disk yet."""
        found = behind.find(self, window_id)
        window: StoredWindow | None = row_of(made(found))
        return window
