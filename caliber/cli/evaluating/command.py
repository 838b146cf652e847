"""Command ``eval``: measures search, or windows, on the user's questions, and explains each miss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from caliber.cli import show
from caliber.cli.evaluating.questions import read_questions
from caliber.cli.evaluating.windows import Recall, WindowEvidence, one_line
from caliber.cli.failures import DONE, PROBLEM, UsageError
from caliber.cli.memory.query import with_kinds
from caliber.cli.output import Output, plural
from caliber.cli.settings import Settings, with_store


@click.command("eval")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--k", "cutoffs", multiple=True, type=click.IntRange(min=1),
    help="Count the first K hits; repeatable. The largest decides what is missed.  [default: 5, 10]",
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
@with_store
def evaluate(
    settings: Settings,
    file: Path,
    cutoffs: tuple[int, ...],
    kinds: tuple[str, ...],
    limit_misses: int,
    fail_under: float | None,
    windows: bool,
    budgets: str | None,
) -> int:
    """Measure search on the questions in FILE, and explain every miss.

    FILE is JSON Lines. A line is {"query": "...", "expected": ["..."]}, with ids of records, or texts that they hold;
    "kinds", "filter" and "as_of" narrow a question.

    With --windows each question is asked of windows at several budgets: how much of what was expected each holds, and
    which step of assembly lost the rest. A new task of the owner of the newest one is assembled, and deleted
    afterwards, which only an admin may do.

    Vectors that still wait are made first. Exit code 1 when search was degraded, or recall is below --fail-under.
    """
    if windows and cutoffs:
        raise UsageError("--k counts hits of search: windows have --budgets", "leave out --k or --windows")
    if budgets is not None and not windows:
        raise UsageError("--budgets is for --windows", "add --windows")
    questions = read_questions(file)
    with settings.memory() as memory:
        measured: Recall | WindowEvidence = (
            WindowEvidence(memory, kinds or None, budgets) if windows else Recall(memory, kinds or None, cutoffs)
        )
        memory.search("", kinds=kinds or None, limit=1)  # an unknown kind is no fault of a question
        memory.flush()  # figures must not depend on how far the worker has come
        with settings.out.progress("questions", len(questions), "questions") as advance:
            document = {"file": file, **measured.of(questions, limit_misses, advance)}
    settings.out.result(document, lambda: _print(settings.out, document, measured.print_figures, measured.print_miss))
    code = DONE
    for reason, count in document["degraded"].items():
        settings.out.note(f"degraded: {reason}, for {plural(count, 'question')}")
        code = PROBLEM
    for what, share in document["headline"].items():
        if fail_under is not None and share < fail_under:
            settings.out.note(f"{what} {share:.3f} is below {fail_under:g}")
            code = PROBLEM
    return code


def _print(out: Output, document: dict[str, Any], figures: Any, miss: Any) -> None:
    from rich.text import Text

    out.print(f"{plural(document['questions'], 'question')}, {plural(document['expected'], 'expected record')}")
    figures(out, document)
    count = document["missed"]
    out.print(f"missed: {count:,} of {document['expected']:,}" if count else "nothing was missed")
    for missed in document["misses"]:
        width = min(out.console.width, 100)
        head = show.shortened(f"{missed['place']}  {one_line(missed['query'])}", width)
        out.console.print(Text(head, style="bold"), soft_wrap=True)
        what = missed["label"] or f"“{missed['expected']}”"
        out.console.print(Text(show.shortened(f"  expected  {one_line(what)}", width)))
        miss(out, missed, width)
    if more := count - len(document["misses"]):
        out.print(f"… and {more:,} more; --limit-misses explains more")
