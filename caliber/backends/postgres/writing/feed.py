"""Change feed of PostgreSQL: finds newly committed change records by comparing transaction snapshots.

Sequence numbers are assigned before commits, and commits come in another order: reading "all up to N" would miss a late
commit. So a boundary is the snapshot of the transaction that was read in; new changes are the records whose transaction
that snapshot did not show and the present one does.

Source: design, section 5.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from caliber.model.lazy_dataclass import dataclass
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import ChangeBatch


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A ``pg_snapshot``: everything below ``low`` had ended, nothing from ``high`` on had begun."""

    text: str
    low: int
    high: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Return a snapshot from PostgreSQL's spelling, such as ``10:20:10,14``."""
        low, high, running = text.split(":")
        return cls(text, int(low), int(high), frozenset(int(xid) for xid in running.split(",") if xid))

    def shows(self, xid: int) -> bool:
        """Return whether a committed transaction is visible in this snapshot."""
        return xid < self.low or (xid < self.high and xid not in self.running)


class SnapshotFeed:
    """The change records of one schema, as the one follower of this process reads them.

    Its methods are called under the follower's lock, except ``claim``, ``question`` and ``due``.
    """

    ordered = False

    def __init__(self, statements: dict[str, Plan], writer: bytes) -> None:
        self._statements = statements
        self._writer = writer
        self._last: Snapshot | None = None
        self._started = 0
        """When the server of the last snapshot was started; another one may be in an earlier state."""
        self._lock = threading.Lock()
        self._xids: dict[int, int] = {}
        """The transaction of each position of ours that has not been passed to the follower yet."""
        self._told: set[int] = set()
        """Transactions of ours that were passed to the follower, and that the last snapshot does not show."""
        self.must_reload = False
        """Whether the next poll reloads everything: changes were lost, or the server may be in an earlier state."""

    # --- for the writer --------------------------------------------------------------------------

    def claim(self, sequence: int, xid: int) -> None:
        """Record the transaction of a position of ours, before the follower gets it."""
        with self._lock:
            self._xids[sequence] = xid

    def question(self) -> tuple[str, bytes, int] | None:
        """Return the parameters that ask the server for others' commits, or None before the first read."""
        last = self._last
        return None if last is None else (last.text, self._writer, self._started)

    @property
    def due(self) -> bool:
        """True if the last snapshot is old enough, in commits, that a new one is due."""
        return len(self._told) >= 64

    # --- for the follower ------------------------------------------------------------------------

    def bound(self, session: StatementSession) -> int:
        snapshot, sequence, self._started = self._ask(session)
        self._advance(snapshot)
        self.must_reload = False
        return sequence

    def since(self, session: StatementSession, sequence: int) -> ChangeBatch | None:
        last = self._last
        if last is None or self.must_reload:
            return None
        snapshot, newest, started = self._ask(session)
        if snapshot.high < last.high or started != self._started:
            return None  # transactions known here may not exist there: an earlier state was restored
        if snapshot == last:
            return ChangeBatch(sequence, ())
        if session.run(self._statements["feed.reach"], (last.text,))[0][0]:
            return None
        rows = session.run(self._statements["feed.since"], (last.text,))
        with self._lock:
            unknown = [row for row in rows if row[1] != self._writer or int(row[3]) not in self._told]
        self._advance(snapshot)
        return ChangeBatch(max(sequence, newest), tuple(row[2] for row in unknown))

    def covers(self, sequence: int) -> bool:
        with self._lock:
            xid = self._xids.pop(sequence)
            if self._last is not None and self._last.shows(xid):
                return True
            self._told.add(xid)
            return False

    def _ask(self, session: StatementSession) -> tuple[Snapshot, int, int]:
        rows: Sequence[tuple[str, int, int]] = session.run(self._statements["feed.bound"], ())
        text, sequence, started = rows[0]
        return Snapshot.parse(text), sequence, started

    def _advance(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._last = snapshot
            self._told = {xid for xid in self._told if not snapshot.shows(xid)}
