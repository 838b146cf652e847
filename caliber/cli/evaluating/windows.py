"""Measures of ``eval``: recall of search, and evidence in windows of a new task."""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from caliber.admin.absence import Expected, Miss, folded
from caliber.api.caliber import Caliber
from caliber.cli import show
from caliber.cli.evaluating.questions import LabelledQuestion, absence_of, ask
from caliber.cli.failures import UsageError
from caliber.cli.output import Output, printable
from caliber.engine.refusals import estimator_of
from caliber.importing.source import initiator_of
from caliber.kernels import estimate_tokens
from caliber.model.context import AssemblyAction
from caliber.model.errors import BudgetTooSmall, NotFound
from caliber.model.lazy_dataclass import dataclass
from caliber.model.trajectory import TrajectoryStatus
from caliber.model.windows import ContextWindow, SearchHit
from caliber.search.service import LIMIT_MAX


class Recall:
    """Recall at each cutoff, the share of questions with any hit, and the reason of each miss at the largest one."""

    def __init__(self, memory: Caliber, kinds: Sequence[str] | None, cutoffs: Sequence[int]) -> None:
        self._memory = memory
        self._kinds = kinds
        self._cutoffs = sorted(set(cutoffs or (5, 10)))
        if self._cutoffs[-1] > LIMIT_MAX:
            raise UsageError(f"--k must be at most {LIMIT_MAX}")

    def of(
        self, questions: Sequence[LabelledQuestion], limit_misses: int, advance: Callable[[int], None]
    ) -> dict[str, Any]:
        """Ask every question; return the result as a JSON document. Raises: UsageError."""
        depth = self._cutoffs[-1]
        answers, missed, degraded = [], [], Counter[str]()
        ranks: list[list[float]] = []
        for question in questions:
            found = ask(self._memory, question, self._kinds, depth)
            degraded.update([found.reason] if found.reason is not None else [])
            rows = [(item, item.rank_in(found.hits)) for item in question.expected]
            missed += [(question, item) for item, rank in rows if rank is None]
            ranks.append([float("inf") if rank is None else rank for _, rank in rows])
            listed = [
                {"expected": item.text, "id": rank and found.hits[rank - 1].id, "rank": rank} for item, rank in rows
            ]
            answers.append({"place": question.place, "query": question.query, "expected": listed})
            advance(1)
        shares = {k: [sum(rank <= k for rank in row) / len(row) for row in ranks] for k in self._cutoffs}
        recall = {str(k): sum(shares[k]) / len(ranks) for k in shares}
        return {
            "questions": len(questions),
            "expected": sum(map(len, ranks)),
            "recall": recall,
            "headline": {f"recall@{depth}": recall[str(depth)]},
            "hit_rate": {str(k): sum(map(bool, shares[k])) / len(ranks) for k in shares},
            "missed": len(missed),
            "misses": [self._miss(*pair) for pair in missed[:limit_misses]],
            "degraded": dict(degraded),
            "position": self._memory.search("", limit=1).position,
            "answers": answers,
        }

    def _miss(self, question: LabelledQuestion, expected: Expected) -> dict[str, Any]:
        """Return why ``expected`` was not among the first hits, as a JSON document."""
        found = absence_of(self._memory, question, expected, self._kinds)
        return {
            "place": question.place,
            "query": question.query,
            "expected": expected.text,
            "id": found.id,
            "kind": found.kind,
            "label": None if found.id is None else self._label(found.id),
            "rank": found.rank,
            "score": None,
            **({} if found.hit is None else _parts(found.hit)),
            "before": [
                {"id": hit.id, "kind": hit.kind, "label": self._label(hit.id), "rank": rank, **_parts(hit)}
                for rank, hit in enumerate(found.before, 1)
            ],
            "code": found.code,
            "why": found.why,
        }

    def _label(self, record_id: uuid.UUID) -> str:
        return show.label(show.peek(self._memory, record_id))

    def print_figures(self, out: Output, document: dict[str, Any]) -> None:
        """Print the figures."""
        rows = {"recall": "recall", "questions with a hit": "hit_rate"}
        cells = {title: [f"{value:.3f}" for value in document[key].values()] for title, key in rows.items()}
        print_table(out, "first hits", self._cutoffs, cells)

    def print_miss(self, out: Output, missed: dict[str, Any], width: int) -> None:
        """Print why a record was missed, and what came before it."""
        from rich.text import Text

        if missed["id"] is not None:
            out.console.print(Text(f"            {missed['kind']} {missed['id']}", style="bright_black"))
        out.console.print(Text(f"  why       {missed['why']}", style="yellow"))
        if missed["score"] is not None:
            out.console.print(Text(f"  score     {_score(missed)}", style="dim"))
        for hit in missed["before"]:
            what = f"  before it {hit['rank']}. {hit['kind']}: {one_line(hit['label'])}"
            out.console.print(Text(show.shortened(what, width)))
            out.console.print(Text(f"            {_score(hit)}", style="dim"))


