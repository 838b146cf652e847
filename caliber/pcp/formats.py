"""Checks of content against its declared format (JSON, Python, unified diff), and reading of its declared tags.

The format is declared by ``schema_version`` (``json``, ``python``, ``diff``, alone or with a version after a sign), or
by the first lines of a patch.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable
from typing import Any, Final

_NAME: Final = re.compile(r"[a-z]+")
_HUNK: Final = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_PATCH: Final = re.compile(r"diff --git |--- |Index: ")
_TAGS: Final = re.compile(r"^(?:tags|terms)\s*[:=]\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_HEAD_CHARS: Final = 2_000
"""Characters of a text in which a line of tags is looked for."""
_TAG_FIELDS: Final = ("tags", "terms")


def fault_of(text: str, declared: str) -> str | None:
    """Return why a text is not of its declared format; None if it is, or if no format is declared."""
    check = next((_CHECKS[name] for name in _NAME.findall(declared.casefold()) if name in _CHECKS), None)
    if check is None and _PATCH.match(text):
        check = _diff_fault
    return None if check is None else check(text)


def tags_of(text: str) -> list[str]:
    """Return the declared tags: field ``tags`` or ``terms`` of a JSON object, or such a line at the head of a text."""
    if text.lstrip().startswith("{"):
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            return []
        return [str(tag) for name in _TAG_FIELDS for tag in _items(body.get(name))]
    match = _TAGS.search(text[:_HEAD_CHARS])
    return [] if match is None else [tag.strip() for tag in match[1].strip("[] ").split(",") if tag.strip()]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _json_fault(text: str) -> str | None:
    try:
        json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    except RecursionError:
        return "not JSON that can be read: nested too deeply"
    return None


def _python_fault(text: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return f"not Python: {error.msg} (line {error.lineno})"
    except (ValueError, RecursionError, MemoryError):
        return "not Python that can be read"
    return None


def _diff_fault(text: str) -> str | None:
    """Return why a unified diff does not apply to anything: no hunk, or a hunk of another size than it states."""
    removed = added = hunks = 0
    for number, line in enumerate(text.splitlines(), 1):
        if removed > 0 or added > 0:
            removed -= line[:1] in ("-", " ", "")
            added -= line[:1] in ("+", " ", "")
            if line[:1] not in ("-", "+", " ", "\\", ""):
                return f"not a diff: line {number} belongs to no hunk"
            if removed < 0 or added < 0:
                return f"not a diff: the hunk before line {number} has another size than it states"
        elif (match := _HUNK.match(line)) is not None:
            removed, added = (1 if size is None else int(size) for size in match.groups())
            hunks += 1
    if removed > 0 or added > 0:
        return "not a diff: its last hunk is cut off"
    return None if hunks else "not a diff: it has no hunk"


_CHECKS: Final[dict[str, Callable[[str], str | None]]] = {
    "json": _json_fault,
    "python": _python_fault,
    "py": _python_fault,
    "diff": _diff_fault,
    "patch": _diff_fault,
}
