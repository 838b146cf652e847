"""System-call shim for SQLite in forked children: native code that gives inherited files new identities.

It computes nothing: it runs whatever ``CALIBER_NATIVE`` is set to. See caliber.h.
"""

from __future__ import annotations

from caliber.kernels import dispatch


def system_calls() -> dict[str, int]:
    """Return the addresses of the replacements of system calls, by name. Raises: MissingRequired."""
    ffi, lib = dispatch.load()
    return {
        "fstat": int(ffi.cast("uintptr_t", ffi.addressof(lib, "cal_file_fstat"))),
        "stat": int(ffi.cast("uintptr_t", ffi.addressof(lib, "cal_file_stat"))),
    }


def set_mark(mark: int) -> None:
    """Have all files seem to be others from now on; only while this process has one thread. Raises: MissingRequired."""
    _, lib = dispatch.load()
    dispatch.check(lib.cal_file_mark(mark))
