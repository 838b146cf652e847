"""Facet ``memory.admin``: statistics, checks, backup, retention sweep, task purge, vacuum and views."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Any

from caliber.admin import backup as backups
from caliber.admin import inspection, maintenance, spaces
from caliber.admin.backup import BackupReport
from caliber.admin.checking import check_full_text, check_memory, check_store
from caliber.admin.spaces import Rebuilt, Sweep
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.erasure import ForgetReport
from caliber.model.joining import refuse_inside
from caliber.model.progress import Progress, unheard
from caliber.model.references import Id
from caliber.model.storage import OperationStats
from caliber.storage.maintain.integrity import Finding
from caliber.storage.maintain.maintenance import StoreStatus, Vacuumed

if TYPE_CHECKING:
    from caliber.admin.inspection import Inspection


class Admin:
    """Administration of one tenant. Raises: PermissionDenied without an admin, but for ``stats`` and ``inspect``."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal

    def _require(self, action: str) -> Engine:
        self._engine.check_open()
        self._principal.require_admin(action, "the store")
        refuse_inside("administration has transactions of its own", self._engine.store)
        return self._engine

    # --- memory and records ----------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return figures: records, bytes on disk and in memory, statements, pending work.

        A principal that is no admin gets no counts of records that include some it may not see.
        """
        return inspection.stats(self._engine, self._principal)

    def operations(self, *, window_ms: int = 10_000) -> list[OperationStats]:
        """Return rates and latencies of the operations that all processes recorded in the last ``window_ms``.

        Those are recorded of which ``write_behind.operation_share`` draws a share; docs/observability.md.
        """
        from caliber.admin.inspection import recent_operations  # for people who watch

        window = arguments.as_whole(window_ms, "window_ms", 1)
        return recent_operations(self._require("read operations of"), window)

    def verify(self) -> list[str]:
        """Compare memory and store row by row, and check the store itself; return no findings when all is well."""
        return inspection.verify(self._require("verify"))

    def maintain(self) -> dict[str, int]:
        """Apply retention: of memories, windows, events, changes, ended delegations, unused content, lapsed locks."""
        return maintenance.maintain(self._require("maintain"))

    def purge_trajectory(
        self, trajectory_id: Id, *, dry_run: bool = False, wait_ms: int | None = None, scrub_log: bool = False
    ) -> ForgetReport:
        """Erase a task, those it started, and records drawn from them alone. Raises: NotFound."""
        from caliber.erasure.service import Forgetting

        return Forgetting(self._engine, self._principal).purge_trajectory(
            arguments.as_uuid(trajectory_id, "trajectory_id"),
            dry_run=arguments.as_flag(dry_run, "dry_run"),
            wait_ms=wait_ms,
            scrub_log=arguments.as_flag(scrub_log, "scrub_log"),
        )

    def resume_forgetting(self, *, wait_ms: int | None = None) -> list[ForgetReport]:
        """Finish erasures that a process left in the middle; return no reports when all are finished."""
        from caliber.erasure.service import Forgetting

        wait = None if wait_ms is None else arguments.as_whole(wait_ms, "wait_ms")
        return Forgetting(self._engine, self._principal).resume(wait_ms=wait)

    @property
    def inspect(self) -> Inspection:
        """Values that tools show of the store, as this principal sees it, such as the command line."""
        from caliber.admin.inspection import Inspection  # for tools

        return Inspection(self._engine, self._principal)

    # --- search ----------------------------------------------------------------------------------

    def sweep(self, *, dry_run: bool = False) -> Sweep:
        """Remove orphaned vectors, and spaces without any; with ``dry_run`` only count them."""
        self._require("sweep")
        return spaces.sweep(self._engine, dry_run=arguments.as_flag(dry_run, "dry_run"))

    def rebuild_search(self, *, full_text: bool = True, progress: Progress | None = None) -> Rebuilt:
        """Rebuild everything that search reads, and verify it; ``progress`` is called as each stage begins.

        Raises: LlmError kinds of an outage of the embedding provider.
        """
        engine = self._require("rebuild")
        report = arguments.as_callback(progress, "progress") or unheard
        arguments.as_flag(full_text, "full_text")

        def verify() -> list[str]:
            return [*inspection.verify(engine), *check_full_text(engine.store, engine.config)]

        return spaces.rebuild_search(engine, verify, report, full_text=full_text)

    # --- files and tables ------------------------------------------------------------------------

    def status(self) -> StoreStatus:
        """Return the state of the store: sizes, rows, indexes, position, connections, standby servers."""
        return self._require("read").store.maintenance.status()

    def vacuum(self, *, full: bool = False, progress: Progress | None = None) -> Vacuumed:
        """Give room back to the disk, and renew the statistics of the planner.

        SQLite rewrites the file. PostgreSQL makes room within its tables; with ``full`` it rewrites each, and nobody
        can read it meanwhile.

        Raises: Unavailable
        """
        engine = self._require("vacuum")
        report = arguments.as_callback(progress, "progress") or unheard
        return engine.store.maintenance.vacuum(full=arguments.as_flag(full, "full"), progress=report)

    def backup(
        self, path: str | os.PathLike[str], *, replace: bool = False, progress: Progress | None = None
    ) -> BackupReport:
        """Write everything to one file, as of one commit; writers and readers continue.

        ``*.zip`` is an archive that every database restores (extra ``arrow``), ``*.db`` a copy of a SQLite file. It
        appears once it is whole and on disk. ``caliber.restore`` makes a store of it.

        Raises: Conflict for a file that is there unless ``replace``; InvalidValue, Unavailable, ExtraNotInstalled
        """
        engine = self._require("back up")
        report = arguments.as_callback(progress, "progress") or unheard
        target, over = arguments.as_path(path, "path"), arguments.as_flag(replace, "replace")
        engine.behind.flush()
        return backups.backup(engine.store, target, replace=over, progress=report)

    def export_audit(self, path: str | os.PathLike[str], *, before: datetime | None = None, prune: bool = False) -> int:
        """Write the audit events, or those from before an instant, to a file, a line of JSON each; return how many.

        With ``prune`` they are removed once the file is on disk, all or none: their corrections can no longer be
        undone. ``forget`` does not reach the file.

        Raises: Conflict for a file that is there; InvalidValue, DTypeError, Unavailable
        """
        engine, until = self._require("export the audit of"), arguments.as_instant(before, "before")
        target, removes = arguments.as_path(path, "path"), arguments.as_flag(prune, "prune")
        return backups.export_audit(engine, target, until, self._principal.label if removes else None)

    def check(self, *, progress: Progress | None = None) -> list[Finding]:
        """Return everything that does not hold: in the database, between its rows, and in memory; writes nothing."""
        engine = self._require("check")
        report = arguments.as_callback(progress, "progress") or unheard
        engine.behind.flush()
        return [*check_store(engine.store, engine.config, report), *check_memory(engine)]

    def create_views(self) -> list[str]:
        """Recreate the views for people, under the names of the sources; no code reads them. Raises: Conflict."""
        engine = self._require("create views in")
        return engine.store.maintenance.create_views()

    def drop_views(self) -> list[str]:
        """Remove the views for people; return their names."""
        return self._require("drop views of").store.maintenance.drop_views()
