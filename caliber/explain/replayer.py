"""Replay: rebuilds a recorded window byte for byte from its record and the content versions of that time.

Ranking and filling run again over the recorded columns; only the content of included records is read. The bytes are the
same even after sources were changed, merged, pruned or expired (design, section 5).
"""

from __future__ import annotations

import uuid
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from caliber.config import CaliberConfig
from caliber.context.assembler import check_budget, fixed_texts
from caliber.context.columns import DISPUTED, MARK, ORDINAL, OUTDATED, SECTION, SOURCE, VERSION, entered, rank
from caliber.context.conversation import PASSAGE, SPOKEN
from caliber.context.filling.fill import fill
from caliber.context.filling.filled import Filled
from caliber.context.gather.rule_selection import FILTER
from caliber.context.inputs import ContentSource, WindowFacts
from caliber.context.plan import AssemblyPlan, plan_with, section_count, source_type_of
from caliber.context.record.record import Record, content_hash, unpack_record
from caliber.context.texts import DISPUTED_LEAD, RenderedTexts, TurnText, about_line, text_of_content, turn_of_content
from caliber.context.trace import Decided
from caliber.context.window import build_window, cut_texts
from caliber.model.errors import InvalidValue, NotFound, StorageError
from caliber.model.windows import ContextWindow, CutOff


def replay(record: bytes, config: CaliberConfig, contents: ContentSource) -> ContextWindow:
    """Return the window of a record: same text, messages, sections and trace, byte for byte.

    Raises: StorageError for a damaged record, or one that no longer gives the same decisions; InvalidValue when the
    configuration is another one than the window's; NotFound naming the source whose content was removed for good.
    """
    kept = unpack_record(record)
    plan = plan_for(kept, config)
    facts = replace(kept.facts, measures=plan.measures, cut_offs=with_conditions(kept.facts.cut_offs, plan))
    filled = decide_again(kept, plan)
    rendered = _render(kept, plan, contents)

    def id_of(place: int) -> uuid.UUID | None:
        return identity_of(kept, contents, place)

    shown = cut_texts(plan, kept.ranked, kept.sizes, filled, rendered, kept.known_cuts)
    return build_window(facts, decided_again(kept, plan, filled, shown), rendered, id_of)


def with_conditions(cut_offs: tuple[CutOff, ...], plan: AssemblyPlan) -> tuple[CutOff, ...]:
    """Return cut-offs by rules with the filters that they are by, which the configuration keeps."""
    texts = {section.rule.name: section.rule.text for section in plan.sections if section.rule is not None}
    return tuple(
        replace(item, condition=texts.get(item.rule)) if item.rule is not None and item.filter == FILTER else item
        for item in cut_offs
    )


def decided_again(record: Record, plan: AssemblyPlan, filled: Filled, shown: NDArray[np.int64]) -> Decided:
    """Return the decisions about a window, its tokens as they were counted then."""
    ranked, sizes = record.ranked, record.sizes
    return Decided(plan, record.facts.max_tokens, ranked, filled, sizes, shown, record.reserve, record.counts)


def plan_for(record: Record, config: CaliberConfig) -> AssemblyPlan:
    """Return the constants of the window's configuration.

    Raises: InvalidValue, StorageError.
    """
    if config.hash.hex() != record.facts.config_hash:
        raise InvalidValue(field="config", reason="the window was assembled under another configuration")
    plan = _measured(record.facts, config)
    sections = record.ranked[SECTION]
    if len(sections):
        if int(sections.min()) < 0 or int(sections.max()) >= len(plan.sections):
            raise StorageError("a window's record names a section that its configuration does not have")
        pairs = set(zip(sections.tolist(), record.ranked[SOURCE].tolist(), strict=True))
        if not all(plan.sections[section].holds(source) for section, source in pairs):
            raise StorageError("a window's record has a source in a section of another kind")
    check_budget(record.facts.max_tokens, config.token_budget)
    return plan


