"""Command ``demo``: imports a repository into a new store, asks questions, reopens it, prints timings."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from caliber.cli.demo import steps
from caliber.cli.demo.questions import Question, questions_about, shown_answer
from caliber.cli.failures import DONE, PROBLEM, UsageError
from caliber.cli.output import Output, bytes_text, plural, printable
from caliber.cli.settings import DEFAULT_STORE, Settings, with_settings
from caliber.cli.show import print_window, shortened, window_document
from caliber.model.context import SourceType

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber
    from caliber.model.windows import ContextWindow

FOLDER: Final = ".demo"
COMMITS: Final = 3_000
DOCUMENTS: Final = 400
ASSEMBLIES: Final = 1_000
SMALL_BUDGET: Final = 2_000


@dataclass(slots=True)
class Asked:
    """A question, its window, and the answer that the window holds, if the right answer is known."""

    question: str
    window: ContextWindow
    known: bool
    answer: str | None


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=".")
@click.option("-q", "--question", "questions", multiple=True, help="Ask this instead; may be given twice.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help=f"Where to keep the store and its program.  [default: {FOLDER}]",
)
@click.option(
    "--assemblies", type=click.IntRange(min=10), default=ASSEMBLIES, show_default=True, help="Windows to time."
)
@click.option("--postgres", metavar="DSN", help=f"Keep the store in PostgreSQL, in a new schema {steps.SCHEMA}.")
@with_settings
def demo(
    settings: Settings,
    path: Path,
    questions: tuple[str, ...],
    folder: Path | None,
    assemblies: int,
    postgres: str | None,
) -> int:
    """Import the repository or folder at PATH, and show its memory.

    A git repository gives its newest 3,000 commits and its documents; any other folder its text files. Nothing in PATH
    is changed. The store stays in --folder with its program, demo.caliber, so that you can change rules and experiment;
    the next demo recreates both.
    """
    if len(questions) > 2:
        raise UsageError("the demo asks two questions", "give --question at most twice")
    out = settings.out
    began = time.monotonic()
    home = steps.prepare_folder(folder, FOLDER, path)
    config_path = steps.write_program(home, postgres)
    place = str(home / DEFAULT_STORE) if postgres is None else f"the schema {steps.SCHEMA} of that server"
    out.print(f"CALIBER remembers {path.resolve()}")
    out.print(f"  into {place}, configured by {config_path}")
    document = _demonstrate(out, config_path, path, questions, assemblies)
    document = {"path": str(path.resolve()), "config": str(config_path), "store": place, **document}
    document["seconds"] = round(time.monotonic() - began, 1)
    if out.json:
        settings.out.result(document, lambda: None)
    else:
        _farewell(out, config_path, document, postgres=postgres is not None)
    return DONE if document["reopened"]["ok"] else PROBLEM


def _demonstrate(
    out: Output, config_path: Path, path: Path, questions: tuple[str, ...], assemblies: int
) -> dict[str, Any]:
    document: dict[str, Any] = {}
    with steps.open_store(config_path) as memory:
        document["remembered"] = _remember(out, memory, path)
        asked = _ask(out, memory, document["remembered"], questions)
        document["windows"] = [
            {"question": item.question, "answer": item.answer, **window_document(item.window, trace=False)}
            for item in asked
        ]
        document["exclusion"] = _explain(out, memory, asked)
    document["changed"] = _change(out, config_path, asked)
    with steps.open_store(config_path) as memory:
        before = steps.counts(memory)
    document["reopened"] = _reopen(out, config_path, before, asked)
    with steps.open_store(config_path) as memory:
        document["figures"] = _measure(out, memory, asked, assemblies)
    return document


def _title(out: Output, number: int, text: str) -> None:
    from rich.text import Text

    out.console.print()
    out.console.print(Text(f"{number}  {text}", style="bold"))


def _remember(out: Output, memory: Caliber, path: Path) -> dict[str, Any]:
    from caliber.cli.memory.ingest import remember_files, remember_repository
    from caliber.importing.errors import SourceError

    _title(out, 1, "Remember")
    began = time.monotonic()
    found: dict[str, Any] | None = None
    try:
        found = remember_repository(memory, out, path, limit=COMMITS, document_limit=DOCUMENTS)
        if found["empty"]:
            out.print("   a git repository without commits: taking its text files instead")
            found = None
    except SourceError as error:
        if not path.exists():
            raise
        out.print(f"   {error.message}: taking its text files instead")
    if found is None:
        found = remember_files(memory, out, path, document_limit=DOCUMENTS)
    if not found["added"]:
        raise UsageError(f"{path} holds nothing to remember: no commits and no text files", "try another PATH")
    authors = steps.remember_contributors(memory, found["trajectory_id"]) if found["source"] == "git" else 0
    memory.flush()
    seconds = time.monotonic() - began
    steps.print_remembered(out, found, seconds)
    if authors:
        declared = "the memory that demo.caliber declares"
        steps.print_wrapped(out, f"   and {plural(authors, 'contributor')} in {declared}")
    return {**found, "contributors": authors, "seconds": round(seconds, 2)}


def _ask(out: Output, memory: Caliber, remembered: dict[str, Any], texts: tuple[str, ...]) -> list[Asked]:
    """Ask two questions in a new task, one after the other: with a small budget, and with the whole one."""
    source = remembered["trajectory_id"]
    asking = [Question(text) for text in texts]
    if len(asking) < 2:
        found = questions_about(memory, source, remembered["source"])
        asking += [item for item in found if item.text not in texts][: 2 - len(asking)]
    _title(out, 2, "Ask")
    task = memory.start_trajectory(asking[0].text, initiator=steps.AGENT, parent=source, tags=("demo",))
    scope = memory.current_scope(task.trajectory_id)
    assert scope is not None
    out.print(f"   an agent begins a task of its own; its first window has {SMALL_BUDGET:,} tokens:")
    asked = []
    for number, question in enumerate(asking):
        budget = SMALL_BUDGET if not number else memory.config.token_budget
        if number:
            out.print()
            out.print(f"   the next question in the same task, with {budget:,} tokens:")
        memory.append_turn(scope.scope_id, role="user", content=question.text)
        # Without a query the last user turn is the query.
        window = memory.assemble_context(task.trajectory_id, max_tokens=budget)
        print_window(out.console, memory, window, question.text)
        answer = None if question.answer is None else shown_answer(window, question.answer)
        answer = None if answer is None else answer.replace("**", "")
        asked.append(Asked(question.text, window, question.answer is not None, answer))
        _print_answer(out, asked[-1])
        if answer is not None:
            memory.append_turn(scope.scope_id, role="assistant", content=answer)
    return asked


def _print_answer(out: Output, asked: Asked) -> None:
    if asked.answer is not None:
        out.print("   the answer, as this window holds it:")
        steps.print_wrapped(out, f"     {printable(asked.answer)}")
    elif asked.known:
        out.print("   the answer is not in this window; `caliber explain` says why")


def _explain(out: Output, memory: Caliber, asked: list[Asked]) -> dict[str, Any] | None:
    from caliber.cli.memory.query import in_words

    _title(out, 3, "Why was something left out?")
    found = steps.an_exclusion(memory, [item.window for item in asked])
    if found is None:
        out.print("   nothing was: everything that was remembered fits")
        return None
    window, record_id = found
    question = next(item.question for item in asked if item.window.window_id == window.window_id)
    explained = memory.explain(window.window_id, exclusion=record_id)
    out.print(f"   asked: {shortened(printable(question), 70)}")
    for line in in_words(memory, explained).splitlines():
        steps.print_wrapped(out, line)
    out.print("   (every candidate of every window has such an answer)")
    return explained


def _change(out: Output, program: Path, every: list[Asked]) -> dict[str, Any]:
    """Ask a question again under a program of which one rule is another: where it changes most."""
    from caliber.cli.memory.query import in_words

    kinds = tuple(map(SourceType, steps.KNOWLEDGE))
    asked, kind = max(itertools.product(every, kinds), key=lambda pair: len(steps.taken(pair[0].window, pair[1])))
    before = {item: steps.taken(asked.window, item) for item in kinds}
    changed = steps.with_another_rule(program, kind.value)
    _title(out, 4, "Change one rule")
    steps.print_wrapped(
        out, f"   {steps.from_here(changed)} is the same program, but its rule for {kind}s takes top_k(1):"
    )
    out.print(f"   asked: {shortened(printable(asked.question), 70)}")
    with steps.open_store(changed) as memory:
        window = memory.assemble_context(
            asked.window.trajectory_id, query=asked.question, max_tokens=asked.window.max_tokens
        )
        now = {item: steps.taken(window, item) for item in kinds}
        for item in kinds:
            out.print(f"   {item}s in the window: {len(before[item])} before, {len(now[item])} now")
        removed = [record for record in before[kind] if record not in now[kind]]
        explained = memory.explain(window.window_id, exclusion=removed[0]) if removed else None
        if explained is not None:
            for line in in_words(memory, explained).splitlines():
                steps.print_wrapped(out, line)
    return {
        "program": str(changed),
        "rule": kind.value,
        "window_id": window.window_id,
        "before": {item.value: len(before[item]) for item in kinds},
        "now": {item.value: len(now[item]) for item in kinds},
        "exclusion": explained,
    }


def _reopen(out: Output, config_path: Path, before: dict[str, int], asked: list[Asked]) -> dict[str, Any]:
    _title(out, 5, "Close, reopen, compare")
    began = time.monotonic()
    with steps.open_store(config_path) as memory:
        opened = time.monotonic() - began
        after = steps.counts(memory)
        # There may be more by now: vectors and summaries are made behind.
        lost = {name: (count, after.get(name, 0)) for name, count in before.items() if after.get(name, 0) < count}
        same = [steps.same_window(memory.replay(item.window.window_id), item.window) for item in asked]
        differences = memory.admin.verify()
    ok = not lost and all(same) and not differences
    out.print(
        f"   reopened in {opened * 1000:.0f} ms: {sum(after.values()):,} records, "
        f"{'as before' if not lost else 'not as before'}"
    )
    for name, (was, now) in lost.items():
        out.print(f"   {name}: {was:,} before, {now:,} now")
    out.print(f"   {sum(same)} of {len(same)} windows replayed byte for byte")
    out.print("   memory equals the store, row by row" if not differences else f"   {len(differences)} rows differ")
    return {
        "ok": ok,
        "open_ms": round(opened * 1000, 1),
        "records": after,
        "replayed": sum(same),
        "differences": differences,
    }


def _measure(out: Output, memory: Caliber, asked: list[Asked], assemblies: int) -> dict[str, Any]:
    _title(out, 6, f"Measure {assemblies:,} assemblies")
    calls: list[tuple[uuid.UUID, str, int]] = [
        (item.window.trajectory_id, item.question, item.window.max_tokens) for item in asked
    ]
    for trajectory, question, budget in calls:
        memory.assemble_context(trajectory, query=question, max_tokens=budget)
    memory.flush()
    start_bytes = memory.admin.stats()["store"]["bytes"]
    windows_before = memory.admin.stats()["behind"]["windows_written"]
    store = memory._engine.store
    times: list[float] = []
    statements = 0
    clock: Callable[[], float] = time.perf_counter
    with out.progress("assemblies", assemblies, "windows") as advance:
        for number in range(assemblies):
            trajectory, question, budget = calls[number % len(calls)]
            asked_before = store.statement_count()
            begin = clock()
            memory.assemble_context(trajectory, query=question, max_tokens=budget)
            times.append(clock() - begin)
            statements += store.statement_count() - asked_before
            if number % 50 == 49 or number == assemblies - 1:
                advance(number % 50 + 1)
    memory.flush()
    found = memory.admin.stats()
    times.sort()
    written = max(1, found["behind"]["windows_written"] - windows_before)
    figures = {
        "assemblies": assemblies,
        "p50_us": round(times[len(times) // 2] * 1e6, 1),
        "p99_us": round(times[len(times) * 99 // 100] * 1e6, 1),
        "sql_statements_per_assembly": statements / assemblies,
        "record_bytes_a_window": found["behind"]["bytes_a_window"],
        "file_bytes_a_window": (found["store"]["bytes"] - start_bytes) // written,
        "disk_bytes": found["store"]["bytes"],
        "resident_bytes": found["resident"]["column_bytes"] + found["resident"]["text_bytes"],
        "records": {name: count for name, count in found["records"].items() if count},
        "kernels": found["kernels"],
    }
    _print_figures(out, figures)
    return figures


def _print_figures(out: Output, figures: dict[str, Any]) -> None:
    say = out.print
    say(f"   p50 {figures['p50_us']:,.0f} µs   p99 {figures['p99_us']:,.0f} µs   (kernels: {figures['kernels']})")
    say(f"   SQL statements per assembly: {figures['sql_statements_per_assembly']:g}")
    packed, in_file = figures["record_bytes_a_window"], figures["file_bytes_a_window"]
    say(f"   written behind per window: {packed:,} bytes packed, {in_file:,} in the file")
    say(f"   on disk {bytes_text(figures['disk_bytes'])}, resident {bytes_text(figures['resident_bytes'])}")
    shown = [f"{count:,} {name}" for name, count in figures["records"].items() if count and name in steps.COUNTED]
    steps.print_wrapped(out, f"   records: {', '.join(shown)}")


def _farewell(out: Output, config_path: Path, document: dict[str, Any], *, postgres: bool) -> None:
    shown = steps.from_here(config_path)
    out.print()
    out.print(f"done in {document['seconds']:.1f} s. The store is yours to try:")
    if postgres:
        out.print(f"  export {steps.DSN_VARIABLE}=…   (the DSN again)")
    out.print(f'  caliber search "…" -c {shown}')
    out.print(f"  caliber explain {document['windows'][1]['window_id']} -c {shown}")
    out.print(f"  python: caliber.open({str(shown)!r})")
    if not document["reopened"]["ok"]:
        out.note("error: something was lost or changed by reopening; please report this output")
