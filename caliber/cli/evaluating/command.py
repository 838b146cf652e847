"""Command ``eval``: measures recall of search on the user's questions, and explains each miss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from caliber.cli import show
from caliber.cli.failures import DONE, PROBLEM, UsageError
from caliber.cli.memory.query import with_kinds
from caliber.cli.output import Output, plural, printable
from caliber.cli.settings import Settings, with_store

if TYPE_CHECKING:
    from caliber.cli.evaluating.judging import Judged
    from caliber.cli.evaluating.reasons import Missed

_CUTOFFS: Final = (5, 10)
_PARTS_SHOWN: Final = 4


@click.command("eval")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--k", "cutoffs", multiple=True, type=click.IntRange(min=1), default=_CUTOFFS, show_default=True,
    help="Count the first K hits; repeatable. The largest decides what is missed.",
)  # fmt: skip
@with_kinds
@click.option(
    "--limit-misses", type=click.IntRange(min=0), default=20, show_default=True, help="Explain this many misses."
)
@click.option("--fail-under", type=click.FloatRange(0, 1), metavar="RECALL", help="Exit code 1 below this recall.")
@click.option("--windows", is_flag=True, help="Measure the evidence in windows, not what search finds.")
@click.option(
    "--budgets", metavar="TOKENS,…", help="With --windows: sizes of the windows.  [default: 500,1000,2000,4000,8000]"
)
@click.option(
    "--task", metavar="TASK", help="With --windows: windows of TASK (its id, or `latest`), not of a new task."
)
@with_store
@click.pass_context
def evaluate(
    context: click.Context,
    settings: Settings,
    file: Path,
    cutoffs: tuple[int, ...],
    kinds: tuple[str, ...],
    limit_misses: int,
    fail_under: float | None,
    windows: bool,
    budgets: str | None,
    task: str | None,
) -> int:
    """Measure search on the questions in FILE, and explain every miss.

    FILE is JSON Lines or TOML. A line is {"query": "...", "expected": ["..."]}, with ids of records, or texts that they
    hold; "kinds", "filter" and "as_of" narrow a question. In TOML each question is a table [[question]].

    With --windows each question is asked of windows at several budgets: how much of what was expected each holds, and
    which step of assembly lost the rest. A new task of the owner of the newest one is assembled, and deleted
    afterwards. FILE can then also be a conversation with questions in LoCoMo's form (.json); it is measured in a store
    of its own.

    Vectors that still wait are made first. Exit code 1 when search was degraded, or recall is below --fail-under.
    """
    if windows:
        from caliber.cli.evaluating.windows_command import evaluate_windows

        if context.get_parameter_source("cutoffs") is ParameterSource.COMMANDLINE:
            raise UsageError("--k counts hits of search: windows have --budgets", "leave out --k or --windows")
        return evaluate_windows(settings, file, budgets, task, kinds, limit_misses, fail_under)
    if budgets is not None or task is not None:
        raise UsageError("--budgets and --task are for --windows", "add --windows")
    from caliber.cli.evaluating.judging import judge_all
    from caliber.cli.evaluating.questions import read_questions
    from caliber.cli.evaluating.reasons import Reasons

    questions = read_questions(file)
    steps = sorted(set(cutoffs))
    with settings.memory() as memory:
        if steps[-1] > memory.config.search.limit_max:
            raise UsageError(f"--k {steps[-1]} is more than search.limit_max = {memory.config.search.limit_max}")
        memory.search("", kinds=kinds or None, limit=1)  # an unknown kind is no fault of a question
        # Figures must not depend on how far the worker has come.
        memory.flush()
        with settings.out.progress("questions", len(questions), "questions") as advance:
            judged = judge_all(memory, questions, kinds or None, steps[-1], advance)
        missed = [(item.question, answer.expected) for item in judged for answer in item.missed(steps[-1])]
        reasons = Reasons(memory, kinds or None, steps[-1])
        explained = [reasons.explain(*pair) for pair in missed[:limit_misses]]
        position = memory.search("", limit=1).position
    document = _document(file, judged, steps, explained, len(missed), position)
    settings.out.result(document, lambda: _print(settings.out, document, explained))
    return _verdict(settings.out, document, fail_under)


def _document(
    file: Path, judged: Sequence[Judged], steps: Sequence[int], explained: Sequence[Missed], missed: int, position: Any
) -> dict[str, Any]:
    from caliber.cli.evaluating.judging import hit_rate, mean_recall

    return {
        "file": file,
        "questions": len(judged),
        "expected": sum(len(item.answers) for item in judged),
        "recall": {str(k): mean_recall(judged, k) for k in steps},
        "hit_rate": {str(k): hit_rate(judged, k) for k in steps},
        "missed": missed,
        "misses": explained,
        "degraded": dict(Counter(item.degraded for item in judged if item.degraded is not None)),
        "position": position,
        "answers": [
            {
                "place": item.question.place,
                "query": item.question.query,
                "expected": [
                    {"expected": answer.expected.text, "id": answer.record_id, "rank": answer.rank}
                    for answer in item.answers
                ],
            }
            for item in judged
        ],
    }


def _verdict(out: Output, document: dict[str, Any], fail_under: float | None) -> int:
    code = DONE
    for reason, count in document["degraded"].items():
        out.note(f"degraded: {reason}, for {plural(count, 'question')}")
        code = PROBLEM
    k, recall = list(document["recall"].items())[-1]
    if fail_under is not None and recall < fail_under:
        out.note(f"recall@{k} {recall:.3f} is below {fail_under:g}")
        code = PROBLEM
    return code


# --- for people ---------------------------------------------------------------------------------


def _print(out: Output, document: dict[str, Any], explained: Sequence[Missed]) -> None:
    from rich.table import Table
    from rich.text import Text

    count, expected = document["questions"], document["expected"]
    out.print(f"{plural(count, 'question')}, {plural(expected, 'expected record')}")
    table = Table.grid(padding=(0, 2))
    table.add_row("", *(Text(f"first {k}", style="bold") for k in document["recall"]))
    for title, key in (("recall", "recall"), ("questions with a hit", "hit_rate")):
        table.add_row(title, *(Text(f"{value:.3f}") for value in document[key].values()))
    out.console.print(table)
    if not document["missed"]:
        out.print("nothing was missed")
        return
    out.print()
    out.print(f"missed: {document['missed']:,} of {expected:,}")
    for missed in explained:
        _print_missed(out, missed)
    if len(explained) < document["missed"]:
        out.print(f"… and {document['missed'] - len(explained):,} more; --limit-misses explains more")


def _print_missed(out: Output, missed: Missed) -> None:
    from rich.text import Text

    from caliber.cli.evaluating.reasons import ordinal

    width = min(out.console.width, 100)
    out.console.print(
        Text(show.shortened(f"{missed.place}  {_line(missed.query)}", width), style="bold"), soft_wrap=True
    )
    what = missed.label if missed.label is not None else f"“{_line(missed.expected)}”"
    out.console.print(Text(show.shortened(f"  expected  {_line(what)}", width)))
    if missed.id is not None:
        out.console.print(Text(f"            {missed.kind} {missed.id}", style="bright_black"))
    out.console.print(Text(f"  why       {missed.why}", style="yellow"))
    if missed.legs:
        legs = sorted(missed.legs.items(), key=lambda item: item[1].rank)
        leg_texts = ", ".join(f"{name} {leg.part:.2f} ({ordinal(leg.rank)})" for name, leg in legs)
        out.console.print(Text(f"  score     {missed.score:.2f}: {leg_texts}", style="dim"))
    for at, before in enumerate(missed.before):
        head = "  before it " if not at else "            "
        out.console.print(Text(show.shortened(f"{head}{before.rank}. {before.kind}: {before.label}", width)))
        parts = sorted(before.gains.items(), key=lambda item: -abs(item[1]))
        gains = [f"{name} {gain:+.2f}" for name, gain in parts[:_PARTS_SHOWN] if abs(gain) >= 0.005]
        if gains:
            out.console.print(Text(f"               {', '.join(gains)}", style="dim"))


def _line(text: str) -> str:
    return " ".join(printable(text).split())
