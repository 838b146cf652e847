"""Checks of content against its declared format (JSON, JSON Lines, Python, diff), and reading of its declared tags.

``schema_version`` declares a format: its name or media type, alone or with a version after a sign. A text that begins
as a patch is checked as a diff without a declaration; the finding is then a guess.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

_NAME: Final = re.compile(
    r"(?:(?:application|text)/(?:x-)?(?:[\w.-]+\+)?)?"
    r"(json[ _-]?5|[a-z]+(?:[ _-]lines)?)((?:[^a-z+]+v?[^a-z]*)?)(?:;.*)?"
)
_HUNK: Final = re.compile(r"@@ -\d+(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@")
_COMBINED: Final = re.compile(r"(@@@+)((?: -\d+(?:,\d{1,9})?)+) \+\d+(?:,(\d{1,9}))? @@@+")
_SIZE: Final = re.compile(r"-\d+(?:,(\d+))?")
_PATCH: Final = re.compile(r"diff --git |--- [^\n]*\n\+\+\+ |Index: [^\n]*\n={20}")
_CHANGE: Final = re.compile(
    r"old mode \d|new file mode \d|deleted file mode \d|rename from |copy from |Binary files? |Submodule |"
    r"GIT binary patch|Only in |Common subdirectories: |Files .* (?:differ|are identical)$|Cannot display: |"
    r"File .* is an? .* while file .* is an? |\* Unmerged path |Property changes on: |\*{15}|"
    r"\d+(?:,\d+)?[acd](?:\d+(?:,\d+)?)?$|[ad]\d+ \d+$"
)
"""Lines that tell a difference without a hunk: modes, renames, binary files, submodules, context, normal, ed diffs."""
_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[][{}]', re.DOTALL)
_CLOSES: Final = {"]": "[", "}": "{"}
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
    text = text.removeprefix("\ufeff")
    if match is not None and check is _python_fault and _is_other_python(match[2]):
        return None
    guessed = check is None
    if check is None and _PATCH.match(text):
        check = _diff_fault
    reason = None if check is None else check(text)
    return None if reason is None else Fault(reason, guessed)


def tags_of(text: str) -> list[str]:
    """Return the declared tags: field ``tags`` or ``terms`` of a JSON object, or such a line at the head of a text."""
    text = text.removeprefix("\ufeff")
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
    except RecursionError:  # nested deeper than Python reads
        return None if _is_balanced(text) else "not JSON: its brackets do not match"
    return None


def _is_balanced(text: str) -> bool:
    """Return whether each bracket outside of strings is closed by its own kind."""
    opened: list[str] = []
    for match in _BRACKET.finditer(text):
        sign = match[0]
        if sign in _CLOSES:
            if not opened or opened.pop() != _CLOSES[sign]:
                return False
        elif sign in "[{":
            opened.append(sign)
    return not opened


def _json_lines_fault(text: str) -> str | None:
    for number, line in enumerate(_lines(text), 1):
        fault = _json_fault(line) if line.strip() else None
        if fault is not None:
            return f"line {number} is {fault}"
    return None


def _is_other_python(version: str) -> bool:
    """Return whether a version is one of Python 2, or newer than ours: its syntax is not what we can read."""
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return False
    major, minor = numbers[0][0], numbers[0][1:] or (numbers[1] if len(numbers) > 1 else "0")
    return int(major) == 2 or (int(major), int(minor[:9])) > sys.version_info[:2]


def _python_fault(text: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        if error.msg.startswith("Missing parentheses in call to"):  # Python 2, and no other text
            return None
        return f"not Python: {error.msg} (line {error.lineno})"
    except (ValueError, RecursionError, MemoryError):
        return "not Python that can be read"
    return None


def _diff_fault(text: str) -> str | None:
    """Return why a text is no diff: no hunk or other change, or a hunk of another size than it states."""
    left: list[int] = []
    changes = not text.strip()  # two equal files have an empty diff
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
