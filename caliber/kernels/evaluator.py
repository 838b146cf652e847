"""Class ``Evaluator``: loops over whole columns, in NumPy or Numba (extra ``jit``), and masks they take.

It is chosen when a store opens and recorded in every window. Both give the same bits, so a window may be replayed under
either. Numba is imported when the first store needs it, and compiles once a process; compiled code is cached under
``cache_dir``, so that the next process only loads it.

Source: design, sections 5 and 6; decision 0042.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from caliber.kernels import loops
from caliber.kernels.jit.code import KNOB, CompiledCode
from caliber.kernels.jit.loops import BAD_INDEX
from caliber.model.errors import CaliberError, ExtraNotInstalled, InvalidConfigValue, InvalidValue
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interpreter import renew_in_child
from caliber.model.process.interrupts import let_through

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

LEAST_INSTANT: Final = -(2**63)
MOST_INSTANT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Allowed:
    """A mask by code: a row may be seen if its code may. Shapes: codes ``int32[n]``, verdicts ``bool[c]``."""

    codes: npt.NDArray[np.int32]
    verdicts: Bools
    interned: bool = False
    """Whether the codes are a resident column, whose values keep their codes while rows are added."""

    def __len__(self) -> int:
        return len(self.codes)

    def mask(self) -> Bools:
        """Return the mask over all rows. Shapes: ``bool[n]``."""
        mask: Bools = self.verdicts[self.codes]
        return mask


_ALL = Allowed(np.zeros(0, np.int32), np.zeros(0, np.bool_))


@dataclass(frozen=True, slots=True)
class Within:
    """A column of instants and the bounds that a record in force keeps to, both included."""

    column: Ints
    least: int = LEAST_INSTANT
    most: int = MOST_INSTANT


Rule = tuple[Within, Within, Within]
"""The conditions of a valid record, one instant each."""


class Evaluator:
    """Loops over whole columns, under one name. Stateless, and safe to share between threads."""

    __slots__ = ("code", "loops", "name")

    def __init__(self, name: str, functions: Any, code: CompiledCode | None = None) -> None:
        self.name = name
        self.loops = functions
        self.code = code

    def __repr__(self) -> str:
        return f"Evaluator({self.name})"

    def valid_rows(
        self, live: Bools, ended: npt.NDArray[np.uint8], rule: Rule, allowed: Allowed | None = None
    ) -> Bools:
        """Return the mask of rows that are live, not ended, within their bounds and allowed. Shapes: all ``[n]``."""
        out = np.empty(len(live), np.bool_)
        seen = _ALL if allowed is None else allowed
        columns = [part.column for part in rule]
        _checked(self.loops.valid_rows(live, ended, *columns, _bounds(rule), seen.codes, seen.verdicts, out), "codes")
        return out

    def keep_members(self, mask: Bools, column: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """Unmark the rows whose value is not among ``values``, of the column's own type and sorted."""
        self.loops.keep_members(mask, column, values)

    def carry(self, numbers: Ints, rows: Ints, allowed: Bools, length: int) -> Bools:
        """Return a mask of ``length`` that is set at each of ``numbers`` whose row is allowed."""
        out = np.zeros(length, np.bool_)
        _checked(self.loops.carry(numbers, rows, allowed, out), "rows")
        return out

    def newest(self, mask: Bools, created: Ints, ties: npt.NDArray[np.uint64], limit: int) -> Ints:
        """Return the ``limit`` newest marked rows, newest first; equal instants in order of tie.

        Shapes: mask ``bool[n]``, created ``int64[n]``, ties ``u64[n, 2]``.
        """
        limit = min(limit, len(mask))
        if limit <= 0:
            return np.empty(0, np.int64)
        out = np.empty(len(mask), np.int64)
        rows = out[: self.loops.newest(mask, created, limit, out)]
        tie = ties[rows]
        return rows[np.lexsort((tie[:, 1], tie[:, 0], ~created[rows]))[:limit]]

    def relevance(self, similarity: Floats, present: Bools, neutral: np.float32) -> Floats:
        """Return similarities scaled to [0, 1], ``neutral`` where there is none. Shapes: all ``[n]``."""
        out = np.empty(len(similarity), np.float32)
        self.loops.relevance(similarity, present, neutral, out)
        return out


def _bounds(rule: Rule) -> Ints:
    first, second, third = rule
    return np.array((first.least, first.most, second.least, second.most, third.least, third.most), np.int64)


def _checked(count: int, field: str) -> int:
    if count == BAD_INDEX:
        raise InvalidValue(field=field, reason="a number points outside its column")
    return count


NUMPY: Final = Evaluator("numpy", loops)
"""The evaluator that runs everywhere."""

OPENING = threading.Lock()
_compiled: Evaluator | None = None
renew_in_child(globals(), "OPENING")


def refusal(name: str) -> CaliberError | None:
    """Return why an evaluator is unavailable here, without importing its package; None when it is available."""
    if name == "numba" and importlib.util.find_spec("numba") is None:
        return ExtraNotInstalled(feature=f"{KNOB} = 'numba'", extra="jit")
    return None


def open_evaluator(name: str, cache_dir: Path) -> Evaluator:
    """Return the evaluator of a name; the first ``numba`` of a process loads or compiles every loop.

    Raises: ExtraNotInstalled, InvalidConfigValue (Numba is installed but does not work)
    """
    global _compiled
    missing = refusal(name)
    if missing is not None:
        raise missing
    if name == NUMPY.name:
        return NUMPY
    with OPENING:
        if _compiled is None:
            _compiled = compile_evaluator(cache_dir)
        return _compiled


def compile_evaluator(cache_dir: Path) -> Evaluator:
    """Return loops made by Numba afresh, from the code that is kept under ``cache_dir`` where there is any.

    Raises: InvalidConfigValue
    """
    started = time.perf_counter()
    try:
        from caliber.kernels.jit.compiled import compile_loops

        functions, code = compile_loops(cache_dir, started)
    except CaliberError:
        raise
    except Exception as error:
        let_through(error)
        # Numba refuses unknown versions of NumPy and Python, with various exceptions.
        reason = f"Numba does not work here ({type(error).__name__}: {error}); use 'numpy', or another version of it"
        raise InvalidConfigValue(field=KNOB, value="numba", reason=reason) from error
    return Evaluator("numba", functions, code)
