"""Terminal output of commands: results as text or JSON, messages, progress; formats of counts, sizes, times.

Results go to stdout, messages and progress bars to stderr.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import date
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from caliber.model.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PLAIN_EVERY_S: Final = 10.0
"""Seconds between lines of progress where there is no terminal; shorter work prints none."""


def printable(text: str) -> str:
    """Return remembered text safe for a terminal: no escape sequences, no reversed direction."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def jsonable(value: Any) -> Any:
    """Return entities, ids, instants and enums as JSON has them; bytes as text with replacement characters."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, uuid.UUID | Path):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: jsonable(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(jsonable(key)): jsonable(item) for key, item in value.items()}
    if isinstance(value, Sequence | Set):
        return [jsonable(item) for item in value]
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"no JSON for {type(value).__name__}")


def write_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    unicode_fits = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    sys.stdout.write(json.dumps(jsonable(document), indent=2, ensure_ascii=not unicode_fits) + "\n")


class Output:
    """Printing for one command; in JSON mode everything but the result goes to stderr."""

    def __init__(self, *, json: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.json = json
        self._clock = clock
        self._console: Console | None = None
        self._errors: Console | None = None

    @property
    def console(self) -> Console:
        """stdout for people."""
        if self._console is None:
            self._console = _console(stderr=self.json)
        return self._console

    @property
    def errors(self) -> Console:
        """stderr."""
        if self._errors is None:
            self._errors = _console(stderr=True)
        return self._errors

    def print(self, text: str = "") -> None:
        """Print a line for people."""
        stream = sys.stderr if self.json else sys.stdout
        stream.write(printable(text) + "\n")

    def note(self, text: str) -> None:
        """Print a message beside the result."""
        sys.stderr.write(printable(text) + "\n")

    def warn(self, text: str) -> None:
        """Print a warning for people, in yellow where there are colours."""
        from rich.text import Text

        self.console.print(Text(printable(text), style="yellow"), soft_wrap=True)

    def result(self, document: Any, human: Callable[[], None]) -> None:
        """Print the result: the document in JSON mode, else what ``human`` prints."""
        if self.json:
            write_json(document)
        else:
            human()

    @contextmanager
    def progress(
        self, label: str, total: int | None, unit: str = "", *, done: int = 0, rate: bool = False
    ) -> Iterator[Callable[[int], None]]:
        """Show the progress of long work: a bar on a terminal, elsewhere a line every ten seconds; yield the advance.

        Work that printed a line prints another when it is done. ``done`` is the initial amount; with ``rate`` the lines
        show the amount per second and the remaining time.
        """
        if self.errors.is_terminal and not os.environ.get("CI"):
            with _bar(self.errors, label, total, done, unit if rate else None) as advance:
                yield advance
            return
        lines = _Lines(self, self._clock, label, total, unit, done, rate)
        yield lines.advance
        lines.finish()


def advancing(advance: Callable[[int], None], before: int = 0) -> Progress:
    """Return a progress callback that advances a bar by the work done since its last call, for each stage separately.

    ``before`` is the amount that the bar shows already.
    """
    shown: dict[str, int] = {}

    def progress(stage: str, done: int, _: int | None) -> None:
        shown_before = shown.get(stage, before)
        advance(max(0, done - shown_before))
        shown[stage] = max(done, shown_before)

    return progress


class _Lines:
    """Progress where there is no terminal."""

    def __init__(
        self,
        out: Output,
        clock: Callable[[], float],
        label: str,
        total: int | None,
        unit: str,
        done: int,
        rate: bool,
    ) -> None:
        self._out, self._clock, self._label, self._total, self._unit = out, clock, label, total, unit
        self._done = self._before = done
        self._printed: int | None = None
        self._rate = rate
        self._last = self._begun = clock()

    def advance(self, steps: int) -> None:
        self._done += steps
        now = self._clock()
        if now - self._last >= _PLAIN_EVERY_S:
            self._last = now
            self._print(self._pace(now) if self._rate else "")

    def finish(self) -> None:
        """Print the last line, if there were any before it."""
        if self._printed not in (None, self._done):
            self._print("")

    def _print(self, pace: str) -> None:
        self._printed = self._done
        if self._unit == "bytes":
            of = "" if self._total is None else f" of {bytes_text(self._total)}"
            text = f"{self._label}: {bytes_text(self._done)}{of}"
        else:
            of = "" if self._total is None else f" of {self._total:,}"
            text = f"{self._label}: {self._done:,}{of}"
            if self._unit != self._label:
                text = f"{text} {self._unit}".rstrip()
        self._out.note(text + pace)

    def _pace(self, now: float) -> str:
        """Return how many a second there were, and how long the rest will take."""
        a_second = (self._done - self._before) / max(now - self._begun, 1e-6)
        remaining = (
            "" if self._total is None or not a_second else f", {time_text((self._total - self._done) / a_second)} left"
        )
        return f", {a_second:,.0f} a second{remaining}"


@contextmanager
def _bar(
    console: Console, label: str, total: int | None, done: int, unit: str | None
) -> Iterator[Callable[[int], None]]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:,.0f} {unit}/s")

    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(bar_width=28), MofNCompleteColumn()]
    columns += [TimeRemainingColumn()] if unit is None else [Rate(), TimeRemainingColumn()]
    with Bars(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=total, completed=done)

        def advance(steps: int) -> None:
            progress.advance(task, steps)

        yield advance


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    # Highlighting and markup would misread remembered text; colours are set explicitly.
    console = Quiet(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 80
    return console


def time_text(seconds: float) -> str:
    """Return a length of time for people: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6_000 else f"{seconds / 3_600:.1f} h"


def bytes_text(count: int) -> str:
    """Return a size for people."""
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{int(size)} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError  # the loop returns


def plural(count: int, noun: str, many: str = "") -> str:
    """Return a count with its noun: ``1 note``, ``2 notes``."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
