"""How far a long proof goes in this run, and where its full scale is recorded."""

from __future__ import annotations

import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any

import apsw

import caliber

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "evidence"


def soaking() -> bool:
    """Return whether this run is ``make soak``."""
    return bool(os.environ.get("CALIBER_SOAK"))


def scale(small: int, full: int) -> int:
    """Return the number for this run."""
    return full if soaking() else small


def seed() -> int:
    """Return the seed of this run; ``SEED=… make test`` runs it again."""
    return int(os.environ.get("CALIBER_SEED", "20260101"))


def record(name: str, title: str, figures: dict[str, Any]) -> None:
    """Write what a full run saw to ``docs/evidence/NAME.md`` and ``.json``; a small run records nothing."""
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
    lines = [f"# {title}", "", "Recorded by `make soak`.", "", "| what | figure |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in {**figures, **machine}.items()]
    (FOLDER / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    body = json.dumps({"title": title, "figures": figures, "machine": machine}, indent=2)
    (FOLDER / f"{name}.json").write_text(body + "\n", encoding="utf-8")
