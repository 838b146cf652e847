"""Data class ``ScheduledRule``: a scheduled policy rule, its next run, and the time up to which it is done.

Source: C-238.
"""

from __future__ import annotations

from datetime import datetime

from caliber.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ScheduledRule:
    """A rule on a schedule, and its progress.

    ``next_at`` is its next due time, which is past while nothing ran it; runs up to ``covered_at`` are done (at first:
    when the rule was first seen, None before); ``running_since`` is the due time of an unfinished run. Times are in
    ``time_zone``.
    """

    policy: str
    rule: int
    cron: str
    actions: tuple[str, ...]
    next_at: datetime
    covered_at: datetime | None
    running_since: datetime | None