def _parts(hit: SearchHit) -> dict[str, Any]:
    return {"score": hit.score, "breakdown": dict(hit.breakdown)}


def _score(hit: dict[str, Any]) -> str:
    parts = sorted(hit["breakdown"].items(), key=lambda item: -abs(item[1]))
    return f"{hit['score']:.2f}: " + ", ".join(f"{name} {part:.2f}" for name, part in parts[:4])


def print_table(out: Output, title: str, columns: Sequence[int], rows: Mapping[str, Sequence[str]]) -> None:
    """Print rows of figures below numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_row(Text(title, style="bold"), *(Text(f"{column:,}", style="bold") for column in columns))
    for name, cells in rows.items():
        table.add_row(Text(name), *(Text(cell, justify="right") for cell in cells))
    out.console.print(table)


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters."""
    return " ".join(printable(text).split())


_CODE_OF_RULE: Final = {
    "relevance_threshold": "below_floor", "section_limit": "section_full", "budget_limit": "budget_full",
    "group_limit": "group", "dosage_limit": "dosage", "left_with_block": "evicted",
}  # fmt: skip
_SAYS_LESS: Final = {"truncated": 0, "already_shown": 2, "evicted": 3}
"""Which of several decisions about one record is given: the least; 1 for the others."""
_CODE_OF_FILTER: Final = {"min_relevance": "below_floor", "min_similarity": "below_floor", "not_found": "not_found"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A text that windows should hold, ``whole`` as one message; ``rank`` is where search finds the record ``id``."""

    label: str
    text: str
    id: uuid.UUID | None = None
    whole: bool = True
    rank: int | None = None

    def held_in(self, text: str) -> bool:
        """Return whether a window's text holds it."""
        if self.whole:
            return bool(self.text.split()) and _message(self.text).search(text) is not None
        return folded(self.text) in folded(text)


@lru_cache(maxsize=8_192)
def _message(content: str) -> re.Pattern[str]:
    words = r"\s+".join(map(re.escape, content.split()))
    return re.compile(rf"(?:^|[\]:>)-][ \t]*|[\r\n][ \t]*){words}[ \t]*(?:[\r\n]|\Z)")


@dataclass(frozen=True, slots=True)
class Lost:
    """The reason why a window lacks a text; ``code`` is stable, for programs."""

    code: str
    why: str


@dataclass(frozen=True, slots=True)
class Held:
    """One window: the labels of the expected texts that it holds, and the step that lost each of the others."""

    budget: int
    wanted: int
    held: frozenset[str]
    evidence_tokens: int
    used_tokens: int
    seconds: float = 0.0
    lost: Mapping[str, Lost] = field(default_factory=dict)
    degraded: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The share of the expected texts that the window holds."""
        return len(self.held) / self.wanted


def token_counter(memory: Caliber) -> Callable[[str], int]:
    """Return the configured estimator as a function."""
    estimator = estimator_of(memory.config)
    return lambda text: estimate_tokens(text, estimator=estimator)


def windows_of(
    memory: Caliber,
    task: uuid.UUID,
    expected: Sequence[Wanted],
    budgets: Sequence[int],
    *,
    query: str | None,
    as_of: datetime | None = None,
    why: bool = True,
) -> Iterator[Held]:
    """Assemble one window of a task at each budget; ``query`` and ``as_of`` as ``Caliber.assemble_context``."""
    tokens = token_counter(memory)
    for budget in budgets:
        began = time.perf_counter()
        try:
            window = memory.assemble_context(task, query=query, max_tokens=budget, as_of=as_of)
        except BudgetTooSmall as error:
            lost = {item.label: Lost("budget_too_small", str(error)) for item in expected}
            yield Held(budget, len(expected), frozenset(), 0, 0, time.perf_counter() - began, lost)
            continue
        seconds = time.perf_counter() - began
        held = [item for item in expected if item.held_in(window.text)]
        labels = frozenset(item.label for item in held)
        lost = {item.label: _step(memory, window, item) for item in expected if why and item not in held}
        evidence = sum(tokens(item.text) for item in held)
        yield Held(budget, len(expected), labels, evidence, window.used_tokens, seconds, lost, window.degraded)


def _step(memory: Caliber, window: ContextWindow, expected: Wanted) -> Lost:
    """Return the last decision about a candidate, or why the record was none."""
    if expected.id is None:
        return Lost("no_such_record", "no record holds it, or the principal may not see one that does")
    lost = []
    for decision in window.assembly_trace:
        if decision.target_id == expected.id and decision.action is AssemblyAction.EXCLUDE:
            lost.append(Lost(_CODE_OF_RULE.get(decision.rule_id, decision.rule_id), decision.reason))
        elif decision.target_id == expected.id:
            lost.append(Lost("truncated", f"the window holds a part of it: {decision.reason}"))
    if lost:
        # A turn that was dropped from the conversation could still have been recalled: the reason why not says more.
        return min(lost, key=lambda item: _SAYS_LESS.get(item.code, 1))
    try:
        explained = memory.explain(window.window_id, exclusion=expected.id)
    except NotFound:
        explained = {"verdict": "no_candidate", "reason": "it was no candidate; windows are not kept for explain"}
    verdict, reason = explained.get("filter") or explained["verdict"], explained["reason"]
    if expected.rank is None and verdict != "superseded":
        return Lost("not_found", f"search does not find it: {reason}")
    return Lost(_CODE_OF_FILTER.get(verdict, verdict), reason)


BUDGETS: Final = (500, 1_000, 2_000, 4_000, 8_000)


class WindowEvidence:
    """The share of what was expected that windows hold at each budget, and the step that lost the rest."""

    def __init__(self, memory: Caliber, kinds: Sequence[str] | None, budgets: str | None) -> None:
        if not memory.principal.is_admin:
            raise UsageError("only an admin can delete the new task afterwards", "measure with --as admin")
        self._memory = memory
        self._kinds = kinds
        self._budgets = _sizes(budgets, memory.config.token_budget)

    def of(
        self, questions: Sequence[LabelledQuestion], limit_misses: int, advance: Callable[[int], None]
    ) -> dict[str, Any]:
        """Ask every question; return the result as a JSON document. Raises: UsageError."""
        misses: list[dict[str, Any]] = []
        assembled: list[Held] = []
        with _new_task(self._memory) as task:
            for question in questions:
                wanted = self._wanted(question)
                query, as_of = question.query, question.as_of
                row = list(windows_of(self._memory, task, wanted, self._budgets, query=query, as_of=as_of))
                misses += [item for each in wanted if (item := _miss(question, each, row))["lost"]]
                assembled += row
                advance(1)
        count, largest = len(self._budgets), self._budgets[-1]
        budgets = {str(size): figures_of(assembled[at::count]) for at, size in enumerate(self._budgets)}
        return {
            "questions": len(questions),
            "expected": sum(len(question.expected) for question in questions),
            "budgets": budgets,
            "headline": {f"evidence held at {largest:,} tokens": budgets[str(largest)]["held"]},
            "missed": len(misses),
            # Those that a large window lacks come first.
            "misses": sorted(misses, key=lambda item: -max(map(int, item["lost"])))[:limit_misses],
            "degraded": dict(Counter(reason for held in assembled for reason in held.degraded)),
        }

    def _wanted(self, question: LabelledQuestion) -> list[Wanted]:
        """Return the records that are expected, with their texts and where search finds them."""
        hits = ask(self._memory, question, self._kinds, LIMIT_MAX).hits
        wanted = []
        for expected in question.expected:
            rank = expected.rank_in(hits)
            row: SearchHit | Miss
            row = hits[rank - 1] if rank else absence_of(self._memory, question, expected, self._kinds)
            text = expected.text if expected.id is None or row.content is None else row.content
            wanted.append(Wanted(expected.text, text, row.id, expected.id is not None, rank))
        return wanted

    def print_figures(self, out: Output, document: dict[str, Any]) -> None:
        """Print the figures."""
        row = document["budgets"].values()
        names = {"evidence held": ("held", ".3f"), "tokens used": ("used_tokens", ",.0f")}
        names["of them evidence"] = ("evidence_tokens", ",.0f")
        cells = {title: [f"{cell[key]:{form}}" for cell in row] for title, (key, form) in names.items()}
        for code in dict.fromkeys(code for cell in row for code in cell["lost"]):
            cells[f"lost: {code}"] = [f"{cell['lost'].get(code, 0):,}" for cell in row]
        print_table(out, "tokens", self._budgets, cells)

    def print_miss(self, out: Output, missed: dict[str, Any], _: int) -> None:
        """Print the steps that lost a record."""
        from rich.text import Text

        rank = "not found by search" if missed["rank"] is None else f"{missed['rank']:,} in search"
        out.console.print(Text(f"            {missed['id'] or 'no record'}, {rank}", style="bright_black"))
        for budget, lost in missed["lost"].items():
            text = f"  at {int(budget):,}: {lost['code']}: {one_line(lost['why'])}"
            out.console.print(Text(text, style="yellow"), soft_wrap=True)


def figures_of(windows: Sequence[Held]) -> dict[str, Any]:
    """Return means over windows, and how many of the expected each step lost."""
    return {
        "held": sum(window.share for window in windows) / len(windows),
        "all_held": sum(window.share == 1 for window in windows) / len(windows),
        "used_tokens": sum(window.used_tokens for window in windows) / len(windows),
        "evidence_tokens": sum(window.evidence_tokens for window in windows) / len(windows),
        "lost": dict(Counter(lost.code for window in windows for lost in window.lost.values()).most_common()),
    }


def _miss(question: LabelledQuestion, wanted: Wanted, windows: Sequence[Held]) -> dict[str, Any]:
    return {
        "place": question.place, "query": question.query, "expected": wanted.label, "id": wanted.id,
        "label": None if wanted.id is None else show.first_line(wanted.text), "rank": wanted.rank,
        "lost": {str(held.budget): asdict(held.lost[wanted.label]) for held in windows if wanted.label in held.lost},
    }  # fmt: skip


def _sizes(text: str | None, most: int) -> list[int]:
    if text is None:
        return [size for size in BUDGETS if size <= most] or [most]
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or not 1 <= sizes[0] <= sizes[-1] <= most:
        raise UsageError(f"--budgets {text}: expected numbers of tokens up to token_budget = {most}", "500,1000,2000")
    return sizes


@contextmanager
def _new_task(memory: Caliber) -> Iterator[uuid.UUID]:
    """Yield a new task of the initiator of the newest one; it is deleted afterwards."""
    tasks = (item for status in TrajectoryStatus for item in memory.storage.trajectories.list_by_status(status))
    newest = max(tasks, key=lambda item: item.last_activity_at, default=None)
    owner = initiator_of("caliber eval") if newest is None else newest.initiator
    task = memory.start_trajectory("Questions of caliber eval", initiator=owner).trajectory_id
    try:
        yield task
    finally:
        memory.flush()
        memory.storage.trajectories.delete(task)
