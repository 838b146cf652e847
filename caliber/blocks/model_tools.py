"""Tools by which a model edits memory blocks: their definitions for providers, and how a call is run. Source: P-019."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from caliber.model.errors import Conflict, ConstraintViolation, InputError, InvalidValue, NotFound, PermissionDenied

FORMS: Final = ("openai", "anthropic")
_TEXT: Final = {"type": "string"}
_LABEL: Final = {"type": "string", "description": "The label of the block, as it stands before its text."}
_TOOLS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "memory_append": ("append", "Add a text at the end of a memory block.", {"label": _LABEL, "text": _TEXT}),
    "memory_edit": (
        "edit",
        "Replace a part of a memory block. `old` must be in it exactly once; an empty `new` removes it.",
        {"label": _LABEL, "old": _TEXT, "new": _TEXT},
    ),
    "memory_insert": (
        "insert",
        "Insert lines into a memory block before line `line`, the first of which is 0.",
        {"label": _LABEL, "text": _TEXT, "line": {"type": "integer", "minimum": 0}},
    ),
    "memory_replace": ("replace", "Give a memory block another text.", {"label": _LABEL, "text": _TEXT}),
}
_REFUSED: Final = (Conflict, ConstraintViolation, InputError, NotFound, PermissionDenied)


def definitions(form: str) -> list[dict[str, Any]]:
    """Return the definitions of the tools. Raises: InvalidValue for another form."""
    if form not in FORMS:
        raise InvalidValue(field="form", reason=f"must be one of {', '.join(FORMS)}")
    out = []
    for name, (_, about, properties) in _TOOLS.items():
        schema = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        if form == "openai":
            function = {"name": name, "description": about, "parameters": schema}
            out.append({"type": "function", "function": function})
        else:
            out.append({"name": name, "description": about, "input_schema": schema})
    return out


def called(blocks: Any, name: Any, given: Mapping[str, Any] | str) -> str:
    """Run a call of a model. Raises: InvalidValue for an unknown tool."""
    if not isinstance(name, str) or name not in _TOOLS:
        raise InvalidValue(field="name", reason=f"is no tool of blocks; there are {', '.join(_TOOLS)}")
    method, _, properties = _TOOLS[name]
    try:
        values = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return "refused: the arguments are no JSON"
    if not isinstance(values, Mapping) or set(values) != set(properties):
        return f"refused: the arguments are {', '.join(properties)}, as one object"
    try:
        block = getattr(blocks, method)(**values)
    except _REFUSED as error:  # the model can do better when it knows why
        return f"refused: {error}"
    return f"done: {block.label} has {len(block.text)} of {block.max_chars} characters"
