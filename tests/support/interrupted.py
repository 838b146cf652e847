"""Interrupts that come at every line of chosen code, one line after the other.

A signal's handler runs, and raises, between two bytecodes: where a call was made, a function begins, or a loop turns.
Most lines have such a place; where a ``with`` block is left, nothing comes between the block and ``__exit__``.
"""

from __future__ import annotations

import dis
import functools
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "caliber"


class Interrupt(BaseException):
    """Raised by a signal's handler."""


@functools.cache
def _untouchable(code: CodeType) -> frozenset[int]:
    """Return where lines begin that nothing interrupts.

    A ``with`` block is left as it should be, ``try`` is said, or an ``except`` block is left: an exception there would
    leave the one that was handled as that of the thread, with all that it refers to, for as long as the process runs.
    """
    every = list(dis.get_instructions(code))
    found = [each for each in every if each.opname not in ("CACHE", "PRECALL", "NOP")]
    nones = [each.opname.startswith("LOAD_CONST") and each.argval is None for each in found]
    out = {each.offset for each in every if each.opname in ("NOP", "POP_EXCEPT")}
    for at in range(len(found) - 3):
        if all(nones[at : at + 3]) and found[at + 3].opname.startswith("CALL"):
            out.add(found[at].offset)
            if at and found[at - 1].opname == "SWAP":  # a value that is returned from within
                out.add(found[at - 1].offset)
    return frozenset(out)


class Lines:
    """Counts the lines that the calling thread runs in functions that ``wanted`` names, and interrupts one of them."""

    def __init__(self, wanted: Callable[[CodeType], bool], at: int) -> None:
        self._wanted = wanted
        self._at = at
        self.run = 0
        self.where = ""

    @property
    def hit(self) -> bool:
        """True if the interrupt came."""
        return self.run >= self._at

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and frame.f_lasti not in _untouchable(frame.f_code):
            self.run += 1
            if self.run == self._at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise Interrupt
        return self._line

    def _call(self, frame: FrameType, *_: Any) -> Any:
        return self._line if not self.hit and self._wanted(frame.f_code) else None

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count meanwhile; the interrupt ends the block, and goes no further."""
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        except Interrupt:
            pass
        finally:
            sys.settrace(before)


def in_files(*ends: str) -> Callable[[CodeType], bool]:
    """Return a filter for the code of files, or folders, whose paths end with, or contain, one of ``ends``."""
    there = [path.as_posix() for path in PACKAGE.rglob("*.py")]
    assert all(any(end in path for path in there) for end in ends), f"one of {ends} is no file of the package"
    return lambda code: any(end in code.co_filename.replace("\\", "/") for end in ends)


def every_line(wanted: Callable[[CodeType], bool], *, step: int = 1) -> Iterator[Lines]:
    """Yield what interrupts the first line, the next one, and so on, until there are no more lines to interrupt."""
    at, handled = 1, sys.exception()
    while True:
        lines = Lines(wanted, at)
        yield lines
        assert sys.exception() is handled, f"{lines.where}: no handler runs there"
        if not lines.hit:
            return
        at += step


class Late(TimeoutError):
    """A time limit that passed, as programs raise it in a handler: an ``OSError`` too."""


class EveryLineOnce:
    """Has a handler raise ``Late`` once at each line that work runs in functions that ``wanted`` names."""

    def __init__(self, wanted: Callable[[CodeType], bool]) -> None:
        self._wanted = wanted
        self._seen: set[tuple[str, int]] = set()
        self._at = ""
        self._raised: Late | None = None

    def _handler(self, *_: Any) -> None:
        self._raised = Late("the time limit passed")
        raise self._raised

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        place = frame.f_code.co_filename, frame.f_lineno
        is_new = event == "line" and not self._at and place not in self._seen
        if is_new and frame.f_lasti not in _untouchable(frame.f_code):
            self._seen.add(place)
            self._at = f"{place[0].rpartition('caliber/')[2]}:{place[1]}"
            signal.raise_signal(signal.SIGUSR1)
        return self._line

    def _call(self, frame: FrameType, *_: Any) -> Any:
        return self._line if not self._at and self._wanted(frame.f_code) else None

    def lost(self, work: Callable[[], Any]) -> tuple[int, list[str]]:
        """Return the number of lines, and those whose exception did not reach the caller of ``work``."""
        lost: list[str] = []
        handler, tracer = signal.signal(signal.SIGUSR1, self._handler), sys.gettrace()
        handled = sys.exception()
        try:
            while True:
                self._at, self._raised = "", None
                caught: BaseException | None = None
                sys.settrace(self._call)
                try:
                    work()
                except BaseException as error:
                    caught = error
                finally:
                    sys.settrace(tracer)
                assert sys.exception() is handled, f"{self._at}: no handler runs there"
                if not self._at:
                    return len(self._seen), lost
                assert self._raised is not None
                if caught is not self._raised:
                    lost.append(f"{self._at}: {caught!r}")
        finally:
            signal.signal(signal.SIGUSR1, handler)
