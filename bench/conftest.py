"""The frame of all benchmarks: contests and figures in, one table out. README.md says how to use it."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness import peers, plot, scale
from harness.contest import ASIDE, CLOCKS, PEER, READ, WALL, Contender, Timing, measure
from harness.report import Figure, Measurement, document, lines, measurement_of, table
from pytest_benchmark.stats import Metadata

ROUNDS, BUDGET_S = 9, 0.5
FULL_ROUNDS, FULL_BUDGET_S = 15, 2.0
QUICK_ROUNDS, QUICK_BUDGET_S = 3, 0.0
_FIGURES = pytest.StashKey[list[Figure]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("caliber", "CALIBER's benchmarks")
    group.addoption("--quick", action="store_true", help="few rounds and tiny sizes: to see that it runs")
    group.addoption("--full", action="store_true", help="large sizes and more rounds: half an hour")
    group.addoption("--without-peers", action="store_true", help="treat the packages compared with as not installed")
    group.addoption("--report", type=Path, metavar="FILE", help="write the run as JSON")
    group.addoption("--plot", type=Path, metavar="FILE", help="draw search time against rows as PNG")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = []
    if config.getoption("full"):
        scale.use_full()  # before a benchmark is imported
    if config.getoption("without_peers"):
        peers.exclude()  # before a benchmark imports one


def pytest_collection_finish() -> None:
    # A collection precedes each contest; it need not look at every imported module again.
    gc.freeze()


@pytest.fixture(scope="session")
def quick(pytestconfig: pytest.Config) -> bool:
    """True if sizes are tiny and rounds few."""
    return bool(pytestconfig.getoption("quick"))


@pytest.fixture
def figure(pytestconfig: pytest.Config) -> Callable[..., None]:
    """Record a number for the table: ``figure(task, value, unit, at_least=None, at_most=None)``."""

    def record(
        task: str, value: float, unit: str, *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        pytestconfig.stash[_FIGURES].append(Figure(task, value, unit, at_least, at_most))

    return record


@pytest.fixture
def show(request: pytest.FixtureRequest) -> Callable[[str, list[str]], None]:
    """Print lines between the dots of the run."""
    plugins = request.config.pluginmanager
    reporter, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")

    def write(title: str, lines: list[str]) -> None:
        with capture.global_and_fixture_disabled():
            reporter.write_line("")
            for line in [title, *(f"    {line}" for line in lines)]:
                reporter.write_line(line)

    return write


class _Entry:
    """The fields that pytest-benchmark needs to show a row."""

    has_error = False
    cprofile_stats = None

    def __init__(
        self, request: pytest.FixtureRequest, task: str, contender: Contender, more: dict[str, int | str]
    ) -> None:
        self.name = f"{request.node.name}: {contender.name}"
        self.fullname = f"{request.node.nodeid}: {contender.name}"
        self.group = task
        self.param = self.params = None
        named = "peer" if contender.kind in (PEER, ASIDE, READ) else "label"
        told = ("kind", "goal", "at_most", "at_most_s", "bytes_read", "recall", "note")
        values: dict[str, object] = {name: getattr(contender, name) for name in told} | {named: contender.name} | more
        self.extra_info = {name: value for name, value in values.items() if value is not None}


def _add(session: Any, entry: _Entry, timing: Timing, rounds: int, budget_s: float) -> None:
    options = {
        "disable_gc": True,
        "timer": CLOCKS[str(entry.extra_info["clock"])],
        "min_rounds": rounds,
        "max_time": budget_s,
        "min_time": 0.0,
        "warmup": timing.warm_calls,
    }
    row = Metadata(entry, timing.iterations, options)
    for took in timing.rounds_s:
        row.update(took)
    session.benchmarks.append(row)


@pytest.fixture
def contest(request: pytest.FixtureRequest, quick: bool) -> Callable[..., None]:
    """Time implementations of one task in turn: ``contest(task, contenders, clock=WALL, rows=None, dimensions=None)``.

    Every contender becomes a row of pytest-benchmark. Assert equal answers before you call it. ``clock`` is CPU only
    where everybody computes in this process: time of a disk or of another process does not count there.
    """
    session = request.config._benchmarksession  # type: ignore[attr-defined]
    usual = scale.usual((ROUNDS, BUDGET_S), full=(FULL_ROUNDS, FULL_BUDGET_S))
    rounds, budget_s = (QUICK_ROUNDS, QUICK_BUDGET_S) if quick else usual

    def run(task: str, contenders: Sequence[Contender], clock: str = WALL, **sizes: int) -> None:
        if session.disabled:
            pytest.skip("pytest-benchmark is switched off: answers were compared, nothing was timed")
        for timing in measure(contenders, rounds=rounds, budget_s=budget_s, clock=CLOCKS[clock]):
            entry = _Entry(request, task, timing.contender, {"clock": clock, **sizes})
            _add(session, entry, timing, rounds, budget_s)

    return run


def _measurements(config: pytest.Config) -> list[Measurement]:
    session = getattr(config, "_benchmarksession", None)
    return [] if session is None else [measurement_of(item) for item in session.benchmarks if item.stats.rounds]


@pytest.hookimpl(trylast=True)  # after the plugin's own tables
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    measurements, figures = _measurements(config), config.stash[_FIGURES]
    rows = table(measurements, figures)
    if rows:
        quick = " -- QUICK: too few rounds to judge by" if config.getoption("quick") else ""
        terminalreporter.write_sep("=", f"goal beside figure (medians, one thread){quick}")
        for text, row in zip(lines(rows), [None, *rows], strict=True):
            terminalreporter.write_line(text, red=row is not None and row.met is False)
        for note in sorted({f"{item.task}: {item.note}" for item in measurements if item.note and item.kind != ASIDE}):
            terminalreporter.write_line(note)
        if peers.absent():
            terminalreporter.write_line(f"not compared with, as not installed: {', '.join(peers.absent())}")
    report: Path | None = config.getoption("report")
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(
            document(measurements, figures, quick=config.getoption("quick"), absent=peers.absent()), indent=2
        )
        report.write_text(text + "\n", encoding="utf-8")
    picture: Path | None = config.getoption("plot")
    if picture is not None:
        if plot.draw(measurements, picture):
            terminalreporter.write_line(f"drawn: {picture}")
        else:
            terminalreporter.write_line("nothing to draw: no searches of different sizes were timed (group topk)")
