"""Extent of a long proof in this run, and the place where its full scale is recorded."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import apsw

import caliber
from support.tiers import tier

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "evidence"


def soaking() -> bool:
    """Return whether this run is ``make soak``."""
    return tier() == "soak"


def proving() -> bool:
    """Return whether this run is more than ``make test``."""
    return tier() != "daily"


def scale(small: int, full: int, *, daily: int | None = None) -> int:
    """Return the number for this run: of ``make prove``, of ``make soak``, and of ``make test`` if that has its own."""
    if daily is not None and tier() == "daily":
        return daily
    return full if soaking() else small


def examples(small: int, full: int | None = None) -> int:
    """Return a number of random examples as ``scale`` does; ``make test`` tries a quarter."""
    return scale(small, small if full is None else full, daily=max(1, small // 4))


def share(cases: Iterable[T], of: int, *, daily: int | None = None) -> list[T]:
    """Return every case at full scale, else one in ``of``: so many seeds in a row return each case once.

    ``daily`` is the same for ``make test``, where it has its own.
    """
    step = 1 if soaking() else of if proving() or daily is None else daily
    return list(cases)[seed() % step :: step]


def seed() -> int:
    """Return the seed of this run; ``make test SEED=…`` runs it again."""
    return int(os.environ.get("CALIBER_SEED", "20260101"))


def sources() -> str:
    """Return the digest of the state of csrc/."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "csrc").rglob("*.[ch]")):
        digest.update(f"{path.relative_to(ROOT).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def kernels() -> dict[str, Any]:
    """Return which kernels ran: their source, the compiler that built them, and what this CPU offers them."""
    from caliber import _native

    compilers = re.findall(rb"GCC: \([^)]*\) [0-9.]+|clang version [0-9.]+", Path(_native.__file__).read_bytes())
    present = _native.lib.cal_cpu_features()
    names = [name for name in dir(_native.lib) if name.startswith("CAL_CPU_")]
    return {
        "kernels": f"csrc/ with digest {sources()}",
        "compiler": ", ".join(sorted({one.decode() for one in compilers})) or "unknown",
        "CPU features": ", ".join(name[8:].lower() for name in names if present & getattr(_native.lib, name)),
    }


def page(title: str, figures: dict[str, Any]) -> str:
    """Return a record as Markdown: one list item a figure, no line longer than 120 columns."""
    lines = [f"# {title}", "", "Recorded by `make soak`.", ""]
    for key, value in figures.items():
        text = f"{key}: {value}"
        lines += textwrap.wrap(text, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def record(name: str, title: str, figures: dict[str, Any]) -> None:
    """Write what a full run saw to ``docs/evidence/NAME.md``, over the last; a small run records nothing."""
    if not soaking():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    machine = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "caliber": caliber.__version__,
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "apsw": apsw.apsw_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
    }
    (FOLDER / f"{name}.md").write_text(page(title, {**figures, **machine}), encoding="utf-8")
