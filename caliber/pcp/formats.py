"""Checks of content against its declared format (JSON, JSON Lines, Python, diff), and reading of its declared tags.

``schema_version`` declares a format: its name or media type, alone or with a version after a sign. A text that begins
as a patch is checked as a diff without a declaration; the finding is then a guess.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

_NAME: Final = re.compile(
    r"(?:(?:application|text)/(?:x-)?(?:[\w.-]+\+)?)?([a-z]+(?:[ _-]lines)?)(?:[^a-z+]+v?[^a-z]*)?(?:;.*)?"
)
_HUNK: Final = re.compile(r"@@ -\d+(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@")
_COMBINED: Final = re.compile(r"(@@@+)((?: -\d+(?:,\d{1,9})?)+) \+\d+(?:,(\d{1,9}))? @@@+")
_SIZE: Final = re.compile(r"-\d+(?:,(\d+))?")
_PATCH: Final = re.compile(r"diff --git |--- [^\n]*\n\+\+\+ |Index: [^\n]*\n={20}")
_CHANGE: Final = re.compile(
    r"old mode \d|new file mode \d|deleted file mode \d|rename from |copy from |Binary files .* differ|"
    r"GIT binary patch|Only in |Property changes on: |\*{15}|\d+(?:,\d+)?[acd]\d+(?:,\d+)?$"
)
"""Lines that change something without a hunk: modes, renames, binary files, context and normal diffs."""
_TAGS: Final = re.compile(r"^(?:tags|terms)\s*[:=]\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_HEAD_CHARS: Final = 2_000
"""Characters of a text in which a line of tags is looked for."""
_TAG_FIELDS: Final = ("tags", "terms")


class Fault(NamedTuple):
    """The reason why a text is not of a format; ``guessed``: no declaration names the format."""

    reason: str
    guessed: bool


def fault_of(text: str, declared: str) -> Fault | None:
    """Return why a text is not of its format; None if it is, or if it has none that is checked."""
    match = _NAME.fullmatch(declared.strip().casefold())
    check = None if match is None else _CHECKS.get(re.sub("[ _-]", "", match[1]))
    guessed = check is None
    if check is None and _PATCH.match(text):
        check = _diff_fault
    reason = None if check is None else check(text)
    return None if reason is None else Fault(reason, guessed)


def tags_of(text: str) -> list[str]:
    """Return the declared tags: field ``tags`` or ``terms`` of a JSON object, or such a line at the head of a text."""
    if text.lstrip().startswith("{"):
        try:
            body = json.loads(text, parse_int=str)
        except (ValueError, RecursionError):
            return []
        return [str(tag) for name in _TAG_FIELDS for tag in _items(body.get(name))]
    match = _TAGS.search(text[:_HEAD_CHARS])
    return [] if match is None else [tag.strip() for tag in match[1].strip("[] ").split(",") if tag.strip()]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _lines(text: str) -> list[str]:
    """Return the lines of a text; only a line feed, or a carriage return with it, ends one in these formats."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def _json_fault(text: str) -> str | None:
    try:
        json.loads(text, parse_int=str)  # JSON has no limit to the digits of a number, Python has
    except ValueError as error:
        return f"not JSON: {error}"
    except RecursionError:
        return "not JSON that can be read: nested too deeply"
    return None


def _json_lines_fault(text: str) -> str | None:
    for number, line in enumerate(_lines(text), 1):
        fault = _json_fault(line) if line.strip() else None
        if fault is not None:
            return f"line {number} is {fault}"
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
    """Return why a diff changes nothing: no hunk or other change, or a hunk of another size than it states."""
    left: list[int] = []
    changes = False
    for number, line in enumerate(_lines(text), 1):
        if any(left):
            signs = line[: len(left) - 1].ljust(len(left) - 1)
            if line.startswith("\\"):  # no newline at the end of the file
                continue
            if signs.strip("+- "):
                return f"not a diff: line {number} belongs to no hunk"
            # The old files first, then the new one: a line that is nowhere removed is in the new file.
            removed = "-" in signs
            held = [sign == ("-" if removed else " ") for sign in signs]
            left = [count - is_in for count, is_in in zip(left, [*held, not removed], strict=True)]
            if min(left) < 0:
                return f"not a diff: the hunk before line {number} has another size than it states"
        elif (match := _HUNK.match(line)) is not None:
            left, changes = [_size(match[1]), _size(match[2])], True
        elif (match := _COMBINED.match(line)) is not None:
            left, changes = [*map(_size, _SIZE.findall(match[2])), _size(match[3])], True
        elif _CHANGE.match(line):
            changes = True
    if any(left):
        return "not a diff: its last hunk is cut off"
    return None if changes else "not a diff: it has no hunk"


def _size(stated: str | None) -> int:
    """Return the lines that a range of a hunk states; a range without a number has one."""
    return int(stated) if stated else 1


_CHECKS: Final[dict[str, Callable[[str], str | None]]] = {
    "json": _json_fault,
    "jsonl": _json_lines_fault,
    "ndjson": _json_lines_fault,
    "jsonlines": _json_lines_fault,
    "python": _python_fault,
    "py": _python_fault,
    "diff": _diff_fault,
    "patch": _diff_fault,
}
