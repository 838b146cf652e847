"""Instruction counts of each hot kernel, counted by callgrind and compared with the committed counts.

A count is of user-space instructions, so it does not depend on how busy a machine is; it does depend on the compiler,
so there is a file of counts for each compiler and architecture.

Usage: python tests/support/kernels/instructions.py [--update]
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.kernels import native_builds
from support.kernels.native_builds import RELEASE, ROOT, Change, Toolchain

FOLDER = ROOT / "tests" / "instructions"
VALGRIND = shutil.which("valgrind")
TOLERANCE = 0.05

# By path ("scalar", then a name for each feature of the CPU that valgrind knows), by kernel.
Counts = dict[str, dict[str, int]]


def compiler() -> str:
    """Return the compiler and its major version, such as ``gcc-12``."""
    assert native_builds.COMPILER is not None
    said = subprocess.run([native_builds.COMPILER, "--version"], capture_output=True, text=True, check=True).stdout
    clang = re.search(r"clang version (\d+)", said)
    if clang:
        return f"clang-{clang[1]}"
    version = subprocess.run([native_builds.COMPILER, "-dumpversion"], capture_output=True, text=True, check=True)
    return f"gcc-{version.stdout.split('.')[0].strip()}"


def baseline_file() -> Path:
    """Return where the counts for this compiler and architecture are committed."""
    return FOLDER / "baselines" / f"{compiler()}-{platform.machine().lower()}.json"


def build_driver(folder: Path, changes: Sequence[Change] = (), *, unchanged: Path | None = None) -> Path:
    """Return the driver over the kernels of this checkout with ``changes``, compiled as for a release.

    What no change touches is taken from ``unchanged``, where the driver was built before.
    """
    assert native_builds.COMPILER is not None
    tools = Toolchain(native_builds.COMPILER, RELEASE)
    before = unchanged / "kernels" if unchanged else None
    kernels = native_builds.compile_kernels(folder / "kernels", tools, changes, unchanged=before)
    driver = folder / "driver.o"
    include = str(ROOT / "csrc" / "include")
    tools.run(
        "-c", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", include, str(FOLDER / "driver.c"), "-o", str(driver)
    )
    return native_builds.link(folder / "driver", tools, [str(driver), *kernels])


def count(driver: Path, folder: Path) -> Counts:
    """Return the instructions of every kernel on every path that valgrind can run."""
    present, scalar = _run(driver, folder / "scalar", 0)
    counts = {"scalar": scalar}
    for name, bit in _features().items():
        if present & bit:
            counts[name] = _run(driver, folder / name, bit)[1]
    return counts


def _features() -> dict[str, int]:
    header = (ROOT / "csrc" / "include" / "caliber.h").read_text(encoding="utf-8")
    return {name.lower(): int(value) for name, value in re.findall(r"CAL_CPU_(\w+) = (\d+)", header)}


def _run(driver: Path, folder: Path, features: int) -> tuple[int, dict[str, int]]:
    assert VALGRIND is not None
    folder.mkdir()
    command = [VALGRIND, "-q", "--tool=callgrind", f"--callgrind-out-file={folder}/part", "--dump-before=case_*"]
    done = subprocess.run([*command, str(driver), str(features)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts, running = {}, ""
    for part in sorted(folder.glob("part.*"), key=lambda path: int(path.suffix[1:])):
        text = part.read_text(encoding="utf-8")
        begins = re.search(r"^desc: Trigger: --dump-before=case_(\w+)", text, re.MULTILINE)
        total = re.search(r"^totals: (\d+)", text, re.MULTILINE)
        assert total is not None
        if begins[1] == "done":
            assert running not in counts, f"the compiler made two cases one: {running}"
            counts[running] = int(total[1])
        running = begins[1]
    cases = re.findall(r"^    RUN\((\w+)\);", (FOLDER / "driver.c").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(counts) == sorted(cases)
    return int(done.stdout), counts


def differences(expected: Counts, counted: Counts) -> list[str]:
    """Return the counts that differ from the committed ones by more than the tolerance, in words.

    Paths that this machine cannot run are not compared.
    """
    found = []
    for path in sorted({"scalar", *counted}):
        before, after = expected.get(path, {}), counted.get(path, {})
        for name in sorted({*before, *after}):
            if name not in after:
                found.append(f"{path} {name}: counted before, not now")
            elif name not in before:
                found.append(f"{path} {name}: {after[name]:,}, never counted before")
            elif abs(after[name] - before[name]) > TOLERANCE * before[name]:
                change = after[name] / before[name] - 1
                found.append(f"{path} {name}: {before[name]:,} before, {after[name]:,} now ({change:+.1%})")
    return found


def committed() -> Counts | None:
    """Return the committed counts, or None if there are none for this compiler and architecture."""
    file = baseline_file()
    return json.loads(file.read_text(encoding="utf-8"))["counts"] if file.exists() else None


def commit(counts: Counts) -> Path:
    """Write the counts to be committed."""
    assert VALGRIND is not None
    version = subprocess.run([VALGRIND, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    body: dict[str, Any] = {
        "compiler": compiler(),
        "flags": " ".join(RELEASE),
        "counted by": f"callgrind of {version}",
        "not counted here": sorted(set(_features()) - set(counts)),
        "counts": counts,
    }
    file = baseline_file()
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    return file


def main() -> int:
    if VALGRIND is None:
        print("counting instructions needs valgrind (Debian: apt-get install valgrind)", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        counts = count(build_driver(Path(folder)), Path(folder))
    if "--update" in sys.argv:
        print(f"wrote {commit(counts).relative_to(ROOT)}")
        return 0
    expected = committed()
    if expected is None:
        print(f"nothing to compare with: make guard-update writes {baseline_file().relative_to(ROOT)}", file=sys.stderr)
        return 1
    for path, by_kernel in counts.items():
        for name, now in by_kernel.items():
            before = expected.get(path, {}).get(name)
            print(f"{path:8} {name:24} {now:>12,} {'' if before is None else f'{now / before - 1:+.2%}'}")
    found = differences(expected, counts)
    print("\n".join(found) or f"all within {TOLERANCE:.0%}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
