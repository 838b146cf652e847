"""Command ``check --explain``: prints a setting's meaning and the origin of its value."""

from __future__ import annotations

import dataclasses
from typing import Any

from caliber.cli.failures import DONE, UsageError
from caliber.cli.settings import Settings
from caliber.config import CaliberConfig
from caliber.config.bases import Origin
from caliber.config.manual import explaining
from caliber.config.manual.explaining import Explanation, shown
from caliber.model.errors import InvalidConfigValue, MultipleErrors


def explain(settings: Settings, key: str) -> int:
    """Print the explanation of a knob, or of all knobs of a section."""
    config, origin, missing = _config(settings)
    inner = explaining.below(key)
    if inner:
        every = [explaining.explain(name, config) for name in inner]
        document: Any = {"section": key, "knobs": [_document(one, origin, missing) for one in every]}
        document["base"] = None if origin is None else origin.base
        settings.out.result(document, lambda: _print_section(settings, key, every, origin))
        return DONE
    try:
        one = explaining.explain(key, config)
    except InvalidConfigValue as error:
        raise UsageError(f"{key}: {error.context['reason']}", "docs/configuration.md lists all knobs") from None
    settings.out.result(_document(one, origin, missing), lambda: _print(settings, one, origin, missing))
    return DONE


def _config(settings: Settings) -> tuple[CaliberConfig | None, Origin | None, str | None]:
    """Return the configuration and its base, or the reason why there is none: a knob can be explained without."""
    named = settings.config is not None
    try:
        path = settings.config_path()
    except UsageError:
        return None, None, "there is no configuration here"
    if not path.exists():
        if named:
            raise UsageError(f"{path}: there is no such file", "write one with `caliber init`, or leave it out")
        return None, None, f"{path} does not exist"
    try:
        config, _, origin = settings.check(None)
    except MultipleErrors:
        return None, None, f"{path} has faults: run `caliber check`"
    return config, origin, None


def _document(one: Explanation, origin: Origin | None, missing: str | None) -> dict[str, Any]:
    return {
        **dataclasses.asdict(one),
        "stated": None if origin is None else origin.states(one.key),
        "value_unknown": missing,
    }


def _print_section(settings: Settings, key: str, every: list[Explanation], origin: Origin | None) -> None:
    settings.out.print(f"{key}: {len(every)} knobs")
    for one in every:
        here = "" if origin is None else "  (this file)" if origin.states(one.key) else f"  (base {origin.base})"
        settings.out.print(f"  {one.key} = {shown(one.value, one.unit)}{here if one.value is not None else ''}")
        settings.out.print(f"      {one.meaning}")


def _print(settings: Settings, one: Explanation, origin: Origin | None, missing: str | None) -> None:
    def line(name: str, text: str) -> None:
        settings.out.print(f"  {name:<13}{text}")

    settings.out.print(one.key)
    settings.out.print(f"  {one.meaning}")
    line("accepts", f"{one.accepts or 'text'}{' Optional.' if one.optional else ''}")
    if one.unit:
        line("unit", one.unit)
    line("here", missing or shown(one.value, one.unit) + _origin(one, origin))
    if one.why:
        line("", one.why)
    if one.deviation:
        line("reference", one.deviation)
    for name, value in one.profiles.items():
        line("profiles" if name == next(iter(one.profiles)) else "", f"{name}: {shown(value, one.unit)}")


def _origin(one: Explanation, origin: Origin | None) -> str:
    if one.value is None:
        return ""
    if origin is not None and not origin.states(one.key):
        return f"  (from the base {origin.base})"
    here = "" if origin is None else "from this file; "
    return f"  ({here}as in {', '.join(one.value_from)})" if one.value_from else f"  ({here}no profile has this value)"
