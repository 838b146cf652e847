"""Open load: calls arrive by a schedule, whether earlier calls have returned or not.

A latency counts from the planned arrival: a call that starts late, as the one before it was slow, is charged for the
delay. A loop that waits for each call before it plans the next one would leave out the very moments that are slow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LEAD_S = 0.02  # until the first arrival: every thread has started by then
_BAR = 40


@dataclass(frozen=True)
class Stream:
    """Calls of one thread, and how many of them arrive a second."""

    call: Callable[[], object]
    rate: float


def _arrivals(begin: float, rate: float, seconds: float, share: float) -> Iterator[float]:
    """Yield the planned arrivals of a stream; its ``share`` of an interval sets it apart from the others."""
    for at in range(max(1, int(rate * seconds))):
        yield begin + (at + share) / rate


def open_load(streams: Sequence[Stream], seconds: float) -> list[NDArray[np.float64]]:
    """Run all streams at once, a thread each; return the seconds of each call of each stream."""
    begin = time.perf_counter() + _LEAD_S

    def run(number: int) -> NDArray[np.float64]:
        stream, took = streams[number], []
        for planned in _arrivals(begin, stream.rate, seconds, number / len(streams)):
            time.sleep(max(0.0, planned - time.perf_counter()))
            stream.call()
            took.append(time.perf_counter() - planned)
        return np.asarray(took)

    with ThreadPoolExecutor(len(streams)) as threads:
        return list(threads.map(run, range(len(streams))))


async def open_load_of(calls: Sequence[Callable[[], Awaitable[object]]], rate: float, seconds: float) -> list[float]:
    """Run each call again and again, ``rate`` times a second all together; return the seconds of each."""
    begin, took = time.perf_counter() + _LEAD_S, list[float]()

    async def run(number: int) -> None:
        for planned in _arrivals(begin, rate / len(calls), seconds, number / len(calls)):
            await asyncio.sleep(max(0.0, planned - time.perf_counter()))
            await calls[number]()
            took.append(time.perf_counter() - planned)

    await asyncio.gather(*map(run, range(len(calls))))
    return took


def histogram(named: dict[str, NDArray[np.float64]]) -> list[str]:
    """Return lines that show how many calls of each name took how long: a line for each doubling."""
    powers = {name: np.floor(np.log2(np.maximum(took, 1e-6) * 1e6)).astype(int) for name, took in named.items()}
    every = np.concatenate(list(powers.values()))
    lines = []
    for power in range(int(every.min()), int(every.max()) + 1):
        for name, found in powers.items():
            count = int(np.count_nonzero(found == power))
            bar = "#" * -(-_BAR * count // len(found))
            lines.append(f"{f'from {2**power:,} µs':>15}  {name:<10} {count:>7}  {bar}".rstrip())
    return lines
