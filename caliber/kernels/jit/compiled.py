"""Compilation of the column loops with Numba: compiles every loop when a store opens, or loads it from the cache.

All loops are compiled at once, so that no search waits for a compiler. No fast-math: sums keep their order, and the
bits are those of NumPy.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
from numba import types

from caliber.kernels.jit import loops
from caliber.kernels.jit.code import KNOB, CompiledCode
from caliber.kernels.jit.store import CodeStore
from caliber.model.errors import InvalidConfigValue
from caliber.model.process.interpreter import renew_in_child


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
