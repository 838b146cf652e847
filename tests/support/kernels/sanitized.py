"""The kernels' tests on an extension built with AddressSanitizer and UndefinedBehaviorSanitizer.

Every file of csrc/ is in it, the generated glue too. Python itself is not instrumented, so its process preloads the
sanitizers' library; Python's own allocator is switched off, so that every array is an allocation they know.

Usage: python tests/support/kernels/sanitized.py [ARGUMENTS OF PYTEST]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
FLAGS = (
    "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all "
    "-Wno-maybe-uninitialized"
)
TESTS = ("tests/kernels", "tests/conformance")
# Left out: kernels built anew, for mutants or for another machine, are not the ones under test; a signal every 100 us
# outruns a slow handler.
CHOSEN = "not planted and not mutants and not arm64 and not signal_handler and not evaluator and not state_sizes"


class CannotSanitizeError(Exception):
    """Raised where a sanitized build is impossible, with the reason and the remedy."""


class Outcome(NamedTuple):
    """The answer of pytest, and the reports of the sanitizers."""

    returncode: int
    output: str
    reports: str


def compiler() -> str:
    """Return the GCC to build with."""
    found = os.environ.get("CC") or shutil.which("gcc") or ""
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout if found else ""
    if "Free Software Foundation" not in version:
        raise CannotSanitizeError("this needs GCC, whose sanitizers Python can preload: install gcc, or set CC=gcc")
    return found


def build(folder: Path, source: Path = ROOT) -> Path:
    """Return the extension of ``source`` built with sanitizers in ``folder``."""
    configure = [
        "cmake", "-S", str(source), "-B", str(folder), "-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_C_COMPILER={compiler()}",
        f"-DCMAKE_C_FLAGS={FLAGS}", f"-DPython_EXECUTABLE={sys.executable}",
    ]  # fmt: skip
    for command in (configure, ["cmake", "--build", str(folder), "--parallel", "2"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotSanitizeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return folder / "_native.abi3.so"


def run(extension: Path, arguments: Sequence[str]) -> Outcome:
    """Run pytest at its small scale on the extension."""
    asked = [compiler(), "-print-file-name=libasan.so"]
    runtime = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    reports = extension.parent / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if name != "CALIBER_SOAK"},
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={reports}/address",
        "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:log_path={reports}/undefined",
        "PYTHONMALLOC": "malloc",
        "CALIBER_TEST_NATIVE": str(extension),
        "CALIBER_TIER": "prove",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    said = "".join(path.read_text(encoding="utf-8") for path in sorted(reports.iterdir()))
    return Outcome(done.returncode, done.stdout + done.stderr, said)


def run_kernel_tests(extension: Path, *arguments: str) -> Outcome:
    """Run everything that tests kernels."""
    return run(extension, [*TESTS, "-k", CHOSEN, "-n", "2", "--dist", "loadfile", *arguments])


def main() -> int:
    try:
        extension = build(ROOT / "build" / "sanitized")
    except CannotSanitizeError as error:
        print(error, file=sys.stderr)
        return 1
    done = run_kernel_tests(extension, *sys.argv[1:])
    print(done.output, done.reports, sep="\n")
    return done.returncode or bool(done.reports)


if __name__ == "__main__":
    sys.exit(main())
