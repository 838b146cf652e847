"""Commands ``db tenants`` and ``db tenant create|move|drop``: the directory of tenants."""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote
from typing import Any, Final

import click

from caliber.api.tenants import Tenants
from caliber.cli.failures import UsageError
from caliber.cli.output import Output, advancing, plural
from caliber.cli.settings import Settings, with_whole_store
from caliber.model.progress import Progress
from caliber.model.tenants import Tenant

_SOURCE: Final = "A data source of tenancy.sources."


def _open(settings: Settings, *, create: bool = False) -> Tenants:
    return Tenants(settings.load_all(), create=create)


def _document(tenant: Tenant) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "tenant_id": tenant.tenant_id,
        "state": tenant.state,
        "source": tenant.source,
        "location": tenant.location,
        "moving_to": tenant.target_source,
        "left_behind": None if tenant.old is None else str(tenant.old),
        "created_at": tenant.created_at,
        "updated_at": tenant.updated_at,
    }


@click.command("tenants", short_help="List the tenants and where they are.")
@click.option("--dropped", is_flag=True, help="Those that were dropped, too.")
@with_whole_store
def tenants(settings: Settings, dropped: bool) -> None:
    """List the tenants of the directory that the configuration names, and where they are."""
    with _open(settings) as opened:
        found = opened.all(dropped=dropped)

    def human() -> None:
        for each in found:
            notes = [] if each.target is None else [f"moving to {each.target_source}"]
            notes += [] if each.old is None else [f"left behind: {each.old}"]
            about = f"  ({'; '.join(notes)})" if notes else ""
            settings.out.print(f"{each.name:<24} {each.state.value:<9} {each.place}{about}")
        if not found:
            settings.out.print("there are no tenants yet; `caliber db tenant create NAME` makes one")

    settings.out.result({"tenants": [_document(each) for each in found]}, human)


@click.group("tenant", short_help="Create, move or drop a tenant.")
def tenant() -> None:
    """Create a tenant, move it to another database while it is used, or drop it."""


@tenant.command("create")
@click.argument("name")
@click.option("--source", help=f"{_SOURCE} [default: tenancy.new_tenants]")
@click.option("--exist-ok", is_flag=True, help="An existing tenant is no mistake.")
@with_whole_store
def create(settings: Settings, name: str, source: str | None, exist_ok: bool) -> None:
    """Create a tenant with an empty store, and the directory if this is the first.

    NAME is any text of up to 1,024 bytes of UTF-8 without control characters.
    """
    with _open(settings, create=True) as opened:
        made = opened.create(name, source=source, exist_ok=exist_ok)

    def human() -> None:
        settings.out.print(f"tenant {made.name} is at {made.place}")
        settings.out.print(
            f"next: caliber --tenant {quote(made.name)} …, or caliber.open(…, tenant={made.name!r}) in Python"
        )

    settings.out.result(_document(made), human)


@tenant.command("move")
@click.argument("name")
@click.option("--to", "source", help=_SOURCE)
@click.option("--abort", is_flag=True, help="Give a move up; the tenant stays where it is.")
@with_whole_store
def move(settings: Settings, name: str, source: str | None, abort: bool) -> None:
    """Move a tenant to another data source while it is used; resume a move that was interrupted.

    Writers are refused for a moment at the end, with an error that tells them to try again, and from then on with one
    that tells them to open the tenant again. Every row is compared before the tenant changes places. The old store
    stays until `caliber db tenant drop NAME --old`.
    """
    if abort == (source is not None):
        raise UsageError("use --to SOURCE or --abort", "`caliber db tenants` lists the moves")
    with _open(settings) as opened:
        if source is None:
            stays = opened.abort_move(name)
            settings.out.result(_document(stays), lambda: settings.out.print(f"tenant {name} stays at {stays.place}"))
            return
        with settings.out.progress("copying", None, "rows") as advance:
            report = opened.move(name, source, progress=_steps(settings.out, advance))
    moved = report.tenant
    rows = sum(report.rows.values())

    def human() -> None:
        settings.out.print(f"tenant {name} is at {moved.place} now: {plural(rows, 'row')} compared, all equal")
        settings.out.print(
            f"writers waited {report.fence_ms:,} ms; {report.caught_up_rows:,} rows were written meanwhile"
        )
        if report.not_indexed is not None:
            settings.out.print(f"its vectors have no index yet: {report.not_indexed}")
            settings.out.print(f"next: `caliber --tenant {quote(name)} db rebuild-search` makes it")
        settings.out.print(f"next: `caliber db tenant drop {quote(name)} --old` removes what it left at {report.left}")

    document = {
        **_document(moved),
        "left": str(report.left),
        "rounds": report.rounds,
        "caught_up_rows": report.caught_up_rows,
        "fence_ms": report.fence_ms,
        "rows": dict(report.rows),
        "hashes": dict(report.hashes),
        "not_indexed": report.not_indexed,
    }
    settings.out.result(document, human)


def _steps(out: Output, advance: Callable[[int], None]) -> Progress:
    """Return a progress callback that prints each step as it begins, and advances by the rows that are copied."""
    rows = advancing(advance)

    def progress(step: str, done: int, total: int | None) -> None:
        if not done:
            out.note(step)
        rows(step, done, total)

    return progress


@tenant.command("drop")
@click.argument("name")
@click.option("--old", is_flag=True, help="Only what it left behind when it moved.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_whole_store
def drop(settings: Settings, name: str, old: bool, yes: bool) -> None:
    """Remove a tenant with its store, or the old store that a move left."""
    with _open(settings) as opened:
        known = opened.get(name)
        if not old and not yes:
            question = f"remove tenant {name} at {known.place} with all that it remembers?"
            if settings.json or not click.confirm(question):
                raise UsageError("nothing was removed", "use --yes to remove it without confirmation")
        old_place = known.old
        dropped = opened.drop_old(name) if old else opened.drop(name)

    def human() -> None:
        settings.out.print(f"removed what tenant {name} left at {old_place}" if old else f"dropped tenant {name}")

    settings.out.result(_document(dropped), human)


COMMANDS: Final[tuple[click.Command, ...]] = (tenants, tenant)
