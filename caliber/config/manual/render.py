"""Export of a configuration as a complete, commented TOML or JSON file, and the comment texts of its knobs.

The file loads back unchanged. The comments are the declarations of the knobs; nothing is written twice.

Source: design section 8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from caliber.config.faults import section_in, wrong
from caliber.config.knobs import FOREVER, INT64_MAX, FrozenMap, Section
from caliber.config.nested import plain, value_at
from caliber.config.policies import PolicyConfig
from caliber.config.profiles.fitting import NAMES
from caliber.config.secret import LiteralDsn
from caliber.config.tree import DECLARED_IN_LISTS, CaliberConfig
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import format_duration

_HEADER: Final = """\
# A configuration of CALIBER that states every setting. "Here:" says why a profile has another value than the reference.
# Durations are written as 250ms, 30s, 15m, 1h, 7d or 2w. Secrets are never written here: env:NAME names a variable.
"""
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\f": "\\f", "\r": "\\r", "\n": "\\n"}
_UNSAFE: Final = re.compile(r'["\\\x00-\x1f\x7f]')


def render_json(config: CaliberConfig) -> str:
    """Return the configuration as an indented JSON document that reads back as the same configuration.

    Raises: InvalidConfigValue when the store's connection string may hold a password.
    """
    refuse_sealed(config)
    return json.dumps(config.to_mapping(), indent=2, ensure_ascii=False) + "\n"


def render_toml(config: CaliberConfig, reasons: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the configuration as a commented TOML document that reads back as the same configuration.

    ``reasons`` give, by path, the reason of a knob's value, such as ``profiles.reasons``.
    """
    refuse_sealed(config)
    lines = [_HEADER]
    lines.extend(_section(config, (), reasons))
    lines.extend(_policies(config.policies, reasons))
    lines.extend(_listed("memories", config.memories))
    lines.extend(_listed("injection_rules", config.injection_rules))
    return "\n".join(lines) + "\n"


def refuse_sealed(config: CaliberConfig) -> None:
    """Refuse to write a connection string that may hold a password. Raises: InvalidConfigValue."""
    dsn = getattr(config.storage, "dsn", None)
    if isinstance(dsn, LiteralDsn) and dsn.is_sealed:
        reason = "may hold a password and is not written to files: put it into a variable and name that as env:MY_DSN"
        raise wrong("storage.dsn", str(dsn), reason)


# --- sections and their knobs --------------------------------------------------------------------


def why(path: str, reasons: Mapping[str, str]) -> list[str]:
    """Return the comment with the reason of a knob's value: a line, or one for each entry that has a reason."""
    of_entries = (name for name in reasons if name.startswith(f"{path}."))
    of_itself = [f"Here: {reasons[path]}"] if path in reasons else []
    return [*of_itself, *(f"Here, {name.removeprefix(f'{path}.')}: {reasons[name]}" for name in of_entries)]


def _section(section: Section, path: tuple[str, ...], reasons: Mapping[str, str]) -> Iterator[str]:
    inner: list[tuple[str, FieldInfo]] = []
    for name, field in type(section).model_fields.items():
        if name in DECLARED_IN_LISTS and isinstance(section, CaliberConfig):
            if not getattr(section, name):
                yield from (f"# {meaning_of(field, [])}", f"{name} = []", "")
        elif section_in(field.annotation) is not None:
            inner.append((name, field))
        else:
            here = why(".".join((*path, name)), reasons)
            yield from _knob(name, field, getattr(section, name), here)
    for name, field in inner:
        value = getattr(section, name)
        if value is None:
            yield from _absent(field, (*path, name))
        elif isinstance(value, FrozenMap):
            for key, part in value.items():
                yield from ("", f"# {field.description}", f"[{'.'.join((*path, name, _key(key)))}]")
                yield from _section(part, (*path, name, _key(key)), reasons)
        else:
            yield from ("", f"# {field.description}", f"[{'.'.join((*path, name))}]")
            yield from _section(value, (*path, name), reasons)


def _absent(field: FieldInfo, path: tuple[str, ...]) -> Iterator[str]:
    """Describe a section that is not set, so that it can be written in without looking anything up."""
    yield from ("", f"# {field.description} Not set; its knobs would be:", f"# [{'.'.join(path)}]")
    kind = section_in(field.annotation)
    assert kind is not None
    inner: list[tuple[str, FieldInfo]] = []
    for name, knob in kind.model_fields.items():
        if section_in(knob.annotation) is not None:
            inner.append((name, knob))
        else:
            meaning = f"{knob.description} {_limits(knob, about(knob)['unit'])}".rstrip()
            yield from (f"#   {meaning}{'' if knob.is_required() else ' (optional)'}", f"# {name} =")
    for name, knob in inner:
        yield from _absent(knob, (*path, name, "NAME") if "FrozenMap" in str(knob.annotation) else (*path, name))


