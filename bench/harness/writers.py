"""Many threads that write at once, and how many writes a second that makes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def per_second(writers: int, seconds: float, write: Callable[[int], Callable[[], None]]) -> tuple[float, float]:
    """Return writes a second of all threads together, and the slowest thread's share of the mean."""
    counts = [0] * writers
    end = time.perf_counter() + seconds
    barrier = threading.Barrier(writers)
    calls = [write(number) for number in range(writers)]

    def work(number: int) -> None:
        barrier.wait()
        while time.perf_counter() < end:
            calls[number]()
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = max(1, sum(counts))  # a busy machine may give a short run no time at all
    return total / seconds, min(counts) * writers / total
