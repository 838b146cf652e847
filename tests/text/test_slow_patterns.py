"""Regular expressions of the rooms that read users' text, on hostile inputs made from the expressions themselves."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Iterator
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

_REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT)
_MANY = 8
"""The count from which on a repetition may be long."""
_VARIANTS = 64
_DEEPEST = 6
_BREAKERS = ("\x00", "\n\x00")
_CHARS = "a 1A'\"-.,\n\t(…é"


# --- the patterns of rooms ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """The module that holds a pattern, the name that it has there, and whether it is tried at one place only."""

    module: str
    name: str
    anchored: bool


def patterns_of(rooms: tuple[str, ...]) -> dict[re.Pattern[str], Place]:
    """Return every compiled pattern of these packages, by global, class and container; and literals given to ``re``."""
    found: dict[re.Pattern[str], Place] = {}
    for name in _modules(rooms):
        module = importlib.import_module(name)
        tree = ast.parse(inspect.getsource(module))
        uses = _uses(tree)
        for key, value in vars(module).items():
            if isinstance(value, type) and value.__module__ != name:
                continue
            for pattern, inner in _held(value, key, set()):
                found.setdefault(pattern, Place(name, inner, uses.get(inner, {"search"}) <= _AT_ONE_PLACE))
        for pattern, method in _literal(tree):
            found.setdefault(pattern, Place(name, pattern.pattern[:30], method in _AT_ONE_PLACE))
    return found


def _modules(rooms: tuple[str, ...]) -> Iterator[str]:
    for room in rooms:
        package = importlib.import_module(room)
        yield room
        for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{room}."):
            yield module.name


_AT_ONE_PLACE = {"match", "fullmatch"}
_ANYWHERE = {"search", "sub", "subn", "split", "findall", "finditer"}


def _uses(tree: ast.Module) -> dict[str, set[str]]:
    """Return the methods that a module calls on each name: "_WORD.match(...)", "rule.pattern.match(...)"."""
    uses: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _AT_ONE_PLACE | _ANYWHERE:
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            uses.setdefault(name, set()).add(node.attr)
    return uses


def _held(value: Any, name: str, seen: set[int], depth: int = 0) -> Iterator[tuple[re.Pattern[str], str]]:
    """Yield the patterns in a value, with their names: containers and objects of the package are looked into."""
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            yield value, name
        return
    if depth > _DEEPEST or id(value) in seen or isinstance(value, str | bytes | int | float):
        return
    seen.add(id(value))
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inner = [("", each) for pair in value.items() for each in pair]
    elif isinstance(value, list | tuple | set | frozenset):
        inner = [("", each) for each in value]
    elif isinstance(value, type):
        inner = list(vars(value).items())
    elif type(value).__module__.startswith("caliber."):
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        inner = [(each.name, getattr(value, each.name)) for each in fields]
        inner += list(getattr(value, "__dict__", {}).items())
    for key, each in inner:
        yield from _held(each, key, seen, depth + 1)


def _literal(tree: ast.Module) -> Iterator[tuple[re.Pattern[str], str]]:
    """Yield the patterns that calls of ``re`` compile from a literal, and the method that is called."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _AT_ONE_PLACE | _ANYWHERE
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        ):
            folds = any(each in ast.unparse(node) for each in ("_I)", "IGNORECASE"))
            yield re.compile(node.args[0].value, re.IGNORECASE if folds else 0), node.func.attr


