"""Configurations from files, by their suffix. The parser is imported only for files that need it."""

from __future__ import annotations

import os
from pathlib import Path

from caliber.config.loading import PROGRAM_SUFFIX, load_config_file
from caliber.config.tree import CaliberConfig
from caliber.dsl.checking import Checked, check_config


def load_config(path: str | os.PathLike[str], *, base: CaliberConfig | str | None = None) -> CaliberConfig:
    """Return the configuration in a ``.caliber``, ``.toml`` or ``.json`` file; what is doubtful, ``check`` returns.

    Relative paths in it lead from the file's own folder, wherever the program was started. ``base`` is a configuration
    that holds what the file leaves out, or the name of a profile, such as ``reference``.
    Raises: MultipleErrors with every fault.
    """
    return check(path, base=base).config


def check(path: str | os.PathLike[str], *, base: CaliberConfig | str | None = None) -> Checked:
    """Return the configuration in a file and what is doubtful in it; as ``load_config`` otherwise."""
    from caliber.dsl.bases import base_of

    file = Path(path)
    left_out = base_of(base)
    if file.suffix.lower() != PROGRAM_SUFFIX:
        return check_config(load_config_file(file, base=left_out))
    from caliber.dsl.files import load_program

    return load_program(file, base=left_out)
