"""Threads that line up to write, so that who shares a commit with whom is certain."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from support.inspection import inspect
from support.threads import begin
from support.waits import until

from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork

T = TypeVar("T")


class Gate:
    """Holds the writer until told, so that others line up behind it."""

    def __init__(self, store: Store) -> None:
        self._inside, self._go = threading.Event(), threading.Event()

        def work(uow: UnitOfWork) -> None:
            self._inside.set()
            self._go.wait(30)

        self._thread = threading.Thread(target=lambda: store.write(work))
        self._thread.start()
        assert self._inside.wait(30)

    def open(self) -> None:
        self._go.set()
        self._thread.join(30)


class Crowd:
    """Writers that line up one after the other behind a gate, the calling thread in front if it wants to lead."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.ends: dict[int, Any] = {}
        self._threads: list[threading.Thread] = []

    def line_up(self, works: list[Callable[[UnitOfWork], Any]], before: int = 0) -> None:
        """Start a thread for each work, each once the one before it stands in line."""
        for at, work in enumerate(works):
            self._threads.append(threading.Thread(target=self._write, args=(at, work)))
            self._threads[-1].start()
            until(lambda at=at: inspect(self.store).waiting == before + at + 1)  # type: ignore[misc]

    def start(self, works: list[Callable[[UnitOfWork], Any]]) -> None:
        """Start a thread for each work, and wait for none of them."""
        for at, work in enumerate(works):
            self._threads.append(threading.Thread(target=self._write, args=(at, work)))
            self._threads[-1].start()

    def _write(self, at: int, work: Callable[[UnitOfWork], Any]) -> None:
        try:
            self.ends[at] = self.store.write(work)
        except BaseException as error:
            self.ends[at] = error

    def led_by_me(self, own: Callable[[UnitOfWork], Any], works: list[Callable[[UnitOfWork], Any]]) -> Any:
        """Write on this thread, as the leader of all ``works``; return the result, or what was raised."""
        gate = Gate(self.store)

        def follow() -> None:
            until(lambda: inspect(self.store).waiting == 1)
            self.line_up(works, before=1)
            gate.open()

        helper = begin(follow)
        try:
            return self.store.write(own)
        except BaseException as error:
            return error
        finally:
            helper.result(30)
            self.join()

    def join(self) -> None:
        """Wait for all."""
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a companion was never woken"
