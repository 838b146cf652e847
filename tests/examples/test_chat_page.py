"""The page on chat agents: its blocks run as printed, in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "chat-agent.md").read_text(encoding="utf-8")
CODE = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


def test_the_blocks_run_as_printed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for printed in ("add works at Feedzai", "['lives in Porto']", "'assistant', 'tool']", "{'answer': 'I read "):
        assert printed in done.stdout


def test_the_repository_names_the_page_and_the_example() -> None:
    assert "docs/chat-agent.md" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "../examples/chat.py" in PAGE
