"""Generated files: written, or compared with what is committed."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(page: Path, text: str) -> int:
    """Write a file, or with ``--check`` on the command line compare it; return the exit code."""
    if "--check" not in sys.argv[1:]:
        page.write_text(text, encoding="utf-8")
        return 0
    if page.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{page.parent.name}/{page.name} is out of date: run `make gen`\n")
    return 1
