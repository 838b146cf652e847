"""Recall of search on the user's questions."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from caliber.admin.absence import Expected
from caliber.cli import show
from caliber.cli.evaluating.questions import LabelledQuestion, absence_of, ask
from caliber.cli.failures import UsageError
from caliber.cli.output import Output, printable
from caliber.model.windows import SearchHit
from caliber.search.service import LIMIT_MAX

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber


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
