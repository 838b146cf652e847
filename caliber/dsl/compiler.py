"""Compiler of a ``.caliber`` syntax tree to a validated configuration.

The tree becomes the nested data that a TOML file holds, with the position of each value beside it; the configuration
checks the data, and each fault is reported at the position of the value. Source: C-173 to C-186, K-054 to K-072.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, Final

from caliber.config.bases import KNOB as BASE_KNOB
from caliber.config.bases import Completed, complete
from caliber.config.faults import ConfigWarning
from caliber.config.memories import memory_name
from caliber.config.rules.declared import valid_memories, warnings_of
from caliber.config.secret import PREFIX, LiteralDsn, is_reference
from caliber.config.storage import POSTGRES_ADAPTERS, SQLITE_ADAPTERS
from caliber.config.tree import DECLARED_IN_LISTS, CaliberConfig, values_of
from caliber.dsl import ast, memories, policies
from caliber.dsl.building import Building, Path, key_of, path_of
from caliber.dsl.checking import Checked
from caliber.dsl.filters import compile_condition
from caliber.dsl.scan import FAULTS_MAX
from caliber.dsl.source import Source, SourceSpan
from caliber.model.errors import ConfigError, MultipleErrors, ProgramFault
from caliber.model.lazy_dataclass import dataclass
from caliber.schema.binding import binding_of, faults
from caliber.schema.memories import BUILT_IN, MemoryBinding
from caliber.schema.memory_types import MemoryType

VERSION: Final = "0.1.0"
PROVIDERS: Final = ("embedding_provider", "previous_embedding_provider", "summarization_provider")
_OBVIOUS: Final = ("name", "field", "memory", "parent", "target", "key")
_LISTED: Final = re.compile(r"(?:\w+\[\d+\]\.)*")


@dataclass(frozen=True, slots=True)
class Part:
    """A program and the file it was read from."""

    program: ast.Program
    source: Source


def compile_parts(
    parts: list[Part],
    *,
    base: CaliberConfig | str | None = None,
    finish: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Checked:
    """Return the configuration of one or several programs together, and the warnings.

    Their base, or ``base``, supplies omitted settings. ``finish`` receives the nested data before it is checked, for
    example to anchor relative paths in a folder.

    Raises: MultipleErrors: a ProgramFault for what stands in a file, the configuration's own for what does not.
    """
    state = Building()
    _definitions(state, parts)
    found: list[ConfigError] = []
    try:
        completed = complete(state.data, values_of(base))
    except MultipleErrors as error:
        found.extend(_located(state, item) for item in error.errors)
        completed = Completed({name: value for name, value in state.data.items() if name != BASE_KNOB}, None)
    # Sections that a program does not define are absent.
    data = {**{name: [] for name in DECLARED_IN_LISTS}, **completed.data}
    if finish is not None:
        data = finish(data)
    _filters(state, data)
    found.extend(state.faults)
    config: CaliberConfig | None = None
    try:
        config = CaliberConfig.from_mapping(data)
    except MultipleErrors as error:
        reported = {_place(fault) for fault in found if isinstance(fault, ProgramFault)}
        # A program with faults of its own may lack settings only because of them.
        config_faults = [_located(state, item) for item in error.errors[:FAULTS_MAX] if not _derived(state, data, item)]
        config_faults = [
            item for item in config_faults if not isinstance(item, ProgramFault) or _place(item) not in reported
        ]
        found.extend([item for item in config_faults if not found or isinstance(item, ProgramFault)])
    if found or config is None:
        raise MultipleErrors(errors=in_order(found, [part.source.name for part in parts])[:FAULTS_MAX])
    state.warnings.extend(_warning(state, field, reason) for field, reason in warnings_of(config))
    files = [part.source.name for part in parts]
    warnings = sorted(state.warnings, key=lambda item: _position(item, files))
    return Checked(config, tuple(warnings), completed.origin)


def _filters(state: Building, data: dict[str, Any]) -> None:
    """Compile the filters, whose faults stand inside them; that of a rule of an unknown memory waits for it."""
    if not state.filters:
        return
    memories = list(enumerate(valid_memories(data["memories"])))
    declared = {item.name: (item.declared, state.unsure.get(at, set())) for at, item in memories if item is not None}
    bindings: dict[str, MemoryBinding | None] = {}
    for item in state.filters:
        name = memory_name(data["injection_rules"][item.rule]["memory"])
        if name not in bindings:
            bindings[name] = _binding(name, *declared.get(name, (None, set())))
        binding = bindings[name]
        if binding is not None:
            made = compile_condition(item.source, item.condition, binding)
            state.faults.extend(fault for fault in made.faults if isinstance(fault, ProgramFault))
            state.warnings.extend(made.warnings)


def _binding(name: str, memory: MemoryType | None, unsure: set[str]) -> MemoryBinding | None:
    """Return the binding of a memory's fields, as far as they are sound; None without any."""
    unknown = set(unsure)
    if name not in BUILT_IN:
        while memory is not None:
            wrong = {memory.fields[fault.at].name for fault in faults(memory) if fault.part == "fields"}
            if not wrong:
                break
            unknown |= wrong
            remaining = tuple(item for item in memory.fields if item.name not in wrong)
            memory = dataclasses.replace(memory, fields=remaining, indexes=()) if remaining else None
        if memory is None:
            return None
        memory = dataclasses.replace(memory, indexes=())
    return dataclasses.replace(binding_of(memory, name), unknown=frozenset(unknown))


