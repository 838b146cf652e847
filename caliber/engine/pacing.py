"""Timing of background workers (rests, scans, slices, reports, backoff), and of embedding within a call's deadline."""

from __future__ import annotations

from typing import Final

from caliber.model.deadline import remaining_s

FOREIGN_S: Final = 30.0
"""The time that another program has to finish its work, before a worker here looks for the rest."""

LOOK_SHARE: Final = 0.01
"""Most of the time that such looks may take, in a large store that others write to all the time."""

REST_PARTS: Final = 4.0
"""The rest after a batch, as a multiple of the time that the batch took.

Writers take turns. No caller waits for the worker's transaction, so the requests of other writers can gather for the
next one.
"""

REST_MAX_S: Final = 0.05
"""The longest rest, however slow a provider is."""


SLICE_S: Final = 5.0
"""The time after which a long job lets other jobs of its store go first."""

GATHER_S: Final = 1.0
"""The time in which jobs that nobody waits for gather, so that one look of this process finds them all."""

REPORT_S: Final = 1.0
"""The time between two reports of how far a long job is."""


def foreign_wait_s(looked_s: float) -> float:
    """Return how long to wait before the next scan for other processes' leftovers; ``looked_s`` is the last scan's
    time.
    """
    return max(FOREIGN_S, looked_s / LOOK_SHARE)


KEPT_SHARE = 4
KEPT_MOST_MS = 100
"""The part of a deadline that embedding leaves: a quarter, or this."""


def embedding_share_s() -> float | None:
    """Return the seconds that embedding may take, so that the other legs still answer; None without a deadline."""
    remaining = remaining_s()
    return None if remaining is None else remaining - min(remaining / KEPT_SHARE, KEPT_MOST_MS / 1_000)
