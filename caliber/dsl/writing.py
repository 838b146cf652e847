"""Export of a configuration as a commented ``.caliber`` file that compiles to the same configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from caliber.config.faults import section_in
from caliber.config.injection import InjectionRule
from caliber.config.knobs import FrozenMap, Section
from caliber.config.manual.render import (
    BASE,
    BUDGET,
    EMBEDDING,
    HEADER,
    PRINCIPAL,
    STORE,
    SUMMARIES,
    TENANCY,
    Short,
    about,
    refuse_sealed,
    told,
    why,
)
from caliber.config.memories import FieldConfig, MemoryConfig, trigger_text
from caliber.config.nested import plain
from caliber.config.policies import ActionConfig, PolicyAction, PolicyConfig
from caliber.config.tree import DECLARED_IN_LISTS, CaliberConfig
from caliber.dsl.compiler import PROVIDERS, VERSION
from caliber.dsl.policies import TARGET
from caliber.dsl.printer import format_text, quoted
from caliber.model.time import format_duration
from caliber.schema.memory_types import History

_HEADER: Final = (
    'A configuration of CALIBER that states every setting. "Here:" says why a profile has another value than the',
    "reference. Durations are written as 250ms, 30s, 15m, 1h, 7d or 2w. Secrets are never written here: env:NAME names",
    "a variable.",
)
_WORD: Final = re.compile(r"[a-z_][a-z0-9_]*\Z")
_NOT_WORDS: Final = frozenset(("true", "false", "null", "and", "or", "contains", "starts", "on"))


def render_caliber(config: CaliberConfig, reasons: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the configuration as a commented program that compiles to the same configuration.

    ``reasons`` give, by path, the reason of a knob's value, such as ``profiles.reasons``.
    """
    refuse_sealed(config)
    lines = [f"// {line}" for line in _HEADER]
    lines += ["", f'caliber: "{VERSION}" {{']
    for name in PROVIDERS:
        provider = getattr(config, name)
        if provider is not None:
            lines += [f"// {CaliberConfig.model_fields[name].description}", f"provider {_provider_name(name)} {{"]
            lines += [*_section(provider, f"{name}.", reasons), "}", ""]
    lines += ["config {", *_section(config, "", reasons), "}"]
    lines += ["", *(f"// {line}" for line in why("policies", reasons))]
    for number, policy in enumerate(config.policies):
        lines += [*([""] if number else []), *_policy(policy)]
    for name, definitions in (
        ("memories", [list(_memory(memory)) for memory in config.memories]),
        ("injection_rules", [list(_rule(rule)) for rule in config.injection_rules]),
    ):
        lines += ["", *(f"// {line}" for line in why(name, reasons))]
        for number, definition in enumerate(definitions):
            lines += [*([""] if number else []), *definition]
    return format_text("\n".join([*lines, "}"]) + "\n")


def short_caliber(short: Short) -> str:
    """Return the choices of a short configuration as a commented program."""
    data = short.data
    lines = [*(f"// {line}" for line in HEADER), "", f'caliber: "{VERSION}" {{', "config {"]
    for name, comments in (
        ("base", [BASE]),
        ("embedding_provider", [EMBEDDING]),
        ("summarization_provider", [SUMMARIES]),
        ("token_budget", [*short.keys, BUDGET]),
    ):
        value = data[name]
        shown = quoted(value) if isinstance(value, str) else _value(value)
        lines += [*(f"// {line}" for line in comments), f"{name}: {shown}"]
    if "tenancy" in data:
        lines += ["", f"// {TENANCY}", f"tenancy {{ new_tenants: {quoted(data['tenancy']['new_tenants'])} }}"]
    principal = [f"{name}: {quoted(value)}" for name, value in data["principal"].items()]
    lines += [
        "",
        f"// {PRINCIPAL}",
        "principal {",
        *principal,
        "}",
        "}",
        "",
        f"// {STORE}",
        "adapter store {",
        f"type: {data['storage']['adapter']}",
    ]
    return format_text("\n".join([*lines, f"connection: {quoted(data['storage']['path'])}", "}", "}"]) + "\n")


def _provider_name(knob: str) -> str:
    return knob.removesuffix("_provider")