def _derived(state: Building, data: dict[str, Any], error: ConfigError) -> bool:
    """Return whether a fault only repeats that of a field."""
    path = path_of(str(error.context.get("field")))
    if path[:1] != ("memories",) or path[2:3] != ("indexes",) or len(path) < 4:
        return False
    index = data["memories"][path[1]]["indexes"][path[3]]
    return index.get("field") in state.unsure.get(int(path[1]), ())


def _warning(state: Building, field: str, reason: str) -> ConfigWarning:
    found = _standing(state, path_of(field))
    return ConfigWarning(reason, field) if found is None else found[0].warning(found[1], reason)


def _standing(state: Building, path: Path) -> tuple[Source, SourceSpan] | None:
    """Return the place of a value, or else of its container."""
    for length in range(len(path), 0, -1):
        found = state.places.get(path[:length])
        if found is not None:
            return found
    return None


def in_order(faults: list[ConfigError], files: list[str]) -> list[ConfigError]:
    """Return faults in file order; those without a position come last."""

    return sorted(faults, key=lambda fault: _position(fault, files))


def _position(fault: ConfigError | ConfigWarning, files: list[str]) -> tuple[int, int, int]:
    if isinstance(fault, ConfigError) and not isinstance(fault, ProgramFault):
        return len(files), 0, 0
    return files.index(fault.file) if fault.file in files else len(files), fault.line, fault.column


# --- faults of the configuration, where they stand -----------------------------------------------


def _place(fault: ProgramFault) -> tuple[str, int, int]:
    return fault.file, fault.line, fault.column


def _located(state: Building, error: ConfigError) -> ConfigError:
    name = error.context.get("field") or error.context.get("option_a")
    if not isinstance(name, str):
        return error
    path = path_of(name)
    exact = state.places.get(path)
    if exact is None and "reason" not in error.context:
        return error  # something is missing: it stands nowhere
    found = _standing(state, path)
    if found is None:
        return error
    reason = error.context.get("reason") or error.message
    other = error.context.get("option_b")
    with_other = f" (with {other})" if other and path[0] not in DECLARED_IN_LISTS else ""
    return found[0].fault(found[1], f"{_shown(name, path)}{reason}{with_other}")


