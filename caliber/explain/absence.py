"""Reason why a record never became a candidate of a window: the filter or limit that excluded it, or a failed search.

It is judged from the record as it is now and from the inputs that the window had; changes since then are named.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Set
from dataclasses import field
from datetime import datetime
from typing import Any, Final

from caliber.context import limits
from caliber.context.conversation import PASSAGE, SCOPES, TURNS
from caliber.context.facts import WindowFacts
from caliber.context.plan import AssemblyPlan, source_type_of
from caliber.context.rules import RulePlan
from caliber.dsl.variables import variables_of
from caliber.explain.rescore import CurrentScore
from caliber.explain.rule_filters import failing, values_of
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import from_us
from caliber.model.trajectory import Scope, Turn
from caliber.model.windows import CutOff
from caliber.schema.relation import Relation
from caliber.schema.traits import Enters
from caliber.schema.validity import asked_us, why_not
from caliber.storage.compile.damage import stored_instant

_OF_SEARCH: Final = ("relevance_limit", "not_found")
"""Limits that exclude records where a search decides on relevance."""


Above = Set[uuid.UUID]


@dataclass(frozen=True, slots=True)
class Absence:
    """``verdict`` is ``filtered``, ``cut_off`` or ``changed_since``."""

    verdict: str
    reason: str
    filter: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)


def why_absent(
    entity: Any,
    source: int,
    facts: WindowFacts,
    plan: AssemblyPlan,
    score: CurrentScore | None,
    above: Above = frozenset(),
    unreached: str | None = None,
) -> Absence:
    """Return why an existing record was no candidate; ``score`` computes its present relevance to the query, if
    possible.

    ``above`` are the parent tasks of the window's task, whose records can enter too; ``unreached`` is the reason why a
    window of this task cannot recall the record, if it cannot.
    """
    now, kind, relation = from_us(facts.now_us), source_type_of(source), plan.records[source]
    if _made(entity) > now:
        return _filtered("created_later", f"it was written at {_made(entity).isoformat()}, after the window")
    gone: datetime | None = getattr(entity, "rolled_back_at", None)
    if gone is not None and gone <= now:
        return _filtered("rolled_back", f"it was rolled back at {gone.isoformat()}")
    cuts = [item for item in facts.cut_offs if item.source_type is kind]
    unruled = [item for item in cuts if item.rule is None]
    absence: Absence | None
    enters = relation.in_windows.enters
    if plan.governed and relation.name == TURNS:
        absence = _turn_by_rules(entity, facts, plan, cuts, score, unreached)
    elif plan.governed:
        absence = _lifecycle(entity, relation, facts, above) if enters is not Enters.TASK else None
        absence = absence or _by_rules(entity, source, facts, plan, cuts, score, above)
        absence = absence or _lifecycle(entity, relation, facts, above)
    else:
        absence = _unrecalled(entity, source, facts, plan, unruled, score, above, unreached)
    if absence is not None:
        return absence
    reason = "nothing about it explains this any more: it must have been changed, hidden or embedded since the window"
    return Absence("changed_since", reason)


def _lifecycle(entity: Any, relation: Relation, facts: WindowFacts, above: Above) -> Absence | None:
    """Return the reason that kept a record out before any limit: its owner, or its validity."""
    if relation.name == SCOPES and entity.trajectory_id != facts.trajectory_id:
        return _filtered("other_trajectory", f"it belongs to trajectory {entity.trajectory_id}")
    ended = _ended(entity, relation, facts)
    if (
        ended is not None
        or relation.in_windows.enters is not Enters.TASK
        or entity.trajectory_id == facts.trajectory_id
    ):
        return ended
    of_ancestors = _of_ancestors(entity, relation, facts, [])
    if of_ancestors is not None or entity.trajectory_id in above:
        return of_ancestors
    return _filtered("other_trajectory", f"it belongs to trajectory {entity.trajectory_id}, not to one visible here")


def _ended(entity: Any, relation: Relation, facts: WindowFacts) -> Absence | None:
    """Return the reason why a record's time ended, for records of any owner."""
    now = from_us(facts.now_us)
    if relation.name == SCOPES:
        return _scope_ended(entity, now)
    found = why_not(relation, entity, from_us(asked_us(relation, facts.as_of_us, facts.now_us)), now)
    return None if found is None else _filtered(*found)


def _age(entity: Any, relation: Relation) -> datetime | int:
    age: datetime | int = getattr(entity, "turn_number" if relation.name == TURNS else relation.age)
    return age


# --- recall --------------------------------------------------------------------------------------