def _measured(facts: WindowFacts, config: CaliberConfig) -> AssemblyPlan:
    """Return the constants of a configuration as measured at that time, whatever estimator is installed now."""
    measures = facts.measures
    if len(measures.headers) != section_count(config, facts.once):
        raise StorageError("a window's record has other sections than its configuration")
    return plan_with(config, measures, facts.once)


def decide_again(record: Record, plan: AssemblyPlan) -> Filled:
    """Run ranking and filling over the recorded columns.

    Raises: StorageError when they decide otherwise than they did.
    """
    ranked, codes = rank(record.ranked, plan)
    if not np.array_equal(ranked[ORDINAL], record.ranked[ORDINAL]) or not np.array_equal(codes, record.undecided):
        raise StorageError("a window's record does not rank again as it did")
    filled = fill(record.ranked, codes, record.sizes, plan, record.facts.max_tokens, record.reserve)
    if not np.array_equal(filled.codes, record.codes):
        raise StorageError("a window's record does not fill again as it did")
    if set(record.cuts) != {item.place for item in filled.truncations}:
        raise StorageError("a window's record does not cut again as it did")
    return filled


def identity_of(record: Record, contents: ContentSource, place: int) -> uuid.UUID | None:
    """Return the id of a candidate, recorded or looked up; None for one that is hidden by now."""
    relation, ordinal = record.facts.relation_of(int(record.ranked[SOURCE][place])), int(record.ranked[ORDINAL][place])
    return None if relation is None else contents.identity(relation, ordinal, record.ids.get(place))


def _render(record: Record, plan: AssemblyPlan, contents: ContentSource) -> RenderedTexts:
    if record.erased:
        raise _gone(record, min(record.erased), "it was forgotten")
    if record.erased_sections:
        window_id = record.facts.window_id
        raise NotFound(
            "an extra section is gone: what it named was forgotten, so the window cannot be replayed",
            entity_type="context_window",
            id=window_id,
        )
    ranked = record.ranked
    by_section = {item.section: item.text for item in fixed_texts(plan, dict(record.facts.extra_sections))}
    out: dict[int, str] = {}
    turns: dict[int, TurnText] = {}
    speakers: dict[int, str] = {}
    for place in entered(record.codes).tolist():
        source = int(ranked[SOURCE][place])
        relation = record.facts.relation_of(source)
        if relation is None:
            text = by_section.get(int(ranked[SECTION][place]))
            if text is None:
                raise StorageError("a window's record includes a section that has no text")
            out[place] = text
            continue
        ordinal, version = int(ranked[ORDINAL][place]), int(ranked[VERSION][place])
        content = contents.content(relation, ordinal, version)
        if content is None:
            raise _gone(record, place, "its content was removed")
        if source == SPOKEN:
            turns[place] = turn_of_content(content)
            out[place] = turns[place].text
        elif source == PASSAGE:
            turn = replace(turn_of_content(content), outdated=bool(ranked[MARK][place] & OUTDATED))
            short = record.shortened.get(place)
            out[place], speakers[place] = turn.line if short is None else short.of(turn.line), turn.speaker
        else:
            if source not in plan.records:
                raise StorageError("a window's record names a memory that its configuration does not have")
            short = record.shortened.get(place)
            lead = DISPUTED_LEAD if ranked[MARK][place] & DISPUTED else ""
            text = text_of_content(plan.records[source], content)
            if plan.about is not None and int(ranked[SECTION][place]) == plan.about.index:
                text = about_line(content[plan.records[source].in_windows.shown[-1]])
            out[place] = lead + (text if short is None else short.of(text))
        if content_hash(out[place]) != record.hashes[place]:
            raise _gone(record, place, "what it said then was not kept")
    return RenderedTexts(out, lambda places: [turns[place] for place in places], speakers=speakers)


def _gone(record: Record, place: int, reason: str) -> NotFound:
    kind = source_type_of(int(record.ranked[SOURCE][place])).value
    record_id = record.ids.get(place)
    return NotFound(
        f"{kind} {record_id} is gone: {reason}, so the window cannot be replayed", entity_type=kind, id=record_id
    )
