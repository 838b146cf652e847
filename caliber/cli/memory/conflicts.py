"""Commands ``conflicts``: list the contradictions that wait for a decision, and resolve one."""

from __future__ import annotations

from typing import Any

import click

from caliber.cli.memory.query import trajectory_id_of
from caliber.cli.output import Output
from caliber.cli.settings import Settings, confirm, with_store, yes_option
from caliber.model.pcp import ConflictResolution, ConflictStatus, Disagreement


@click.group()
def conflicts() -> None:
    """List and resolve conflicts: pairs of records that contradict each other."""


@conflicts.command("list")
@click.option("--task", help="Only conflicts of records of this task: its id, or `latest`.")
@click.option("--user", help="Also those of notes of this user, by name.")
@click.option("--status", type=click.Choice([each.value for each in ConflictStatus]), help="Instead of the open ones.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The most conflicts to list.")
@click.option("--after", help="The id of the last conflict of the page before.")
@with_store
def list_(
    settings: Settings, task: str | None, user: str | None, status: str | None, limit: int, after: str | None
) -> None:
    """List open conflicts, the oldest first."""
    with settings.memory(note=False) as memory:
        key = None if task is None else trajectory_id_of(memory, task)
        found = memory.conflicts.list(task=key, user=user, status=status, limit=limit, after=after)
    settings.out.result({"conflicts": [_fields(each) for each in found]}, lambda: _print(settings.out, found))


@conflicts.command()
@click.argument("conflict_id")
@click.option("--keep", help="The id of the side to keep, or `both`: then neither ends.")
@click.option("--strategy", type=click.Choice([each.value for each in ConflictResolution]), help="Way to decide.")
@click.option("--reason", help="The reason, for the record.")
@click.option("--user", help="The user whose notes the sides are, by name.")
@yes_option
@with_store
def resolve(
    settings: Settings,
    conflict_id: str,
    keep: str | None,
    strategy: str | None,
    reason: str | None,
    user: str | None,
    yes: bool,
) -> None:
    """Keep one side of a conflict: the other one ends now, and undoing that opens the conflict again."""
    confirm(settings, yes, "this ends a record", "end the other side?")
    with settings.memory(note=False) as memory:
        done = memory.conflicts.resolve(conflict_id, keep=keep, strategy=strategy, reason=reason, user=user)
    settings.out.result({"conflict": _fields(done)}, lambda: _print(settings.out, [done]))


def _fields(conflict: Disagreement) -> dict[str, Any]:
    kept, ended = conflict.kept, conflict.ended
    return {
        "conflict_id": conflict.conflict_id,
        "status": conflict.status.value,
        "reason": conflict.reason,
        "item_a": f"{conflict.item_a.entity_type}:{conflict.item_a.id}",
        "item_b": f"{conflict.item_b.entity_type}:{conflict.item_b.id}",
        "detected_at": conflict.detected_at,
        "detected_by": conflict.detected_by,
        "winner": None if conflict.winner is None else conflict.winner.value,
        "kept": None if kept is None else kept.id,
        "ended": None if ended is None else ended.id,
        "resolution_reason": conflict.resolution_reason,
        "resolved_at": conflict.resolved_at,
        "resolved_by": conflict.resolved_by,
    }


def _print(out: Output, found: list[Disagreement]) -> None:
    if not found:
        out.print("there are no conflicts")
    for conflict in found:
        fields = _fields(conflict)
        out.print(f"{conflict.conflict_id}  {fields['status']:<9}  {conflict.reason}")
        out.print(f"    {fields['item_a']} and {fields['item_b']}")
        if conflict.winner is not None:
            ended = "neither ended" if conflict.ended is None else f"{conflict.ended.id} ended"
            out.print(f"    resolved by {conflict.resolved_by}: {ended}")
