"""Producers of a tenant: each asked for work by itself, a failing one later each time, so none stops others."""

from __future__ import annotations

from collections.abc import Iterator

from caliber.engine.engine import Engine
from caliber.jobs.handlers import Producer
from caliber.jobs.outages import Outages
from caliber.model.errors import CaliberError, Unavailable


class Producers:
    """The producers of a tenant. ``append`` adds one."""

    def __init__(self, engine: Engine, outages: Outages) -> None:
        self._engine = engine
        self._outages = outages
        self._each: list[Producer] = []
        self.append = self._each.append

    def produce(self, now_us: int) -> None:
        """Have each producer enqueue jobs; an error is recorded once, and costs no other producer its turn.

        Raises: Unavailable.
        """
        for name, producer in self._named():
            if self._outages.until_us(name, now_us) > now_us:
                continue
            try:
                producer.produce()
            except Unavailable:
                raise
            except CaliberError as error:
                if self._outages.met(name, error.message, now_us):
                    self._engine.record_error(name, error)
            else:
                self._outages.over(name)

    def waits_us(self, now_us: int) -> list[int]:
        """Return how long until each producer that has something to look for may be asked. Units: µs."""
        waits = [(name, producer.due_in_us()) for name, producer in self._named()]
        return [max(wait, self._outages.until_us(name, now_us) - now_us) for name, wait in waits if wait is not None]

    def _named(self) -> Iterator[tuple[str, Producer]]:
        """Yield the producers with the name under which their failures are counted."""
        return ((f"producer {type(each).__name__}", each) for each in self._each)
