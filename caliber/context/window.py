"""Builder of ``ContextWindow`` from decisions and texts: cut texts, filled sections, token counts, messages.

Source: C-049 to C-054, C-460 to C-464, K-077, K-078.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.context.columns import (
    DAY,
    LEAD,
    MARK,
    OUTDATED,
    PASSAGE_ID,
    READING,
    SOURCE,
    TURN_NUMBER,
    VERSION,
    Candidates,
    entered,
)
from caliber.context.conversation import PASSAGE, SPOKEN
from caliber.context.days import begin_days, line_length
from caliber.context.filling.filled import Filled
from caliber.context.inputs import WindowFacts
from caliber.context.plan import AssemblyPlan, SectionPlan, source_type_of
from caliber.context.texts import OUTDATED_LEAD, RenderedTexts, passage_lead
from caliber.context.trace import Decided, trace
from caliber.kernels.tokens.counting import ELLIPSIS, LEFT_OUT, Cut, quoted, truncate_to_length
from caliber.kernels.tokens.estimators import byte_length
from caliber.model.context import ContextPersistence, SectionType
from caliber.model.errors import InternalError
from caliber.model.forms.messages import MEMORY
from caliber.model.lazy import LazyTuple
from caliber.model.lazy_dataclass import dataclass
from caliber.model.storage import ResultStatus
from caliber.model.time import from_us
from caliber.model.windows import ContextSection, ContextWindow, Message, SourceRef

IdOf = Callable[[int], uuid.UUID | None]
_EPOCH: Final = date(1970, 1, 1)
_VERSION_8: Final = (0xF << 76, 0x8 << 76)
_VARIANT: Final = (0x3 << 62, 0x2 << 62)


def build_window(facts: WindowFacts, decided: Decided, rendered: RenderedTexts, id_of: IdOf) -> ContextWindow:
    """Return the window of these decisions and texts."""
    plan = decided.plan
    sections: list[ContextSection] = []
    # The sections before the older turns, those after them, and the turns of both parts of the conversation.
    bodies: tuple[list[str], list[str]] = ([], [])
    turns: tuple[list[int], list[int]] = ([], [])
    stable = length = 0
    still = True
    filled = filled_sections(decided)
    for item in filled:
        body = _body(decided, item, rendered)
        if item.section.source == SPOKEN:
            turns[item.section is not plan.user].extend(item.places)
        else:
            bodies[plan.stable_first and item.section.index > plan.user.index].append(body)
        length += item.size
        still = still and item.section.index in decided.filled.stable_sections
        stable += item.tokens if still else 0
        content = body if item is filled[-1] else body + plan.separator
        sections.append(_section(facts, decided, item, content, id_of, rendered))
    text = "".join([section.content for section in sections])
    used = used_tokens(decided, filled)
    if used > facts.max_tokens or (plan.additive and byte_length(text) != length):
        raise InternalError(f"a window of {used} tokens and {length} bytes was filled wrongly for {facts.max_tokens}")
    lead, following = plan.separator.join(bodies[0]), plan.separator.join(bodies[1])
    older, current = turns
    days = {place: line for item in filled for place, line in item.days.items()}
    return ContextWindow(
        window_id=facts.window_id,
        trajectory_id=facts.trajectory_id,
        scope_id=facts.scope_id,
        assembled_at=from_us(facts.now_us),
        max_tokens=facts.max_tokens,
        used_tokens=used,
        stable_prefix_tokens=stable,
        status=status_of(facts, bool(sections)),
        degraded=facts.degraded,
        sections=tuple(sections),
        text=text,
        messages=LazyTuple(
            len(older) + len(current) + bool(lead) + bool(following),
            lambda: _messages(lead, _spoken(older, rendered, days), following, _spoken(current, rendered, days)),
        ),
        assembly_trace=LazyTuple(len(decided.ranked), lambda: trace(decided, id_of, facts.now_us)),
        cut_offs=facts.cut_offs,
        position=facts.position,
        config_hash=facts.config_hash,
        evaluator=facts.evaluator,
        estimator=facts.measures.estimator,
        expires_at=_expires_at(facts, plan),
    )


def _body(decided: Decided, item: FilledSection, rendered: RenderedTexts) -> str:
    if not item.passages and not item.days:
        body = decided.plan.separator.join(map(rendered.texts.__getitem__, item.places))
    else:
        body = "".join([between + text for between, text in _pieces(decided, item, rendered)])
    return item.section.header + body


def _pieces(decided: Decided, item: FilledSection, rendered: RenderedTexts) -> list[tuple[str, str]]:
    """Return the texts of a section, each with the text before it; of passages the first line has the lead."""
    plan, ranked, texts = decided.plan, decided.ranked, rendered.texts
    if not item.passages:
        lead, days = plan.separator, item.days
        return [(lead * bool(at) + days.get(place, ""), texts[place]) for at, place in enumerate(item.places)]
    out: list[tuple[str, str]] = []
    passages, days, numbers = ranked.numbers[PASSAGE_ID], ranked.numbers[DAY], ranked.numbers[TURN_NUMBER]
    last, follows = 0, -1
    for place in item.places:
        passage, text = int(passages[place]), texts[place]
        between = plan.separator if out else ""
        if passage and passage == last:
            between = "\n" if numbers[place] == follows else f"\n{LEFT_OUT}\n"
        elif passage:
            text = passage_lead(text, rendered.speakers[place], int(days[place]))
        out.append((between, text))
        last, follows = passage, int(numbers[place]) + 1
    return out


def count_sections(decided: Decided, rendered: RenderedTexts) -> tuple[dict[int, int], int]:
    """Return the tokens of each finished section by its index, and those of the window's text, as they are counted."""
    plan = decided.plan
    items = filled_sections(decided)
    contents = [_body(decided, item, rendered) + (plan.separator if item is not items[-1] else "") for item in items]
    *parts, whole = plan.estimator.lengths_of([*contents, "".join(contents)]).tolist()
    counts = {item.section.index: plan.tokens(part) for item, part in zip(items, parts, strict=True)}
    return counts, plan.tokens(whole)


