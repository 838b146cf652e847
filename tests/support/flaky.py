"""A pytest plugin that runs each failed test once more, alone: ``pytest -p tests.support.flaky``.

A test that then passes is flaky: a fault to mend, named in the last lines of the output, but the run is green. The
second run is a process of its own with the same seeds. These failures stay red, because one test run alone cannot
disprove them: errors of collection, errors in a teardown (its fixture may belong to many tests), a run that stopped
before the last test, a worker that died between two tests, and more than ``MOST`` failed tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

MOST = 10
"""The most failed tests that are run again. More are no coincidence, and running each alone would take hours."""

_FORWARDED = (("hypothesis_seed", "--hypothesis-seed"), ("timeout", "--timeout"))
_CRASHED = "???"
"""The phase that xdist reports for a test whose worker died."""


class FlakyTests:
    """Collects the failures of a run, and runs them again when it ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failures: dict[str, list[pytest.TestReport]] = {}
        self._finished: set[str] = set()
        self._not_of_a_test: list[str] = []
        self._dead_workers: dict[str, str] = {}
        self._flaky: list[str] = []
        self._notes: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._not_of_a_test.append(f"{report.nodeid or 'the run'} could not be collected")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        nodeid = str(report.nodeid)
        if report.failed:
            self._failures.setdefault(nodeid, []).append(report)
            if report.when == "teardown":
                self._not_of_a_test.append(f"{nodeid} failed in a teardown")
        if report.when in ("teardown", _CRASHED):
            self._finished.add(nodeid)
        if report.when == _CRASHED:
            self._dead_workers.pop(_worker_of(report), None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        # xdist names the test that the worker was running, if there was one, right after this.
        if error is not None:
            self._dead_workers[node.gateway.id] = str(error)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._dead_workers and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._not_of_a_test += [f"worker {name} died: {error}" for name, error in self._dead_workers.items()]
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED:
            return
        reasons = list(self._reasons(session))
        if reasons:
            kept = "no failed test was run again: " if self._failures else ""
            self._notes += [f"{kept}{reason}" for reason in reasons]
            return
        self._terminal().write_line("")
        for nodeid in self._failures:
            self._run_again(nodeid)
        if self._failures and len(self._flaky) == len(self._failures):
            session.exitstatus = pytest.ExitCode.OK

    def _reasons(self, session: pytest.Session) -> Iterator[str]:
        """Yield why the run stays red whatever its failed tests do alone."""
        yield from self._not_of_a_test
        if session.shouldfail or session.shouldstop or len(self._finished) < session.testscollected:
            yield f"the run stopped after {len(self._finished)} of {session.testscollected} tests"
        if len(self._failures) > MOST:
            yield f"{len(self._failures)} tests failed, which is no coincidence"

    def _run_again(self, nodeid: str) -> None:
        terminal = self._terminal()
        terminal.write_line(f"running again, alone: {nodeid}")
        passed, output = run_alone(self._config, nodeid)
        if not passed:
            self._notes.append(f"failed again, alone: {nodeid}")
            terminal.write_line(output)
            return
        self._flaky.append(nodeid)
        # It may have passed too: xdist gives the test that a worker died in to the next one.
        for name in ("failed", "error", "passed"):
            others = [report for report in terminal.stats.pop(name, ()) if str(report.nodeid) != nodeid]
            if others:
                terminal.stats[name] = others
        terminal.stats.setdefault("flaky", []).append(self._failures[nodeid][0])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None]:
        for nodeid in self._flaky:
            for report in self._failures[nodeid]:
                terminalreporter.write_sep("=", f"FLAKY, {report.when}: {nodeid}")
                terminalreporter.write_line(report.longreprtext)
                for title, text in report.sections:
                    terminalreporter.write_sep("-", title)
                    terminalreporter.write_line(text)
        try:
            return (yield)
        finally:
            for note in self._notes:
                terminalreporter.write_line(note)
            seed = os.environ.get("CALIBER_SEED", "none")
            for nodeid in self._flaky:
                terminalreporter.write_line(
                    f"flaky: {nodeid} failed in this run and passed alone (seed {seed}); mend it", yellow=True
                )

    def _terminal(self) -> Any:
        return self._config.pluginmanager.getplugin("terminalreporter")


def _worker_of(report: pytest.TestReport) -> str:
    node: Any = getattr(report, "node", None)
    return "" if node is None else node.gateway.id


def run_alone(config: pytest.Config, nodeid: str) -> tuple[bool, str]:
    """Run one test in a new process with this run's seeds. Return whether it passed, and the output."""
    options = [
        f"{flag}={value}" for name, flag in _FORWARDED if (value := config.getoption(name, default=None)) is not None
    ]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", *options, f"--junit-xml={results}", nodeid]
        done = subprocess.run(
            command, cwd=config.rootpath, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            check=False,
        )  # fmt: skip
        passed = done.returncode == 0 and results.exists() and _passed(ElementTree.parse(results))
    return passed, f"{done.stdout}{done.stderr}"


def _passed(results: ElementTree.ElementTree[Any]) -> bool:
    """Return whether exactly one test ran, and passed: a skipped test proves nothing."""
    cases = list(results.iter("testcase"))
    return len(cases) == 1 and not any(child.tag in ("failure", "error", "skipped") for child in cases[0])


def pytest_configure(config: pytest.Config) -> None:
    # Workers only report; the process that started them knows of every test.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FlakyTests(config), "flaky-tests")
