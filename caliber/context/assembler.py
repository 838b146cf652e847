"""Assembler: ranks candidates, fills the token budget and renders a context window, without a database statement.

Source: C-217 to C-224, C-447 to C-467, design section 5.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from caliber.context import limits
from caliber.context.columns import (
    ALONE,
    CONSIDERED,
    DISPUTED,
    GROUP,
    LEAD,
    LENGTH,
    MARK,
    OUTDATED,
    ROW,
    SECTION,
    SOURCE,
    Candidates,
    entered,
    rank,
)
from caliber.context.conversation import PASSAGE, SPOKEN
from caliber.context.filling.fill import fill
from caliber.context.filling.filled import NO_RESERVE
from caliber.context.gather.gathering import gather
from caliber.context.gather.rule_selection import Selection
from caliber.context.gather.turns import PassageReader, TurnReader
from caliber.context.inputs import AssemblyInputs, TextSource, WindowFacts
from caliber.context.plan import EXTRA, PERSONA, SYSTEM, AssemblyPlan, has_records, is_any_of, plan_of
from caliber.context.record.record import pack_record
from caliber.context.record_lines import RecordLines
from caliber.context.texts import DISPUTED_LEAD, OUTDATED_LEAD, FixedText, RenderedTexts, about_line
from caliber.context.trace import Decided
from caliber.context.window import build_window, count_sections, cut_texts, excerpt_turns, excess, keep_labels
from caliber.kernels.tokens.counting import Cut
from caliber.model.context import SectionType
from caliber.model.errors import BudgetTooSmall, InvalidValue
from caliber.model.windows import ContextWindow
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.relations import CONFLICT

if TYPE_CHECKING:
    from caliber.search.searcher import Searcher


@dataclass(frozen=True)
class Assembled:
    """A window and its record; the record is packed when it is first read."""

    window: ContextWindow
    pack: Callable[[], bytes] = field(repr=False)
    decided: Decided = field(repr=False)
    selections: Sequence[Selection] = field(default=(), repr=False)
    """The selection of each injection rule."""

    @cached_property
    def record(self) -> bytes:
        """The packed window, enough to explain and replay it; always the same bytes."""
        return self.pack()

    @cached_property
    def text_hash(self) -> bytes:
        """SHA-256 of the window's text."""
        return hashlib.sha256(self.window.text.encode("utf-8")).digest()


def assemble(inputs: AssemblyInputs, texts: TextSource, searcher: Searcher) -> Assembled:
    """Return the window of these inputs: the same inputs give the same bytes.

    Raises: NotFound for an unknown trajectory; InvalidValue for a wrong budget, mask or extra section; BudgetTooSmall
    when nothing fits; InvalidVector for an invalid query vector.
    """
    config = inputs.config
    check_budget(inputs.max_tokens, config.token_budget)
    plan = plan_of(config, inputs.once)
    extra = extra_texts(plan, inputs.extra_sections)
    fixed = fixed_texts(plan, extra)
    reader = TurnReader(inputs.snapshot, texts, plan)
    gathered = gather(inputs, plan, fixed, reader, searcher, texts)
    conflicts, disputes = inputs.snapshot.relations.get(CONFLICT.name), None
    if conflicts is not None and conflicts.length:
        from caliber.context.gather.disputes import disputes_of  # few stores have conflicts

        disputes = disputes_of(inputs, plan, gathered.candidates, searcher)
    while True:
        ranked, codes = rank(gathered.candidates, plan)
        disputed = disputes is not None
        rendered, sizes = _measure(ranked, codes, inputs.snapshot, texts, fixed, reader, plan, disputed=disputed)
        rendered.query = inputs.query
        try:
            decided = decide(ranked, codes, sizes, plan, inputs.max_tokens, rendered, reader)
        except BudgetTooSmall:
            if disputes is None or not disputes.give_way(ranked, None):
                raise
            continue
        if disputes is None or not disputes.give_way(ranked, decided.filled.codes):
            break
    facts = WindowFacts(
        window_id=inputs.window_id,
        trajectory_id=inputs.trajectory_id,
        scope_id=gathered.scope_id,
        principal=inputs.principal,
        position=inputs.snapshot.position,
        config_hash=inputs.config_hash,
        evaluator=inputs.snapshot.evaluator.name,
        measures=plan.measures,
        max_tokens=inputs.max_tokens,
        now_us=inputs.now_us,
        as_of_us=inputs.as_of_us,
        query=inputs.query,
        query_from=inputs.query_from,
        query_embedding=inputs.query_embedding,
        space_id=inputs.space_id,
        extra_sections=extra,
        cut_offs=tuple(gathered.cut_offs),
        degraded=tuple(gathered.degraded),
        once=inputs.once,
        declared=plan.declared,
    )
    window = build_window(facts, decided, rendered, ranked.id_of)
    return Assembled(window, lambda: pack_record(facts, decided, rendered), decided, gathered.selections)


