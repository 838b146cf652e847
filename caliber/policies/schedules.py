"""Job handlers of policies: scheduled rules, one run for all missed times, and triggers that were left.

The job records the progress of a rule: the time up to which it is done, and for a run in progress its due time and the
next action. Source: C-148, C-227 to C-229, C-238; decision 0172 and docs/policies.md.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from datetime import tzinfo
from typing import Any, Final

from caliber.config import CaliberConfig
from caliber.config.cron import last_due, next_due, zone_of
from caliber.config.policies import ActionConfig, PolicyAction
from caliber.context.service import ContextService
from caliber.engine.engine import Engine
from caliber.engine.stale_inputs import StaleInputs
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import URGENT, Handler, Recurrence, ScheduledRule
from caliber.jobs.queue import JobQueue
from caliber.jobs.states import record
from caliber.model import states
from caliber.model.declared import Trigger
from caliber.model.errors import CaliberError, Unavailable, error_fields, in_a_line
from caliber.model.events import EventType
from caliber.model.jobs import Job, JobOutcome
from caliber.model.lazy_dataclass import dataclass
from caliber.model.pcp import RecoveryFrequency
from caliber.model.time import from_us
from caliber.model.trajectory import Scope, Trajectory
from caliber.policies.policy_engine import tasks_of
from caliber.policies.steps import declared_actions, kind_of
from caliber.retention.compressing import Compression, Compressor, Group, compressions, prune_everywhere
from caliber.retention.retaining import record_taken
from caliber.schema.relations import SCOPE, TRAJECTORY
from caliber.search.service import Searching
from caliber.storage.compile.codec import stored_instant
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.service import CHECKPOINT_JOB, Tasks
from caliber.trajectory.triggers import SCOPE_CLOSED, WAITING, kind_of_trigger, record_unfinished, trigger_of

_PRINCIPAL: Final = "system:schedule"

_COVERED: Final = "covered_us"
"""In the state of a rule's job: the time up to which all that came due is done. Units: µs."""
_RUN: Final = "run_us"
"""In the same: the due time of the run under way. Units: µs."""
_STEP: Final = "step"
_FAILED: Final = "failed"

