"""A relation that CALIBER has never heard of is derived, searched, hidden, ended and erased as it declares."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

pytestmark = [pytest.mark.prove, pytest.mark.usefixtures("bulk")]


@pytest.mark.parametrize("backend", ["postgres", "sqlite"], indirect=True)  # in memory it is SQLite without reopening
@pytest.mark.parametrize(
    "child", ["planted_traits_process.py", "planted_search_process.py", "planted_windows_process.py"]
)
def test_a_planted_relation_is_what_it_declares(child: str, backend: Any, tmp_path: Path) -> None:
    # "a relation is the whole declaration": one with bytes of each kind and unique keys, one with a text and readers
    knobs = backend.knobs
    if "storage__schema_name" in knobs:  # one that no other test has had
        knobs = {**knobs, "storage__schema_name": f"test_{uuid.uuid4().hex[:20]}"}
    done = subprocess.run(
        [sys.executable, str(HERE / child), backend.path, json.dumps(knobs), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
