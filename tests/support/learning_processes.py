"""A process that remembers messages, and kills itself at a line of the code that stores and learns them."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import caliber
from caliber.model.time import FixedClock
from support.configs import config
from support.databases import DSN
from support.interrupted import Lines, in_files

KNOBS: dict[str, Any] = {"embedding_provider": None, "summarization_provider": None, "jobs__poll_ms": 0}
BEFORE = [{"role": "user", "content": "I live in Berlin. I love jazz.", "id": "m0"}]
MESSAGES = [{"role": "user", "content": "I moved to Lisbon. I'm allergic to nuts. I no longer like jazz.", "id": "m1"}]
CODE = ("/learning/", "/knowledge/", "/storage/write/", "/jobs/", "/trajectory/", "/writing/")
"""The folders whose lines are steps."""


class Killing(Lines):
    """Counts lines, and kills the process at one of them."""

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.run += 1
            if self.run == self._at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def remember(path: str, knobs: dict[str, Any], dsn: str, user: str, at: int, reports: Connection) -> None:
    """Remember the messages of a user, and die at a line; report how many lines there are, if it comes that far."""
    os.environ[DSN] = dsn
    with caliber.open(config(path, **KNOBS, **knobs), clock=FixedClock()) as memory:
        memory.remember(BEFORE, user=user)
        lines = Killing(in_files(*CODE), at)
        with lines.counted():
            memory.remember(MESSAGES, user=user)
        reports.send(lines.run)
