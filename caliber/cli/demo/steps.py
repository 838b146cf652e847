"""Helper functions of the demo: its folder, database, programs, declared memory, and printed summaries."""

from __future__ import annotations

import os
import re
import tempfile
import textwrap
import uuid
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from caliber.cli.failures import UsageError
from caliber.cli.output import Output, plural, printable
from caliber.cli.settings import DEFAULT_STORE
from caliber.cli.setup import write_whole
from caliber.cli.show import peek
from caliber.model.context import AssemblyAction, SourceType
from caliber.model.references import EntityRef, EntityType
from caliber.model.trajectory import TurnRole
from caliber.schema.relations import RELATIONS

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber
    from caliber.model.windows import ContextWindow

MARKER: Final = ".caliber-demo"
PROGRAM: Final = "demo.caliber"
KNOBS: Final = "knobs.caliber"
CHANGED: Final = "changed.caliber"
_PROGRAMS: Final = (PROGRAM, KNOBS, CHANGED)
DSN_VARIABLE: Final = "CALIBER_DEMO_DSN"
SCHEMA: Final = "caliber_demo"
AGENT: Final = EntityRef(EntityType.AGENT, uuid.UUID("00000000-0000-7000-8000-00000000de30"))
COUNTED: Final = tuple(relation.name for relation in RELATIONS if relation.exported is not None and relation.ordinal)
KNOWLEDGE: Final = tuple(relation.name for relation in RELATIONS if relation.retrieved is not None)
"""Kinds of records that recall finds by content."""
_SUBJECTS: Final = 5


def prepare_folder(folder: Path | None, usual: str, path: Path) -> Path:
    """Return an empty folder for the demo: the requested, the usual, or a temporary one.

    The files of an earlier demo are removed, and nothing else ever is. Raises: UsageError.
    """
    if not path.exists():
        raise UsageError(f"{path}: there is no such file or folder", "name a repository or folder: caliber demo PATH")
    home = folder or Path(usual)
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not os.access(home, os.W_OK):
            raise PermissionError(13, "the folder cannot be written to", str(home))
    except OSError as error:
        if folder is not None:
            raise UsageError(f"{folder}: {error.strerror}", "choose another --folder") from error
        return Path(tempfile.mkdtemp(prefix="caliber-demo-"))
    ours = home / MARKER
    files = [home / name for name in (*_PROGRAMS, *(f"{DEFAULT_STORE}{ending}" for ending in ("", "-wal", "-shm")))]
    if not ours.exists() and any(file.exists() for file in files):
        raise UsageError(f"{home} holds a store that no demo made", "choose another --folder, to keep that one")
    for file in files:
        file.unlink(missing_ok=True)
    ours.write_text("A demo of CALIBER keeps its store here. The next one makes it anew.\n", encoding="utf-8")
    # So that no repository ever commits it.
    (home / ".gitignore").write_text("*\n", encoding="utf-8")
    return home


def write_program(home: Path, dsn: str | None) -> Path:
    """Write the demo's program and create its store, in a file or at a DSN. Return the program's path."""
    from caliber.api.opening import create
    from caliber.config import profiles
    from caliber.dsl.writing import render_caliber
    from caliber.model.errors import Conflict

    place, knobs = DEFAULT_STORE, {}
    if dsn is not None:
        # A configuration holds the name of a variable, never a DSN.
        os.environ[DSN_VARIABLE] = dsn
        place, knobs = f"env:{DSN_VARIABLE}", {"storage.adapter": "postgres", "storage.schema_name": SCHEMA}
    write_whole(home / KNOBS, render_caliber(profiles.reference(place, **knobs)))
    path = home / PROGRAM
    write_whole(path, resources.files("caliber.cli.demo").joinpath(PROGRAM).read_text("utf-8"))
    try:
        create(path)
    except Conflict as error:
        raise UsageError(
            f"the database has a schema {SCHEMA} already",
            "if an earlier demo made it, drop that schema",
        ) from error
    return path


def open_store(path: Path) -> Caliber:
    """Open the demo's store as its administrator."""
    from caliber.api.opening import open as open_memory
    from caliber.model.access import Principal

    return open_memory(path, principal=Principal.admin())


