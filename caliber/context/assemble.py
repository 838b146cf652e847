"""Assembly: from recorded inputs and resident columns to a window, without a statement on the way.

Source: C-217 to C-224, C-447 to C-467, design section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.context.candidates import gather
from caliber.context.columns import CONSIDERED, GROUP, ROW, SECTION, SOURCE, Candidates, rank
from caliber.context.facts import WindowFacts
from caliber.context.fill import fill
from caliber.context.inputs import Assembled, AssemblyInputs, TextSource
from caliber.context.plan import (
    ARTIFACT,
    EXTRA,
    NOTE,
    PERSONA,
    RELATION_OF,
    SUMMARY,
    SYSTEM,
    TURN,
    AssemblyPlan,
    plan_of,
)
from caliber.context.record import pack_record
from caliber.context.texts import (
    FixedText,
    TurnText,
    artifact_text,
    byte_length,
    note_text,
    summary_text,
    turn_text,
)
from caliber.context.trace import Decided
from caliber.context.window import build_window, cut_texts
from caliber.model.enums import SectionType
from caliber.model.errors import InvalidValue
from caliber.resident.memory import ResidentSnapshot
from caliber.resident.mirror import RelationSnapshot


def assemble(inputs: AssemblyInputs, texts: TextSource) -> Assembled:
    """Return the window of these inputs: the same inputs give the same bytes.

    Raises: NotFound for an unknown trajectory; InvalidValue for a wrong budget, mask or extra section; BudgetTooSmall
    when nothing fits; InvalidVector for a query vector that is none.
    """
    config = inputs.config
    check_budget(inputs.max_tokens, config.token_budget)
    plan = plan_of(config)
    extra = extra_texts(plan, inputs.extra_sections)
    fixed = fixed_texts(plan, extra)
    gathered = gather(inputs, plan, fixed)
    ranked, codes = rank(gathered.candidates, plan)
    rendered, sizes = _render(ranked, codes, inputs.snapshot, texts, fixed)
    filled = fill(ranked, codes, sizes, plan, inputs.max_tokens)
    facts = WindowFacts(
        window_id=inputs.window_id,
        trajectory_id=inputs.trajectory_id,
        scope_id=gathered.scope_id,
        principal=inputs.principal,
        position=inputs.snapshot.position,
        config_hash=inputs.config_hash,
        evaluator=inputs.evaluator,
        max_tokens=inputs.max_tokens,
        now_us=inputs.now_us,
        as_of_us=inputs.as_of_us,
        query=inputs.query,
        query_embedding=inputs.query_embedding,
        space_id=inputs.space_id,
        extra_sections=extra,
        cut_offs=tuple(gathered.cut_offs),
        degraded=tuple(gathered.degraded),
    )
    cut, shown = cut_texts(plan, sizes, filled, rendered)
    decided = Decided(plan, inputs.max_tokens, ranked, filled, sizes, shown)
    window = build_window(facts, decided, rendered, cut, ranked.id_of)
    return Assembled(window, lambda: pack_record(facts, decided, rendered))


def check_budget(max_tokens: int, token_budget: int) -> None:
    """Refuse a budget that no window can have.

    Raises: InvalidValue.
    """
    if type(max_tokens) is not int or max_tokens <= 0:
        raise InvalidValue(field="max_tokens", reason="must be a whole number above 0")
    if max_tokens > token_budget:
        raise InvalidValue(field="max_tokens", reason=f"{max_tokens} is more than token_budget ({token_budget}) allows")


def extra_texts(plan: AssemblyPlan, given: Any) -> dict[str, str]:
    """Return the texts a caller gave for persona and custom sections; empty ones are left out.

    Raises: InvalidValue for a section that is not configured, or a text that is none.
    """
    out: dict[str, str] = {}
    for name, text in given.items():
        section = plan.by_name.get(name)
        if section is None or section.source not in (PERSONA, EXTRA):
            known = ", ".join(s.name for s in plan.sections if s.source in (PERSONA, EXTRA))
            raise InvalidValue(
                field="extra_sections", reason=f"no section {name!r} takes a text; those that do: {known}"
            )
        if text is None or text == "":
            continue
        if not isinstance(text, str) or not _is_unicode(text):
            raise InvalidValue(field=f"extra_sections.{name}", reason="must be valid Unicode text")
        out[name] = text
    return out


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def fixed_texts(plan: AssemblyPlan, extra: dict[str, str]) -> tuple[FixedText, ...]:
    """Return the texts that belong to no record, in the order of their sections."""
    out = []
    for section in plan.sections:
        text: str | None = extra.get(section.name)
        if section.source == SYSTEM:
            text = plan.config.system_instructions
        elif section.source == PERSONA and SectionType.PERSONA not in extra:
            text = plan.config.persona
        if section.source in (SYSTEM, PERSONA, EXTRA) and text:
            out.append(FixedText(section.source, section.index, text))
    return tuple(out)


def _render(
    ranked: Candidates,
    codes: NDArray[np.uint8],
    snapshot: ResidentSnapshot,
    texts: TextSource,
    fixed: Sequence[FixedText],
) -> tuple[dict[int, str | TurnText], NDArray[np.int64]]:
    """Return the text of every candidate that is still considered, by place, and its bytes (-1 for the others).

    A turn that calls tools and has no answer yet becomes a group of its own: it may not be cut.
    """
    out: dict[int, str | TurnText] = {}
    sizes = np.full(len(ranked), -1, np.int64)
    places = np.flatnonzero(codes == CONSIDERED)
    source = ranked[SOURCE][places]
    by_section = {item.section: item.text for item in fixed}
    for place in places[(source == SYSTEM) | (source == PERSONA) | (source == EXTRA)].tolist():
        out[place] = text = by_section[int(ranked[SECTION][place])]
        sizes[place] = byte_length(text)
    for kind in (ARTIFACT, NOTE, SUMMARY):
        chosen = places[source == kind].tolist()
        if not chosen:
            continue
        relation = snapshot[RELATION_OF[kind]]
        rows = ranked[ROW][chosen].tolist()
        render = _RENDER[kind]
        for place, row, content in zip(chosen, rows, texts.texts(relation, rows), strict=True):
            out[place] = text = render(relation, row, content)
            sizes[place] = byte_length(text)
    chosen = places[source == TURN].tolist()
    if chosen:
        _render_turns(ranked, snapshot, texts, chosen, out, sizes)
    return out, sizes


def _render_turns(
    ranked: Candidates,
    snapshot: ResidentSnapshot,
    texts: TextSource,
    chosen: list[int],
    out: dict[int, str | TurnText],
    sizes: NDArray[np.int64],
) -> None:
    relation = snapshot["turn"]
    rows = ranked[ROW][chosen].tolist()
    at = relation.layout.codec.index
    role_at, name_at, calls_at, answer_at = at("role"), at("name"), at("tool_calls"), at("tool_call_id")
    lengths = []
    for place, row, content in zip(chosen, rows, texts.texts(relation, rows), strict=True):
        packed = relation.packed(row)
        turn = turn_text(packed[role_at], content, packed[name_at], packed[calls_at], packed[answer_at])
        if turn.calls and ranked[GROUP][place] < 0:
            ranked[GROUP][place] = len(ranked) + place
        out[place] = turn
        lengths.append(byte_length(turn.text))
    sizes[chosen] = lengths


def _note(relation: RelationSnapshot, row: int, content: str) -> str:
    packed = relation.packed(row)
    at = relation.layout.codec.index
    return note_text(packed[at("entity")], packed[at("note_type")], content)


def _artifact(relation: RelationSnapshot, row: int, content: bytes) -> str:
    return artifact_text(relation.packed(row)[relation.layout.codec.index("artifact_type")], content)


def _summary(relation: RelationSnapshot, row: int, content: str) -> str:  # noqa: ARG001  (one shape for all three)
    return summary_text(content or "")


_RENDER: Final[dict[int, Callable[[RelationSnapshot, int, Any], str]]] = {
    NOTE: _note,
    ARTIFACT: _artifact,
    SUMMARY: _summary,
}
