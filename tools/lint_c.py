"""Compile every file of csrc/ with all warnings as errors, in a build folder of its own.

Usage: python tools/lint_c.py FOLDER
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    folder = ROOT / sys.argv[1]
    configure = [
        "cmake",
        "-S",
        str(ROOT),
        "-B",
        str(folder),
        "-DCALIBER_WERROR=ON",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    for command in (configure, ["cmake", "--build", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
