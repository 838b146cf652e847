"""Data about one knob that ``caliber check --explain`` prints: meaning, range, default of each profile.

All parts are read from the declarations of the knobs and from the profiles.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from caliber.config import profiles
from caliber.config.faults import wrong
from caliber.config.knobs import FrozenMap
from caliber.config.manual.render import about, limits_of
from caliber.config.nested import plain, value_at
from caliber.config.profiles.agents import AGENT_PROFILES
from caliber.config.providers import ProviderConfig
from caliber.config.secret import LiteralDsn, SecretRef
from caliber.config.tree import DECLARED_IN_LISTS, CaliberConfig
from caliber.model.errors import MultipleErrors
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import format_duration

NAMED: Final = "NAME"
REPEATED: Final[Mapping[str, str]] = {
    "tenancy.directory": "storage",
    "tenancy.sources": "storage",
    "previous_embedding_provider": "embedding_provider",
    "summarization_provider": "embedding_provider",
}
"""Sections that have the knobs of another one, by path: they count as one knob, and those that they add."""
_NEAR: Final = 3
_WORDS: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    SecretRef: "env:NAME, the name of a variable",
}


@dataclass(frozen=True, slots=True)
class Declared:
    """A knob as it is declared: its path, and the section and field; a store has one for each adapter."""

    path: str
    section: type[BaseModel]
    field: FieldInfo


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a knob; ``value`` is None when it is not set, or there is no configuration."""

    key: str
    meaning: str
    accepts: str
    unit: str
    optional: bool
    deviation: str | None
    profiles: Mapping[str, Any]
    value: Any
    value_from: tuple[str, ...]
    why: str | None


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from sections_in(inner)


def declared(*, repeated: bool = False) -> dict[str, list[Declared]]:
    """Return every knob by its path, in the order of the file; a list of definitions is one knob.

    What a section repeats of another one is one knob too, unless ``repeated`` asks for its knobs.
    """
    out: dict[str, list[Declared]] = {}

    def walk(section: type[BaseModel], above: str, same: str | None = None) -> None:
        for name, field in section.model_fields.items():
            path = f"{above}{name}"
            if same is not None and any(f"{known}.".startswith(f"{same}.{name}.") for known in out):
                continue
            repeats = None if repeated else REPEATED.get(path)
            inner = [] if name in DECLARED_IN_LISTS else list(sections_in(field.annotation))
            if repeats is not None or not inner:
                out.setdefault(path, []).append(Declared(path, section, field))
            named = f"{NAMED}." if "FrozenMap" in str(field.annotation) else ""
            for kind in inner:
                walk(kind, f"{path}.{named}", repeats or (f"{same}.{name}" if same else None))

    walk(CaliberConfig, "")
    return out


def below(key: str) -> list[str]:
    """Return the knobs of a section, or none when it is no section."""
    return [path for path in declared(repeated=True) if path.startswith(f"{key}.")]


def explain(key: str, config: CaliberConfig | None = None) -> Explanation:
    """Return the explanation of the knob at a dotted path, with its value in a configuration.

    Raises: InvalidConfigValue with a suggestion, when there is no such knob.
    """
    known = declared(repeated=True)
    path = _general(key)
    data = None if config is None else config.to_mapping()
    value = value_at(data, key)
    in_profiles = _profile_values(key, config)
    if path not in known and (value is not None or in_profiles):
        path = path.rpartition(".")[0]  # an entry of a table
    if path not in known:
        near = _nearest(key, known)
        reason = f"there is no such knob; did you mean {' or '.join(near)}?" if near else "there is no such knob"
        raise wrong("--explain", key, reason)
    one = _of_the_store(known[path], config)
    given_by = tuple(name for name, given in in_profiles.items() if value is not None and given == value)
    facts = about(one.field)
    annotation = one.field.annotation if path == _general(key) else get_args(one.field.annotation)[0]
    # A profile counts as where a value comes from when it is the reference's, or was changed for this reason.
    why = next((_why(name, key) for name in given_by if _why(name, key)), None)
    return Explanation(
        key=key,
        meaning=str(one.field.description),
        accepts=limits_of(one.field) or _shape(annotation),
        unit=facts["unit"],
        optional=not one.field.is_required(),
        deviation=profiles.DEVIATIONS.get(key),
        profiles=in_profiles,
        value=value,
        value_from=given_by,
        why=None if "reference" in given_by else why,
    )


