"""Evidence held by assembled windows, and by the two simplest ways to fill the same budget.

A question is asked where an agent would ask it: as the last user turn of a new task of the same owner, or of the task
that holds the conversation. A window holds a turn when the turn's whole text stands in ``ContextWindow.text`` as one
message: after a label or the beginning of a line, up to the end of a line. A turn that was cut is not held. A
question's evidence held is the share of its evidence turns; figures are means over questions.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from caliber.context.estimating import estimator_of
from caliber.kernels import estimate_tokens
from caliber.model.enums import AssemblyAction, SourceType
from caliber.model.windows import AssemblyDecision, ContextWindow
from caliber.runtime.caliber import Caliber
from retrieval.asking import INITIATOR, Kept, Stores
from retrieval.conversations import Question, Turn

BUDGETS = (500, 1_000, 2_000, 4_000, 8_000)

NEW, SAME = "new task", "same task"
SEARCH_AND_FILL, WITH_DAYS, NEWEST = "search and fill", "search and fill, with days", "newest turns"
PLACES = (NEW, SAME)
BASELINES = (SEARCH_AND_FILL, WITH_DAYS, NEWEST)

_STEPS = {
    "relevance_threshold": "below the floor",
    "section_limit": "section full",
    "budget_limit": "budget full",
    "group_limit": "tool call did not fit",
    "dosage_limit": "dosage",
    "overflow_truncate": "cut",
}
"""What a decision of the trace is called in the table; other rule ids stand for themselves."""


@dataclass(frozen=True)
class Asked:
    """One question, one place, one budget: the evidence held, and the step that lost each missed turn.

    Units: ``evidence_tokens`` of the held turns' texts, ``used_tokens`` of the whole, ``seconds`` of the assembly.
    """

    conversation: str
    question: str
    category: int
    place: str
    budget: int
    held: frozenset[str]
    evidence: frozenset[str]
    evidence_tokens: int
    used_tokens: int
    seconds: float = 0.0
    lost: Mapping[str, str] = field(default_factory=dict)
    ranks: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The share of the question's evidence that is held."""
        return len(self.held) / len(self.evidence)


def by_name(turn: Turn) -> str:
    """Return a turn as ``name: text``: the rendering of the figures 0.871, 0.904 and 0.935."""
    return f"{turn.speaker}: {turn.text}"


def by_name_and_day(turn: Turn) -> str:
    """Return a turn as ``[name, 8 May 2023] text``."""
    return f"[{turn.speaker}, {turn.said_at.day} {turn.said_at:%B %Y}] {turn.text}"


@lru_cache(maxsize=8_192)
def _whole(content: str) -> re.Pattern[str]:
    words = r"\s+".join(map(re.escape, content.split()))
    return re.compile(rf"(?:^|[\]:>)-][ \t]*|[\r\n][ \t]*){words}[ \t]*(?:[\r\n]|\Z)")


def holds(text: str, content: str) -> bool:
    """Return whether a window's text has a turn's whole content as one message; white space may differ."""
    return bool(content.split()) and _whole(content).search(text) is not None


def fill(order: Sequence[Turn], render: Callable[[Turn], str], tokens: Callable[[str], int], budget: int) -> list[Turn]:
    """Return the turns that fit, in order, until the first that does not: lines counted with their line breaks."""
    text, out = "", []
    for turn in order:
        more = f"{text}{render(turn)}\n"
        if tokens(more) > budget:
            break
        text = more
        out.append(turn)
    return out


def ask_windows(
    stores: Stores,
    overrides: Mapping[str, Any],
    budgets: Sequence[int] = BUDGETS,
    places: Sequence[str] = PLACES,
    *,
    held_out: Mapping[str, Mapping[str, Any]] | None = None,
    as_query: bool = False,
    baselines: bool = True,
    why: bool = True,
) -> list[Asked]:
    """Ask every question in every place at every budget.

    ``held_out`` has knobs by conversation; ``as_query`` passes the question as ``query=`` besides appending it.
    """
    out: list[Asked] = []
    for kept in stores.kept:
        own = {} if held_out is None else held_out[kept.conversation.name]
        with stores.open(kept.path, {**own, **overrides}) as memory:
            one = _Conversation(memory, kept, as_query=as_query, why=why)
            for question in kept.conversation.questions:
                out += one.ask(question, budgets, places, baselines=baselines)
    return out


