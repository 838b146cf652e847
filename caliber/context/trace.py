"""Decisions about a window's candidates (class ``Decided``), the reason for each, and the trace made of them.

Source: C-055 to C-057, C-457 to C-459, C-298.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.context.columns import (
    MARK,
    ORDINAL,
    SECTION,
    SOURCE,
    STORED_TOKENS,
    TAIL_SHARE,
    TURN_NUMBER,
    TWIN,
    UNFIT,
    VERSION,
    Candidates,
)
from caliber.context.conversation import BLOCK, PASSAGE, SUMMARY
from caliber.context.filling.filled import NO_RESERVE, Filled, Reserve
from caliber.context.plan import AssemblyPlan, source_type_of
from caliber.model.context import AssemblyAction, DecisionCode
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import from_us
from caliber.model.windows import AssemblyDecision

_ACTIONS: Final = {
    DecisionCode.INCLUDED: AssemblyAction.INCLUDE,
    DecisionCode.INCLUDED_TRUNCATED: AssemblyAction.TRUNCATE,
    DecisionCode.INCLUDED_COMPRESSED: AssemblyAction.COMPRESS,
}
RULES: Final = {
    DecisionCode.INCLUDED: "standard_inclusion",
    DecisionCode.INCLUDED_TRUNCATED: "overflow_truncate",
    DecisionCode.INCLUDED_COMPRESSED: "overflow_compress",
    DecisionCode.EXCLUDED_RELEVANCE: "relevance_threshold",
    DecisionCode.EXCLUDED_SECTION_BUDGET: "section_limit",
    DecisionCode.EXCLUDED_BUDGET: "budget_limit",
    DecisionCode.EXCLUDED_GROUP: "group_limit",
    DecisionCode.EXCLUDED_DOSAGE: "dosage_limit",
    DecisionCode.EXCLUDED_ERROR: "embedding_error",
    DecisionCode.EXCLUDED_DUPLICATE: "duplicate",
    DecisionCode.EXCLUDED_EVICTED: "left_with_block",
    DecisionCode.EXCLUDED_SHOWN: "already_shown",
    DecisionCode.EXCLUDED_CONFLICT: "open_conflict",
}


def rule_id_of(code: int) -> str:
    """Return the name of a decision."""
    return RULES[DecisionCode(code)]


@dataclass(frozen=True, slots=True)
class Decided:
    """All decisions about one window's candidates, in canonical order.

    Shapes: sizes ``int64[n]`` lengths before any cut, -1 where no text was looked at; shown the same, after cuts.
    Units: ``counts`` the tokens of finished sections by index, where lengths do not add up; None where they do.
    """

    plan: AssemblyPlan
    max_tokens: int
    ranked: Candidates
    filled: Filled
    sizes: NDArray[np.int64]
    shown: NDArray[np.int64]
    reserve: Reserve = NO_RESERVE
    counts: Mapping[int, int] | None = None

    @property
    def sections(self) -> NDArray[np.int64]:
        """The section of each candidate, as filled."""
        out = self.ranked[SECTION]
        if self.filled.earlier and self.plan.earlier is not None:
            out = out.copy()
            out[list(self.filled.earlier)] = self.plan.earlier.index
        return out

    def tokens(self, place: int) -> int:
        """Return the tokens a candidate takes, or would have taken."""
        size = int(self.shown[place])
        return self.plan.tokens(size) if size >= 0 else int(self.ranked[STORED_TOKENS][place])

    def reason(self, place: int) -> str:
        """Return why a candidate is, or is not, in the window."""
        rule = self.rule(place)
        reason = self._reason(place)
        return reason if rule is None else f"rule {rule}: {reason}"

    def rule(self, place: int) -> str | None:
        """Return the name of the rule that brought a candidate."""
        rule = self.plan.sections[int(self.ranked[SECTION][place])].rule
        return None if rule is None else rule.name

    def _reason(self, place: int) -> str:
        plan, tokens = self.plan, self.tokens(place)
        code = DecisionCode(int(self.filled.codes[place]))
        source = int(self.ranked[SOURCE][place])
        section = plan.sections[int(self.ranked[SECTION][place])]
        relevance = float(self.ranked.relevance[place])
        if code is DecisionCode.INCLUDED:
            return f"included at rank {place} with relevance {relevance:.4f}, {tokens} tokens"
        if code is DecisionCode.INCLUDED_TRUNCATED:
            return f"cut from {plan.tokens(int(self.sizes[place]))} to {tokens} tokens, which were left"
        if code is DecisionCode.INCLUDED_COMPRESSED:
            whole = plan.tokens(int(self.sizes[place]))
            return f"did not fit whole: compressed from {whole} to {tokens} tokens"
        if code is DecisionCode.EXCLUDED_RELEVANCE:
            least = plan.config.min_relevance_threshold
            if relevance >= least:
                return f"relevance {relevance:.4f} is below {TAIL_SHARE:.0%} of the best"
            return f"relevance {relevance:.4f} is below the threshold {least:.4f}"
        if code is DecisionCode.EXCLUDED_ERROR:
            return "its vector cannot be compared with the query's: another model or another number of dimensions"
        if code is DecisionCode.EXCLUDED_DOSAGE:
            knob = plan.records[source].in_windows.most
            return f"better candidates fill the {self._dosage(source)} places that pcp.dosage.{knob} allows"
        if code is DecisionCode.EXCLUDED_GROUP:
            return "belongs to a tool call and its results, which did not fit whole"
        if code is DecisionCode.EXCLUDED_EVICTED:
            number, first = int(self.ranked[TURN_NUMBER][place]), self.filled.first_turn
            if first is None:
                return f"turn {number} left: before the last user message this window shows open calls alone"
            return f"turn {number} left with its block: the turns of this window begin at turn {first}"
        if code is DecisionCode.EXCLUDED_SHOWN:
            if source in (SUMMARY, BLOCK):
                return "the turns that it sums up are in the window, or next in line for its room"
            if source == PASSAGE:
                return "another section shows this turn"
            return "the conversation shows a turn that says the same"
        if code is DecisionCode.EXCLUDED_DUPLICATE:
            twin = int(self.ranked[TWIN][place])
            return f"a more relevant record, of ordinal {twin}, says the same"
        if code is DecisionCode.EXCLUDED_CONFLICT:
            ordinal = -int(self.ranked[TWIN][place])
            if int(self.ranked[MARK][place]) & UNFIT:
                return f"conflict {ordinal} is open: this record did not fit, and the one that contradicts it was tried"
            return f"conflict {ordinal} is open: the record that contradicts this one is preferred until it is resolved"
        if code is DecisionCode.EXCLUDED_SECTION_BUDGET:
            cap = plan.cap_of(section, self.max_tokens)
            if cap is None:
                cap = int(section.cap * plan.budget(self.max_tokens))
            return f"needs {tokens} tokens; section {section.name} may hold {cap} and is too full for it"
        budget = plan.budget(self.max_tokens)
        if section.index in self.filled.closed_sections:
            ratio = plan.config.assembly.fill_ratio
            return f"token_budget_exhausted: section {section.name} came when {ratio:.0%} of {budget} tokens were used"
        asked, room = self.filled.room(place)
        remaining = min(budget, plan.whole_tokens(room))
        by = "" if budget == self.max_tokens else " (pcp.dosage.max_context_tokens)"
        spare = plan.tokens(self.filled.spare)
        if spare:
            kept = f"{spare} kept free for the next turns"
            return f"needs {plan.tokens(asked)} tokens, but {remaining} were left, and {kept}"
        used = f"{budget - remaining}/{budget} were used and {remaining} left{by}"
        return f"needs {plan.tokens(asked)} tokens, but {used}"

    def _dosage(self, source: int) -> int:
        return next(limit for sources, limit in self.plan.most if source in sources)


def trace(decided: Decided, id_of: Callable[[int], uuid.UUID | None], now_us: int) -> tuple[AssemblyDecision, ...]:
    """Return one decision for each candidate, best-ranked first."""
    timestamp = from_us(now_us)
    ranked = decided.ranked
    sources = ranked[SOURCE].tolist()
    sections = decided.sections.tolist()
    ordinals = ranked[ORDINAL].tolist()
    versions = ranked[VERSION].tolist()
    relevances = ranked.relevance.tolist()
    out = []
    for place, value in enumerate(decided.filled.codes.tolist()):
        code = DecisionCode(value)
        out.append(
            AssemblyDecision(
                timestamp=timestamp,
                action=_ACTIONS.get(code, AssemblyAction.EXCLUDE),
                source_type=source_type_of(sources[place]),
                target_id=id_of(place),
                ordinal=ordinals[place],
                version=versions[place],
                reason=decided.reason(place),
                rule_id=RULES[code],
                tokens=decided.tokens(place),
                relevance=relevances[place],
                rank=place,
                breakdown=ranked.breakdown(place),
                rule=decided.rule(place),
                section=decided.plan.sections[sections[place]].name,
            )
        )
    return tuple(out)
