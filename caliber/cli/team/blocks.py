"""Commands ``blocks``: list and show memory blocks, edit one in an editor, show its history, take back a change."""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, Any

import click

from caliber.cli.settings import Settings, with_store
from caliber.cli.team.shared import agent_names, when
from caliber.model.references import EntityRef, EntityType

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from caliber.api.caliber import Caliber
    from caliber.model.workspace.blocks import MemoryBlock


@click.group()
def blocks() -> None:
    """List and show memory blocks, edit one, show its history: those of --as agent:NAME, or everybody's."""


@blocks.command("list")
@with_store
def list_(settings: Settings) -> None:
    """List blocks and how much of them is used: an administrator's list has those of all owners."""
    with settings.memory(note=False) as memory:
        listed, names = memory.blocks.list(everybody=memory.principal.is_admin), agent_names(memory)
        found = [_fields(memory, names, each) for each in listed]

    def human() -> None:
        for each in found:
            used = f"{len(each['text'])}/{each['max_chars']}"
            settings.out.print(f"{each['label']:<20}  {each['kind']:<8}  {used:>12}  {each['owner'] or 'everybody'}")
        if not found:
            settings.out.print("there are no blocks")

    settings.out.result({"blocks": found}, human)


@blocks.command()
@click.argument("label")
@with_store
def show(settings: Settings, label: str) -> None:
    """Show a block."""
    with settings.memory(note=False) as memory:
        block = _fields(memory, agent_names(memory), memory.blocks.get(label))
    settings.out.result({"block": block}, lambda: settings.out.print(block["text"]))


@blocks.command()
@click.argument("label")
@with_store
def edit(settings: Settings, label: str) -> None:
    """Edit a block in $EDITOR; a block that was changed meanwhile is not overwritten."""
    with settings.memory(note=False) as memory:
        before = memory.blocks.get(label)
        text = (click.edit(before.text, extension=".txt") or before.text).rstrip("\n")
        is_same = text == before.text
        kept = before if is_same else memory.blocks.replace(label, text, version=before.version)
        block = _fields(memory, agent_names(memory), kept)
    said = "unchanged" if is_same else f"{label} has {len(block['text'])} of {block['max_chars']} characters"
    settings.out.result({"block": block}, lambda: settings.out.print(said))


@blocks.command()
@click.argument("label")
@with_store
def history(settings: Settings, label: str) -> None:
    """Show the changes of a block, the newest first, each with its author and the lines that it changed."""
    with settings.memory(note=False) as memory:
        changes = memory.blocks.history(label)

    def human() -> None:
        for each in changes:
            settings.out.print(f"version {each.version}  {when(each.at)}  {each.by}")
            for line in list(difflib.unified_diff(each.before.split("\n"), each.after.split("\n"), lineterm=""))[3:]:
                settings.out.print(f"    {line}")
        if not changes:
            settings.out.print("it has not changed")

    settings.out.result({"changes": [dataclasses.asdict(each) for each in changes]}, human)


@blocks.command()
@click.argument("label")
@with_store
def undo(settings: Settings, label: str) -> None:
    """Take back the last change of a block; once more, and it is there again."""
    with settings.memory(note=False) as memory:
        block = _fields(memory, agent_names(memory), memory.blocks.undo(label))
    settings.out.result({"block": block}, lambda: settings.out.print(block["text"]))


def _fields(memory: Caliber, names: Mapping[uuid.UUID, str], block: MemoryBlock) -> dict[str, Any]:
    fields = {field.name: getattr(block, field.name) for field in dataclasses.fields(block)}
    return {**fields, "owner": None if block.owner is None else _name(memory, names, block.owner)}


def _name(memory: Caliber, names: Mapping[uuid.UUID, str], owner: uuid.UUID) -> str:
    if owner in names:
        return f"agent:{names[owner]}"
    for kind in (EntityType.USER, EntityType.AGENT):
        for identity in memory.identities.names(EntityRef(kind, owner)):
            return f"{kind.value}:{identity.name}"
    return str(owner)
