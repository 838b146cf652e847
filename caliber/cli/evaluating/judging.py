"""Evaluation questions asked of search, and the scores of their hits: rank of each answer, recall, hit rate."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from caliber.cli.evaluating.questions import Expected, Question, folded
from caliber.cli.failures import UsageError
from caliber.model.errors import InputError
from caliber.model.lazy_dataclass import dataclass
from caliber.model.windows import SearchHit, SearchResult

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber


@dataclass(frozen=True, slots=True)
class Answer:
    """One expected record: the rank at which it came (the first is 1) and its id, or None for both."""

    expected: Expected
    rank: int | None
    record_id: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class Judged:
    """One question, with the rank of each expected record."""

    question: Question
    answers: tuple[Answer, ...]
    degraded: str | None

    def recall(self, k: int) -> float:
        """Return the share of the expected answers among the first ``k`` hits."""
        return sum(answer.rank is not None and answer.rank <= k for answer in self.answers) / len(self.answers)

    def missed(self, k: int) -> list[Answer]:
        """Return the expected answers that are not among the first ``k`` hits."""
        return [answer for answer in self.answers if answer.rank is None or answer.rank > k]


def matches(expected: Expected, record_id: uuid.UUID, content: str) -> bool:
    """Return whether a record is the expected one: by id, or by containing the text."""
    if expected.id is not None:
        return expected.id == record_id
    return expected.folded in folded(content)


def rank_of(expected: Expected, hits: Sequence[SearchHit]) -> int | None:
    """Return the rank of the first expected hit, from 1."""
    return next((rank for rank, hit in enumerate(hits, 1) if matches(expected, hit.id, hit.content)), None)


def ask(memory: Caliber, question: Question, kinds: Sequence[str] | None, limit: int) -> SearchResult:
    """Search with the question's kinds, filter and time.

    Raises: UsageError with the question's place, for kinds or a filter that cannot be.
    """
    try:
        return memory.search(
            question.query, kinds=kinds, limit=limit, filter=question.filter or None, as_of=question.as_of
        )
    except InputError as error:
        raise UsageError(
            f"{question.place}: {error}",
            "nothing was measured: correct the question",
            details={"code": error.code, "kind": error.kind, "place": question.place},
        ) from error


def ask_without_floor(memory: Caliber, question: Question, kinds: Sequence[str] | None, limit: int) -> SearchResult:
    """Search as ``ask`` does, for all that any leg finds. Raises: InputError kinds."""
    return memory._searching.search_many(
        (question.query,),
        kinds=kinds,
        limit=limit,
        conditions=question.filter or None,
        as_of=question.as_of,
        consistency=None,
        floor=False,
    )[0]


def judge_all(
    memory: Caliber,
    questions: Sequence[Question],
    kinds: Sequence[str] | None,
    depth: int,
    advance: Callable[[int], None],
) -> list[Judged]:
    """Ask every question for ``depth`` hits; its own kinds go before the command's. Raises: UsageError."""
    out = []
    for question in questions:
        found = ask(memory, question, question.kinds or kinds, depth)
        answers = []
        for expected in question.expected:
            rank = rank_of(expected, found.hits)
            answers.append(Answer(expected, rank, None if rank is None else found.hits[rank - 1].id))
        out.append(Judged(question, tuple(answers), found.reason))
        advance(1)
    return out


def mean_recall(judged: Sequence[Judged], k: int) -> float:
    """Return recall@k over all questions, each counting the same."""
    return sum(item.recall(k) for item in judged) / len(judged)


def hit_rate(judged: Sequence[Judged], k: int) -> float:
    """Return the share of questions with anything expected among the first ``k`` hits."""
    return sum(item.recall(k) > 0 for item in judged) / len(judged)
