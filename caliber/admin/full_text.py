"""Administration of the database's full-text index: rebuild it as a job, complete, drop or check it."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from caliber.backends import backend
from caliber.config import CaliberConfig
from caliber.engine import pacing
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim, Superseded
from caliber.jobs.foreground import ForegroundQueue, reported
from caliber.jobs.handlers import IDLE, Handler
from caliber.jobs.queue import JobQueue
from caliber.model.errors import CaliberError, in_a_line
from caliber.model.progress import Progress, unheard
from caliber.model.time import SystemClock
from caliber.search.in_database.full_text import WordIndexer, indexer_of, rebuild
from caliber.search.in_database.opening import full_text_of
from caliber.storage.protocol import Store
from caliber.storage.sql.full_text import BuildPosition

KIND: Final = "full_text.rebuild"
REBUILD: Final = uuid.UUID(bytes=hashlib.sha256(b"caliber:full_text").digest()[:16])
"""The job of the store's full text."""


def register_full_text(engine: Engine, jobs: JobQueue) -> None:
    """Have this process complete a full text whose rebuild was cut short, by a kill or an outage."""
    full_text = engine.store.full_text
    if full_text is None:
        return

    def run(claim: Claim) -> int:
        """Index pages for a while, from the position that the job keeps."""
        state = full_text.state()
        if state is None or state.complete:
            return 0
        indexer = indexer_of(state.analyzer) or WordIndexer(engine.config.search.keyword.language)
        begun = kept = time.monotonic()
        for at in full_text.build(indexer, _position(claim.job.payload)):
            now = time.monotonic()
            if claim.stopping:
                break
            if now >= begun + pacing.SLICE_S or now >= kept + pacing.REPORT_S:
                kept = now
                payload = {**at._asdict(), "build": at.build.hex()}
                jobs.write(lambda uow, payload=payload: claim.advance(uow, payload))  # type: ignore[misc]
                claim.report(at.done, max(at.done, at.total))
            if now >= begun + pacing.SLICE_S:
                claim.interrupt()
                break
        return 1

    jobs.register(Handler(KIND, run, priority=IDLE))


def _position(payload: dict[str, Any]) -> BuildPosition | None:
    """Return the position that a job keeps; None of a new one, and of one that forgetting redacted."""
    try:
        return BuildPosition(**{**payload, "build": bytes.fromhex(payload["build"])})
    except (KeyError, TypeError, ValueError):
        return None


def rebuild_as_job(
    store: Store, config: CaliberConfig, indexer: WordIndexer, progress: Progress, *, clock_us: Callable[[], int]
) -> int:
    """Rebuild a store's full text in the caller's thread, as its job; return the number of texts.

    What cuts it short leaves the job to processes that have the store open. Raises: Unavailable.
    """
    full_text = full_text_of(store)
    queue = ForegroundQueue(store, lease_ms=config.jobs.lease_ms, clock_us=clock_us)
    claim = queue.take(KIND, REBUILD)
    report = reported(claim, progress)

    def on_progress(stage: str, done: int, total: int | None) -> None:
        nonlocal report
        try:
            report(stage, done, total)
        except Superseded:
            report = progress  # another caller began it anew, and its build ends this one; or a person cancelled it
            report(stage, done, total)

    try:
        held = rebuild(full_text, indexer, on_progress)
    except CaliberError as error:
        queue.postpone(claim, in_a_line(error))
        raise
    queue.end(claim)
    return held


def rebuild_full_text(config: CaliberConfig, progress: Progress | None = None) -> int:
    """Rebuild the full text of a store; return the number of texts. Others may go on writing meanwhile.

    Raises: Unavailable, SchemaMismatch; InvalidConfigValue for a database that has no full text
    """
    clock_us = SystemClock().now_us
    store = backend(config.storage.adapter).open_store(config, clock_us=clock_us)
    try:
        full_text_of(store).keep(indexer_of)
        indexer = WordIndexer(config.search.keyword.language)
        return rebuild_as_job(store, config, indexer, progress or unheard, clock_us=clock_us)
    finally:
        store.close()


def complete_full_text(config: CaliberConfig, progress: Progress | None = None) -> int | None:
    """Rebuild the full text of a store if it is incomplete, as after a migration that changed searched fields.

    Return how many texts it holds; None for a store that has none, or a complete one.
    """
    clock_us = SystemClock().now_us
    store = backend(config.storage.adapter).open_store(config, clock_us=clock_us)
    try:
        state = None if store.full_text is None else store.full_text.state()
        if store.full_text is None or state is None or state.complete:
            return None
        store.full_text.keep(indexer_of)
        indexer = indexer_of(state.analyzer) or WordIndexer(config.search.keyword.language)
        return rebuild_as_job(store, config, indexer, progress or unheard, clock_us=clock_us)
    finally:
        store.close()


def drop_full_text(config: CaliberConfig) -> bool:
    """Remove the full text of a store, which writes pay for; return whether there was one."""
    store = backend(config.storage.adapter).open_store(config, clock_us=SystemClock().now_us)
    try:
        return store.full_text is not None and store.full_text.drop()
    finally:
        store.close()


def check_full_text(store: Store, config: CaliberConfig) -> list[str]:
    """Return in what full text and records disagree; empty when sound, or when there is none."""
    full_text = store.full_text
    state = None if full_text is None else full_text.state()
    if full_text is None or state is None:
        return []
    indexer = indexer_of(state.analyzer)
    return full_text.check(WordIndexer(config.search.keyword.language) if indexer is None else indexer)