def decide(
    ranked: Candidates,
    codes: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    plan: AssemblyPlan,
    max_tokens: int,
    rendered: RenderedTexts,
    reader: TurnReader | None = None,
) -> Decided:
    """Fill the budget; where lengths do not add up, count the result and refill until no limit is exceeded.

    ``reader`` renders the turns that enter, ``rendered`` then the records; without it, it holds every text.
    Raises: BudgetTooSmall.
    """
    reserve = NO_RESERVE
    for attempt in count():
        filled = None
        with suppress(BudgetTooSmall):
            filled = fill(ranked, codes, sizes, plan, max_tokens, reserve)
        if filled is None:
            alone = (codes == CONSIDERED) & (ranked.numbers[SOURCE] == SPOKEN) & (ranked.numbers[GROUP] == ALONE)
            keep_labels(plan, ranked, np.flatnonzero(alone).tolist(), rendered)
            filled = fill(ranked, codes, sizes, plan, max_tokens, reserve)  # raises: it asks for more than a label
        if reader is not None:
            _render_entered(ranked, filled.codes, reader, rendered)
        if excerpt_turns(plan, ranked, sizes, plan.excerpt_length(max_tokens), filled, rendered):
            continue
        shown = cut_texts(plan, ranked, sizes, filled, rendered)
        if silent := {item.place: item.room for item in filled.truncations if rendered.is_silent(item.place)}:
            keep_labels(plan, ranked, [*silent], rendered)
            for place, room in silent.items():
                ranked.numbers[LEAD][place] = max(int(ranked.numbers[LEAD][place]), room + 1)
            rendered.uncut()
            continue
        decided = Decided(plan, max_tokens, ranked, filled, sizes, shown, reserve)
        if plan.additive:
            break
        counts, whole = count_sections(decided, rendered)
        decided = replace(decided, counts=counts)
        total, sections = excess(decided, whole)
        if not total and not sections:
            break
        # Twice as much with each attempt: at last nothing is left to exceed anything, and BudgetTooSmall ends it.
        lengths = {section: plan.longest(over) << attempt for section, over in sections.items()}
        reserve = reserve.more(plan.longest(total) << attempt, lengths)
        rendered.uncut()
    return decided


def check_budget(max_tokens: int, token_budget: int) -> None:
    """Refuse a budget that no window can have.

    Raises: InvalidValue.
    """
    if type(max_tokens) is not int or max_tokens <= 0:
        raise InvalidValue(field="max_tokens", reason="must be a whole number above 0")
    if max_tokens > token_budget:
        raise InvalidValue(field="max_tokens", reason=f"{max_tokens} is more than token_budget ({token_budget}) allows")


