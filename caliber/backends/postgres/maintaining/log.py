"""Overwriting of PostgreSQL's write-ahead log (WAL), so that recycled segments keep no erased bytes.

A checkpoint releases old segments: some are removed, others renamed, to be reused under a later number with their old
bytes in them. The server fills the rest of a segment with zeros when it switches to the next one, so switching past the
last of them overwrites all. No setting is changed, so a crash leaves nothing to restore.

Source: seen on PostgreSQL 18, segments read before and after; docs/decisions/0135.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

import psycopg

from caliber.backends.postgres.bulk.copying import Connection

MOST_SEGMENTS: Final = 1_024
"""Segments that one scrub writes at most: 16 GB as servers are built."""
_SEGMENT_S: Final = 1.0
"""Time that each segment may take, besides the time that others are waited for."""
_PAUSE_S: Final = 0.02
_LONG_PAUSE_S: Final = 0.5
_SPARE_SEGMENTS: Final = 4

# What keeps log before a byte, each in a sentence: standbys, archives, slots. Lost slots keep nothing.
_HELD: Final = """
    SELECT format('replication slot %%I (%%s) holds it from %%s on: let its reader catch up, or drop it', slot_name,
                  CASE WHEN active THEN 'active' ELSE 'nobody reads it' END, restart_lsn)
    FROM pg_replication_slots
    WHERE wal_status IS DISTINCT FROM 'lost' AND pg_wal_lsn_diff(restart_lsn, '0/0') < %(end)s::numeric
"""
_UNARCHIVED: Final = """
    SELECT count(*), min(left(s.name, 24)), (SELECT last_failed_wal FROM pg_stat_archiver)
    FROM pg_ls_archive_statusdir() AS s
    WHERE s.name ~ '^[0-9A-F]{24}(\\.partial)?\\.ready$' AND current_setting('archive_mode') <> 'off'
      AND left(s.name, 24) COLLATE "C" <= %s
"""
_SUMMARIZED: Final = """
    SELECT summarized_lsn::text FROM pg_get_wal_summarizer_state()
    WHERE current_setting('summarize_wal')::bool AND pg_wal_lsn_diff(summarized_lsn, '0/0') < %s::numeric
"""
_SEGMENTS: Final = """
    SELECT name FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{24}(\\.partial)?$'
"""
_AT: Final = """
    SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::numeric,
           pg_size_bytes(current_setting('wal_segment_size')),
           left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
           pg_size_bytes(current_setting('wal_keep_size'))
"""
# Standbys that have not been sent all but the last segment, and slots that so much log would cost.
_BEHIND: Final = """
    SELECT application_name FROM pg_stat_replication
    WHERE pg_wal_lsn_diff(pg_current_wal_lsn(), sent_lsn) > %(segment)s::numeric
    UNION ALL SELECT slot_name FROM pg_replication_slots WHERE safe_wal_size < %(spare)s::numeric
"""
# CHECKPOINT, then functions that are not everybody's; a superuser has all of them.
_RIGHTS: Final = """
    SELECT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
           OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'pg_checkpoint' AND pg_has_role(oid, 'USAGE')),
           'CHECKPOINT (role pg_checkpoint, PostgreSQL 15 on)'
    UNION ALL SELECT has_function_privilege(name, 'EXECUTE'), 'EXECUTE ON FUNCTION ' || name FROM unnest(ARRAY[
        'pg_switch_wal()', 'pg_ls_waldir()', 'pg_ls_archive_statusdir()',
        'pg_read_binary_file(text, bigint, bigint, boolean)']) AS name
