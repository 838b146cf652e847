"""A run with workers ends with all its tests when a worker dies (tests/support/files_to_workers.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.prove

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "test_one": "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_many(n): pass\n",
    "test_two": "import os\ndef test_dies(): os._exit(3)\ndef test_later(): pass\n",
    "test_three": "def test_sound(): pass\n",
}


def test_a_worker_that_dies_after_whole_files_leaves_the_others_its_tests(tmp_path: Path) -> None:
    """Without the plugin the new worker waits for ever: for the file that the dead one was done with."""
    for name, content in MODULES.items():
        (tmp_path / f"{name}.py").write_text(content)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "xdist.plugin,tests.support.files_to_workers",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "test_two.py::test_dies" in done.stdout
    assert re.search(r"^1 failed, 8 passed in .*s$", done.stdout, re.MULTILINE), done.stdout