# --- hostile inputs ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Hostile:
    """A text of any size: a beginning, a part that is repeated, and an end that fits nothing."""

    head: str
    part: str
    tail: str

    def text(self, size: int) -> str:
        """Return the text of about so many characters."""
        return self.head + self.part * max(1, size // len(self.part)) + self.tail


def hostile_inputs(pattern: re.Pattern[str]) -> set[Hostile]:
    """Return the inputs that make a backtracking matcher try again and again, from the pattern's own tree."""
    tree = _parser.parse(pattern.pattern, pattern.flags)
    made: set[Hostile] = set()
    whole = _sample(tree)
    for head, item in _repetitions(tree, ""):
        for body in _variants(item):
            if not body:
                continue
            for breaker in _BREAKERS:
                made.add(Hostile(head, body, breaker))
            if head:
                made.add(Hostile("", head + body, _BREAKERS[1]))
        if head:
            made.add(Hostile("", head, _BREAKERS[0]))
    if whole:
        made.add(Hostile("", whole, _BREAKERS[0]))
    return made


def _repetitions(tree: Any, head: str) -> Iterator[tuple[str, Any]]:
    """Yield each long repetition of a tree, behind the text that leads to it."""
    for op, value in tree:
        if op in _REPEATS:
            _, most, item = value
            if most is ops.MAXREPEAT or most >= _MANY:
                yield head, item
            yield from _repetitions(item, head)
        elif op is ops.BRANCH:
            for branch in value[1]:
                yield from _repetitions(branch, head)
        elif op is ops.SUBPATTERN:
            yield from _repetitions(value[3], head)
        elif op is ops.ATOMIC_GROUP:
            yield from _repetitions(value, head)
        elif op in (ops.ASSERT, ops.ASSERT_NOT):
            yield from _repetitions(value[1], head)
        head += _sample([(op, value)])


def _variants(tree: Any) -> list[str]:
    """Return texts that a tree matches: one for each alternative, each option with and without."""
    out = [""]
    for op, value in tree:
        out = list(dict.fromkeys(before + after for before in out for after in _options(op, value)))[:_VARIANTS]
    return out


def _options(op: Any, value: Any) -> list[str]:
    if op is ops.BRANCH:
        return list(dict.fromkeys(each for branch in value[1] for each in _variants(branch)))
    if op is ops.SUBPATTERN:
        return _variants(value[3])
    if op is ops.ATOMIC_GROUP:
        return _variants(value)
    if op in _REPEATS:
        least, _, item = value
        inner = _variants(item)
        return [one * max(least, 1) for one in inner] + ([""] if least == 0 else [])
    if op is ops.IN:
        return [char for char in _CHARS if _fits(value, char)][:4] or [_sample([(op, value)])]
    return [_sample([(op, value)])]


def _sample(tree: Any) -> str:
    """Return the shortest text that a tree matches, as far as its assertions allow one."""
    out = ""
    for op, value in tree:
        if op is ops.LITERAL:
            out += chr(value)
        elif op is ops.NOT_LITERAL:
            out += next(char for char in _CHARS if char != chr(value))
        elif op is ops.ANY:
            out += "a"
        elif op is ops.IN:
            out += _char(value)
        elif op is ops.BRANCH:
            out += min((_sample(branch) for branch in value[1]), key=len)
        elif op is ops.SUBPATTERN:
            out += _sample(value[3])
        elif op is ops.ATOMIC_GROUP:
            out += _sample(value)
        elif op in _REPEATS:
            out += _sample(value[2]) * value[0]
    return out


def _char(items: Any) -> str:
    for char in _CHARS:
        if _fits(items, char):
            return char
    for op, value in items:
        if op is ops.LITERAL:
            return chr(value)
        if op is ops.RANGE:
            return chr(value[0])
    return "\u0001"


_CATEGORIES = {
    ops.CATEGORY_DIGIT: str.isdigit,
    ops.CATEGORY_NOT_DIGIT: lambda char: not char.isdigit(),
    ops.CATEGORY_SPACE: str.isspace,
    ops.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    ops.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    ops.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}


def _fits(items: Any, char: str) -> bool:
    negated = bool(items) and items[0][0] is ops.NEGATE
    hit = any(
        (op is ops.LITERAL and chr(value) == char)
        or (op is ops.RANGE and value[0] <= ord(char) <= value[1])
        or (op is ops.CATEGORY and _CATEGORIES[value](char))
        for op, value in items
    )
    return hit != negated


# --- measure -----------------------------------------------------------------------------------------


def seconds(pattern: re.Pattern[str], text: str, *, anchored: bool) -> float:
    """Return the CPU time of finding all matches of a pattern in a text, or the one at its beginning."""
    began = time.thread_time()
    if anchored:
        pattern.match(text)
    else:
        for _ in pattern.finditer(text):
            pass
    return time.thread_time() - began


def slow_at(
    pattern: re.Pattern[str], hostile: Hostile, longest: int, most_s: float, *, anchored: bool
) -> tuple[int, float] | None:
    """Return the size up to ``longest`` at which a pattern takes more than ``most_s``, and the time; or None.

    The size grows by a quarter, so that a pattern of exponential time is found and not waited for. Linear time is not
    slow: twice the text must take much more than twice the time.
    """
    size = min(longest, 16)
    while True:
        text = hostile.text(size)
        if seconds(pattern, text, anchored=anchored) > most_s:
            taken, half = (
                min(seconds(pattern, each, anchored=anchored) for _ in range(3))
                for each in (text, hostile.text(size // 2))
            )
            return (size, taken) if taken > most_s and taken > _SUPERLINEAR * half else None
        if size >= longest:
            return None
        size = min(longest, size * 5 // 4)


_SUPERLINEAR = 2.8


pytestmark = pytest.mark.prove

ROOMS = ("learning", "text", "dsl", "erasure", "search", "context", "importing", "cli")
SHORT, LONG, REPEATED = 64, 300, 22
"""Characters in which exponential time shows, and time that grows with a high power; repetitions of a long part."""
MOST_S = 0.05


def slow(pattern: re.Pattern[str], hostile: Hostile, *, anchored: bool = False) -> tuple[int, float] | None:
    longest = min(LONG, max(SHORT, REPEATED * len(hostile.part)))
    return slow_at(pattern, hostile, longest, MOST_S, anchored=anchored)


def test_no_pattern_takes_exponential_time() -> None:
    patterns = patterns_of(tuple(f"caliber.{room}" for room in ROOMS))
    assert len(patterns) > 200
    found = []
    for pattern, place in patterns.items():
        for hostile in sorted(hostile_inputs(pattern), key=str):
            if taken := slow(pattern, hostile, anchored=place.anchored):
                found.append(f"{place.module}.{place.name}: {taken[1]:.3f} s for {taken[0]} characters of {hostile}")
                break
    assert found == []


def test_hostile_inputs_find_the_patterns_that_are_known_to_be_slow() -> None:
    for known in (r"(a+)+$", r"(?:\w+\s?)*!", r"(?: for now| for \w+)*$", r"(?:.*,)*x", r"^(?:x|with my .+)*$"):
        pattern = re.compile(known)
        assert any(slow(pattern, each) for each in hostile_inputs(pattern)), known
    assert slow(re.compile(r"\w+\s"), Hostile("", "a", "!")) is None
