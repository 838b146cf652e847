"""Reasons of ``explain``, against a plain twin that reads them off the finished window."""

from __future__ import annotations

import random
import uuid
from itertools import pairwise
from typing import Any

import pytest
from support.evidence import scale, seed

import caliber
from caliber import EntityRef, EntityType, ToolCall
from caliber.context import assembler
from caliber.context.columns import (
    DAY,
    GROUP,
    LEAD,
    MARK,
    MUST,
    ORDINAL,
    PASSAGE_ID,
    SECTION,
    SOURCE,
    TURN_NUMBER,
    TWIN,
)
from caliber.context.conversation import BLOCK, PASSAGE, SPOKEN, SUMMARY
from caliber.model import FixedClock
from caliber.model.context import DecisionCode
from caliber.resident.conversation import day_mark

ARTIFACT, NOTE = 3, 4
STORES = scale(8, 300, daily=2)
WINDOWS = scale(25, 34)
ME = EntityRef(EntityType.USER, uuid.UUID(int=9))
WORDS = "amber birch cedar delta ember fjord grove heath inlet jetty knoll larch marsh north ocean prism quartz".split()  # noqa: SIM905


class Twin:
    """Reasons of one window's exclusions, worked out one candidate at a time from what is in it."""

    def __init__(self, assembled: Any) -> None:
        self.decided = decided = assembled.decided
        self.plan = decided.plan
        self.ranked = decided.ranked
        self.codes = [DecisionCode(int(code)) for code in decided.filled.codes]
        self.inside = [at for at, code in enumerate(self.codes) if code in (1, 6)]
        self.open = {self.of(SECTION, at) for at in self.inside}
        lines = [at for at in self.inside if self.of(SOURCE, at) == PASSAGE]
        self.passages = {(self.of(SECTION, at), self.of(PASSAGE_ID, at)) for at in lines}
        self.numbers = {self.of(TURN_NUMBER, at) for at in self.inside if self.of(SOURCE, at) == SPOKEN}

    def of(self, column: int, place: int) -> int:
        if column == SECTION:
            return int(self.decided.sections[place])
        return int(self.ranked[column][place])

    def length(self, place: int, shown: bool) -> int:
        size = int((self.decided.shown if shown else self.decided.sizes)[place])
        message = self.of(SOURCE, place) == SPOKEN and place not in self.decided.filled.earlier
        return size + self.plan.message_length * message

    def window_length(self) -> int:
        """Return the length of the finished window, its sections one after the other."""
        plan, total = self.plan, 0
        for section in plan.sections:
            mine = [at for at in self.inside if self.of(SECTION, at) == section.index]
            if not mine:
                continue
            total += section.header_length + plan.slack
            seen: set[int] = set()
            for at in mine:
                total += self.length(at, shown=True)
                passage = self.of(PASSAGE_ID, at) if self.of(SOURCE, at) == PASSAGE else 0
                if passage and passage in seen:
                    total += 1
                else:
                    total += plan.separator_length + (self.of(LEAD, at) if passage else 0)
                seen.add(passage)
        return total + 4 * self.holes(self.inside) + self.day_lines()

    def day_lines(self) -> int:
        """Return the length of the lines with the days of the conversation, and of what left it."""
        plan, total, talk = self.plan, 0, 0
        for section in (plan.user, plan.earlier, plan.current):
            last = talk
            mine = [at for at in self.inside if section is not None and self.of(SECTION, at) == section.index]
            for at in sorted(mine, key=lambda at: self.of(TURN_NUMBER, at)):
                day = self.of(DAY, at)
                total += len(day_mark(day).encode()) if day not in (0, last) else 0
                last = day or last
            talk = talk if section is plan.earlier else last
        return total

    def holes(self, places: list[int]) -> int:
        """Return how often a passage leaves turns out between its own."""
        lines = [
            (self.of(SECTION, at), self.of(PASSAGE_ID, at), self.of(TURN_NUMBER, at))
            for at in places
            if self.of(SOURCE, at) == PASSAGE
        ]
        return sum(one[:2] == other[:2] and other[2] - one[2] != 1 for one, other in pairwise(sorted(lines)))

    def price(self, place: int) -> int:
        """Return the length that a candidate would add to it."""
        plan, cost = self.plan, self.length(place, shown=False)
        section = plan.sections[self.of(SECTION, place)]
        if self.of(SOURCE, place) == PASSAGE:
            cost = min(cost, plan.excerpt_length(self.decided.max_tokens))
            if (section.index, self.of(PASSAGE_ID, place)) in self.passages:
                return cost + 1 + 4 * (self.holes([*self.inside, place]) - self.holes(self.inside))
            cost += self.of(LEAD, place)
        if section.index in self.open:
            return cost + plan.separator_length
        return cost + plan.separator_length + section.header_length + plan.slack

    def left(self) -> int:
        """Return the part of the budget that is neither used nor kept free."""
        plan = self.plan
        full = plan.longest(plan.budget(self.decided.max_tokens)) + plan.separator_length + plan.slack
        considered = [
            at
            for at, code in enumerate(self.codes)
            if int(self.decided.sizes[at]) >= 0 and self.of(SOURCE, at) != SPOKEN
        ]
        before = any(self.of(SECTION, at) < plan.user.index for at in considered)
        after = any(self.of(SECTION, at) > plan.user.index for at in considered)
        full -= plan.message_length * (before + after)
        return max(0, full - self.window_length() - self.decided.filled.spare)

    def reason(self, place: int) -> str:
        plan, code = self.plan, self.codes[place]
        if code is DecisionCode.EXCLUDED_BUDGET:
            price, left = self.price(place), self.left()
            # Cut texts take up to their whole room: what a cut leaves over is less than its last token. A turn between
            # two that are shown closes a gap, and might have opened one when it was tried, before they were in.
            gaps = self.holes([*self.inside, place]) - self.holes(self.inside)
            assert price + 8 * (gaps < 0) > left or any(self.codes[at] == 6 for at in self.inside), (price, left)
            needs = plan.tokens(price)
            shown = min(plan.budget(self.decided.max_tokens), plan.whole_tokens(self.decided.filled.room(place)[1]))
            assert abs(shown - plan.whole_tokens(left)) <= 1 + len(self.decided.filled.truncations) * 2
            spare = plan.tokens(self.decided.filled.spare)
            if spare:
                return f"needs {needs} tokens, but {shown} were left, and {spare} kept free for the next turns"
            budget = plan.budget(self.decided.max_tokens)
            return f"needs {needs} tokens, but {budget - shown}/{budget} were used and {shown} left"
        if code is DecisionCode.EXCLUDED_RELEVANCE:
            found = [at for at in range(len(self.codes)) if self.ranked.breakdown(at)]
            assert self.ranked.relevance[place] < 0.32 * max(self.ranked.relevance[at] for at in found)
            return f"relevance {self.ranked.relevance[place]:.4f} is below 32% of the best"
        if code is DecisionCode.EXCLUDED_SECTION_BUDGET:
            section = plan.sections[self.of(SECTION, place)]
            used = sum(self.length(at, shown=True) for at in self.inside if self.of(SECTION, at) == section.index)
            cap = int(section.cap * plan.budget(self.decided.max_tokens))
            assert section.source == SUMMARY
            assert used + self.length(place, shown=False) > plan.longest(cap) - 200
            tokens = self.decided.tokens(place)
            return f"needs {tokens} tokens; section {section.name} may hold {cap} and is too full for it"
        if code is DecisionCode.EXCLUDED_EVICTED:
            number = self.of(TURN_NUMBER, place)
            # The last user message and open calls are shown wherever the others begin.
            must = {self.of(TURN_NUMBER, at) for at in self.inside if self.of(MARK, at) & MUST}
            rest = self.numbers - must - {self.of(TURN_NUMBER, at) for at in self.decided.filled.earlier}
            first = self.decided.filled.first_turn
            if first is None:
                assert not any(shown < max(must) for shown in rest)
                return f"turn {number} left: before the last user message this window shows open calls alone"
            assert number < first <= min(rest)
            return f"turn {number} left with its block: the turns of this window begin at turn {first}"
        if code is DecisionCode.EXCLUDED_GROUP:
            group = [at for at in range(len(self.codes)) if self.of(GROUP, at) == self.of(GROUP, place)]
            assert min(self.of(TURN_NUMBER, at) for at in group) < self.decided.filled.first_turn
            return "belongs to a tool call and its results, which did not fit whole"
        if code is DecisionCode.EXCLUDED_SHOWN:
            if self.of(SOURCE, place) in (SUMMARY, BLOCK):
                first = self.of(TURN_NUMBER, place)
                known = {self.of(TURN_NUMBER, at) for at in range(len(self.codes)) if self.of(SOURCE, at) == SPOKEN}
                since = {self.of(TURN_NUMBER, at) for at in self.inside if self.of(SOURCE, at) == SPOKEN}
                if not {number for number in known if number >= first} <= since:  # the query left less room than it may
                    begins = self.decided.filled.first_turn or max(known) + 1
                    sizes = [
                        self.length(at, shown=False)
                        for at in range(len(self.codes))
                        if self.of(SOURCE, at) == SPOKEN and first <= self.of(TURN_NUMBER, at) < begins
                    ]
                    assert sum(sizes) <= self.plan.longest(self.plan.budget(self.decided.max_tokens))
                return "the turns that it sums up are in the window, or next in line for its room"
            if self.of(SOURCE, place) != PASSAGE:
                assert self.of(TURN_NUMBER, place) - 1 in self.numbers
                return "the conversation shows a turn that says the same"
            shown = {self.of(ORDINAL, at) for at in self.inside if self.of(SOURCE, at) in (SPOKEN, PASSAGE)}
            assert self.of(ORDINAL, place) in shown
            return "another section shows this turn"
        if code is DecisionCode.EXCLUDED_DUPLICATE:
            twin = self.of(TWIN, place)
            better = [at for at in range(len(self.codes)) if self.of(ORDINAL, at) == twin and at != place]
            assert any(self.ranked.relevance[at] >= self.ranked.relevance[place] for at in better)
            return f"a more relevant record, of ordinal {twin}, says the same"
        if code is DecisionCode.EXCLUDED_DOSAGE:
            dosage, source = plan.config.pcp.dosage, self.of(SOURCE, place)
            kinds, most = {
                ARTIFACT: ((ARTIFACT,), dosage.max_artifacts_in_window),
                NOTE: ((NOTE,), dosage.max_notes_in_window),
                SUMMARY: ((SUMMARY, BLOCK), dosage.max_scopes_in_window),
                BLOCK: ((SUMMARY, BLOCK), dosage.max_scopes_in_window),
            }[source]
            before = (DecisionCode.EXCLUDED_DUPLICATE, DecisionCode.EXCLUDED_RELEVANCE, DecisionCode.EXCLUDED_ERROR)
            better = [at for at in range(place) if self.of(SOURCE, at) in kinds and self.codes[at] not in before]
            assert len(better) >= most
            knob = plan.records[self.of(SOURCE, place)].in_windows.most
            return f"better candidates fill the {most} places that pcp.dosage.{knob} allows"
        raise AssertionError(f"no reason is known for {code!r}")


