"""Command ``demo``: imports a repository into a new store, asks questions, reopens it, prints timings."""

from __future__ import annotations

import itertools
import os
import re
import textwrap
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from caliber.api.caliber import Caliber
from caliber.api.opening import create
from caliber.api.opening import open as open_store
from caliber.cli.failures import DONE, PROBLEM, UsageError
from caliber.cli.memory.ingest import remember_files, remember_repository
from caliber.cli.memory.query import in_words
from caliber.cli.output import Output, bytes_text, plural, printable
from caliber.cli.settings import DEFAULT_STORE, Settings, with_settings
from caliber.cli.setup import write_whole
from caliber.cli.show import print_window, shortened, window_document
from caliber.config import profiles
from caliber.dsl.writing import render_caliber
from caliber.importing.errors import SourceError
from caliber.model.access import Principal
from caliber.model.context import AssemblyAction
from caliber.model.errors import Conflict
from caliber.model.references import EntityRef, EntityType
from caliber.model.trajectory import TurnRole
from caliber.model.windows import ContextWindow
from caliber.schema.relations import RELATIONS

_TRIED: Final = 12
_TITLE_CHARS: Final = 64


class DemoQuestion(NamedTuple):
    """A question, and the stored words that answer it; None if unknown."""

    text: str
    answer: str | None = None


def questions_about(memory: Caliber, trajectory_id: uuid.UUID) -> Iterator[DemoQuestion]:
    """Yield questions that an import can answer: about a commit, then sections of documents."""
    yield from _commit(memory, trajectory_id)
    yield from _documents(memory)
    yield from map(DemoQuestion, ("What is there to know?", "What else is there to know?"))


def shown_answer(window: ContextWindow, answer: str) -> str | None:
    """Return an answer as a window holds it, or None; a turn that is recalled begins with speaker and day."""
    if answer not in " ".join(window.text.split()):
        return None
    lines = (line for line in window.text.splitlines() if answer in line and line.startswith("["))
    return next(lines, answer.replace("**", ""))


def _commit(memory: Caliber, trajectory_id: uuid.UUID) -> Iterator[DemoQuestion]:
    """Yield a question about the date of a commit that a search distinguishes from all others."""
    subjects = {
        turn.turn_id: printable(turn.text.split("\n", 1)[0]).strip()
        for scope in memory.storage.scopes.list_by_trajectory(trajectory_id)[-6:]
        for turn in memory.storage.turns.list_by_scope(scope.scope_id)
        if turn.role is TurnRole.USER and turn.name
    }
    times = Counter(subjects.values())
    asked = [(-len(text), text, turn) for turn, text in subjects.items() if times[text] == 1]
    for _, subject, turn_id in sorted(item for item in asked if -item[0] <= _TITLE_CHARS)[:_TRIED]:
        question = DemoQuestion(f"When was this done: {subject}?", subject)
        if _finds(memory, question.text, "turn", turn_id):
            yield question
            return


def _documents(memory: Caliber) -> Iterator[DemoQuestion]:
    """Yield questions about sections of documents: those near the top first, of them the longest."""
    found = []
    for note in memory.storage.notes.all():
        path, _, title = printable(note.entity).partition(" § ")
        heading = title.split(" › ")[-1].strip(" .:!")
        if note.entity_type == "document" and 3 < len(heading) <= _TITLE_CHARS and len(note.content) >= 200:
            found.append((path.count("/"), -len(note.content), heading, note))
    for _, _, heading, note in sorted(found, key=lambda item: item[:3])[:_TRIED]:
        text = heading if heading.endswith("?") else f"What should I know about {heading}?"
        if _finds(memory, text, "note", note.note_id):
            yield DemoQuestion(text, re.split(r"(?<=[.!?]) ", " ".join(printable(note.content).split()))[0])


def _finds(memory: Caliber, text: str, kind: str, record_id: uuid.UUID) -> bool:
    """Return whether a search distinguishes a record from all others of its kind."""
    hits = memory.search(text, kinds=(kind,), limit=1).hits
    return bool(hits) and hits[0].id == record_id


FOLDER: Final = ".demo"
DSN_VARIABLE: Final = "CALIBER_DEMO_DSN"
SCHEMA: Final = "caliber_demo"
_MARKER, _PROGRAM, _KNOBS = ".caliber-demo", "demo.caliber", "knobs.caliber"
_AGENT: Final = EntityRef(EntityType.AGENT, uuid.UUID("00000000-0000-7000-8000-00000000de30"))
_COUNTED: Final = tuple(relation.name for relation in RELATIONS if relation.exported is not None and relation.ordinal)
_KNOWLEDGE: Final = frozenset(relation.name for relation in RELATIONS if relation.usage.retrieved is not None)