def extra_texts(plan: AssemblyPlan, texts: Any) -> dict[str, str]:
    """Return the caller's texts for persona and custom sections, without empty ones.

    Raises: InvalidValue for a section that is not configured, or a value that is no text.
    """
    out: dict[str, str] = {}
    for name, text in texts.items():
        section = plan.by_name.get(name)
        if section is None or section.source not in (PERSONA, EXTRA):
            names = ", ".join(s.name for s in plan.sections if s.source in (PERSONA, EXTRA))
            raise InvalidValue(
                field="extra_sections",
                reason=f"no section {name!r} takes a text; those that do: {names}; others are declared in "
                'section_priorities.custom, such as custom = [["tools", 40]]',
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


def _measure(
    ranked: Candidates,
    codes: NDArray[np.uint8],
    snapshot: ResidentSnapshot,
    texts: TextSource,
    fixed: Sequence[FixedText],
    reader: TurnReader,
    plan: AssemblyPlan,
    *,
    disputed: bool,
) -> tuple[RenderedTexts, NDArray[np.int64]]:
    """Return the length of every candidate that is still considered (-1 for the others), and the texts of some.

    Turns and records are read once they enter.
    """
    out: dict[int, str] = {}
    sizes = ranked.numbers[LENGTH].copy()
    places = np.flatnonzero(codes == CONSIDERED)
    source = ranked.numbers[SOURCE][places]
    sizes[codes != CONSIDERED] = -1
    by_section = {item.section: item.text for item in fixed}
    for place in places[(source == SYSTEM) | (source == PERSONA) | (source == EXTRA)].tolist():
        out[place] = by_section[int(ranked.numbers[SECTION][place])]
    records = RecordLines(snapshot, texts, plan)
    brief = [section.index for section in plan.rule_sections if section.rule is not None and section.rule.shortens]
    section, row_of = ranked.numbers[SECTION].take(places), ranked.numbers[ROW]
    is_known = np.zeros(len(places), np.bool_) if plan.about is None else section == plan.about.index
    changed = is_any_of(section, brief)
    if disputed:
        changed |= (ranked.numbers[MARK].take(places) & DISPUTED) != 0
    for kind in plan.records:
        if kind in (SPOKEN, PASSAGE):
            continue
        mine = (source == kind) & ~is_known
        chosen = places[mine & ~changed]
        if len(chosen):
            sizes[chosen] = records.lengths(kind, row_of[chosen])
        chosen = places[mine & changed]
        if len(chosen):
            out.update(zip(chosen.tolist(), records.texts(kind, row_of[chosen].tolist()), strict=True))
    if is_known.any() and plan.about is not None:
        known = places[is_known]
        contents = texts.texts(snapshot[plan.records[plan.about.source].name], row_of[known].tolist())
        out.update(zip(known.tolist(), map(about_line, contents), strict=True))
    short = _shorten(ranked, out, plan, brief) if brief else {}
    for place in np.flatnonzero(ranked.numbers[MARK] & DISPUTED).tolist() if disputed else ():
        if place in out:
            out[place] = DISPUTED_LEAD + out[place]
    sizes[list(out)] = plan.measure(list(out.values()))
    rendered = RenderedTexts(out, lambda chosen: reader.parts(row_of[list(chosen)].tolist()), shortened=short)
    rendered.passages, rendered.records = PassageReader(snapshot, texts, plan).lines, records.texts
    return rendered, sizes


def _shorten(ranked: Candidates, texts: dict[int, str], plan: AssemblyPlan, sections: Sequence[int]) -> dict[int, Cut]:
    """Bring the texts of rules in mode summary into their short form; return where each was cut."""
    from caliber.text.key_sentences import abridge  # few windows shorten any

    out = {}
    for place in [place for place in texts if int(ranked.numbers[SECTION][place]) in sections]:
        cut = abridge(texts[place], limits.SUMMARY_MODE_TOKENS, plan.estimator)
        if cut is not None:
            out[place] = Cut(*cut)
            texts[place] = out[place].of(texts[place])
    return out


def _render_entered(ranked: Candidates, codes: NDArray[np.uint8], reader: TurnReader, rendered: RenderedTexts) -> None:
    """Add the texts of the turns and records that entered."""
    inside, row_of = entered(codes), ranked.numbers[ROW]
    source = ranked.numbers[SOURCE].take(inside)
    places = inside[source == SPOKEN]
    if len(places):
        texts = reader.texts(row_of[places].tolist())
        rendered.texts.update(zip(places.tolist(), texts, strict=True))
    assert rendered.records is not None
    for kind in np.unique(source[has_records(source)]).tolist():
        places = [place for place in inside[source == kind].tolist() if place not in rendered.texts]
        if places and kind != PASSAGE:
            texts = rendered.records(kind, row_of[places].tolist())
            rendered.texts.update(zip(places, texts, strict=True))
    render_passages(ranked, codes, rendered)


def render_passages(ranked: Candidates, codes: NDArray[np.uint8], rendered: RenderedTexts) -> None:
    """Add the lines of included passages, and the speaker of each."""
    if rendered.passages is None:
        return
    places = entered(codes)
    places = places[ranked.numbers[SOURCE].take(places) == PASSAGE]
    if len(places):
        rows = ranked.numbers[ROW].take(places)
        lines, marks = rendered.passages(rows), ranked.numbers[MARK].take(places).tolist()
        for place, (label, line), mark in zip(places.tolist(), lines, marks, strict=True):
            whole = label + OUTDATED_LEAD + line[len(label) :] if mark & OUTDATED else line
            short = rendered.shortened.get(place)
            rendered.texts[place] = whole if short is None else short.of(whole)
            rendered.speakers[place] = label[:-2]
