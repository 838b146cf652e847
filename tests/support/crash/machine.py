"""Rounds of the random machine: processes on one store that are killed and stopped, and the judgement of their logs."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from support.agents.history import OK, REFUSED, UNKNOWN, Op, operations, read_entries
from support.agents.history_runs import LEAST_LINES
from support.configs import AGENT
from support.crash import machine_process, machine_rows
from support.crash.machine_process import Order, settings_of
from support.crash.processes import Forked
from support.databases import DSN
from support.evidence import scale
from support.waits import holds_within, let_run

import caliber
from caliber.model.errors import CaliberError

PEOPLE = 5
PATIENCE_S = scale(120, 900)
LABEL = re.compile(r"\[[^\]\s]+#\d+:\d+\]")
ERASING = ("forget", "purge")
HALF_DONE = ("remember", "ingest", "restore")
"""Calls of several transactions: an error may leave the first of them."""
BUSY = {"locked", "busy", "timeout"}
EXPECTED: dict[str, set[str]] = {
    "recover": {"NoCheckpointAvailable", "Conflict", "InvalidStateTransition"},
    "undo": {"Conflict", "NotFound"},
    "overwrite": {"Conflict"},  # another process restores
}
"""Errors that a caller of a call has to expect, besides those of ``is_expected``."""


class Running(Forked):
    """One process of the machine."""

    def __init__(self, order: Order) -> None:
        super().__init__(machine_process.work, order)
        self.order = order
        self.heard: list[str] = []

    def hear(self) -> list[str]:
        """Return everything that the process has reported."""
        try:
            while self.reports.poll():
                self.heard.append(self.reports.recv())
        except EOFError:
            pass
        return self.heard

    def lines(self) -> int:
        """Return how many lines its log has."""
        log = self.order.folder / "logs" / f"{self.order.name}.log"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def faults(self) -> list[str]:
        """Return the reports of errors, and an end that nobody asked for."""
        out = [report for report in self.hear() if report not in ("open", "ended")]
        if self.process.exitcode not in (None, 0, -signal.SIGKILL):
            out.append(f"{self.order.name} ended with code {self.process.exitcode}")
        return out

    def kill(self) -> None:
        """Kill the process, wherever it is; it may have ended."""
        self.process.kill()
        self.process.join(30)

    def stopped(self) -> list[str]:
        """Wait for the end of a process that was told to stop; return the stacks of one that does not end."""
        self.process.join(PATIENCE_S)
        if self.process.exitcode is not None:
            return []
        stacks = self.order.folder / "logs" / f"{self.order.name}.stacks"
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGUSR1)
        holds_within(lambda: stacks.stat().st_size, 10)
        let_run(0.5)
        self.kill()
        return [f"hang: {self.order.name} did not end in {PATIENCE_S} s\n{stacks.read_text()[-6_000:]}"]


class Round:
    """One store, and the processes that use it for a while."""

    def __init__(
        self, folder: Path, seed: int, *, seconds: float, processes: int = 2, schema: str | None = None,
        often: tuple[str, ...] = (), planted: bool = False,
    ) -> None:  # fmt: skip
        self.folder, self.seconds, self.seed, self.often, self.planted = folder, seconds, seed, often, planted
        self.chance = random.Random(f"machine {seed}")
        for name in ("store", "logs", "elsewhere"):
            (folder / name).mkdir(parents=True)
        self.path = str(folder / "store" / "store.db") if schema is None else f"env:{DSN}"
        self.knobs = {} if schema is None else {"storage__adapter": "postgres", "storage__schema_name": schema}
        self.schema = schema
        self.settings = settings_of(self.path, self.knobs)
        (folder / "caliber.json").write_text(json.dumps(self.settings.to_data()))
        caliber.create(self.settings)
        self.world = self._prepared()
        self.running: list[Running] = []
        self.kills = self._started = 0
        self.history: list[Op] = []
        self._processes = processes

    def _prepared(self) -> dict[str, Any]:
        with caliber.open(self.settings) as memory:
            task = memory.start_trajectory("the board of all", initiator=AGENT)
            scope = memory.current_scope(task.trajectory_id)
            assert scope is not None
            counter = memory.add_note(entity="c", entity_type="t", note_type="fact", content="0", confidence=1)
        people = [f"p{uuid.UUID(int=self.chance.getrandbits(128)).hex[:10]}@example.org" for _ in range(PEOPLE)]
        overwrites = self.chance.random() < 0.3
        return {
            "scope": str(scope.scope_id), "counter": str(counter.note_id), "people": people, "overwrites": overwrites,
        }  # fmt: skip

    def _start(self) -> Running:
        number = self._started
        self._started += 1
        knobs = {**self.knobs, "storage__durability": self.chance.choice(("commit", "group"))}
        environment = {DSN: os.environ[DSN]} if self.schema else {}
        order = Order(
            self.path, knobs, environment, self.folder, self.world, f"p{number}",
            self.chance.choice((1, 2)), f"{self.seed} {number}", self.often, self.planted,
        )  # fmt: skip
        return Running(order)

    def play(self) -> list[str]:
        """Have processes call at random for a while; kill some, and stop or kill all in the end. Return the faults."""
        self.running = [self._start() for _ in range(self._processes)]
        every = list(self.running)
        faults: list[str] = []
        try:
            holds_within(lambda: all(one.hear() for one in every), PATIENCE_S)
            until = time.monotonic() + self.seconds
            while time.monotonic() < until and not faults:
                let_run(max(0.0, min(self.chance.expovariate(self._processes / 4), until - time.monotonic(), 3)))
                faults = [fault for one in every for fault in one.faults()]
                at = self.chance.randrange(self._processes)
                # A process that is killed before it calls proves little.
                if self.chance.random() < (0.5 if self.running[at].lines() > LEAST_LINES else 0.05):
                    self.running[at].kill()
                    self.running[at] = self._start()
                    every.append(self.running[at])
                    self.kills += 1
            if self.chance.random() < 0.5 and not faults:
                (self.folder / "stop").touch()
                faults += [fault for one in self.running for fault in one.stopped()]
        finally:
            for one in self.running:
                self.kills += one.process.exitcode is None
                one.kill()
        return faults or [fault for one in every for fault in one.faults()]

    def judged(self) -> list[str]:
        """Return the faults that the logs, the database by itself and CALIBER's own checks show."""
        logs = sorted((self.folder / "logs").glob("*.log"))
        self.history = ops = operations(entry for log in logs for entry in read_entries(log))
        place = [self.path] if self.schema is None else [os.environ[DSN], self.schema]
        done = subprocess.run(
            [sys.executable, machine_rows.__file__, *place], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return [f"the store cannot be read: {done.stderr[-2_000:]}"]
        found = json.loads(done.stdout)
        faults = [f"damaged: {line}" for line in found["findings"]]
        if not faults:
            faults += Judge(self.world, ops, found["rows"]).faults()
        return [*faults, *self._own_checks()]

    @property
    def figures(self) -> dict[str, int]:
        """Return counts of this round."""
        texts = [one for one in written(self.history) if one.op.outcome == OK]
        erasures = [op for op in self.history if op.name in ERASING and op.outcome == OK]
        return {
            "processes started": self._started, "of them killed with SIGKILL": self.kills,
            "acknowledged texts": len(texts), "acknowledged erasures": len(erasures),
            "restored copies compared": sum(op.name == "restore" and op.outcome == OK for op in self.history),
        }  # fmt: skip

    def _own_checks(self) -> list[str]:
        try:
            with caliber.open(self.settings) as memory:
                faults = [f"verify: {line}" for line in memory.admin.verify()]
                faults += [f"check: {finding}" for finding in memory.admin.check() if not finding.harmless]
                memory.admin.resume_forgetting()
                left = [each for each in memory.storage.erasures.all() if each.finished_at is None]
                faults += [f"erasure {each.erasure_id} is unfinished" for each in left]
                faults += [f"failed job: {job.kind} {job.error}" for job in memory.jobs.list(state="failed")]
        except CaliberError as error:
            return [f"does not open, or check itself: {type(error).__name__}: {error}"]
        return faults

    def discard(self) -> list[str]:
        """Purge the store; return what it left behind."""
        report = caliber.purge(self.settings)
        left = [str(path) for path in (self.folder / "store").glob("store.db*")]
        return [f"purge: {each}" for each in (*report.remaining, *left)]


class Written(NamedTuple):
    """One text that a call wrote."""

    label: str
    digest: str
    id: str | None
    """None: the call gave no answer."""
    person: str | None
    task: str | None
    op: Op


class Judge:
    """Compares histories with the rows of the store."""

    def __init__(self, world: dict[str, Any], ops: list[Op], rows: dict[str, list[list[Any]]]) -> None:
        self._world, self._ops, self._rows = world, ops, rows
        self._erasing = [op for op in ops if op.name in ERASING]
        self._backups = {op.given["archive"]: op for op in ops if op.name == "backup"}
        self._overwriting = [op for op in ops if op.name == "overwrite" and op.outcome != REFUSED]
        self._written = list(written(ops))

    def faults(self) -> list[str]:
        """Return everything that is not as it was promised."""
        parts = (self._texts, self._half_batches, self._facts, self._copies, self._counter, self._board, self._keys)
        return [fault for part in (*parts, self._results, self._errors) for fault in part()]

    def _errors(self) -> list[str]:
        return [f"unexpected error: {op}" for op in self._ops if op.outcome == REFUSED and not self._is_expected(op)]

    def _is_expected(self, op: Op) -> bool:
        error, reason = op.result["error"], op.result["reason"]
        if error in EXPECTED.get(op.name, ()):
            return True
        if error == "Unavailable":
            return reason in BUSY or (reason == "closed" and self._closed_meanwhile(op))
        if error == "ConstraintViolation" and op.name in ("append", "artifact"):  # the scope was closed meanwhile
            own = [each for each in self._ops if each.name == "recover" and each.given["task"] == op.given["task"]]
            return any(not op.before(each) for each in (*own, *self._overwriting))
        person = op.given.get("person")  # a call that failed does not name its task
        erasing = [each for each in self._erasing if each.given["person"] == person]
        return error == "NotFound" and any(not op.before(each) for each in (*erasing, *self._overwriting))

    def _closed_meanwhile(self, op: Op) -> bool:
        own = op.client.partition("/")[0] + "/"
        return any(
            each.name == "close" and each.client.startswith(own) and each.client != op.client for each in self._ops
        )

    def _covering(self, given: dict[str, Any]) -> list[Op]:
        """Return the erasures of a person's records, or of a task's."""
        person, task = given.get("person"), given.get("task")
        return [
            op
            for op in self._erasing
            if (op.given["person"] == person and op.name == "forget") or (task and op.given.get("task") == task)
        ]

    def _undoing(self, op: Op) -> list[Op]:
        """Return the restorations of the store itself that may have undone a call."""
        return [
            each for each in self._overwriting
            if not op.before(self._backups[each.given["archive"]]) and not each.before(op)
        ]  # fmt: skip

    def _may_be_gone(self, op: Op, task: str | None = None) -> bool:
        """Return whether the records of a call may be erased, or undone."""
        erasures = self._covering({"task": task, **op.given})
        return bool(self._undoing(op)) or any(not each.before(op) for each in erasures)

    def _texts(self) -> list[str]:
        faults = []
        stored: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for table, rows in self._rows.items():
            for key, content, *_ in rows:
                label = LABEL.match(content or "")
                if label:
                    stored[label[0]].append((f"{table} {key}", content))
        for one in self._written:
            found = stored.pop(one.label, [])
            where = f"{one.label}, person {one.person}, task {one.task}: {str(one.op)[:300]}"
            erasures = self._covering({"person": one.person, "task": one.task})
            if len(found) > 1:
                faults.append(f"doubled: {[place for place, _ in found]} {where}")
            if one.op.outcome == OK:
                done = [each for each in erasures if each.outcome == OK and one.op.before(each)]
                gone_for_good = [each for each in done if not self._undoing(each)]
                if not found and not self._may_be_gone(one.op, one.task):
                    faults.append(f"lost: {where}")
                if found and gone_for_good:
                    faults.append(f"not erased: {where} by {gone_for_good[0]}")
                if found and not found[0][0].endswith(str(one.id).replace("-", "")):
                    faults.append(f"another record: {found[0][0]} {where}")
            elif found and one.op.outcome == REFUSED and one.op.name not in HALF_DONE:
                faults.append(f"refused, and stored: {where}")
            if found and machine_process.digest(found[0][1]) != one.digest:
                faults.append(f"changed: {where}")
        for op in self._ops:
            for label in op.given.get("holds", ()):
                missing = op.outcome == OK and op.result is None and not stored.get(label)
                if missing and not self._may_be_gone(op):
                    faults.append(f"lost: {label}, ingested by {op}")
        return faults

    def _facts(self) -> list[str]:
        """Return the learnt facts that are gone though nobody erased their person."""
        notes = {row[0] for row in self._rows["note"]}
        return [
            f"lost: the fact {fact} of {op}"
            for op in self._ops
            if op.name == "remember" and op.outcome == OK
            for fact in op.result["facts"]
            if fact.replace("-", "") not in notes and not self._may_be_gone(op, op.result["task"])
        ]

    def _half_batches(self) -> list[str]:
        """Return the calls that stored some of their texts, and not others."""
        have = {
            label[0] for rows in self._rows.values() for row in rows if (label := LABEL.match(row[1] or "")) is not None
        }
        return [
            f"half written: {str(op)[:300]}"
            for op in self._ops
            if len({label in have for label in op.given.get("writes", ())}) > 1
        ]

    def _copies(self) -> list[str]:
        """Compare each restored copy with the writes and erasures that were over before its backup began."""
        faults = []
        for op in self._ops:
            if op.name != "restore" or op.outcome != OK:
                continue
            backup, copied = self._backups[op.given["archive"]], set(op.result)
            for one in self._written:
                if one.op.outcome != OK or not one.op.before(backup):
                    continue
                erasures = self._covering({"person": one.person, "task": one.task})
                undone = self._undoing(one.op)
                if one.id not in copied and not undone and not any(not backup.before(each) for each in erasures):
                    faults.append(f"lost in a backup: {one.label} of {str(one.op)[:200]} in {str(backup)[:200]}")
                done = [e for e in erasures if e.outcome == OK and one.op.before(e) and e.before(backup)]
                if one.id in copied and [each for each in done if not self._undoing(each)]:
                    faults.append(f"erased, and in a later backup: {one.label} by {done[0]}")
        return faults

    def _counter(self) -> list[str]:
        changes = Counter(op.outcome for op in self._ops if op.name == "count")
        for key, content, version, _ in self._rows["note"]:
            if key == self._world["counter"].replace("-", ""):
                low, high = changes[OK], changes[OK] + changes[UNKNOWN]
                low = 0 if self._overwriting else low
                if int(content) == version - 1 and low <= int(content) <= high:
                    return []
                return [f"the counter is {content} in version {version}, after {low} to {high} updates"]
        return ["the counter is lost"]

    def _board(self) -> list[str]:
        scope = self._world["scope"].replace("-", "")
        numbers = [row[2] for row in self._rows["turn"] if row[3] == scope]
        return [] if sorted(numbers) == list(range(len(numbers))) else [f"turns of the board are numbered {numbers}"]

    def _keys(self) -> list[str]:
        """Return the idempotency keys that have several records: those that calls were given, or those stored."""
        ids: dict[str, list[str]] = defaultdict(list)
        for key, content, *_ in self._rows["note"]:
            ids[content or ""].append(key)
        given = {op.given["key"] for op in self._ops if op.name == "once" and op.outcome == OK}
        for op in self._ops:
            if op.name == "once" and op.outcome == OK and not self._overwriting:
                ids[op.given["key"]].append(op.result.replace("-", ""))
        return [f"two records under one key: {key}, {set(ids[key])}" for key in given if len(set(ids[key])) > 1]

    def _results(self) -> list[str]:
        """Return the answers that tell of a fault."""
        told = ("verify", "purge copy")
        faults = [f"{op.name}: {op}" for op in self._ops if op.name in told and op.outcome == OK and op.result]
        faults += [
            f"{op.name}: {op}" for op in self._ops if op.name == "ingest" and op.result and not self._excused(op)
        ]
        return faults

    def _excused(self, op: Op) -> bool:
        """Return whether others may be why a command failed: by a lock, or by erasing what it writes to."""
        if any(word in str(op.result) for word in BUSY):
            return True
        beside = [each for each in (*self._erasing, *self._overwriting) if not each.before(op) and not op.before(each)]
        return bool(beside) and "was not found" in str(op.result)


def written(ops: Iterable[Op]) -> Iterable[Written]:
    """Yield the texts that calls wrote, or may have written."""
    for op in ops:
        result = op.result if op.outcome == OK else None
        for at, (label, digest) in enumerate(op.given.get("writes", {}).items()):
            yield Written(
                label, digest, result["ids"][at] if result else None, op.given.get("person"),
                (result or {}).get("task") or op.given.get("task"), op,
            )  # fmt: skip