def _unrecalled(
    entity: Any,
    source: int,
    facts: WindowFacts,
    plan: AssemblyPlan,
    cuts: list[CutOff],
    score: CurrentScore | None,
    above: Above,
    unreached: str | None,
) -> Absence | None:
    """Return why a record neither belongs to the window's task nor was recalled, where the budget is shared."""
    relation = plan.records[source]
    enters = relation.in_windows.enters
    absence = _ended(entity, relation, facts)
    if absence is not None:
        return absence
    if enters is Enters.KNOWLEDGE:
        return _known_cut(entity, relation, cuts, score)
    if enters is Enters.FOUND and relation.text is None:
        why = "its memory has neither an embedding nor a text that is indexed by words: no search finds its records"
        return _filtered("not_searched", why)
    task = getattr(entity, "trajectory_id", None)
    if task == facts.trajectory_id or (enters is Enters.TASK and task in above):
        absence = _cut(_age(entity, relation), cuts) or _of_ancestors(entity, relation, facts, cuts)
        if absence is None and not _recalls(facts, plan):
            # A query that recalls nothing still ranks the artifacts of the task.
            absence = _unanswering(entity, cuts) or _search_cut(cuts, score)
        if absence is not None or relation.name == SCOPES:
            return absence
    if not _recalls(facts, plan):
        if task is not None and task != facts.trajectory_id:
            why = f"it belongs to trajectory {task}, and {_silence(facts, plan)}"
            return _filtered("other_trajectory", why)
        if relation.name == TURNS:
            why = f"the conversation does not look back as far, and {_silence(facts, plan)}"
            return _filtered("too_long_ago", why)
        return _filtered("no_recall", _silence(facts, plan)) if enters is Enters.FOUND or task is None else None
    if unreached is not None:
        return _filtered("out_of_reach", unreached)
    return _search_cut(cuts, score) or _unanswering(entity, cuts)


def _recalls(facts: WindowFacts, plan: AssemblyPlan) -> bool:
    """Return whether a window recalled anything at all."""
    return _asked(facts) and plan.config.assembly.relevance == "search" and plan.config.recall.limit > 0


def _asked(facts: WindowFacts) -> bool:
    return facts.query_embedding is not None or bool((facts.query or "").strip())


def _silence(facts: WindowFacts, plan: AssemblyPlan) -> str:
    """Return why a window recalled nothing."""
    if not _asked(facts):
        return "without a query nothing is recalled"
    if plan.config.assembly.relevance != "search":
        return "by vectors alone (assembly.relevance) nothing is recalled"
    return "with recall.limit = 0 nothing is recalled"


# --- rules ---------------------------------------------------------------------------------------


def _by_rules(
    entity: Any,
    source: int,
    facts: WindowFacts,
    plan: AssemblyPlan,
    cuts: list[CutOff],
    score: CurrentScore | None,
    above: Above,
) -> Absence | None:
    """Return the outcome of each rule that could have brought a record."""
    rules = [section.rule for section in plan.rule_sections if section.source == source and section.rule]
    if not rules:
        return _filtered("no_rule", f"records enter by rules only, and none brings any of {plan.records[source].name}")
    relation = plan.records[source]
    at = asked_us(relation, facts.as_of_us, facts.now_us)
    verdicts = [_by_rule(entity, relation, rule, at, facts, cuts, score, _age(entity, relation)) for rule in rules]
    verdicts_known = [item for item in verdicts if item is not None]
    if not verdicts_known or (
        relation.in_windows.enters is Enters.TASK and all(item.verdict == "cut_off" for item in verdicts_known)
    ):
        other = _lifecycle(entity, relation, facts, above)
        if other is not None or not verdicts_known:
            return other
    return _joined(verdicts_known)


def _by_rule(
    entity: Any,
    relation: Relation,
    rule: RulePlan,
    at_us: int,
    facts: WindowFacts,
    cuts: list[CutOff],
    score: CurrentScore | None,
    age: datetime | int,
) -> Absence | None:
    """Return the outcome of one rule that could have brought a record."""
    if rule.predicate is not None:
        variables = variables_of(facts.trajectory_id, facts.scope_id, facts.principal, at_us)
        reason = failing(rule.predicate, values_of(relation, entity), variables)
        if reason:
            numbers = {"rule": rule.name, "condition": rule.text}
            return Absence("filtered", f"the rule {rule.name} filters it: {reason}", "rule", numbers)
    own_cuts = [item for item in cuts if item.rule == rule.name]
    cut = _cut(age, own_cuts) or _search_cut(own_cuts, score) or _similarity_cut(own_cuts, score)
    if cut is None and rule.predicate is None and not rule.asks:
        cut = _unanswering(entity, own_cuts)
    if cut is not None:
        reason = f"the rule {rule.name} ({rule.mode.shown}) left it out: {cut.reason}"
        return Absence("cut_off", reason, cut.filter, {**cut.numbers, "rule": rule.name})
    if relation.name == TURNS and rule.predicate is not None and (entity.tool_calls or entity.tool_call_id):
        reason = "it goes with a tool call or its results, and the filter does not let all of these through"
        numbers = {"rule": rule.name, "condition": rule.text}
        return Absence("filtered", f"the rule {rule.name} filters it: {reason}", "rule", numbers)
    return None


