"""Dosage of a window that exists: its sources fill a smaller budget, as the candidates of an assembly do.

Assembly keeps the limits by itself. A caller that falls back to a model with a smaller context, or holds a window of an
earlier configuration, gets a smaller window here without another assembly. Source: C-273 to C-277, K-083, K-084.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from caliber.config import CaliberConfig
from caliber.context import limits
from caliber.context.assembler import decide
from caliber.context.columns import (
    ALONE,
    CONSIDERED,
    DAY,
    EXCLUDED_BUDGET,
    FIELDS,
    GROUP,
    LEAD,
    MARK,
    MUST,
    ORDINAL,
    PASSAGE_ID,
    READING,
    SECTION,
    SOURCE,
    TURN_NUMBER,
    VERSION,
    Candidates,
    entered,
    limit_kinds,
)
from caliber.context.conversation import BLOCK, PASSAGE, SPOKEN, SUMMARY
from caliber.context.days import shows_days
from caliber.context.filling.filled import Filled
from caliber.context.gather.dialogue import mark_turns
from caliber.context.gather.turns import group_calls
from caliber.context.inputs import WindowFacts
from caliber.context.plan import EXTRA, PERSONA, SYSTEM, AssemblyPlan, SectionPlan, plan_of, source_numbers
from caliber.context.texts import RenderedTexts, TurnText, turns_shown_as
from caliber.context.trace import RULES, Decided, trace
from caliber.context.window import build_window
from caliber.kernels import uuid7
from caliber.kernels.tokens.counting import LEFT_OUT
from caliber.model.context import AssemblyAction, DecisionCode, SectionType, SourceType
from caliber.model.errors import BudgetTooSmall
from caliber.model.forms.messages import MEMORY
from caliber.model.references import WindowId
from caliber.model.storage import ResultStatus
from caliber.model.time import to_us
from caliber.model.windows import AssemblyDecision, ContextSection, ContextWindow, Message, SourceRef
from caliber.pcp.window_checks import SPOKEN_TYPES, check_rest, check_sections, not_a_window
from caliber.resident.conversation import day_mark, day_text

_LEAD: Final = (SYSTEM, PERSONA, EXTRA, SUMMARY)
"""Sources whose sections are filled before the conversation."""
_NUMBERS: Final = source_numbers()
_STEPS: Final = {"\n": 1, f"\n{LEFT_OUT}\n": 2}
"""How many turns further the next line of a passage is, by what stands between: at least so many."""
_UNRANKED: Final = 2**31
"""The rank of a source that the trace of its window does not have."""


@dataclass(slots=True)
class _Piece:
    """One source of a window with its text. ``passage``: the number of its passage, 0 for no line of one."""

    section: ContextSection
    ref: SourceRef
    text: str
    at: int
    source: int
    passage: int = 0
    speaker: str = ""
    day: str = ""
    """The line with the day before it, of a turn that is no line of a passage."""
    turn: TurnText | None = None
    number: int = 0
    group: int = ALONE
    unanswered: int = 0
    mark: int = 0


class Dosage:
    """Applies limits to one window. ``cut_critical``: the sections from ``CRITICAL_PRIORITY`` on exceed the limit."""

    def __init__(self, window: ContextWindow, config: CaliberConfig, max_tokens: int | None, now_us: int) -> None:
        dosage = config.pcp.dosage
        self._window = window
        self._config = config
        self._now_us = now_us
        self.limit = min(dosage.max_context_tokens, window.max_tokens if max_tokens is None else max_tokens)
        self.cut_critical = False

    def apply(self) -> ContextWindow:
        """Return the window itself where it keeps every limit, else a new one that does.

        Raises: InvalidValue for a window whose sections, sources and messages do not belong together.
        """
        check_sections(self._window, _NUMBERS.keys())
        if self._window.used_tokens <= self.limit and not self._too_many():
            return self._window
        check_rest(self._window)
        pieces, following = self._pieces()
        plan = self._plan(following)
        ranked = _candidates(pieces, plan)
        if not shows_days(plan, self.limit):
            ranked[DAY][ranked[PASSAGE_ID] == 0] = 0
        codes = np.full(len(pieces), CONSIDERED, np.uint8)
        limit_kinds(ranked, codes, plan)
        texts = {place: piece.text for place, piece in enumerate(pieces)}
        rendered = RenderedTexts(
            texts,
            lambda places: [turn for place in places if (turn := pieces[place].turn) is not None],
            speakers={place: piece.speaker for place, piece in enumerate(pieces)},
        )
        sizes = np.where(codes == CONSIDERED, plan.measure([piece.text for piece in pieces]), -1)
        try:
            decided = decide(ranked, codes, sizes, plan, self.limit, rendered)
            if self._lost_request(pieces, decided):
                others = (codes == CONSIDERED) & (ranked[SOURCE] != SYSTEM)
                codes[others], sizes[others] = EXCLUDED_BUDGET, -1
                rendered.uncut()
                decided = decide(ranked, codes, sizes, plan, self.limit, rendered)
        except BudgetTooSmall:
            codes[codes == CONSIDERED] = EXCLUDED_BUDGET
            rendered.uncut()
            nothing = Filled(codes, (), None, frozenset(), frozenset(), lambda _: (0, 0))
            decided = Decided(plan, self.limit, ranked, nothing, sizes, sizes, counts={})
        return self._made(decided, rendered, pieces)

    def _too_many(self) -> bool:
        """Return whether the window has more records of a kind than its limit allows."""
        plan = plan_of(self._config, ())
        count: dict[int, int] = {}
        for section in self._window.sections:
            for ref in section.sources:
                number = _NUMBERS[ref.source_type]
                if section.section_type not in SPOKEN_TYPES:
                    count[number] = count.get(number, 0) + 1
        return any(sum(count.get(source, 0) for source in sources) > limit for sources, limit in plan.most)

    @staticmethod
    def _lost_request(pieces: Sequence[_Piece], decided: Decided) -> bool:
        """Return whether the last user message is out while others, besides instructions, are in."""
        inside = set(entered(decided.filled.codes).tolist())
        asked = {place for place, piece in enumerate(pieces) if piece.mark & MUST and piece.group == ALONE}
        return bool(asked - inside) and any(pieces[place].source != SYSTEM for place in inside)

    # --- reading the window ----------------------------------------------------------------------

    def _pieces(self) -> tuple[list[_Piece], set[str]]:
        """Return the sources in the order of their ranks, and the sections that stand after the older turns."""
        pieces = [piece for section in self._window.sections for piece in _sources(section)]
        following, messages = self._messages()
        spoken = [piece for kind in SPOKEN_TYPES for piece in pieces if piece.section.section_type is kind]
        if len(spoken) != len(messages):
            raise not_a_window("has other messages than its sections")
        for number, (piece, message) in enumerate(zip(spoken, messages, strict=True)):
            unmarked = replace(message, content=message.content.removeprefix(piece.day))
            turn = next((each for each in turns_shown_as(unmarked) if each.text == piece.text), None)
            if turn is None:
                raise not_a_window("has a message that reads otherwise in its text")
            piece.turn, piece.number = turn, number
        _mark(spoken, limits.RECENT_EXCHANGES)
        ranks = {key: known.rank for key, known in self._known.items()}
        pieces.sort(key=lambda piece: ranks.get(_key(piece), _UNRANKED))
        return pieces, following

    def _messages(self) -> tuple[set[str], list[Message]]:
        """Return the names of the sections after the older turns, and the messages that are turns."""
        others = [each for each in self._window.sections if each.section_type not in SPOKEN_TYPES]
        last = self._window.sections[-1]
        bodies = [each.content if each is last else each.content.removesuffix(self._separator) for each in others]
        messages = list(self._window.messages)
        lead = 0
        if messages and messages[0].role == "system":
            counts = range(len(others), 0, -1)
            lead = next((n for n in counts if self._separator.join(bodies[:n]) == messages[0].content), 0)
        del messages[: bool(lead)]
        if lead < len(others):
            text = self._separator.join(bodies[lead:])
            at = next((n for n, each in enumerate(messages) if each == Message("user", text, MEMORY)), None)
            if at is None:
                raise not_a_window("has other messages than its sections")
            del messages[at]
        return {each.name for each in others[lead:]}, messages

    @cached_property
    def _separator(self) -> str:
        sections = self._window.sections
        if len(sections) > 1:
            return sections[0].content[max(ref.span[1] for ref in sections[0].sources) :]
        return self._config.assembly.separator

    @cached_property
    def _known(self) -> dict[tuple[SourceType, uuid.UUID | None, str], AssemblyDecision]:
        return {(each.source_type, each.target_id, each.section): each for each in self._window.assembly_trace}

    def _plan(self, following: set[str]) -> AssemblyPlan:
        """Return a plan of the window's own sections under the configured limits."""
        config, window = self._config, self._window
        base = plan_of(config, ())
        of_kind = {kind: each for each in window.sections for kind in SPOKEN_TYPES if each.section_type is kind}
        others = [each for each in window.sections if each.section_type not in SPOKEN_TYPES]
        # Strictly by priority all sections are one message; what follows the query is filled after the conversation.
        late = [each for each in others if (each.name in following if following else _source(each) not in _LEAD)]
        early = [each for each in others if each not in late]
        ordered = [*early, of_kind.get(SPOKEN_TYPES[0]), *late, of_kind.get(SPOKEN_TYPES[1])]
        headers = ["" if each is None else _header(each) for each in ordered]
        lengths = base.estimator.lengths_of([self._separator, *headers]).tolist()
        separator = lengths[0] if base.additive else 0
        sections = []
        for index, (each, header) in enumerate(zip(ordered, headers, strict=True)):
            kind = SPOKEN_TYPES[index == len(ordered) - 1] if each is None else each.section_type
            name = kind.value if each is None else each.name
            floor, cap = config.assembly.share(name) if following else (0.0, 1.0)
            sections.append(
                SectionPlan(
                    index=index,
                    name=name,
                    type=kind,
                    source=SPOKEN if kind in SPOKEN_TYPES else _source(each),
                    priority=0 if each is None else each.priority,
                    cap_tokens=None,
                    header=header,
                    header_length=lengths[1 + index],
                    compressible=each is not None and each.compressible,
                    floor=floor,
                    cap=cap,
                )
            )
        by_name = {section.name: section for section in sections}
        overheads = [section.header_length + separator + base.slack for section in sections]
        return replace(
            base,
            measures=replace(base.measures, separator=separator, headers=tuple(lengths[1:])),
            sections=tuple(sections),
            emission=tuple(by_name[each.name] for each in window.sections),
            # Of the window's own sections: what stood behind the conversation follows the query like any other.
            earlier=None,
            about=by_name.get(SectionType.ABOUT_USER.value),
            told=by_name.get(SectionType.TOLD.value),
            by_rank=(),
            stable_first=bool(following),
            separator=self._separator,
            separator_length=separator,
            overheads=overheads,
            by_name=by_name,
            user=sections[len(early)],
            current=sections[-1],
            rule_sections=(),
            compresses=True,
        )

    # --- the new window --------------------------------------------------------------------------

    def _made(self, decided: Decided, rendered: RenderedTexts, pieces: Sequence[_Piece]) -> ContextWindow:
        old = self._window
        facts = WindowFacts(
            window_id=WindowId(uuid7()),
            trajectory_id=old.trajectory_id,
            scope_id=old.scope_id,
            principal="",
            position=old.position,
            config_hash=old.config_hash,
            evaluator=old.evaluator,
            measures=decided.plan.measures,
            max_tokens=self.limit,
            now_us=self._now_us,
            as_of_us=to_us(old.assembled_at),
            query=None,
            query_embedding=None,
            space_id=None,
            extra_sections={},
            cut_offs=old.cut_offs,
            degraded=old.degraded,
        )
        ids = [piece.ref.id for piece in pieces]
        window = build_window(facts, decided, rendered, ids.__getitem__)
        self.cut_critical = self._critical_tokens() > self.limit
        # Only sections that read as they did can be a prefix that a provider has cached.
        stable = 0
        for before, after in zip(old.sections, window.sections, strict=False):
            if before.content != after.content or stable + after.token_count > old.stable_prefix_tokens:
                break
            stable += after.token_count
        return replace(
            window,
            stable_prefix_tokens=stable,
            status=old.status if window.sections else ResultStatus.EMPTY,
            assembly_trace=(*old.assembly_trace, *self._changed(decided, pieces, ids)),
            expires_at=None,
        )

    def _critical_tokens(self) -> int:
        """Return the tokens of the old sections from ``CRITICAL_PRIORITY`` on, with their messages."""
        kept = [each for each in self._window.sections if each.priority >= limits.CRITICAL_PRIORITY]
        spoken = sum(len(each.sources) for each in kept if each.section_type in SPOKEN_TYPES)
        messages = spoken + any(each.section_type not in SPOKEN_TYPES for each in kept)
        overhead = self._config.assembly.message_overhead_tokens
        return sum(each.token_count for each in kept) + overhead * messages

    def _changed(
        self, decided: Decided, pieces: Sequence[_Piece], ids: Sequence[uuid.UUID | None]
    ) -> Iterator[AssemblyDecision]:
        """Yield a decision for each source that the new window does not hold as it was."""
        for piece, made in zip(pieces, trace(decided, ids.__getitem__, self._now_us), strict=True):
            if made.action is AssemblyAction.INCLUDE:
                continue
            known = self._known.get(_key(piece))
            if made.action is AssemblyAction.EXCLUDE:
                made = replace(made, tokens=piece.ref.tokens)
                if made.rule_id == RULES[DecisionCode.EXCLUDED_EVICTED]:  # its number is not that of the stored turn
                    made = replace(made, reason=f"older turns left: {self.limit} tokens hold no more of them")
            yield (
                made
                if known is None
                else replace(made, rank=known.rank, breakdown=known.breakdown, rule=known.rule, ordinal=known.ordinal)
            )


