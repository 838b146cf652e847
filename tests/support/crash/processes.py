"""Processes that run beside a test: forked ones that work on a store, and programs that do what the test orders."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from support.databases import DSN, Backend

IMPORTED = [
    "caliber.api.opening", "caliber.backends.postgres", "caliber.backends.sqlite", "caliber.jobs.runner",
    "caliber.cli.app", "caliber.erasure.service", "caliber.kernels", "caliber.learning.owner",
    "caliber.learning.rules.reading", "caliber.pcp.recovery", "click.testing", "psycopg",
]  # fmt: skip
"""Imported once for all processes; modules of tests are not found that early."""
_starting = multiprocessing.get_context("forkserver")


class Forked:
    """A process that works with some arguments, and sends its reports through a pipe."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        _starting.set_forkserver_preload(IMPORTED)
        self.reports, theirs = _starting.Pipe(duplex=False)
        self.process: BaseProcess = _starting.Process(target=work, args=(*arguments, theirs))
        self.process.start()
        theirs.close()

    def kill(self) -> None:
        """Kill the process, wherever it is."""
        self.process.kill()
        self.process.join(30)
        assert self.process.exitcode == -signal.SIGKILL, "it ended by itself"


def store_of(backend: Backend) -> tuple[str, dict[str, Any], str]:
    """Return the arguments by which a forked process opens a store: its path, knobs and server."""
    return backend.path, backend.knobs, os.environ.get(DSN, "")


class Child:
    """A Python program that reads orders from its standard input and answers each with a line of JSON."""

    def __init__(self, program: Path, *arguments: object) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, str(program), *map(str, arguments)], stdin=pipe, stdout=pipe, text=True
        )

    def send(self, order: str, *rest: Any) -> None:
        """Write an order and its arguments: text as it is, anything else as JSON."""
        assert self._process.stdin is not None
        texts = [each if isinstance(each, str) else json.dumps(each) for each in rest]
        self._process.stdin.write(" ".join([order, *texts]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the next answer."""
        line = self._process.stdout.readline()
        assert line, "the process ended"
        return json.loads(line)

    def ask(self, order: str, *rest: Any) -> Any:
        """Write an order and return its answer."""
        self.send(order, *rest)
        return self.answer()

    def dies(self) -> None:
        """Wait until SIGKILL ends the process, which gives no more answers."""
        assert self._process.stdout.readline() == ""
        assert self._process.wait(30) == -signal.SIGKILL

    def end(self) -> None:
        """Close both pipes, which ends the process; one that did not die ends well."""
        dead = self._process.returncode is not None
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()
        assert dead or self._process.wait(30) == 0

    def kill(self) -> None:
        """Kill the process, whatever it is at."""
        self._process.kill()
        self._process.communicate()
