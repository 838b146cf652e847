"""Removal of expired windows, events, changes, jobs and locks, and of records that ended; archiving of lapsed records.

Tasks that nobody works on any more are ended. Source: design section 8, C-355, C-361, C-479, K-189.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from caliber.engine.engine import Engine
from caliber.jobs.claims import Superseded
from caliber.jobs.queue import JobQueue
from caliber.model.time import MS_US
from caliber.retention.retaining import SWEEP, Retaining
from caliber.schema.relations import RELATIONS
from caliber.storage.write.ending import archive
from caliber.storage.write.unit_of_work import UnitOfWork

PAGE: Final = 500
CHANGES_KEEP_ROWS: Final = 100_000
"""Newest change records, kept whatever their age."""
_JOB_HISTORY_US: Final = 7 * 86_400 * 1_000_000
"""Time that ended jobs are kept."""
"""The most ended records that one transaction deletes."""


def maintain(engine: Engine) -> dict[str, int]:
    """Remove expired records in one transaction; return the number of rows of each kind.

    Audit records are never removed here; knowledge and turns only by the retention of declared memories, in batches
    after it. Ended delegations and handoffs go a page a transaction. Conflicts stay while their records may be compared
    again: a resolved conflict keeps its pair from being reported anew, and a recovery of a task reads it. Artifacts
    past their TTL are retired, not deleted. Abandoned tasks are ended, a batch a call.
    """
    from caliber.agents.locking.lock_queue import reap  # a store is opened without it

    engine.check_open()
    retention, jobs = engine.config.retention, engine.part(JobQueue)

    def work(uow: UnitOfWork) -> dict[str, int]:
        now = uow.now_us

        def before(keep_ms: Any) -> int | None:
            return now - keep_ms * 1_000 if isinstance(keep_ms, int) else None

        out: dict[str, int] = {}
        for relation in uow.catalog.mirrored:
            lapsed = uow.lapsed(relation)
            for record in lapsed:
                archive(uow, relation, record)
            if engine.store.plans[relation.name].lapsed is not None:
                out[relation.plural] = len(lapsed)
        out |= {"windows": 0, "events": 0, "changes": 0}
        out["jobs"] = uow.execute("job.prune", now - _JOB_HISTORY_US)
        windows = before(retention.windows_ms)
        out["windows"] = uow.execute("window.prune", now, _LONG_AGO if windows is None else windows)
        events = before(retention.events_ms)
        if events is not None:
            out["events"] = uow.execute("event.prune", events)
            # A job without a configured handler is kept as long as the log that would report it.
            out["abandoned_jobs"] = uow.execute("job.prune_abandoned", events, jobs.kinds)
        changes = before(retention.changes_ms)
        if changes is not None:
            out["changes"] = uow.execute("change.prune", changes, CHANGES_KEEP_ROWS)
        # Another process may still have a window in its queue that used content replaced meanwhile.
        behind = engine.config.write_behind
        queued = behind.flush_interval_ms + behind.shutdown_ms
        out["contents"] = uow.execute("content.prune", now - queued * 1_000)
        out["embedding_cache"] = uow.execute(
            "embedding_cache.prune", now - engine.config.embedding_cache_retention * 1_000
        )
        out["locks"] = 0
        out["expired_messages"] = uow.execute("message.expire", now)
        out["messages"] = uow.execute("message.prune", now - engine.config.message_retention * 1_000)
        return out

    # Windows still in the queue may refer to contents that would go now.
    engine.behind.flush()
    removed = engine.write(work)
    removed["locks"] = reap(engine.write)
    removed |= _prune_ended(engine, retention.windows_ms)
    removed["memories"] = 0
    retaining = Retaining(engine)
    if retaining.sweeps:
        with contextlib.suppress(Superseded), jobs.holding(SWEEP) as claim:
            removed["memories"] = 0 if claim is None else retaining.sweep(claim)
    removed |= {"trajectories_failed": 0, "scopes_closed": 0}
    if engine.config.orphan_detection_threshold is not None:
        from caliber.pcp.orphans import SWEEP as ORPHANS
        from caliber.pcp.orphans import Orphans

        with contextlib.suppress(Superseded), jobs.holding(ORPHANS) as claim:
            if claim is not None:
                removed |= engine.part(Orphans).end(claim)
    return removed


def _prune_ended(engine: Engine, kept_ms: int | None) -> dict[str, int]:
    """Delete records that ended long enough ago, a page a transaction; return their number by kind."""
    out: dict[str, int] = {}
    if kept_ms is None:
        return out
    for relation in RELATIONS:
        if relation.finished is None:
            continue
        statement = f"{relation.name}.prune"

        def work(uow: UnitOfWork, statement: str = statement) -> int:
            return uow.execute(statement, max(uow.now_us - kept_ms * MS_US, 0), PAGE)

        out[relation.plural] = 0
        while removed := engine.write(work):
            out[relation.plural] += removed
            if removed < PAGE:
                break
    return out


_LONG_AGO = -(2**63)
