"""Commands ``ingest git | chat | files``: parse arguments, run the importers, print a summary."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click

from caliber.api.caliber import Caliber
from caliber.cli.failures import DONE, PROBLEM, UsageError
from caliber.cli.output import Output, plural, printable
from caliber.cli.references import owner_option
from caliber.cli.settings import Settings, with_store
from caliber.importing import chat
from caliber.importing import documents as documenting
from caliber.importing import files as listing_files
from caliber.importing.documents import Documents, import_history, name_space
from caliber.importing.errors import SourceError
from caliber.importing.files import is_text, shown
from caliber.importing.git import Repository
from caliber.importing.source import Imported, importing, trajectories_of, trajectory_of
from caliber.model.references import EntityRef
from caliber.model.trajectory import Trajectory
from caliber.model.trust import TrustLabel

_BAD_SHOWN: Final = 20
_LABELS: Final = tuple(label.value for label in TrustLabel)
_TRUST: Final = click.option(
    "--trust",
    type=click.Choice(_LABELS),
    default=TrustLabel.TOOL.value,
    show_default=True,
    help="Trust label: user for text that you wrote or checked, web for text that anybody may have written.",
)
_FOR: Final = click.option(
    "--for",
    "owner",
    metavar="NAME|TYPE:ID",
    callback=owner_option,
    help="Owner: a user's name, user:UUID or agent:UUID. Without it, windows of all owners recall the text.",
)


@click.group()
def ingest() -> None:
    """Remember a git history, a conversation or files.

    Importing the same source again adds only what is new; the store must exist (`caliber create`). What is imported
    --for an owner enters windows of that owner's tasks only.
    """


@ingest.command("git", short_help="Remember the history and documents of a repository.")
@click.argument("path", type=click.Path(path_type=Path), default=".")
@click.option("--limit", type=click.IntRange(min=1), help="Only the newest N commits.")
@click.option("--no-documents", is_flag=True, help="Only the history; no documents and decision records.")
@_FOR
@_TRUST
@with_store
def ingest_git(
    settings: Settings, path: Path, limit: int | None, no_documents: bool, owner: EntityRef | None, trust: str
) -> None:
    """Remember the repository at PATH: commits as turns, documents as notes, decision records as artifacts.

    What is read is what HEAD names; uncommitted changes stay out. Commits that are known keep their label. With --for
    documents are artifacts too, since notes have no owner.
    """
    started = time.monotonic()
    with settings.memory() as memory:
        found = remember_repository(
            memory, settings.out, path, limit=limit, documents=not no_documents, trust=TrustLabel(trust), owner=owner
        )
        memory.flush()
        document = {**found, "seconds": round(time.monotonic() - started, 3)}
        settings.out.result(document, lambda: _print_repository(settings.out, document))


def remember_repository(
    memory: Caliber,
    out: Output,
    path: Path,
    *,
    limit: int | None = None,
    documents: bool = True,
    document_limit: int | None = None,
    trust: TrustLabel = TrustLabel.TOOL,
    owner: EntityRef | None = None,
) -> dict[str, Any]:
    """Import a repository and return the counts; shared with the demo."""
    repository = Repository(path)
    if not is_text(str(repository.root)):
        raise UsageError(f"{shown(str(repository.root))}: the path is not UTF-8, and cannot be remembered", "rename it")
    done = Imported()
    unnamed: list[str] = []
    result: dict[str, Any] = {
        "source": "git", "repository": repository.name, "path": repository.root, "owner": _shown(owner)
    }  # fmt: skip
    if repository.head is None:
        return {**result, "empty": True, "trajectory_id": None, **_counts(done)}
    identities = repository.identities()
    with importing(memory, identities[0]):
        goal = f"The history of {printable(repository.name)}"
        tags = ("git", f"repository:{repository.name}"[:1000])
        trajectories = trajectory_of(memory, identities, goal, tags, owner)
        trajectory = trajectories[-1]
        with ExitStack() as stack:

            def history_started(count: int) -> Callable[[int], None]:
                return stack.enter_context(out.progress("commits", count, "commits"))

            import_history(memory, repository, trajectories, done, limit=limit, trust=trust, started=history_started)
        skipped = 0
        if documents:
            files = [
                item for item in repository.files() if documenting.is_document(item.path) and 0 < item.size <= 1_000_000
            ]
            unnamed += [shown(item.path) for item in files if not is_text(item.path)]
            files = [item for item in files if is_text(item.path)]
            files.sort(key=lambda item: (item.path.count("/"), item.path))
            skipped = max(0, len(files) - document_limit) if document_limit is not None else 0
            files = files[:document_limit]
            folders = {repository.root, path.resolve()}
            others = _others(memory, (f"files:{folder}" for folder in sorted(folders)))
            named = _namespace(repository.name, trajectory)
            keeper = documenting.Documents(memory, trajectory, named, done, trust, others)
            with out.progress("documents", len(files), "documents") as advance:
                for item, raw in repository.contents(files):
                    text = documenting.as_text(raw)
                    if text is not None:
                        keeper.document(printable(item.path), text)
                    advance(1)
            if not skipped:
                keeper.finish()
    return {
        **result,
        "empty": False,
        "shallow": repository.shallow,
        "trajectory_id": trajectory.trajectory_id,
        "documents_skipped": skipped,
        "unnamed": unnamed,
        **_counts(done),
    }


def _namespace(name: str, trajectory: Trajectory) -> str:
    return name_space(printable(name), trajectory)


def _others(memory: Caliber, identities: Iterable[str]) -> list[Trajectory]:
    """Return the shared tasks of sources, whose records belong to everybody."""
    return [task for identity in identities for task in trajectories_of(memory, identity)]


def _repository_of(folder: Path) -> list[str]:
    """Return the identities of a folder's repository; empty without one."""
    try:
        return Repository(folder).identities()
    except SourceError:
        return []


