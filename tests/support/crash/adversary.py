"""Runs of a writing program beside an adversary, and the verdict: what is stored must be what the program was told.

The program (``crash/adversary_process.py``) appends one line to a ledger before each write (``try``) and one after
it: ``ok`` once the call returned, ``refused`` when it raised an error that says that nothing was written. A write
without the second line may be stored once, or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from support.configs import config
from support.crash.relay import Relay
from support.evidence import scale
from support.waits import let_run

import caliber
from caliber.config import CaliberConfig

PROGRAM: Final = Path(__file__).resolve().parents[2] / "crash" / "adversary_process.py"
DSN: Final = "CALIBER_TEST_ADVERSARY_DSN"
KINDS: Final = {
    "sqlite": ("signals", "forks", "damage", "interrupts"),
    "postgres": ("signals", "forks", "black hole", "damage", "interrupts"),
}
PATIENCE_S: Final = 120
"""A program that says nothing for so long hangs."""
SLACK_S: Final = 10.0
"""Longest time by which a call may end after its deadline: a busy machine is no fault."""
_LOG: Final = 3_000


def settings_of(order: dict[str, Any], place: str | None = None) -> CaliberConfig:
    """Return the configuration of a run's store; ``place`` names another file or schema."""
    values: dict[str, Any] = {
        "storage__durability": order["durability"],
        "embedding__embed__turn": order["embed"],
        "embedding__embed__note": order["embed"],
        "token_budget": 900,
        "policies": [],
        "resident__feed_poll_ms": order["poll_ms"],
        "write_behind__shutdown_ms": order["shutdown_ms"],
    }
    if order["adapter"] == "sqlite":
        return config(place or order["place"], **values, storage__wal_autocheckpoint_pages=60)
    schema = place or order["place"]
    postgres = {"storage__adapter": "postgres", "storage__schema_name": schema, "storage__pool_max": 6}
    return config(f"env:{DSN}", **values, **postgres)


