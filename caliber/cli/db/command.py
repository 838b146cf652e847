"""Command group ``db``: ``db migrate``, ``db maintain``, ``db list``; registers the other db commands."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import click

from caliber.api.opening import migrate as migrate_store
from caliber.api.opening import plan_migration
from caliber.cli import show
from caliber.cli.db.maintenance import COMMANDS as MAINTENANCE
from caliber.cli.db.spaces import COMMANDS
from caliber.cli.db.tenants import COMMANDS as TENANTS
from caliber.cli.failures import LISTED
from caliber.cli.memory.forget import purge
from caliber.cli.output import advancing
from caliber.cli.settings import Settings, with_store, with_whole_store
from caliber.model.progress import Progress
from caliber.schema.relation import ColumnType
from caliber.schema.relations import RELATIONS

_TABLES: Final = {name: table for table, name in LISTED.items()}


@click.group()
def db() -> None:
    """Look after the store: check, back up, restore, migrate, maintain, change the embedding model."""


@db.command("migrate", short_help="Bring the store up to this version and the declared memories.")
@click.option("--plan", "only_plan", is_flag=True, help="Show each step and its statements; change nothing.")
@click.option(
    "--drop",
    multiple=True,
    metavar="NAME[.FIELD]",
    help="Remove a memory and its records, or a field.",
)
@with_whole_store
def migrate(settings: Settings, only_plan: bool, drop: tuple[str, ...]) -> None:
    """Bring the store up to the schema of this version, and to the memories that the configuration declares.

    Memories that the configuration does not declare stay, unless --drop names them.
    """
    config = settings.load()
    plan = plan_migration(config, drop=drop)
    with _words_anew(settings) as progress:
        applied = [] if only_plan else migrate_store(config, drop=drop, progress=progress)
    document = {
        "store": config.storage.shown,
        "applied": applied,
        "planned": [f"schema version {version}" for version in plan.versions],
        "steps": [{"step": step.line, "statements": step.statements} for step in plan.steps],
        "stays": plan.stays,
    }

    def human() -> None:
        versions = ", ".join(str(version) for version in (plan.versions if only_plan else applied))
        if versions:
            settings.out.print(f"{'would apply' if only_plan else 'applied'} schema version {versions}")
        for step in plan.steps:
            settings.out.print(f"{'would ' if only_plan else 'done: '}{step.line}")
            for statement in step.statements if only_plan else ():
                settings.out.print("    " + statement.replace("\n", "\n    "))
        if not versions and not plan.steps:
            settings.out.print("the store is up to date; nothing to do")
        for line in plan.stays:
            settings.out.print(line)

    settings.out.result(document, human)


@contextmanager
def _words_anew(settings: Settings) -> Iterator[Progress]:
    """Yield a progress callback whose bar appears with its first call: most migrations rebuild no full text."""
    with ExitStack() as stack:
        bars: list[Progress] = []

        def progress(stage: str, done: int, total: int | None) -> None:
            if not bars:
                bar = settings.out.progress("writing full text anew", total, "texts")
                bars.append(advancing(stack.enter_context(bar)))
            bars[0](stage, done, total)

        yield progress


@db.command("maintain", short_help="Apply retention now.")
@with_store
def maintain(settings: Settings) -> None:
    """Apply retention now: windows, events, changes, ended delegations, lapsed locks. Knowledge is never removed."""
    with settings.memory() as memory:
        removed = memory.admin.maintain()

    def human() -> None:
        settings.out.print(
            ", ".join(f"{name} {count:,}" for name, count in removed.items() if count) or "nothing was due"
        )

    settings.out.result({"removed": removed}, human)


for _command in (purge, *MAINTENANCE, *COMMANDS, *TENANTS):
    db.add_command(_command)


@db.command("list")
@click.argument("what", type=click.Choice(tuple(_TABLES)))
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="The newest N.")
@with_store
def list_records(settings: Settings, what: str, limit: int) -> None:
    """List the newest records of a kind, newest last."""
    with settings.memory() as memory:
        table = memory.storage.get(_TABLES[what])
        total = table.count()
        newest: list[Any] = []
        for entity in table.all():
            newest.append(entity)
            if len(newest) >= 2 * limit:
                del newest[:-limit]
        newest = newest[-limit:]
        document = {"what": what, "total": total, "records": [_document(item) for item in newest]}

        def human() -> None:
            for item in newest:
                settings.out.print(_line(item))
            if total > len(newest):
                settings.out.print(f"the newest {len(newest)} of {total:,}; --limit shows more")
            elif not newest:
                settings.out.print(f"there are no {what} yet")

        settings.out.result(document, human)


def _document(entity: Any) -> Any:
    # Packed bytes mean nothing to a reader.
    relation = next(each for each in RELATIONS if each.entity is type(entity))
    packed = {each.name for each in relation.columns if each.type is ColumnType.BYTES and not each.content}
    return {field.name: getattr(entity, field.name) for field in dataclasses.fields(entity) if field.name not in packed}


def _line(entity: Any) -> str:
    kind = type(entity).__name__
    if kind == "Trajectory":
        goal = show.shortened(show.first_line(entity.goal or "(goal not kept)"), 60)
        return f"{entity.trajectory_id}  {entity.status.value:<9} {entity.turn_count:>6,} turns  {goal}"
    if kind == "Scope":
        state = "open" if entity.is_open else "closed"
        return f"{entity.scope_id}  {state:<6} {entity.turn_count:>5,} turns  {show.shortened(show.label(entity), 60)}"
    if kind == "StoredWindow":
        used = f"{entity.used_tokens:,} of {entity.max_tokens:,} tokens"
        return f"{entity.window_id}  {entity.assembled_at:%Y-%m-%d %H:%M:%S}  {used}"
    if kind == "Event":
        return f"{entity.event_id}  {entity.created_at:%Y-%m-%d %H:%M:%S}  {entity.event_type}"
    identity = entity.note_id if kind == "Note" else entity.artifact_id
    return f"{identity}  {show.shortened(show.label(entity), 80)}"