class Asked(NamedTuple):
    """A question, its window, and the right answer as the window holds it, if both are known."""

    question: DemoQuestion
    window: ContextWindow
    answer: str | None


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=".")
@click.option("-q", "--question", "questions", multiple=True, help="Ask this instead; may be given twice.")
@click.option("--folder", type=click.Path(path_type=Path), help=f"Keep the store here.  [default: {FOLDER}]")
@click.option("--assemblies", type=click.IntRange(min=10), default=1_000, show_default=True, help="Windows to time.")
@click.option("--postgres", metavar="DSN", help=f"Keep the store in PostgreSQL, in a new schema {SCHEMA}.")
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
    out, began = settings.out, time.monotonic()
    home = _prepare_folder(folder, path)
    program = _write_program(home, postgres)
    place = str(home / DEFAULT_STORE) if postgres is None else f"the schema {SCHEMA} of that server"
    out.print(f"CALIBER remembers {path.resolve()}")
    out.print(f"  into {place}, configured by {program}")
    document: dict[str, Any] = {"path": str(path.resolve()), "config": str(program), "store": place}
    with open_store(program, principal=Principal.admin()) as memory:
        document["remembered"] = _remember(out, memory, path)
        asked = _ask(out, memory, document["remembered"]["trajectory_id"], questions)
        document["windows"] = [
            {"question": item.question.text, "answer": item.answer, **window_document(item.window, trace=False)}
            for item in asked
        ]
        document["exclusion"] = _explain(out, memory, asked)
        before = memory.admin.stats()["records"]
    opening = time.monotonic()
    with open_store(program, principal=Principal.admin()) as memory:
        document["reopened"] = _compare(out, memory, before, asked, 1_000 * (time.monotonic() - opening))
        document["figures"] = _measure(out, memory, asked, assemblies)
    document["seconds"] = round(time.monotonic() - began, 1)
    out.result(document, lambda: _farewell(out, program, document, on_server=postgres is not None))
    return DONE if document["reopened"]["ok"] else PROBLEM


def _prepare_folder(folder: Path | None, path: Path) -> Path:
    """Make the demo's folder, without the files of an earlier demo; nothing else is removed. Raises: UsageError."""
    if not path.exists():
        raise UsageError(f"{path}: there is no such file or folder", "name a repository or folder: caliber demo PATH")
    home = folder or Path(FOLDER)
    files = [home / name for name in (_PROGRAM, _KNOBS, *(f"{DEFAULT_STORE}{end}" for end in ("", "-wal", "-shm")))]
    if not (home / _MARKER).exists() and any(file.exists() for file in files):
        raise UsageError(f"{home} holds a store that no demo made", "choose another --folder, to keep that one")
    try:
        home.mkdir(parents=True, exist_ok=True)
        for file in files:
            file.unlink(missing_ok=True)
        (home / _MARKER).write_text("A demo of CALIBER keeps its store here. The next one makes it anew.\n", "utf-8")
        (home / ".gitignore").write_text("*\n", "utf-8")  # so that no repository ever commits it
    except OSError as error:
        raise UsageError(f"{home}: {error.strerror}", "choose another --folder") from error
    return home


def _write_program(home: Path, dsn: str | None) -> Path:
    """Write the demo's program and create its store, in a file or at a DSN. Return the program's path."""
    place, knobs = DEFAULT_STORE, {}
    if dsn is not None:
        # A configuration holds the name of a variable, never a DSN.
        os.environ[DSN_VARIABLE] = dsn
        place, knobs = f"env:{DSN_VARIABLE}", {"storage.adapter": "postgres", "storage.schema_name": SCHEMA}
    write_whole(home / _KNOBS, render_caliber(profiles.reference(place, **knobs)))
    path = home / _PROGRAM
    write_whole(path, resources.files("caliber.cli.demo").joinpath(_PROGRAM).read_text("utf-8"))
    try:
        create(path)
    except Conflict as error:
        raise UsageError(f"there is a schema {SCHEMA} already", "drop that schema if a demo made it") from error
    return path


def _print(out: Output, text: str) -> None:
    for line in textwrap.wrap(text.strip(), 80, initial_indent="   ", subsequent_indent="   "):
        out.print(line)


def _remember(out: Output, memory: Caliber, path: Path) -> dict[str, Any]:
    out.print("\n1  Remember")
    began = time.monotonic()
    found: dict[str, Any] = {"empty": True}
    try:
        found = remember_repository(memory, out, path, limit=3_000, document_limit=400)
        reason = "a git repository without commits"
    except SourceError as error:
        reason = error.message
    if found.get("empty"):
        out.print(f"   {reason}: taking its text files instead")
        found = remember_files(memory, out, path, document_limit=400)
    if not found["added"]:
        raise UsageError(f"{path} holds nothing to remember: no commits and no text files", "try another PATH")
    memory.flush()
    counts = found["counts"]
    if found["source"] == "git":
        out.print(f"   {plural(counts['commits'], 'commit')} as {plural(counts['turns'], 'turn')}")
    out.print(f"   {plural(counts['documents'], 'document')}, {plural(counts['notes'], 'note')}")
    out.print(f"   in {time.monotonic() - began:.1f} s, every write safely on disk before the next one began")
    return found


