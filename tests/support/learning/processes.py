"""A process that remembers messages, and kills itself at a line of the code that stores and learns them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from support.configs import config
from support.crash.processes import Forked, store_of
from support.databases import DSN, Backend
from support.interrupted import Lines, in_files

import caliber
from caliber.model.time import FixedClock

KNOBS: dict[str, Any] = {"embedding_provider": None, "summarization_provider": None, "jobs__poll_ms": 0}
BEFORE = [{"role": "user", "content": "I live in Berlin. I love jazz.", "id": "m0"}]
MESSAGES = [{"role": "user", "content": "I moved to Lisbon. I'm allergic to nuts. I no longer like jazz.", "id": "m1"}]
CODE = ("/learning/", "/knowledge/", "/storage/write/", "/jobs/", "/trajectory/", "/writing/")
"""The folders whose lines are steps."""


def run_until(work: Callable[..., None], backend: Backend, at: int, *rest: Any) -> int | None:
    """Have a process work on a store until a line; return how many lines there are, None if it died."""
    forked = Forked(work, *store_of(backend), at, *rest)
    try:
        lines: int | None = forked.reports.recv()
    except EOFError:
        lines = None
    forked.process.join(120)
    assert forked.process.exitcode == (-signal.SIGKILL if lines is None else 0)
    return lines


class Killing(Lines):
    """Counts lines, and kills the process at one of them."""

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.run += 1
            if self.run == self._at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def remember(path: str, knobs: dict[str, Any], dsn: str, at: int, user: str, reports: Connection) -> None:
    """Remember the messages of a user, and die at a line; report how many lines there are, if it comes that far."""
    os.environ[DSN] = dsn
    with caliber.open(config(path, **KNOBS, **knobs), clock=FixedClock()) as memory:
        memory.remember(BEFORE, user=user)
        lines = Killing(in_files(*CODE), at)
        with lines.counted():
            memory.remember(MESSAGES, user=user)
        reports.send(lines.run)