"""


class _Refused(Exception):
    """A statement failed."""


class _At(NamedTuple):
    """The position of the log: segment in use, bytes of a segment, timeline, segments kept."""

    number: int
    segment_bytes: int
    timeline: str
    kept: int

    def number_of(self, name: str) -> int:
        """Return the number of the segment of a file."""
        return int(name[8:16], 16) * ((1 << 32) // self.segment_bytes) + int(name[16:24], 16)

    def name_of(self, number: int) -> str:
        """Return the name of the file of a segment."""
        high, low = divmod(number, (1 << 32) // self.segment_bytes)
        return f"{self.timeline}{high:08X}{low:08X}"


class LogScrub:
    """One scrub of the log, over a connection that commits each statement."""

    def __init__(self, connection: Connection, wait_s: float) -> None:
        self._connection = connection
        self._until = time.monotonic() + wait_s
        self._written = 0

    def run(self) -> list[str]:
        """Overwrite or remove every segment written so far; return the obstacles."""
        try:
            lacking = [str(right) for has, right in self._ask(_RIGHTS) if not has]
            if lacking:
                return [f"the server's log: this role lacks {'; '.join(lacking)}"]
            return [f"the server's log: {line}" for line in self._give_up() or self._pass_all()]
        except _Refused as refused:
            return [f"the server's log: {refused}"]

    def _give_up(self) -> list[str]:
        """Switch to the next segment, and wait until no earlier one is kept under its name."""
        at = self._at()
        last = max([at.number, *(at.number_of(name) for name in self._names() if name[:8] != at.timeline)])
        remaining = self._pass(last)
        self._ask("CHECKPOINT")  # some holders release it at the next checkpoint only
        pause_s = _PAUSE_S
        while not remaining:
            held = self._holders(at, last)
            if not held:
                self._ask("CHECKPOINT")
                kept = sum(at.number_of(name) <= last for name in self._names())
                if not kept:
                    return []
                now = self._at()
                if now.kept and now.number <= last + now.kept + 1:
                    remaining = self._pass(last + now.kept + 1)  # as many as are kept for standbys (wal_keep_size)
                    continue
                held = [f"the server keeps {kept} earlier segments, and does not say why"]
            if time.monotonic() > self._until:
                return held
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONG_PAUSE_S)
        return remaining

    def _pass_all(self) -> list[str]:
        """Overwrite recycled segments: segments beyond them are new."""
        at = self._at()
        return self._pass(max((at.number_of(name) for name in self._names()), default=at.number))

    def _pass(self, last: int) -> list[str]:
        """Switch until the current segment is later than ``last``."""
        while (at := self._at()).number <= last:
            behind = self._ask(_BEHIND, {"segment": at.segment_bytes, "spare": _SPARE_SEGMENTS * at.segment_bytes})
            late = time.monotonic() > self._until + _SEGMENT_S * self._written
            if behind:
                if late:
                    names = ", ".join(sorted({str(name) for (name,) in behind}))
                    return [f"{names} would lose what it has yet to read; try again when it has caught up"]
                time.sleep(_PAUSE_S)
                continue
            if (late and self._written) or self._written >= MOST_SEGMENTS:
                count = last + 1 - at.number
                return [f"{count} earlier segments are still to be written over; try again, or allow more time"]
            self._written += 1
            self._ask("SELECT pg_current_xact_id()")  # a log that nothing was written to would not move
            self._ask("SELECT pg_switch_wal()")
        return []

    def _holders(self, at: _At, last: int) -> list[str]:
        end = (last + 1) * at.segment_bytes
        held = [str(line) for (line,) in self._ask(_HELD, {"end": end})]
        ((count, oldest, failed),) = self._ask(_UNARCHIVED, (at.name_of(last),))
        if count:
            why = "" if failed is None else f"; archiving failed last at {failed}"
            held.append(f"{count} segments wait to be archived, the oldest {oldest}{why}")
        if self._connection.info.server_version >= 170_000:
            for (reached,) in self._ask(_SUMMARIZED, (end,)):
                held.append(f"it has been summarized up to {reached} only (summarize_wal)")
        return held

    def _names(self) -> list[str]:
        return [str(name) for (name,) in self._ask(_SEGMENTS)]

    def _at(self) -> _At:
        ((position, segment_bytes, timeline, kept_bytes),) = self._ask(_AT)
        return _At(int(position) // segment_bytes, segment_bytes, timeline, -(-kept_bytes // segment_bytes))

    def _ask(self, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        try:
            cursor = self._connection.execute(statement.encode(), values)
            return [] if cursor.description is None else cursor.fetchall()
        except psycopg.Error as error:
            raise _Refused(f"it could not be moved on (SQLSTATE {error.sqlstate})") from None
