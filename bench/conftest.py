"""Benchmarks: groups are tasks, rows are implementations, and one table at the end puts goal beside figure.

A benchmark belongs to a task through pytest-benchmark's ``group``. What else the table needs goes into
``benchmark.extra_info``:

``peer``      the name and version of the implementation measured; absent on ours
``label``     which of ours it is (an instruction set, a backend); optional
``goal``      on ours: at least this many times faster than the best peer of the task
``at_most``   on ours, instead of ``goal``: at most this many times the best peer's time
``note``      anything a reader must know, such as durability settings

Figures that are not times (bytes, recall) go through the fixture ``figure``. Equal answers are asserted before
anything is timed. Ratios compare medians of one run on one machine; gates read ratios, never times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
HEADINGS = ("task", "ours", "peer", "ratio", "goal", "")


@dataclass(frozen=True)
class Figure:
    """A measured number that is not a time, with what it must reach."""

    task: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None


_FIGURES: list[Figure] = []


@pytest.fixture
def figure() -> Callable[..., None]:
    """Record a number for the table: ``figure(task, value, unit, at_least=None, at_most=None)``."""

    def record(
        task: str, value: float, unit: str, *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        _FIGURES.append(Figure(task, value, unit, at_least, at_most))

    return record


def seconds(value: float) -> str:
    """Return a time with three digits and the unit that suits it."""
    for size, unit in UNITS:
        if value >= size or unit == "ns":
            return f"{value / size:.3g} {unit}"
    raise AssertionError(value)


def verdict(value: float, at_least: float | None, at_most: float | None) -> str:
    """Return whether a figure meets its goal, or nothing if it has none."""
    if at_least is None and at_most is None:
        return ""
    met = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
    return "met" if met else "SHORT"


def row_of_task(task: str, ours: Any, peers: list[Any]) -> tuple[str, ...]:
    """Return the table's row for one of ours against the best of its peers."""
    label = ours.extra_info.get("label")
    name = f"{task} [{label}]" if label else task
    mine = ours.stats.median
    if not peers:
        return name, seconds(mine), "", "", "", ""
    best = min(peers, key=lambda peer: peer.stats.median)
    theirs = best.stats.median
    goal, at_most = ours.extra_info.get("goal"), ours.extra_info.get("at_most")
    peer = f"{seconds(theirs)} {best.extra_info['peer']}"
    if at_most is not None:
        ratio = mine / theirs
        return name, seconds(mine), peer, f"{ratio:.2f}x time", f"<= {at_most:g}x", verdict(ratio, None, at_most)
    ratio = theirs / mine
    wanted = "" if goal is None else f">= {goal:g}x"
    return name, seconds(mine), peer, f"{ratio:.2f}x faster", wanted, verdict(ratio, goal, None)


def rows(benchmarks: list[Any]) -> list[tuple[str, ...]]:
    """Return the whole table."""
    tasks: dict[str, list[Any]] = defaultdict(list)
    for benchmark in benchmarks:
        if benchmark.stats.rounds:
            tasks[benchmark.group or benchmark.name].append(benchmark)
    table: list[tuple[str, ...]] = []
    for task, members in tasks.items():
        peers = [member for member in members if "peer" in member.extra_info]
        table += [row_of_task(task, ours, peers) for ours in members if "peer" not in ours.extra_info]
    for item in _FIGURES:
        goal = f">= {item.at_least:g}" if item.at_least is not None else ""
        goal = f"<= {item.at_most:g}" if item.at_most is not None else goal
        passed = verdict(item.value, item.at_least, item.at_most)
        table.append((item.task, f"{item.value:.4g} {item.unit}", "", "", goal, passed))
    return table


@pytest.hookimpl(trylast=True)  # after the plugin's own tables
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    session = getattr(config, "_benchmarksession", None)
    table = rows(session.benchmarks) if session is not None else []
    if not table:
        return
    widths = [max(len(line[column]) for line in [HEADINGS, *table]) for column in range(len(HEADINGS))]
    terminalreporter.write_sep("=", "goal beside figure (medians, one thread)")
    for line in [HEADINGS, *table]:
        text = " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(" |")
        terminalreporter.write_line(text, red=line[-1] == "SHORT")
    notes = {
        f"{member.group}: {member.extra_info['note']}"
        for member in (session.benchmarks if session is not None else [])
        if "note" in member.extra_info
    }
    for note in sorted(notes):
        terminalreporter.write_line(note)