def _text(rng: random.Random, most: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, most))) + "."


def _say(memory: Any, rng: random.Random, task: uuid.UUID, number: int) -> None:
    scope = memory.current_scope(task) or memory.open_scope(task)
    turns: list[dict[str, Any]] = [{"role": "user", "content": _text(rng, 30)}]
    if rng.random() < 0.3:
        turns.append({"role": "assistant", "content": "", "tool_calls": [ToolCall(f"c{number}", "look", "{}")]})
        turns.append({"role": "tool", "content": _text(rng, 80), "tool_call_id": f"c{number}"})
    turns.append({"role": "assistant", "content": _text(rng, rng.choice((10, 60, 200)))})
    memory.append_turns(scope.scope_id, turns)
    if rng.random() < 0.2:
        memory.create_artifact(
            scope.scope_id, artifact_type="fact", content=_text(rng, 40), extraction_method="explicit"
        )
    if rng.random() < 0.2:
        memory.add_note(
            entity=rng.choice(WORDS), entity_type="thing", note_type="fact", content=_text(rng, 30), confidence=0.9
        )
    if rng.random() < 0.06:
        memory.close_scope(scope.scope_id)


@pytest.mark.parametrize("number", range(STORES))
def test_every_reason_is_true_of_the_finished_window(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed() * 7_919 + number)
    assembled: list[Any] = []
    real = assembler.assemble

    def kept(*given: Any) -> Any:
        assembled.append(real(*given))
        return assembled[-1]

    monkeypatch.setattr("caliber.context.service.assemble", kept)
    profile = rng.choice(("reference", "coding-agent", "chat-companion", "ops-agent"))
    overrides = {"resident.feed_poll_ms": 0, "policies": [], "assembly.evict_block_turns": rng.choice((2, 8, 24))}
    config = caliber.profiles.PROFILES[profile](":memory:", **overrides, **{"tokens.estimator": "bytes"})
    clock = FixedClock(20_788 * 86_400_000_000)  # the lengths of dates are part of what is decided
    with caliber.open(config, principal=caliber.Principal.admin(), clock=clock) as memory:
        tasks = [memory.start_trajectory(f"task {at}", initiator=ME).trajectory_id for at in range(rng.randint(1, 3))]
        for at in range(rng.randint(3, 40)):
            _say(memory, rng, rng.choice(tasks), at)
        memory.flush()
        for at in range(WINDOWS):
            task = rng.choice(tasks)
            if rng.random() < 0.3:
                _say(memory, rng, task, 1_000 + at)
            query = rng.choice((None, None, "", _text(rng, 6)))
            budget = rng.choice((150, 300, 650, 1_000, 2_000, min(4_000, config.token_budget)))
            window = memory.assemble_context(task, query=query, max_tokens=budget)
            twin = Twin(assembled[-1])
            for place, decision in enumerate(window.assembly_trace):
                if decision.action.value == "exclude":
                    assert decision.reason == twin.reason(place)
            again = memory.replay(window.window_id)
            assert (again.text, again.messages, again.assembly_trace) == (
                window.text,
                window.messages,
                window.assembly_trace,
            )
