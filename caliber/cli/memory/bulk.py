"""Commands ``export`` and ``import``: write whole relations to Parquet files, and load them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from caliber.cli.failures import UsageError
from caliber.cli.output import Output, advancing, plural
from caliber.cli.settings import Settings, with_store
from caliber.model.hints import did_you_mean

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber

_BATCH_ROWS: Final = 8_192
_ENDING: Final = ".parquet"

_relations = click.option(
    "--relation",
    "relations",
    multiple=True,
    metavar="NAME",
    help="Only this relation; may come several times.",
)


def _parquet(help_text: str) -> Callable[[Any], Any]:
    return click.option(
        "--parquet", "path", required=True, type=click.Path(path_type=Path), metavar="PATH", help=help_text
    )


@click.command("export", short_help="Write records to Parquet files.")
@_parquet("A folder, for a file each relation; or with one --relation a file *.parquet.")
@_relations
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@with_store
def export(settings: Settings, path: Path, relations: tuple[str, ...], force: bool) -> None:
    """Write records to Parquet files, which `caliber import` and everything that reads Parquet takes.

    Vectors are left out unless asked for with --relation embedding_space --relation embedding: a store that imports
    the records makes its own; vectors that were paid for are in embedding_cache.
    """
    started = time.monotonic()
    done: list[dict[str, Any]] = []
    with settings.memory() as memory:
        files = _targets(path, relations, memory.storage.exported)
        existing = [str(file) for _, file in files if file.exists()]
        if existing and not force:
            raise UsageError(f"{existing[0]} is there already", "choose another PATH, or overwrite with --force")
        memory.flush()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Referring relations first: rows added meanwhile then have no reference to a missing row.
        for relation, file in reversed(files):
            file.parent.mkdir(exist_ok=True)
            done.append({"relation": relation, "file": file, "rows": _export(memory, settings.out, relation, file)})
    done.reverse()
    document = {"files": done, "seconds": round(time.monotonic() - started, 3)}

    def human() -> None:
        for item in done:
            settings.out.print(f"  {item['relation']:<16} {item['rows']:>10,}  {item['file']}")
        settings.out.print(f"next: caliber import --parquet {path}    in another store")

    settings.out.result(document, human)


def _targets(path: Path, relations: tuple[str, ...], plurals: Mapping[str, bool]) -> list[tuple[str, Path]]:
    unknown = [name for name in relations if name not in plurals]
    if unknown:
        hint = did_you_mean(unknown[0], plurals, f"it exports {', '.join(plurals)}", mark="'")
        raise UsageError(f"the store exports no {unknown[0]}", hint)
    relations = relations or tuple(name for name, unasked in plurals.items() if unasked)
    if path.suffix == _ENDING:
        if len(relations) != 1:
            raise UsageError(f"{path} is one file", "name one --relation for it, or give a folder")
        return [(relations[0], path)]
    return [(relation, path / f"{relation}{_ENDING}") for relation in plurals if relation in relations]


def _export(memory: Caliber, out: Output, relation: str, file: Path) -> int:
    from caliber.storage.bulk.parquet import write_parquet

    reader = memory.storage.bulk_read(relation, batch_rows=_BATCH_ROWS)
    total = memory.storage.table_of(relation).count()
    with out.progress(relation, total, "rows") as advance:
        return write_parquet(file, reader, advancing(advance))


@click.command("import", short_help="Load records from Parquet files.")
@_parquet("A folder that `caliber export` wrote, or a file *.parquet.")
@_relations
@click.option(
    "--on-existing",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="Treatment of a row that exists already.",
)
@with_store
def import_(settings: Settings, path: Path, relations: tuple[str, ...], on_existing: str) -> None:
    """Load records from Parquet files: columns named as those of the relation, in any order.

    Each file is loaded whole or not at all; a bad row is named by its number and column. After a failure correct it
    and go on with --on-existing skip. Ids, hashes, counts and times that a file leaves out are made.
    """
    started = time.monotonic()
    done: list[dict[str, Any]] = []
    with settings.memory() as memory:
        for relation, file in _sources(path, relations, memory.storage.exported):
            try:
                done.append(_import(memory, settings.out, relation, file, on_existing))
            except Exception:
                if done:
                    loaded = ", ".join(item["relation"] for item in done)
                    settings.out.note(f"stopped at {file}: {loaded} are loaded; go on with --on-existing skip")
                raise
        memory.flush()
    document = {"files": done, "seconds": round(time.monotonic() - started, 3)}

    def human() -> None:
        for item in done:
            there = f"  ({plural(item['skipped'], 'row')} there already)" if item["skipped"] else ""
            settings.out.print(f"  {item['relation']:<16} {item['loaded']:>10,} rows loaded{there}")

    settings.out.result(document, human)


def _sources(path: Path, relations: tuple[str, ...], plurals: Iterable[str]) -> list[tuple[str | None, Path]]:
    if not path.is_dir():
        if len(relations) > 1:
            raise UsageError(f"{path} is one file", "name at most one --relation for it")
        return [(relations[0] if relations else None, path)]
    found = [
        (relation, path / f"{relation}{_ENDING}")
        for relation in plurals
        if (not relations or relation in relations) and (path / f"{relation}{_ENDING}").exists()
    ]
    if not found:
        raise UsageError(f"{path} holds no records", f"expected files such as {next(iter(plurals))}{_ENDING}")
    return found  # type: ignore[return-value]


def _import(memory: Caliber, out: Output, relation: str | None, file: Path, on_existing: str) -> dict[str, Any]:
    from caliber.storage.bulk.parquet import open_parquet

    with open_parquet(file, batch_rows=_BATCH_ROWS) as opened:
        name = relation or opened.relation
        if name is None:
            raise UsageError(f"{file} does not name its relation", "name it with --relation")
        with out.progress(name, opened.rows, "rows") as advance:
            report = memory.storage.bulk_load(
                name, opened.reader, on_existing=on_existing, progress=advancing(advance), batch_rows=_BATCH_ROWS
            )
    return {
        "relation": report.relation,
        "file": file,
        "rows": report.rows,
        "loaded": report.loaded,
        "skipped": report.skipped,
    }
