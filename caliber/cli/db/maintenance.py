"""Commands on the store as a whole: ``db status|check|views|vacuum|backup|restore``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click

from caliber.admin.backup import backup as back_up
from caliber.admin.checking import check_store, not_opened
from caliber.api.opening import open as open_store
from caliber.api.opening import restore as restore_store
from caliber.backends import bare_store
from caliber.cli.failures import DONE, PROBLEM
from caliber.cli.output import Output, advancing, bytes_text, plural, time_text
from caliber.cli.settings import Settings, with_whole_store
from caliber.model.access import Principal
from caliber.model.errors import CaliberError, StorageError
from caliber.model.progress import Progress, unheard
from caliber.storage.compile.codec import DAMAGES, UNREADABLE
from caliber.storage.maintain.maintenance import Maintenance, StoreStatus

_LARGE: Final = 0.25
_LONG_S: Final = 300


@contextmanager
def _maintenance(settings: Settings) -> Iterator[Maintenance]:
    """Open the store without reading it into memory."""
    with bare_store(settings.load()) as store:
        yield store.maintenance


@click.command("views", short_help="Make SQL views for people.")
@click.option("--drop", is_flag=True, help="Remove them.")
@with_whole_store
def views(settings: Settings, drop: bool) -> None:
    """Make read-only SQL views for people: caliber_note, memories, heart_facts, messages...

    Ids and hashes are shown as text, instants as dates. No part of CALIBER reads them, and none needs them. A view
    holds on to the columns it shows: drop them before a migration that removes one.
    """

    with _maintenance(settings) as maintenance:
        names = maintenance.drop_views() if drop else maintenance.create_views()
    document = {"dropped" if drop else "created": names}

    def human() -> None:
        if drop:
            settings.out.print(f"removed {plural(len(names), 'view')}")
            return
        settings.out.print(", ".join(names))
        settings.out.print(f"made {plural(len(names), 'view')} for people to read with SQL; --drop removes them")

    settings.out.result(document, human)


@click.command("status", short_help="Show sizes, rows, indexes, position, connections.")
@with_whole_store
def status(settings: Settings) -> None:
    """Show the state of the store as the database reports it: sizes, rows, indexes, position, connections, standbys."""
    with _maintenance(settings) as maintenance:
        found = maintenance.status()
    settings.out.result(dataclasses.asdict(found), lambda: _print_status(settings.out, found))


def _print_status(out: Output, found: StoreStatus) -> None:
    out.print(f"{found.store}: schema version {found.schema_version}, {bytes_text(found.bytes)}")
    out.print(f"  position   {found.sequence:,} in epoch {found.epoch}; {plural(found.changes, 'change record')} kept")
    if found.wal_bytes is not None:
        out.print(f"  log        {bytes_text(found.wal_bytes)}")
    if found.connections is not None:
        out.print(f"  connected  {found.connections} of {found.connections_max}")
    for standby in found.followers:
        lag = "not known" if standby.lag_bytes is None else bytes_text(standby.lag_bytes)
        out.print(f"  standby    {standby.name}: {standby.state}, behind by {lag}")
    out.print(f"  {'relation':<18} {'rows':>12} {'table':>10} {'indexes':>10}")
    for each in sorted(found.relations, key=lambda each: -each.table_bytes - each.index_bytes):
        if each.rows:
            sizes = f"{bytes_text(each.table_bytes):>10} {bytes_text(each.index_bytes):>10}"
            out.print(f"  {each.name:<18} {each.rows:>12,} {sizes}")
    for line in _advice(found):
        out.print(line)


def _advice(found: StoreStatus) -> Iterator[str]:
    """Yield advice on the reported state."""
    broken = [index.name for index in found.indexes if not index.valid]
    if broken:
        yield f"not valid: {', '.join(broken)}; REINDEX them"
    if found.free_bytes and found.free_bytes > _LARGE * found.bytes:
        yield f"{bytes_text(found.free_bytes)} within the file are free: `caliber db vacuum` gives them back"
    dead = [each.name for each in found.relations if (each.dead_rows or 0) > max(1_000, _LARGE * each.rows)]
    if dead:
        yield f"many dead rows in {', '.join(dead)}: `caliber db vacuum` makes room of them"
    if (found.oldest_transaction_s or 0) > _LONG_S:
        age = time_text(found.oldest_transaction_s or 0)
        yield f"a transaction is open for {age}: until it ends, no room is given back, and change records stay"


@click.command("vacuum", short_help="Give room back, renew statistics.")
@click.option("--full", is_flag=True, help="PostgreSQL: rewrite each table; nobody can use it meanwhile.")
@with_whole_store
def vacuum(settings: Settings, full: bool) -> None:
    """Release the space of removed rows, and update the statistics of the query planner.

    SQLite rewrites the file, needs as much free disk meanwhile, and blocks writers. PostgreSQL frees space within its
    tables while others go on; with --full it returns it to the disk.
    """
    with _maintenance(settings) as maintenance, settings.out.progress("vacuum", None, "steps") as advance:
        done = maintenance.vacuum(full=full, progress=advancing(advance))

    def human() -> None:
        settings.out.print(f"{bytes_text(done.bytes_before)} before, {bytes_text(done.bytes_after)} now")
        if done.wal_bytes_after is not None and done.wal_bytes_before is not None:
            settings.out.print(
                f"log: {bytes_text(done.wal_bytes_before)} before, {bytes_text(done.wal_bytes_after)} now"
            )
        if done.skipped:
            settings.out.print(f"left as they were: {', '.join(done.skipped)}; their owner may vacuum them")

    settings.out.result(dataclasses.asdict(done), human)


_force = click.option("--force", is_flag=True, help="Replace what is there.")


@contextmanager
def _stages(out: Output) -> Iterator[Progress]:
    """Show a bar for each stage, one after the other."""
    with ExitStack() as stack:
        current = ""
        shown: Progress = unheard

        def progress(stage: str, done: int, total: int | None) -> None:
            nonlocal current, shown
            if stage != current:
                stack.close()
                current = stage
                shown = advancing(stack.enter_context(out.progress(stage, total)))
            shown(stage, done, total)

        yield progress


@click.command("backup", short_help="Write the whole store to one file.")
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@_force
@with_whole_store
def backup(settings: Settings, path: Path, force: bool) -> None:
    """Write the whole store to FILE, as of one moment, while others go on.

    FILE ends in .zip, an archive that restores into every database, or in .db, a copy of a SQLite file. It appears once
    it is whole and on disk, readable by its owner only.
    """
    with bare_store(settings.load()) as store, _stages(settings.out) as hear:
        made = back_up(store, path, replace=force, progress=hear)

    def human() -> None:
        held = "" if made.rows is None else f", {plural(sum(made.rows.values()), 'row')}"
        settings.out.print(f"{made.path}: {bytes_text(made.bytes)}{held}, as of position {made.sequence:,}")
        settings.out.print(f"next: keep it elsewhere; `caliber db restore {made.path}` makes a store of it")

    settings.out.result(dataclasses.asdict(made), human)


@click.command("restore", short_help="Restore the store from a backup.")
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@_force
@with_whole_store
def restore(settings: Settings, path: Path, force: bool) -> None:
    """Replace the configured store with FILE, a backup by `caliber db backup`; a missing store is created.

    All or nothing: a failure leaves the old store. A store that holds records is replaced with --force only; writes
    since the backup are lost then, and programs that have it open reload everything.
    """
    with _stages(settings.out) as hear:
        done = restore_store(settings.load(), path, replace=force, progress=hear)

    def human() -> None:
        settings.out.print(f"{done.store} is what {done.path} says: {plural(sum(done.rows.values()), 'row')}")
        settings.out.print(f"  epoch {done.epoch}; every row was read back and compared")
        if done.erasures_undone:
            since = plural(done.erasures_undone, "erasure")
            settings.out.print(f"{since} since that backup: what was forgotten may be back, so forget it again")
        if done.not_indexed is not None:
            settings.out.print(
                f"its vectors have no index yet ({done.not_indexed}): `caliber db rebuild-search` makes it"
            )
        settings.out.print("next: caliber db check")

    settings.out.result(dataclasses.asdict(done), human)


@click.command("check", short_help="Check the database, its rows, and that memory equals them.")
@with_whole_store
def check(settings: Settings) -> int:
    """Check the store: the database, rules between rows, and that memory equals the database.

    References, counters, versions, hashes of contents, owners of vectors, full text; each finding with its number, a
    few keys, and a remedy. Nothing is changed. Exit code 1 when something is wrong; findings that only waste space do
    not count.
    """
    config = settings.load()
    try:
        with bare_store(config) as store, _stages(settings.out) as hear:
            found = check_store(store, config, hear)
    except StorageError as error:
        if error.context.get("reason") not in DAMAGES:
            raise
        found = [not_opened(error)]
    try:
        with open_store(config, principal=Principal.admin()) as memory:  # whoever [principal] names
            found += memory.admin.inspect.differences()
    except (CaliberError, *UNREADABLE) as error:
        found.append(not_opened(error))
    wrong = [finding for finding in found if not finding.harmless]

    def human() -> None:
        for finding in found:
            about = f"{finding.relation}: " if finding.relation else ""
            settings.out.print(f"  - {about}{finding.what} ({plural(finding.count, 'row')})")
            if finding.examples:
                more = ", …" if finding.count > len(finding.examples) else ""
                settings.out.print(f"      {', '.join(finding.examples)}{more}")
            settings.out.print(f"      {finding.advice}")
        if wrong:
            settings.out.print(f"{plural(len(wrong), 'finding')}: stop writing, and see what each says")
        else:
            settings.out.print("sound: the database, its rows, and memory agree")

    settings.out.result({"ok": not wrong, "findings": found}, human)
    return PROBLEM if wrong else DONE


COMMANDS: Final[tuple[Any, ...]] = (status, check, views, vacuum, backup, restore)
