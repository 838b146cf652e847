"""Evidence in windows of a new task."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from caliber.admin.absence import Miss
from caliber.cli import show
from caliber.cli.evaluating.evidence import Held, Wanted, windows_of
from caliber.cli.evaluating.questions import LabelledQuestion, absence_of, ask
from caliber.cli.evaluating.recall import one_line, print_table
from caliber.cli.failures import UsageError
from caliber.cli.output import Output
from caliber.importing.source import initiator_of
from caliber.model.trajectory import TrajectoryStatus
from caliber.model.windows import SearchHit
from caliber.search.service import LIMIT_MAX

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber

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
