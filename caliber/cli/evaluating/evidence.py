"""Expected texts that a window holds, and the step of assembly that lost each of the others.

A window holds a record when its whole content stands in the text as one message: after a label or the beginning of a
line, up to the end of a line, whatever the white space. An expected text need only be contained.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from caliber.admin.absence import folded
from caliber.model.context import AssemblyAction
from caliber.model.errors import BudgetTooSmall, NotFound
from caliber.model.lazy_dataclass import dataclass
from caliber.model.windows import ContextWindow

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber

_CODE_OF_RULE: Final = {
    "relevance_threshold": "below_floor", "section_limit": "section_full", "budget_limit": "budget_full",
    "group_limit": "group", "dosage_limit": "dosage", "left_with_block": "evicted",
}  # fmt: skip
_SAYS_LESS: Final = {"truncated": 0, "already_shown": 2, "evicted": 3}
"""Which of several decisions about one record is given: the least; 1 for the others."""
_CODE_OF_FILTER: Final = {"min_relevance": "below_floor", "min_similarity": "below_floor", "not_found": "not_found"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A text that windows should hold, ``whole`` as one message; ``rank`` is where search finds the record ``id``."""

    label: str
    text: str
    id: uuid.UUID | None = None
    whole: bool = True
    rank: int | None = None

    def held_in(self, text: str) -> bool:
        """Return whether a window's text holds it."""
        if self.whole:
            return bool(self.text.split()) and _message(self.text).search(text) is not None
        return folded(self.text) in folded(text)


@lru_cache(maxsize=8_192)
def _message(content: str) -> re.Pattern[str]:
    words = r"\s+".join(map(re.escape, content.split()))
    return re.compile(rf"(?:^|[\]:>)-][ \t]*|[\r\n][ \t]*){words}[ \t]*(?:[\r\n]|\Z)")


@dataclass(frozen=True, slots=True)
class Lost:
    """The reason why a window lacks a text; ``code`` is stable, for programs."""

    code: str
    why: str


@dataclass(frozen=True, slots=True)
class Held:
    """One window: the labels of the expected texts that it holds, and the step that lost each of the others."""

    budget: int
    wanted: int
    held: frozenset[str]
    evidence_tokens: int
    used_tokens: int
    seconds: float = 0.0
    lost: Mapping[str, Lost] = field(default_factory=dict)
    degraded: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The share of the expected texts that the window holds."""
        return len(self.held) / self.wanted


def token_counter(memory: Caliber) -> Callable[[str], int]:
    """Return the configured estimator as a function."""
    from caliber.engine.refusals import estimator_of
    from caliber.kernels import estimate_tokens

    estimator = estimator_of(memory.config)
    return lambda text: estimate_tokens(text, estimator=estimator)


def windows_of(
    memory: Caliber,
    task: uuid.UUID,
    expected: Sequence[Wanted],
    budgets: Sequence[int],
    *,
    query: str | None,
    as_of: datetime | None = None,
    why: bool = True,
) -> Iterator[Held]:
    """Assemble one window of a task at each budget; ``query`` and ``as_of`` as ``Caliber.assemble_context``."""
    tokens = token_counter(memory)
    for budget in budgets:
        began = time.perf_counter()
        try:
            window = memory.assemble_context(task, query=query, max_tokens=budget, as_of=as_of)
        except BudgetTooSmall as error:
            lost = {item.label: Lost("budget_too_small", str(error)) for item in expected}
            yield Held(budget, len(expected), frozenset(), 0, 0, time.perf_counter() - began, lost)
            continue
        seconds = time.perf_counter() - began
        held = [item for item in expected if item.held_in(window.text)]
        labels = frozenset(item.label for item in held)
        lost = {item.label: _step(memory, window, item) for item in expected if why and item not in held}
        evidence = sum(tokens(item.text) for item in held)
        yield Held(budget, len(expected), labels, evidence, window.used_tokens, seconds, lost, window.degraded)


def _step(memory: Caliber, window: ContextWindow, expected: Wanted) -> Lost:
    """Return the last decision about a candidate, or why the record was none."""
    if expected.id is None:
        return Lost("no_such_record", "no record holds it, or the principal may not see one that does")
    lost = []
    for decision in window.assembly_trace:
        if decision.target_id == expected.id and decision.action is AssemblyAction.EXCLUDE:
            lost.append(Lost(_CODE_OF_RULE.get(decision.rule_id, decision.rule_id), decision.reason))
        elif decision.target_id == expected.id:
            lost.append(Lost("truncated", f"the window holds a part of it: {decision.reason}"))
    if lost:
        # A turn that was dropped from the conversation could still have been recalled: the reason why not says more.
        return min(lost, key=lambda item: _SAYS_LESS.get(item.code, 1))
    try:
        explained = memory.explain(window.window_id, exclusion=expected.id)
    except NotFound:
        explained = {"verdict": "no_candidate", "reason": "it was no candidate; windows are not kept for explain"}
    verdict, reason = explained.get("filter") or explained["verdict"], explained["reason"]
    if expected.rank is None and verdict != "superseded":
        return Lost("not_found", f"search does not find it: {reason}")
    return Lost(_CODE_OF_FILTER.get(verdict, verdict), reason)
