"""Reason why a record never became a candidate of a window: the filter or limit that excluded it, or a failed search.

It is judged from the record as it is now and from the inputs that the window had; changes since then are named.
Source: C-460.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Set
from dataclasses import field, replace
from datetime import datetime
from typing import Any, Final

from caliber.context import limits
from caliber.context.conversation import PASSAGE, SCOPES, TURNS
from caliber.context.inputs import WindowFacts
from caliber.context.plan import AssemblyPlan, source_type_of
from caliber.context.rules import RulePlan
from caliber.dsl.variables import variables_of
from caliber.explain.replayer import CurrentScore
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import from_us
from caliber.model.windows import CutOff
from caliber.schema.predicate import All, Comparison, Either, OneOf, Predicate, Variable, holds
from caliber.schema.relation import Relation
from caliber.schema.traits import Enters
from caliber.schema.validity import asked_us, why_not
from caliber.storage.compile.codec import stored_instant

_OF_SEARCH: Final = ("relevance_limit", "not_found")
"""Limits that exclude records where a search decides on relevance."""


@dataclass(frozen=True, slots=True)
class Absence:
    """``verdict`` is ``filtered``, ``cut_off`` or ``changed_since``."""

    verdict: str
    reason: str
    filter: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Absent:
    """An existing record that was no candidate of a window; ``score`` is its present relevance to the query, if known.

    ``above`` are the parent tasks of the window's task, whose records can enter too; ``unreached`` is the reason why a
    window of this task cannot recall the record, if it cannot.
    """

    entity: Any
    source: int
    facts: WindowFacts
    plan: AssemblyPlan
    score: CurrentScore | None
    above: Set[uuid.UUID] = frozenset()
    unreached: str | None = None

    def why(self) -> Absence:
        """Return why it was no candidate."""
        entity, plan, relation, now = self.entity, self.plan, self._relation, from_us(self.facts.now_us)
        made: datetime = entity.created_at
        if made > now:
            return _filtered("created_later", f"it was written at {made.isoformat()}, after the window")
        gone: datetime | None = getattr(entity, "rolled_back_at", None)
        if gone is not None and gone <= now:
            return _filtered("rolled_back", f"it was rolled back at {gone.isoformat()}")
        absence: Absence | None
        if plan.governed and relation.name == TURNS:
            absence = self._turn_by_rules()
        elif plan.governed:
            absence = self._lifecycle() if not self._enters_by_task else None
            absence = absence or self._by_rules() or self._lifecycle()
        else:
            absence = self._unrecalled()
        if absence is not None:
            return absence
        reason = (
            "nothing about it explains this any more: it must have been changed, hidden or embedded since the window"
        )
        return Absence("changed_since", reason)

    @property
    def _relation(self) -> Relation:
        return self.plan.records[self.source]

    @property
    def _enters_by_task(self) -> bool:
        return self._relation.in_windows.enters is Enters.TASK

    @property
    def _is_own(self) -> bool:
        """True if it belongs to the window's task."""
        return bool(getattr(self.entity, "trajectory_id", None) == self.facts.trajectory_id)

    @property
    def _age(self) -> datetime | int:
        relation = self._relation
        age: datetime | int = getattr(self.entity, "turn_number" if relation.name == TURNS else relation.age)
        return age

    def _cuts(self, rule: str | None) -> list[CutOff]:
        """Return the limits of a rule, or those of no rule."""
        kind = source_type_of(self.source)
        return [item for item in self.facts.cut_offs if item.source_type is kind and item.rule == rule]

    def _lifecycle(self) -> Absence | None:
        """Return the reason that kept a record out before any limit: its owner, or its validity."""
        of_another = f"it belongs to trajectory {getattr(self.entity, 'trajectory_id', None)}"
        if self._relation.name == SCOPES and not self._is_own:
            return _filtered("other_trajectory", of_another)
        ended = self._ended()
        if ended is not None or not self._enters_by_task or self._is_own:
            return ended
        if self.entity.trajectory_id in self.above:
            return None
        return _filtered("other_trajectory", f"{of_another}, not to one visible here")

    def _ended(self) -> Absence | None:
        """Return the reason why a record's time ended, for records of any owner."""
        facts, entity, relation = self.facts, self.entity, self._relation
        now = from_us(facts.now_us)
        if relation.name != SCOPES:
            found = why_not(relation, entity, from_us(asked_us(relation, facts.as_of_us, facts.now_us)), now)
            return None if found is None else _filtered(*found)
        if entity.closed_at is None or entity.closed_at > now:
            return _filtered("open", "it was open: only the summaries of closed scopes enter a window")
        return None if entity.summary else _filtered("no_summary", "it has no summary")

    # --- recall ----------------------------------------------------------------------------------

    def _unrecalled(self) -> Absence | None:
        """Return why a record neither belongs to the window's task nor was recalled, where the budget is shared."""
        relation, cuts, silence = self._relation, self._cuts(None), self._silence()
        enters = relation.in_windows.enters
        absence = self._ended()
        if absence is not None:
            return absence
        if enters is Enters.KNOWLEDGE:
            return self._known_cut(cuts)
        if enters is Enters.FOUND and relation.text is None:
            why = "its memory has neither an embedding nor a text that is indexed by words: no search finds its records"
            return _filtered("not_searched", why)
        task = getattr(self.entity, "trajectory_id", None)
        if self._is_own or (self._enters_by_task and task in self.above):
            absence = _cut(self._age, cuts) or self._of_ancestors(cuts)
            if absence is None and silence:
                # A query that recalls nothing still ranks the artifacts of the task.
                absence = self._unanswering(cuts) or self._search_cut(cuts)
            if absence is not None or relation.name == SCOPES:
                return absence
        if silence:
            if task is not None and not self._is_own:
                return _filtered("other_trajectory", f"it belongs to trajectory {task}, and {silence}")
            if relation.name == TURNS:
                return _filtered("too_long_ago", f"the conversation does not look back as far, and {silence}")
            return _filtered("no_recall", silence) if enters is Enters.FOUND or task is None else None
        if self.unreached is not None:
            return _filtered("out_of_reach", self.unreached)
        return self._search_cut(cuts) or self._unanswering(cuts)

    def _silence(self) -> str | None:
        """Return why the window recalled nothing, or None if it recalled."""
        if self.facts.query_embedding is None and not (self.facts.query or "").strip():
            return "without a query nothing is recalled"
        if self.plan.config.assembly.relevance != "search":
            return "by vectors alone (assembly.relevance) nothing is recalled"
        return None if self.plan.config.recall.limit > 0 else "with recall.limit = 0 nothing is recalled"

    # --- rules -----------------------------------------------------------------------------------

    @property
    def _rules(self) -> list[RulePlan]:
        """The rules that bring records of its kind."""
        sections = self.plan.rule_sections
        return [section.rule for section in sections if section.source == self.source and section.rule]

    def _by_rules(self) -> Absence | None:
        """Return the outcome of each rule that could have brought a record."""
        relation, rules = self._relation, self._rules
        if not rules:
            return _filtered("no_rule", f"records enter by rules only, and none brings any of {relation.name}")
        at = asked_us(relation, self.facts.as_of_us, self.facts.now_us)
        verdicts = [item for rule in rules if (item := self._by_rule(rule, at, self._age)) is not None]
        if not verdicts or (self._enters_by_task and all(item.verdict == "cut_off" for item in verdicts)):
            other = self._lifecycle()
            if other is not None or not verdicts:
                return other
        return _joined(verdicts)

    def _by_rule(self, rule: RulePlan, at_us: int, age: datetime | int) -> Absence | None:
        """Return the outcome of one rule that could have brought a record."""
        facts, entity, relation = self.facts, self.entity, self._relation
        filtered_by = {"rule": rule.name, "condition": rule.text}
        if rule.predicate is not None:
            variables = variables_of(facts.trajectory_id, facts.scope_id, facts.principal, at_us)
            reason = failing(rule.predicate, values_of(relation, entity), variables)
            if reason:
                return Absence("filtered", f"the rule {rule.name} filters it: {reason}", "rule", filtered_by)
        own_cuts = self._cuts(rule.name)
        cut = _cut(age, own_cuts) or self._search_cut(own_cuts) or self._similarity_cut(own_cuts)
        if cut is None and rule.predicate is None and not rule.asks:
            cut = self._unanswering(own_cuts)
        if cut is not None:
            reason = f"the rule {rule.name} ({rule.mode.shown}) left it out: {cut.reason}"
            return Absence("cut_off", reason, cut.filter, {**cut.numbers, "rule": rule.name})
        if relation.name == TURNS and rule.predicate is not None and (entity.tool_calls or entity.tool_call_id):
            reason = "it goes with a tool call or its results, and the filter does not let all of these through"
            return Absence("filtered", f"the rule {rule.name} filters it: {reason}", "rule", filtered_by)
        return None

    def _turn_by_rules(self) -> Absence | None:
        """Return the reason that kept a turn out of the conversation, and out of the rules' recall."""
        passage = Absent(self.entity, PASSAGE, self.facts, self.plan, self.score)
        verdicts: list[Absence | None] = []
        if passage._rules and self.unreached is not None:
            verdicts.append(_filtered("out_of_reach", self.unreached))
        else:
            made: datetime = self.entity.created_at
            verdicts += [passage._by_rule(rule, self.facts.now_us, made) for rule in passage._rules]
        if not self.plan.turns_by_rules_only and self._is_own:
            verdicts.append(self._unspoken())
        verdicts_known = [item for item in verdicts if item is not None]
        if verdicts_known:
            return _joined(verdicts_known)
        if self._is_own:
            return None
        return _filtered("other_trajectory", f"it belongs to trajectory {self.entity.trajectory_id}")

    def _unspoken(self) -> Absence | None:
        """Return the reason that kept a turn of the window's task out of the conversation."""
        rule, number = self.plan.user.rule, self.entity.turn_number
        if rule is not None:
            absence = replace(self, score=None)._by_rule(rule, self.facts.now_us, number)
        else:
            unruled = self._cuts(None)
            absence = _cut(number, unruled) or self._unanswering(unruled)
        if absence is None and self.entity.scope_id != self.facts.scope_id:
            absence = _filtered("too_long_ago", "the conversation does not look back as far")
        return absence

    # --- limits ----------------------------------------------------------------------------------

    def _similarity_cut(self, cuts: list[CutOff]) -> Absence | None:
        """Return whether a rule's relevance, or the limit on the most similar, kept a record out."""
        for cut in cuts:
            if cut.filter not in ("min_relevance", "min_similarity", "similarity_limit"):
                continue
            score = None if self.score is None else self.score.score
            relevance_now = "its relevance to the query is not known any more"
            if score is not None:
                relevance_now = f"as everything is now, its relevance is {score:.4f}"
                if cut.filter != "similarity_limit":
                    relevance_now += f", and the rule asks for {cut.cutoff_score}"
            reason = f"{cut.kept} of {cut.considered} were near enough to the query; {relevance_now}"
            return Absence("cut_off", reason, cut.filter, {"score": score, **_bar(cut)})
        return None

    def _known_cut(self, cuts: list[CutOff]) -> Absence | None:
        """Return the limit that kept out a record that belongs to no task."""
        if not cuts:
            return None
        cut = cuts[0]
        if cut.filter == "newest":
            return _cut(self._age, cuts)
        if cut.filter in _OF_SEARCH:
            return self._search_cut(cuts)
        score = None if self.score is None else self.score.score
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
            f"the {cut.limit} most similar of {cut.considered} {self._relation.plural} were taken, down to "
            f"{cut.cutoff_score:.4f}; its similarity is {score:.4f}"
        )
        return Absence("cut_off", reason, cut.filter, numbers)

    def _search_cut(self, cuts: list[CutOff]) -> Absence | None:
        """Return whether a limit on the most relevant, or that nothing was found in common, kept a record out."""
        cut, now = next((cut for cut in cuts if cut.filter in _OF_SEARCH), None), self.score
        if cut is None:
            return None
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
        numbers = {"score": now.score, "breakdown": dict(now.breakdown), **_bar(cut)}
        return Absence("cut_off", reason, cut.filter, numbers)

    def _of_ancestors(self, cuts: list[CutOff]) -> Absence | None:
        """Return whether the limit on records of trajectories above the window's kept one out."""
        if not self._enters_by_task or self._is_own:
            return None
        for cut in cuts:
            if cut.filter.startswith("ancestors:"):
                strategy = cut.filter.removeprefix("ancestors:")
                reason = (
                    f"of {cut.considered} {self._relation.plural} of trajectories above this one, {cut.limit} were "
                    f"kept ({strategy}); if it belongs to one of them, it was not among those"
                )
                return Absence("cut_off", reason, cut.filter, {"limit": cut.limit, "cutoff_score": cut.cutoff_score})
        return None

    def _unanswering(self, cuts: list[CutOff]) -> Absence | None:
        """Return whether a limit kept out the call that a result answers, and the result with it."""
        if getattr(self.entity, "tool_call_id", None) is None:
            return None
        for cut in cuts:
            if cut.filter == "newest":
                reason = (
                    f"only the newest {cut.limit} of {cut.considered} were considered: the call that this is a result "
                    "of is older, and a result does not enter without its call"
                )
                return Absence("cut_off", reason, cut.filter, {"limit": cut.limit, "considered": cut.considered})
        return None


