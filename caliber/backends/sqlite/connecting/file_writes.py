"""Reports of writes to a file by the kernel, for waiting without polling. Only Linux has them (inotify)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import socket
import sys
from typing import Final

from caliber.model.process.interrupts import let_through

_MODIFIED: Final = 2
_READ_BYTES: Final = 65_536
_LONGEST_S: Final = 3_600.0
"""The longest wait; the system's clocks of waits have a limit."""


class FileWrites:
    """Writes to one file, by any process of this machine, since the last wait."""

    def __init__(self, inotify: int | None) -> None:
        """Take over an inotify instance, and close it in the end, also where this fails. Raises: OSError"""
        self._inotify = inotify
        with contextlib.ExitStack() as opened:
            if inotify is not None:
                opened.callback(os.close, inotify)
            self._selector = opened.enter_context(selectors.DefaultSelector())
            self._woken, self._waker = (opened.enter_context(end) for end in socket.socketpair())
            for end in (self._woken, self._waker):
                end.setblocking(False)
            self._selector.register(self._woken, selectors.EVENT_READ)
            if inotify is not None:
                self._selector.register(inotify, selectors.EVENT_READ)
            self._opened = opened.pop_all()

    def wait(self, timeout_s: float) -> bool | None:
        """Wait for a write to the file; return False when the time is over first, None when ``wake`` is called."""
        ready = [key.fd for key, _ in self._selector.select(min(timeout_s, _LONGEST_S))]
        if self._woken.fileno() in ready:
            self._woken.recv(_READ_BYTES)
            return None  # a write, too, ends the next wait
        if self._inotify is None or self._inotify not in ready:
            return False
        os.read(self._inotify, _READ_BYTES)
        return True

    def wake(self) -> None:
        """End a wait, or the next one."""
        try:
            self._waker.send(b"x")
        except OSError as error:  # it is full of wake-ups already, or closed
            let_through(error)

    def close(self) -> None:
        """Release the watch; again does nothing."""
        self._opened.close()


def writes_to(path: str | None) -> FileWrites | None:
    """Return the writes to a file, None where the system does not report them. Without a path there never is one."""
    if path is None:
        return FileWrites(None)
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    inotify = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if inotify < 0:
        return None  # the user has as many as the system allows
    if libc.inotify_add_watch(inotify, os.fsencode(path), _MODIFIED) < 0:
        os.close(inotify)
        return None
    try:
        return FileWrites(inotify)
    except OSError as error:
        let_through(error)
        return None  # the process has as many descriptors as it may