def _key(piece: _Piece) -> tuple[SourceType, uuid.UUID | None, str]:
    return piece.ref.source_type, piece.ref.id, piece.section.name


def _source(section: ContextSection | None) -> int:
    """Return the number of the source that a section without turns of the conversation is for."""
    if section is None:
        return SPOKEN
    numbers = {_NUMBERS[ref.source_type] for ref in section.sources}
    if PASSAGE in numbers:
        return PASSAGE
    return SUMMARY if numbers <= {SUMMARY, BLOCK} else min(numbers)


def _sources(section: ContextSection) -> list[_Piece]:
    """Return the sources of a section. Raises: InvalidValue."""
    out: list[_Piece] = []
    spoken, at = section.section_type in SPOKEN_TYPES, section.sources[0].span[0]
    for ref in section.sources:
        start, end = ref.span
        if start < at:
            raise not_a_window(f"has two sources in one place ({section.name})")
        source = SPOKEN if spoken else _NUMBERS[ref.source_type]
        piece = _Piece(section, ref, section.content[start:end], len(out), source)
        if spoken and ref.day is not None and section.content[:start].endswith(line := day_mark(_day(ref))):
            piece.day = line
        if source == PASSAGE:
            step = _STEPS.get(section.content[at:start])
            if section.section_type is SectionType.EARLIER:
                piece.speaker = piece.text.partition(": ")[0]
            else:
                _read_line(piece, out[-1] if out and step is not None else None)
            piece.number = (out[-1].number if out else 0) + (step or 1)
        out.append(piece)
        at = end
    return out


