"""The door to the package ``tokenizers`` (extra ``embed``), which is imported when the first tokenizer is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def open_tokenizer(path: Path) -> Any:
    """Return the tokenizer described by a JSON file, without padding or truncation.

    Raises: ImportError without the package; whatever it raises for a file it cannot use.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
