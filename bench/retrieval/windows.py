"""Windows over stores of conversations, beside plain search hits and the newest turns of the same budget.

A question is the last user turn while windows are assembled, in a new task of the same owner or in the conversation's
own; then the turn is deleted, so that no other question's window recalls it.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from caliber import Caliber, EntityRef
from caliber.cli.evaluating.windows import BUDGETS, Held, Wanted, token_counter, windows_of
from caliber.search.service import LIMIT_MAX
from retrieval.asking import INITIATOR, Stores
from retrieval.conversations import Question, Remembered, Turn

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

    def ask(self, question: Question, where: Sequence[str] = (*FILLED, *TASKS)) -> Iterator[Asked]:
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
        limit = LIMIT_MAX
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


def lines_that_fit(lines: Sequence[str], tokens: Callable[[str], int], budget: int) -> int:
    """Return how many lines fit, in order, until the first that does not; their line breaks count."""

    def tokens_of(count: int) -> int:
        return tokens("".join(f"{line}\n" for line in lines[:count]))

    return bisect_right(range(len(lines) + 1), budget, key=tokens_of) - 1


def filled(
    budget: int, wanted: Sequence[Wanted], held: Sequence[Wanted], lines: Sequence[str], tokens: Callable[[str], int]
) -> Held:
    """Return lines of text in the form of a window."""
    labels = frozenset(item.label for item in held)
    used = tokens("".join(f"{line}\n" for line in lines))
    return Held(budget, len(wanted), labels, sum(tokens(item.text) for item in held), used)


def by_place_and_budget(asked: Iterable[Asked]) -> dict[str, dict[int, list[Asked]]]:
    """Return answers by where they were asked, and by budget."""
    out: dict[str, dict[int, list[Asked]]] = {}
    for item in asked:
        out.setdefault(item.where, {}).setdefault(item.window.budget, []).append(item)
    return out


def ask_windows(
    stores: Stores,
    overrides: Mapping[str, Any],
    budgets: Sequence[int] = BUDGETS,
    where: Sequence[str] = (*FILLED, *TASKS),
    *,
    held_out: Mapping[str, Mapping[str, Any]] | None = None,
    as_query: bool = False,
    why: bool = True,
) -> list[Asked]:
    """Ask every question in every place at every budget; ``held_out`` has knobs by conversation."""
    out: list[Asked] = []
    for kept in stores.kept:
        own = {} if held_out is None else held_out[kept.conversation.name]
        with stores.open(kept.path, {**own, **overrides}) as memory:
            windows = ConversationWindows(memory, kept.remembered, INITIATOR, budgets, as_query=as_query, why=why)
            for question in kept.conversation.questions:
                out += windows.ask(question, where)
    return out
