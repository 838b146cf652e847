"""SQLite connection: opens a file with the right pragmas, and runs plans on it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from threading import get_ident
from typing import Any

import apsw

from caliber.backends.sqlite.connecting.errors import FAILURES, NO_STORE, translate
from caliber.backends.sqlite.connecting.forks import (
    Calls,
    FileNames,
    FileState,
    Inherited,
    forks,
    keep,
    state_of,
    undo_first_byte,
)
from caliber.model.errors import CaliberError, SchemaMismatch, Unavailable
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.files import HeldFiles
from caliber.model.process.interrupts import let_through, managed
from caliber.storage.compile.codec import Row
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.session import Counter

APPLICATION_ID = 0x43414C42
"""``CALB`` in the file's header, so that a file that is not ours is recognised before anything is read."""

EMPTY = "the file is empty; run `caliber create`"
OLDEST_SQLITE = (3, 51, 3)
SYNCHRONOUS = "FULL"
"""An acknowledged write survives the loss of power; not a knob (design, section 4)."""


VFS: str | None = None
"""The SQLite VFS to use; tests set one that loses unsynced writes."""


def file_state(path: str) -> FileState:
    """Return the state of a file, which is left as it is."""
    return state_of(path, VFS)


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """Knobs of a connection, from ``storage.*`` of the configuration."""

    path: str
    busy_timeout_ms: int
    cache_kib: int
    wal_autocheckpoint_pages: int
    statement_cache: int
    fork_wait_ms: int = 0

    @property
    def in_memory(self) -> bool:
        return self.path == ":memory:"

    @property
    def shown(self) -> str:
        """The path as messages show it."""
        return self.path


def check_version() -> None:
    """Refuse SQLite libraries older than the one whose guarantees we rely on."""
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < OLDEST_SQLITE:
        raise SchemaMismatch(
            store="SQLite library",
            reason=f"version {apsw.sqlite_lib_version()} is older than 3.51.3; upgrade the package apsw",
        )


def _cause(error: Exception) -> Exception | None:
    """Return the driver's own error; Python's quote the value that was refused."""
    return error if isinstance(error, apsw.Error) else None


