"""Budget filling: which ranked candidates enter. Sections share the budget, or queue for it by priority.

Shared: first come the parts that always enter: instructions, texts of the caller, the last user message with its
pending tool calls. Then the newest exchanges, the conversation up to its share, and summaries of dropped turns. Then
each section that follows the query gets its floor, and the rest is filled by value, each section up to its cap; a cap
gives way when nothing else fits. How much of the conversation enters depends on turns alone, not on the query, so that
its beginning, and with it the prefix that providers cache, stays from turn to turn.

By priority (``plan.by_rank``): each section takes what fits its cap before the next one gets any.

The fill works on lengths alone, so a replay decides from the recorded columns exactly as the assembly did. Every
section pays for its header, one separator and the rounding of its own token count, so that the sum of the sections'
tokens never exceeds the budget where lengths add up. Under other estimators the finished sections are counted; an
excess is subtracted from the budget and the window is filled again (docs/decisions/0016).

Source: design section 5 (What a window is for), C-218, C-223, C-457, O-8, O-16, docs/windows.md.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.context import limits
from caliber.context.columns import (
    CONSIDERED,
    DAY,
    EXCLUDED_BUDGET,
    EXCLUDED_SECTION_BUDGET,
    EXCLUDED_SHOWN,
    GROUP,
    INCLUDED,
    LEAD,
    MARK,
    ORDINAL,
    PASSAGE_ID,
    READING,
    SECTION,
    SOURCE,
    TURN_NUMBER,
    Candidates,
    beyond_texts,
)
from caliber.context.conversation import PASSAGE, SPOKEN
from caliber.context.days import day_lengths
from caliber.context.filling.filled import NO_RESERVE, Filled, Reserve, Truncation
from caliber.context.filling.shown_turns import ShownTurns, SpokenTurns, TurnRepeats
from caliber.context.filling.state import Filling
from caliber.context.plan import SYSTEM, UNCAPPED, AssemblyPlan, SectionPlan, is_any_of
from caliber.kernels import fill as kernel
from caliber.model.errors import BudgetTooSmall
from caliber.resident.documents import INDENT

_ROWS: Final = (kernel.SECTION, kernel.PASSAGE, kernel.NUMBER, kernel.LEAD)
_COLUMNS: Final = (SECTION, PASSAGE_ID, TURN_NUMBER, LEAD)
"""Columns of the candidates for the rows of the kernel."""


def fill(
    ranked: Candidates,
    codes: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    plan: AssemblyPlan,
    max_tokens: int,
    reserve: Reserve = NO_RESERVE,
) -> Filled:
    """Decide about every candidate that is still considered.

    Shapes: codes ``uint8[n]`` as ``rank`` gives them; sizes ``int64[n]`` lengths, of use where considered.
    Raises: BudgetTooSmall when there is something to include and nothing of it fits.
    """
    considered = np.flatnonzero(codes == CONSIDERED)
    source, section = ranked.numbers[SOURCE].take(considered), ranked.numbers[SECTION].take(considered)
    is_turn = source == SPOKEN
    full = plan.longest(plan.budget(max_tokens))
    # One section is the last: it has no separator after it, and rounds up at no cost.
    total = full + plan.separator_length + plan.slack - reserve.total
    before = section < plan.user.index
    messages = plan.message_length * (bool((before & ~is_turn).any()) + bool((~before & ~is_turn).any()))
    none = np.zeros(len(considered), np.int64)
    day_lines, new_day = (none, none > 0) if not plan.dated else day_lengths(plan, ranked, considered)
    opening = int(day_lines.max(initial=0, where=is_turn))
    total -= messages + opening
    hard = plan.section_budget(max_tokens)
    for number, held in reserve.sections:
        hard[number] = max(0, hard[number] - held)
    lengths = sizes[considered]
    lengths = np.where(source == PASSAGE, np.minimum(lengths, plan.excerpt_length(max_tokens)), lengths)
    candidates = np.empty((kernel.LINK + 1, len(considered)), np.int64)
    for row, column in zip(_ROWS, _COLUMNS, strict=True):
        ranked.numbers[column].take(considered, out=candidates[row], mode="clip")
    cost = lengths + beyond_texts(plan, is_turn, ranked.numbers[READING].take(considered)) + day_lines * new_day
    candidates[kernel.COST] = cost
    state = Filling(plan, candidates, source, full, hard)
    state.total, state.messages = total, messages + opening
    state.day, state.day_lines = ranked.numbers[DAY].take(considered).tolist(), day_lines.tolist()
    state.new_day = new_day.tolist()
    spoken = np.flatnonzero(is_turn)
    covered = candidates[kernel.NUMBER]
    spoken = spoken[np.argsort(covered[spoken], kind="stable")]
    groups, marks = ranked.numbers[GROUP].take(considered[spoken]), ranked.numbers[MARK].take(considered[spoken])
    turns = SpokenTurns(spoken, covered[spoken], groups, marks, cost[spoken])
    conversation = ShownTurns(state, turns, max_tokens)
    repeats = TurnRepeats.of(state, ranked.numbers[ORDINAL].take(considered), covered)
    spare, closed = 0, frozenset[int]()
    if plan.by_rank:
        closed = _fill_by_priority(state, conversation, repeats, covered)
    else:
        spare = _fill_by_shares(state, conversation, repeats, covered, opening, max_tokens)
    _close(state)
    lacking = _lacking(state, ranked.parts[:, considered]) if state.used == 0 else []
    if lacking:
        needed = max(_smallest(state, lacking) + plan.tokens(reserve.total), max_tokens + 1)
        raise BudgetTooSmall(max_tokens=max_tokens, needed=needed)
    out = codes.copy()
    out[considered] = state.decided
    remaining = max(0, state.room - spare)

    def room(place: int) -> tuple[int, int]:
        at = int(np.searchsorted(considered, place))
        is_considered = at < len(considered) and int(considered[at]) == place
        return state.price(at) if is_considered else 0, remaining

    return Filled(
        codes=out,
        truncations=tuple(
            Truncation(int(considered[item.place]), item.room, item.compress) for item in state.truncations
        ),
        first_turn=conversation.start if conversation.evicted else None,
        stable_sections=conversation.stable_sections(),
        closed_sections=closed,
        room=room,
        spare=spare,
        earlier=frozenset(considered[conversation.earlier].tolist()),
    )


# --- two policies ---------------------------------------------------------------------------------


def _fill_by_priority(
    state: Filling, conversation: ShownTurns, repeats: TurnRepeats, covered: NDArray[np.int64]
) -> frozenset[int]:
    """Fill section after section; return those whose turn came when the window was as good as full (C-218)."""
    plan, late = state.plan, set()
    _fill_instructions(state, 0)
    for section in plan.by_rank:
        places = np.flatnonzero((state.sections == section.index) & (state.decided == CONSIDERED))
        if section is plan.user:
            conversation.enter_must()
            conversation.begin()
            conversation.drop_repeated(repeats)
            _drop_covered(state, conversation, covered)
        elif state.used >= plan.config.assembly.fill_ratio * state.full and section.source != SYSTEM:
            late.add(section.index)
            state.decided[places] = EXCLUDED_BUDGET
        else:
            _take_texts(state, places)
    _cut_best(state, np.flatnonzero(state.decided == CONSIDERED))
    return frozenset(late)


def _fill_by_shares(
    state: Filling,
    conversation: ShownTurns,
    repeats: TurnRepeats,
    covered: NDArray[np.int64],
    opening: int,
    max_tokens: int,
) -> int:
    """Fill sections that share the budget; return the length kept free for the next turns.

    ``opening`` is the length reserved for the day of the first turn.
    """
    plan = state.plan
    _fill_fixed(state, conversation)
    if plan.about is not None:
        _fill_about(state, plan.about)
    conversation.begin()
    state.total += opening - conversation.opening_day()
    _drop_covered(state, conversation, covered)
    _fill_history(state, conversation)
    conversation.drop_repeated(repeats)
    waiting = np.flatnonzero(state.decided == CONSIDERED)
    told = [] if plan.told is None else np.flatnonzero(state.sections == plan.told.index).tolist()
    following = waiting[state.shares.rest[state.sections[waiting]]]
    spare = conversation.spare()
    roomy = len(told) > 0 and max_tokens >= limits.RECENT_FROM_TOKENS
    held, most = (0, 0) if plan.told is None else (roomy * state.share(plan.told.floor), state.share(plan.told.cap))
    state.total -= spare + held
    state.take(following, kernel.SHARES)
    _cut_best(state, following)
    state.total += held
    _fill_told(state, told, repeats, held)
    state.total += spare
    if conversation.evicted and plan.earlier is not None:
        conversation.enter_earlier(repeats)
    _fill_told(state, told, repeats, most)
    for place in (place for place in told if state.codes[place] == CONSIDERED and state.fits(place, 0)):
        state.codes[place] = EXCLUDED_SECTION_BUDGET
    state.take(following if conversation.full else waiting)
    return min(spare, max(0, state.room))


# --- always included ------------------------------------------------------------------------------


def _fill_fixed(state: Filling, conversation: ShownTurns) -> None:
    """Include instructions, persona, texts of the caller and the mandatory turns of the conversation."""
    _fill_instructions(state, min(conversation.must_length(), state.total // 2))
    conversation.enter_must()
    _fill_instructions(state, 0)  # those that made room for a message of which nothing fits
    _take_texts(state, np.flatnonzero(is_any_of(state.sections, state.plan.fixed)))


def _take_texts(state: Filling, places: NDArray[np.int64]) -> None:
    """Include what fits whole, then what fits compressed."""
    state.take(places)
    if state.plan.compresses:
        state.take(places, kernel.COMPRESSED)


def _fill_instructions(state: Filling, kept: int) -> None:
    """Include instructions that are not included yet, cut if they leave less than ``kept`` of the rest."""
    for place in np.flatnonzero((state.sources == SYSTEM) & (state.decided == CONSIDERED)).tolist():
        section = state.section[place]
        overhead = state.plan.overheads[section]
        room = min(state.room - kept, state.left(section)) - overhead
        if state.cost[place] <= room:
            state.include(place)
        elif state.plan.whole_tokens(room) >= 1:
            state.cut(place, room, room + overhead)


def _fill_about(state: Filling, section: SectionPlan) -> None:
    """Include the facts about the user, up to the floor of the section: no query makes them more."""
    places = np.flatnonzero(state.sections == section.index)
    state.admit(places, state.share(section.floor))
    state.exclude(places, EXCLUDED_SECTION_BUDGET)


def _fill_told(state: Filling, places: list[int], repeats: TurnRepeats, limit: int) -> None:
    """Include messages that no query asks for, but those that are recalled, up to a length of their section."""
    for place in places:
        if state.codes[place] != CONSIDERED:
            continue
        copies = repeats.passages_of([place])
        if any(state.codes[copy] == INCLUDED for copy in copies):
            state.codes[place] = EXCLUDED_SHOWN
            continue
        state.admit(np.array([place]), limit)
        if state.codes[place] == INCLUDED:
            for copy in (copy for copy in copies if state.codes[copy] == CONSIDERED):
                state.codes[copy] = EXCLUDED_SHOWN


# --- everything besides the conversation ----------------------------------------------------------


def _drop_covered(state: Filling, conversation: ShownTurns, covered: NDArray[np.int64]) -> None:
    """Drop the summaries of turns that the conversation shows, or may yet show."""
    summaries = is_any_of(state.sections, [section.index for section in state.shares.history])
    state.decided[summaries & (state.decided == CONSIDERED) & (covered >= conversation.reach())] = EXCLUDED_SHOWN


def _fill_history(state: Filling, conversation: ShownTurns) -> None:
    """Include summaries of turns that the conversation does not show, newest first, up to their section's cap."""
    floors = state.share(state.shares.following)
    for section in [section for section in state.shares.history if section.rule is None]:
        limit = min(state.share(section.cap), state.used_in[section.index] + max(0, state.room - floors))
        places = np.flatnonzero((state.sections == section.index) & (state.decided == CONSIDERED))
        state.admit(places, limit, kernel.EITHER)
        if conversation.full:
            state.exclude(places, EXCLUDED_SECTION_BUDGET)


