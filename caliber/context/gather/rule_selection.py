"""Selection of records by injection rules: apply each rule's filter and mode, then settle precedence among rules.

Each rule is judged alone: the ten most relevant records of its filter are the same ten whatever other rules exist. A
record that several rules select is assigned to the rule of highest precedence.

Source: C-217 to C-222, C-465, O-15, docs/decisions/0166.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from caliber.config.injection import InjectionKind
from caliber.context import limits
from caliber.context.conversation import PASSAGE
from caliber.context.gather.scores import BySimilarity, Flat, Scored, found_scored, judge
from caliber.context.inputs import AssemblyInputs, TextSource
from caliber.context.plan import AssemblyPlan, SectionPlan, source_type_of
from caliber.context.rules import RulePlan
from caliber.dsl.variables import variables_of
from caliber.model.references import ScopeId
from caliber.model.windows import CutOff
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.predicates import let_through, mask
from caliber.schema.traits import Enters
from caliber.schema.validity import asked_us
from caliber.search.request import Pool, Relevance

if TYPE_CHECKING:
    from caliber.search.searcher import Searcher

Bools = NDArray[np.bool_]
Rows = NDArray[np.int64]
_Limit = tuple[str, int, float | None]
_Owners = dict[int, NDArray[np.int32]]

FILTER: Final = "filter"
"""Name of a cut-off by a rule's own filter; ``condition`` holds the filter."""
TAKEN: Final = "taken_by:"
"""Prefix of the name of a cut-off in favour of a better rule."""
_NOTHING: Final = Scored(np.empty(0, np.float32))
_ONE: Final = np.float32(1)
_LEAST: Final = -1.0
"""The least similarity there is."""


@dataclass(slots=True)
class Selection:
    """The records that one rule selects. Of ``considered`` candidates the filter let ``through`` some."""

    section: SectionPlan
    rule: RulePlan
    owners: RelationSnapshot
    considered: int
    through: int
    rows: Rows
    scored: Scored
    cut_offs: list[CutOff] = field(default_factory=list)

    def cut(self, name: str, limit: int | None, score: float | None, considered: int, kept: int) -> None:
        """Record excluded records, one entry for all of them."""
        kind = source_type_of(self.section.source)
        text = self.rule.text if name == FILTER else None
        self.cut_offs.append(CutOff(kind, name, limit, score, considered, self.rule.name, kept, text))


@dataclass(frozen=True, slots=True, eq=False)
class _Input:
    """A rule, and the rows that match its filter."""

    section: SectionPlan
    rule: RulePlan
    owners: RelationSnapshot
    considered: int
    allowed: Bools
    count: int