def _shown(owner: EntityRef | None) -> str | None:
    """Return an owner as `caliber forget --entity` takes it."""
    return None if owner is None else f"{owner.entity_type}:{owner.id}"


def _print_owner(out: Output, found: dict[str, Any]) -> None:
    if found["owner"] is not None:
        out.print(f"  owner      {found['owner']}")


def _print_unnamed(out: Output, found: dict[str, Any]) -> None:
    """Print the files that were left out because their names are not UTF-8."""
    names = found["unnamed"]
    for name in names[:_BAD_SHOWN]:
        out.print(f"  left out   {printable(name)}: its name is not UTF-8")
    if len(names) > _BAD_SHOWN:
        out.print(f"  left out   … and {len(names) - _BAD_SHOWN} more of such names")


def _counts(done: Imported) -> dict[str, Any]:
    return {"added": done.added, "counts": dataclasses.asdict(done)}


def _print_repository(out: Output, found: dict[str, Any]) -> None:
    counts = found["counts"]
    if found["empty"]:
        out.print(f"{found['repository']} has no commits yet: nothing to remember")
        out.print(f"  `caliber ingest files {found['path']}` remembers the files as they are")
        return
    out.print(
        f"remembered {printable(found['repository'])} in {found['seconds']:.1f} s, trajectory {found['trajectory_id']}"
    )
    out.print(f"  commits    {counts['commits']:,} new, {counts['commits_known']:,} known  ({counts['turns']:,} turns)")
    _print_documents(out, counts, "documents")
    _print_owner(out, found)
    _print_unnamed(out, found)
    if found["shallow"]:
        out.print("  a shallow clone: for the whole history run `git fetch --unshallow` and import again")
    _print_end(out, found, 'caliber search "..."    or: ')


def _print_documents(out: Output, counts: dict[str, Any], kind: str) -> None:
    replaced = f", {counts['notes_replaced']:,} replaced" if counts["notes_replaced"] else ""
    archived = f", {counts['notes_archived']:,} archived" if counts["notes_archived"] else ""
    decisions = f", of which {counts['decisions']:,} decision records" if counts["decisions"] else ""
    out.print(f"  {kind:<10} {counts['documents']:,}{decisions}")
    out.print(f"  notes      {counts['notes']:,} new, {counts['notes_known']:,} known{replaced}{archived}")
    out.print(f"  artifacts  {counts['artifacts']:,} new, {counts['artifacts_known']:,} known")