def _section(section: Section, path: str, reasons: Mapping[str, str]) -> Iterator[str]:
    inner: list[tuple[str, Any]] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if name in DECLARED_IN_LISTS and isinstance(section, CaliberConfig):
            continue
        if name in PROVIDERS and isinstance(section, CaliberConfig):
            chosen = "null" if value is None else _provider_name(name)
            yield from (f"// {field.description}", f"{name}: {chosen}")
        elif section_in(field.annotation) is not None:
            inner.append((name, field))
        else:
            yield from _knob(name, field, value, why(f"{path}{name}", reasons))
    for name, field in inner:
        value = getattr(section, name)
        if isinstance(value, FrozenMap):  # sections by names that need not be words
            yield from ("", f"// {field.description}", f"{name}: {_value(plain(value))}")
        elif value is not None:
            yield from ("", f"// {field.description}", f"{name} {{", *_section(value, f"{path}{name}.", reasons), "}")


def _knob(name: str, field: Any, value: Any, here: list[str]) -> Iterator[str]:
    data, comments = told(field, value, here)
    yield from (f"// {line}" for line in comments)
    if data is None:
        yield f"// {name}:"
        return
    is_time = isinstance(data, int) and about(field)["unit"] == "ms"
    yield f"{name}: {format_duration(data) if is_time else _value(data)}"


def _value(data: Any) -> str:
    if data is None or isinstance(data, bool):
        return {None: "null", True: "true", False: "false"}[data]
    if isinstance(data, str):
        return data if _WORD.match(data) and data not in _NOT_WORDS else quoted(data)
    if isinstance(data, Mapping):
        return "{" + ", ".join(f"{quoted(str(key))}: {_value(value)}" for key, value in data.items()) + "}"
    if isinstance(data, (list, tuple)):
        return f"[{', '.join(map(_value, data))}]"
    return repr(data)


def _policy(policy: PolicyConfig) -> Iterator[str]:
    yield f"policy {policy.name} {{"
    for rule in policy.rules:
        yield f"on {trigger_text(rule.on, rule.cron)}: [{', '.join(map(_action, rule.actions))}]"
    yield "}"


def _action(action: ActionConfig) -> str:
    if action.action is PolicyAction.NOTIFY:
        return f"notify({quoted(str(action.channel))})"
    if action.mode is not None:
        return f"{action.action}({action.target}, {action.mode.shown})"
    if action.action is not PolicyAction.PRUNE:
        return f"{action.action}({action.target})"
    criteria = []
    if action.older_than_ms is not None:
        criteria.append(f"older_than({format_duration(action.older_than_ms)})")
    if action.below_confidence is not None:
        criteria.append(f"below_confidence({action.below_confidence!r})")
    return f"prune({action.target}, {', '.join(criteria)})"


# --- memories and rules of injection -------------------------------------------------------------


def _memory(memory: MemoryConfig) -> Iterator[str]:
    yield f"memory {memory.name} {{"
    yield f"type: {memory.type}"
    yield f"schema: {{ {', '.join(f'{field.name}: {_field(field)}' for field in memory.fields)} }}"
    yield f"retention: {memory.retention.shown}"
    if memory.closes_on is not None:
        yield f"lifecycle: auto_close({memory.closes_on.shown})"
    else:
        yield f"lifecycle: {memory.lifecycle}"
    if memory.artifacts:
        yield f"artifacts: [{', '.join(map(quoted, memory.artifacts))}]"
    if memory.parent is not None:
        yield f"parent: {memory.parent}"
    if memory.key:
        yield f"key: [{', '.join(memory.key)}]"
    if memory.history is History.NONE:
        yield f"history: {memory.history}"
    if memory.shown is not None:
        yield f"shown: {quoted(memory.shown)}"
    if memory.inject_on:
        yield f"inject_on: [{', '.join(when.shown for when in memory.inject_on)}]"
    if memory.indexes:
        yield f"index: {{ {', '.join(f'{index.field}: {index.type}' for index in memory.indexes)} }}"
    yield "}"


def _field(field: FieldConfig) -> str:
    kind = f"enum({', '.join(map(quoted, field.values))})" if field.values else field.type.value
    return f"optional({kind})" if field.optional else kind


def _rule(rule: InjectionRule) -> Iterator[str]:
    yield f"inject {rule.memory} into {TARGET} {{"
    if rule.name is not None:
        yield f"name: {rule.name}"
    yield from (f"mode: {rule.mode.shown}", f"priority: {rule.priority}")
    if rule.max_tokens is not None:
        yield f"max_tokens: {rule.max_tokens}"
    if rule.filter is not None:
        yield f"filter: {rule.filter}"
    yield "}"
