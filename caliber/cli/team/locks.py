"""Commands ``locks``: list locks between agents, with the requests that wait for each, and break one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from caliber.cli.output import plural, time_text
from caliber.cli.settings import Settings, confirm, with_store, yes_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caliber.cli.output import Output
    from caliber.model.agents import Lock, LockWaiter


@click.group()
def locks() -> None:
    """List locks, with their holders and the requests that wait, and break one."""


@locks.command("list")
@click.option("--resource", help="Only locks of this resource.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The most locks to list.")
@with_store
def list_(settings: Settings, resource: str | None, limit: int) -> None:
    """List locks, the next to run out first, each with the requests that wait, in their order."""
    with settings.memory(note=False) as memory:
        if resource is None:
            held = memory.agents.locks.list(limit=limit)
        else:
            held = memory.agents.locks.held(resource)[:limit]
        waiting = memory.agents.locks.waiting()
    found = _fields(held, [each for each in waiting if resource in (None, each.resource)])
    settings.out.result({"locks": found}, lambda: _print(settings.out, found, "there are no locks"))


@locks.command("break")
@click.argument("resource")
@yes_option
@with_store
def break_(settings: Settings, resource: str, yes: bool) -> None:
    """End all locks of a resource: writes that their holders guard with them are refused from now on."""
    question = f"end all locks of {resource}? Their holders are not asked"
    confirm(settings, yes, f"this ends the locks of {resource}", question)
    with settings.memory(note=False) as memory:
        broken = _fields(memory.agents.locks.break_lock(resource), [])
    settings.out.result({"broken": broken}, lambda: _print(settings.out, broken, f"there was no lock on {resource}"))


def _fields(held: Sequence[Lock], waiting: Sequence[LockWaiter]) -> list[dict[str, Any]]:
    """Return a resource for each that is held or waited for: locks, then requests in their order."""
    now = datetime.now(UTC)
    by_name: dict[str, dict[str, Any]] = {}
    for lock in held:
        resource = by_name.setdefault(lock.resource, {"resource": lock.resource, "held": [], "waiting": []})
        left_s = max(0.0, (lock.expires_at - now).total_seconds())
        resource["held"].append(
            {
                "holder": lock.holder,
                "mode": lock.mode,
                "token": lock.token,
                "acquired_at": lock.acquired_at,
                "expires_at": lock.expires_at,
                "lease_left_s": round(left_s, 3),
            }
        )
    for request in waiting:
        resource = by_name.setdefault(request.resource, {"resource": request.resource, "held": [], "waiting": []})
        resource["waiting"].append({"holder": request.holder, "mode": request.mode, "queued_at": request.queued_at})
    return list(by_name.values())


def _print(out: Output, found: list[dict[str, Any]], none: str) -> None:
    if not found:
        out.print(none)
    for each in found:
        waiting = f"  {plural(len(each['waiting']), 'request')} waiting" if each["waiting"] else ""
        out.print(f"{each['resource']}{waiting}")
        for lock in each["held"]:
            left = time_text(lock["lease_left_s"])
            out.print(f"    {lock['mode']:<9}  {lock['holder']}, {left} left, token {lock['token']}")
        for request in each["waiting"]:
            out.print(f"    waits      {request['holder']}, {request['mode']}, since {request['queued_at']:%H:%M:%S}")