def _turn_by_rules(
    turn: Turn,
    facts: WindowFacts,
    plan: AssemblyPlan,
    cuts: list[CutOff],
    score: CurrentScore | None,
    unreached: str | None,
) -> Absence | None:
    """Return the reason that kept a turn out of the conversation, and out of the rules' recall."""
    relation = plan.records[PASSAGE]
    ranking = [section.rule for section in plan.rule_sections if section.source == PASSAGE and section.rule]
    verdicts: list[Absence | None] = []
    if ranking and unreached is not None:
        verdicts.append(_filtered("out_of_reach", unreached))
    else:
        verdicts += [_by_rule(turn, relation, rule, facts.now_us, facts, cuts, score, _made(turn)) for rule in ranking]
    if not plan.turns_by_rules_only and turn.trajectory_id == facts.trajectory_id:
        verdicts.append(_unspoken(turn, relation, facts, plan, cuts))
    verdicts_known = [item for item in verdicts if item is not None]
    if verdicts_known:
        return _joined(verdicts_known)
    if turn.trajectory_id == facts.trajectory_id:
        return None
    return _filtered("other_trajectory", f"it belongs to trajectory {turn.trajectory_id}")


def _unspoken(
    turn: Turn, relation: Relation, facts: WindowFacts, plan: AssemblyPlan, cuts: list[CutOff]
) -> Absence | None:
    """Return the reason that kept a turn of the window's task out of the conversation."""
    rule, number = plan.user.rule, turn.turn_number
    if rule is not None:
        absence = _by_rule(turn, relation, rule, facts.now_us, facts, cuts, None, number)
    else:
        unruled = [item for item in cuts if item.rule is None]
        absence = _cut(number, unruled) or _unanswering(turn, unruled)
    if absence is None and turn.scope_id != facts.scope_id:
        absence = _filtered("too_long_ago", "the conversation does not look back as far")
    return absence


def _joined(verdicts: list[Absence]) -> Absence:
    """Return the joint outcome of several rules for a record; a limit comes first."""
    first = next((item for item in verdicts if item.verdict == "cut_off"), verdicts[0])
    if len(verdicts) == 1:
        return first
    return Absence(first.verdict, "; ".join(item.reason for item in verdicts), first.filter, first.numbers)


def _similarity_cut(cuts: list[CutOff], now: CurrentScore | None) -> Absence | None:
    """Return whether a rule's relevance, or the limit on the most similar, kept a record out."""
    for cut in cuts:
        if cut.filter not in ("min_relevance", "min_similarity", "similarity_limit"):
            continue
        if now is None:
            relevance_now = "its relevance to the query is not known any more"
        elif cut.filter == "similarity_limit":
            relevance_now = f"as everything is now, its relevance is {now.score:.4f}"
        else:
            relevance_now = (
                f"as everything is now, its relevance is {now.score:.4f}, and the rule asks for {cut.cutoff_score}"
            )
        reason = f"{cut.kept} of {cut.considered} were near enough to the query; {relevance_now}"
        return Absence("cut_off", reason, cut.filter, {"score": None if now is None else now.score, **_bar(cut)})
    return None


def _made(entity: Any) -> datetime:
    made: datetime = entity.created_at
    return made


def _filtered(name: str, reason: str) -> Absence:
    return Absence("filtered", reason, name)


def _known_cut(entity: Any, relation: Relation, cuts: list[CutOff], now: CurrentScore | None) -> Absence | None:
    """Return the limit that kept out a record that belongs to no task."""
    if not cuts:
        return None
    cut = cuts[0]
    if cut.filter == "newest":
        return _cut(_age(entity, relation), cuts)
    if cut.filter in _OF_SEARCH:
        return _search_cut(cuts, now)
    score = None if now is None else now.score
    numbers: dict[str, Any] = {"score": score, "cutoff_score": cut.cutoff_score, "limit": cut.limit}
    least = limits.NOTE_MIN_SIMILARITY
    if score is None:
        unknown = "its similarity to the query is not known any more, or it has no vector in the query's space"
        bar = "" if cut.cutoff_score is None else f"; the search stopped at {cut.cutoff_score:.4f}"
        return Absence("cut_off", f"{unknown}{bar}", cut.filter, numbers)
    if score < least:
        reason = f"its similarity to the query, {score:.4f}, is below {least:.4f}"
        return Absence("cut_off", reason, "min_similarity", numbers)
    reason = (
        f"the {cut.limit} most similar of {cut.considered} {relation.plural} were taken, down to "
        f"{cut.cutoff_score:.4f}; its similarity is {score:.4f}"
    )
    return Absence("cut_off", reason, cut.filter, numbers)