def _shown(name: str, path: Path) -> str:
    if path[0] not in DECLARED_IN_LISTS:
        return f"{name}: "
    # The number of a definition does not help a reader who sees its line.
    last = next(part for part in reversed(path) if isinstance(part, str))
    return "" if last in _OBVIOUS else f"{_LISTED.sub('', name, count=1)}: "


# --- definitions ---------------------------------------------------------------------------------


class _Providers:
    """The providers of all files by name, and which of them are used."""

    def __init__(self, by_name: dict[str, tuple[Source, ast.Definition]]) -> None:
        self.by_name = by_name
        self.used: set[str] = set()
        self.misspelt = False


def _definitions(state: Building, parts: list[Part]) -> None:
    providers = _Providers(_named(state, parts, "provider"))
    cache = adapters(state, list(_named(state, parts, "adapter").values()))
    for part in parts:
        version = part.program.version
        if version.value != VERSION:
            state.wrong(part.source, version.span, f'the version must be "{VERSION}"', got=version.value)
        for definition in part.program.definitions("config"):
            for entry in definition.entries:
                _knob(state, part.source, entry, (), providers)
        for definition in part.program.definitions("inject"):
            policies.injection_rule(state, part.source, definition)
    if cache is not None and "storage" not in state.data:
        # The configuration refuses it: the store would be the one of its base, which the program does not name.
        state.put(("storage", "adapter"), cache[1].text, cache[0], cache[1].span)
    for name, (source, definition) in providers.by_name.items():
        if name not in providers.used and definition.whole and not providers.misspelt:
            span = (definition.name or definition).span
            reason = f"nothing names the provider {name}: set {' or '.join(PROVIDERS)} to it in config"
            state.wrong(source, span, reason)
    for source, definition in _named(state, parts, "memory").values():
        memories.memory(state, source, definition)
    for source, definition in _named(state, parts, "policy").values():
        policies.policy(state, source, definition)


def _named(state: Building, parts: list[Part], kind: str) -> dict[str, tuple[Source, ast.Definition]]:
    out: dict[str, tuple[Source, ast.Definition]] = {}
    for part in parts:
        for definition in part.program.definitions(kind):
            assert definition.name is not None
            if definition.name.text in out:
                state.wrong(part.source, definition.name.span, f"the {kind} {definition.name.text} is declared twice")
            else:
                out[definition.name.text] = (part.source, definition)
    return out


def _knob(state: Building, source: Source, entry: ast.Entry, path: Path, providers: _Providers) -> None:
    match entry:
        case ast.Section(key=key, entries=entries):
            inner = (*path, *key.text.split("."))
            state.places.setdefault(inner, (source, key.span))
            for item in entries:
                _knob(state, source, item, inner, providers)
        case ast.Setting(key=key, value=value):
            inner = (*path, *key.text.split("."))
            if len(inner) == 1 and inner[0] in PROVIDERS:
                _provider(state, source, inner, value, providers)
            else:
                state.value(source, value, inner)
        case ast.Rule(span=span):
            state.wrong(source, span, "rules belong in policies")


def _provider(state: Building, source: Source, path: Path, value: ast.Value, providers: _Providers) -> None:
    if not isinstance(value, ast.Word) or value.text == "null":
        state.value(source, value, path)  # a table, as in TOML, or none at all
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


SETTINGS: Final = ("type", "connection", "options")
STORES: Final[dict[str, str]] = {
    **dict.fromkeys(SQLITE_ADAPTERS, "path"),
    **dict.fromkeys(POSTGRES_ADAPTERS, "dsn"),
}
"""Adapters that are stores, with the meaning of their connection; the configuration checks which of them exist."""

BUILT: Final = ("sqlite", "postgres")
CACHES: Final = ("redis",)
"""Adapters that hold no store."""