class RuleSelector:
    """The rules of one assembly. ``eligible`` returns the rows of a source that may enter at all."""

    def __init__(
        self,
        inputs: AssemblyInputs,
        plan: AssemblyPlan,
        texts: TextSource,
        scope_id: ScopeId | None,
        eligible: Callable[[int], Bools],
    ) -> None:
        self._inputs = inputs
        self._plan = plan
        self._texts = texts
        self._scope_id = scope_id
        self._eligible = eligible
        self.degraded: Sequence[str] = ()
        self.hidden: Rows = np.empty(0, np.int64)
        """Turns that no rule may select: the last user message and the turns after it."""

    def filtered(self, rule: RulePlan, source: int, owners: RelationSnapshot, among: Bools) -> Bools:
        """Return the rows that match a rule's filter."""
        if rule.predicate is None:
            return among
        inputs = self._inputs
        at = asked_us(owners.relation, inputs.as_of_us, inputs.now_us)
        variables = variables_of(inputs.trajectory_id, self._scope_id, inputs.principal, at)
        # A filter that does not depend on the task is evaluated over all rows, so that its mask can be cached; a filter
        # on the task is evaluated over the rows of that task only.
        anyones = source == PASSAGE or owners.relation.in_windows.enters in (Enters.KNOWLEDGE, Enters.FOUND)
        ask = let_through if anyones else mask
        return ask(rule.predicate, owners, variables, self._texts.texts, among)

    def select(self, searcher: Searcher, selected: dict[int, Bools]) -> list[Selection]:
        """Return the selection of each rule. ``selected`` marks rows that entered already; this adds to it."""
        asked = [self._ask(section) for section in self._plan.rule_sections]
        out = [self._selection(item, *found) for item, found in zip(asked, self._judged(asked, searcher), strict=True)]
        owner: _Owners = {}
        for at in range(len(out)):
            self._resolve(at, out, selected, owner)
        return out

    def _ask(self, section: SectionPlan) -> _Input:
        rule = section.rule
        assert rule is not None
        owners = self._inputs.snapshot[self._plan.records[section.source].name]
        eligible = self._eligible(section.source)
        if section.source == PASSAGE and len(self.hidden):
            eligible = eligible.copy()
            eligible[self.hidden] = False
        allowed = self.filtered(rule, section.source, owners, eligible)
        considered = int(np.count_nonzero(eligible))
        count = considered if allowed is eligible else int(np.count_nonzero(allowed))
        return _Input(section, rule, owners, considered, allowed, count)

    def _judged(
        self, asked: Sequence[_Input], searcher: Searcher
    ) -> Iterator[tuple[Flat | BySimilarity, Relevance | None]]:
        """Yield for each rule the scorer of its records, and the search hits if a search ranks them."""
        asking = [item for item in asked if item.rule.asks]
        flat = Flat(_ONE)
        if not asking:
            yield from ((flat, None) for _ in asked)
            return
        inputs = [item for item in asking if item.owners.relation.name in searcher.kinds]
        searched = [item for item in inputs if item.count and self._most(item)]
        scorer, found = judge(
            self._inputs,
            self._plan,
            lambda: [self._pool(item) for item in searched],
            searcher,
        )
        self.degraded = scorer.degraded
        by_item = {} if found is None else {id(item): one for item, one in zip(searched, found, strict=True)}
        nothing = None if found is None else Relevance(np.empty(0, np.int64), np.empty(0, np.float32), {})
        for item in asked:
            if item.rule.asks and (item in inputs or isinstance(scorer, BySimilarity)):
                yield scorer, by_item.get(id(item), nothing)
            else:
                yield flat, None  # records that the search cannot score are selected newest first

    def _pool(self, item: _Input) -> Pool:
        excluded = self.hidden if item.section.source == PASSAGE else None
        return Pool(item.owners.relation.name, item.allowed, self._most(item), excluded=excluded)

    def _most(self, item: _Input) -> int:
        """Return how many records a rule that asks takes at most."""
        if item.rule.kind is InjectionKind.TOP_K:
            return min(item.rule.mode.count or 0, item.count)
        return min(limits.RELEVANT_LIMIT, item.count)

    def _selection(self, item: _Input, scorer: Flat | BySimilarity, found: Relevance | None) -> Selection:
        nothing = np.empty(0, np.int64)
        chosen = Selection(item.section, item.rule, item.owners, item.considered, item.count, nothing, _NOTHING)
        if item.owners.relation.in_windows.enters is Enters.KNOWLEDGE:
            chosen.considered = self._inputs.totals.get(item.owners.relation.name, item.considered)
        if item.count < chosen.considered and item.rule.predicate is not None:
            chosen.cut(FILTER, None, None, chosen.considered, item.count)
        if found is not None:
            self._searched(chosen, item, found)
        elif item.rule.asks and isinstance(scorer, BySimilarity):
            self._similar(chosen, item, scorer)
        else:
            self._newest(chosen, item, scorer)
        return chosen

    # --- the modes -------------------------------------------------------------------------------

    def _searched(self, chosen: Selection, item: _Input, found: Relevance) -> None:
        scored = found_scored(found)
        rows, limit = found.rows, self._most(item)
        name = "relevance_limit" if len(rows) >= limit else "not_found"
        worst = float(scored.relevance[-1]) if len(rows) and len(rows) >= limit else None
        least = item.rule.mode.min_relevance
        if least is not None:
            near = np.flatnonzero(scored.relevance >= np.float32(least))
            if len(near) < len(rows):
                rows, scored, name, worst = rows[near], scored.at(near), "min_relevance", float(least)
        self._keep(chosen, item, rows, scored, (name, limit, worst))

    def _similar(self, chosen: Selection, item: _Input, scorer: BySimilarity) -> None:
        least = item.rule.mode.min_relevance
        limit = self._most(item)
        picked = scorer.nearest(item.owners, item.allowed, limit, _LEAST if least is None else least)
        if picked is None:
            self._newest(chosen, item, scorer)
            return
        self._keep(chosen, item, picked.rows, picked.scored, (picked.filter, limit, picked.worst))

    def _newest(self, chosen: Selection, item: _Input, scorer: Flat | BySimilarity) -> None:
        """Select the newest rows: where a rule selects all, or nothing can rank them."""
        mode = item.rule.mode
        if item.rule.kind is InjectionKind.TOP_K:
            limit = mode.count or 0
        elif item.rule.kind is InjectionKind.RELEVANT:
            limit = limits.RECENCY_FALLBACK_LIMIT
        else:
            limit = limits.RULE_LIMIT
        age = item.owners.column(item.owners.relation.age)
        rows = np.flatnonzero(item.allowed)
        if len(rows) > limit:
            rows = item.owners.evaluator.newest(item.allowed, age, item.owners.ties(), limit)
        name, bar = "newest", float(age[rows[-1]]) if len(rows) and len(rows) < item.count else None
        scored = scorer.score(item.owners.relation.name, item.owners, rows)
        if mode.min_relevance is not None:
            near = np.flatnonzero(scored.relevance >= np.float32(mode.min_relevance))
            if len(near) < len(rows):
                rows, scored, name, bar = rows[near], scored.at(near), "min_relevance", mode.min_relevance
        self._keep(chosen, item, rows, scored, (name, limit, bar))

    def _keep(self, chosen: Selection, item: _Input, rows: Rows, scored: Scored, limit: _Limit) -> None:
        chosen.rows, chosen.scored = rows, scored
        if len(rows) < item.count:
            chosen.cut(*limit, item.count, len(rows))

    # --- one record, one rule --------------------------------------------------------------------

    def _resolve(self, at: int, every: Sequence[Selection], selected: dict[int, Bools], owner: _Owners) -> None:
        chosen = every[at]
        source = chosen.section.source
        marked = selected.get(source)
        if marked is None:
            marked = selected[source] = np.zeros(chosen.owners.length, np.bool_)
        by = owner.setdefault(source, np.full(chosen.owners.length, -1, np.int32))
        lost = marked[chosen.rows]
        if lost.any():
            before = len(chosen.rows)
            for other in np.unique(by[chosen.rows[lost]]).tolist():
                name = every[other].rule.name if other >= 0 else source_type_of(source).value
                count = int(np.count_nonzero(by[chosen.rows[lost]] == other))
                chosen.cut(TAKEN + name, None, None, before, before - count)
            kept = np.flatnonzero(~lost)
            chosen.rows, chosen.scored = chosen.rows[kept], chosen.scored.at(kept)
        marked[chosen.rows] = True
        by[chosen.rows] = at
