"""Command ``eval --windows``: reports how much of the expected evidence assembled windows contain."""

from __future__ import annotations

import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caliber.cli import show
from caliber.cli.failures import DONE, PROBLEM, UsageError
from caliber.cli.memory.query import trajectory_id_of
from caliber.cli.output import Output, plural, printable
from caliber.model.trajectory import TrajectoryStatus

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber
    from caliber.cli.evaluating.evidence import Wanted
    from caliber.cli.evaluating.windows import Asked
    from caliber.cli.settings import Settings
    from caliber.config import CaliberConfig
    from caliber.model.references import EntityRef


def evaluate_windows(
    settings: Settings,
    file: Path,
    budgets: str | None,
    task: str | None,
    kinds: tuple[str, ...],
    limit_misses: int,
    fail_under: float | None,
) -> int:
    """Measure, print, and return the exit code. Raises: UsageError."""
    from caliber.cli.evaluating.windows import SEARCH_AND_FILL

    config = settings.load()
    sizes = _sizes(budgets, config.token_budget)
    if file.suffix.lower() == ".json":
        if task is not None or kinds:
            raise UsageError("--task and --kind are for questions about the store", f"leave them out with {file}")
        asked = _ask_conversations(settings.out, config, file, sizes)
    else:
        asked = _ask_store(settings, file, task, kinds, sizes)
    document = _document(file, asked, sizes, limit_misses)
    settings.out.result(document, lambda: _print(settings.out, document))
    code = DONE
    for reason, count in document["degraded"].items():
        settings.out.note(f"degraded: {reason}, for {plural(count, 'window')}")
        code = PROBLEM
    for row in document["windows"]:
        held, where = row["budgets"][str(sizes[-1])]["held"], row["where"]
        if fail_under is not None and held < fail_under and where != SEARCH_AND_FILL:
            settings.out.note(f"{where}: evidence held at {sizes[-1]:,} tokens {held:.3f} is below {fail_under:g}")
            code = PROBLEM
    return code


def _sizes(text: str | None, most: int) -> list[int]:
    from caliber.cli.evaluating.windows import BUDGETS

    if text is None:
        return [size for size in BUDGETS if size <= most] or [most]
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise UsageError(f"--budgets {text}: expected numbers of tokens", "for example --budgets 500,1000,2000")
    if sizes[-1] > most:
        raise UsageError(
            f"--budgets {sizes[-1]} is more than token_budget = {most}", "ask for less, or raise token_budget"
        )
    return sizes


# --- asking -------------------------------------------------------------------------------------


def _ask_store(
    settings: Settings, file: Path, task: str | None, kinds: tuple[str, ...], sizes: Sequence[int]
) -> list[Asked]:
    from caliber.cli.evaluating.questions import read_questions
    from caliber.cli.evaluating.windows import NEW, ask_store

    questions = read_questions(file)
    where = NEW if task is None else f"task {task}"
    with settings.memory() as memory:
        memory.search("", kinds=kinds or None, limit=1)  # an unknown kind is no fault of a question
        memory.flush()  # figures must not depend on how far the worker has come
        with _task(memory, task) as task_id, settings.out.progress("questions", len(questions), "questions") as advance:
            return ask_store(memory, questions, task_id, where, sizes, kinds or None, advance)


@contextmanager
def _task(memory: Caliber, named: str | None) -> Iterator[uuid.UUID]:
    """Yield the task that was named, or a new one that is deleted afterwards."""
    if named is not None:
        task = trajectory_id_of(memory, named)
        from caliber.context.pending_injections import PendingInjections

        if memory._engine.part(PendingInjections).waiting(task):
            raise UsageError(
                f"trajectory {task} has injections that wait for its next window: measuring would use them up",
                "measure in a new task: leave out --task",
            )
        yield task
        return
    if not memory.principal.is_admin:
        raise UsageError(
            f"{memory.principal.label} is no admin, and only an admin can delete the new task afterwards",
            "name a task: --task ID; or measure with --as admin",
        )
    task = memory.start_trajectory("Questions of caliber eval", initiator=_owner(memory)).trajectory_id
    try:
        yield task
    finally:
        memory.flush()
        memory.storage.trajectories.delete(task)


