"""Selection of the instruction set that the C kernels use, and errors from their status codes.

Source: design section 6; O-7.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from caliber.model.errors import (
    CaliberError,
    InternalError,
    InvalidConfigValue,
    InvalidValue,
    MissingRequired,
    NonFiniteError,
)
from caliber.model.process.interrupts import managed

if TYPE_CHECKING:
    from caliber._native import _FFI, _Lib

VARIABLE = "CALIBER_NATIVE"
SCALAR = "scalar"
AVX2 = "avx2"
NEON = "neon"
DOTPROD = "dotprod"

# Features of caliber.h that each path needs, and those it uses besides where the CPU has them; the fastest last.
_FEATURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    SCALAR: ((), ()),
    AVX2: (("CAL_CPU_AVX2",), ("CAL_CPU_SHANI",)),
    NEON: (("CAL_CPU_NEON",), ("CAL_CPU_SHA2",)),
    DOTPROD: (("CAL_CPU_NEON", "CAL_CPU_DOTPROD"), ("CAL_CPU_SHA2",)),
}


class Native(NamedTuple):
    """The loaded module and the CPU features that its functions may use."""

    ffi: _FFI
    lib: _Lib
    features: int
    name: str


_chosen: Native | None = None


def native() -> Native:
    """Return the path in use.

    Raises:  InvalidConfigValue for an unknown or missing path, MissingRequired without the native module
    """
    global _chosen
    if _chosen is None:
        _chosen = _choose(os.environ.get(VARIABLE))
    return _chosen


def active_path() -> str:
    """Return the name of the path in use: ``scalar``, ``avx2``, ``neon`` or ``dotprod``."""
    return native().name


def available_paths() -> tuple[str, ...]:
    """Return the paths this machine can run, the best last."""
    return paths(load()[1])


@managed
def forced_path(name: str) -> Iterator[None]:
    """Run the whole process on one path for a while; for tests and benchmarks.

    Raises:  InvalidConfigValue, MissingRequired
    """
    with running(_choose(name)):
        yield


@managed
def running(path: Native) -> Iterator[None]:
    """Run the whole process on these kernels for a while, whichever build they are of."""
    global _chosen
    before = _chosen
    _chosen = path
    try:
        yield
    finally:
        _chosen = before


def load() -> tuple[_FFI, _Lib]:
    """Return the native module, whichever path is selected. Raises: MissingRequired."""
    try:
        from caliber._native import ffi, lib
    except ImportError as error:
        raise MissingRequired(
            "the native module caliber._native is not built or cannot be loaded. In a checkout run 'make setup' "
            "(it needs a C compiler and CMake); otherwise reinstall with 'pip install --force-reinstall "
            "caliber-memory'",
            field="caliber._native",
        ) from error
    return ffi, lib


def system_calls() -> dict[str, int]:
    """Return the addresses of the replacements of SQLite's system calls in forked children, by name.

    They give inherited files new identities, whatever ``CALIBER_NATIVE`` is set to: see caliber.h.
    Raises: MissingRequired
    """
    ffi, lib = load()
    return {
        "fstat": int(ffi.cast("uintptr_t", ffi.addressof(lib, "cal_file_fstat"))),
        "stat": int(ffi.cast("uintptr_t", ffi.addressof(lib, "cal_file_stat"))),
    }


def set_mark(mark: int) -> None:
    """Have all files seem to be others from now on; only while this process has one thread. Raises: MissingRequired."""
    _, lib = load()
    check(lib.cal_file_mark(mark))


def _choose(name: str | None) -> Native:
    ffi, lib = load()
    if name is None or name == "":
        return Native(ffi, lib, lib.cal_cpu_features(), paths(lib)[-1])
    if name not in _FEATURES:
        expected = ", ".join(_FEATURES)
        raise InvalidConfigValue(
            field=VARIABLE, value=name, reason=f"expected one of {expected}, or nothing for the best"
        )
    features = features_of(lib, name)
    if features is None:
        raise InvalidConfigValue(field=VARIABLE, value=name, reason=f"this CPU or this build has no {name.upper()}")
    return Native(ffi, lib, features, name)


def paths(lib: _Lib) -> tuple[str, ...]:
    return tuple(name for name in _FEATURES if features_of(lib, name) is not None)


def features_of(lib: _Lib, name: str) -> int | None:
    """Return the CPU features that a path uses here, or None where one is missing that it needs."""
    needed, welcome = (sum(getattr(lib, feature) for feature in some) for some in _FEATURES[name])
    present = lib.cal_cpu_features()
    return None if needed & ~present else needed | welcome & present


def check(status: int, **fields: str) -> None:
    """Raise the error that a status of C stands for; ``fields`` names the argument at fault by status.

    Raises:  NonFiniteError, InvalidValue, InvalidConfigValue, InternalError
    """
    if status:
        _fail(status, fields)


def _fail(status: int, fields: dict[str, str]) -> NoReturn:
    _, lib = load()
    rows: dict[int, tuple[str, type[CaliberError], str]] = {
        lib.CAL_E_NON_FINITE: ("non_finite", NonFiniteError, ""),
        lib.CAL_E_OFFSETS: ("offsets", InvalidValue, "offsets decrease, are negative or pass the end of the data"),
        lib.CAL_E_SECTION: ("section", InvalidValue, "a section number is outside [0, sections)"),
        lib.CAL_E_GROUP: ("group", InvalidValue, "a group number below -1, or a group over two sections"),
        lib.CAL_E_NEGATIVE: ("negative", InvalidValue, "a negative number of tokens"),
        lib.CAL_E_OVERFLOW: ("overflow", InvalidValue, "the result does not fit its type"),
        lib.CAL_E_ARGUMENT: ("argument", InvalidValue, "outside its range"),
    }
    if status == lib.CAL_E_UNSUPPORTED:
        raise InvalidConfigValue(field=VARIABLE, value=active_path(), reason="this CPU or this build lacks it")
    row = rows.get(status)
    if row is None or row[0] not in fields:
        raise InternalError(f"a kernel answered with the unexpected status {status}", status=status)
    key, kind, reason = row
    context: dict[str, Any] = {"field": fields[key]}
    if reason:
        context["reason"] = reason
    raise kind(**context)
