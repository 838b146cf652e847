"""Generator of docs/errors.md: every message that code under caliber/ raises, by room, read from the syntax trees.

A message is a text that reaches the constructor of an error: written there, assigned to a name first, or passed through
a function that makes the error. ``{name}`` is a value that is filled in.

    python tools/gen_errors.py [--check]
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pages import write_or_check

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "errors.md"
WIDTH = 118
INTRODUCTION = """\
# Errors

Every error of CALIBER is a `CaliberError` with a stable `code`, a `kind` and fields in `context`; the tree is the
docstring of `caliber/model/errors`. A message names the field, the fault and the remedy; `{name}` is filled in. It
never contains content, keys or connection strings. `tools/gen_errors.py` writes this page from the code.
"""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Messages = set[tuple[str, str, str]]


def template(node: ast.AST) -> Iterator[str]:
    """Yield the texts that an expression may be, with the names of values in braces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{_name_of(part)}}}" for part in node.values
        )
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from (left + right for left in template(node.left) for right in template(node.right))
    elif isinstance(node, ast.IfExp):
        yield from (*template(node.body), *template(node.orelse))


def _name_of(part: ast.AST) -> str:
    value = part.value if isinstance(part, ast.FormattedValue) else part
    if isinstance(value, ast.Call) and value.args:
        return _name_of(value.args[0])
    if isinstance(value, ast.Call | ast.Subscript):
        return _name_of(value.func if isinstance(value, ast.Call) else value.value)
    if isinstance(value, ast.Attribute):
        return value.attr
    return value.id if isinstance(value, ast.Name) else "…"


def called(node: ast.Call) -> str:
    """Return the name of what is called, without its module or object."""
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


class Collector:
    """Messages of a tree of modules, and the functions that pass a parameter on to an error."""

    def __init__(self, root: Path) -> None:
        self._calls: list[tuple[str, Path, ast.Call, Function | None]] = []
        self._made_in: dict[str, set[Path]] = {}
        """The modules of functions that pass a parameter on, by the name of the function."""
        self._defined: dict[Path, set[str]] = {}
        self._assignments: dict[Function, dict[str, list[ast.expr]]] = {}
        classes: list[tuple[str, ast.ClassDef]] = []
        for path in sorted(root.rglob("*.py")):
            room = path.relative_to(root).parts[0].removesuffix(".py")
            tree = ast.parse(path.read_bytes())
            self._defined[path] = {node.name for node in ast.walk(tree) if isinstance(node, Function)}
            self._walk(room, path, tree, None, classes)
        errors = {"CaliberError", "UsageError"}
        size = 0
        while size != len(errors):
            size = len(errors)
            errors |= {each.name for _, each in classes if {getattr(base, "id", "") for base in each.bases} & errors}
        self.messages: Messages = {
            (room, each.name, text) for room, each in classes if each.name in errors and (text := declared(each))
        }
        self._passed: dict[str, set[tuple[int, str, str]]] = {name: set() for name in errors}
        size = -1
        while size != sum(map(len, self._passed.values())):
            size = sum(map(len, self._passed.values()))
            for room, path, node, function in self._calls:
                if called(node) in self._passed and not self._is_another(path, node):
                    self._called(room, path, node, function)

    def _is_another(self, path: Path, node: ast.Call) -> bool:
        """Return whether a module calls a function of its own that only has the name of one that passes on."""
        name = called(node)
        own = name in self._defined[path] and isinstance(node.func, ast.Name)
        return own and path not in self._made_in.get(name, {path})

    def _walk(
        self, room: str, path: Path, node: ast.AST, function: Function | None, classes: list[tuple[str, ast.ClassDef]]
    ) -> None:
        inside = node if isinstance(node, Function) else function
        if isinstance(node, ast.ClassDef):
            classes.append((room, node))
        if isinstance(node, ast.Call):
            self._calls.append((room, path, node, inside))
        for child in ast.iter_child_nodes(node):
            self._walk(room, path, child, inside, classes)

    def _called(self, room: str, path: Path, node: ast.Call, function: Function | None) -> None:
        name = called(node)
        passed = self._passed[name]
        is_error = name[0].isupper()
        for place, argument in [*enumerate(node.args), *((-1, each.value) for each in node.keywords)]:
            keyword = next((each.arg for each in node.keywords if each.value is argument), "")
            if is_error:
                if keyword not in ("", "reason", "message", "expected"):
                    continue
                errors = {name}
            else:
                errors = {error for at, word, error in passed if (keyword and word == keyword) or at == place >= 0}
            for error in errors:
                self._reached(room, path, error, argument, function)

    def _assigned(self, function: Function) -> dict[str, list[ast.expr]]:
        """Return the values that a function assigns, by the name of the variable."""
        if function not in self._assignments:
            found = self._assignments[function] = defaultdict(list)
            for node in ast.walk(function):
                if isinstance(node, ast.Assign):
                    for name in {getattr(each, "id", "") for each in node.targets}:
                        found[name].append(node.value)
        return self._assignments[function]

    def _reached(self, room: str, path: Path, error: str, argument: ast.AST, function: Function | None) -> None:
        for text in template(argument):
            if " " in text.strip():
                self.messages.add((room, error, " ".join(text.split())))
        if not isinstance(argument, ast.Name) or function is None:
            return
        for value in self._assigned(function).get(argument.id, ()):
            self._reached(room, path, error, value, None)
        parameters = [*function.args.posonlyargs, *function.args.args]
        shift = sum(parameter.arg in ("self", "cls") for parameter in parameters[:1])
        for at, parameter in enumerate((*parameters, *function.args.kwonlyargs)):
            if parameter.arg == argument.id and not function.name.startswith("__"):
                place = at - shift if at < len(parameters) else -2
                self._passed.setdefault(function.name, set()).add((place, parameter.arg, error))
                self._made_in.setdefault(function.name, set()).add(path)


def declared(node: ast.ClassDef) -> str:
    """Return the ``template`` that a class of errors declares; empty without one."""
    for each in node.body:
        if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "template":
            return next(template(each.value), "")
    return ""


def page(root: Path) -> str:
    """Return the page of all messages below ``root``."""
    messages = Collector(root).messages
    lines = [INTRODUCTION]
    for room in sorted({room for room, _, _ in messages}):
        lines.append(f"## {room}\n")
        for _, error, text in sorted(each for each in messages if each[0] == room):
            entry = f"- **{error}**: {text}"
            lines += textwrap.wrap(entry, WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Write the page, or with ``--check`` compare it; return the exit code."""
    return write_or_check(PAGE, page(REPOSITORY / "caliber"))


if __name__ == "__main__":
    sys.exit(main())