def _owner(memory: Caliber) -> EntityRef:
    """Return the initiator of the newest task."""
    from caliber.importing.source import initiator_of

    tasks = (item for status in TrajectoryStatus for item in memory.storage.trajectories.list_by_status(status))
    newest = max(tasks, key=lambda item: item.last_activity_at, default=None)
    owner: EntityRef = initiator_of("caliber eval") if newest is None else newest.initiator
    return owner


def _ask_conversations(out: Output, config: CaliberConfig, file: Path, sizes: Sequence[int]) -> list[Asked]:
    from caliber.api.opening import create
    from caliber.api.opening import open as open_store
    from caliber.cli.evaluating.conversations import BadData, load, remember
    from caliber.cli.evaluating.windows import SEARCH_AND_FILL, TASKS, ConversationWindows
    from caliber.importing.source import initiator_of
    from caliber.model.access import Principal

    try:
        talks = load(file)
    except FileNotFoundError:
        raise UsageError(f"{file}: there is no such file", "check the path") from None
    except (BadData, OSError) as error:
        raise UsageError(str(error), "expected sessions with turns, and qa with evidence") from None
    total = sum(len(talk.questions) for talk in talks)
    if not total:
        raise UsageError(
            f"{file} has no question with evidence", "a question names the turns that answer it as evidence"
        )
    owner = initiator_of("caliber eval")
    asked: list[Asked] = []
    with (
        tempfile.TemporaryDirectory(prefix="caliber-eval-") as folder,
        out.progress("questions", total, "questions") as advance,
    ):
        for number, talk in enumerate(talks):
            alone = _alone(config, Path(folder) / f"{number}.db")
            create(alone)
            with open_store(alone, principal=Principal.admin()) as memory:
                windows = ConversationWindows(memory, remember(memory, talk, owner, leave_open=True), owner, sizes)
                for question in talk.questions:
                    asked += windows.ask(question, (SEARCH_AND_FILL, *TASKS))
                    advance(1)
    return asked


def _alone(config: CaliberConfig, path: Path) -> CaliberConfig:
    """Return the configuration for a new store at ``path``, whatever database is configured."""
    from caliber.config.profiles import reference

    storage: dict[str, Any] = {"storage.path": str(path)}
    if config.storage.adapter != "sqlite":
        storage = {"storage": reference(str(path)).to_data()["storage"]}
    return config.with_overrides(**storage, policies=[])


# --- results ----------------------------------------------------------------------------------------


def _document(file: Path, asked: Sequence[Asked], sizes: Sequence[int], limit: int) -> dict[str, Any]:
    from caliber.cli.evaluating.windows import by_place_and_budget, figures_of

    questions = {(item.group, item.place): len(item.wanted) for item in asked}
    misses = _misses(asked)
    return {
        "file": file,
        "questions": len(questions),
        "expected": sum(questions.values()),
        "budgets": sizes,
        "windows": [
            {"where": where, "budgets": {str(budget): figures_of(items) for budget, items in cells.items()}}
            for where, cells in by_place_and_budget(asked).items()
        ],
        "missed": len(misses),
        "misses": misses[:limit],
        "degraded": dict(Counter(reason for item in asked for reason in item.window.degraded)),
        "answers": [
            {
                "place": _place(item),
                "where": item.where,
                "budget": item.window.budget,
                "held": sorted(item.window.held),
                "lost": {label: lost.code for label, lost in item.window.lost.items()},
                "used_tokens": item.window.used_tokens,
                "evidence_tokens": item.window.evidence_tokens,
            }
            for item in asked
        ],
    }


