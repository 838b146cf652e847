"""Command ``bench``: runs the benchmarks of a source checkout in a separate, single-threaded process."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from caliber.cli.failures import DONE, PROBLEM, Problem, UsageError
from caliber.cli.settings import Settings, with_settings

ONE_THREAD: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
PACKAGE: Final = Path(__file__).resolve().parents[1]
BENCHMARK: Final = re.compile(r"^def (test_\w+)", re.MULTILINE)
_WORD: Final = re.compile(r"\w+\Z")
_FAILED, _NOTHING_CHOSEN = 1, 5  # exit codes of pytest


@click.command()
@click.option("--group", "groups", multiple=True, metavar="WORD", help="Only what has WORD in its name; repeatable.")
@click.option("--quick", is_flag=True, help="Few rounds and small sizes: to see that it runs.")
@click.option("--full", is_flag=True, help="Large sizes and more rounds: half an hour.")
@click.option("--rows", is_flag=True, help="Also show every implementation that was timed.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Draw searches as PNG.")
@with_settings
def bench(settings: Settings, groups: tuple[str, ...], quick: bool, full: bool, rows: bool, plot: Path | None) -> int:
    """Compare CALIBER with other libraries: goal beside figure.

    Works in a checkout, after `make bench` has installed what is compared. Answers are compared before anything is
    timed; exit code 1 when one is wrong or cannot be had. A figure that falls short is marked, and is no error.
    """
    folder = checkout()
    files = chosen(folder, groups)
    with tempfile.TemporaryDirectory(prefix="caliber-bench-") as scratch:
        report = Path(scratch) / "report.json"
        options = [*_options(groups, quick, full, rows, plot), f"--report={report}"]
        code = _run(settings, folder, [*options, *map(str, files)])
        if code not in (DONE, _FAILED) or not report.exists():
            raise Problem(f"the benchmarks could not run (pytest ended with code {code})", "see its messages above")
        document = json.loads(report.read_text(encoding="utf-8"))
    # The table is printed by the benchmarks themselves, which also run without this command.
    settings.out.result({"ok": code == DONE, **document}, lambda: None)
    return PROBLEM if code else DONE


def checkout() -> Path:
    """Return the folder of the checkout this program runs from.

    Raises: UsageError outside of one, or without the benchmarks' dependencies.
    """
    folder = PACKAGE.parent
    if not (folder / "bench" / "conftest.py").is_file():
        raise UsageError(
            "benchmarks are not part of an installed package: they run from a checkout of CALIBER",
            "in a checkout, `make bench` installs what they compare with and runs them",
        )
    missing = [name for name in ("pytest", "pytest_benchmark") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{' and '.join(missing)} cannot be imported",
            "`make bench` installs what the benchmarks need, and runs them",
        )
    return folder


def chosen(folder: Path, groups: tuple[str, ...]) -> list[Path]:
    """Return the files under ``bench/`` that have something of these groups in them, all of them without groups.

    Raises: UsageError for a word that no file and no test there has in its name.
    """
    names = {
        path: {path.stem, *BENCHMARK.findall(path.read_text(encoding="utf-8"))}
        for path in sorted((folder / "bench").glob("test_*.py"))
    }
    for word in groups:
        if not _WORD.match(word) or not any(word.lower() in name for file in names.values() for name in file):
            group_names = sorted({name.removeprefix("test_") for file in names.values() for name in file})
            raise UsageError(f"no benchmark has {word!r} in its name", f"there are: {', '.join(group_names)}")
    words = [word.lower() for word in groups] or [""]
    return [path for path, file in names.items() if any(word in name for word in words for name in file)]


def _options(groups: tuple[str, ...], quick: bool, full: bool, rows: bool, plot: Path | None) -> list[str]:
    out = ["--benchmark-columns=median,iqr,rounds"] if rows else ["--benchmark-quiet"]
    out += ["--quick"] if quick else ["--full"] if full else []
    out += [] if plot is None else [f"--plot={plot.resolve()}"]
    return out + (["-k", " or ".join(groups)] if groups else [])


def _run(settings: Settings, folder: Path, options: list[str]) -> int:
    # A run of pytest around this one must not add its options, nor pass for our own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= dict.fromkeys(ONE_THREAD, "1")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=0", "-n0"]
    command += ["--rootdir", str(folder), *options]
    # In JSON mode stdout is for the document alone.
    return subprocess.run(  # noqa: S603
        command, cwd=folder, env=environment, stdout=sys.stderr.fileno() if settings.json else None, check=False
    ).returncode
