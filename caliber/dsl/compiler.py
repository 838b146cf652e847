"""From a syntax tree to the one configuration: what stands in ``config``, ``provider``, ``adapter`` and ``policy``.

The tree becomes the nested data that a TOML file holds, with the place of each value beside it; the configuration
checks the data, and each of its faults is reported where the value stands. Source: C-173 to C-186, K-054 to K-072.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from caliber.config.policies import PolicyAction, PolicyTarget
from caliber.config.tree import DECLARED_IN_LISTS, CaliberConfig
from caliber.dsl import ast
from caliber.dsl.source import Source, Span
from caliber.model.enums import Trigger
from caliber.model.errors import ConfigError, MultipleErrors, ProgramFault, ProviderNotSupported

VERSION: Final = "0.1.0"
PROVIDERS: Final = ("embedding_provider", "previous_embedding_provider", "summarization_provider")
_ADAPTERS: Final = {"sqlite": "path", "postgres": "dsn"}
_LATER_ADAPTERS: Final = ("redis", "libsql", "cockroachdb")
_LATER_DEFINITIONS: Final = {"memory": "memory types", "inject": "rules of injection"}
# What the source's example calls these knobs (C-175); everything else is named as the configuration names it.
_OPTIONS: Final = {
    "postgres": {
        "pool_size": "storage.pool_max",
        "vector_dimensions": "vector.dimensions",
        "hnsw_m": "vector.hnsw_m",
        "hnsw_ef_construction": "vector.hnsw_ef_construction",
    },
    "sqlite": {"vector_dimensions": "vector.dimensions"},
}
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_TARGETS: Final = {"turn_buffer": "turn_buffer", "turn": "turn_buffer"}

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A program and the file it was read from."""

    program: ast.Program
    source: Source


@dataclass(slots=True)
class _Compiling:
    """The data so far, where each value stands, and what is wrong."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, tuple[Source, Span]] = field(default_factory=dict)
    faults: list[ProgramFault] = field(default_factory=list)

    def wrong(self, source: Source, span: Span, reason: str, **more: Any) -> None:
        self.faults.append(source.fault(span, reason, **more))

    def put(self, path: Path, value: Any, source: Source, span: Span) -> None:
        """Set a knob, and refuse to set it twice."""
        node = self.data
        for depth, part in enumerate(path[:-1]):
            inner = node.setdefault(str(part), {})
            if not isinstance(inner, dict):
                self.wrong(source, span, f"{dotted(path[: depth + 1])} is a knob, not a section")
                return
            node = inner
        last = str(path[-1])
        if last in node:
            earlier = self.places.get(path)
            where = f" in line {earlier[0].place(earlier[1].start).line} of {earlier[0].name}" if earlier else ""
            self.wrong(source, span, f"{dotted(path)} is set already{where}")
            return
        node[last] = value
        self.places[path] = (source, span)


def compile_parts(
    parts: list[Part],
    *,
    base: Mapping[str, Any] | None = None,
    finish: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> CaliberConfig:
    """Return the configuration that programs, taken together, say; ``base`` holds what they leave out.

    ``finish`` is given the nested data before it is checked, such as to lead relative paths from a folder.

    Raises: MultipleErrors: a ProgramFault for what stands in a file, the configuration's own for what does not.
    """
    state = _Compiling()
    _definitions(state, parts)
    # What a program does not define is not there.
    data = merged({**{name: [] for name in DECLARED_IN_LISTS}, **(base or {})}, state.data)
    if finish is not None:
        data = finish(data)
    found: list[ConfigError] = list(state.faults)
    try:
        config = CaliberConfig.from_mapping(data)
    except MultipleErrors as error:
        # A program with faults of its own may lack things only because of them.
        known = [_located(state, item) for item in error.errors]
        found.extend(item for item in known if not state.faults or isinstance(item, ProgramFault))
    if found:
        raise MultipleErrors(errors=in_order(found, [part.source.name for part in parts]))
    return config


def in_order(faults: list[ConfigError], files: list[str]) -> list[ConfigError]:
    """Return faults as they stand in the files; what stands nowhere comes last."""

    def place(fault: ConfigError) -> tuple[int, int, int]:
        if not isinstance(fault, ProgramFault):
            return len(files), 0, 0
        return files.index(fault.file) if fault.file in files else len(files), fault.line, fault.column

    return sorted(faults, key=place)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested data with ``over`` put over ``base``; lists, and stores of another adapter, are replaced whole."""
    out = dict(base)
    for key, value in over.items():
        before = out.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping) and _same_kind(before, value):
            out[key] = merged(before, value)
        else:
            out[key] = value
    return out


