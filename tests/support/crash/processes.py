"""Programs that run beside a test and do what it orders, line by line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


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
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process ended"
        return json.loads(line)

    def ask(self, order: str, *rest: Any) -> Any:
        """Write an order and return its answer."""
        self.send(order, *rest)
        return self.answer()

    def dies(self) -> None:
        """Wait until SIGKILL ends the process, which gives no more answers."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == ""
        assert self._process.wait(30) == -signal.SIGKILL

    def end(self) -> None:
        """Close both pipes, which ends the process; one that did not die ends well."""
        dead = self._process.returncode is not None
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        assert dead or self._process.wait(30) == 0

    def kill(self) -> None:
        """Kill the process, whatever it is at."""
        self._process.kill()
        self._process.communicate()
