"""Style and warnings of C: every file is as clang-format writes it, and compiles with all warnings as errors.

The files of csrc/ are compiled in build folders of their own: for this machine, and for 64-bit ARM where a compiler for
it is installed (CALIBER_TEST_ARM64=1: must be).

Usage: python tools/lint_c.py FOLDER
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


# Where C is written by hand; .clang-format-ignore lists what is generated there.
FOLDERS = ("csrc", "bench", "tests")
# clang-format has no rule for it: an increment whose value nobody uses stands after its operand.
INCREMENT_BEFORE = re.compile(r"(?:^\s*|[;,)] )(?:\+\+|--)[\w(*]")

ARM_COMPILER = "aarch64-linux-gnu-gcc"
HERE = [f"-DPython_EXECUTABLE={sys.executable}"]
ARM = [
    "-DCALIBER_MODULE=OFF",
    "-DCMAKE_SYSTEM_NAME=Linux",
    "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
    f"-DCMAKE_C_COMPILER={ARM_COMPILER}",
]


def styled() -> bool:
    """Return whether every file has the one style; show where not."""
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.[ch]"))
    formatted = subprocess.run(["clang-format", "--dry-run", "--Werror", *map(str, files)], cwd=ROOT, check=False)
    found = [
        f"{path.relative_to(ROOT)}:{number}: write the increment after its operand: {line.strip()}"
        for path in files
        if not path.is_relative_to(ROOT / "csrc" / "ffi")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if INCREMENT_BEFORE.search(line)
    ]
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return not formatted.returncode and not found


def compiles(folder: Path, options: list[str]) -> bool:
    """Compile everything in a folder, and show what was said only if that fails."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-DCALIBER_WERROR=ON", *options]
    for command in (configure, ["cmake", "--build", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
            return False
    return True


def main() -> int:
    folder = ROOT / sys.argv[1]
    if not styled() or not compiles(folder, HERE):
        return 1
    if platform.machine().lower() in ("aarch64", "arm64"):
        return 0
    if shutil.which(ARM_COMPILER):
        return 0 if compiles(folder.with_name(f"{folder.name}-arm64"), ARM) else 1
    print(f"not compiled: the files for ARM, without {ARM_COMPILER} (Debian: apt-get install gcc-aarch64-linux-gnu)")
    return 1 if os.environ.get("CALIBER_TEST_ARM64") else 0


if __name__ == "__main__":
    sys.exit(main())
