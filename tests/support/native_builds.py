"""Kernels compiled anew from changed source, so that a test can show which faults it would see."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import cffi

from caliber.kernels import dispatch

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

# A file of csrc/, a text that occurs in it exactly once, and what stands there instead.
Change = tuple[str, str, str]


def build(folder: Path, changes: Sequence[Change] = (), *, unchanged: Path | None = None) -> dispatch.Native:
    """Return the kernels of this checkout with ``changes``, built in ``folder`` with the flags of each file.

    Objects that no change can have touched are taken from ``unchanged``, a folder that was built in before.
    """
    assert COMPILER is not None
    source = folder / "csrc"
    shutil.copytree(ROOT / "csrc", source)
    for name, old, new in changes:
        text = (source / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
        (source / name).write_text(text.replace(old, new), encoding="utf-8")
    cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    special = {
        name: flags.split(";")
        for name, flags in re.findall(r'set_source_files_properties\((\S+) PROPERTIES COMPILE_OPTIONS "([^"]*)"', cmake)
    }
    x86 = _is_x86()
    objects = []
    rooms = {Path(name).parent for name, _, _ in changes if name.endswith(".h")}
    touched = {name for name, _, _ in changes}
    for path in sorted(source.rglob("*.c")):
        name = path.relative_to(folder).as_posix()
        if name.startswith("csrc/ffi/") or (name in special and not x86):
            continue
        target = path.with_suffix(".o")
        inside = path.relative_to(source)
        same = inside.as_posix() not in touched and not any(inside.is_relative_to(room) for room in rooms)
        if unchanged is not None and same:
            objects.append(str(unchanged / target.relative_to(folder)))
            continue
        command = [COMPILER, "-c", "-O1", "-std=gnu11", "-fPIC", "-ffp-contract=off", "-fno-math-errno"]
        command += ["-I", str(source / "include"), *(["-DCALIBER_X86=1"] if x86 else []), *special.get(name, [])]
        subprocess.run([*command, str(path), "-o", str(target)], check=True, capture_output=True, text=True)
        objects.append(str(target))
    library = folder / "kernels.so"
    subprocess.run(
        [COMPILER, "-shared", "-o", str(library), *objects, "-lm"], check=True, capture_output=True, text=True
    )
    ffi = cffi.FFI()
    ffi.cdef((ROOT / "csrc" / "ffi" / "native.cdef.txt").read_text(encoding="utf-8"))
    lib = ffi.dlopen(str(library))
    present = lib.cal_cpu_features()
    return dispatch.Native(ffi, lib, present, dispatch.AVX2 if present & lib.CAL_CPU_AVX2 else dispatch.SCALAR)


def on_path(native: dispatch.Native, path: str) -> dispatch.Native:
    """Return ``native`` restricted to a path."""
    return native._replace(features=0 if path == dispatch.SCALAR else native.features, name=path)


@contextmanager
def running(native: dispatch.Native) -> Iterator[None]:
    """Run the whole process on these kernels for a while."""
    before = dispatch._chosen
    dispatch._chosen = (native,)
    try:
        yield
    finally:
        dispatch._chosen = before


def _is_x86() -> bool:
    import platform

    return platform.machine().lower() in ("x86_64", "amd64")
