"""Cache of row ordinals reserved from a PostgreSQL sequence before their rows are inserted."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from caliber.storage.compile.plan import Plan
from caliber.storage.compile.session import StatementSession

_RESERVED_MAX: Final = 64


class Ordinals:
    """Ordinals reserved for later rows, so that an insert need not wait for its own.

    Sequences are not transactional, so unused ordinals leave a gap, as a rollback does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reserved: dict[str, deque[int]] = {}
        self._step: dict[str, int] = {}
        self.plans: dict[str, Plan] = {}
        self.in_order: frozenset[str] = frozenset()
        """The relations of which none are reserved, so that they tell the order of rows."""

    def take(self, connection: StatementSession, relation: str) -> int:
        """Return an ordinal for a row of ``relation``; more are reserved each time they run out, up to a limit."""
        if relation in self.in_order:
            return int(connection.run(self.plans[relation], (1,))[0][0])
        while True:
            with self._lock:
                reserved = self._reserved.setdefault(relation, deque())
                if reserved:
                    return reserved.popleft()
                step = min(2 * self._step.get(relation, 2), _RESERVED_MAX)
            rows = connection.run(self.plans[relation], (step,))
            with self._lock:
                self._step[relation] = step
                reserved.extend(row[0] for row in rows)

    def forget(self) -> None:
        """Discard the reserved ordinals."""
        with self._lock:
            self._reserved.clear()