def _knob(name: str, field: FieldInfo, value: Any, here: list[str]) -> Iterator[str]:
    data, comments = told(field, value, here)
    yield from (f"# {line}" for line in comments)
    yield f"# {name} =" if data is None else f"{name} = {_top_value(data, field)}"


def told(field: FieldInfo, value: Any, here: list[str]) -> tuple[Any, list[str]]:
    """Return a knob's value as plain data, and the comments on it; ``here`` are those on its value."""
    data = FOREVER if value is None and field.is_required() else plain(value)
    return data, [meaning_of(field, data), *here]


def meaning_of(field: FieldInfo, value: Any) -> str:
    """Return the meaning and limits of a knob, as one line."""
    limits = limits_of(field)
    meaning = f"{field.description} {limits}" if limits else f"{field.description}"
    return f"{meaning} (optional, not set)" if not field.is_required() and value is None else meaning


def about(field: FieldInfo) -> dict[str, Any]:
    """Return the declaration of a knob beside its meaning: source, unit, source value."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def limits_of(field: FieldInfo) -> str:
    """Return the limits of a knob, as one sentence, or "" where its type has none."""
    return _limits(field, about(field)["unit"])


def _limits(field: FieldInfo, unit: str) -> str:
    """Return the limits of the knob, read from its type: ``One of a, b.``, ``1 to 20 tokens.``, ``Above 0.``"""
    choices = _choices(field.annotation)
    if choices:
        return f"One of {', '.join(choices)}."
    if field.annotation is bool:
        return "True or false."
    low, high = _bounds(field)
    if unit == "ms" and low in ("1", "above 0"):
        low = ""
    if low and high:
        text = f"{low} to {high}"
    elif low:
        text = low if low.startswith("above") else f"{low} or more"
    else:
        text = f"at most {high}" if high else ""
    if unit == "ms":
        text = f"a duration, {text}" if text else "a duration"
    elif unit:
        text = f"{text} {unit}" if text else f"in {unit}"
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _bounds(field: FieldInfo) -> tuple[str, str]:
    low = high = ""
    for limit in field.metadata:
        if isinstance(limit, Ge) and limit.ge != -INT64_MAX:
            low = str(limit.ge)
        elif isinstance(limit, Gt):
            low = str(limit.gt + 1) if field.annotation is int else f"above {limit.gt}"  # type: ignore[operator]
        elif isinstance(limit, Le) and limit.le != INT64_MAX:
            high = str(limit.le)
        elif isinstance(limit, Lt):
            high = f"below {limit.lt}"
    return low, high


def _choices(annotation: Any) -> list[str]:
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return [member.value for member in annotation]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return []


# --- policies ------------------------------------------------------------------------------------


def _policies(policies: tuple[PolicyConfig, ...], reasons: Mapping[str, str]) -> Iterator[str]:
    if not policies:
        return
    yield from ("", f"# {CaliberConfig.model_fields['policies'].description}")
    yield from (f"# {line}" for line in why("policies", reasons))
    for policy in policies:
        yield from ("", "[[policies]]", f"name = {render_value(policy.name)}")
        if not policy.rules:
            yield "rules = []"
        for rule in policy.rules:
            yield from ("", "[[policies.rules]]", f"on = {render_value(rule.on.value)}")
            if rule.cron is not None:
                yield f"cron = {render_value(rule.cron)}"
            yield "actions = ["
            for action in rule.actions:
                data = plain(action)
                if "older_than_ms" in data:
                    data["older_than_ms"] = format_duration(data["older_than_ms"])
                yield f"  {render_value(data)},"
            yield "]"


def _listed(name: str, sections: tuple[Section, ...]) -> Iterator[str]:
    """Write a list of definitions, one table each."""
    if sections:
        yield from ("", f"# {CaliberConfig.model_fields[name].description}")
    for section in sections:
        yield from ("", f"[[{name}]]")
        for key, value in _times(section).items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                yield from (f"{key} = [", *(f"  {render_value(item)}," for item in value), "]")
            else:
                yield f"{key} = {render_value(value)}"


def _times(section: Section) -> dict[str, Any]:
    """Return a section as plain data, with times in words; empty parts are left out."""
    out: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if value is None or (not field.is_required() and (value == () or value is False)):
            continue
        if isinstance(value, Section):
            out[name] = _times(value)
        elif isinstance(value, tuple) and any(isinstance(item, Section) for item in value):
            out[name] = [_times(item) for item in value]
        else:
            out[name] = format_duration(value) if about(field)["unit"] == "ms" else plain(value)
    return out


# --- values --------------------------------------------------------------------------------------


def _top_value(data: Any, field: FieldInfo) -> str:
    if isinstance(data, int) and about(field)["unit"] == "ms":
        return render_value(format_duration(data))
    if isinstance(data, str) and "\n" in data.strip("\n"):
        body = "\n".join(_UNSAFE.sub(_escape, line) for line in data.split("\n"))
        return f'"""\n{body}"""'
    return render_value(data)


def render_value(data: Any) -> str:
    """Return a plain value as TOML writes it."""
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, str):
        return f'"{_UNSAFE.sub(_escape, data)}"'
    if isinstance(data, Mapping):
        items = ", ".join(f"{_key(key)} = {render_value(value)}" for key, value in data.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(data, (list, tuple)):
        return f"[{', '.join(render_value(item) for item in data)}]"
    return repr(data)


def _key(key: str) -> str:
    return key if _BARE_KEY.match(key) else render_value(key)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return _ESCAPES.get(char) or f"\\u{ord(char):04x}"


HEADER: Final = (
    "A configuration of CALIBER. `caliber check` sums it up, `caliber check --explain KEY` explains any setting,",
    "`caliber init --full` writes all of them out. Durations: 250ms, 30s, 15m, 1h, 7d, 2w.",
)
BASE: Final = f"The profile that supplies what this file omits: {', '.join(NAMES)}."
EMBEDDING: Final = (
    "Vectors to find texts by meaning: static, minilm (both on this machine), openai, voyage, ollama, none."
)
SUMMARIES: Final = "Summaries: extractive (on this machine, no language model), openai, anthropic, ollama, none."
BUDGET: Final = "Longest context window, in tokens."
STORE: Final = "The store: one SQLite file, relative to this file."
TENANCY: Final = "A store for each tenant, in the database of [storage], or in the folder tenants beside its file."
PRINCIPAL: Final = (
    "The principal of a handle that is opened without one: the application acts for the user of a task or call."
)
_POSTGRES: Final = 'In PostgreSQL: adapter = "postgres" and dsn = "env:NAME", a variable that holds the address.'
_EXAMPLES: Final = (
    ("How long records of operation stay: a duration, or forever.", "retention", ("windows_ms", "events_ms")),
    ("Most memory that the store may take, in bytes.", "resident", ("resident_bytes",)),
)


@dataclass(frozen=True, slots=True)
class Short:
    """The choices of a short configuration file, and the configuration that they make."""

    profile: str
    store: str
    embedding: str
    summaries: str
    config: CaliberConfig

    @property
    def data(self) -> dict[str, Any]:
        """The nested data of the file."""
        data: dict[str, Any] = {
            "base": self.profile,
            "embedding_provider": self.embedding,
            "summarization_provider": self.summaries,
            "token_budget": self.config.token_budget,
            "storage": {"adapter": "sqlite", "path": self.store},
            "principal": {"kind": self.config.principal.kind.value, "id": self.config.principal.id},
        }
        if self.config.tenancy is not None:
            data["tenancy"] = {"new_tenants": self.config.tenancy.new_tenants}
        return data

    @property
    def keys(self) -> list[str]:
        """The comment on the variables that hold the keys of services; empty without any."""
        both = (self.config.embedding_provider, self.config.summarization_provider)
        names = sorted({one.api_key.name for one in both if one is not None and one.api_key is not None})
        return [f"Keys of services are read from the environment: {', '.join(names)}."] if names else []


def short_json(short: Short) -> str:
    """Return the choices as an indented JSON document."""
    return json.dumps(short.data, indent=2, ensure_ascii=False) + "\n"


def short_toml(short: Short) -> str:
    """Return the choices as a commented TOML document of at most 40 lines."""
    data = short.data
    lines = [*(f"# {line}" for line in HEADER)]
    comments = {
        "base": ["", f"# {BASE}"],
        "embedding_provider": ["", f"# {EMBEDDING}"],
        "summarization_provider": [f"# {SUMMARIES}"],
        "token_budget": [*(f"# {line}" for line in short.keys), "", f"# {BUDGET}"],
    }
    for name, comment in comments.items():
        lines += [*comment, f"{name} = {render_value(data[name])}"]
    lines += ["# Texts that every window begins with.", '# system_instructions = "…"', '# persona = "…"']
    lines += ["", f"# {STORE}", f"# {_POSTGRES}", "[storage]"]
    lines += [f"{name} = {render_value(value)}" for name, value in data["storage"].items()]
    if "tenancy" in data:
        lines += ["", f"# {TENANCY}", "[tenancy]", f"new_tenants = {render_value(data['tenancy']['new_tenants'])}"]
    lines += ["", f"# {PRINCIPAL}", "[principal]"]
    lines += [f"{name} = {render_value(value)}" for name, value in data["principal"].items()]
    values = short.config.to_mapping()
    for meaning, section, names in _EXAMPLES:
        lines += ["", f"# {meaning}", f"# [{section}]"]
        fields = type(getattr(short.config, section)).model_fields
        for name in names:
            value = value_at(values, f"{section}.{name}")
            is_time = isinstance(value, int) and about(fields[name])["unit"] == "ms"
            lines.append(f"# {name} = {render_value(format_duration(value) if is_time else value)}")
    return "\n".join(lines) + "\n"
