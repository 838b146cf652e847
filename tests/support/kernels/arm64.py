"""Kernels compiled for 64-bit ARM and run in an emulator, for machines that are none themselves.

docs/decisions/0038-arm64-is-proven-in-an-emulator.md
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from support.kernels.native_builds import KEPT_S
from support.kernels.remote import ROOT, Remote, calls_h

from caliber._native import ffi
from caliber.kernels import dispatch

COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static") or "qemu-aarch64"
REQUIRED = "CALIBER_TEST_ARM64"  # set where a missing tool must fail a test, not skip it
NATIVE_HERE = platform.machine().lower() in ("aarch64", "arm64")

# The oldest CPU that has what a path needs: an instruction from beyond ends the process.
CPU_OF = {dispatch.SCALAR: "cortex-a57", dispatch.NEON: "cortex-a57", dispatch.DOTPROD: "neoverse-n1"}


def _missing() -> str:
    wanted = {COMPILER: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross", EMULATOR: "qemu-user", "cmake": "cmake"}
    absent = [package for tool, package in wanted.items() if _tool(tool) is None]
    return f"kernels for ARM are not run (Debian: apt-get install {' '.join(absent)})" if absent else ""


def _tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


KEPT = ROOT / "build" / "arm64-tests"
MISSING = _missing()
SKIPPED = bool(MISSING) and not os.environ.get(REQUIRED)

# Paths of tests: none where kernels for ARM run without an emulator, or do not run at all. That they do not is said
# once, by the module of tests that are about them.
PREFIX = "arm64-"
PATHS = [] if NATIVE_HERE or SKIPPED else [PREFIX + name for name in CPU_OF]


def compile_kernels(folder: Path, *, root: Path = ROOT, build_type: str = "Release") -> Path:
    """Return a program for ARM that serves calls of the kernels in ``root``, built anew where files changed."""
    _insist()
    folder.mkdir(parents=True, exist_ok=True)
    calls = folder / "calls.h"
    if not calls.exists() or calls.read_text(encoding="utf-8") != calls_h():
        calls.write_text(calls_h(), encoding="utf-8")
    cmake = str(_tool("cmake"))
    if not (folder / "remote").exists():
        _run(
            cmake,
            *("-S", str(ROOT / "tests" / "native"), "-B", str(folder)),
            *(f"-DCALIBER_ROOT={root}", f"-DCALIBER_CALLS={folder}", f"-DCMAKE_BUILD_TYPE={build_type}"),
            *("-DCALIBER_WERROR=ON", "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"),
            f"-DCMAKE_C_COMPILER={COMPILER}",
        )
    _run(cmake, "--build", str(folder), "--parallel", "2")
    return folder / "remote"


def _insist() -> None:
    if MISSING:
        pytest.fail(f"{MISSING}; {REQUIRED} says that they must be")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


def emulated(program: Path, cpu: str) -> Remote:
    """Return the functions of a program that ``compile_kernels`` made, run on an emulated CPU."""
    remote = Remote([EMULATOR, "-cpu", cpu, program])
    atexit.register(remote.close)
    return remote


def kernels_on(remote: Remote, path: str) -> dispatch.Native:
    """Return kernels as ``dispatch`` would choose them if the path were forced there."""
    features = dispatch.features_of(remote, path)
    assert features is not None, f"the emulated CPU has no {path}"
    return dispatch.Native(ffi, remote, features, path)


@cache
def kernels(path: str) -> dispatch.Native:
    """Return the kernels of this checkout on a path of ARM (``scalar``, ``neon``, ``dotprod``)."""
    return kernels_on(emulated(_program(), CPU_OF[path]), path)


@cache
def _program() -> Path:
    return kept_program(ROOT, lambda: compile_kernels(KEPT / "cmake"))


def kept_program(root: Path, make: Callable[[], Path]) -> Path:
    """Return the program of the sources in ``root`` that ``make`` compiles, once for all processes and all runs.

    Programs that no run has used for a week are removed.
    """
    _insist()
    sources = [*(root / "csrc").rglob("*.[ch]"), *(ROOT / "tests" / "native").iterdir(), root / "CMakeLists.txt"]
    texts = [path.read_bytes() for path in sorted(sources)]
    state = hashlib.sha256(b"".join([calls_h().encode(), str(root == ROOT).encode(), *texts])).hexdigest()[:16]
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = KEPT / f"remote-{state}"
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for old in KEPT.glob("remote-*"):
            if old.stat().st_mtime < time.time() - KEPT_S:
                old.unlink()
        if not kept.exists():
            shutil.copy(make(), kept)
        os.utime(kept)
    return kept