@ingest.command("files", short_help="Remember the text files of a folder.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--max-bytes", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Skip larger files."
)
@_FOR
@_TRUST
@with_store
def ingest_files(settings: Settings, path: Path, max_bytes: int, owner: EntityRef | None, trust: str) -> None:
    """Remember the text files under PATH: documents as notes by section, everything else as artifacts.

    Binary, hidden, generated and ignored files are left out, and counted. With --for all are artifacts, since notes
    have no owner.
    """
    started = time.monotonic()
    with settings.memory() as memory:
        label = TrustLabel(trust)
        found = remember_files(memory, settings.out, path, max_bytes=max_bytes, trust=label, owner=owner)
        memory.flush()
        document = {**found, "seconds": round(time.monotonic() - started, 3)}
        settings.out.result(document, lambda: _print_files(settings.out, document))


def remember_files(
    memory: Caliber,
    out: Output,
    path: Path,
    *,
    max_bytes: int = 1_000_000,
    document_limit: int | None = None,
    trust: TrustLabel = TrustLabel.TOOL,
    owner: EntityRef | None = None,
) -> dict[str, Any]:
    """Import the text files of a folder and return the counts; shared with the demo."""
    listing = listing_files.list_files(path)
    root = listing.root if path.is_dir() else listing.root / listing.files[0]
    identity = f"files:{root}"
    done = Imported()
    left_out = 0
    if document_limit is not None and len(listing.files) > document_limit:
        listing.files.sort(key=lambda name: (not listing_files.is_prose(name), name.count("/"), name))
        left_out = len(listing.files) - document_limit
        del listing.files[document_limit:]
    texts = ((name, listing_files.read_text(listing, name, max_bytes)) for name in listing.files)
    passed = 0  # files left out before the first that is remembered
    first: tuple[str, str] | None = None
    for name, text in texts:
        passed += 1
        if text is not None:
            first = (name, text)
            break
    with importing(memory, identity):
        if first is None and not trajectories_of(memory, identity, owner):
            # An empty trajectory would be the newest one, which "latest" names.
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(listing.skipped.items()))
            skipped = f"; left out: {reasons}" if reasons else ""
            raise UsageError(
                f"{printable(str(path))} holds nothing to remember: no text files{skipped}",
                "try another PATH; `caliber ingest files --max-bytes` takes larger files",
            )
        goal = f"The files of {printable(root.name)}"
        trajectory = trajectory_of(memory, [identity], goal, ("files",), owner)[-1]
        others = _others(memory, _repository_of(listing.root))
        keeper = Documents(memory, trajectory, _namespace(root.name, trajectory), done, trust, others)
        with out.progress("files", len(listing.files), "files") as advance:
            advance(passed)
            for at, (name, text) in enumerate(texts if first is None else itertools.chain([first], texts)):
                if text is not None:
                    keep = keeper.document if listing_files.is_prose(name) else keeper.file
                    keep(printable(name), text)
                advance(1 if at else 0)
        if not left_out:
            keeper.finish()
    return {
        "source": "files",
        "path": root,
        "owner": _shown(owner),
        "uses_git": listing.uses_git,
        "trajectory_id": trajectory.trajectory_id,
        "skipped": dict(listing.skipped),
        "unnamed": list(listing.unnamed),
        "documents_skipped": left_out,
        **_counts(done),
    }


def _print_files(out: Output, found: dict[str, Any]) -> None:
    out.print(
        f"remembered the files of {found['path']} in {found['seconds']:.1f} s, trajectory {found['trajectory_id']}"
    )
    _print_documents(out, found["counts"], "files")
    _print_owner(out, found)
    for reason, count in sorted(found["skipped"].items()):
        out.print(f"  left out   {count:,} {reason}")
    _print_unnamed(out, found)
    _print_end(out, found, 'caliber search "..."    or: ')