class _Conversation:
    """One conversation in its open store."""

    def __init__(self, memory: Caliber, kept: Kept, *, as_query: bool, why: bool) -> None:
        self._memory = memory
        self._kept = kept
        self._as_query = as_query
        self._why = why
        self._turns = {turn.name: turn for turn in kept.conversation.turns}
        self._ids = {name: uuid.UUID(record_id) for record_id, name in kept.names.items()}
        self._estimator = estimator_of(memory.config)

    def tokens(self, text: str) -> int:
        return estimate_tokens(text, estimator=self._estimator)

    def ask(
        self, question: Question, budgets: Sequence[int], places: Sequence[str], *, baselines: bool
    ) -> Iterator[Asked]:
        # Searched before the question is a turn itself.
        limit = self._memory.config.search.limit_max
        hits = self._memory.search(question.text, kinds=("turn",), limit=limit).hits
        found = [self._turns[self._kept.names[str(hit.id)]] for hit in hits]
        ranks = {turn.name: rank for rank, turn in enumerate(found, 1)}
        if baselines:
            newest = self._kept.conversation.turns[::-1]
            ways = ((SEARCH_AND_FILL, found, by_name), (WITH_DAYS, found, by_name_and_day))
            for place, order, render in (*ways, (NEWEST, newest, by_name_and_day)):
                for budget in budgets:
                    yield self._filled(question, place, budget, fill(order, render, self.tokens, budget), render)
        for place in places:
            yield from self._assembled(question, place, budgets, ranks)

    def _filled(
        self, question: Question, place: str, budget: int, turns: Sequence[Turn], render: Callable[[Turn], str]
    ) -> Asked:
        used = self.tokens("".join(f"{render(turn)}\n" for turn in turns))
        return self._result(question, place, budget, {turn.name for turn in turns} & question.evidence, used)

    def _result(
        self, question: Question, place: str, budget: int, held: set[str] | frozenset[str], used: int, **more: Any
    ) -> Asked:
        spent = sum(self.tokens(self._turns[name].text) for name in held)
        return Asked(
            self._kept.conversation.name, question.text, question.category, place, budget,
            frozenset(held), question.evidence, spent, used, **more,
        )  # fmt: skip

    def _assembled(
        self, question: Question, place: str, budgets: Sequence[int], ranks: Mapping[str, int]
    ) -> Iterator[Asked]:
        memory = self._memory
        if place == NEW:
            task = memory.start_trajectory("A new conversation", initiator=INITIATOR).trajectory_id
        else:
            task = self._kept.task
        scope = memory.current_scope(task)
        assert scope is not None
        turn = memory.append_turn(scope.scope_id, role="user", content=question.text)
        try:
            memory.flush()  # the question's own vector is made behind
            query = question.text if self._as_query else None
            for budget in budgets:
                began = time.perf_counter()
                window = memory.assemble_context(task, query=query, max_tokens=budget)
                seconds = time.perf_counter() - began
                text = window.text
                held = {name for name in question.evidence if holds(text, self._turns[name].text)}
                missed = sorted(question.evidence - held) if self._why else ()
                decisions = {d.target_id: d for d in window.assembly_trace} if missed else {}
                lost = {name: self._step(window, name, decisions, ranks.get(name)) for name in missed}
                yield self._result(
                    question, place, budget, held, window.used_tokens,
                    seconds=seconds, lost=lost, ranks={name: ranks.get(name) for name in missed},
                )  # fmt: skip
        finally:
            # Another question's window must not recall this question.
            memory.storage.turns.delete(turn.turn_id)

    def _step(
        self,
        window: ContextWindow,
        name: str,
        decisions: Mapping[uuid.UUID | None, AssemblyDecision],
        rank: int | None,
    ) -> str:
        """Return which step lost an evidence turn: the trace's decision, or why it was no candidate."""
        wanted = self._ids[name]
        decision = decisions.get(wanted)
        if decision is not None:
            if decision.action is AssemblyAction.INCLUDE:
                return "in the trace, not in the text"
            if decision.source_type is SourceType.TURN and "left with its block" in decision.reason:
                return "evicted"
            return _STEPS.get(decision.rule_id, decision.rule_id)
        if rank is None:
            return "not found"
        said = self._memory.explain(window.window_id, exclusion=wanted)
        return f"no candidate: {said.get('filter') or said['verdict']}"
