"""Due times of schedules, against walking through all due times one by one. Source: C-148, C-238."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.evidence import examples

from caliber.config.cron import last_due, next_due, zone_of

HOUR = 3_600_000_000
CRONS = ("30 2 * * *", "0 * * * *", "*/20 1-3 * * *", "15,45 2,3 * * SUN", "0 0 1 * *", "*/7 */5 * * *", "59 1 * * 0-6")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo")
CHANGES = [
    int(datetime(2024, month, day, hour, tzinfo=UTC).timestamp()) * 1_000_000
    for month, day, hour in ((3, 31, 1), (10, 27, 1), (4, 6, 15))
]


@settings(max_examples=examples(60), deadline=None)
@given(
    cron=st.sampled_from(CRONS),
    zone=st.sampled_from(ZONES),
    after=st.builds(lambda at, by: at + by, st.sampled_from(CHANGES), st.integers(-30 * HOUR, 30 * HOUR)),
    length=st.integers(0, 60 * HOUR),
)
@example(cron="30 2 * * *", zone="Europe/Berlin", after=CHANGES[1] - HOUR // 2, length=HOUR)
@example(cron="30 2 * * *", zone="Europe/Berlin", after=CHANGES[1] + HOUR // 6, length=HOUR)
@example(cron="0 * * * *", zone="UTC", after=CHANGES[0], length=HOUR)
def test_the_last_due_time_is_the_last_of_all(cron: str, zone: str, after: int, length: int) -> None:
    where, until = zone_of(zone), after + length
    at, last, steps = after, None, 0
    while (at := next_due(cron, where, at)) <= until:
        assert at > (after if last is None else last)
        last, steps = at, steps + 1
    found = last_due(cron, where, until, after_us=after)
    assert (found is None) == (last is None)
    if last is not None:
        assert found == last
        # What was found is done: nothing of it comes again.
        assert last_due(cron, where, until, after_us=found) is None
