"""A pytest plugin that tells what each file of tests costs: seconds of CPU, of the processes that it started too.

A run ends with the ten dearest files; ``--prices FILE`` writes all of them as JSON. Importing a file counts as its
own. Where there is no /proc, processes count when they end.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

SHOWN = 10
"""How many files the last lines of a run name."""

_COLLECTION = "collection"
_KEPT = "prices"
_PROC = Path("/proc")


class Prices:
    """The seconds of CPU of each file in one process of the run; in the main one, of all."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: Counter[str] = Counter()
        self._paid = _cpu_s()

    def _pay(self, name: str) -> None:
        now = max(self._paid, _cpu_s())  # the kernel may leave out a child while another one ends
        self._seconds[name] += now - self._paid
        self._paid = now

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        self._pay(_COLLECTION)
        try:
            return (yield)
        finally:
            self._pay(collector.nodeid if isinstance(collector, pytest.Module) else _COLLECTION)

    def pytest_collection_finish(self) -> None:
        self._pay(_COLLECTION)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        try:
            return (yield)
        finally:
            if nextitem is None or nextitem.path != item.path:
                self._pay(item.nodeid.partition("::")[0])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._seconds.update(getattr(node, "workeroutput", {}).get(_KEPT, {}))

    def pytest_sessionfinish(self) -> None:
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_KEPT] = dict(self._seconds)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if place := self._config.getoption(_KEPT):
            table = {name: round(cost, 2) for name, cost in self._seconds.most_common()}
            Path(place).write_text(json.dumps(table, indent=1) + "\n")
        files = Counter({name: cost for name, cost in self._seconds.items() if name != _COLLECTION})
        terminalreporter.section("dearest files, in seconds of CPU")
        for name, cost in files.most_common(SHOWN):
            terminalreporter.write_line(f"{cost:7.1f}  {name}")
        terminalreporter.write_line(f"{self._seconds.total():7.1f}  all {len(files)} files, and finding their tests")


def _cpu_s() -> float:
    """Return the seconds of this process and of every process below it, those that ended and those that run."""
    return _family_s(os.getpid()) if (_PROC / "self" / "task").exists() else sum(os.times()[:4])


def _family_s(pid: int) -> float:
    root = _PROC / str(pid)
    own = _read(root / "stat").rpartition(") ")[2].split()[11:15]  # nothing of a process that has just ended
    children = {child for thread in _threads(root) for child in _read(thread / "children").split()}
    return sum(map(int, own)) / os.sysconf("SC_CLK_TCK") + sum(_family_s(int(child)) for child in children)


def _threads(process: Path) -> list[Path]:
    try:
        return list((process / "task").iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--prices", metavar="FILE", help="write the seconds of CPU of each file of tests as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Prices(config), "prices-of-files")