def _cut_best(state: Filling, places: NDArray[np.int64]) -> None:
    """Cut the best candidate that did not fit to the remaining room, if configured and large enough (C-223)."""
    plan = state.plan
    assembly = plan.config.assembly
    least = assembly.truncate_min_tokens
    if assembly.overflow_policy == "exclude" or plan.whole_tokens(state.room) < least:
        return
    for place in places.tolist():
        section = state.section[place]
        # The relevant part of a recalled turn is rarely its beginning; a turn that must enter had its chance.
        if (
            state.codes[place] != CONSIDERED
            or state.source[place] in (PASSAGE, SPOKEN)
            or not plan.sections[section].compressible
        ):
            continue
        price = state.price(place)
        room = state.left(section)
        kept = room - (price - state.cost[place])
        if plan.whole_tokens(kept) >= least and kept < state.cost[place]:
            state.cut(place, kept, room)
            return


def _close(state: Filling) -> None:
    """Record for every remaining candidate why it was excluded."""
    rest = np.flatnonzero(state.decided == CONSIDERED)
    state.decided[rest] = EXCLUDED_BUDGET
    for place in rest[state.limits[kernel.MOST, state.sections[rest]] != UNCAPPED].tolist():
        state.codes[place] = state.refusal(place, state.price(place))


