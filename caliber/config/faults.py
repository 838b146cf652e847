"""Faults of a configuration: made for one value, collected per section, or translated from pydantic's errors.

Source: C-078 to C-082, C-093, C-122 to C-124, K-007.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final, get_args

import pydantic
from pydantic import BaseModel, Tag
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from caliber.config.secret import NAME_CHARS, REDACTED, readable, show
from caliber.model.errors import (
    ConfigError,
    IncompatibleOptions,
    InvalidConfigValue,
    MissingRequired,
    ProviderNotSupported,
)
from caliber.model.lazy_dataclass import dataclass

Location = tuple[int | str, ...]

NOT_SHOWN: Final = "<not shown>"
_NAME_PATTERN: Final = re.compile(r"\^\[a-z_\]\[a-z0-9_\]\{0,(\d+)\}\$")
_REASONS: Final = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "string_unicode": "contains characters that are not valid Unicode text",
    "string_pattern_mismatch": "does not have the form that is expected here",
    "bool_type": "must be true or false",
    "model_type": "must be a table of knobs",
    "model_attributes_type": "must be a table of knobs",
    "dict_type": "must be a table",
    "mapping_type": "must be a table",
    "invalid_key": "names of knobs are text",
}
# Errors about the kind of a value: shown are only simple values, since a whole section may hold anything.
_STRUCTURAL: Final = frozenset(("model_type", "model_attributes_type", "dict_type", "mapping_type", "list"))


class Faults:
    """Collects every fault of one section, to be raised as one."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, str]] = []

    def missing(self, field: str) -> None:
        self.found.append(("missing", field, ""))

    def wrong(self, field: str, reason: str) -> None:
        self.found.append(("wrong", field, reason))

    def clash(self, field: str, other: str, reason: str) -> None:
        self.found.append((f"clash:{other}", field, reason))

    def fit(self, kind: StrEnum, **given: tuple[StrEnum, object]) -> None:
        """Add the faults of knobs that belong to one ``kind`` each and only to it; None means not given."""
        for name, (own, value) in given.items():
            if own is kind and value is None:
                self.missing(name)
            elif own is not kind and value is not None:
                self.clash(name, "kind", f"only {own} takes it")

    def done(self) -> None:
        if self.found:
            raise PydanticCustomError("section_faults", "the section contradicts itself", {"faults": self.found})


def path_of(location: Location) -> str:
    """Return a location as a dotted path, such as ``policies[0].rules[1].on``."""
    out = ""
    for part in location:
        if isinstance(part, int):
            out += f"[{part}]"
        elif part != "[key]":
            out += f".{readable(part)}" if out else readable(part)
    return out or "configuration"


def wrong(field: str, value: object, reason: str, *, shown: str | None = None) -> InvalidConfigValue:
    """Return the fault of one value, the value shortened and without secrets."""
    names = tuple(field.split("."))
    return InvalidConfigValue(field=field, value=show(value, names) if shown is None else shown, reason=reason)


def translate(error: pydantic.ValidationError, root: type[BaseModel]) -> list[ConfigError]:
    """Return every finding as an error of the project, in the order of the configuration."""
    out: list[ConfigError] = []
    for item in error.errors(include_url=False):
        out.extend(_translate(item, root))
    return out


def _translate(item: Any, root: type[BaseModel]) -> Iterator[ConfigError]:
    location: Location = item["loc"]
    kind: str = item["type"]
    field = path_of(_without_tags(location, root))
    context: dict[str, Any] = item.get("ctx", {})
    if kind == "missing":
        yield MissingRequired(field=field)
    elif kind == "extra_forbidden":
        shown = NOT_SHOWN if isinstance(item["input"], (str, bytes)) else None
        yield wrong(field, item["input"], _unknown(location, root), shown=shown)
    elif kind == "section_faults":
        for what, name, reason in context["faults"]:
            path = f"{field}.{name}"
            if what == "missing":
                yield MissingRequired(field=path)
            elif what == "wrong":
                yield wrong(path, _inner(item["input"], name), reason)
            else:
                other = what.removeprefix("clash:")
                yield IncompatibleOptions(option_a=path, option_b=f"{field}.{other}", reason=reason)
    elif kind == "unsupported":
        provider = context["provider"]
        yield ProviderNotSupported(f"{field} = {provider!r} is not supported: {item['msg']}", provider=provider)
    else:
        shown = REDACTED if kind == "secret" else None
        if isinstance(item["input"], (str, bytes)) and (kind in _STRUCTURAL or _is_free(location, root)):
            shown = NOT_SHOWN
        yield wrong(field, item["input"], _reason(item), shown=shown)