def _day(ref: SourceRef) -> int:
    """Return the day of a recalled turn, counted from 1970."""
    return int(np.datetime64(ref.day, "D").astype(np.int64))


def _header(section: ContextSection) -> str:
    """Return the text before the first source of a section, without a line with its day."""
    first = section.sources[0]
    header = section.content[: first.span[0]]
    return header if first.day is None else header.removesuffix(day_mark(_day(first)))


def _read_line(piece: _Piece, before: _Piece | None) -> None:
    """Make the text of a recalled turn that of a line, and set its passage and speaker."""
    head = "" if piece.ref.day is None else f", {day_text(_day(piece.ref))}] "
    speaker, found, rest = piece.text.partition(head) if head else (piece.text, "", "")
    if found and speaker.startswith("["):
        piece.speaker, piece.passage = speaker[1:], piece.at + 1
        piece.text = f"{piece.speaker}: {rest}"
    elif before is not None and before.passage:
        piece.speaker, found, _ = piece.text.partition(": ")
        if not found:
            raise not_a_window(f"has a line of a passage without its speaker ({piece.section.name})")
        piece.passage = before.passage
    else:
        raise not_a_window(f"has a passage without its day ({piece.section.name})")


def _mark(spoken: Sequence[_Piece], back: int) -> None:
    """Set the group and the mark of each turn, as an assembly does: a call and its results are one group."""
    if not spoken:
        return
    turns = [piece.turn for piece in spoken if piece.turn is not None]
    parts = [([call[0] for call in turn.calls], turn.call_id, bool(turn.thinking)) for turn in turns]
    groups, unanswered, _ = group_calls(len(spoken), enumerate(parts))
    users = [number for number, turn in enumerate(turns) if turn.role == "user"]
    marks, _ = mark_turns(groups, np.array(users, np.int64), unanswered, back)
    for piece, group, open_calls, mark in zip(
        spoken, groups.tolist(), unanswered.tolist(), marks.tolist(), strict=True
    ):
        piece.group, piece.unanswered, piece.mark = group, open_calls, mark