Actions = tuple[ActionConfig | Compression, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule on a schedule; ``rule_id`` is the same in every process that is configured with it."""

    rule_id: uuid.UUID
    policy: str
    place: int
    cron: str
    actions: Actions


def rules_of(config: CaliberConfig) -> list[Rule]:
    """Return the rules on a schedule in the order they are declared.

    A rule keeps its id when others are added, taken away or moved; another cron text or other actions make it another.
    Compressions of memories on a schedule come after the policies.
    """
    found: list[Rule] = []
    seen: Counter[str] = Counter()

    def add(policy: str, place: int, cron: str | None, declaration: str, actions: Actions) -> None:
        assert cron is not None  # the configuration requires it
        text = f"{policy}\0{declaration}"
        seen[text] += 1
        digest = hashlib.sha256(f"{text}\0{seen[text]}".encode()).digest()
        found.append(Rule(uuid.UUID(bytes=digest[:16]), policy, place, cron, actions))

    for policy in config.policies:
        for place, rule in enumerate(policy.rules):
            if rule.on is Trigger.SCHEDULE:
                add(policy.name, place, rule.cron, rule.model_dump_json(), rule.actions)
    for item in compressions(config.memories, Trigger.SCHEDULE):
        kept = item.memory.retention
        add(item.policy, 0, None if kept.when is None else kept.when.cron, kept.model_dump_json(), (item,))
    return found


class Schedules:
    """The rules on a schedule of one tenant, as handlers of their jobs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._zone = zone_of(engine.config.time_zone)
        self._compressor = Compressor(engine)

    def register(self, jobs: JobQueue) -> None:
        """Have this process run the rules of its configuration; those of others are left to others."""
        for rule in rules_of(self._engine.config):
            jobs.register(
                Handler(
                    f"schedule:{rule.rule_id.hex}",
                    functools.partial(self._run, rule),
                    recurrence=Recurrence(
                        rule.rule_id,
                        functools.partial(next_due, rule.cron, self._zone),
                        state=lambda now_us: {_COVERED: now_us},
                    ),
                    schedule=functools.partial(self._state, rule),
                )
            )

    def _state(self, rule: Rule, job: Job | None, now_us: int) -> ScheduledRule:
        covered = None if job is None else _within_reach(rule, self._zone, job.payload[_COVERED], now_us)
        run_us = None if job is None else job.payload.get(_RUN)
        return ScheduledRule(
            policy=rule.policy,
            rule=rule.place,
            cron=rule.cron,
            actions=tuple(action.shown for action in rule.actions),
            next_at=from_us(next_due(rule.cron, self._zone, now_us if covered is None else covered)).astimezone(
                self._zone
            ),
            covered_at=None if job is None else stored_instant(job.payload[_COVERED]).astimezone(self._zone),
            running_since=None if run_us is None else stored_instant(run_us).astimezone(self._zone),
        )

    # --- running -----------------------------------------------------------------------------------

    def _run(self, rule: Rule, claim: Claim) -> int:
        """Do the actions of a rule that is due, one transaction each; return how many were done."""
        done = 0
        while not claim.settled and not claim.stopping:
            step = _Step(self._engine, self._zone, rule, claim)
            try:
                if isinstance(step.action, Compression):
                    step.compressed = self._compress(step.action, claim)
                self._engine.write(step.act)
            except Unavailable:
                raise  # the store cannot be written now: the next attempt continues here
            except CaliberError as error:
                if error.retryable and claim.job.payload.get(_FAILED, 0) + 1 < self._engine.config.jobs.attempts_max:
                    self._engine.write(functools.partial(step.retry, error=error))
                else:
                    self._engine.write(functools.partial(step.fail, error=error))
            done += step.done
        return done

    def _compress(self, action: Compression, claim: Claim) -> int:
        """Compress a memory in the whole tenant, each group of records in a transaction; return the number of replaced
        records.

        If it is interrupted, the finished groups stay, and the next run continues with the others.
        """

        def work(uow: UnitOfWork, group: Group) -> int:
            claim.hold(uow)
            count, _ = self._compressor.apply(uow, group)
            record_taken(self._engine, uow, action.memory, count)
            return count

        compressed = 0
        for group in self._compressor.everywhere(action.memory):
            claim.extend()  # a provider may take longer than a lease lasts
            # Records that were changed meanwhile are compressed in the next run.
            with contextlib.suppress(StaleInputs):
                compressed += self._engine.write(functools.partial(work, group=group))
        return compressed


def _within_reach(rule: Rule, zone: tzinfo, covered_us: int, now_us: int) -> int:
    """Return until when a rule is done; now, where it is done for times beyond its next one."""
    return now_us if next_due(rule.cron, zone, now_us) < covered_us else covered_us


class _Step:
    """One action of one run: done and noted in one transaction, or noted as failed in one."""

    def __init__(self, engine: Engine, zone: tzinfo, rule: Rule, claim: Claim) -> None:
        self._engine = engine
        self._zone = zone
        self._rule = rule
        self._claim = claim
        self._begun = time.monotonic()
        self.action = rule.actions[claim.job.payload.get(_STEP, 0)]
        self.done = 0
        self.compressed = 0
        """Records that gave way in transactions before."""

    def _enter(self, uow: UnitOfWork) -> tuple[dict[str, Any], int] | None:
        """Return the state of the rule and the due time of the run; None when it is not due, and waits again."""
        self.done = 0
        state = self._claim.current(uow).payload
        covered = _within_reach(self._rule, self._zone, state[_COVERED], uow.now_us)
        due_us = state.get(_RUN)  # of a run under way
        if due_us is None:
            due_us = last_due(self._rule.cron, self._zone, uow.now_us, after_us=covered)
        if due_us is not None:
            return state, due_us
        self._wait(uow, covered)
        return None

    def _wait(self, uow: UnitOfWork, covered_us: int) -> None:
        """Let the rule, which is done up to a time, wait for the next one."""
        due_us = next_due(self._rule.cron, self._zone, covered_us)
        self._claim.reschedule(uow, due_us, {_COVERED: covered_us})

    def act(self, uow: UnitOfWork) -> None:
        """Run the next action. Raises: Superseded, and the error that stopped it."""
        entered = self._enter(uow)
        if entered is None:
            return
        state, due_us = entered
        payload = self._payload(state, due_us)
        if isinstance(self.action, Compression):
            payload["compressed"] = self.compressed
        elif self.action.action is PolicyAction.PRUNE:
            payload["pruned"] = prune_everywhere(uow, self._engine.store.catalog, self.action)  # C-228
        else:
            fields = {name: payload[name] for name in ("policy", "rule", "due_at")}
            self._engine.trace(uow, f"caliber_{self.action.channel}", principal=_PRINCIPAL, payload=fields)
        payload["outcome"] = "done"
        self._next(uow, state, due_us)
        self._record(uow, payload)
        self.done = 1

    def retry(self, uow: UnitOfWork, error: CaliberError) -> None:
        """Note that the action is tried again at the next attempt."""
        entered = self._enter(uow)
        if entered is None:
            return
        state, due_us = entered
        failed = state.get(_FAILED, 0) + 1
        self._claim.postpone(uow, {**state, _RUN: due_us, _FAILED: failed}, in_a_line(error))
        self._record(uow, {**self._payload(state, due_us), **_failure(error, failed), "outcome": "to_retry"})

    def fail(self, uow: UnitOfWork, error: CaliberError) -> None:
        """Note that the action failed: it is passed over, or ends the run."""
        entered = self._enter(uow)
        if entered is None:
            return
        state, due_us = entered
        payload = {**self._payload(state, due_us), **_failure(error, state.get(_FAILED, 0) + 1), "outcome": "failed"}
        told = {**payload, "action": kind_of(self.action)}
        self._engine.trace(uow, EventType.ERROR, principal=_PRINCIPAL, payload=told)
        stops = self._engine.config.policy_engine.on_error == "abort"
        if stops:
            payload["skipped"] = len(self._rule.actions) - state.get(_STEP, 0) - 1
        self._next(uow, state, due_us, last=stops)
        self._record(uow, payload)

    def _next(self, uow: UnitOfWork, state: Mapping[str, Any], due_us: int, *, last: bool = False) -> None:
        step = state.get(_STEP, 0) + 1
        if last or step == len(self._rule.actions):
            self._wait(uow, due_us)
        else:
            self._claim.advance(uow, {_COVERED: state[_COVERED], _RUN: due_us, _STEP: step})

    def _payload(self, state: Mapping[str, Any], due_us: int) -> dict[str, Any]:
        return {
            "trigger": Trigger.SCHEDULE.value,
            "policy": self._rule.policy,
            "rule": self._rule.place,
            "action": self.action.shown,
            "step": state.get(_STEP, 0),
            "due_at": from_us(due_us).isoformat(),
        }

    def _record(self, uow: UnitOfWork, payload: dict[str, Any]) -> None:
        took_ms, kind = int((time.monotonic() - self._begun) * 1_000), EventType.POLICY_EXECUTE
        self._engine.trace(uow, kind, principal=_PRINCIPAL, payload=payload, duration_ms=took_ms)


def _failure(error: CaliberError, attempt: int) -> dict[str, Any]:
    return {"attempt": attempt, **error_fields(error)}


class Triggers:
    """The triggers of a tenant's configuration; those of other configurations are left to them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def register(self, jobs: JobQueue) -> None:
        """Run triggers that other processes abandoned, for the triggers of this process's policies."""
        declared = declared_actions(self._engine.config)
        for trigger in WAITING:
            if declared[trigger]:
                kind = kind_of_trigger(trigger)
                jobs.register(Handler(kind, self._run, priority=URGENT, given_up=self._given_up))
        if self._engine.config.pcp.recovery_points.frequency is RecoveryFrequency.PER_TURN:
            jobs.register(Handler(CHECKPOINT_JOB, lambda claim: self._tasks(claim).run_checkpoint(claim)))

    def _run(self, claim: Claim) -> int:
        if self._engine.write(lambda uow: self._dropped(uow, claim)):
            return 0
        return self._tasks(claim).run_trigger(claim)

    def _tasks(self, claim: Claim) -> Tasks:
        """Return the service of tasks for the principal that requested the work."""
        principal = claim.job.principal
        reader = ContextService(self._engine, principal, Searching(self._engine, principal))
        return tasks_of(self._engine, principal, reader.assemble_only)

    def _dropped(self, uow: UnitOfWork, claim: Claim) -> bool:
        """Drop a trigger whose subject ended in a process that has no such policies; return whether it did."""
        reason = self._ended(uow, claim.job)
        if reason is None:
            return False
        claim.end(uow, JobOutcome.CANCELLED)
        record_unfinished(self._engine, uow, claim.job, "dropped", reason)
        return True

    def _ended(self, uow: UnitOfWork, job: Job) -> str | None:
        assert job.trajectory_id is not None  # a trigger is of a task
        task: Trajectory | None = uow.find(TRAJECTORY, job.trajectory_id.bytes)
        if task is None or states.TRAJECTORY.is_terminal(task.status):
            return "the task ended"
        if job.scope_id is None:
            return None
        scope: Scope | None = uow.find(SCOPE, job.scope_id.bytes)
        return None if scope is not None and scope.is_open else SCOPE_CLOSED

    def _given_up(self, uow: UnitOfWork, job: Job, reason: str) -> None:
        record_unfinished(self._engine, uow, job, "failed", reason)
        payload = {"trigger": trigger_of(job).value, "error": "given_up", "message": reason}
        record(self._engine, uow, job, EventType.ERROR, payload)