def _search_cut(cuts: list[CutOff], now: CurrentScore | None) -> Absence | None:
    """Return whether a limit on the most relevant, or that nothing was found in common, kept a record out."""
    found = [cut for cut in cuts if cut.filter in _OF_SEARCH]
    if not found:
        return None
    cut = found[0]
    kept = f"the {cut.limit} most relevant of {cut.considered} were taken"
    if cut.cutoff_score is not None:
        kept += f", down to {cut.cutoff_score:.4f}"
    if cut.filter == "not_found":
        kept = f"of {cut.considered}, only what the search for the query found was taken"
    if now is None:
        reason = f"{kept}; what the search makes of it is not known any more"
        return Absence("cut_off", reason, cut.filter, {"score": None, **_bar(cut)})
    if now.score:
        parts = ", ".join(f"{name} {value:.4f}" for name, value in now.breakdown.items())
        reason = f"{kept}; as everything is now, its relevance is {now.score:.4f} ({parts})"
    else:
        reason = f"{kept}; it has too little in common with the query, in words and in meaning, to count as found"
    return Absence("cut_off", reason, cut.filter, {"score": now.score, "breakdown": dict(now.breakdown), **_bar(cut)})


def _bar(cut: CutOff) -> dict[str, Any]:
    return {"cutoff_score": cut.cutoff_score, "limit": cut.limit, "considered": cut.considered}


def _of_ancestors(entity: Any, relation: Relation, facts: WindowFacts, cuts: list[CutOff]) -> Absence | None:
    """Return whether the limit on records of trajectories above the window's kept one out."""
    if relation.in_windows.enters is not Enters.TASK or entity.trajectory_id == facts.trajectory_id:
        return None
    for cut in cuts:
        if cut.filter.startswith("ancestors:"):
            strategy = cut.filter.removeprefix("ancestors:")
            reason = (
                f"of {cut.considered} {relation.plural} of trajectories above this one, {cut.limit} were kept "
                f"({strategy}); if it belongs to one of them, it was not among those"
            )
            return Absence("cut_off", reason, cut.filter, {"limit": cut.limit, "cutoff_score": cut.cutoff_score})
    return None


def _scope_ended(scope: Scope, now: datetime) -> Absence | None:
    if scope.closed_at is None or scope.closed_at > now:
        return _filtered("open", "it was open: only the summaries of closed scopes enter a window")
    if not scope.summary:
        return _filtered("no_summary", "it has no summary")
    return None


def _cut(value: datetime | int, cuts: list[CutOff]) -> Absence | None:
    """Return whether a limit to the newest records excluded a record of this age."""
    for cut in cuts:
        if cut.filter != "newest":
            continue
        numbers = {"limit": cut.limit, "considered": cut.considered}
        reason = f"only the newest {cut.limit} of {cut.considered} were considered"
        if cut.cutoff_score is None:
            return Absence("cut_off", reason, cut.filter, numbers)
        if isinstance(value, datetime):
            oldest = stored_instant(int(cut.cutoff_score))
            if value <= oldest:
                reason += f": the oldest of them is from {oldest.isoformat()}, this is from {value.isoformat()}"
                return Absence("cut_off", reason, cut.filter, {**numbers, "oldest": oldest.isoformat()})
        elif value < cut.cutoff_score:
            reason += f": they begin at number {int(cut.cutoff_score)}, this is number {value}"
            return Absence("cut_off", reason, cut.filter, {**numbers, "oldest": int(cut.cutoff_score)})
    return None


def _unanswering(entity: Any, cuts: list[CutOff]) -> Absence | None:
    """Return whether a limit kept out the call that a result answers, and the result with it."""
    if getattr(entity, "tool_call_id", None) is None:
        return None
    for cut in cuts:
        if cut.filter == "newest":
            reason = (
                f"only the newest {cut.limit} of {cut.considered} were considered: the call that this is a result of "
                "is older, and a result does not enter without its call"
            )
            return Absence("cut_off", reason, cut.filter, {"limit": cut.limit, "considered": cut.considered})
    return None
