"""Generator of docs/python-api.md: the signature and docstring of every public function, handle, facet and result.

python tools/gen_api.py [--check]
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_origin

from gen_aio import named
from pages import write_or_check
from wrapping import COLUMNS, wrapped

import caliber
from caliber.api.caliber import Caliber
from caliber.api.subsystems import Facets
from caliber.memories.records import Records

PAGE = Path(__file__).resolve().parents[1] / "docs" / "python-api.md"
INTRODUCTION = """\
# Python API reference

Every public call with its signature and docstring, written by `tools/gen_api.py`. [The Python API](api.md) has
examples. `caliber.aio` has the same calls with `await`. An `Id` is a `UUID` or its text; `caliber.deadline`
bounds the time of every call. `InputError kinds` are the errors of wrong arguments.
"""
FUNCTIONS = ("open", "create", "load_config", "migrate", "restore", "purge", "deadline")
VALUES = (caliber.Principal, caliber.EntityRef, caliber.ToolCall, caliber.ContextWindow, caliber.SearchResult)


class _Text:
    """An annotation whose ``repr`` is its text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _annotated(annotation: Any) -> Any:
    return _Text(annotation) if isinstance(annotation, str) else annotation


def signature(name: str, function: Any) -> str:
    """Return a call as it is written, one parameter a line where it is longer than a line."""
    found = inspect.signature(function)
    parameters = [each.replace(annotation=_annotated(each.annotation)) for each in found.parameters.values()]
    if parameters and parameters[0].name in ("self", "cls"):
        del parameters[0]
    made = found.replace(parameters=parameters, return_annotation=_annotated(found.return_annotation))
    line = f"{name}{made}".replace("Ellipsis", "...")
    if len(line) <= COLUMNS:
        return line
    parts = [str(each).replace("Ellipsis", "...") for each in parameters]
    keyword = next((at for at, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
    if keyword is not None:
        parts.insert(keyword, "*")
    returned = "" if found.return_annotation is found.empty else f" -> {made.return_annotation!r}"
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returned}"])


def text_of(thing: Any) -> str:
    """Return a docstring as Markdown: one line a paragraph, wrapped anew, its code in single ticks, without sources."""
    plain = re.sub(r"\s*\bSource: .*", "", inspect.cleandoc(thing.__doc__ or ""), flags=re.DOTALL)
    paragraphs = plain.replace("``", "`").split("\n\n")
    return "\n\n".join("\n".join(wrapped(" ".join(each.split()))) for each in paragraphs if each)


def attribute(name: str, member: property) -> str:
    """Return the entry of a property."""
    return "\n".join(wrapped(f"`{name}`: {' '.join(text_of(member).split())}")) + "\n"


def call(name: str, function: Any, given: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Yield the entry of a function or method; ``given`` are the classes that its variables of types stand for."""
    written = signature(name, function).replace("builtins.", "")
    for variable, kind in given.items():
        written = re.sub(rf"\b{variable}\b", kind, written)
    yield f"### `{name}`\n"
    yield f"```python\n{written}\n```\n"
    yield f"{text_of(function)}\n"


def methods(kind: type) -> list[tuple[str, Any]]:
    """Return the public methods of a class in the order of their definition, those of its bases first."""
    order: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith("caliber."):
            order.update({name: None for name in vars(each) if not name.startswith("_")})
    found = ((name, inspect.getattr_static(kind, name)) for name in order)
    return [
        (name, getattr(kind, name))
        for name, member in found
        if inspect.isfunction(member) or isinstance(member, classmethod)
    ]


def properties(kind: type) -> list[tuple[str, property]]:
    """Return the public properties of a class by name."""
    return [
        (name, member)
        for name, member in inspect.getmembers(kind, lambda member: isinstance(member, property))
        if not name.startswith("_")
    ]


def returned(member: property) -> Any:
    """Return the class of a property's value."""
    assert member.fget is not None
    # Names that are imported for type checkers alone count too: such a class is loaded by its first use.
    name = member.fget.__annotations__["return"]
    return named(sys.modules[member.fget.__module__], name) if str(name).isidentifier() else None


def facet(prefix: str, member: property) -> Iterator[str]:
    """Yield the section of a facet, then those of the facets that it has."""
    kind = returned(member)
    yield f"## `{prefix}`\n"
    yield f"{text_of(member)}\n"
    inner = []
    for name, each in properties(kind):
        value = returned(each)
        if inspect.isclass(value) and value.__module__.startswith("caliber.") and methods(value):
            inner.append((f"{prefix}.{name}", each))
        else:
            yield attribute(f"{prefix}.{name}", each)
    bases = vars(kind).get("__orig_bases__", ())
    given = {
        variable.__name__: value.__name__
        for base in bases
        for variable, value in zip(get_origin(base).__parameters__, get_args(base), strict=True)
    }
    for name, function in methods(kind):
        yield from call(f"{prefix}.{name}", function, given)
    for name, each in inner:
        yield from facet(name, each)


def value_class(kind: type) -> Iterator[str]:
    """Yield the section of a class of values: its fields, properties and methods."""
    yield f"## `{kind.__name__}`\n"
    yield f"{text_of(kind)}\n"
    fields = [each.name for each in dataclasses.fields(kind)]
    yield "\n".join(wrapped(f"Fields: {', '.join(f'`{name}`' for name in fields)}.")) + "\n"
    for name, member in properties(kind):
        if name not in fields:
            yield attribute(name, member)
    for name, function in methods(kind):
        yield from call(name, function)


def page() -> str:
    """Return the page."""
    lines = [INTRODUCTION, "## Functions\n"]
    for name in FUNCTIONS:
        lines += call(f"caliber.{name}", getattr(caliber, name))
    lines.append("## `Caliber`\n")
    lines.append(f"{text_of(Caliber)}\n")
    facets = properties(Facets)
    for name, member in properties(Caliber):
        if name not in dict(facets):
            lines.append(attribute(f"memory.{name}", member))
    for name, function in methods(Caliber):
        lines += call(f"memory.{name}", function)
    for name, member in facets:
        lines += facet(f"memory.{name}", member)
    lines.append('## `memory.records("note")`\n')
    lines.append(f"{text_of(Records)}\n")
    for name, function in methods(Records):
        lines += call(f"records.{name}", function)
    lines.append("## `caliber.Tenants`\n")
    lines += call("caliber.Tenants", caliber.Tenants)
    for name, function in methods(caliber.Tenants):
        lines += call(f"tenants.{name}", function)
    for kind in VALUES:
        lines += value_class(kind)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def main() -> int:
    """Write the page, or with ``--check`` compare it; return the exit code."""
    return write_or_check(PAGE, page())


if __name__ == "__main__":
    sys.exit(main())
