"""Job handler that summarizes the completed blocks of turns of a task's open scopes, after the commit.

The transaction that completes a block adds the job. Blocks that lack a summary for another reason are looked for: turns
were changed or loaded, or another program wrote them. So a block waits as long as the row is missing, whatever becomes
of its job. No transaction is open while the provider works; the transaction that stores a summary locks its turns and
checks that they are still those that were summarized.

Source: design sections 4 and 5; docs/decisions/0192; docs/jobs.md.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from caliber.engine import pacing
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim, Superseded
from caliber.jobs.handlers import IDLE, Handler
from caliber.jobs.queue import JobQueue
from caliber.jobs.states import adds_job
from caliber.kernels import uuid7
from caliber.llm.protocols import SummarizationProvider
from caliber.llm.retry import is_outage
from caliber.model.errors import CaliberError, SummarizationFailed
from caliber.model.jobs import Job, JobState
from caliber.model.process.interrupts import let_through
from caliber.model.references import TrajectoryId, TurnSummaryId
from caliber.model.time import from_us
from caliber.model.trajectory import Turn, TurnRole, TurnSummary
from caliber.model.trust import least_trusted
from caliber.schema.relation import Relation
from caliber.schema.relations import JOB, TRAJECTORY, TURN, TURN_SUMMARY
from caliber.storage.compile.codec import Row, codec_of
from caliber.storage.compile.derived import derived_value
from caliber.storage.write.changes import DELETE
from caliber.storage.write.unit_of_work import RowChange, UnitOfWork
from caliber.trajectory.outlines import Block, Outlines, StoredOutlines, missing, outdated
from caliber.trajectory.turns import transcript

_OVERLAPPING = "turn_summary.overlapping"

_TURN_TASK: Final = codec_of(TURN).index("trajectory_id")
_TURN_NUMBER: Final = codec_of(TURN).index("turn_number")
_TURN_VERSION: Final = codec_of(TURN).version_place
_SUMMARY_TASK: Final = codec_of(TURN_SUMMARY).index("trajectory_id")


KIND: Final = "turn_summaries"
_JOBS_PAGE: Final = 1_000
"""The most jobs that a flush ends; the others find nothing to do."""
_WHOLE: Final = "whole"
"""In the payload of a job: turns were changed, not only appended."""

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

    def __init__(self, engine: Engine, provider: SummarizationProvider, outlines: Outlines) -> None:
        config = engine.config.summaries
        self._engine = engine
        self._store = engine.store
        self._jobs = engine.part(JobQueue)
        self._provider = provider
        self._outlines = outlines
        self._max_tokens = config.max_tokens
        self.size = engine.config.assembly.evict_block_turns
        """The number of turns of a block."""
        self.waiting: frozenset[bytes] = frozenset()
        """Trajectories with a block that may still get results of its last calls."""
        self.changed: dict[bytes, int] = {}
        """Trajectories to look through, and what of them."""
        self._refused: dict[bytes, set[tuple[bytes, Block]]] = {}
        """Blocks by trajectory that the provider could not summarize: asked again when a turn of it changes."""
        self._look_at_s: float | None = time.monotonic()
        self._looked_s = 0.0
        self._lock = threading.Lock()
        self._producing = threading.Lock()
        self._draining = threading.Lock()
        self._stopped = False
        self._enqueued = False
        """Whether there may be jobs of this process that wait."""
        self._jobs.register(Handler(KIND, self.run, priority=IDLE, outlasts=is_outage))
        self._jobs.producers.append(self)

    # --- what to summarize -----------------------------------------------------------------------

    def appended(self, uow: UnitOfWork, turns: Sequence[Turn]) -> None:
        """Enqueue the job of a task in the transaction that appends these turns, if they complete a block."""
        last, key = turns[-1], turns[0].trajectory_id.bytes
        completes = last.turn_number // self.size > max(turns[0].turn_number - 1, 0) // self.size
        goes_on = last.role is TurnRole.TOOL
        if completes or (key in self.waiting and not goes_on):
            self._enqueue(uow, key, whole=False)
        if completes and goes_on:
            with self._lock:
                self.waiting |= {key}  # more results may follow, and they belong to the block before

    def _enqueue(self, uow: UnitOfWork, task: bytes, *, whole: bool) -> None:
        self._enqueued = True
        owner = TrajectoryId(uuid.UUID(bytes=task))
        key = f"{owner} {_WHOLE}" if whole else str(owner)
        self._jobs.enqueue(uow, KIND, key=key, payload={_WHOLE: whole}, trajectory_id=owner, within_s=pacing.GATHER_S)

    def committed(self, changes: Sequence[RowChange]) -> None:
        """Take note of turns that no job of the same commit is about, and of summaries that went; quick."""
        found = False
        for change in changes:
            relation, row = change.relation, change.row
            if relation is TURN:
                if change.operation == DELETE or row[_TURN_VERSION] > 1:
                    self._look(row[_TURN_TASK], _REWRITTEN)
                elif (
                    row[_TURN_NUMBER]
                    and row[_TURN_NUMBER] % self.size == 0
                    and not adds_job(changes, KIND, row[_TURN_TASK])
                ):
                    self._look(row[_TURN_TASK], _APPENDED)
                else:
                    continue
            elif relation is TURN_SUMMARY and change.operation == DELETE:
                self._look(row[_SUMMARY_TASK], _ALL)
            else:
                continue
            found = True
        if found:
            self._jobs.on_enqueued(pacing.GATHER_S)

    def _look(self, trajectory: bytes, what: int) -> None:
        with self._lock:
            self.changed[trajectory] = max(what, self.changed.get(trajectory, what))

    def changed_elsewhere(self) -> None:
        """Take note that another program committed: its turns are looked through once it had time to do so itself."""
        if self._look_at_s is None:
            self._look_at_s = time.monotonic() + pacing.foreign_wait_s(self._looked_s)

    def follows(self, relation: Relation) -> bool:
        """Return whether summaries depend on the records of a relation."""
        return relation in (TURN, TURN_SUMMARY)

    def loaded(self) -> None:
        """Take note that many turns were written at once: all open scopes are looked through now."""
        self._look_at_s = time.monotonic()
        self._jobs.on_enqueued(pacing.GATHER_S)

    def due_in_us(self) -> int | None:
        """Return how long until something is to be looked through; None while nothing is."""
        if self.changed:
            return 0
        return None if self._look_at_s is None else max(0, int((self._look_at_s - time.monotonic()) * 1_000_000))

    def produce(self) -> None:
        """Enqueue the jobs of tasks that lack a summary, and clear the list of tasks to scan."""
        if self.due_in_us() != 0 or not self._producing.acquire(blocking=False):
            return
        try:
            if self._look_at_s is not None and self._look_at_s <= time.monotonic():
                self._look_through()
            while (found := self._take()) is not None:
                self._enqueue_missing(*found)
        finally:
            self._producing.release()

    def _enqueue_missing(self, trajectory: bytes, what: int) -> None:
        def work(uow: UnitOfWork) -> None:
            # Also where a job is under way: whoever has it may have been killed.
            if uow.find(TRAJECTORY, trajectory) is not None:
                self._enqueue(uow, trajectory, whole=whole)

        try:
            if tasks := self.tasks_of(trajectory, what):
                # Before the transaction: a store in memory lets nobody read beside it.
                whole = tasks != self.tasks_of(trajectory, _APPENDED)
                self._jobs.write(work)
        except BaseException:
            self._look(trajectory, what)
            raise

    def _look_through(self) -> None:
        """Have every open scope looked through."""
        self._look_at_s = None
        begun = time.monotonic()
        for trajectory in self._outlines.tasks():
            self._look(trajectory, _ALL)
        self._looked_s = time.monotonic() - begun

    def _take(self) -> tuple[bytes, int] | None:
        """Return a trajectory to look through, and what of it; None when there is no more."""
        with self._lock:
            if not self.changed:
                return None
            trajectory = next(iter(self.changed))
            what = self.changed.pop(trajectory)
        if what == _REWRITTEN:
            self._refused.pop(trajectory, None)
        return trajectory, what

    def tasks_of(self, trajectory: bytes, what: int) -> list[_Task]:
        """Return the blocks of a trajectory to summarize, and the summaries to check."""
        refused = self._refused.get(trajectory, ())
        found: list[_Task] = []
        waits = False
        # Before anything is read: what is appended meanwhile is looked at once more.
        with self._lock:
            self.waiting |= {trajectory}
        for scope, outline in self._outlines.of(trajectory, whole=what != _APPENDED):
            lacking = missing(outline, self.size)
            waits = waits or lacking.waits
            if what != _APPENDED:
                found += [_Task(trajectory, scope, block, True) for block in outdated(outline)]
            blocks = (block for block in lacking.blocks if (scope, block) not in refused)
            found += [_Task(trajectory, scope, block, False) for block in blocks]
        if not waits:
            with self._lock:
                self.waiting -= {trajectory}
        return found

    def count(self) -> int:
        """Return how many completed blocks of open scopes have no summary."""
        outlines = self._outlines
        return sum(
            len(missing(outline, self.size).blocks)
            for trajectory in outlines.tasks()
            for _, outline in outlines.of(trajectory, whole=False)
        )

    # --- one task --------------------------------------------------------------------------------

    def run(self, claim: Claim) -> int:
        """Summarize the blocks of a task that lack a summary; return how many pieces of work that took.

        Raises: LlmError kinds of an outage; SummarizationFailed, retryable, for what a provider raised that is no error
            of ours; Superseded.
        """
        assert claim.job.trajectory_id is not None
        self._engine.snapshot("latest")  # another process may have appended
        what = _ALL if claim.job.payload[_WHOLE] else _APPENDED
        with self._draining:  # up to the end of the job: after a flush nothing is left to write
            done = self._summarize(claim.job.trajectory_id.bytes, what, claim)
            if not claim.interrupted:
                self._jobs.write(claim.ack)
            return done

    def _summarize(self, trajectory: bytes, what: int, claim: Claim | None = None) -> int:
        tasks = self.tasks_of(trajectory, what)
        begun = reported = time.monotonic()
        failure: SummarizationFailed | None = None
        for at, task in enumerate(tasks):
            if self._stopped or (claim is not None and claim.stopping):
                return at
            now = time.monotonic()
            if claim is not None and at:
                if now > begun + pacing.SLICE_S:
                    claim.interrupt()
                    return at
                if now >= reported + pacing.REPORT_S:
                    claim.report(at, len(tasks))
                    reported = now
            failure = self._do(task, claim) or failure  # the blocks after it are not to wait for its next attempt
        if failure is not None:
            raise failure
        return len(tasks)

    # --- one block -------------------------------------------------------------------------------

    def _do(self, task: _Task, claim: Claim | None) -> SummarizationFailed | None:
        """Summarize a block, or drop a summary that is none of its turns; return a fault of the provider's code.

        Raises: LlmError kinds of an outage.
        """
        if task.is_outdated:
            self._drop(task)
            return None
        erased = self._engine.memory.erasures
        rows = self._rows(task)
        turns = [codec_of(TURN).decode(row) for row in rows]
        said = [turn for turn in turns if turn.text.strip()]
        if not said:
            self._refuse(task)
            return None
        try:
            content = self._provider.summarize(transcript(said), self._max_tokens)
        except CaliberError as error:
            if is_outage(error):
                raise
            self._refuse(task)
            self._engine.record_error("summarizing turns", error, erased)
            return None
        except Exception as error:
            let_through(error)
            failure = SummarizationFailed(reason=type(error).__name__, retryable=True)
            failure.__cause__ = error
            return failure
        if not content.strip():
            self._refuse(task)
            return None
        self._store_summary(task, rows, turns, content, claim)
        return None

    def _refuse(self, task: _Task) -> None:
        self._refused.setdefault(task.trajectory, set()).add((task.scope, task.block))

    def _rows(self, task: _Task) -> list[Row]:
        return self._engine.read(lambda uow: uow.select("turn.block", task.trajectory, task.scope, *task.block))

    def _store_summary(
        self, task: _Task, rows: Sequence[Row], turns: Sequence[Turn], content: str, claim: Claim | None
    ) -> None:
        expected = [(row[0], row[_TURN_VERSION]) for row in rows]
        tokens = derived_value(TURN_SUMMARY, "token_count", self._engine.estimator, content=content)
        first, last = turns[0].turn_number, turns[-1].turn_number

        def work(uow: UnitOfWork) -> bool:
            if claim is not None:
                claim.hold(uow)
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
            self._jobs.on_enqueued(pacing.GATHER_S)

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

    # --- as the engine sees it -------------------------------------------------------------------

    def drain(self) -> None:
        """Summarize all complete blocks now, in the caller's thread, even if another process has their jobs.

        Raises: LlmError kinds of an outage; SummarizationFailed for what a provider raised that is no error of ours.
        """
        with self._draining, self._producing:  # what is to be looked through is looked through here
            waiting: list[Job] = []
            if self._enqueued:
                self._enqueued, asked = False, ("job.list_open", KIND, JobState.WAITING.value, _JOBS_PAGE)
                waiting = self._engine.read(lambda uow: uow.select_entities(JOB, *asked))
            self._look_through()
            while not self._stopped and (found := self._take()) is not None:
                try:
                    self._summarize(*found)
                except BaseException:
                    self._look(*found)
                    raise
            if waiting and not self._stopped:
                self._jobs.write(lambda uow: self._end(uow, waiting))

    def _end(self, uow: UnitOfWork, jobs: Sequence[Job]) -> None:
        """End jobs that had been added before all blocks were looked through, unless they are being done."""
        for job in jobs:
            with contextlib.suppress(Superseded):
                Claim(self._jobs, job).ack(uow)

    def close(self) -> None:
        """Stop; pending work is found again at the next open."""
        self._stopped = True


def open_summarizer(engine: Engine) -> None:
    """Add the summarizer of a tenant, unless it has no provider or its turns are not summarized."""
    store, memory, config, provider = engine.store, engine.memory, engine.config, engine.summarization
    if provider is None or config.summaries.turns == "off":
        return
    size = config.assembly.evict_block_turns
    outlines = StoredOutlines(store, memory, size) if config.search.mode == "backend" else Outlines(memory, size)
    summarizer = TurnSummarizer(engine, provider, outlines)
    engine.add(summarizer)
    engine.follow(summarizer)
