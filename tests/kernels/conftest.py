"""The kernels as they are, built once for all tests that plant a fault in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kernels.native_builds import COMPILER, build


@pytest.fixture(scope="session")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("kernels") / "built"
    build(folder)
    return folder
