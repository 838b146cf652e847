"""The fuzz targets of tests/fuzz, built with any compiler: to run on fixed inputs, or under libFuzzer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from support.kernels import native_builds
from support.kernels.native_builds import ROOT, SANITIZE, Change, Toolchain

FOLDER = ROOT / "tests" / "fuzz"
CORPUS = FOLDER / "corpus"
GROWN = ROOT / "build" / "fuzz"
# Named as the file with the target; what targets of Python take is not compiled.
TARGETS = tuple(sorted(path.stem for path in FOLDER.glob("*.c") if path.stem != "standalone"))
PYTHON_TARGETS = ("read_program", "truncate_text")
CLANG = shutil.which(os.environ.get("CLANG") or "clang")
ENVIRONMENT = {
    **os.environ,
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=99",
}


def sanitizing() -> Toolchain:
    """Return the compiler of this machine with AddressSanitizer and UndefinedBehaviorSanitizer."""
    assert native_builds.COMPILER is not None
    return Toolchain(native_builds.COMPILER, ("-O1", "-g", *SANITIZE))


def compile_target(folder: Path, name: str, tools: Toolchain) -> str:
    """Return the object of a target, or of ``standalone``."""
    target = folder / f"{name}.o"
    csrc = ROOT / "csrc"
    flags = ["-c", "-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]
    tools.compile(flags, {csrc / "include": csrc, FOLDER: FOLDER}, FOLDER / f"{name}.c", target)
    return str(target)


def corpus(name: str) -> list[str]:
    """Return the committed inputs of a target."""
    return sorted(str(path) for path in (CORPUS / name).iterdir())


def run_standalone(program: Path, name: str, *, runs: int, seed: int) -> subprocess.CompletedProcess[str]:
    """Run a target on its committed inputs, then on ``runs`` made from the seed."""
    command = [str(program), f"-runs={runs}", f"-seed={seed}", *corpus(name)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=3600)


class Outcome(NamedTuple):
    """The outcome of a fuzzer."""

    returncode: int
    output: str
    executed: int
    covered: int
    inputs: int


def fuzzing_command(name: str, folder: Path, changes: Sequence[Change]) -> list[str]:
    """Return the command that starts the fuzzer of a target, built in ``folder`` where it is one of C."""
    if name in PYTHON_TARGETS:
        return [sys.executable, str(FOLDER / f"{name}.py")]
    assert CLANG is not None
    tools = Toolchain(CLANG, ("-O2", "-g", "-fsanitize=fuzzer-no-link", *SANITIZE))
    if not (folder / "kernels").exists():
        native_builds.compile_kernels(folder / "kernels", tools, changes)
    kernels = sorted(str(path) for path in (folder / "kernels").rglob("*.o"))
    linking = Toolchain(CLANG, ("-fsanitize=fuzzer", *SANITIZE))
    program = native_builds.link(folder / name, linking, [compile_target(folder, name, tools), *kernels])
    return [str(program)]


def fuzz(
    name: str, folder: Path, *, seconds: int, seed: int, changes: Sequence[Change] = (), keep: bool = True
) -> Outcome:
    """Run a target's fuzzer from the committed inputs and those that earlier runs here found interesting.

    What it finds is kept in ``build/fuzz`` unless it looks for a planted fault.
    """
    place = GROWN if keep else folder / "found"
    grown = place / "corpus" / name
    grown.mkdir(parents=True, exist_ok=True)
    command = [
        *fuzzing_command(name, folder, changes),
        f"-max_total_time={seconds}",
        f"-seed={seed % 2**32 or 1}",
        "-max_len=4096",
        "-timeout=20",
        "-print_final_stats=1",
        f"-artifact_prefix={place}/{name}-",
        str(grown),
        str(CORPUS / name),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    output = done.stdout + done.stderr
    executed = re.search(r"stat::number_of_executed_units: (\d+)", output)
    progress = re.findall(r"cov: (\d+) ft: \d+ corp: (\d+)", output)
    covered, inputs = map(int, progress[-1]) if progress else (0, 0)
    return Outcome(done.returncode, output, int(executed[1]) if executed else 0, covered, inputs)
