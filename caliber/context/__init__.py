"""Context assembly: candidates, ranking, filling, the window, its record, explain and replay."""

from caliber.context.again import ScoredNow, asked_again, score_now
from caliber.context.assembled import Assembled
from caliber.context.assembler import assemble
from caliber.context.candidates import current_scope
from caliber.context.explainer import ExplainSource, explain
from caliber.context.facts import WindowFacts
from caliber.context.inputs import AssemblyInputs, ContentSource, TextSource
from caliber.context.plan import estimator_of, plan_of
from caliber.context.planning import RuleOutcome, WindowPlan, window_plan
from caliber.context.record import Record, principal_of, unpack_record
from caliber.context.replayer import replay
from caliber.context.rules import OneShot

__all__ = [
    "Assembled",
    "AssemblyInputs",
    "ContentSource",
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
    "estimator_of",
    "explain",
    "plan_of",
    "principal_of",
    "replay",
    "score_now",
    "unpack_record",
    "window_plan",
]
