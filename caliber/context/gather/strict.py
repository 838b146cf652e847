"""Candidate gathering for windows filled strictly by priority: turns of the open scope, records of the task.

Source: C-449 to C-455, C-466, K-074, K-080, K-096, K-097.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from caliber.context.conversation import PASSAGE, SCOPES, SPOKEN, SUMMARY
from caliber.context.gather.candidates import (
    Gathered,
    Members,
    Part,
    begun,
    join,
    kept_by_limit,
    knowledge_records,
    made_part,
    marked,
    pools_of,
    task_records,
)
from caliber.context.gather.dialogue import place_of_current, since
from caliber.context.gather.rule_selection import FILTER, RuleSelector, Selection
from caliber.context.gather.scores import Scorer, scorer_of
from caliber.context.gather.shared import as_passages
from caliber.context.gather.turns import TurnFacts, TurnReader
from caliber.context.inputs import AssemblyInputs, TextSource
from caliber.context.plan import AssemblyPlan, source_type_of
from caliber.context.texts import FixedText
from caliber.model.windows import CutOff

if TYPE_CHECKING:
    from caliber.search.searcher import Searcher


def gather_strict(
    inputs: AssemblyInputs,
    plan: AssemblyPlan,
    fixed: tuple[FixedText, ...],
    reader: TurnReader,
    searcher: Searcher,
    texts: TextSource,
) -> Gathered:
    """Return every candidate of an assembly whose sections are filled strictly by priority.

    Raises: NotFound for an unknown trajectory; InvalidValue, InvalidVector for a wrong mask or query vector.
    """
    cut_offs: list[CutOff] = []
    scope_id, open_turns, members, rules = begun(inputs, plan, searcher, texts)
    turns = _current_turns(reader, plan, rules, open_turns, cut_offs)
    parts: list[Part] = []
    degraded: Sequence[str] = ()
    if not plan.governed:
        scorer = scorer_of(inputs, plan, lambda: pools_of(inputs, plan, members), searcher)
        parts = [
            *task_records(inputs, plan, scorer, members, cut_offs),
            *knowledge_records(inputs, plan, scorer, members, cut_offs),
            _summaries(inputs, plan, scorer, members, cut_offs),
        ]
        degraded = scorer.degraded
    selections: list[Selection] = []
    if plan.rule_sections:
        rules.hidden = turns.rows  # the conversation includes them, and no section is filled twice
        selections = rules.select(searcher, marked(inputs, plan, parts))
        parts += [_taken(inputs, plan, texts, chosen) for chosen in selections]
        cut_offs += [cut for chosen in selections for cut in chosen.cut_offs]
        degraded = degraded or rules.degraded
    candidates = join(inputs, plan, fixed, turns, [part for part in parts if len(part.rows)])
    return Gathered(candidates, scope_id, cut_offs, [*inputs.degraded, *members.degraded, *degraded], selections)


def _current_turns(
    reader: TurnReader, plan: AssemblyPlan, rules: RuleSelector, scope: bytes | None, cut_offs: list[CutOff]
) -> TurnFacts:
    if scope is None:
        return TurnFacts.none()
    limit, rule, keep = plan.config.assembly.max_turns, plan.user.rule, None
    if rule is not None and rule.predicate is not None:
        keep = partial(rules.filtered, rule, SPOKEN, reader.turns)
    turns, considered, through = reader.gather(scope, limit, keep)
    if plan.turns_by_rules_only:
        return turns.at(since(turns, place_of_current(reader, turns)))
    name = None if rule is None else rule.name
    if rule is not None and through < considered:
        cut_offs.append(CutOff(source_type_of(SPOKEN), FILTER, None, None, considered, name, through, rule.text))
    if len(turns) < through:
        oldest = float(turns.numbers[0]) if len(turns) else None
        kept = None if rule is None else len(turns)
        cut_offs.append(CutOff(source_type_of(SPOKEN), "newest", limit, oldest, through, name, kept))
    return turns


def _summaries(
    inputs: AssemblyInputs, plan: AssemblyPlan, scorer: Scorer, members: Members, cut_offs: list[CutOff]
) -> Part:
    scopes, rows = inputs.snapshot[SCOPES], members.summaries
    scored, age = scorer.score(SCOPES, scopes, rows), scopes.column(scopes.relation.age)
    by = scored if scorer.ranks else None
    kept = kept_by_limit(SUMMARY, age, scopes, rows, by, plan.config.assembly.summary_limit, cut_offs)
    if len(kept) < len(rows):
        rows, scored = rows[kept], scored.at(kept)
    return made_part(SUMMARY, plan.history_index, scopes, rows, scored)


def _taken(inputs: AssemblyInputs, plan: AssemblyPlan, texts: TextSource, chosen: Selection) -> Part:
    part = made_part(chosen.section.source, chosen.section.index, chosen.owners, chosen.rows, chosen.scored)
    # Candidates are considered one by one: each recalled turn is a passage by itself.
    return as_passages(inputs, plan, texts, part, apart=True) if chosen.section.source == PASSAGE else part
