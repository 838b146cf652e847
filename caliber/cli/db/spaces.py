"""Commands on embedding spaces and search indexes: ``db spaces|reembed|drop-space|sweep|rebuild-search``."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from caliber.admin.checking import drop_full_text, rebuild_full_text
from caliber.backends import bare_store
from caliber.cli.failures import DONE, INTERRUPTED, PROBLEM, UsageError, describe
from caliber.cli.output import advancing, bytes_text, plural
from caliber.cli.settings import Settings, with_store, with_whole_store
from caliber.embedding.reembedding import build_index

if TYPE_CHECKING:
    from caliber.admin.spaces import SpaceReport, Sweep
    from caliber.api.caliber import Caliber
    from caliber.cli.output import Output
    from caliber.embedding.reembedding import FillStatus
    from caliber.model.progress import Progress

_SHOWN: Final = 20


@click.command("spaces", short_help="List embedding spaces, and which is searched.")
@with_store
def spaces(settings: Settings) -> None:
    """List the embedding spaces of the store.

    A space holds the vectors of one model. One is searched; that of a newly configured model is filled beside it and
    takes over when no record lacks a vector; earlier ones stay until they are dropped.
    """
    with settings.memory(note=False) as memory:
        found = memory.storage.embedding_spaces.report()
        settings.out.result({"spaces": found}, lambda: _print_spaces(settings.out, found))


def _print_spaces(out: Output, found: list[SpaceReport]) -> None:
    if not found:
        out.print("there are no embedding spaces yet: the first one is made when an [embedding_provider] is configured")
        return
    width = max(len("space"), *(len(space.name) for space in found))
    out.print(
        f"{'space':<{width}}  {'state':<12} {'records':>9} {'lacking':>9} {'vectors':>9} {'on disk':>9}  provider here"
    )
    for space in found:
        asked = space.provider or "-"
        out.print(
            f"{space.name:<{width}}  {space.state:<12} {space.records:>9,} {space.pending:>9,} {space.vectors:>9,}"
            f" {bytes_text(space.stored_bytes):>9}  {asked}"
        )
    for line in _advice(found):
        out.print(line)


def _advice(found: list[SpaceReport]) -> Iterator[str]:
    """Yield advice on the next step."""
    searched = next((space for space in found if space.state == "in use"), None)
    filling = next((space for space in found if space.state == "being filled" and space.provider), None)
    if filling is not None:
        yield f"{filling.name} is being filled: `caliber db reembed` does it now, and then searches it"
    if searched is not None and searched.provider is None:
        yield (
            f"nobody here embeds questions for {searched.name}: name its model in [previous_embedding_provider], "
            "or nothing is found by meaning until then"
        )
    for space in found:
        if space.state == "retired" or (space.state == "being filled" and space.provider is None):
            yield f"{space.name} is not searched: `caliber db drop-space {space.name}` removes it"


@click.command("reembed", short_help="Change to the configured embedding model.")
@click.option("--space", metavar="NAME", help="The space that is meant to be filled; another one is refused.")
@click.option(
    "--accept-refused", is_flag=True, help="Take over even if the model refused more than a tenth of the texts."
)
@with_store
def reembed(settings: Settings, space: str | None, accept_refused: bool) -> int:
    """Give every record a vector of the configured model, then search with that model.

    Search uses the earlier vectors meanwhile, and other programs may read and write. After an interruption (Ctrl-C, a
    crash, a service that is down) run it again: it resumes there, and embeds no text twice.
    """
    with settings.memory(note=False) as memory:
        table = memory.storage.embedding_spaces
        start = table.progress()
        if space is not None and table.find(space).name != start.space:
            raise UsageError(
                f"{space} cannot be filled here: embedding_provider is the model of {start.space}",
                "set the new model as [embedding_provider], and the earlier one as [previous_embedding_provider]",
            )
        last = start
        try:
            with _bar(settings.out, f"re-embedding to {start.space}", start) as shown:

                def progress(space: str, done: int, total: int | None) -> None:
                    nonlocal last
                    last = dataclasses.replace(last, done=done, total=last.total if total is None else total)
                    shown(space, done, total)

                came = table.reembed(progress=progress, accept_refused=accept_refused)
        except KeyboardInterrupt:
            _stopped(settings, last, "interrupted", "", INTERRUPTED)
            return INTERRUPTED
        except Exception as error:
            _, message, hint, _ = describe(error)
            _stopped(settings, last, message, hint, PROBLEM)
            return PROBLEM

        def human() -> None:
            out = settings.out
            out.print(f"{plural(came.made, 'record')} got a vector; {came.done:,} of {came.total:,} have one")
            lacking = came.total - came.done
            if lacking:
                refused = f", {came.refused:,} of them refused by the model" if came.refused else ""
                out.print(f"{plural(lacking, 'record')} without: nothing to embed in them{refused}")
            if came.switched_from is not None:
                out.print(f"search uses {came.space} now, instead of {came.switched_from}")
                out.print(
                    "next: take [previous_embedding_provider] out of the configuration, if it is there, and remove"
                )
                out.print(f"  the old vectors when you need them no more: caliber db drop-space {came.switched_from}")
            elif came.in_use:
                out.print(f"search uses {came.space}, as before")

        settings.out.result(dataclasses.asdict(came), human)
    return DONE


def _stopped(settings: Settings, last: FillStatus, message: str, hint: str, code: int) -> None:
    """Print the progress made, which is not lost."""
    document = {
        "error": {"message": message, "hint": hint or None, "exit_code": code},
        "space": last.space,
        "done": last.done,
        "total": last.total,
    }

    def human() -> None:
        settings.out.note(f"stopped: {message}")
        if hint:
            settings.out.note(f"         {hint}")
        settings.out.note(
            f"{last.done:,} of {last.total:,} records have a vector in {last.space} and keep it; search is as before"
        )
        settings.out.note("run `caliber db reembed` again to go on from there")

    settings.out.result(document, human)


@contextmanager
def _bar(out: Output, label: str, start: FillStatus) -> Iterator[Progress]:
    """Show progress from where it stands, with its rate."""
    with out.progress(label, start.total, "records", done=start.done, rate=True) as advance:
        progress = advancing(advance, start.done)
        yield progress


@click.command("drop-space", short_help="Remove a space that is not searched.")
@click.argument("name")
@with_store
def drop_space(settings: Settings, name: str) -> None:
    """Remove an embedding space and all its vectors; NAME as `caliber db spaces` shows it, or its id.

    The space that is searched is refused. Records, and the vectors of other spaces, stay as they are.
    """
    with settings.memory(note=False) as memory:
        table = memory.storage.embedding_spaces
        space = table.find(name)
        _check_droppable(memory, space.name)
        with settings.out.progress(f"dropping {space.name}", None, "vectors") as advance:
            dropped = table.drop(str(space.space_id), progress=advancing(advance))
        freed = dropped * space.dimensions * 4
        document = {"dropped": space.name, "vectors": dropped, "bytes": freed}

        def human() -> None:
            settings.out.print(f"dropped {space.name}: {plural(dropped, 'vector')}, {bytes_text(freed)}")
            settings.out.print("the file keeps its size; the room in it is used for what comes")

        settings.out.result(document, human)


def _check_droppable(memory: Caliber, name: str) -> None:
    found = {space.name: space for space in memory.storage.embedding_spaces.report()}
    if found[name].state == "in use":
        raise UsageError(
            f"{name} is the active search space and cannot be dropped",
            "configure another model as [embedding_provider], run `caliber db reembed`, and drop it then",
        )
    if found[name].provider == "embedding_provider":
        searched = next((space.name for space in found.values() if space.state == "in use"), "the earlier one")
        raise UsageError(
            f"{name} is the space of [embedding_provider] and would be filled again",
            f"to stop using that model, configure the active one again ({searched}), then drop the space",
        )


# --- orphaned vectors, and rebuilding everything ----------------------------------------------------------


@click.command("sweep", short_help="Remove vectors and links that belong to nobody.")
@click.option("--dry-run", is_flag=True, help="Count them only.")
@with_store
def sweep(settings: Settings, dry_run: bool) -> None:
    """Remove vectors and links of deleted records, vectors of inactive ones or unknown spaces, and empty spaces."""
    with settings.memory(note=False) as memory:
        found = memory.admin.sweep(dry_run=dry_run)
        document = {**dataclasses.asdict(found), "count": found.count}
        settings.out.result(document, lambda: _print_swept(settings.out, found))


def _print_swept(out: Output, found: Sweep) -> None:
    if not found.count:
        out.print("no strays: every vector belongs to a record in use, and every link to two records")
        return
    verb = "removed" if found.removed else "would remove"
    lines = (
        (found.owner_gone, "of records that are gone"),
        (found.owner_out_of_use, "of records out of use (archived notes, retired and rolled back artifacts)"),
        (found.space_unknown, "of spaces that there are not"),
    )
    for count, what in lines:
        if count:
            out.print(f"{verb} {plural(count, 'vector')} {what}")
    for name in found.empty_spaces:
        out.print(f"{verb} the space {name}, which holds nothing")
    if found.links:
        out.print(f"{verb} {plural(found.links, 'link')} of records that are gone")
    if not found.removed:
        out.print("without --dry-run they go")


@click.command("rebuild-search", short_help="Rebuild the structures of search.")
@click.option("--dry-run", is_flag=True, help="Count strays and verify; change nothing.")
@click.option("--full-text", is_flag=True, help="Make full text also where there is none and memory is searched.")
@click.option("--drop", is_flag=True, help="Remove the full text: writes no longer pay for it. Nothing else is done.")
@with_whole_store
def rebuild_search(settings: Settings, dry_run: bool, full_text: bool, drop: bool) -> int:
    """Rebuild everything that search reads, and verify it. Records are never changed.

    Orphaned vectors are removed, missing or outdated ones are made, the full text of the database is rewritten, where
    there is one or search.mode = "backend" needs it, and memory is reloaded. Writers wait while full text is rewritten.
    Exit code 1 when differences remain.
    """
    out = settings.out
    config = settings.load()
    if drop:
        dropped = drop_full_text(config)
        out.result({"dropped": dropped}, lambda: out.print("removed" if dropped else "there was none; nothing to do"))
        return DONE
    if dry_run:
        with settings.memory(note=False) as memory:
            found = memory.admin.sweep(dry_run=True)
            differences = memory.admin.verify()

        def planned() -> None:
            _print_swept(out, found)
            _print_differences(out, differences)

        out.result({"swept": found, "differences": differences, "ok": not differences}, planned)
        return PROBLEM if differences else DONE
    begun = time.monotonic()
    rows = None
    if full_text or config.search.mode == "backend":
        # Before anything else: without it such a store does not open.
        with out.progress("writing full text anew", None, "texts") as advance:
            rows = rebuild_full_text(config, advancing(advance))
        with out.progress("indexing vectors", None, "blocks") as advance, bare_store(config) as store:
            build_index(store, config, advancing(advance))
    with settings.memory(note=False) as memory:
        came = memory.admin.rebuild_search(full_text=rows is None, progress=lambda stage, _, __: out.note(f"{stage} …"))
    came = came if rows is None else dataclasses.replace(came, full_text=rows)
    document = {**dataclasses.asdict(came), "ok": not came.differences, "seconds": round(time.monotonic() - begun, 3)}

    def human() -> None:
        _print_swept(out, came.swept)
        out.print(f"vectors     {came.vectors:,} made, {came.outdated:,} of them anew because their text had changed")
        if came.full_text is not None:
            out.print(f"full text   of {plural(came.full_text, 'record')} written anew")
        if came.texts:
            out.print(f"words       {plural(came.texts, 'text')} indexed anew in memory")
        _print_differences(out, list(came.differences))

    out.result(document, human)
    return PROBLEM if came.differences else DONE


def _print_differences(out: Output, differences: list[str]) -> None:
    for line in differences[:_SHOWN]:
        out.print(f"  - {line}")
    if differences:
        out.print(f"{plural(len(differences), 'difference')}: stop writing, copy the file, and restore a backup")
    else:
        out.print("sound: the file is whole, and memory equals the store")


COMMANDS: Final = (spaces, reembed, drop_space, sweep, rebuild_search)
