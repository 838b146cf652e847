"""File system calls of SQLite, answered in a forked child as if they concerned other files (caliber.h).

This is no arithmetic and has no twin: it runs whatever ``CALIBER_NATIVE`` says.
"""

from __future__ import annotations

from caliber.kernels import dispatch


def system_calls() -> dict[str, int]:
    """Return the addresses of what takes the place of system calls, by their names. Raises: MissingRequired."""
    ffi, lib = dispatch.loaded()
    return {
        "fstat": int(ffi.cast("uintptr_t", ffi.addressof(lib, "cal_file_fstat"))),
        "stat": int(ffi.cast("uintptr_t", ffi.addressof(lib, "cal_file_stat"))),
    }


def set_mark(mark: int) -> None:
    """Have all files seem to be others from now on; only while this process has one thread. Raises: MissingRequired."""
    _, lib = dispatch.loaded()
    dispatch.check(lib.cal_file_mark(mark))