def order_of(number: int, seed: object, adapter: str, kind: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Return the order of a run; all of it follows from the seed and the number."""
    chance = random.Random(f"{seed} {number}")
    return {
        "number": number, "seed": f"{seed} {number}", "adapter": adapter, "kind": kind,
        "durability": "group" if number // 2 % 2 else "commit", "embed": chance.choice(("behind", "commit", "off")),
        "poll_ms": chance.choice((0, 20)), "shutdown_ms": 3_000 if kind == "black hole" else 60_000,
        "threads": chance.randrange(2, 5), "readers": chance.randrange(1, 3), "seconds": seconds,
        "place": str(folder / f"run-{number}.db") if adapter == "sqlite" else f"adversary_{number}",
        "folder": str(folder), "slack_s": SLACK_S, "patience_s": PATIENCE_S,
    }  # fmt: skip


@dataclass
class Outcome:
    """The end of a run's program: its exit, its output, and the state of the store."""

    order: dict[str, Any]
    entries: list[dict[str, Any]]
    code: int | None
    """None for a program that was ended because it hung."""
    log: str = ""
    dump: str = ""
    stored: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def count(self, what: str) -> int:
        """Return how many lines of the ledger there are of a kind."""
        return sum(what in entry for entry in self.entries)

    def total(self, figure: str) -> int:
        """Return the sum of a figure that the program counted."""
        return sum(entry["figures"].get(figure, 0) for entry in self.entries if "figures" in entry)


def verdict(outcome: Outcome) -> list[str]:
    """Return everything that is wrong with a run; empty when it is sound."""
    faults = []
    if outcome.code is None:
        faults.append(f"hang: {outcome.dump or 'no dump'}")
    elif outcome.code:
        faults.append(f"the program ended with code {outcome.code}: {outcome.log[-_LOG:]}")
    tries: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    acknowledged: Counter[str] = Counter()
    for entry in outcome.entries:
        tries[entry.get("try", "")] += 1
        refused[entry.get("refused", "")] += 1
        acknowledged[entry.get("ok", "")] += 1
        faults += [f"{name}: {entry[name]}" for name in ("raw", "hang", "late", "wrong") if name in entry]
    for counted in (tries, refused, acknowledged):
        del counted[""]
    # A program that found its own hang says that instead.
    if outcome.code == 0 and not any("end" in entry or "hang" in entry for entry in outcome.entries):
        faults.append("the program did not say that it had ended")
    faults += [f"lost: {label} was acknowledged" for label in acknowledged if not outcome.stored[label]]
    faults += [f"doubled: {label} is stored {n} times" for label, n in outcome.stored.items() if n > 1]
    faults += [f"unknown: {label} was written by nobody" for label in outcome.stored if label not in tries]
    faults += [
        f"refused: {label} is stored, although each call for it raised"
        for label, n in tries.items()
        if refused[label] == n and outcome.stored[label]
    ]
    return faults + outcome.findings


class Run:
    """One run: a program with its adversary, ended when it hangs, and a look at the store afterwards."""

    def __init__(self, order: dict[str, Any], dsn: str | None = None) -> None:
        self.order = order
        self._dsn = dsn
        folder, number = Path(order["folder"]), order["number"]
        self._ledger = folder / f"ledger-{number}"
        self._log = folder / f"log-{number}"
        self._dump = folder / f"dump-{number}"
        self._ledger.touch()

    def result(self) -> Outcome:
        """Run the program to its end and look at the store."""
        began = time.monotonic()
        relay = Relay(self._dsn) if self._dsn and self.order["kind"] == "black hole" else None
        environment = dict(os.environ)
        order = {**self.order, "ledger": str(self._ledger), "dump": str(self._dump)}
        if self._dsn:
            environment[DSN] = relay.dsn if relay else self._dsn
            order |= {"orders": relay.orders if relay else None, "direct": self._dsn}
        try:
            code = self._watched([sys.executable, str(PROGRAM), json.dumps(order)], environment)
        finally:
            if relay:
                relay.close()
        dump = self._dump.read_text(errors="replace") if self._dump.exists() else ""
        log = self._log.read_text(errors="replace")
        made = Outcome(self.order, self._entries(), code, log, dump)
        self._look(made)
        made.seconds = time.monotonic() - began
        return made

    def _watched(self, command: list[str], environment: dict[str, str]) -> int | None:
        with self._log.open("w") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        size, since = 0, time.monotonic()
        try:
            while process.poll() is None:
                if (now := self._ledger.stat().st_size) != size:
                    size, since = now, time.monotonic()
                if time.monotonic() - since > self.order["patience_s"]:
                    process.send_signal(signal.SIGUSR1)  # faulthandler writes what each thread is doing
                    let_run(1)
                    return None
                let_run(0.02)
            return process.returncode
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the children that it forked
            process.wait()

    def _entries(self) -> list[dict[str, Any]]:
        with self._ledger.open("rb") as lines:
            return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def _look(self, made: Outcome) -> None:
        """Read the store as a process that has no part in the run; on a thread of its own, as it may hang."""
        thread = threading.Thread(target=self._read, args=(made,), daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        if thread.is_alive():
            frame = sys._current_frames().get(thread.ident or 0)
            made.findings.append("hang while reading the store: " + "".join(traceback.format_stack(frame)))

    def _read(self, made: Outcome) -> None:
        try:
            with caliber.open(settings_of(self.order)) as memory:
                made.stored = stored_in(memory)
                made.findings += [f"check: {finding}" for finding in memory.admin.check()]
                made.findings += [f"verify: {difference}" for difference in memory.admin.verify()]
        except Exception:
            made.findings.append(f"the store cannot be read: {traceback.format_exc()}")

    def discard(self) -> None:
        """Remove the store."""
        place = self.order["place"]
        if not self._dsn:
            for path in Path(place).parent.glob(Path(place).name + "*"):
                path.unlink()
            return
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for schema in (place, f"{place}_copy"):
                connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


def stored_in(memory: caliber.Caliber) -> Counter[str]:
    """Count the contents in a store, by the label that each begins with."""
    storage = memory.storage
    contents: list[str] = [
        *(turn.text for turn in storage.turns.all()),
        *(note.content for note in storage.notes.all()),
        *(artifact.text for artifact in storage.artifacts.all()),
    ]
    return Counter(content.partition("|")[0] for content in contents)


def drawn(count: int, seed: object, folder: Path) -> Iterable[dict[str, Any]]:
    """Yield the orders of ``count`` runs: the databases take turns, and each has all of its kinds as often."""
    chance = random.Random(f"{seed} kinds")
    decks: dict[str, list[str]] = {adapter: [] for adapter in KINDS}
    for number in range(count):
        adapter = ("sqlite", "postgres")[number % 2]
        if not decks[adapter]:
            decks[adapter] = chance.sample(KINDS[adapter], len(KINDS[adapter]))
        seconds = chance.uniform(0.5, 1.5) if scale(0, 1) else 0.1
        yield order_of(number, seed, adapter, decks[adapter].pop(), folder, seconds)