def _same_kind(before: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    return all(key not in value or before.get(key) == value[key] for key in ("adapter", "provider_type"))


def dotted(path: Path) -> str:
    """Return a path as the configuration's faults write it: ``policies[0].rules``."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else (f".{part}" if out else part)
    return out


# --- faults of the configuration, where they stand -----------------------------------------------


def _located(state: _Compiling, error: ConfigError) -> ConfigError:
    name = error.context.get("field") or error.context.get("option_a")
    if not isinstance(name, str):
        return error
    path = _path_of(name)
    exact = state.places.get(path)
    if exact is None and "reason" not in error.context:
        return error  # something is missing: it stands nowhere
    for length in range(len(path), 0, -1):
        found = state.places.get(path[:length])
        if found is not None:
            source, span = found
            reason = error.context.get("reason") or error.message
            other = error.context.get("option_b")
            with_other = f" (with {other})" if other else ""
            return source.fault(span, f"{name}: {reason}{with_other}")
    return error


def _path_of(name: str) -> Path:
    out: list[str | int] = []
    for part in name.split("."):
        head, *indexes = part.split("[")
        out.append(head)
        out.extend(int(index[:-1]) if index[:-1].isdigit() else index[:-1] for index in indexes)
    return tuple(out)


# --- definitions ---------------------------------------------------------------------------------


class _Providers:
    """The providers of all files by name, and which of them are used."""

    def __init__(self) -> None:
        self.by_name: dict[str, tuple[Source, ast.Definition]] = {}
        self.used: set[str] = set()
        self.misspelt = False


def _definitions(state: _Compiling, parts: list[Part]) -> None:
    providers = _Providers()
    providers.by_name = _named(state, parts, "provider")
    for source, definition in _named(state, parts, "adapter").values():
        _adapter(state, source, definition)
    for part in parts:
        version = part.program.version
        if version.value != VERSION:
            state.wrong(part.source, version.span, f'the version must be "{VERSION}"', got=version.value)
        for definition in part.program.definitions("config"):
            for entry in definition.entries:
                _knob(state, part.source, entry, (), providers)
        for kind, what in _LATER_DEFINITIONS.items():
            for definition in part.program.definitions(kind):
                span = definition.span._replace(end=definition.span.start + len(kind))
                state.wrong(part.source, span, f"{what} cannot be compiled yet")
    for name, (source, definition) in providers.by_name.items():
        if name not in providers.used and definition.whole and not providers.misspelt:
            span = (definition.name or definition).span
            reason = f"nothing names the provider {name}: set {' or '.join(PROVIDERS)} to it in config"
            state.wrong(source, span, reason)
    for number, (source, definition) in enumerate(_named(state, parts, "policy").values()):
        _policy(state, source, definition, number)


def _named(state: _Compiling, parts: list[Part], kind: str) -> dict[str, tuple[Source, ast.Definition]]:
    out: dict[str, tuple[Source, ast.Definition]] = {}
    for part in parts:
        for definition in part.program.definitions(kind):
            assert definition.name is not None
            if definition.name.text in out:
                state.wrong(part.source, definition.name.span, f"the {kind} {definition.name.text} is declared twice")
            else:
                out[definition.name.text] = (part.source, definition)
    return out


def _knob(state: _Compiling, source: Source, entry: ast.Entry, path: Path, providers: _Providers) -> None:
    match entry:
        case ast.Section(key=key, entries=entries):
            inner = (*path, *key.text.split("."))
            for item in entries:
                _knob(state, source, item, inner, providers)
        case ast.Setting(key=key, value=value):
            inner = (*path, *key.text.split("."))
            if len(inner) == 1 and inner[0] in PROVIDERS:
                _provider(state, source, inner, value, providers)
            else:
                _value(state, source, value, inner)
        case ast.Rule(span=span):
            state.wrong(source, span, "rules stand in policies")


def _provider(state: _Compiling, source: Source, path: Path, value: ast.Value, providers: _Providers) -> None:
    if not isinstance(value, ast.Word) or value.text == "null":
        _value(state, source, value, path)  # a table, as in TOML, or none at all
        return
    if value.text not in providers.by_name:
        providers.misspelt = True
        reason = f"there is no provider {value.text}"
        state.wrong(source, value.span, reason, got=value.text, expected=[*providers.by_name, "null"])
        return
    providers.used.add(value.text)
    where, definition = providers.by_name[value.text]
    for entry in definition.entries:
        _knob(state, where, entry, path, providers)


def _adapter(state: _Compiling, source: Source, definition: ast.Definition) -> None:
    entries = _settings(state, source, definition, ("type", "connection", "options"))
    kind = entries.get("type")
    if kind is None:
        if definition.whole:
            state.wrong(source, (definition.name or definition).span, "an adapter needs a type", expected=_ADAPTERS)
        return
    name = kind.value.text if isinstance(kind.value, ast.Word) else ""
    if name in _LATER_ADAPTERS:
        error = ProviderNotSupported(provider=name)
        state.wrong(source, kind.value.span, f"{error.message} yet; use {' or '.join(_ADAPTERS)}")
        return
    if name not in _ADAPTERS:
        state.wrong(source, kind.value.span, "this is no type of adapter", got=name, expected=_ADAPTERS)
        return
    if "adapter" in state.data.get("storage", {}):
        span = (definition.name or definition).span
        state.wrong(source, span, "a store is in one database, and there is an adapter for it already")
        return
    state.put(("storage", "adapter"), name, source, kind.value.span)
    connection = entries.get("connection")
    if connection is not None:
        _connection(state, source, name, connection.value)
    options = entries.get("options")
    if options is not None and isinstance(options.value, ast.Table):
        for pair in options.value.pairs:
            key = pair.key.text if isinstance(pair.key, ast.Word) else pair.key.value
            _value(state, source, pair.value, tuple(_OPTIONS[name].get(key, f"storage.{key}").split(".")))
    elif options is not None:
        state.wrong(source, options.value.span, "options are a table: { name: value, … }")


def _connection(state: _Compiling, source: Source, adapter: str, value: ast.Value) -> None:
    if not isinstance(value, ast.Text):
        state.wrong(source, value.span, "a connection is a text in quotes")
        return
    text = value.value
    if adapter == "sqlite":
        text = text.removeprefix("sqlite:///")
    state.put(("storage", _ADAPTERS[adapter]), text, source, value.span)


def _settings(
    state: _Compiling, source: Source, definition: ast.Definition, known: tuple[str, ...]
) -> dict[str, ast.Setting]:
    out: dict[str, ast.Setting] = {}
    for entry in definition.entries:
        if not isinstance(entry, ast.Setting):
            state.wrong(source, entry.span, f"this does not stand in {definition.kind} definitions", expected=known)
        elif entry.key.text not in known:
            reason = f"{definition.kind} definitions have no {entry.key.text}"
            state.wrong(source, entry.key.span, reason, got=entry.key.text, expected=known)
        elif entry.key.text in out:
            state.wrong(source, entry.key.span, f"{entry.key.text} is given twice")
        else:
            out[entry.key.text] = entry
    return out


# --- policies ------------------------------------------------------------------------------------


def _policy(state: _Compiling, source: Source, definition: ast.Definition, number: int) -> None:
    assert definition.name is not None
    path: Path = ("policies", number)
    rules: list[dict[str, Any]] = []
    state.data.setdefault("policies", []).append({"name": definition.name.text, "rules": rules})
    state.places[path] = (source, definition.name.span)
    for entry in definition.entries:
        if not isinstance(entry, ast.Rule):
            state.wrong(source, entry.span, "a policy holds rules: on trigger: [actions]")
            continue
        here: Path = (*path, "rules", len(rules))
        rule = _trigger(state, source, entry.trigger)
        if rule is None:
            continue
        rules.append(rule)
        state.places[here] = (source, entry.trigger.span)
        for key in rule:
            state.places[(*here, key)] = (source, entry.trigger.span)
        rule["actions"] = []
        state.places[(*here, "actions")] = (source, entry.actions.span)
        for item in entry.actions.items:
            action = _action(state, source, item, str(rule["on"]))
            if action is not None:
                state.places[(*here, "actions", len(rule["actions"]))] = (source, item.span)
                rule["actions"].append(action)
        if entry.actions.items and not rule["actions"]:
            rules.pop()  # it has its faults already


def _trigger(state: _Compiling, source: Source, trigger: ast.Word | ast.Call) -> dict[str, Any] | None:
    names = [item.value for item in Trigger]
    if isinstance(trigger, ast.Word) and trigger.text in names and trigger.text != Trigger.SCHEDULE:
        return {"on": trigger.text}
    if isinstance(trigger, ast.Call) and trigger.name.text == Trigger.SCHEDULE:
        if len(trigger.arguments) == 1 and isinstance(trigger.arguments[0], ast.Text):
            return {"on": Trigger.SCHEDULE.value, "cron": trigger.arguments[0].value}
        state.wrong(source, trigger.span, 'a schedule takes one text of five cron fields: schedule("0 3 * * *")')
        return None
    word = trigger if isinstance(trigger, ast.Word) else trigger.name
    expected = [f'{name}("0 3 * * *")' if name == Trigger.SCHEDULE else name for name in names]
    reason = "schedule needs its cron fields" if word.text == Trigger.SCHEDULE else f"{word.text} is no trigger"
    state.wrong(source, trigger.span, reason, got=word.text, expected=expected)
    return None


def _action(state: _Compiling, source: Source, item: ast.Value, trigger: str) -> dict[str, Any] | None:
    names = [action.value for action in PolicyAction]
    if not isinstance(item, ast.Call) or item.name.text not in names:
        got = item.name.text if isinstance(item, ast.Call) else (item.text if isinstance(item, ast.Word) else "")
        if got == "inject":
            state.wrong(source, item.span, "inject cannot be compiled yet")
        else:
            state.wrong(source, item.span, "this is no action", got=got, expected=[f"{name}(…)" for name in names])
        return None
    action = PolicyAction(item.name.text)
    if action is PolicyAction.NOTIFY:
        if len(item.arguments) == 1 and isinstance(item.arguments[0], ast.Text):
            return {"action": action.value, "channel": item.arguments[0].value}
        state.wrong(source, item.span, 'notify takes the name of a channel: notify("done")')
        return None
    wanted = 2 if action is PolicyAction.PRUNE else 1
    target = item.arguments[0] if item.arguments else None
    if len(item.arguments) != wanted or not isinstance(target, ast.Word):
        what = "what to prune and which of it" if wanted == 2 else "what it is done to"
        state.wrong(source, item.span, f"{action} takes {what}")
        return None
    known = [value.value for value in PolicyTarget]
    name = _TARGETS.get(target.text, target.text)
    if name not in known:
        state.wrong(source, target.span, f"nothing can be done to {target.text}", got=target.text, expected=known)
        return None
    if action is PolicyAction.EXTRACT_ARTIFACTS and name == "trajectory" and trigger == Trigger.TASK_END:
        action = PolicyAction.CONSOLIDATE_NOTES  # K-067
    out: dict[str, Any] = {"action": action.value, "target": name}
    return out if wanted == 1 else _criterion(state, source, item.arguments[1], out)


def _criterion(state: _Compiling, source: Source, item: ast.Value, out: dict[str, Any]) -> dict[str, Any] | None:
    argument = item.arguments[0] if isinstance(item, ast.Call) and len(item.arguments) == 1 else None
    name = item.name.text if isinstance(item, ast.Call) else ""
    if name == "older_than" and isinstance(argument, ast.Duration):
        return {**out, "older_than_ms": argument.ms}
    if name == "below_confidence" and isinstance(argument, ast.Number):
        return {**out, "below_confidence": float(argument.value)}
    state.wrong(source, item.span, "prune takes older_than(30d) or below_confidence(0.3)", got=name)
    return None


# --- values --------------------------------------------------------------------------------------


def _value(state: _Compiling, source: Source, value: ast.Value, path: Path) -> None:
    """Set a knob to a value, the place of each part of it beside."""
    if isinstance(value, ast.Table) and value.pairs:
        for pair in value.pairs:
            key = pair.key.text if isinstance(pair.key, ast.Word) else pair.key.value
            _value(state, source, pair.value, (*path, key))
        return
    try:
        data = plain(value)
    except _NoData as error:
        state.wrong(source, error.span, "a knob is set to a word, text, number, duration, list or table")
        return
    state.put(path, data, source, value.span)
    for place, span in _items(value, path):
        state.places[place] = (source, span)


def _items(value: ast.Value, path: Path) -> Iterator[tuple[Path, Span]]:
    if isinstance(value, ast.Items):
        for number, item in enumerate(value.items):
            yield (*path, number), item.span
            yield from _items(item, (*path, number))


class _NoData(Exception):
    def __init__(self, span: Span) -> None:
        super().__init__()
        self.span = span


def plain(value: ast.Value) -> Any:
    """Return a value as a TOML file would hold it; a duration stays text, which every knob of time accepts."""
    match value:
        case ast.Word(text=text):
            return _CONSTANTS.get(text, text)
        case ast.Text(value=text):
            return text
        case ast.Number() if not value.is_whole or len(value.text) < 64:
            return value.value
        case ast.Duration(text=text):
            return text
        case ast.Items(items=items):
            return [plain(item) for item in items]
        case ast.Table(pairs=pairs):
            return {
                (pair.key.text if isinstance(pair.key, ast.Word) else pair.key.value): plain(pair.value)
                for pair in pairs
            }
        case _:
            raise _NoData(value.span)
