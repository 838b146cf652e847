"""Build the sdist and, from it, an abi3 wheel; repair the wheel; smoke-test it in an empty venv. Results in dist/.

Usage: python wheels/build.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command, and show what it said only if it fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("CALIBER_", "PYTHON"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    if cwd != ROOT:
        print(done.stdout.strip())


def only(folder: Path, pattern: str) -> Path:
    """Return the one file of a folder that matches."""
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"expected one {pattern} in {folder}, found {[path.name for path in found]}")
    return found[0]


def smoke(wheel: Path) -> None:
    """Install the wheel into an empty venv outside the repository and run the smoke test there."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        python = place / "venv" / "bin" / "python"
        shutil.copy(ROOT / "wheels" / "smoke.py", place)
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        run(python, "smoke.py", cwd=place)


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder)
        run(sys.executable, "-m", "build", "--outdir", raw)
        wheel = only(raw, "*.whl")
        if "-cp311-abi3-" not in wheel.name:
            raise SystemExit(f"{wheel.name} is not an abi3 wheel for Python 3.11 and later")
        DIST.mkdir()
        shutil.move(only(raw, "*.tar.gz"), DIST)
        if sys.platform == "linux":
            run(sys.executable, "-m", "auditwheel", "repair", "--strip", "-w", DIST, wheel)
        else:
            shutil.move(wheel, DIST)
    repaired = only(DIST, "*.whl")
    smoke(repaired)
    for path in sorted(DIST.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
