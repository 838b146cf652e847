"""Context assembly: candidates, ranking, filling, the window, its record, explain and replay."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caliber.context.again import ScoredNow, asked_again, score_now
    from caliber.context.asking import DefaultQuery, default_query, stated_query
    from caliber.context.assembled import Assembled
    from caliber.context.assembler import assemble
    from caliber.context.candidates import current_scope
    from caliber.context.explainer import ExplainSource, explain
    from caliber.context.facts import WindowFacts
    from caliber.context.inputs import AssemblyInputs, ContentSource, TextSource
    from caliber.context.plan import plan_of
    from caliber.context.planning import RuleOutcome, WindowPlan, window_plan
    from caliber.context.record import Record, principal_of, unpack_record
    from caliber.context.replayer import replay
    from caliber.context.rules import OneShot

_HOME = {
    "Assembled": "assembled",
    "DefaultQuery": "asking",
    "default_query": "asking",
    "stated_query": "asking",
    "AssemblyInputs": "inputs",
    "ContentSource": "inputs",
    "ExplainSource": "explainer",
    "OneShot": "rules",
    "Record": "record",
    "RuleOutcome": "planning",
    "ScoredNow": "again",
    "TextSource": "inputs",
    "WindowFacts": "facts",
    "WindowPlan": "planning",
    "asked_again": "again",
    "assemble": "assembler",
    "current_scope": "candidates",
    "explain": "explainer",
    "plan_of": "plan",
    "principal_of": "record",
    "replay": "replayer",
    "score_now": "again",
    "unpack_record": "record",
    "window_plan": "planning",
}

__all__ = [
    "Assembled",
    "AssemblyInputs",
    "ContentSource",
    "DefaultQuery",
    "ExplainSource",
    "OneShot",
    "Record",
    "RuleOutcome",
    "ScoredNow",
    "TextSource",
    "WindowFacts",
    "WindowPlan",
    "asked_again",
    "assemble",
    "current_scope",
    "default_query",
    "explain",
    "plan_of",
    "principal_of",
    "replay",
    "score_now",
    "stated_query",
    "unpack_record",
    "window_plan",
]


def __getattr__(name: str) -> Any:
    # A room that needs one of these does not wait for the others.
    if name not in _HOME:
        raise AttributeError(f"module 'caliber.context' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"caliber.context.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
