"""Configurations from files, by their suffix. The parser is imported only for files that need it."""

from __future__ import annotations

import os
from pathlib import Path

from caliber.config.loading import PROGRAM_SUFFIX, load_config_file
from caliber.config.tree import CaliberConfig


def load_config(path: str | os.PathLike[str]) -> CaliberConfig:
    """Return the configuration in a ``.caliber``, ``.toml`` or ``.json`` file.

    Relative paths in it lead from the file's own folder, wherever the program was started.
    Raises: MultipleErrors with every fault.
    """
    file = Path(path)
    if file.suffix.lower() != PROGRAM_SUFFIX:
        return load_config_file(file)
    from caliber.dsl.files import load_program

    return load_program(file)