def _ask(out: Output, memory: Caliber, source: uuid.UUID, texts: tuple[str, ...]) -> list[Asked]:
    """Ask two questions in a new task, one after the other: with a small budget, and with the whole one."""
    found = (item for item in questions_about(memory, source) if item.text not in texts)
    asking = list(itertools.islice(itertools.chain(map(DemoQuestion, texts), found), 2))
    out.print("\n2  Ask")
    task = memory.start_trajectory(asking[0].text, initiator=_AGENT, parent=source, tags=("demo",))
    scope = memory.current_scope(task.trajectory_id)
    assert scope is not None
    asked = []
    for question, budget in zip(asking, (2_000, memory.config.token_budget), strict=True):
        out.print(f"   a question in a new task, of a window of {budget:,} tokens:")
        memory.append_turn(scope.scope_id, role="user", content=question.text)
        window = memory.assemble_context(task.trajectory_id, max_tokens=budget)  # the last user turn is the query
        print_window(out.console, memory, window, question.text)
        answer = None if question.answer is None else shown_answer(window, question.answer)
        asked.append(Asked(question, window, answer))
        if answer is not None:
            out.print("   the answer, as this window holds it:")
            _print(out, printable(answer))
            memory.append_turn(scope.scope_id, role="assistant", content=answer)
        elif question.answer is not None:
            out.print("   the answer is not in this window; `caliber explain` says why")
    return asked


def _explain(out: Output, memory: Caliber, asked: list[Asked]) -> dict[str, Any] | None:
    """Explain the most relevant record that a window left out; knowledge before anything else."""
    out.print("\n3  Why was something left out?")
    left_out = [
        (decision.source_type in _KNOWLEDGE, decision.relevance or 0.0, number, decision.target_id)
        for number, item in enumerate(asked)
        for decision in item.window.assembly_trace
        if decision.action is AssemblyAction.EXCLUDE and decision.target_id is not None
    ]
    if not left_out:
        out.print("   nothing was: every candidate fits")
        return None
    _, _, number, record_id = max(left_out, key=lambda item: item[:3])
    explained = memory.explain(asked[number].window.window_id, exclusion=record_id)
    out.print(f"   asked: {shortened(printable(asked[number].question.text), 70)}")
    for line in in_words(memory, explained).splitlines():
        _print(out, line)
    return explained


def _compare(out: Output, memory: Caliber, before: dict[str, int], asked: list[Asked], ms: float) -> dict[str, Any]:
    out.print("\n4  Close, reopen, compare")
    after = memory.admin.stats()["records"]
    # There may be more by now: vectors and summaries are made behind.
    lost = [name for name in _COUNTED if after[name] < before[name]]
    replayed = [(memory.replay(item.window.window_id), item.window) for item in asked]
    same = sum(new.to_messages() == old.to_messages() and new.text == old.text for new, old in replayed)
    differences = memory.admin.verify()
    outcome = f"fewer of {', '.join(lost)}" if lost else "as many records as before"
    out.print(f"   reopened in {ms:.0f} ms: {outcome}")
    out.print(f"   {same} of {len(asked)} windows replayed byte for byte")
    out.print("   memory equals the store, row by row" if not differences else f"   {len(differences)} rows differ")
    ok = not lost and same == len(asked) and not differences
    return {"ok": ok, "open_ms": round(ms, 1), "replayed": same}


def _measure(out: Output, memory: Caliber, asked: list[Asked], assemblies: int) -> dict[str, Any]:
    out.print(f"\n5  Measure {assemblies:,} assemblies")
    inspect, clock = memory.admin.inspect, time.perf_counter
    times, statements = [], 0
    with out.progress("assemblies", assemblies, "windows") as advance:
        for number in range(-len(asked), assemblies):  # the first ones compile what is kept
            query, window, _ = asked[number % len(asked)]
            counted, begin = inspect.statements(), clock()
            memory.assemble_context(window.trajectory_id, query=query.text, max_tokens=window.max_tokens)
            if number >= 0:
                times.append(clock() - begin)
                statements += inspect.statements() - counted
                advance(1)
    memory.flush()
    times.sort()
    found = memory.admin.stats()
    figures = {
        "p50_us": round(times[len(times) // 2] * 1e6, 1),
        "p99_us": round(times[len(times) * 99 // 100] * 1e6, 1),
        "sql_statements_per_assembly": statements / assemblies,
        "disk_bytes": found["store"]["bytes"],
        "resident_bytes": found["resident"]["column_bytes"] + found["resident"]["text_bytes"],
    }
    out.print(f"   p50 {figures['p50_us']:,.0f} µs   p99 {figures['p99_us']:,.0f} µs")
    out.print(f"   SQL statements per assembly: {figures['sql_statements_per_assembly']:g}")
    out.print(f"   on disk {bytes_text(figures['disk_bytes'])}, resident {bytes_text(figures['resident_bytes'])}")
    return figures


def _farewell(out: Output, program: Path, document: dict[str, Any], *, on_server: bool) -> None:
    out.print(f"\ndone in {document['seconds']:.1f} s. The store is yours to try:")
    if on_server:
        out.print(f"  export {DSN_VARIABLE}=…   (the DSN again)")
    out.print(f'  caliber search "…" -c {program}')
    out.print(f"  caliber explain {document['windows'][1]['window_id']} -c {program}")
    if not document["reopened"]["ok"]:
        out.note("error: something was lost or changed by reopening; please report this output")
