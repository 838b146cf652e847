"""Policies on a schedule: one runner across processes, one run for all that came due meanwhile, each action whole.

How far each rule is stands in ``policy_run``; what a run did is written in the transaction of each action, guarded by
a lease. Source: C-148, C-227 to C-229, C-238; decision 0172 and docs/policies.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from caliber.config import CaliberConfig
from caliber.config.cron import last_due, next_due, zone_of
from caliber.config.policies import ActionConfig, PolicyAction
from caliber.engine.engine import Engine
from caliber.engine.leases import LockService
from caliber.engine.stale_inputs import StaleInputs
from caliber.kernels import uuid7
from caliber.model.agents import LockToken
from caliber.model.errors import CaliberError, LockAcquisitionFailed, LockExpired, Unavailable
from caliber.model.events import Event, EventType
from caliber.model.policies import PolicyRun, Trigger
from caliber.model.schedules import ScheduledRule
from caliber.model.time import from_us, to_us
from caliber.policies.left_triggers import LeftTriggers
from caliber.retention.compressing import Compression, Compressor, Group, compressions
from caliber.retention.pruning import prune_everywhere
from caliber.retention.retaining import Retaining, record_taken
from caliber.schema.relations import POLICY_RUN
from caliber.storage.compile.codec import codec_of
from caliber.storage.write import event_log
from caliber.storage.write.unit_of_work import UnitOfWork

LEASE: Final = "caliber:schedule"
"""The resource whose lock the one runner holds."""

_PRINCIPAL: Final = "system:schedule"
_SWEEP: Final = uuid.UUID(bytes=hashlib.sha256(b"caliber:retention").digest()[:16])
"""The key of the last sweep of retention in ``policy_run``."""


Actions = tuple[ActionConfig | Compression, ...]


@dataclasses.dataclass(frozen=True, slots=True)
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
    What memories compress on a schedule comes after the policies.
    """
    found: list[Rule] = []
    seen: Counter[str] = Counter()

    def add(policy: str, place: int, cron: str | None, said: str, actions: Actions) -> None:
        assert cron is not None  # the configuration requires it
        text = f"{policy}\0{said}"
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