def _misses(asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """Return one entry for each expected record that some window does not hold; the worst come first."""
    out: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for item in asked:
        for wanted in item.wanted:
            key = (item.group, item.place, item.where, wanted.label)
            lost = item.window.lost.get(wanted.label)
            if lost is not None:
                entry = out.setdefault(key, _entry(item, wanted))
                entry["lost"][str(item.window.budget)] = {"code": lost.code, "why": lost.why}
    return sorted(out.values(), key=lambda entry: -max(int(budget) for budget in entry["lost"]))


def _entry(item: Asked, wanted: Wanted) -> dict[str, Any]:
    return {
        "place": _place(item),
        "query": item.query,
        "where": item.where,
        "expected": wanted.label,
        "text": show.first_line(wanted.text),
        "id": wanted.id,
        "rank": wanted.rank,
        "lost": {},
    }


def _place(item: Asked) -> str:
    return f"{item.group}, {item.place}" if item.group else item.place


# --- for people ---------------------------------------------------------------------------------


def _print(out: Output, document: dict[str, Any]) -> None:
    out.print(f"{plural(document['questions'], 'question')}, {plural(document['expected'], 'expected record')}")
    rows, sizes = document["windows"], [str(size) for size in document["budgets"]]

    def cells(key: str, form: str) -> list[tuple[str, list[str]]]:
        return [(row["where"], [form.format(row["budgets"][size][key]) for size in sizes]) for row in rows]

    _print_table(out, "evidence held", sizes, cells("held", "{:.3f}"))
    _print_table(out, "tokens used", sizes, cells("used_tokens", "{:,.0f}"))
    _print_table(out, "of them evidence", sizes, cells("evidence_tokens", "{:,.0f}"))
    for row in rows:
        lost = {size: row["budgets"][size]["lost"] for size in sizes}
        codes = dict.fromkeys(code for size in sizes for code in lost[size])
        if codes:
            steps = [(code, [f"{lost[size].get(code, 0):,}" for size in sizes]) for code in codes]
            _print_table(out, f"lost, {row['where']}", sizes, steps)
    if not document["missed"]:
        out.print("nothing was missed")
    for entry in document["misses"]:
        _print_miss(out, entry)
    more = document["missed"] - len(document["misses"])
    if more:
        out.print(f"… and {more:,} more; --limit-misses explains more")


def _print_table(out: Output, title: str, sizes: Sequence[str], rows: Sequence[tuple[str, list[str]]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column()
    for _ in sizes:
        table.add_column(justify="right")
    table.add_row(Text(title, style="bold"), *(Text(f"{int(size):,}", style="bold") for size in sizes))
    for name, cells in rows:
        table.add_row(Text(printable(name)), *(Text(cell) for cell in cells))
    out.console.print(table)
    out.print()


def _print_miss(out: Output, entry: dict[str, Any]) -> None:
    from rich.text import Text

    width = min(out.console.width, 100)
    head = f"{entry['place']}  {_line(entry['query'])}"
    out.console.print(Text(show.shortened(head, width), style="bold"), soft_wrap=True)
    what = entry["text"] if entry["id"] is not None else f"“{entry['expected']}”"
    out.console.print(Text(show.shortened(f"  expected  {_line(what)}", width)))
    rank = "not found by search" if entry["rank"] is None else f"{entry['rank']:,} in search"
    out.console.print(Text(f"            {entry['id']}, {rank}", style="bright_black"))
    by_reason: dict[tuple[str, str], list[str]] = {}
    for budget, lost in entry["lost"].items():
        by_reason.setdefault((lost["code"], lost["why"]), []).append(f"{int(budget):,}")
    for (code, why), budgets in by_reason.items():
        head = f"  {entry['where']} at {', '.join(budgets)}: {code}"
        out.console.print(Text(head, style="yellow"), soft_wrap=True)
        out.console.print(Text(f"            {_line(why)}", style="dim"), soft_wrap=True)


def _line(text: str) -> str:
    return " ".join(printable(text).split())