def _candidates(pieces: Sequence[_Piece], plan: AssemblyPlan) -> Candidates:
    """Return the sources of a window as the candidates of a filling."""
    numbers = np.zeros((FIELDS, len(pieces)), np.int64)
    lines: dict[tuple[int, int], int] = {}
    for place, piece in enumerate(pieces):
        section = plan.by_name[piece.section.name]
        numbers[SOURCE, place], numbers[SECTION, place] = piece.source, section.index
        numbers[VERSION, place], numbers[GROUP, place] = piece.ref.version, piece.group
        numbers[TURN_NUMBER, place] = piece.number if piece.source in (SPOKEN, PASSAGE) else -1
        numbers[MARK, place], numbers[READING, place] = piece.mark, piece.unanswered
        numbers[ORDINAL, place] = -1 - place
        day = 0 if piece.ref.day is None else _day(piece.ref)
        numbers[DAY, place] = day
        if piece.passage:
            numbers[PASSAGE_ID, place] = lines.setdefault((section.index, piece.passage), len(lines) + 1)
            numbers[READING, place] = piece.at
            head = int(plan.measure([f"[, {day_text(day)}] "])[0])
            numbers[LEAD, place] = head - (2 if plan.additive else 0)
    count = len(pieces)
    return Candidates(
        numbers,
        np.array([piece.ref.relevance for piece in pieces], np.float32),
        np.zeros((0, 2), np.uint64),
        np.zeros((count, 2), np.uint64),
        (),
        np.zeros((0, count), np.int32),
    )
