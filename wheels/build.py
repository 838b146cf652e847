"""Build the sdist and, from it, an abi3 wheel; repair the wheel; smoke-test it in an empty venv. Results in dist/.

The lines of README run from the wheel too, installed as README says, in an empty folder.

Usage: python wheels/build.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command, and return what it said; outside the repository it is shown, else only if it fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("CALIBER_", "PYTHON"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    if cwd != ROOT:
        print(done.stdout.strip())
    return done.stdout


def only(folder: Path, pattern: str) -> Path:
    """Return the one file of a folder that matches."""
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"expected one {pattern} in {folder}, found {[path.name for path in found]}")
    return found[0]


@contextmanager
def installed(wheel: str | Path) -> Iterator[tuple[Path, Path]]:
    """Yield an empty folder outside of the repository, and the programs of its venv that has nothing but the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        programs = place / "venv" / "bin"
        run(programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        yield place, programs


def smoke(wheel: Path) -> None:
    """Run the smoke test from the wheel."""
    with installed(wheel) as (place, programs):
        shutil.copy(ROOT / "wheels" / "smoke.py", place)
        run(programs / "python", "smoke.py", cwd=place)


def readme(wheel: Path) -> None:
    """Run what README prints from the wheel and its extra, twice: the second process finds what the first said."""
    blocks = dict(
        re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    )
    (extra,) = re.findall(r"caliber-memory(\[\w+\])", blocks["sh"])
    day = re.compile(r"\d{1,2} \w+ \d{4}")
    with installed(f"{wheel}{extra}") as (place, programs):
        for _ in range(2):
            said = run(programs / "python", "-W", "error", "-c", blocks["python"], cwd=place)
            if day.sub("", said) != day.sub("", blocks["text"]):
                raise SystemExit(f"README prints\n{blocks['text']}and the wheel\n{said}")
        for command in ("init", "create", "check", "doctor"):
            run(programs / "caliber", command, cwd=place)
        run(programs / "python", "-W", "error", "-c", "import caliber; caliber.open('caliber.toml').close()", cwd=place)


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
    readme(repaired)
    for path in sorted(DIST.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