def excess(decided: Decided, whole: int) -> tuple[int, dict[int, int]]:
    """Return by how many tokens a window exceeds its budget, and each section, by index, its limit.

    Both the sum of the sections (C-050) and the text as a whole, ``whole`` tokens, must fit.
    """
    plan = decided.plan
    items = filled_sections(decided)
    parts, messages = sum(item.tokens for item in items), message_tokens(decided, items)
    caps = {item.section.index: plan.cap_of(item.section, decided.max_tokens) for item in items}
    over = {
        item.section.index: item.tokens - cap
        for item in items
        if (cap := caps[item.section.index]) is not None and item.tokens > cap
    }
    return max(0, max(parts, whole) + messages - plan.budget(decided.max_tokens)), over


@dataclass(frozen=True, slots=True)
class FilledSection:
    """A section that has something in it, the places of it in order of reading. Units: size is a length."""

    section: SectionPlan
    places: list[int]
    size: int
    tokens: int
    passages: bool = False
    """Whether some of it are lines of passages."""
    days: Mapping[int, str] = field(default_factory=dict)
    """The lines with days, by the place of the turn that follows."""


def filled_sections(decided: Decided) -> list[FilledSection]:
    """Return the sections of a window in order; every one but the last ends with a separator."""
    plan, ranked = decided.plan, decided.ranked
    codes, counts = decided.filled.codes, decided.counts
    included = entered(codes)
    section_of = decided.sections.take(included)
    present = set(section_of.tolist())
    out, last_day = [], 0
    for section in plan.emission:
        if section.index not in present:
            continue
        present.discard(section.index)
        places = included[section_of == section.index]
        if is_talk := section.source == SPOKEN or section.type is SectionType.EARLIER:
            places = places[np.argsort(ranked.numbers[TURN_NUMBER][places], kind="stable")]
        days: dict[int, str] = {}
        if is_talk and ranked.numbers[DAY][places].any():
            days, last = begin_days(ranked, places, last_day)
            last_day = last if section.source == SPOKEN else last_day
        size = section.header_length + int(decided.shown[places].sum())
        items, passages = len(places), section.source == PASSAGE and not is_talk
        if passages:
            # Passages in order of time, then all else by value; lines of one passage are one item.
            is_line = ranked.numbers[SOURCE][places] == PASSAGE
            lines = places[is_line][np.argsort(ranked.numbers[READING][places[is_line]], kind="stable")]
            places = np.concatenate((lines, places[~is_line]))
            _, first = np.unique(ranked.numbers[PASSAGE_ID][lines], return_index=True)
            size += int(ranked.numbers[LEAD][lines[first]].sum()) + plan.line_length * (len(lines) - len(first))
            same = ranked.numbers[PASSAGE_ID][lines[1:]] == ranked.numbers[PASSAGE_ID][lines[:-1]]
            size += plan.hole_length * int((same & (np.diff(ranked.numbers[TURN_NUMBER][lines]) != 1)).sum())
            items = len(first) + len(places) - len(lines)
        size += plan.separator_length * (items if present else items - 1)
        size += sum([line_length(plan, line) for line in days.values()])
        tokens = plan.tokens(size) if counts is None else counts.get(section.index, 0)
        out.append(FilledSection(section, places.tolist(), size, tokens, passages, days))
    return out


