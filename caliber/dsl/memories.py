"""Compiler of ``memory`` definitions to declared memories of the configuration.

Source: C-130 to C-146, K-058 to K-061, K-068.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from caliber.dsl import ast
from caliber.dsl.building import Building, Path, key_of, word_of
from caliber.dsl.policies import trigger
from caliber.dsl.source import Source
from caliber.model.declared import MemoryCategory
from caliber.model.trajectory import ArtifactType
from caliber.schema.memory_types import FieldType, History, IndexType, Lifecycle, RetentionKind

SETTINGS: Final = (
    "type", "schema", "retention", "index", "lifecycle", "artifacts", "parent", "key", "history", "shown",
    "inject_on",
)  # fmt: skip
_PLAIN_RETENTIONS: Final = (RetentionKind.PERSISTENT, RetentionKind.SESSION, RetentionKind.SCOPE)
RETENTIONS: Final = (*_PLAIN_RETENTIONS, "30d", "max(100)", "until(field)", "compress_on: scope_close")
LIFECYCLES: Final = ("explicit", "auto_close(scope_close)")
OPTIONAL: Final = "optional"
_SETTINGS_NEEDED: Final = ("type", "schema")
_LIST: Final = "list"
_SAMPLE_ENUM: Final = 'enum("a", "b")'


def memory(state: Building, source: Source, definition: ast.Definition) -> None:
    """Compile one ``memory NAME { … }``."""
    assert definition.name is not None
    data: dict[str, Any] = {"name": definition.name.text}
    path = state.add("memories", data, source, definition.name.span)
    state.places[(*path, "name")] = (source, definition.name.span)
    settings = state.settings(source, definition, SETTINGS)
    state.needed(source, definition, settings, _SETTINGS_NEEDED, f"the memory {definition.name.text}")
    makers = {
        "type": _type,
        "schema": _schema,
        "retention": _retention,
        "index": _indexes,
        "lifecycle": _lifecycle,
        "artifacts": _artifacts,
        "parent": _parent,
        "key": _key,
        "history": _history,
        "shown": _shown,
        "inject_on": _inject_on,
    }
    for key, setting in settings.items():
        makers[key](state, source, setting.value, data, path)


def _one_of(state: Building, source: Source, value: ast.Value, allowed: Iterable[str], reason: str) -> str | None:
    names = [str(name) for name in allowed]
    if isinstance(value, ast.Word) and value.text in names:
        return value.text
    state.wrong(source, value.span, reason, got=word_of(value), expected=names)
    return None


def _type(state: Building, source: Source, value: ast.Value, data: dict[str, Any], path: Path) -> None:
    found = _one_of(state, source, value, MemoryCategory, "unknown type of memory")
    data["type"] = found or MemoryCategory.SEMANTIC.value  # it has its fault already
    state.places[(*path, "type")] = (source, value.span)


def _history(state: Building, source: Source, value: ast.Value, data: dict[str, Any], path: Path) -> None:
    found = _one_of(state, source, value, History, "unknown history")
    data["history"] = found or History.VERSIONS.value  # it has its fault already
    state.places[(*path, "history")] = (source, value.span)


def _shown(state: Building, source: Source, value: ast.Value, data: dict[str, Any], path: Path) -> None:
    state.places[(*path, "shown")] = (source, value.span)
    if isinstance(value, ast.Text):
        data["shown"] = value.value
    else:
        state.wrong(source, value.span, 'shown is a text in quotes, with fields in braces: "{subject}: {content}"')


def _schema(state: Building, source: Source, value: ast.Value, data: dict[str, Any], path: Path) -> None:
    fields: list[dict[str, Any]] = []
    data["fields"] = fields
    state.places[(*path, "fields")] = (source, value.span)
    if not isinstance(value, ast.NamedValues) or not value.pairs:
        state.wrong(source, value.span, "a schema is a table of at least one field: { name: text }")
        return
    for pair in value.pairs:
        if not isinstance(pair.key, ast.Word):
            state.wrong(source, pair.key.span, "the name of a field is written without quotes")
        here: Path = (*path, "fields", len(fields))
        state.places[here] = (source, pair.span)
        state.places[(*here, "name")] = (source, pair.key.span)
        made = _field(state, source, pair.value, here)
        if made["type"] is None:
            made = {"type": FieldType.TEXT.value}
            state.unsure.setdefault(int(path[1]), set()).add(key_of(pair))
        fields.append({"name": key_of(pair), **made})


def _field(state: Building, source: Source, value: ast.Value, path: Path, *, optional: bool = False) -> dict[str, Any]:
    more = {"optional": True} if optional else {}
    for name in ("type", "values", "optional"):
        state.places[(*path, name)] = (source, value.span)
    called = value.name.text if isinstance(value, ast.Call) else ""
    if isinstance(value, ast.Call) and called == OPTIONAL and not optional:
        if len(value.arguments) == 1:
            return _field(state, source, value.arguments[0], path, optional=True)
        state.wrong(source, value.span, "optional takes one type: optional(text)")
        return {"type": None}
    if isinstance(value, ast.Call) and called == FieldType.ENUM:
        texts = [item for item in value.arguments if isinstance(item, ast.Text)]
        if not texts or len(texts) < len(value.arguments):
            state.wrong(source, value.span, f"an enum takes its values, in quotes: {_SAMPLE_ENUM}")
            return {"type": None}
        for number, item in enumerate(texts):
            state.places[(*path, "values", number)] = (source, item.span)
        return {"type": FieldType.ENUM.value, "values": [item.value for item in texts], **more}
    if isinstance(value, ast.Call) and called == _LIST and len(value.arguments) == 1:
        value = ast.Word(f"{_LIST}({word_of(value.arguments[0])})", value.span)
    if isinstance(value, ast.Word) and value.text == FieldType.ENUM:
        state.wrong(source, value.span, f"an enum takes its values, in quotes: {_SAMPLE_ENUM}")
        return {"type": None}
    type_names = [_SAMPLE_ENUM if kind is FieldType.ENUM else kind.value for kind in FieldType] + [f"{OPTIONAL}(text)"]
    reason = "optional is given twice" if called == OPTIONAL else "unknown type of field"
    return {"type": _one_of(state, source, value, type_names, reason), **more}


def _retention(state: Building, source: Source, value: ast.Value, data: dict[str, Any], path: Path) -> None:
    here: Path = (*path, "retention")
    for name in ("", "kind", "duration_ms", "count", "when", "field"):
        state.places[(*here, name) if name else here] = (source, value.span)
    data["retention"] = {"kind": RetentionKind.PERSISTENT.value}  # an invalid one has its fault already
    if isinstance(value, ast.Word) and value.text in _PLAIN_RETENTIONS:
        data["retention"] = {"kind": value.text}
    elif isinstance(value, ast.Duration):
        data["retention"] = {"kind": RetentionKind.DURATION.value, "duration_ms": value.ms}
    elif isinstance(value, ast.Followed) and value.name.text == RetentionKind.COMPRESS_ON:
        when = trigger(state, source, value.value, (*here, "when"))
        if when is not None:
            data["retention"] = {"kind": RetentionKind.COMPRESS_ON.value, "when": when}
    elif isinstance(value, ast.Call) and value.name.text == RetentionKind.MAX:
        number = value.arguments[0] if len(value.arguments) == 1 else None
        if isinstance(number, ast.Number) and number.is_whole and len(number.text) < 19:
            data["retention"] = {"kind": RetentionKind.MAX.value, "count": number.value}
        else:
            state.wrong(source, value.span, "max takes a number of records: max(100)")
    elif isinstance(value, ast.Call) and value.name.text == RetentionKind.UNTIL:
        field = value.arguments[0] if len(value.arguments) == 1 else None
        if isinstance(field, ast.Word):
            data["retention"] = {"kind": RetentionKind.UNTIL.value, "field": field.text}
        else:
            state.wrong(source, value.span, "until takes the field of an instant: until(expires_at)")
    elif word_of(value) == RetentionKind.COMPRESS_ON:
        state.wrong(source, value.span, "compress_on needs a trigger: compress_on: scope_close")
    else:
        state.wrong(source, value.span, "unknown retention", got=word_of(value), expected=RETENTIONS)


def _indexes(state: Building, source: Source, value: ast.Value, data: dict[str, Any], path: Path) -> None:
    indexes: list[dict[str, Any]] = []
    data["indexes"] = indexes
    state.places[(*path, "indexes")] = (source, value.span)
    if not isinstance(value, ast.NamedValues):
        state.wrong(source, value.span, "indexes are a table: { field: btree }")
        return
    for pair in value.pairs:
        if not isinstance(pair.key, ast.Word):
            state.wrong(source, pair.key.span, "the name of a field is written without quotes")
        here: Path = (*path, "indexes", len(indexes))
        state.places[here] = (source, pair.span)
        state.places[(*here, "field")] = (source, pair.key.span)
        state.places[(*here, "type")] = (source, pair.value.span)
        kind = _one_of(state, source, pair.value, IndexType, "unknown type of index")
        if kind is not None:
            indexes.append({"field": key_of(pair), "type": kind})


def _lifecycle(state: Building, source: Source, value: ast.Value, data: dict[str, Any], path: Path) -> None:
    for name in ("lifecycle", "closes_on"):
        state.places[(*path, name)] = (source, value.span)
    if isinstance(value, ast.Word) and value.text == Lifecycle.EXPLICIT:
        data["lifecycle"] = value.text
    elif isinstance(value, ast.Call) and value.name.text == Lifecycle.AUTO_CLOSE and len(value.arguments) == 1:
        when = trigger(state, source, value.arguments[0], (*path, "closes_on"))
        if when is not None:
            data.update(lifecycle=Lifecycle.AUTO_CLOSE.value, closes_on=when)
    elif word_of(value) == Lifecycle.AUTO_CLOSE:
        state.wrong(source, value.span, "auto_close takes one trigger: auto_close(scope_close)")
    else:
        state.wrong(source, value.span, "unknown lifecycle", got=word_of(value), expected=LIFECYCLES)


def _artifacts(state: Building, source: Source, value: ast.Value, data: dict[str, Any], path: Path) -> None:
    state.places[(*path, "artifacts")] = (source, value.span)
    if not isinstance(value, ast.Items):
        state.wrong(source, value.span, 'artifacts are a list of types: ["fact", "code_patch"]')
        return
    found: list[str] = []
    for item in value.items:
        name = word_of(item)
        if isinstance(item, ast.Text | ast.Word) and name in tuple(ArtifactType):
            state.places[(*path, "artifacts", len(found))] = (source, item.span)
            found.append(name)
        else:
            state.wrong(source, item.span, "unknown type of artifact", got=name, expected=[*ArtifactType])
    data["artifacts"] = found


def _parent(state: Building, source: Source, value: ast.Value, data: dict[str, Any], path: Path) -> None:
    state.places[(*path, "parent")] = (source, value.span)
    if isinstance(value, ast.Word):
        data["parent"] = value.text
    else:
        state.wrong(source, value.span, "a parent is the name of a memory")


def _key(state: Building, source: Source, value: ast.Value, data: dict[str, Any], path: Path) -> None:
    state.places[(*path, "key")] = (source, value.span)
    if not isinstance(value, ast.Items) or not value.items:
        state.wrong(source, value.span, "a key is a list of fields: [name]")
        return
    data["key"] = []
    for item in value.items:
        if isinstance(item, ast.Word):
            state.places[(*path, "key", len(data["key"]))] = (source, item.span)
            data["key"].append(item.text)
        else:
            state.wrong(source, item.span, "the name of a field is written without quotes")


def _inject_on(state: Building, source: Source, value: ast.Value, data: dict[str, Any], path: Path) -> None:
    state.places[(*path, "inject_on")] = (source, value.span)
    if not isinstance(value, ast.Items) or not value.items:
        state.wrong(source, value.span, "inject_on is a list of triggers: [task_start]")
        return
    data["inject_on"] = []
    for item in value.items:
        when = trigger(state, source, item, (*path, "inject_on", len(data["inject_on"])))
        if when is not None:
            data["inject_on"].append(when)