_POSTGRES: Final = {
    "pool_size": "storage.pool_max",
    "vector_dimensions": "vector.dimensions",
    "hnsw_m": "vector.hnsw_m",
    "hnsw_ef_construction": "vector.hnsw_ef_construction",
}
OPTIONS: Final[dict[str, dict[str, str]]] = {
    **dict.fromkeys(POSTGRES_ADAPTERS, _POSTGRES),
    **{name: {"vector_dimensions": "vector.dimensions"} for name in SQLITE_ADAPTERS},
}
"""Names of these knobs in the source's example (C-175); all others have the configuration's names."""


def adapters(state: Building, found: list[tuple[Source, ast.Definition]]) -> tuple[Source, ast.Word] | None:
    """Compile all adapters of a program; return the type of its cache, if that is all it has."""
    served: dict[str, str] = {}
    cache: tuple[Source, ast.Word] | None = None
    for source, definition in found:
        assert definition.name is not None
        kind = _kind(state, source, definition)
        if kind is None:
            continue
        purpose = "store" if kind.value.text in STORES else "cache"
        if purpose in served:
            why = "a store is in one database" if purpose == "store" else "a store has one cache"
            state.wrong(source, definition.name.span, f"{why}, and there is the adapter {served[purpose]} already")
        elif purpose == "store":
            _store(state, source, kind)
        else:
            cache = source, kind.value
        served.setdefault(purpose, definition.name.text)
    if "store" not in served:
        return cache
    for source, definition in found:
        _unused(state, source, definition)
    return None


class _Kind:
    """The type of an adapter: one of the known words, where it stands."""

    def __init__(self, value: ast.Word, settings: dict[str, ast.Setting]) -> None:
        self.value = value
        self.given = settings


def _kind(state: Building, source: Source, definition: ast.Definition) -> _Kind | None:
    settings = state.settings(source, definition, SETTINGS)
    kind = settings.get("type")
    types = (*STORES, *CACHES)
    if kind is None:
        if definition.whole:
            state.wrong(source, (definition.name or definition).span, "an adapter needs a type", expected=BUILT)
        return None
    if not isinstance(kind.value, ast.Word) or kind.value.text not in types:
        got = kind.value.text if isinstance(kind.value, ast.Word) else ""
        state.wrong(source, kind.value.span, "unknown type of adapter", got=got, expected=types)
        return None
    return _Kind(kind.value, settings)


def _unused(state: Building, source: Source, definition: ast.Definition) -> None:
    for setting in definition.settings("type"):
        if isinstance(setting.value, ast.Word) and setting.value.text in CACHES and definition.name is not None:
            reason = (
                f"{setting.value.text} is not supported yet: the adapter {definition.name.text} and its options are "
                "not used; reads are answered from this process's own memory"
            )
            state.doubt(source, setting.value.span, reason)
            return


def _store(state: Building, source: Source, kind: _Kind) -> None:
    name = kind.value.text
    state.put(("storage", "adapter"), name, source, kind.value.span)
    connection = kind.given.get("connection")
    if connection is not None:
        _connection(state, source, name, connection.value)
    options = kind.given.get("options")
    if options is not None and isinstance(options.value, ast.NamedValues):
        for pair in options.value.pairs:
            knob = OPTIONS[name].get(key_of(pair), f"storage.{key_of(pair)}")
            state.value(source, pair.value, tuple(knob.split(".")))
    elif options is not None:
        state.wrong(source, options.value.span, "options are a table: { name: value, … }")


def _connection(state: Building, source: Source, adapter: str, value: ast.Value) -> None:
    if not isinstance(value, ast.Text):
        state.wrong(source, value.span, "a connection is a text in quotes")
        return
    connection: Any = value.value
    if STORES[adapter] == "path":
        connection = connection.removeprefix("sqlite:///")
    elif not is_reference(connection):
        if connection.startswith(PREFIX):
            state.wrong(source, value.span, "env: needs the name of a variable, such as env:MY_DSN")
            return
        connection = LiteralDsn(connection)
    state.put(("storage", STORES[adapter]), connection, source, value.span)
