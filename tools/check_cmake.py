"""Print the PyPI packages that must be installed because this machine lacks a usable CMake or Ninja."""

from __future__ import annotations

import re
import shutil
import subprocess

OLDEST_CMAKE = (3, 20)


def cmake_version() -> tuple[int, ...]:
    """Return the version of the cmake on PATH, or () if there is none."""
    program = shutil.which("cmake")
    if program is None:
        return ()
    found = re.search(r"(\d+)\.(\d+)", subprocess.run([program, "--version"], capture_output=True, text=True).stdout)
    return tuple(map(int, found.groups())) if found else ()


if __name__ == "__main__":
    needed = []
    if cmake_version() < OLDEST_CMAKE:
        needed.append("cmake>=" + ".".join(map(str, OLDEST_CMAKE)))
    if shutil.which("ninja") is None:
        needed.append("ninja")
    print(" ".join(needed))
