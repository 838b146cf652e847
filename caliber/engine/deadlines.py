"""Split of a call's deadline: the seconds that embedding the query may take, so that time remains for the search.

Source: M-040.
"""

from __future__ import annotations

from caliber.model.deadline import remaining_s

KEPT_SHARE = 4
KEPT_MOST_MS = 100
"""The part of a deadline that embedding leaves: a quarter, or this."""


def embedding_share_s() -> float | None:
    """Return the seconds that embedding may take, so that the other legs still answer; None without a deadline."""
    remaining = remaining_s()
    return None if remaining is None else remaining - min(remaining / KEPT_SHARE, KEPT_MOST_MS / 1_000)
