"""Language of ``.caliber`` files: parser, compiler and formatter of configurations, memories, rules and policies.

Source: C §2, decisions K-054 to K-072.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caliber.dsl.checking import Checked
    from caliber.dsl.files import check_text, compile_text
    from caliber.dsl.loading import check, load_config
    from caliber.dsl.parser import Parsed, parse, read
    from caliber.dsl.printer import format_text, render

_HOME = {
    "Checked": "checking",
    "Parsed": "parser",
    "check": "loading",
    "check_text": "files",
    "compile_text": "files",
    "format_text": "printer",
    "load_config": "loading",
    "parse": "parser",
    "read": "parser",
    "render": "printer",
}

__all__ = [
    "Checked",
    "Parsed",
    "check",
    "check_text",
    "compile_text",
    "format_text",
    "load_config",
    "parse",
    "read",
    "render",
]


def __getattr__(name: str) -> Any:
    # Programs that open a store from a TOML file import this package, and must not wait for the parser.
    if name not in _HOME:
        raise AttributeError(f"module 'caliber.dsl' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"caliber.dsl.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
