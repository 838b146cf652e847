"""Command ``diff``, which compares two persisted windows."""

from __future__ import annotations

import click

from caliber.cli.memory.query import LATEST, window_id_of
from caliber.cli.references import as_id
from caliber.cli.settings import Settings, with_store


@click.command()
@click.argument("before")
@click.argument("after")
@with_store
def diff(settings: Settings, before: str, after: str) -> None:
    """Compare window BEFORE with window AFTER (ids; `latest` is the newest): changes, reasons, the prompt cache."""
    for text in (before, after):
        if text != LATEST:
            as_id(text, "window")
    with settings.memory() as memory:
        found = memory.windows.diff(window_id_of(memory, before), window_id_of(memory, after))

        def human() -> None:
            from caliber.explain.diff import lines_of

            for line in lines_of(found):
                settings.out.print(line)

        settings.out.result(found, human)
