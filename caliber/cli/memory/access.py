"""Commands ``access``: grant, revoke and list rights of users and agents on tasks, sessions and notes."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

import click

from caliber.cli.settings import Settings, with_store
from caliber.model.access import Right
from caliber.model.references import EntityRef

if TYPE_CHECKING:
    from datetime import datetime

    from caliber.cli.output import Output
    from caliber.model.access import Grant

_TO = "The user, by name."
_AGENT = "The agent, by name."


@click.group()
def access() -> None:
    """Grant, revoke and list rights on tasks, sessions and notes of others."""


@access.command()
@click.argument("record_id")
@click.option("--to", help=_TO)
@click.option("--agent", help=_AGENT)
@click.option("--right", type=click.Choice([right.value for right in Right]), default="read", show_default=True)
@click.option("--until", type=click.DateTime(), help="The instant in UTC at which it ends.")
@with_store
def grant(
    settings: Settings, record_id: str, to: str | None, agent: str | None, right: str, until: datetime | None
) -> None:
    """Let a user or agent read, or write to, a task, session or note."""
    grantee = _grantee(to, agent)
    if grantee is None:
        raise click.UsageError("give --to or --agent")
    with settings.memory(note=False) as memory:
        ends = None if until is None else until.replace(tzinfo=UTC)
        made = memory.access.grant(to=grantee, on=record_id, right=right, until=ends)
    settings.out.result({"grant": _fields(made)}, lambda: _print(settings.out, [made]))


@access.command()
@click.argument("grant_id", required=False)
@click.option("--on", help="Every grant on this task, session or note.")
@click.option("--to", help=_TO)
@click.option("--agent", help=_AGENT)
@with_store
def revoke(settings: Settings, grant_id: str | None, on: str | None, to: str | None, agent: str | None) -> None:
    """End a grant at once, or those on a record."""
    with settings.memory(note=False) as memory:
        ended = memory.access.revoke(grant_id, to=_grantee(to, agent), on=on)
    settings.out.result({"revoked": [_fields(each) for each in ended]}, lambda: _print(settings.out, ended))


@access.command("list")
@click.option("--on", help="Only grants on this task, session or note.")
@click.option("--to", help=_TO)
@click.option("--agent", help=_AGENT)
@click.option("--ended", is_flag=True, help="Also grants that ended.")
@with_store
def list_(settings: Settings, on: str | None, to: str | None, agent: str | None, ended: bool) -> None:
    """List grants, the oldest first."""
    with settings.memory(note=False) as memory:
        found = memory.access.grants(to=_grantee(to, agent), on=on, ended=ended)
    settings.out.result({"grants": [_fields(each) for each in found]}, lambda: _print(settings.out, found))


def _grantee(to: str | None, agent: str | None) -> str | EntityRef | None:
    if agent is None:
        return to
    if to is not None:
        raise click.UsageError("give --to or --agent, not both")
    return EntityRef.agent(agent)


def _fields(grant: Grant) -> dict[str, Any]:
    return {
        "grant_id": grant.grant_id,
        "to": f"{grant.to.entity_type}:{grant.to.id}",
        "on": f"{grant.on.entity_type}:{grant.on.id}",
        "right": grant.right.value,
        "granted_by": grant.granted_by,
        "until": grant.until,
        "revoked_at": grant.revoked_at,
    }


def _print(out: Output, found: list[Grant]) -> None:
    if not found:
        out.print("there are no grants")
    for grant in found:
        fields = _fields(grant)
        out.print(f"{grant.grant_id}  {fields['right']:<5}  {fields['on']} to {fields['to']}")
        ends = "" if grant.until is None else f", until {grant.until:%Y-%m-%d %H:%M:%S}"
        ended = "" if grant.revoked_at is None else f", revoked {grant.revoked_at:%Y-%m-%d %H:%M:%S}"
        out.print(f"    by {grant.granted_by}{ends}{ended}")
