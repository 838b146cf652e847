"""Compiler of ``inject`` definitions to injection rules of the configuration.

Source: C-156, C-160 to C-165.
"""

from __future__ import annotations

from typing import Any, Final

from caliber.config.injection import InjectionKind
from caliber.dsl import ast
from caliber.dsl.building import Building, Filter, NoData, plain, word_of
from caliber.dsl.printer import value_text
from caliber.dsl.source import Source

TARGET: Final = "context"
SETTINGS: Final = ("mode", "priority", "max_tokens", "filter", "name")
MODES: Final = ("full", "summary", "top_k(10)", "relevant(0.7)")
_SETTINGS_NEEDED: Final = ("mode", "priority")


def rule(state: Building, source: Source, definition: ast.Definition) -> None:
    """Compile one ``inject NAME into context { … }``."""
    assert definition.name is not None
    into = definition.into
    if into is not None and into.text != TARGET:
        reason = f"records are injected into {TARGET}, and nothing else"  # C-239
        state.wrong(source, into.span, reason, got=into.text, expected=(TARGET,))
    data: dict[str, Any] = {"memory": definition.name.text}
    path = state.add("injection_rules", data, source, definition.name.span)
    state.places[(*path, "memory")] = (source, definition.name.span)
    settings = state.settings(source, definition, SETTINGS)
    state.needed(source, definition, settings, _SETTINGS_NEEDED, f"a rule of {definition.name.text}")
    for key, setting in settings.items():
        state.places[(*path, key)] = (source, setting.value.span)
        if key == "mode":
            mode = mode_of(state, source, setting.value)
            if mode is not None:
                data["mode"] = mode
        elif key == "filter":
            data["filter"] = value_text(setting.value)
            state.filters.append(Filter(int(path[1]), source, setting.value))
        else:
            try:
                data[key] = plain(setting.value)
            except NoData as error:
                state.wrong(source, error.span, f"{key} is a {'word' if key == 'name' else 'number'}")


def mode_of(state: Building, source: Source, value: ast.Value) -> dict[str, Any] | None:
    """Return a mode of injection as data, or None for an invalid one."""
    if isinstance(value, ast.Word) and value.text in (InjectionKind.FULL, InjectionKind.SUMMARY):
        return {"kind": value.text}
    if isinstance(value, ast.Call) and len(value.arguments) == 1 and isinstance(value.arguments[0], ast.Number):
        number = value.arguments[0]
        if (
            value.name.text == InjectionKind.TOP_K
            and number.is_whole
            and 0 < len(number.text) < 19
            and number.value >= 1
        ):
            return {"kind": InjectionKind.TOP_K.value, "count": number.value}
        if value.name.text == InjectionKind.RELEVANT and len(number.text) < 64 and 0 <= number.value <= 1:
            return {"kind": InjectionKind.RELEVANT.value, "min_relevance": float(number.value)}
    word = word_of(value)
    about = {
        InjectionKind.TOP_K.value: "top_k takes how many, from 1 on: top_k(10)",
        InjectionKind.RELEVANT.value: "relevant takes a relevance from 0 to 1: relevant(0.7)",
    }
    if word in about:
        state.wrong(source, value.span, about[word])
    else:
        state.wrong(source, value.span, "unknown mode of injection", got=word, expected=MODES)
    return None
