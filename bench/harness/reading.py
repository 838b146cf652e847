"""The roofline: how fast this machine reads as many bytes as a task must read, measured in the same rounds."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from harness.contest import READ, Contender

SOURCE = Path(__file__).with_name("read.c")
BUILD = SOURCE.parents[2] / "build" / "bench"
WORDS_AT_ONCE = 8
# As the processor prefetches by itself, and four pages ahead, which is faster beyond its caches: the faster counts.
AHEAD_BYTES = {"plain read": 0, "plain read, prefetching": 16384}


@cache
def _read_words() -> Callable[[int, int, int], int]:
    """Compile and load ``read.c``; the library is kept under ``build/bench`` by what it was made from."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("the roofline needs the C compiler that `make setup` asks for")
    flags = ["-O3", "-shared", "-fPIC", *(["-mavx2"] if _has_avx2() else [])]
    key = hashlib.sha256(SOURCE.read_bytes() + " ".join([compiler, *flags]).encode()).hexdigest()[:16]
    library = BUILD / f"read-{key}.so"
    if not library.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        fresh = library.with_suffix(".new")
        subprocess.run([compiler, *flags, "-o", str(fresh), str(SOURCE)], check=True)
        fresh.replace(library)
    function = ctypes.CDLL(str(library)).read_words
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    function.restype = ctypes.c_uint64
    return function


def _has_avx2() -> bool:
    from caliber.kernels import available_paths

    return platform.machine().lower() in {"x86_64", "amd64"} and "avx2" in available_paths()


def sum_of_words(buffer: np.ndarray, ahead_bytes: int) -> int:
    """Return the sum of one read of a contiguous array, modulo 2**64; a rest of less than 64 bytes is left out."""
    count = buffer.nbytes // 8 // WORDS_AT_ONCE * WORDS_AT_ONCE
    return _read_words()(buffer.ctypes.data, count, ahead_bytes)


def plain_reads(buffer: np.ndarray) -> list[Contender]:
    """Return contenders that only read ``buffer``."""
    if not buffer.flags.c_contiguous or buffer.ctypes.data % 8:
        raise ValueError("a plain read needs a contiguous buffer of aligned words")
    read, address = _read_words(), buffer.ctypes.data
    count = buffer.nbytes // 8 // WORDS_AT_ONCE * WORDS_AT_ONCE

    def reading(ahead: int) -> Callable[[], object]:
        # The array stays alive as long as the contender does.
        return lambda _=buffer: read(address, count, ahead)

    return [Contender(READ, name, reading(ahead), bytes_read=buffer.nbytes) for name, ahead in AHEAD_BYTES.items()]


def plain_reads_of(size: int) -> list[Contender]:
    """Return contenders that read ``size`` bytes of their own."""
    return plain_reads(np.ones(size, np.uint8))
