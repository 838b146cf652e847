"""Compiler of a program's ``adapter`` definitions to the configuration's storage section.

Source: C-158, C-159, C-175, K-004, K-072, O-3.
"""

from __future__ import annotations

from typing import Any, Final

from caliber.config.secret import PREFIX, LiteralDsn, is_reference
from caliber.config.storage import POSTGRES_ADAPTERS, SQLITE_ADAPTERS
from caliber.dsl import ast
from caliber.dsl.building import Building, key_of
from caliber.dsl.source import Source

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


def adapters(state: Building, found: list[tuple[Source, ast.Definition]]) -> None:
    """Compile all adapters of a program."""
    served: dict[str, str] = {}
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
        served.setdefault(purpose, definition.name.text)
    if "store" in served:
        for source, definition in found:
            _unused(state, source, definition)


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
