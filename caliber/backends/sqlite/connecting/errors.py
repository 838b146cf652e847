"""Translation of apsw's errors to CALIBER's; ``__cause__`` keeps the original."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import apsw

from caliber.model.errors import (
    CaliberError,
    Conflict,
    InvalidValue,
    SchemaMismatch,
    StorageError,
    TransactionFailed,
    Unavailable,
)
from caliber.model.process.interrupts import let_through
from caliber.storage.compile.codec import damaged
from caliber.storage.maintain.maintenance import MOVED, MOVING

_UNAVAILABLE: tuple[tuple[type[Exception], str, bool, str], ...] = (
    (
        apsw.BusyError,
        "locked",
        True,
        "another process holds the write lock; try again, or raise storage.busy_timeout_ms",
    ),
    (apsw.LockedError, "locked", True, "another connection of this process holds the lock; try again"),
    (apsw.ReadOnlyError, "read-only", False, "the file or its folder is read-only for this user; make both writable"),
    (
        apsw.CantOpenError,
        "cannot open",
        False,
        "the file cannot be opened; check that its folder exists and is writable",
    ),
    (apsw.InterruptError, "timeout", True, "the deadline of the call passed; this transaction wrote nothing"),
    (apsw.IOError, "input/output", True, "the disk reported an error; check it before going on"),
    (apsw.NoMemError, "out of memory", True, "the machine has no memory left"),
)

_UNBOUND: Final = "cannot be stored: texts are Unicode without lone surrogates, whole numbers fit 64 bits"
_FENCED = {rule[0]: rule for rule in (MOVING, MOVED)}


NO_STORE: Final = "the file is not a CALIBER store; choose another path"
_MISSING: Final = ("no such table", "no such column", "has no column named")


FAILURES: Final = (apsw.Error, UnicodeError, OverflowError, TypeError)
"""Exceptions of apsw: its own, and Python's for texts and numbers that it cannot pass on."""


def translate(error: Exception, store: str, of: str = "") -> CaliberError:
    """Return CALIBER's error for one of apsw's; it never contains row values. ``of`` names the operation."""
    if isinstance(error, UnicodeDecodeError):
        relation = of.partition(".")[0]
        where = f"a text of {relation}" if relation else "a text"
        return damaged(f"{store} is damaged: {where} is not UTF-8", relation=relation)
    if not isinstance(error, apsw.Error):
        return InvalidValue(field="a value", reason=_UNBOUND)
    if isinstance(error, apsw.FullError):
        return _full(store)
    for kind, reason, retryable, advice in _UNAVAILABLE:
        if isinstance(error, kind):
            return Unavailable(f"{store} is unavailable ({reason}): {advice}", reason=reason, retryable=retryable)
    if isinstance(error, apsw.ConstraintError):
        # SQLite names the constraint or the columns, never the values.
        text = str(error)
        fenced = _FENCED.get(text.rpartition("caliber: ")[2])
        if fenced is not None:
            reason, retryable, advice = fenced
            return Unavailable(f"{store} is unavailable ({reason}): {advice}", reason=reason, retryable=retryable)
        if "UNIQUE" in text or "PRIMARY" in text:
            return Conflict(entity_type="row", id="", reason=text)
        return StorageError(f"a rule of the schema was broken: {text}", reason=text)
    if isinstance(error, apsw.SQLError) and any(words in str(error) for words in _MISSING):
        return SchemaMismatch(
            store=store,
            reason="a table or column is missing; run `caliber db migrate`, or upgrade the package caliber-memory",
        )
    if isinstance(error, apsw.NotADBError):
        return SchemaMismatch(store=store, reason=NO_STORE)
    if isinstance(error, apsw.CorruptError):
        return StorageError(
            f"{store} is damaged; run `caliber doctor`, and restore a backup if it confirms", reason="corrupt"
        )
    if isinstance(error, apsw.TooBigError):
        return StorageError("a value is larger than the database allows", reason="too big")
    return TransactionFailed(reason=type(error).__name__)


def _full(store: str) -> Unavailable:
    free: int | None
    try:
        free = shutil.disk_usage(Path(store).parent).free
    except OSError as error:
        let_through(error)
        free = None
    free_text = "" if free is None else f" ({free} bytes are free there)"
    return Unavailable(
        f"{store} is unavailable (disk full): free disk space{free_text} and try again; this transaction wrote nothing",
        reason="disk full",
        free_bytes=free,
    )
