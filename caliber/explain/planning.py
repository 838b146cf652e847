"""Dry-run report of injection rules: the records that each selected for a window, and what became of them.

Source: issue "The DSL and the policy engine", item 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from caliber.context.assembler import Assembled
from caliber.context.columns import SECTION, entered
from caliber.context.gather.asking import DefaultQuery
from caliber.context.gather.rule_selection import FILTER
from caliber.context.plan import SectionPlan
from caliber.context.trace import rule_id_of
from caliber.context.window import filled_sections
from caliber.model.lazy_dataclass import dataclass
from caliber.model.windows import ContextWindow, CutOff


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """One rule. ``once`` names the origin of a rule that holds for this window alone.

    Units: of ``considered`` records the filter matched ``through``, the rule selected ``selected``, and ``included``
    fit the budget. ``cost_tokens`` is the cost of all selected records, ``used_tokens`` that of the finished section;
    ``excluded`` counts selected records that are not in the window, by reason.
    """

    rule: str
    section: str
    memory: str
    mode: str
    filter: str | None
    priority: int
    cap_tokens: int | None
    considered: int
    through: int
    selected: int
    cost_tokens: int
    included: int
    used_tokens: int
    excluded: dict[str, int]
    once: str | None = None


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """A window that is not stored, and each rule's outcome, best first. Units: ``left_tokens`` of its budget."""

    window: ContextWindow
    rules: tuple[RuleOutcome, ...]
    left_tokens: int
    query: str | None
    query_from: str
    """Where the query came from: the caller, the last user turn, or the goal of the task."""


def window_plan(assembled: Assembled, query: DefaultQuery) -> WindowPlan:
    """Return the selection of each rule of a window, and its cost."""
    decided, window = assembled.decided, assembled.window
    plan = decided.plan
    out = [_outcome(assembled, (take.section,), take.considered, take.through) for take in assembled.selections]
    if plan.user.rule is not None:
        cuts = [cut for cut in window.cut_offs if cut.rule == plan.user.rule.name]
        count = int(np.count_nonzero(np.isin(decided.ranked[SECTION], [item.index for item in plan.conversation])))
        out.append(_outcome(assembled, plan.conversation, *_of_conversation(cuts, count)))
    out.sort(key=lambda item: -item.priority)
    unused = plan.budget(window.max_tokens) - window.used_tokens
    return WindowPlan(window, tuple(out), unused, query.text, query.origin)


def _of_conversation(cuts: list[CutOff], count: int) -> tuple[int, int]:
    """Return how many turns there were, and how many matched the filter; cut-offs record both."""
    for cut in cuts:
        if cut.filter == FILTER:
            return cut.considered, cut.kept or 0
    return (cuts[0].considered,) * 2 if cuts else (count, count)


def _outcome(assembled: Assembled, sections: Sequence[SectionPlan], considered: int, through: int) -> RuleOutcome:
    decided, section, rule = assembled.decided, sections[0], sections[0].rule
    assert rule is not None
    places = np.flatnonzero(np.isin(decided.ranked[SECTION], [item.index for item in sections]))
    codes = decided.filled.codes[places]
    included = len(entered(codes))
    reasons = Counter(rule_id_of(code) for code in codes.tolist())
    for code in set(codes[entered(codes)].tolist()):
        del reasons[rule_id_of(code)]
    return RuleOutcome(
        rule=rule.name,
        section=section.name,
        memory=rule.memory,
        mode=rule.mode.shown,
        filter=rule.text,
        priority=rule.priority,
        cap_tokens=section.cap_tokens,
        considered=considered,
        through=through,
        selected=len(places),
        cost_tokens=sum(decided.tokens(place) for place in places.tolist()),
        included=included,
        used_tokens=sum(item.tokens for item in filled_sections(decided) if item.section in sections),
        excluded=dict(sorted(reasons.items())),
        once=rule.origin,
    )
