"""Compiler of policies and rules of injection, and of the triggers that memories and policies share.

Source: C-147 to C-157, C-226, K-065, K-067.
"""

from __future__ import annotations

from typing import Any, Final

from caliber.config.injection import InjectionKind
from caliber.config.policies import PolicyAction, PolicyTarget
from caliber.dsl import ast
from caliber.dsl.building import Building, Filter, NoData, Path, plain, word_of
from caliber.dsl.printer import value_text
from caliber.dsl.source import Source
from caliber.model.declared import Trigger

_ARGUMENTS: Final = {
    PolicyAction.PRUNE: "what to prune and which of it: prune(note, older_than(30d))",
    PolicyAction.INJECT: "what to inject and in which form: inject(note, relevant(0.7))",
}


def policy(state: Building, source: Source, definition: ast.Definition) -> None:
    """Compile one policy."""
    assert definition.name is not None
    rules: list[dict[str, Any]] = []
    path = state.add("policies", {"name": definition.name.text, "rules": rules}, source, definition.name.span)
    for entry in definition.entries:
        if not isinstance(entry, ast.Rule):
            state.wrong(source, entry.span, "a policy holds rules: on trigger: [actions]")
            continue
        here: Path = (*path, "rules", len(rules))
        rule = trigger(state, source, entry.trigger, here)
        if rule is None:
            continue
        rules.append(rule)
        rule["actions"] = []
        state.places[(*here, "actions")] = (source, entry.actions.span)
        for item in entry.actions.items:
            action = _action(state, source, item, str(rule["on"]))
            if action is not None:
                _places(state, source, item, (*here, "actions", len(rule["actions"])))
                rule["actions"].append(action)
        if entry.actions.items and not rule["actions"]:
            rules.pop()  # it has its faults already


def trigger(state: Building, source: Source, value: ast.Value, path: Path) -> dict[str, Any] | None:
    """Return a trigger as data, with its position recorded under a path, or None for an invalid one."""
    names = [item.value for item in Trigger]
    found: dict[str, Any] | None = None
    if isinstance(value, ast.Word) and value.text in names and value.text != Trigger.SCHEDULE:
        found = {"on": value.text}
    elif isinstance(value, ast.Call) and value.name.text == Trigger.SCHEDULE:
        if len(value.arguments) == 1 and isinstance(value.arguments[0], ast.Text):
            found = {"on": Trigger.SCHEDULE.value, "cron": value.arguments[0].value}
        else:
            state.wrong(source, value.span, 'a schedule takes one text of five cron fields: schedule("0 3 * * *")')
    else:
        word = word_of(value)
        expected = [f'{name}("0 3 * * *")' if name == Trigger.SCHEDULE else name for name in names]
        said = f"{word} is not a trigger" if word else "unknown trigger"
        reason = "schedule needs its cron fields" if word == Trigger.SCHEDULE else said
        state.wrong(source, value.span, reason, got=word, expected=expected)
    if found is not None:
        for place in (path, *((*path, key) for key in found)):
            state.places[place] = (source, value.span)
    return found


def _places(state: Building, source: Source, item: ast.Value, path: Path) -> None:
    state.places[path] = (source, item.span)
    if isinstance(item, ast.Call):
        for name, argument in zip(("target", "mode"), item.arguments, strict=False):
            state.places[(*path, name)] = (source, argument.span)


def _action(state: Building, source: Source, item: ast.Value, on: str) -> dict[str, Any] | None:
    names = [action.value for action in PolicyAction]
    if not isinstance(item, ast.Call) or item.name.text not in names:
        state.wrong(source, item.span, "unknown action", got=word_of(item), expected=[f"{name}(…)" for name in names])
        return None
    action = PolicyAction(item.name.text)
    if action is PolicyAction.NOTIFY:
        if len(item.arguments) == 1 and isinstance(item.arguments[0], ast.Text):
            return {"action": action.value, "channel": item.arguments[0].value}
        state.wrong(source, item.span, 'notify takes the name of a channel: notify("done")')
        return None
    expected = 2 if action in _ARGUMENTS else 1
    target = item.arguments[0] if item.arguments else None
    if len(item.arguments) != expected or not isinstance(target, ast.Word):
        state.wrong(source, item.span, f"{action} takes {_ARGUMENTS.get(action, 'what it is done to')}")
        return None
    out: dict[str, Any] = {"action": action.value, "target": target.text}
    if action is PolicyAction.EXTRACT_ARTIFACTS and target.text == PolicyTarget.TRAJECTORY and on == Trigger.TASK_END:
        out["action"] = PolicyAction.CONSOLIDATE_NOTES.value  # K-067
    if action is PolicyAction.PRUNE:
        return _criterion(state, source, item.arguments[1], out)
    if action is PolicyAction.INJECT:
        mode = mode_of(state, source, item.arguments[1])
        return None if mode is None else {**out, "mode": mode}
    return out


def _criterion(state: Building, source: Source, item: ast.Value, out: dict[str, Any]) -> dict[str, Any] | None:
    argument = item.arguments[0] if isinstance(item, ast.Call) and len(item.arguments) == 1 else None
    name = item.name.text if isinstance(item, ast.Call) else ""
    if name == "older_than" and isinstance(argument, ast.Duration):
        return {**out, "older_than_ms": argument.ms}
    if name == "below_confidence" and isinstance(argument, ast.Number):
        return {**out, "below_confidence": float(argument.value)}
    state.wrong(source, item.span, "prune takes older_than(30d) or below_confidence(0.3)", got=name)
    return None


TARGET: Final = "context"
INJECTION_SETTINGS: Final = ("mode", "priority", "max_tokens", "filter", "name")
INJECTION_MODES: Final = ("full", "summary", "top_k(10)", "relevant(0.7)")
_SETTINGS_NEEDED: Final = ("mode", "priority")


def injection_rule(state: Building, source: Source, definition: ast.Definition) -> None:
    """Compile one ``inject NAME into context { … }``."""
    assert definition.name is not None
    into = definition.into
    if into is not None and into.text != TARGET:
        reason = f"records are injected into {TARGET}, and nothing else"  # C-239
        state.wrong(source, into.span, reason, got=into.text, expected=(TARGET,))
    data: dict[str, Any] = {"memory": definition.name.text}
    path = state.add("injection_rules", data, source, definition.name.span)
    state.places[(*path, "memory")] = (source, definition.name.span)
    settings = state.settings(source, definition, INJECTION_SETTINGS)
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
        state.wrong(source, value.span, "unknown mode of injection", got=word, expected=INJECTION_MODES)
    return None
