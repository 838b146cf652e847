"""Command ``stats``: prints record counts, sizes, providers and waiting work of a store."""

from __future__ import annotations

from typing import Any

import click

from caliber.cli.output import Output, bytes_text
from caliber.cli.settings import Settings, with_store
from caliber.cli.team.figures import team_figures, team_lines


@click.command()
@with_store
def stats(settings: Settings) -> None:
    """Show the contents of the store, on disk and in memory."""
    with settings.memory() as memory:
        found = memory.admin.stats()
        team = team_figures(memory)
    if team is not None:
        found["team"] = team
    settings.out.result(found, lambda: print_stats(settings.out, found))


def print_stats(out: Output, found: dict[str, Any]) -> None:
    """Print the figures of a tenant, as far as the principal may know them."""
    if "store" in found:
        _print_store(out, found)
    for line in team_lines(found["team"]) if "team" in found else ():
        out.print(line)
    out.print("records")
    for name, count in found["records"].items():
        if count:
            out.print(f"  {name:<18} {count:>10,}")


def _print_store(out: Output, found: dict[str, Any]) -> None:
    store, resident = found["store"], found["resident"]
    out.print(f"store      {store['adapter']} {store['path']}")
    in_wal = f", {bytes_text(store['wal_bytes'])} in the WAL" if "wal_bytes" in store else ""
    out.print(f"           {bytes_text(store['bytes'])} on disk{in_wal}")
    out.print(f"           {store['summary']}")
    if "feed" in store:
        fault = store["feed"].get("fault")
        why = f" (no connection to listen on: {fault})" if fault else ""
        out.print(f"changes    of other processes arrive by {store['feed']['mode']}{why}")
    memory = resident["column_bytes"] + resident["text_bytes"]
    out.print(f"resident   {bytes_text(memory)} of at most {bytes_text(resident['limit_bytes'])}")
    columns, texts = bytes_text(resident["column_bytes"]), bytes_text(resident["text_bytes"])
    out.print(f"           columns and vectors {columns}, texts {texts}")
    providers = found["providers"]
    out.print(f"embedding  {providers['embedding'] or 'none'}")
    changing = found["embedding_spaces"]
    if changing is not None and changing["filling"] is not None:
        out.print(f"           searched is {changing['in_use']}, until {changing['filling']} is complete")
    out.print(f"summaries  {providers['summarization'] or 'none'}")
    out.print(f"kernels    {found['kernels']}, evaluator {found['evaluator']}, estimator {found['estimator']}")
    out.print(f"position   {found['position']['sequence']:,}   configuration {found['config_hash'][:16]}")
    waiting = found["behind"]["embeddings_waiting"]
    if waiting:
        out.print(f"waiting    {waiting:,} vectors")
    waiting = found["behind"]["turn_summaries_waiting"]
    if waiting:
        out.print(f"waiting    {waiting:,} summaries of turns")