def _print_end(out: Output, found: dict[str, Any], first: str = "") -> None:
    if not found["added"]:
        out.print("  everything was known already; nothing was added")
    out.print(f'next: {first}caliber context latest --query "..."')


@ingest.command("chat", short_help="Remember conversations from a JSON Lines file.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--skip-bad", is_flag=True, help="Leave bad lines out instead of storing nothing.")
@_FOR
@click.option(
    "--trust",
    type=click.Choice(_LABELS),
    default=TrustLabel.USER.value,
    show_default=True,
    help="Trust no message more than this, whoever the file says wrote it; web for somebody else's file.",
)
@with_store
def ingest_chat(settings: Settings, file: Path, skip_bad: bool, owner: EntityRef | None, trust: str) -> int:
    """Remember the conversations in FILE (JSON Lines, OpenAI-style messages with tool calls).

    A line is one message, or {"messages": [...]} for a whole conversation. The file is checked whole before anything
    is stored: with a bad line nothing is, unless --skip-bad leaves such lines out. Each conversation is stored in
    transactions of 500 messages; after a failure, importing again goes on where it stopped.
    """
    size = file.stat().st_size if file.is_file() else 0
    with settings.out.progress("checking", size, "bytes") as advance:
        parsed = chat.parse(file, advance)
    bad = [{"line": line, "fault": fault} for line, fault in parsed.bad]
    for fault in parsed.bad[:_BAD_SHOWN]:
        settings.out.note(f"{file}, line {fault[0]}: {fault[1]}")
    if len(bad) > _BAD_SHOWN:
        settings.out.note(f"… and {len(bad) - _BAD_SHOWN} more bad lines")
    if bad and not skip_bad:
        document = {
            "source": "chat", "path": file, "owner": _shown(owner), "stored": False, "bad_lines": bad, "added": 0
        }  # fmt: skip

        def refused() -> None:
            settings.out.note(f"error: {len(bad)} bad line{'s' if len(bad) != 1 else ''}: nothing was stored")
            settings.out.note("       correct them, or leave them out with --skip-bad")

        settings.out.result(document, refused)
        return PROBLEM
    if not parsed.conversations:
        raise UsageError(f"{file} holds no messages", 'expected lines such as {"role": "user", "content": "..."}')
    done = Imported()
    stored: list[dict[str, Any]] = []
    with settings.memory() as memory:
        count = len(parsed.conversations)
        with importing(memory, "chat"), settings.out.progress("conversations", count, "conversations") as advance:
            for conversation in parsed.conversations:
                try:
                    trajectory, added = chat.store(memory, conversation, done, TrustLabel(trust), owner)
                except Exception:
                    settings.out.note(
                        f"stopped: {len(stored)} of {count} conversations are stored whole ({done.turns} turns added); "
                        "importing again goes on from there"
                    )
                    raise
                stored.append({"trajectory_id": trajectory.trajectory_id, "goal": trajectory.goal, "added": added})
                advance(1)
        memory.flush()
    document = {
        "source": "chat",
        "path": file,
        "owner": _shown(owner),
        "stored": True,
        "bad_lines": bad,
        "conversations": stored,
        "other_parts": sum(item.other_parts for item in parsed.conversations),
        **_counts(done),
    }
    settings.out.result(document, lambda: _print_chat(settings.out, document))
    return DONE


def _print_chat(out: Output, found: dict[str, Any]) -> None:
    counts = found["counts"]
    count = len(found["conversations"])
    out.print(f"{plural(count, 'conversation')}: {counts['turns']:,} turns new, {counts['turns_known']:,} known")
    for item in found["conversations"][:10]:
        out.print(f"  {item['trajectory_id']}  +{item['added']:<5} {printable(item['goal'] or '')[:60]}")
    if count > 10:
        out.print(f"  … and {count - 10} more")
    _print_owner(out, found)
    if found["bad_lines"]:
        out.print(f"  left out: {plural(len(found['bad_lines']), 'bad line')}")
    if found["other_parts"]:
        out.print(f"  {found['other_parts']} parts that are no text (images, audio) were kept as their kind alone")
    _print_end(out, found)
