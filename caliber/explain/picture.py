"""Pictures of windows as pages, from a window alone or from its explanation, replay and texts of candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from caliber.model.context import AssemblyAction
from caliber.model.lazy_dataclass import dataclass
from caliber.model.windows import AssemblyDecision, ContextWindow, CutOff

MEANINGS: Final = {
    "system": "instructions",
    "persona": "who the agent is",
    "artifacts": "outputs kept from earlier work",
    "notes": "knowledge",
    "history": "summaries of what the conversation does not show",
    "user": "the conversation so far",
    "recall": "said and done before, found for the query",
    "current": "the last message",
}
"""What each section of a window is, for people."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay: ``state`` is ``identical``, ``different``, ``impossible`` or ``unchecked``."""

    state: str
    reason: str


UNCHECKED = Replayed("unchecked", "this page was made of the window alone; `caliber explain --html` replays it")


@dataclass(frozen=True, slots=True)
class Picture:
    """The contents of a page.

    ``explained`` is the result of ``explain``, or as much of it as a window holds; ``window`` gives the texts, None
    where they are gone; ``labels`` are beginnings of the texts of candidates that were left out, by rank.
    """

    explained: Mapping[str, Any]
    window: ContextWindow | None
    replayed: Replayed = UNCHECKED
    labels: Mapping[int, str] = field(default_factory=dict)


def picture_of(window: ContextWindow) -> Picture:
    """Return the picture of a window, from itself alone."""
    decisions = [decision_document(item) for item in window.assembly_trace]
    left = window.stable_prefix_tokens
    sections = []
    for section in window.sections:
        stable = left - section.token_count >= 0
        left = left - section.token_count if stable else -1
        tokens = section.token_count
        sections.append({"name": section.name, "type": section.section_type.value, "tokens": tokens, "stable": stable})
    explained = {
        "window_id": str(window.window_id),
        "trajectory_id": str(window.trajectory_id),
        "status": window.status.value,
        "degraded": list(window.degraded),
        "inclusions": [item for item in decisions if "tokens" in item],
        "exclusions": [item for item in decisions if "tokens" not in item],
        "budget": {"total": window.max_tokens, "used": window.used_tokens},
        "sections": sections,
        "cut_offs": [cut_off_document(item) for item in window.cut_offs],
        "rules": [],
        "inputs": {
            "position": {"epoch": window.position.epoch, "sequence": window.position.sequence},
            "config_hash": window.config_hash,
            "clock": window.assembled_at.isoformat(),
            "evaluator": window.evaluator,
            "estimator": window.estimator,
        },
    }
    return Picture(explained, window)


def decision_document(decision: AssemblyDecision) -> dict[str, Any]:
    """Return a decision as ``explain`` has it."""
    excluded = decision.action is AssemblyAction.EXCLUDE
    return {
        "type": decision.source_type.value,
        "id": None if decision.target_id is None else str(decision.target_id),
        "section": decision.section,
        "action": decision.action.value,
        "reason": decision.reason,
        "rule_id": decision.rule_id,
        **({} if decision.rule is None else {"rule": decision.rule}),
        "relevance": decision.relevance,
        "breakdown": dict(decision.breakdown),
        "rank": decision.rank,
        "would_have_tokens" if excluded else "tokens": decision.tokens,
    }


def cut_off_document(item: CutOff) -> dict[str, Any]:
    """Return the records that a source's limit kept out, as ``explain`` has them."""
    out: dict[str, Any] = {
        "type": item.source_type.value,
        "filter": item.filter,
        "limit": item.limit,
        "cutoff_score": item.cutoff_score,
        "considered": item.considered,
    }
    if item.rule is not None:
        out |= {"rule": item.rule, "kept": item.kept}
    if item.condition is not None:
        out["condition"] = item.condition
    return out


def inclusions_of(picture: Picture, section: str) -> Sequence[Mapping[str, Any]]:
    """Return the inclusions of one section in order of reading, as far as it is known."""
    mine = [item for item in picture.explained["inclusions"] if item["section"] == section]
    if picture.window is None:
        return mine
    order = {
        (source.source_type.value, None if source.id is None else str(source.id)): at
        for found in picture.window.sections
        if found.name == section
        for at, source in enumerate(found.sources)
    }
    return sorted(mine, key=lambda item: order.get((item["type"], item["id"]), len(order)))
