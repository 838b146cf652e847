"""What programs hand over as a configuration: one, or the file of one."""

from __future__ import annotations

import os

from caliber.config import CaliberConfig
from caliber.dsl.checking import check_config
from caliber.dsl.loading import load_config
from caliber.model.errors import DTypeError

__all__ = ["ConfigSource", "config_of", "load_config"]

ConfigSource = CaliberConfig | str | os.PathLike[str]


def config_of(source: ConfigSource) -> CaliberConfig:
    """Return a configuration, read where it is a file's, its filters checked. Raises: MultipleErrors, DTypeError."""
    if isinstance(source, CaliberConfig):
        return check_config(source).config
    if isinstance(source, str | os.PathLike):
        return load_config(source)
    raise DTypeError(field="config", expected="a CaliberConfig or the path of one", got=type(source).__name__)
