"""What holds for every test: how far Hypothesis searches, and what a run reports about its machine."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# ``support`` holds what several rooms of tests share; it is not part of the package.
sys.path.insert(0, str(Path(__file__).resolve().parent))

# No deadline: a busy machine is not a bug. `make soak` searches fifty times as far.
settings.register_profile("test", deadline=None, print_blob=True)
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5000)
settings.load_profile("soak" if os.environ.get("CALIBER_SOAK") else "test")


def pytest_report_header() -> str:
    from caliber.kernels import active_path, available_paths

    return f"caliber: kernels {active_path()} of {', '.join(available_paths())}; {platform.platform()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("CALIBER_SOAK"):
        return
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.skip(reason="only at full scale: make soak"))