def from_here(path: Path) -> Path:
    """Return the shortest form of a path relative to this folder."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path


def print_remembered(out: Output, found: dict[str, Any], seconds: float) -> None:
    """Sum up an import in a few lines."""
    counts = found["counts"]
    if found["source"] == "git":
        name = printable(found["repository"])
        turns, scopes = plural(counts["turns"], "turn"), plural(counts["scopes_closed"] + 1, "scope")
        out.print(f"   {name}: {plural(counts['commits'], 'commit')} as {turns} in {scopes}")
        if found.get("shallow"):
            out.print("   (a shallow clone: older commits are not here)")
    decisions = f", {counts['decisions']:,} of them decision records" if counts["decisions"] else ""
    kind = "document" if found["source"] == "git" else "file"
    out.print(
        f"   {plural(counts['documents'], kind)}{decisions}: "
        f"{plural(counts['notes'], 'note')}, {plural(counts['artifacts'], 'artifact')}"
    )
    if found["documents_skipped"]:
        out.print(f"   ({found['documents_skipped']:,} more documents were left out; `caliber ingest` takes all)")
    out.print(f"   in {seconds:.1f} s, every write safely on disk before the next one began")


# --- a memory of the program's own ---------------------------------------------------------------


def remember_contributors(memory: Caliber, trajectory_id: uuid.UUID) -> int:
    """Fill the memory that the demo's program declares with the authors of a history; return their number."""
    commits: dict[str, list[Any]] = {}
    for scope in memory.storage.scopes.list_by_trajectory(trajectory_id):
        for turn in memory.storage.turns.list_by_scope(scope.scope_id):
            if turn.role is TurnRole.USER and turn.name:
                commits.setdefault(turn.name, []).append(turn)
    records = []
    for name, turns in sorted(commits.items(), key=lambda item: (-len(item[1]), item[0])):
        subjects = [printable(turn.text.split("\n", 1)[0]) for turn in turns[-_SUBJECTS:]]
        about = f"{plural(len(turns), 'commit')}, lately: {'; '.join(reversed(subjects))}"
        latest = turns[-1].occurred_at
        records.append({"name": name, "commits": len(turns), "latest": latest, "about": about})
    return len(memory.records("contributor").insert_many(records))


# --- changing a rule -----------------------------------------------------------------------------


def with_another_rule(program: Path, memory: str) -> Path:
    """Write the program beside itself, with the rule for one memory taking a single record; return the new one."""
    text = program.read_text("utf-8")
    rule = re.compile(rf"(inject {memory} into context {{\s*mode: )top_k\(\d+\)")
    path = program.with_name(CHANGED)
    write_whole(path, rule.sub(r"\g<1>top_k(1)", text, count=1))
    return path


def taken(window: ContextWindow, kind: SourceType) -> list[uuid.UUID]:
    """Return the records of a kind that are in a window, the most relevant first."""
    found = [source for section in window.sections for source in section.sources if source.source_type is kind]
    return [source.id for source in sorted(found, key=lambda item: -item.relevance) if source.id is not None]


# --- explaining and comparing -------------------------------------------------------------------


def an_exclusion(memory: Caliber, windows: list[ContextWindow]) -> tuple[ContextWindow, uuid.UUID] | None:
    """Return the most relevant record that a window left out; knowledge before anything else."""
    best: tuple[tuple[bool, bool, float], ContextWindow, uuid.UUID] | None = None
    for window in windows:
        for decision in window.assembly_trace:
            if decision.action is not AssemblyAction.EXCLUDE or decision.target_id is None:
                continue
            knowledge = decision.source_type in KNOWLEDGE
            # The short form of a decision that is there in full adds nothing.
            telling = knowledge and getattr(peek(memory, decision.target_id), "entity_type", "") != "decision"
            rank = (telling, knowledge, decision.relevance if knowledge else 0.0)
            if best is None or rank > best[0]:
                best = (rank, window, decision.target_id)
    if best is not None:
        return best[1], best[2]
    shown = {source.id for window in windows for section in window.sections for source in section.sources}
    for note in memory.storage.notes.all():
        if note.note_id not in shown and note.active:
            return windows[0], note.note_id
    return None


def counts(memory: Caliber) -> dict[str, int]:
    """Return the number of records of each kind, without those that opening and closing create."""
    records = memory.admin.stats()["records"]
    return {name: records[name] for name in COUNTED}


def same_window(one: ContextWindow, other: ContextWindow) -> bool:
    """Return whether two windows are the same, byte for byte, down to every decision."""
    return (
        one.text == other.text
        and one.used_tokens == other.used_tokens
        and one.to_messages() == other.to_messages()
        and list(one.assembly_trace) == list(other.assembly_trace)
    )


def print_wrapped(out: Output, text: str, width: int = 80) -> None:
    """Print a line folded at words, continued under its beginning."""
    indent = text[: len(text) - len(text.lstrip())]
    lead = indent if len(indent) >= 3 else f"   {indent}"
    for line in textwrap.wrap(text.strip(), width, initial_indent=lead, subsequent_indent=lead, break_long_words=True):
        out.print(line)