def _without_tags(location: Location, root: type[BaseModel]) -> Location:
    """Return a location without the name of the variant that pydantic puts behind a section with several."""
    field = root.model_fields.get(str(location[0])) if len(location) > 1 else None
    if field is not None and location[1] in variants_in(field):
        return (location[0], *location[2:])
    if len(location) > 2 and location[0] == "tenancy":
        # tenancy.directory.TAG.knob, tenancy.sources.NAME.TAG.knob
        at = 3 if location[1] == "sources" else 2
        if location[at : at + 1] in (("sqlite",), ("postgres",)):
            return (*location[:at], *location[at + 1 :])
    return location


def variants_in(field: FieldInfo) -> dict[str, type[BaseModel]]:
    """Return the sections that may stand for a knob, by their discriminating tag; empty for other knobs."""
    out: dict[str, type[BaseModel]] = {}
    for inner in get_args(field.annotation):
        kind, *metadata = get_args(inner) or (inner,)
        for mark in metadata:
            if isinstance(mark, Tag):
                out[mark.tag] = kind
    return out


def _reason(item: Any) -> str:
    context = item.get("ctx", {})
    if context.get("pattern") == r"\S":
        return "must not be empty"
    name = _NAME_PATTERN.match(context.get("pattern", ""))
    if name is not None:
        return f"must be at most {int(name[1]) + 1} lower-case letters, digits and _, with no digit first"
    if item["type"] == "too_long":
        return f"has {context['actual_length']} items, and at most {context['max_length']} are possible"
    if item["type"] == "too_short":
        return f"needs {context['min_length']} or more items"
    known = _REASONS.get(item["type"])
    if known is not None:
        return known
    text: str = item["msg"]
    return "must" + text.removeprefix("Input should") if text.startswith("Input should") else text


def _is_free(location: Location, root: type[BaseModel]) -> bool:
    """Return whether the last name was chosen by the user, as in a table of options."""
    return bool(location) and isinstance(location[-1], str) and section_at(location[:-1], root) is None


def _inner(value: Any, name: str) -> Any:
    return value.get(name) if hasattr(value, "get") else getattr(value, name, None)


def _unknown(location: Location, root: type[BaseModel]) -> str:
    section = section_at(location[:-1], root)
    if section is None:
        return "there is no such knob"
    from caliber.model.hints import did_you_mean  # for a text of a fault alone

    hint = did_you_mean(str(location[-1])[:NAME_CHARS], section.model_fields, mark="")
    return f"there is no such knob; {hint}" if hint else "there is no such knob"


def section_at(location: Location, root: type[BaseModel]) -> type[BaseModel] | None:
    """Return the section that a location leads to, or None when it leads elsewhere."""
    section: type[BaseModel] | None = root
    variants: dict[str, type[BaseModel]] = {}
    for part in location:
        if isinstance(part, int):
            continue
        if part in variants:
            section, variants = variants[part], {}
            continue
        if section is None or part not in section.model_fields:
            return None
        field = section.model_fields[part]
        section, variants = section_in(field.annotation), variants_in(field)
    return section


def section_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section inside an annotation such as ``X``, ``X | None`` or ``tuple[X, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = section_in(inner)
        if found is not None:
            return found
    return None


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """One doubt. Where it stands: the path of the knob, and for a ``.caliber`` file the line, as faults have it."""

    reason: str
    field: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    excerpt: str = ""

    def __str__(self) -> str:
        if not self.line:
            return f"{self.field}: {self.reason}" if self.field else self.reason
        text = f"{self.file}:{self.line}:{self.column}: warning: {self.reason}"
        return f"{text}\n{self.excerpt}" if self.excerpt else text