class Scheduler:
    """Runs what is due. It keeps nothing but who it is: any process may go on where another ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._zone = zone_of(engine.config.policy_engine.time_zone)
        self._holder = f"schedule:{uuid7()}"
        self.rules = rules_of(engine.config)
        self._retaining = Retaining(engine)
        self._compressor = Compressor(engine)
        self._left = LeftTriggers(engine)

    @property
    def has_work(self) -> bool:
        """True when anything can come due."""
        sweeps = self._retaining.sweeps and self._engine.config.retention.sweep_every_ms > 0
        return bool(self.rules) or sweeps or self._left.has_work

    # --- when ------------------------------------------------------------------------------------

    def due_us(self, rule: Rule, run: PolicyRun, now_us: int) -> int | None:
        """Return the time for which a rule is to run now: that of a run under way, else the last one it was due."""
        if run.due_at is not None:
            return to_us(run.due_at)
        return last_due(rule.cron, self._zone, now_us, after_us=to_us(run.covered_at))

    def _is_ahead(self, rule: Rule, run: PolicyRun, now_us: int) -> bool:
        """Return True for a rule that is done for times beyond its next one: the clock was put back that far."""
        return run.due_at is None and next_due(rule.cron, self._zone, now_us) < to_us(run.covered_at)

    def _runs(self) -> dict[uuid.UUID, PolicyRun]:
        plans = self._engine.store.plans[POLICY_RUN.name]
        with self._engine.store.read() as session:
            rows = session.run(plans.lists["list_all"], ())
        decode = codec_of(POLICY_RUN).decode
        return {run.rule_id: run for run in map(decode, rows)}

    def state(self) -> list[ScheduledRule]:
        """Return every rule on a schedule, and when it is due next."""
        self._engine.check_open()
        runs, now = self._runs(), self._engine.clock.now_us()
        out = []
        for rule in self.rules:
            run = runs.get(rule.rule_id)
            since = now if run is None or self._is_ahead(rule, run, now) else to_us(run.covered_at)
            out.append(
                ScheduledRule(
                    policy=rule.policy,
                    rule=rule.place,
                    cron=rule.cron,
                    actions=tuple(action.shown for action in rule.actions),
                    next_at=from_us(next_due(rule.cron, self._zone, since)).astimezone(self._zone),
                    covered_at=None if run is None else run.covered_at.astimezone(self._zone),
                    running_since=None if run is None or run.due_at is None else run.due_at.astimezone(self._zone),
                )
            )
        return out

    # --- looking ---------------------------------------------------------------------------------

    def look(self) -> int:
        """Run what is due, unless another process is at it; return how many actions were done.

        What other processes left behind of ``task_start`` and ``turn`` comes first; when it is time, what is too old or
        too much by the retention of memories goes last. A rule that is seen for the first time is due from now on.

        Raises: StorageError kinds.
        """
        self._engine.check_open()
        now, runs = self._engine.clock.now_us(), self._runs()
        due = []
        for rule in self.rules:
            run = runs.get(rule.rule_id)
            if run is None:
                self._begin(rule)
            elif self._is_ahead(rule, run, now):
                self._put_back(rule)
            elif self.due_us(rule, run, now) is not None:
                due.append(rule)
        sweeps = self._sweep_is_due(runs.get(_SWEEP), now)
        left = bool(self._left.found())
        if not due and not sweeps and not left:
            return 0
        done = 0

        def work(lease: _Lease) -> None:
            nonlocal done
            if left:
                done += self._left.take_up(lease.renewed)
            for rule in due:
                done += self._run(rule, lease)
            if sweeps:
                self._sweep(lease.token)

        self._leased(work)
        return done

    def sweep(self) -> int:
        """Take what is too old or too much by the retention of memories now, unless another process is at it.

        Return how many records. Raises: StorageError kinds.
        """
        taken: list[int] = []
        if self._retaining.sweeps:
            self._leased(lambda lease: taken.append(self._retaining.sweep(lease.token)))
        return sum(taken)

    def _leased(self, work: Callable[[_Lease], None]) -> None:
        """Do what only one process may do at a time; nothing while another one is at it."""
        lease = _Lease(self._engine.locks, self._holder)
        with contextlib.suppress(LockAcquisitionFailed, LockExpired):  # whoever holds the lease now goes on
            lease.take()
            work(lease)
            self._engine.locks.release(lease.token, holder=self._holder)

    def _sweep_is_due(self, run: PolicyRun | None, now_us: int) -> bool:
        every_us = self._engine.config.retention.sweep_every_ms * 1_000
        if not self._retaining.sweeps or not every_us:
            return False
        # A clock that was put back must not silence it until that time comes again.
        return run is None or not to_us(run.covered_at) <= now_us < to_us(run.covered_at) + every_us

    def _sweep(self, token: LockToken) -> None:
        self._retaining.sweep(token)

        def done(uow: UnitOfWork) -> None:
            uow.guard(token)
            run: PolicyRun | None = uow.find(POLICY_RUN, _SWEEP.bytes)
            if run is None:
                uow.insert_new(POLICY_RUN, PolicyRun(_SWEEP, from_us(uow.now_us)))
            else:
                uow.update(POLICY_RUN, dataclasses.replace(run, covered_at=from_us(uow.now_us)))

        self._engine.write(done)

    def _begin(self, rule: Rule) -> None:
        self._engine.write(lambda uow: uow.insert_new(POLICY_RUN, PolicyRun(rule.rule_id, from_us(uow.now_us))))

    def _put_back(self, rule: Rule) -> None:
        """Count from now again, as the clock does; what was run is not run again for that."""

        def work(uow: UnitOfWork) -> None:
            run: PolicyRun = uow.get(POLICY_RUN, rule.rule_id.bytes)
            if self._is_ahead(rule, run, uow.now_us):
                uow.update(POLICY_RUN, dataclasses.replace(run, covered_at=from_us(uow.now_us)))

        self._engine.write(work)

    # --- running ---------------------------------------------------------------------------------

    def _run(self, rule: Rule, lease: _Lease) -> int:
        """Do the actions of a rule that is due, one transaction each; return how many were done."""
        action = rule.actions[0]
        if isinstance(action, Compression):
            return self._compress(rule, action, lease)
        done = 0
        due_us: int | None = None
        while True:
            begun = time.monotonic()
            step = _Step(self, rule, lease, due_us, begun)
            try:
                self._engine.write(step.act)
            except (LockExpired, Unavailable):
                raise  # nothing can be written now: the next look goes on from here
            except CaliberError as error:
                self._engine.write(lambda uow, step=step, error=error: step.fail(uow, error))  # type: ignore[misc]
            done += step.done
            if not step.goes_on:
                return done
            due_us = step.due_us

    def _compress(self, rule: Rule, action: Compression, lease: _Lease) -> int:
        """Compress a memory in the whole tenant, each group of records in a transaction; return whether it is done.

        One that is stopped on the way leaves whole groups behind, and the next goes on with the others.
        """
        step = _Step(self, rule, lease, None, time.monotonic())
        if self.due_us(rule, self._runs()[rule.rule_id], self._engine.clock.now_us()) is None:
            return 0  # whoever had the lease before has done it

        def work(uow: UnitOfWork, group: Group) -> int:
            uow.guard(lease.token)
            count, _ = self._compressor.apply(uow, group)
            record_taken(self._engine, uow, action.memory, count)
            return count

        try:
            for group in self._compressor.everywhere(action.memory):
                lease.take()  # a provider may take longer than a lease lasts
                # What somebody changed meanwhile is compressed at the next time.
                with contextlib.suppress(StaleInputs):
                    step.compressed += self._engine.write(functools.partial(work, group=group))
            lease.take()
            self._engine.write(step.act)
        except (LockExpired, LockAcquisitionFailed, Unavailable):
            raise
        except CaliberError as error:
            failed = error
            lease.take()
            self._engine.write(lambda uow: step.fail(uow, failed))
        return step.done

    def prune(self, uow: UnitOfWork, action: ActionConfig) -> int:
        """Take out of use what a prune action names in the whole tenant (C-228); return how many records."""
        return prune_everywhere(uow, self._engine.store.catalog, action)

    def record(self, uow: UnitOfWork, kind: str, payload: Mapping[str, Any], duration_ms: int | None = None) -> None:
        """Write an event in this very transaction, and tell subscribers of it after the commit."""
        event: Event = self._engine.event(
            kind, principal=_PRINCIPAL, payload=dict(payload), duration_ms=duration_ms, at_us=uow.now_us
        )
        event_log.log(uow, event, self._engine.bus.publish)

    @property
    def attempts_max(self) -> int:
        """The number of times that an action is tried."""
        return self._engine.config.policy_engine.schedule_attempts_max

    @property
    def stops(self) -> bool:
        """True when a failed action keeps those after it from being tried."""
        return self._engine.config.policy_engine.on_error == "abort"


class _Lease:
    """The right to run what is due; taken again it lasts as long as at first."""

    def __init__(self, locks: LockService, holder: str) -> None:
        self._locks = locks
        self._holder = holder
        self.token = LockToken(LEASE, 0)

    def take(self) -> None:
        """Take it, or take it again. Raises: LockAcquisitionFailed while somebody else has it."""
        lock = self._locks.acquire(LEASE, holder=self._holder)
        self.token = LockToken(lock.resource, lock.token)

    def renewed(self) -> LockToken:
        """Take it again and return what it is guarded by now. Raises: as ``take``."""
        self.take()
        return self.token


class _Step:
    """One action of one run: done and noted in one transaction, or noted as failed in one."""

    def __init__(self, scheduler: Scheduler, rule: Rule, lease: _Lease, due_us: int | None, begun: float) -> None:
        self._scheduler = scheduler
        self._rule = rule
        self._lease = lease
        self._begun = begun
        self.due_us = due_us
        self.done = 0
        self.goes_on = False
        self.compressed = 0
        """Records that gave way in transactions before."""

    def _enter(self, uow: UnitOfWork) -> PolicyRun | None:
        """Return how far the rule is; None when it is not due any more, or the run under way is another."""
        uow.guard(self._lease.token)
        self.done, self.goes_on = 0, False
        run: PolicyRun = uow.get(POLICY_RUN, self._rule.rule_id.bytes)
        due = self._scheduler.due_us(self._rule, run, uow.now_us)
        if due is None or (self.due_us is not None and due != self.due_us):
            return None
        self.due_us = due
        return run

    def act(self, uow: UnitOfWork) -> None:
        """Do the next action. Raises: LockExpired, and what stopped it."""
        run = self._enter(uow)
        if run is None:
            return
        action = self._rule.actions[run.actions_done]
        payload = self._payload(run, action)
        if isinstance(action, Compression):
            payload["compressed"] = self.compressed
        elif action.action is PolicyAction.PRUNE:
            payload["pruned"] = self._scheduler.prune(uow, action)
        else:
            told = {name: payload[name] for name in ("policy", "rule", "due_at")}
            self._scheduler.record(uow, f"caliber_{action.channel}", told)
        payload["outcome"] = "done"
        self._next(uow, run)
        self._record(uow, payload)
        self.done = 1

    def fail(self, uow: UnitOfWork, error: CaliberError) -> None:
        """Note that the next action failed: it is tried again at the next look, or passed over, or ends the run."""
        run = self._enter(uow)
        if run is None:
            return
        action = self._rule.actions[run.actions_done]
        attempts = run.attempts + 1
        payload = {**self._payload(run, action), "attempt": attempts, "error": error.kind, "message": str(error)[:500]}
        if error.retryable and attempts < self._scheduler.attempts_max:
            assert self.due_us is not None
            payload["outcome"] = "to_retry"
            uow.update(POLICY_RUN, dataclasses.replace(run, due_at=from_us(self.due_us), attempts=attempts))
        else:
            payload["outcome"] = "failed"
            self._scheduler.record(uow, EventType.ERROR, {**payload, "action": _kind(action)})
            if self._scheduler.stops:
                payload["skipped"] = len(self._rule.actions) - run.actions_done - 1
            self._next(uow, run, last=self._scheduler.stops)
        self._record(uow, payload)

    def _next(self, uow: UnitOfWork, run: PolicyRun, *, last: bool = False) -> None:
        assert self.due_us is not None
        due, done = from_us(self.due_us), run.actions_done + 1
        if last or done == len(self._rule.actions):
            changed = dataclasses.replace(run, covered_at=due, due_at=None, actions_done=0, attempts=0)
        else:
            changed = dataclasses.replace(run, due_at=due, actions_done=done, attempts=0)
            self.goes_on = True
        uow.update(POLICY_RUN, changed)

    def _payload(self, run: PolicyRun, action: ActionConfig | Compression) -> dict[str, Any]:
        assert self.due_us is not None
        return {
            "trigger": Trigger.SCHEDULE.value,
            "policy": self._rule.policy,
            "rule": self._rule.place,
            "action": action.shown,
            "step": run.actions_done,
            "due_at": from_us(self.due_us).isoformat(),
        }

    def _record(self, uow: UnitOfWork, payload: dict[str, Any]) -> None:
        duration_ms = int((time.monotonic() - self._begun) * 1_000)
        self._scheduler.record(uow, EventType.POLICY_EXECUTE, payload, duration_ms)


def _kind(action: ActionConfig | Compression) -> str:
    return "compress" if isinstance(action, Compression) else action.action.value