def used_tokens(decided: Decided, sections: list[FilledSection]) -> int:
    """Return the tokens of a window of these sections, including the cost of each message."""
    return sum([item.tokens for item in sections]) + message_tokens(decided, sections)


def message_tokens(decided: Decided, sections: list[FilledSection]) -> int:
    """Return the cost of a window's messages beyond their texts, and of those that answer calls without a result."""
    plan, turns = decided.plan, [place for item in sections if item.section.source == SPOKEN for place in item.places]
    fillers = plan.no_result_tokens * int(decided.ranked.numbers[READING][turns].sum()) if turns else 0
    following = [plan.stable_first and item.section.index > plan.user.index for item in sections]
    others = [item.section.source != SPOKEN for item in sections]
    texts = {after for after, other in zip(following, others, strict=True) if other}
    return fillers + plan.config.assembly.message_overhead_tokens * (len(turns) + len(texts))


def cut_texts(
    plan: AssemblyPlan,
    ranked: Candidates,
    sizes: NDArray[np.int64],
    filled: Filled,
    rendered: RenderedTexts,
    cached: Mapping[int, tuple[int, Cut]] | None = None,
) -> NDArray[np.int64]:
    """Shorten the texts that enter cut, and return all sizes after that.

    ``cached`` are lengths and places of cuts that were made before, as a record has them.
    """
    if not filled.truncations:
        return sizes
    shown = sizes.copy()
    for item in filled.truncations:
        place = item.place
        turn = rendered.parts([place])[0] if ranked.numbers[SOURCE][place] == SPOKEN else None
        label = "" if turn is None else turn.label
        if cached is not None:
            shown[place], made = cached[place]
            rendered.cut(place, made)
        else:
            whole = rendered.texts[place]
            made = (
                _compressed(plan, whole, item.room, rendered.query)
                if item.compress
                else _cut(plan, whole, item.room, label)
            )
            rendered.cut(place, made)
            shown[place] = plan.measure([rendered.texts[place]])[0]
        if turn is not None:
            rendered.cut_turns[place] = turn.cut(rendered.texts[place])
    return shown


def keep_labels(plan: AssemblyPlan, ranked: Candidates, places: Sequence[int], rendered: RenderedTexts) -> None:
    """Note the length of turns that are cut after the first character of their content: no shorter cut shows any."""
    beginnings = [turn.label + turn.text[len(turn.label) :][:1] for turn in rendered.parts(places)]
    known = ranked.numbers[LEAD]
    known[list(places)] = np.maximum(known[list(places)], plan.measure(beginnings))


def _compressed(plan: AssemblyPlan, whole: str, room: int, query: str | None) -> Cut:
    """Return the key sentences of a text that are together not longer than ``room``; its beginning where none fits."""
    from caliber.text.key_sentences import key_sentences  # most windows compress nothing

    def fits(spans: Sequence[tuple[int, int]]) -> bool:
        return int(plan.measure([quoted(whole, spans)])[0]) <= room

    spans = key_sentences(whole, query or "", fits, plan.config.search.keyword.language)
    return Cut(spans[-1][1], False, spans) if spans else _cut(plan, whole, room)


def excerpt_turns(
    plan: AssemblyPlan, ranked: Candidates, sizes: NDArray[np.int64], room: int, filled: Filled, rendered: RenderedTexts
) -> bool:
    """Shorten long recalled turns that entered to ``room``, and their sizes; return whether there were any."""
    places = entered(filled.codes)
    long = places[(ranked.numbers[SOURCE].take(places) == PASSAGE) & (sizes.take(places) > room)].tolist()
    for place in long:
        outdated = bool(ranked.numbers[MARK][place] & OUTDATED)
        label = f"{rendered.speakers[place]}: {OUTDATED_LEAD * outdated}"
        rendered.shortened[place] = made = _excerpt(plan, rendered.texts[place], room, rendered.query, label)
        rendered.texts[place] = made.of(rendered.texts[place])
        sizes[place] = plan.measure([rendered.texts[place]])[0]
    return bool(long)


