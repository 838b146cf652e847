"""Progress where there is no terminal: nothing for short work, and no line that stays half-finished."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from caliber.cli.output import Output


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def progress(clock: Clock, *args: object, **options: object) -> AbstractContextManager[Callable[[int], None]]:
    return Output(json=False, clock=clock).progress(*args, **options)  # type: ignore[arg-type]


def test_short_work_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with progress(clock, "windows", 1_000, "windows") as advance:
        for _ in range(20):
            clock.now += 0.45
            advance(50)
    assert capsys.readouterr() == ("", "")


def test_long_work_prints_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with progress(clock, "copying", 1_000, "rows") as advance:
        for _ in range(10):
            clock.now += 4
            advance(100)
    assert capsys.readouterr().err.splitlines() == [
        "copying: 300 of 1,000 rows",
        "copying: 600 of 1,000 rows",
        "copying: 900 of 1,000 rows",
        "copying: 1,000 of 1,000 rows",
    ]


def test_the_end_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with progress(clock, "commits", 30, "commits") as advance:
        clock.now += 11
        advance(30)
    assert capsys.readouterr().err == "commits: 30 of 30\n"


def test_work_that_fails_keeps_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()

    def work() -> None:
        with progress(clock, "checking", 2_000_000, "bytes") as advance:
            clock.now += 11
            advance(500_000)
            advance(500_000)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    assert capsys.readouterr().err == "checking: 500.0 KB of 2.0 MB\n"


def test_a_rate_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with progress(clock, "vectors", 1_000, "records", done=200, rate=True) as advance:
        clock.now += 20
        advance(400)
        clock.now += 1
        advance(400)
    assert capsys.readouterr().err.splitlines() == [
        "vectors: 600 of 1,000 records, 20 a second, 20 s left",
        "vectors: 1,000 of 1,000 records",
    ]
