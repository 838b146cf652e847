"""Regular expression matching for user-supplied patterns by RE2, in linear time (extra ``regex``).

Source: C-162, K-071; docs/decisions/0147.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable
from typing import Any, Final

from caliber.model.errors import ExtraNotInstalled, InvalidValue

_PROGRAM_BYTES: Final = 1 << 20
"""Memory limit of one pattern, program and states together: it bounds the time per character."""
_KEPT: Final = 256
_ESCAPED_C: Final = re.compile(r"\\+C")


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that returns whether the pattern occurs in a text.

    Raises: InvalidValue where it is no pattern, ExtraNotInstalled
    """
    search = _compiled(pattern).search
    return lambda text: search(_encoded(text)) is not None


def matches(pattern: str, text: str) -> bool:
    """Return whether a text has the pattern anywhere in it. Raises: InvalidValue, ExtraNotInstalled."""
    return _compiled(pattern).search(_encoded(text)) is not None


def _encoded(text: str) -> bytes:
    # Every str can be searched, lone surrogates included.
    return text.encode("utf-8", "surrogatepass")


@functools.lru_cache(maxsize=_KEPT)
def _compiled(pattern: str) -> Any:
    if importlib.util.find_spec("re2") is None:
        raise ExtraNotInstalled(feature="the operator ~", extra="regex")
    if _part_of_a_character(pattern):
        raise InvalidValue(field="pattern", reason=r"\C is refused: it stands for a part of a character")
    import re2

    options = re2.Options()
    options.log_errors = False  # it would write to stderr
    options.max_mem = _PROGRAM_BYTES
    try:
        return re2.compile(pattern.encode(), options)
    except UnicodeEncodeError:
        raise InvalidValue(field="pattern", reason="it holds half of a surrogate pair") from None
    except re2.error as error:
        message = error.args[0]
        reason = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
        raise InvalidValue(field="pattern", reason=reason) from None


def _part_of_a_character(pattern: str) -> bool:
    return any(found[0].count("\\") % 2 for found in _ESCAPED_C.finditer(pattern))
