"""Contests: implementations of one task, timed in turn.

On a shared machine speed changes from second to second. Rounds of all contenders alternate, so that what disturbs one
disturbs the others too, and every ratio compares figures of the same moments. Before each round its contender runs
untimed for a while: caches hold its data and not those of the one before.

Where nothing but computing happens, rounds are timed by the CPU time of this process, all its threads together: a call
that the scheduler interrupts, as it does longer calls more often than short ones, is not charged for the pause.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

CPU, WALL = "cpu", "wall"
CLOCKS = {CPU: time.process_time, WALL: time.perf_counter}
OURS, TWIN, PEER, ASIDE, READ = "ours", "twin", "peer", "aside", "read"
KINDS = (OURS, TWIN, PEER, ASIDE, READ)

LEAST_ROUND_S = 0.5e-3  # shorter calls are repeated within a round until a clock is precise enough
# Untimed calls before a round. Several, as a call may need only a part of what its followers need; none of long calls,
# whose end finds nothing left of what their beginning loaded.
WARM_S, MOST_WARM_CALLS, WARM_BELOW_S = 2e-3, 16, 20e-3
MOST_ROUNDS = 200


@dataclass(frozen=True)
class Contender:
    """One implementation of a task.

    ``kind``       ours; twin (our evaluator in NumPy); peer; aside (a peer that does less: it may miss rows, or
                   answers another question, and so decides no goal); read (a plain read of as many bytes)
    ``name``       the instruction set of ours, or name and version of what is compared
    ``around``     entered for each round, such as the choice of a path
    ``goal``       on ours: at least this many times faster than the best peer
    ``at_most``    on ours: at most this many times the best peer's time
    ``at_most_s``  on ours: at most this many seconds
    """

    kind: str
    name: str
    call: Callable[[], object]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    goal: float | None = None
    at_most: float | None = None
    at_most_s: float | None = None
    bytes_read: int | None = None
    recall: float | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is none of {', '.join(KINDS)}")
        if self.kind == ASIDE and self.recall is None and self.note is None:
            raise ValueError(f"{self.name}: say by recall or note why it decides no goal")


@dataclass
class Timing:
    """The rounds of one contender: seconds of all ``iterations`` together."""

    contender: Contender
    iterations: int
    call_s: float
    rounds_s: list[float] = field(default_factory=list)

    @property
    def warm_calls(self) -> int:
        """The number of untimed calls before a round."""
        if self.call_s >= WARM_BELOW_S:
            return 0
        return max(1, min(MOST_WARM_CALLS, int(WARM_S / self.call_s)))


def _timed(call: Callable[[], object], iterations: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in repeat(None, iterations):
        call()
    return clock() - start


def _calibrated(contender: Contender, clock: Callable[[], float]) -> Timing:
    with contender.around():
        contender.call()
        iterations, took = 1, _timed(contender.call, 1, clock)
        while took < LEAST_ROUND_S and iterations < 1 << 24:
            iterations *= max(2, min(10, int(1.2 * LEAST_ROUND_S / max(took, 1e-9))))
            took = _timed(contender.call, iterations, clock)
    return Timing(contender, iterations, took / iterations)


def measure(
    contenders: Sequence[Contender],
    *,
    rounds: int,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time all contenders in turn: ``rounds`` rounds each, more while ``budget_s`` for all together allows it."""
    timings = [_calibrated(contender, clock) for contender in contenders]
    one_round_s = sum(timing.call_s * (timing.iterations + timing.warm_calls) for timing in timings)
    rounds = max(rounds, min(MOST_ROUNDS, int(budget_s / max(one_round_s, 1e-9))))
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            first = number % len(timings)  # nobody always follows the same one
            for timing in timings[first:] + timings[:first]:
                with timing.contender.around():
                    _timed(timing.contender.call, timing.warm_calls, clock)
                    timing.rounds_s.append(_timed(timing.contender.call, timing.iterations, clock))
    finally:
        if collecting:
            gc.enable()
    return timings


def paths(
    call: Callable[[], object],
    names: Iterable[str],
    *,
    goal: float | None = None,
    at_most_s: float | None = None,
    bytes_read: int | None = None,
) -> list[Contender]:
    """Return ours on each of the named paths; the best of this machine carries the goal."""
    from caliber.kernels import available_paths, forced_path

    best = available_paths()[-1]
    return [
        Contender(
            OURS,
            name,
            call,
            lambda name=name: forced_path(name),
            goal=goal if name == best else None,
            at_most_s=at_most_s if name == best else None,
            bytes_read=bytes_read,
        )
        for name in names
    ]