def _joined(verdicts: list[Absence]) -> Absence:
    """Return the joint outcome of several rules for a record; a limit comes first."""
    first = next((item for item in verdicts if item.verdict == "cut_off"), verdicts[0])
    if len(verdicts) == 1:
        return first
    return Absence(first.verdict, "; ".join(item.reason for item in verdicts), first.filter, first.numbers)


def _filtered(name: str, reason: str) -> Absence:
    return Absence("filtered", reason, name)


def _bar(cut: CutOff) -> dict[str, Any]:
    return {"cutoff_score": cut.cutoff_score, "limit": cut.limit, "considered": cut.considered}


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


def values_of(relation: Relation, entity: Any) -> dict[str, Any]:
    """Return an entity's value in each column of its relation."""
    spread = {column: (item.field, name) for item in relation.composites for name, column in item.parts}
    out = {}
    for column in relation.columns:
        place, name = spread.get(column.name, (None, column.name))
        owner = entity if place is None else getattr(entity, place, None)
        out[column.name] = getattr(owner, name, None)
    return out


def failing(predicate: Predicate, record: Mapping[str, Any], variables: Mapping[Variable, Any]) -> str:
    """Return in words which comparisons keep one record out, or nothing if none does."""
    from caliber.kernels.patterns import matches

    if holds(predicate, record, variables, matches):
        return ""
    match predicate:
        case All(conditions):
            first = next(item for item in conditions if not holds(item, record, variables, matches))
            return failing(first, record, variables)
        case Either(conditions):
            return ", and ".join(failing(item, record, variables) for item in conditions)
        case OneOf(column, values):
            return f"{column} {_shown(record[column])} is not one of {_shown(values)}"
        case Comparison(column, operator, value):
            value_of_record = record[column]
            operand = variables[value] if isinstance(value, Variable) else value
            shown = _shown(operand)
            if isinstance(value, Variable):
                shown = f"{value.value} ({shown})"
            return f"{column} {_shown(value_of_record)} is not {operator.value} {shown}"


_SHOWN_CHARS: Final = 120


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        text = value if len(value) <= _SHOWN_CHARS else value[: _SHOWN_CHARS - 1] + "…"
        return f'"{text}"'
    if isinstance(value, bytes):
        return _shown(value.decode("utf-8", "replace"))
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    return str(value)