def _excerpt(plan: AssemblyPlan, whole: str, room: int, query: str | None, label: str) -> Cut:
    """Return the sentences of a recalled turn that are nearest to the query, after its speaker."""
    from caliber.text.key_sentences import excerpt

    def cut(spans: Sequence[tuple[int, int]]) -> Cut:
        parts = ((0, len(label) - 1), *((start + len(label), end + len(label)) for start, end in spans))
        return Cut(parts[-1][1], parts[-1][1] < len(whole.rstrip()), parts)

    def fits(spans: Sequence[tuple[int, int]]) -> bool:
        return int(plan.measure([cut(spans).of(whole)])[0]) <= room

    spans = excerpt(whole[len(label) :], query or "", fits, plan.config.search.keyword.language)
    return cut(spans) if spans else _cut(plan, whole, room, label)


def _cut(plan: AssemblyPlan, whole: str, room: int, label: str = "") -> Cut:
    """Return the place to cut a text that must not be longer than ``room``: after its label, which stays whole."""
    estimator, rest = plan.estimator, whole[len(label) :]
    length, ending = (plan.longest(plan.whole_tokens(room)), "") if plan.additive else (room, plan.separator)
    length -= estimator.length_of(label)
    cut = truncate_to_length(rest, estimator.encoded(rest, field="text"), max(0, length), estimator, ending=ending)
    dots = not rest.startswith(cut)
    return Cut(len(label) + len(cut) - len(ELLIPSIS) * dots, dots)


def _spans(decided: Decided, item: FilledSection, rendered: RenderedTexts) -> list[tuple[int, int]]:
    """Return the characters of a section's body that each of its sources takes."""
    out: list[tuple[int, int]] = []
    at = len(item.section.header)
    for between, text in _pieces(decided, item, rendered):
        at += len(between) + len(text)
        out.append((at - len(text), at))
    return out


def _section(
    facts: WindowFacts, decided: Decided, item: FilledSection, content: str, id_of: IdOf, rendered: RenderedTexts
) -> ContextSection:
    section, places = item.section, item.places

    def sources() -> tuple[SourceRef, ...]:
        ranked, spans = decided.ranked, _spans(decided, item, rendered)
        return tuple(
            SourceRef(
                source_type=source_type_of(int(ranked.numbers[SOURCE][place])),
                id=id_of(place),
                version=int(ranked.numbers[VERSION][place]),
                relevance=float(ranked.relevance[place]),
                tokens=decided.tokens(place),
                span=span,
                day=_EPOCH + timedelta(days=day) if day or ranked.numbers[PASSAGE_ID][place] else None,
            )
            for place, span, day in zip(places, spans, ranked.numbers[DAY][places].tolist(), strict=True)
        )

    return ContextSection(
        section_id=section_id(facts.window_id, section.name),
        section_type=section.type,
        name=section.name,
        content=content,
        token_count=item.tokens,
        sources=LazyTuple(len(places), sources),
        priority=section.priority,
        compressible=section.compressible,
    )


def _spoken(places: Sequence[int], rendered: RenderedTexts, days: Mapping[int, str]) -> Iterator[Message]:
    """Yield turns as messages, each that begins a day with the line of it first."""
    for place, turn in zip(places, rendered.turns(places), strict=True):
        message = turn.message()
        yield replace(message, content=days[place] + message.content) if place in days else message


def _messages(lead: str, older: Iterable[Message], following: str, current: Iterable[Message]) -> tuple[Message, ...]:
    """Return a window as messages: records that follow the query are a separate message, not in the system one."""
    return (
        *((Message("system", lead),) if lead else ()),
        *older,
        *((Message("user", following, MEMORY),) if following else ()),
        *current,
    )


@lru_cache(maxsize=256)
def _name_bits(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=16).digest(), "big")


def section_id(window_id: uuid.UUID, name: str) -> uuid.UUID:
    """Return the id of a window's section: always the same, a UUID of version 8."""
    value = window_id.int ^ _name_bits(name)
    for mask, bits in (_VERSION_8, _VARIANT):
        value = (value & ~mask) | bits
    return uuid.UUID(int=value)


def status_of(facts: WindowFacts, anything: bool) -> ResultStatus:
    """Return whether a window is complete, empty, or lacks something it names."""
    if facts.degraded:
        return ResultStatus.DEGRADED
    return ResultStatus.OK if anything else ResultStatus.EMPTY


def _expires_at(facts: WindowFacts, plan: AssemblyPlan) -> datetime | None:
    persistence = plan.config.context_window_persistence
    if persistence.kind is not ContextPersistence.TTL or persistence.ttl_ms is None:
        return None
    return from_us(facts.now_us) + timedelta(milliseconds=persistence.ttl_ms)
