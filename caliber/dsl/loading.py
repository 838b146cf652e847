"""Loader of a configuration file of any format, chosen by suffix (``.caliber``, ``.toml``, ``.json``).

The parser of the language is imported for ``.caliber`` files only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from caliber.config.faults import ConfigWarning
from caliber.config.loading import PROGRAM_SUFFIX, complete_file
from caliber.config.storage import MEMORY
from caliber.config.tree import CaliberConfig
from caliber.dsl.checking import Checked, check_config
from caliber.model.errors import DTypeError

_NOBODY_EMBEDS: Final = (
    "nothing is found by meaning: install the extra 'embed', or set embedding_provider to a kind of provider "
    "(none: without this warning)"
)


ConfigSource = CaliberConfig | str | os.PathLike[str]
"""A configuration, the path of one, or that of a store (``.db``), which has the profile ``chat_companion``."""
STORES: Final = (".db", ".sqlite", ".sqlite3")
"""Endings of stores; what a path with another ending is, ``open`` does not guess."""


def config_of(source: ConfigSource) -> CaliberConfig:
    """Return a configuration, read where it is a file's, its filters checked. Raises: MultipleErrors, DTypeError."""
    if isinstance(source, CaliberConfig):
        return check_config(source).config
    if isinstance(source, str | os.PathLike):
        if source == MEMORY or Path(source).suffix.lower() in STORES:
            from caliber.config import profiles  # few configurations are one of ours

            return profiles.chat_companion(source)
        return load_config(source)
    raise DTypeError(
        field="config", expected="a CaliberConfig, or the path of one or a store", got=type(source).__name__
    )


def load_config(path: str | os.PathLike[str], *, base: CaliberConfig | str | None = None) -> CaliberConfig:
    """Return the configuration in a ``.caliber``, ``.toml`` or ``.json`` file; ``check`` also returns its warnings.

    Relative paths in it start at the file's own folder, whatever the working directory. ``base`` is a configuration
    that supplies omitted settings, or the name of a profile, such as ``reference``; a file may name its profile itself:
    ``base = "reference"``.
    """
    return check(path, base=base).config


def check(path: str | os.PathLike[str], *, base: CaliberConfig | str | None = None) -> Checked:
    """Return the configuration in a file and its warnings; as ``load_config`` otherwise."""
    loaded: Any = path
    if not isinstance(loaded, str | os.PathLike) or not isinstance(os.fspath(loaded), str):
        raise DTypeError(field="path", expected="the path of a configuration", got=type(path).__name__)
    file = Path(path)
    if file.suffix.lower() != PROGRAM_SUFFIX:
        completed = complete_file(file, base=base)
        checked = check_config(CaliberConfig.from_mapping(completed.data))._replace(origin=completed.origin)
    else:
        from caliber.dsl.files import load_program

        checked = load_program(file, base=base)
    config, origin = checked.config, checked.origin
    embeds = config.embedding_provider is not None or config.vector is not None
    if origin is not None and not embeds and not any(path.startswith("embedding_provider") for path in origin.stated):
        doubt = ConfigWarning(_NOBODY_EMBEDS, "embedding_provider")
        checked = checked._replace(warnings=(*checked.warnings, doubt))
    return checked