def _lacking(state: Filling, parts: NDArray[np.int32]) -> list[int]:
    """Return the candidates excluded by the budget that any larger window would have; hits of a search are none."""
    found = (state.sources == PASSAGE) | np.any(parts, axis=0)
    return [place for place, code in enumerate(state.codes) if code == EXCLUDED_BUDGET and not found[place]]


def _smallest(state: Filling, lacking: list[int]) -> int:
    """Return the tokens of the smallest window that could hold any of the missing mandatory records."""
    plan = state.plan
    assembly = plan.config.assembly
    # The tokens of messages beside the turns are reserved, whether or not they have content.
    texts = plan.tokens(state.messages)
    least = []
    for place in lacking:
        section = plan.sections[state.section[place]]
        is_turn = state.source[place] == SPOKEN
        length = state.together.get(place, state.cost[place])
        tokens = plan.tokens(length - (plan.message_length if is_turn else 0))
        if place in state.together:
            pass  # never cut
        elif state.source[place] == SYSTEM or is_turn:
            # What is left of it may begin with a line, whose indentation is more than the one token below.
            tokens = min(tokens, max(1, plan.tokens(state.lead[place] + int(plan.measure([INDENT])[0]))))
        elif assembly.overflow_policy != "exclude" and section.compressible:
            tokens = min(tokens, assembly.truncate_min_tokens)
        # One token more than the parts: each of them may round up.
        opening = plan.tokens(section.header_length) + assembly.message_overhead_tokens * is_turn
        opening += plan.tokens(state.day_lines[place])
        least.append(tokens + opening + texts + 1)
    return min(least)
