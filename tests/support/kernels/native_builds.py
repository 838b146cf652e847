"""Kernels and programs compiled anew from this checkout, as it is or with planted faults."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import cffi
import pytest

from caliber.kernels import dispatch

ROOT = Path(__file__).resolve().parents[3]
OBJECTS = ROOT / "build" / "objects"
"""Objects by the hash of whatever they depend on. Mutants are the same in each run until the kernels change."""
KEPT_S = 7 * 24 * 3600
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

# What the last word in the name of a file of one instruction set says; other files are for every machine.
ARCHITECTURE_OF = {"avx2": "X86", "shani": "X86", "neon": "ARM64", "dotprod": "ARM64", "armv8": "ARM64"}

# The feature of the CPU that such a file needs.
FEATURE_OF = {"avx2": "AVX2", "shani": "SHANI", "neon": "NEON", "dotprod": "DOTPROD", "armv8": "SHA2"}

# A file of csrc/, a text that occurs in it exactly once, and what stands there instead.
Change = tuple[str, str, str]

QUICK = ("-O1",)
# What a release is built with: CMake's Release.
RELEASE = ("-O3", "-DNDEBUG")
SANITIZE = ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


class Toolchain(NamedTuple):
    """A compiler and the flags that every file gets, besides those that CMakeLists.txt gives it."""

    compiler: str
    flags: tuple[str, ...]

    def run(self, *arguments: str) -> None:
        done = subprocess.run([self.compiler, *self.flags, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def compile(self, flags: Sequence[str], headers: Mapping[Path, Path], source: Path, target: Path) -> None:
        """Compile ``source``, or copy its object if this compiler made it of the same text, headers and flags.

        ``headers`` has, for each folder that is searched for headers, the one that all of them are below.
        """
        digest = hashlib.sha256(repr((_version(self.compiler), self.flags, tuple(flags))).encode())
        digest.update(source.read_bytes())
        for root in headers.values():
            for path in sorted(root.rglob("*.h")):
                digest.update(f"\0{path.relative_to(root)}\0".encode() + path.read_bytes())
        kept = _objects() / f"{digest.hexdigest()}.o"
        try:
            os.utime(kept)
            shutil.copyfile(kept, target)
        except FileNotFoundError:
            folders = [argument for folder in headers for argument in ("-I", str(folder))]
            self.run(*flags, *folders, str(source), "-o", str(target))
            handle, made = tempfile.mkstemp(dir=kept.parent)
            os.close(handle)
            shutil.copyfile(target, made)
            Path(made).replace(kept)  # other workers see a whole object or none


@functools.cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


@functools.cache
def _objects() -> Path:
    """Return the folder of kept objects, without those that no run has used for a week."""
    OBJECTS.mkdir(parents=True, exist_ok=True)
    for path in OBJECTS.iterdir():
        if path.stat().st_mtime < time.time() - KEPT_S:
            path.unlink(missing_ok=True)
    return OBJECTS


def quick() -> Toolchain:
    assert COMPILER is not None
    return Toolchain(COMPILER, QUICK)


def compile_kernels(
    folder: Path, tools: Toolchain, changes: Sequence[Change] = (), *, unchanged: Path | None = None
) -> list[str]:
    """Return the objects of the kernels of this checkout with ``changes``, built in ``folder``.

    Objects that no change can have touched are taken from ``unchanged``, a folder that was built in before.
    """
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
    here = _architecture()
    objects = []
    rooms = {Path(name).parent for name, _, _ in changes if name.endswith(".h")}
    touched = {name for name, _, _ in changes}
    for path in sorted(source.rglob("*.c")):
        name = path.relative_to(folder).as_posix()
        if name.startswith("csrc/ffi/") or ARCHITECTURE_OF.get(path.stem.rpartition("_")[2], here) != here:
            continue
        target = path.with_suffix(".o")
        inside = path.relative_to(source)
        same = inside.as_posix() not in touched and not any(inside.is_relative_to(room) for room in rooms)
        if unchanged is not None and same:
            objects.append(str(unchanged / target.relative_to(folder)))
            continue
        flags = ["-c", "-std=gnu11", "-fPIC", "-ffp-contract=off", "-fno-math-errno", f"-DCALIBER_{here}=1"]
        tools.compile([*flags, *special.get(name, [])], {source / "include": source}, path, target)
        objects.append(str(target))
    return objects


def build(folder: Path, changes: Sequence[Change] = (), *, unchanged: Path | None = None) -> dispatch.Native:
    """Return the kernels of this checkout with ``changes``, loaded from a library built in ``folder``."""
    tools = quick()
    objects = compile_kernels(folder, tools, changes, unchanged=unchanged)
    library = folder / "kernels.so"
    tools.run("-shared", "-o", str(library), *objects, "-lm")
    ffi = cffi.FFI()
    ffi.cdef((ROOT / "csrc" / "ffi" / "native.cdef.txt").read_text(encoding="utf-8"))
    lib = ffi.dlopen(str(library))
    present = lib.cal_cpu_features()
    return dispatch.Native(ffi, lib, present, dispatch.paths(lib)[-1])


def link(target: Path, tools: Toolchain, objects: Sequence[str]) -> Path:
    """Return the program that objects make."""
    tools.run(*objects, "-lm", "-o", str(target))
    return target


def on_path(native: dispatch.Native, path: str) -> dispatch.Native:
    """Return ``native`` restricted to a path."""
    features = dispatch.features_of(native.lib, path)
    assert features is not None
    return native._replace(features=features, name=path)


def runs_here(file: str) -> bool:
    """Return whether this machine runs a file of csrc/, so that a fault in it can show."""
    from caliber._native import lib

    feature = FEATURE_OF.get(Path(file).stem.rpartition("_")[2])
    return feature is None or bool(lib.cal_cpu_features() & getattr(lib, f"CAL_CPU_{feature}"))


def with_fault(change: Change, folder: Path, unchanged: Path) -> dispatch.Native:
    """Return the kernels with a change, on a path that runs it; skip the test where this machine has none."""
    if not runs_here(change[0]):
        pytest.skip("this machine does not run the file with the fault")
    native = build(folder, [change], unchanged=unchanged)
    return on_path(native, "scalar") if change[0].endswith("_scalar.c") else native


def _architecture() -> str:
    machine = platform.machine().lower()
    return {"x86_64": "X86", "amd64": "X86", "aarch64": "ARM64", "arm64": "ARM64"}.get(machine, "OTHER")
