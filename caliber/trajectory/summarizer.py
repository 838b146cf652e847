"""Worker that summarizes each completed block of turns of an open scope, after the commit.

A block waits for its summary as long as the row is missing: a crash loses nothing, and there is no second queue. The
worker keeps in memory only where to look next. No transaction is open while the provider works; the transaction that
stores a summary locks its turns and checks that they are still those that were summarized.

Source: design sections 4 and 5; docs/decisions/0192.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from caliber.config import CaliberConfig
from caliber.engine import pacing
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.kernels.tokens.estimators import Estimator
from caliber.llm.protocols import SummarizationProvider
from caliber.model.errors import AuthenticationFailed, CaliberError, ConfigError, SummarizationFailed
from caliber.model.ids import TurnSummaryId
from caliber.model.time import from_us
from caliber.model.trajectory import Turn, TurnSummary
from caliber.model.trust import least_trusted
from caliber.resident.memory import ResidentMemory
from caliber.schema.relation import Relation
from caliber.schema.relations import TURN, TURN_SUMMARY
from caliber.storage.compile.codec import Row, codec_of
from caliber.storage.compile.derived import derived_value
from caliber.storage.protocol import Store
from caliber.storage.waiting import Event, Worker, is_of_handler
from caliber.storage.write.changes import DELETE
from caliber.storage.write.unit_of_work import RowChange, UnitOfWork
from caliber.trajectory.outlines import Outlines, StoredOutlines
from caliber.trajectory.turn_blocks import Block, missing, outdated
from caliber.trajectory.turns import transcript

_OVERLAPPING = "turn_summary.overlapping"

_TURN_TASK: Final = codec_of(TURN).index("trajectory_id")
_TURN_NUMBER: Final = codec_of(TURN).index("turn_number")
_TURN_VERSION: Final = codec_of(TURN).version_place
_SUMMARY_TASK: Final = codec_of(TURN_SUMMARY).index("trajectory_id")

_NOT_OF_THE_TEXT: Final = (AuthenticationFailed, ConfigError)
"""Errors that no text is at fault for: the block waits until somebody has mended them, as for an outage."""


_APPENDED: Final = 0
_ALL: Final = 1
_REWRITTEN: Final = 2
"""The part of a trajectory to look at: appended turns; all turns; all, and refused blocks once more."""


class _Task(NamedTuple):
    """A block to summarize, or a summary to check."""

    trajectory: bytes
    scope: bytes
    block: Block
    is_outdated: bool


class TurnSummarizer:
    """Summarizes completed blocks of turns of one tenant, behind its commits."""

    def __init__(
        self,
        store: Store,
        memory: ResidentMemory,
        config: CaliberConfig,
        provider: SummarizationProvider,
        outlines: Outlines,
        *,
        estimator: Estimator,
        failed: Callable[[CaliberError], None],
    ) -> None:
        self._store = store
        self._memory = memory
        self._provider = provider
        self._outlines = outlines
        self._estimator = estimator
        self._failed = failed
        self._size = config.summaries.block_turns
        self._max_tokens = config.summaries.max_tokens
        self._idle_s = config.embedding.worker_idle_ms / 1000
        self._longest_idle_s = max(self._idle_s, config.llm_retry_config.max_backoff / 1000)
        self.changed: dict[bytes, int] = {}
        """Trajectories to look through, and what of them."""
        self._waiting: frozenset[bytes] = frozenset()
        """Trajectories with a block that may still get results of its last calls."""
        self._refused: dict[bytes, set[tuple[bytes, Block]]] = {}
        """Blocks by trajectory that the provider could not summarize: asked again when a turn of it changes."""
        self._tasks: deque[_Task] = deque()
        self._look_at_s: float | None = time.monotonic()
        self._looked_s = 0.0
        self._not_before_s = 0.0
        self._failures = 0
        self._lock = threading.Lock()
        self._draining = threading.Lock()
        self._wake = Event()
        self._stopped = Event()
        self._worker = Worker(self._run, "caliber-summarize")

    # --- what to look at -------------------------------------------------------------------------

    def committed(self, changes: Sequence[RowChange]) -> None:
        """Take note of turns of ours that may complete a block, and of summaries that went; quick: on every commit."""
        found = False
        for change in changes:
            relation, row = change.relation, change.row
            if relation is TURN:
                if change.operation == DELETE or row[_TURN_VERSION] > 1:
                    self._look(row[_TURN_TASK], _REWRITTEN)
                elif row[_TURN_NUMBER] % self._size == 0 or row[_TURN_TASK] in self._waiting:
                    self._look(row[_TURN_TASK], _APPENDED)
                else:
                    continue
            elif relation is TURN_SUMMARY and change.operation == DELETE:
                self._look(row[_SUMMARY_TASK], _ALL)
            else:
                continue
            found = True
        if found:
            self.start()

    def _look(self, trajectory: bytes, what: int) -> None:
        with self._lock:
            self.changed[trajectory] = max(what, self.changed.get(trajectory, what))

    def changed_elsewhere(self) -> None:
        """Take note that another program committed: its turns are looked through once it had time to do so itself."""
        if self._look_at_s is None or not self._worker.begun:
            self._look_at_s = time.monotonic() + pacing.foreign_wait_s(self._looked_s)
            self.start()

    def follows(self, relation: Relation) -> bool:
        """Return whether summaries depend on the records of a relation."""
        return relation in (TURN, TURN_SUMMARY)

    def loaded(self) -> None:
        """Take note that many turns were written at once: all open scopes are looked through now."""
        self._look_at_s = time.monotonic()
        self.start()

    def _look_through(self) -> None:
        """Have every open scope looked through."""
        self._look_at_s = None
        begun = time.monotonic()
        for trajectory in self._outlines.tasks():
            self._look(trajectory, _ALL)
        self._looked_s = time.monotonic() - begun

    def next_task(self) -> _Task | None:
        """Return the next piece of work, or None."""
        while not self._tasks:
            with self._lock:
                if not self.changed:
                    return None
                trajectory = next(iter(self.changed))
                what = self.changed.pop(trajectory)
            if what == _REWRITTEN:
                self._refused.pop(trajectory, None)
            refused = self._refused.get(trajectory, ())
            waits = False
            # Before anything is read: what is appended meanwhile is looked at once more.
            self._waiting |= {trajectory}
            for scope, outline in self._outlines.of(trajectory, whole=what != _APPENDED):
                found = missing(outline, self._size)
                waits = waits or found.waits
                if what != _APPENDED:
                    self._tasks.extend(_Task(trajectory, scope, block, True) for block in outdated(outline))
                blocks = (block for block in found.blocks if (scope, block) not in refused)
                self._tasks.extend(_Task(trajectory, scope, block, False) for block in blocks)
            if not waits:
                self._waiting -= {trajectory}
        return self._tasks.popleft()

    def count(self) -> int:
        """Return how many completed blocks of open scopes have no summary."""
        outlines = self._outlines
        return sum(
            len(missing(outline, self._size).blocks)
            for trajectory in outlines.tasks()
            for _, outline in outlines.of(trajectory, whole=False)
        )

    # --- one block -------------------------------------------------------------------------------

    def _do(self, task: _Task) -> None:
        """Summarize a block, or drop a summary that is none of its turns.

        Raises: LlmError kinds of an outage.
        """
        if task.is_outdated:
            self._drop(task)
            return
        rows = self._rows(task)
        turns = [codec_of(TURN).decode(row) for row in rows]
        said = [turn for turn in turns if turn.text.strip()]
        if not said:
            self._refuse(task)
            return
        try:
            content = self._provider.summarize(transcript(said), self._max_tokens)
        except CaliberError as error:
            if error.retryable or isinstance(error, _NOT_OF_THE_TEXT):
                raise
            self._refuse(task)
            self._failed(error)
            return
        if not content.strip():
            self._refuse(task)
            return
        self._store_summary(task, rows, turns, content)

    def _refuse(self, task: _Task) -> None:
        self._refused.setdefault(task.trajectory, set()).add((task.scope, task.block))

    def _rows(self, task: _Task) -> list[Row]:
        with self._store.read() as session:
            return session.run(self._store.statements["turn.block"], (task.trajectory, task.scope, *task.block))

    def _store_summary(self, task: _Task, rows: Sequence[Row], turns: Sequence[Turn], content: str) -> None:
        expected = [(row[0], row[_TURN_VERSION]) for row in rows]
        tokens = derived_value(TURN_SUMMARY, "token_count", self._estimator, content=content)
        first, last = turns[0].turn_number, turns[-1].turn_number

        def work(uow: UnitOfWork) -> bool:
            # Programs that cut blocks of other sizes do not overlap each other.
            uow.serialize(f"turn_summary {uuid.UUID(bytes=task.scope)}")
            if not uow.select("turn_summary.hold_scope", task.trajectory, task.scope):
                return True  # closed meanwhile: it has a summary of its own
            held = uow.select("turn.hold_block", task.trajectory, task.scope, *task.block)
            if [(row[0], row[_TURN_VERSION]) for row in held] != expected:
                return False
            if not uow.select(_OVERLAPPING, task.scope, first, last):
                summary = TurnSummary(
                    turn_summary_id=TurnSummaryId(uuid7()),
                    trajectory_id=turns[0].trajectory_id,
                    scope_id=turns[0].scope_id,
                    first_turn=first,
                    last_turn=last,
                    content=content,
                    token_count=tokens,
                    source_turns=tuple(turn.turn_id for turn in turns),
                    model_id=self._provider.model_id,
                    created_at=from_us(uow.now_us),
                    trust=least_trusted(*(turn.trust for turn in turns)),
                )
                uow.insert_new(TURN_SUMMARY, summary)
            return True

        if not self._store.write(work, exclusive=True):
            self._look(task.trajectory, _REWRITTEN)

    def _drop(self, task: _Task) -> None:
        def work(uow: UnitOfWork) -> None:
            if not uow.select("turn_summary.hold_scope", task.trajectory, task.scope):
                return
            held = uow.select_entities(TURN, "turn.hold_block", task.trajectory, task.scope, *task.block)
            turns = {turn.turn_id for turn in held}
            for summary in uow.select_entities(TURN_SUMMARY, _OVERLAPPING, task.scope, *task.block):
                if Block(summary.first_turn, summary.last_turn) == task.block and set(summary.source_turns) != turns:
                    uow.delete(TURN_SUMMARY, summary)

        self._store.write(work, exclusive=True)

    # --- the worker ------------------------------------------------------------------------------

    def start(self) -> None:
        """Wake the worker, starting it the first time."""
        if not self._stopped.is_set():
            self._worker.start()
        self._wake.set()

    def drain(self) -> None:
        """Summarize all blocks that are complete by now.

        Raises: LlmError kinds of an outage; SummarizationFailed for what a provider raised that is no error of ours.
        """
        with self._draining:
            self._look_through()
            while not self._stopped.is_set() and (task := self.next_task()) is not None:
                try:
                    self._do(task)
                except CaliberError:
                    self._tasks.appendleft(task)
                    raise
                except Exception as error:
                    self._tasks.appendleft(task)
                    if is_of_handler(error):
                        raise
                    raise _as_caliber(error) from error

    def close(self) -> None:
        """Stop the worker; what is pending is found again at the next open."""
        self._stopped.set()
        self._wake.set()
        self._worker.join(timeout=5)

    def _run(self) -> None:
        while not self._stopped.is_set():
            begun = time.monotonic()
            wait_s = self._step()
            if wait_s is None or wait_s > 0:
                self._wake.wait(wait_s)
                self._wake.clear()
            else:
                self._stopped.wait(pacing.rest_s(time.monotonic() - begun))

    def _step(self) -> float | None:
        """Do the next piece of work; return how long to wait then, None until woken. Units: seconds."""
        with self._draining:
            now = time.monotonic()
            if self._not_before_s > now:
                return self._not_before_s - now
            task = None
            try:
                if self._look_at_s is not None and self._look_at_s <= now:
                    self._look_through()
                task = self.next_task()
                if task is None:
                    return None if self._look_at_s is None else self._look_at_s - now
                self._do(task)
            except Exception as error:
                if task is not None:
                    self._tasks.appendleft(task)
                if self._stopped.is_set():
                    return None
                if not self._failures:  # one report for each outage, not one for each attempt
                    self._failed(_as_caliber(error))
                wait_s = pacing.retry_wait_s(self._failures, self._idle_s, self._longest_idle_s)
                self._failures += 1
                self._not_before_s = time.monotonic() + wait_s
                return wait_s
            self._failures = 0
            return 0.0


def open_summarizer(engine: Engine) -> None:
    """Add the worker of a tenant, at work where an earlier process may have left something; nothing if it has none."""
    store, memory, config, provider = engine.store, engine.memory, engine.config, engine.summarization
    if provider is None or config.summaries.turns == "off":
        return
    size = config.summaries.block_turns
    outlines = StoredOutlines(store, memory, size) if config.search.mode == "backend" else Outlines(memory, size)
    worker = TurnSummarizer(
        store,
        memory,
        config,
        provider,
        outlines,
        estimator=engine.estimator,
        failed=lambda error: engine.record_error("summarizing turns", error),
    )
    engine.add(worker)
    engine.follow(worker)
    if memory.snapshot["scope"].count():
        worker.start()


def _as_caliber(error: Exception) -> CaliberError:
    return error if isinstance(error, CaliberError) else SummarizationFailed(reason=type(error).__name__)