def _shape(annotation: Any) -> str:
    """Return the form of a value in a file, for a knob without limits; "" for a text."""
    text = _shape_of(annotation)
    return "" if text == "text" else f"{text[:1].upper()}{text[1:]}." if not text.startswith("env:") else f"{text}."


def _shape_of(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _shape_of(inner[0])
    if origin in (Union, UnionType):
        kinds = dict.fromkeys(_shape_of(kind) for kind in inner if kind not in (NoneType, LiteralDsn))
        return " or ".join(kinds)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is tuple:
        if inner[-1] is Ellipsis:
            return f"a list of {_shape_of(inner[0])}"
        return f"[{', '.join(_shape_of(kind) for kind in inner)}]"
    if origin is FrozenMap:
        return f"a table of name = {_shape_of(inner[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return f"one of {', '.join(str(member.value) for member in annotation)}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"tables with {', '.join(annotation.model_fields)}"
    return _WORDS.get(annotation, "text")


def shown(value: Any, unit: str) -> str:
    """Return a value as a file has it: durations with their unit, texts as they are."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if unit == "ms" and isinstance(value, int):
        return format_duration(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {shown(item, '')}" for name, item in value.items()) or "{}"
    if isinstance(value, list):
        return f"[{', '.join(shown(item, '') for item in value)}]"
    return repr(value) if isinstance(value, str) and not value.strip() else str(value)


def _general(key: str) -> str:
    """Return a path with the names of data sources, and of who has rights, left open, as knobs are declared."""
    parts = key.split(".")
    if parts[:2] in (["tenancy", "sources"], ["access", "rights"]) and len(parts) > 2:
        parts[2] = NAMED
    return ".".join(parts)


def _nearest(key: str, known: Mapping[str, object]) -> list[str]:
    last = key.rpartition(".")[2]
    same = [path for path in known if path.rpartition(".")[2] == last]
    same = same or [path for path in known if key.startswith((f"{path}.", f"{path}_"))]
    if not same:
        names = {path.rpartition(".")[2] for path in known}
        near = difflib.get_close_matches(last, sorted(names), n=1)
        same = [path for path in known if near and path.rpartition(".")[2] == near[0]]
    close = difflib.get_close_matches(key, [*same, *(path for path in known if path not in same)], n=_NEAR)
    return [path for path in close if path in same] or same[:_NEAR] or close[:1]


def _of_the_store(found: list[Declared], config: CaliberConfig | None) -> Declared:
    if config is None:
        return found[0]
    return next((one for one in found if isinstance(config.storage, one.section)), found[0])


def _why(profile: str, key: str) -> str | None:
    """Return why a profile changed a knob, or which of its entries and why; None where it did not."""
    changes = AGENT_PROFILES[profile].changes if profile in AGENT_PROFILES else {}
    if key in changes:
        return changes[key].why
    entries = [path for path in changes if path.startswith(f"{key}.")]
    return " ".join(f"{path.removeprefix(f'{key}.')}: {changes[path].why}" for path in entries) or None


def _profile_values(key: str, config: CaliberConfig | None) -> dict[str, Any]:
    """Return the value of a knob in each profile, made for the same database and embedding provider."""
    if config is None:
        made = _profiles("sqlite", embed_provider())
    else:
        made = _profiles(config.storage.adapter, config.embedding_provider)
    values = {name: value_at(data, key) for name, data in made.items()}
    return {name: value for name, value in values.items() if value is not None}


def embed_provider() -> ProviderConfig | None:
    """Return the provider that profiles have in this installation."""
    return profiles.reference("store.db").embedding_provider


@functools.cache
def _profiles(adapter: str, provider: ProviderConfig | None) -> dict[str, dict[str, Any]]:
    given: dict[str, Any] = {"embedding_provider": plain(provider), "storage.adapter": adapter}
    store = "env:CALIBER_DSN" if adapter == "postgres" else "store.db"
    out = {}
    for name, make in profiles.PROFILES.items():
        try:
            out[name] = make(store, **given).to_mapping()
        except MultipleErrors:  # such as a provider without dimensions: no profile is made for it
            continue
    return out
