"""Compilation of the column loops with Numba: compiles every loop when a store opens, or loads it from the cache.

All loops are compiled at once, so that no search waits for a compiler. No fast-math: sums keep their order, and the
bits are those of NumPy.

The cache is on disk, under the configured ``cache_dir``: one file per function and signature, in a folder that names
everything the code depends on: the source, Python, Numba, LLVM, NumPy and the processor. A file begins with the SHA-256
of its content, which is checked before anything is loaded; it is replaced as a whole, so processes that start together
do not disturb each other. Code that cannot be read, written or verified is reported, and compiled.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import llvmlite
import numba
import numpy as np
from numba import types
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

from caliber.kernels.jit import loops
from caliber.kernels.jit.code import KNOB, CompiledCode
from caliber.model.errors import InvalidConfigValue
from caliber.model.process.files import read_bytes
from caliber.model.process.interpreter import renew_in_child
from caliber.model.process.interrupts import let_through, suppress


def _read(item: Any) -> Any:
    """Return the type of an array that is only read; one that may be written to is taken as well."""
    return types.Array(item, 1, "C", readonly=True)


def _write(item: Any) -> Any:
    return types.Array(item, 1, "C")


_BOOLS, _INTS, _FLOATS = _read(types.boolean), _read(types.int64), _read(types.float32)
_WRITTEN = _write(types.int64)

SIGNATURES: dict[str, list[tuple[Any, ...]]] = {
    "valid_rows": [(_BOOLS, _read(types.uint8), _INTS, _INTS, _INTS, _INTS, _read(types.int32), _BOOLS,
                  _write(types.boolean))],
    # Every type that a resident column may have: instants and counts, reals, interned values, enums, flags.
    "keep_members": [(_write(types.boolean), _read(item), _read(item))
                     for item in (types.int64, types.float64, types.int32, types.int8, types.uint8)],
    "carry": [(_INTS, _INTS, _BOOLS, _write(types.boolean))],
    "newest": [(_BOOLS, _INTS, types.int64, _WRITTEN)],
    "relevance": [(_FLOATS, _BOOLS, types.float32, _write(types.float32))],
    "adjacency": [(_INTS, _INTS, types.int64, _WRITTEN, _WRITTEN)],
    "walk": [(_INTS, _read(types.int32), _FLOATS, _INTS, _FLOATS, types.float64, types.int64, _BOOLS,
              _write(types.float32), _write(types.int16), _WRITTEN)],
}  # fmt: skip

_compiling = threading.Lock()
renew_in_child(globals(), "_compiling")


def compile_loops(cache_dir: Path, started: float) -> tuple[Any, CompiledCode]:
    """Return every loop as a compiled function, by name, and where its code came from.

    Units: ``started`` is ``time.perf_counter()`` before Numba was imported.
    Raises: InvalidConfigValue where compiling is switched off
    """
    if numba.config.DISABLE_JIT:
        raise InvalidConfigValue(field=KNOB, value="numba", reason="NUMBA_DISABLE_JIT is set: unset it, or use 'numpy'")
    store = CodeStore(cache_dir)
    with _compiling:
        functions = {name: _compile(name, signatures, store) for name, signatures in SIGNATURES.items()}
    if not store.asked:
        store.problems.append(f"Numba {numba.__version__} does not ask for kept code, so every process compiles")
    loaded = sum(sum(one.stats.cache_hits.values()) for one in functions.values())
    code = CompiledCode(
        store.folder,
        loaded,
        sum(map(len, SIGNATURES.values())) - loaded,
        time.perf_counter() - started,
        tuple(dict.fromkeys(store.problems)),
    )
    return SimpleNamespace(**functions), code


def _compile(name: str, signatures: list[tuple[Any, ...]], store: CodeStore) -> Any:
    function = numba.njit(nogil=True)(getattr(loops, name))
    # ``cache=True`` would install a cache with files beside the source, unchecked, in which two processes can mix up
    # their files.
    function._cache = store.of(name)
    for signature in signatures:
        function.compile(types.int64(*signature))
    function.disable_compile()
    return function


_DIGEST_BYTES: Final = 32
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class CodeStore:
    """The folder of compiled code for this program on this machine; ``problems`` lists failed reads and writes."""

    def __init__(self, cache_dir: Path) -> None:
        self.folder = cache_dir / "numba" / _surroundings()
        self.problems: list[str] = []
        self.asked = 0
        self._usable = self._prepare()

    def of(self, function: str) -> CodeOf:
        """Return the cache that Numba uses for the code of one function."""
        return CodeOf(self, function)

    def _prepare(self) -> bool:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.folder.stat()
        except OSError as error:
            let_through(error)
            self.problems.append(f"{self.folder} cannot be made: {error.strerror}")
            return False
        # Loading code means running it: no other user may have put it there.
        is_own = not hasattr(os, "geteuid") or found.st_uid in (os.geteuid(), 0)
        if is_own and not found.st_mode & _OTHERS_WRITE:
            return True
        self.problems.append(f"{self.folder} can be written to by others, so nothing in it is used")
        return False

    def read(self, name: str) -> bytes | None:
        """Return the code kept under a name, if it is whole."""
        if not self._usable:
            return None
        try:
            raw = read_bytes(self.folder / name)
        except FileNotFoundError:
            return None
        except OSError as error:
            let_through(error)
            self.problems.append(f"{self.folder / name} cannot be read: {error.strerror}")
            return None
        content = raw[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != raw[:_DIGEST_BYTES]:
            self.problems.append(f"{self.folder / name} was damaged, and is made again")
            return None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Store data under a name, replacing earlier data."""
        if not self._usable:
            return
        temporary = None
        try:
            handle, temporary = tempfile.mkstemp(dir=self.folder)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            Path(temporary).replace(self.folder / name)
        except OSError as error:
            let_through(error)
            self.problems.append(f"{self.folder} cannot be written to: {error.strerror}")
            if temporary is not None:
                with suppress(OSError):
                    Path(temporary).unlink()


class CodeOf:
    """The compiled forms of one function: the cache interface of a Numba dispatcher."""

    def __init__(self, store: CodeStore, function: str) -> None:
        self._store = store
        self._function = function
        self.cache_path = str(store.folder)

    def _name(self, signature: Any) -> str:
        return f"{self._function}-{hashlib.sha256(repr(signature).encode()).hexdigest()[:16]}.code"

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the kept compile result of a signature, or None."""
        self._store.asked += 1
        target.refresh()
        name = self._name(signature)
        content = self._store.read(name)
        if content is None:
            return None
        try:
            return CompileResult._rebuild(target, *pickle.loads(content))  # noqa: S301  (digest and owner checked)
        except Exception as error:
            let_through(error)
            self._store.problems.append(f"{self._store.folder / name} cannot be loaded: {type(error).__name__}")
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep a compile result."""
        try:
            content = dumps(result._reduce())
        except Exception as error:
            let_through(error)
            self._store.problems.append(f"{self._function} cannot be kept: {type(error).__name__}")
            return
        self._store.write(self._name(signature), content)

    def enable(self) -> None:
        """Do nothing: the store decides."""

    def disable(self) -> None:
        """Do nothing: the store decides."""

    def flush(self) -> None:
        """Do nothing: the file name covers everything that its content depends on."""


def _surroundings() -> str:
    """Return a name for all that compiled code depends on."""
    source = read_bytes(Path(loops.__file__))
    versions = (numba.__version__, llvmlite.__version__, np.__version__, sys.version)
    processor = cpu_target.target_context.codegen().magic_tuple()
    return hashlib.sha256(repr((source, versions, processor)).encode()).hexdigest()[:32]
