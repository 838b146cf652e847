"""Evaluation of windows, beside plain search hits of the same budget, over a conversation or the user's store.

A question about a conversation is its last user turn while windows are assembled, in a new task of the same owner or in
the conversation's own; then the turn is deleted, so that no other question's window recalls it. A question about a
user's own store is passed as ``query=``, and nothing is appended.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from caliber.cli.evaluating.conversations import Question as TalkQuestion
from caliber.cli.evaluating.conversations import Remembered, Turn
from caliber.cli.evaluating.evidence import Held, Wanted, lines_that_fit, token_counter, windows_of
from caliber.cli.evaluating.judging import ask, matches
from caliber.cli.evaluating.questions import Question
from caliber.cli.evaluating.reasons import Reasons

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber
    from caliber.model.references import EntityRef

BUDGETS: Final = (500, 1_000, 2_000, 4_000, 8_000)

NEW, SAME = "new task", "same task"
SEARCH_AND_FILL, WITH_DAYS, NEWEST = "search and fill", "search and fill, with days", "newest turns"
TASKS: Final = (NEW, SAME)
FILLED: Final = (SEARCH_AND_FILL, WITH_DAYS, NEWEST)


@dataclass(frozen=True)
class Asked:
    """One question at one budget: in a window of ``where``, or in another text of the same budget."""

    place: str
    query: str
    where: str
    wanted: tuple[Wanted, ...]
    window: Held
    group: str = ""


def by_name(turn: Turn) -> str:
    """Return a turn as ``name: text``."""
    return f"{turn.speaker}: {turn.text}"


def by_name_and_day(turn: Turn) -> str:
    """Return a turn as ``[name, 8 May 2023] text``."""
    return f"[{turn.speaker}, {turn.said_at.day} {turn.said_at:%B %Y}] {turn.text}"


class ConversationWindows:
    """Windows over one conversation, which lies alone in an open store."""

    def __init__(
        self,
        memory: Caliber,
        remembered: Remembered,
        owner: EntityRef,
        budgets: Sequence[int] = BUDGETS,
        *,
        as_query: bool = False,
        why: bool = True,
    ) -> None:
        """``as_query`` passes the question as ``query=`` besides appending it."""
        self._memory = memory
        self._remembered = remembered
        self._owner = owner
        self._budgets = budgets
        self._as_query = as_query
        self._why = why
        self._turns = {turn.name: turn for turn in remembered.conversation.turns}
        self._ids = {name: uuid.UUID(record_id) for record_id, name in remembered.names.items()}
        self._tokens = token_counter(memory)

    def ask(self, question: TalkQuestion, where: Sequence[str] = (*FILLED, *TASKS)) -> Iterator[Asked]:
        """Yield the content of a window filled in each way, at each budget."""
        talk = self._remembered.conversation
        searched = self._why or not set(where) <= {NEWEST, *TASKS}
        found = self._found(question.text) if searched else []
        ranks = {turn.name: rank for rank, turn in enumerate(found, 1)}
        wanted = tuple(
            Wanted(name, self._turns[name].text, self._ids[name], rank=ranks.get(name))
            for name in sorted(question.evidence)
        )
        orders: Mapping[str, tuple[Sequence[Turn], Callable[[Turn], str]]] = {
            SEARCH_AND_FILL: (found, by_name),
            WITH_DAYS: (found, by_name_and_day),
            NEWEST: (talk.turns[::-1], by_name_and_day),
        }
        for name in where:
            windows = self._assembled(question.text, name, wanted) if name in TASKS else None
            for window in windows or self._filled(wanted, *orders[name]):
                yield Asked(f"question {question.number}", question.text, name, wanted, window, talk.name)

    def _found(self, question: str) -> list[Turn]:
        """Return the turns that search finds, while the question is no turn itself."""
        limit = self._memory.config.search.limit_max
        hits = self._memory.search(question, kinds=("turn",), limit=limit).hits
        return [self._turns[self._remembered.names[str(hit.id)]] for hit in hits]

    def _filled(self, wanted: Sequence[Wanted], order: Sequence[Turn], render: Callable[[Turn], str]) -> Iterator[Held]:
        names = [turn.name for turn in order]
        lines = [render(turn) for turn in order]
        for budget in self._budgets:
            count = lines_that_fit(lines, self._tokens, budget)
            held = [item for item in wanted if item.label in names[:count]]
            yield filled(budget, wanted, held, lines[:count], self._tokens)

    def _assembled(self, question: str, where: str, wanted: Sequence[Wanted]) -> Iterator[Held]:
        memory = self._memory
        task = self._remembered.task
        if where == NEW:
            task = memory.start_trajectory("A new conversation", initiator=self._owner).trajectory_id
        scope = memory.current_scope(task) or memory.open_scope(task)
        turn = memory.append_turn(scope.scope_id, role="user", content=question)
        try:
            memory.flush()  # the question's own vector is made behind
            query = question if self._as_query else None
            yield from windows_of(memory, task, wanted, self._budgets, query=query, why=self._why)
        finally:
            memory.storage.turns.delete(turn.turn_id)


def filled(
    budget: int, wanted: Sequence[Wanted], held: Sequence[Wanted], lines: Sequence[str], tokens: Callable[[str], int]
) -> Held:
    """Return lines of text in the form of a window."""
    return Held(
        budget,
        len(wanted),
        frozenset(item.label for item in held),
        sum(tokens(item.text) for item in held),
        tokens("".join(f"{line}\n" for line in lines)),
    )


def ask_store(
    memory: Caliber,
    questions: Sequence[Question],
    task: uuid.UUID,
    where: str,
    budgets: Sequence[int],
    kinds: Sequence[str] | None,
    advance: Callable[[int], None],
) -> list[Asked]:
    """Ask the user's questions of windows of ``task`` and of search hits, at each budget. Raises: UsageError."""
    tokens = token_counter(memory)
    limit = memory.config.search.limit_max
    reasons = Reasons(memory, kinds, limit)
    out = []
    for question in questions:
        hits = ask(memory, question, question.kinds or kinds, limit).hits
        wanted = []
        for expected in question.expected:
            rank = next((at for at, hit in enumerate(hits, 1) if matches(expected, hit.id, hit.content)), None)
            row = (hits[rank - 1].id, hits[rank - 1].content) if rank else reasons.record_of(question, expected)
            text = expected.text if expected.id is None or row is None else row[1]
            wanted.append(Wanted(expected.text, text, None if row is None else row[0], expected.id is not None, rank))
        asked = (question.place, question.query)
        lines = [hit.content for hit in hits]
        for budget in budgets:
            count = lines_that_fit(lines, tokens, budget)
            text = "\n".join(lines[:count])
            held = [item for item in wanted if item.held_in(text)]
            window = filled(budget, wanted, held, lines[:count], tokens)
            out.append(Asked(*asked, SEARCH_AND_FILL, tuple(wanted), window))
        windows = windows_of(memory, task, wanted, budgets, query=question.query, as_of=question.as_of)
        out += [Asked(*asked, where, tuple(wanted), window) for window in windows]
        advance(1)
    return out


def by_place_and_budget(asked: Iterable[Asked]) -> dict[str, dict[int, list[Asked]]]:
    """Return answers by where they were asked, and by budget."""
    out: dict[str, dict[int, list[Asked]]] = {}
    for item in asked:
        out.setdefault(item.where, {}).setdefault(item.window.budget, []).append(item)
    return out


def figures_of(asked: Sequence[Asked]) -> dict[str, Any]:
    """Return means over questions, and how many of the expected each step lost.

    Units: ``used_tokens`` and ``evidence_tokens`` a window.
    """
    windows = [item.window for item in asked]
    return {
        "held": sum(window.share for window in windows) / len(windows),
        "all_held": sum(window.share == 1 for window in windows) / len(windows),
        "used_tokens": sum(window.used_tokens for window in windows) / len(windows),
        "evidence_tokens": sum(window.evidence_tokens for window in windows) / len(windows),
        "lost": dict(Counter(lost.code for window in windows for lost in window.lost.values()).most_common()),
    }
