"""A relation that CALIBER has never heard of is derived and erased as it declares, on every database."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).parent / "planted_traits_process.py"

pytestmark = pytest.mark.usefixtures("bulk")


def test_a_planted_relation_is_derived_and_erased(backend: Any) -> None:
    # issue 14: "a relation is the whole declaration"; bytes of each kind, unique keys and keys of authors
    kept = "kept" if "reopen" in backend.abilities else "memory"
    knobs = backend.knobs
    if "storage__schema_name" in knobs:  # one that no other test has had
        knobs = {**knobs, "storage__schema_name": f"test_{uuid.uuid4().hex[:20]}"}
    done = subprocess.run(
        [sys.executable, str(CHILD), backend.path, json.dumps(knobs), kept],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