class SqliteConnection(Calls):
    """A connection that runs plans and speaks our errors. Not for several threads at once."""

    def __init__(self, options: OpenOptions, counter: Counter, *, memory_name: str, create: bool = False) -> None:
        super().__init__(options.fork_wait_ms)
        self._counts = counter.by_thread
        self._options = options
        self.closed = False
        self.files: FileNames | None = None
        """The names of the store's files, if they are monitored."""
        self.raw: Any = None
        self._held = None if options.in_memory else HeldFiles(options.path)
        with self.turn():
            try:
                self._open(memory_name, create=create)
            except BaseException:
                self._release()  # a caught error keeps this object alive, and the file may be another's soon
                raise

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    def _open(self, memory_name: str, *, create: bool) -> None:
        options = self._options
        path = f"file:/{memory_name}?vfs=memdb" if options.in_memory else options.path
        flags = apsw.SQLITE_OPEN_READWRITE
        if create or options.in_memory:
            flags |= apsw.SQLITE_OPEN_CREATE
        if options.in_memory:
            flags |= apsw.SQLITE_OPEN_URI  # only for names of our own: a path is taken as it is
        try:
            vfs = None if options.in_memory else VFS
            if self._held is not None:
                self._require_one_name(self._held)
                self._require_database(path, create)
            self.raw = apsw.Connection(path, flags=flags, vfs=vfs, statementcachesize=options.statement_cache)
            self.raw.set_busy_timeout(options.busy_timeout_ms)
            for option in (apsw.SQLITE_DBCONFIG_DQS_DML, apsw.SQLITE_DBCONFIG_DQS_DDL):
                # A column that another process removed is an error then, and not its own name as a text.
                self.raw.config(option, 0)
            pragmas = (
                "foreign_keys = ON",
                "trusted_schema = OFF",
                "temp_store = MEMORY",
                f"synchronous = {SYNCHRONOUS}",
                "mmap_size = 0",  # another program that cuts a mapped file short would end the process
                f"cache_size = -{options.cache_kib}",
                f"wal_autocheckpoint = {options.wal_autocheckpoint_pages}",
            )
            self.raw.execute("".join(map("PRAGMA {};".format, pragmas))).fetchall()
        except apsw.Error as error:
            if self.raw is not None:
                self.raw.close(True)
            raise translate(error, options.shown) from error

    def _require_one_name(self, held: HeldFiles) -> None:
        """Refuse a second name of an open file: SQLite would keep a log under each. Raises: Unavailable."""
        if held.has_other_name:
            raise Unavailable(
                f"{self._options.shown} is unavailable (open under another name): this process has the same file open"
                " under another name, a hard link, or its name before it was moved; use one name for it",
                reason="open under another name",
                retryable=False,
            )

    def _require_database(self, path: str, create: bool) -> None:
        """Refuse a file of something else before SQLite sees it, which may change it: to roll back, or if it is tiny.

        Raises: SchemaMismatch.
        """
        state = file_state(path)
        if state is FileState.OTHER:
            raise SchemaMismatch(store=self._options.shown, reason=NO_STORE)
        if state is FileState.INTERRUPTED:
            if not create:
                raise SchemaMismatch(store=self._options.shown, reason=EMPTY)
            undo_first_byte(path, VFS)

    def run(self, plan: Plan, parameters: Sequence[Any]) -> list[Row]:
        try:
            with self._statement():
                return self.raw.execute(plan.sql, parameters).fetchall()  # type: ignore[no-any-return]
        except FAILURES as error:
            raise self._translated(error, plan.name) from _cause(error)

    def _statement(self) -> threading.RLock:
        """Count a statement, and return as ``turn``."""
        self._counts[get_ident()] += 1
        if forks.coming:
            forks.pass_by()
        return self.lock

    def run_many(self, plan: Plan, parameters: Sequence[Sequence[Any]]) -> list[Row]:
        try:
            with self._statement():
                return self.raw.executemany(plan.sql, parameters).fetchall()  # type: ignore[no-any-return]
        except FAILURES as error:
            raise self._translated(error, plan.name) from _cause(error)

    def run_all(self, asked: Sequence[tuple[Plan, Sequence[Any]]]) -> list[list[Row]]:
        return [self.run(plan, parameters) for plan, parameters in asked]

    def insert(self, plan: Plan, row: Row) -> list[Row]:
        return self.run(plan, row)

    def changed(self, plan: Plan, parameters: Sequence[Any]) -> int:
        try:
            with self._statement():
                self.raw.execute(plan.sql, parameters).fetchall()
                return self.raw.changes()  # type: ignore[no-any-return]
        except FAILURES as error:
            raise self._translated(error, plan.name) from _cause(error)

    def command(self, text: str) -> list[Row]:
        """Run a statement that is not a plan: transaction control, PRAGMA, DDL."""
        try:
            with self._statement():
                return self.raw.execute(text).fetchall()  # type: ignore[no-any-return]
        except FAILURES as error:
            raise self._translated(error) from _cause(error)

    def rows_of(self, text: str, relation: str) -> Iterator[Row]:
        """Yield the rows of a statement one by one. Raises: as ``run``."""
        self._counts[get_ident()] += 1
        try:
            yield from self.each(text)
        except FAILURES as error:
            raise self._translated(error, relation) from _cause(error)

    def _translated(self, error: Exception, of: str = "") -> CaliberError:
        let_through(error)
        return translate(error, self._options.shown, of)

    def each(self, text: str) -> Iterator[Row]:
        """Yield the rows of a statement, one at a time. Raises: apsw.Error."""
        with self.turn():
            cursor = self.raw.execute(text)
        while True:
            with self.turn():
                row = next(cursor, None)
            if row is None:
                return
            yield row

    def set_busy_timeout(self, wait_ms: int) -> None:
        """Wait that long for others' locks."""
        with self.turn():
            self.raw.set_busy_timeout(wait_ms)

    def pragma(self, name: str) -> Any:
        """Return the value of a PRAGMA."""
        rows = self.command(f"PRAGMA {name}")
        return rows[0][0] if rows else None

    def require_writable(self) -> None:
        """Raise Unavailable when SQLite opened the file for reading only."""
        with self.turn():
            if self.raw.readonly("main"):
                raise self._translated(apsw.ReadOnlyError("readonly database"))

    def commit(self) -> None:
        """Commit. Raises: Unavailable, also when the commit went to an unlinked file."""
        if self.files is None:
            self.command("COMMIT")
        else:
            self.files.check()
            self.command("COMMIT")
            self.files.check()  # they may have been replaced meanwhile

    @managed
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
        """Commit, or roll back on an error, unless the block has ended the transaction itself."""
        around = self.in_transaction  # then it cannot begin, and undoing the other is not ours
        try:
            self.command(begin)  # an interrupt of a waiting thread may come after it got the lock
            yield
            if self.in_transaction:
                self.commit()
        finally:
            if self.in_transaction and not around:
                self.command("ROLLBACK")

    @property
    def in_transaction(self) -> bool:
        return not self.raw.get_autocommit()

    def close(self) -> None:
        self.closed = True
        try:
            with self.turn():
                if self.files is not None and self.files.log_is_anothers():
                    # The last to close removes the log by its name.
                    stays = ctypes.c_int(1)
                    self.raw.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(stays))
                self.raw.close(True)
        except apsw.ConnectionClosedError:
            pass  # it was closed before, by a thread that was interrupted
        except apsw.Error as error:
            raise translate(error, self._options.shown) from error
        self._release()

    @property
    def is_inherited(self) -> bool:
        """True if a parent of this process opened it."""
        return isinstance(self.raw, Inherited)

    def forked(self) -> None:
        if not self.is_inherited:
            keep(self.raw)
            self.raw = Inherited()
            self._release()
