"""Commands ``top``, live figures of all processes that have a store open, and ``stats``, its contents and sizes."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from caliber.cli.observing.trace import took_text
from caliber.cli.output import Output, bytes_text
from caliber.cli.settings import Settings, with_store
from caliber.cli.team.shared import team_figures, team_lines
from caliber.storage.waiting import Flag

if TYPE_CHECKING:
    from rich.console import RenderableType

    from caliber.api.caliber import Caliber


_QUIET: Final = {"write_behind.operation_share": 0.0, "jobs.poll_ms": 0}
"""Settings of a program that only looks: its own calls are no operations, and it runs no jobs."""
_JOBS: Final = 1_000
_QUIT: Final = ("q", "Q", "\x03", "\x04", "")


@click.command()
@click.option("--once", is_flag=True, help="Print the figures once; so does --json, and output that is no terminal.")
@click.option(
    "--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.option(
    "--window", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Seconds that rates are taken over."
)
@with_store
def top(settings: Settings, once: bool, interval: float, window: float) -> None:
    """Show operations, latencies, resident bytes, jobs and agents as they change; q ends it.

    Operations of all processes are shown, as far as write_behind.operation_share records them.
    """
    with settings.memory(note=False, overrides=_QUIET) as memory:
        if once or settings.json or not settings.out.console.is_terminal:
            found = look(memory, window)
            settings.out.result(found, lambda: settings.out.console.print(_drawn(found)))
            return
        _watch(settings, memory, interval, window)


def look(memory: Caliber, window_s: float) -> dict[str, Any]:
    """Return the figures of this moment."""
    if not memory.principal.serves:
        memory.principal.require_admin("watch", "a store")
    stats = memory.admin.stats()
    resident, behind = stats["resident"], stats["behind"]
    states: dict[str, int] = {}
    for job in memory.jobs.list(limit=_JOBS) if memory.principal.is_admin else []:
        states[job.state.value] = states.get(job.state.value, 0) + 1
    operations = memory.admin.operations(window_ms=round(window_s * 1_000)) if memory.principal.is_admin else []
    return {
        "store": {"adapter": stats["store"]["adapter"], "bytes": stats["store"]["bytes"]},
        "window_s": window_s,
        "operations_per_second": sum(each.per_second for each in operations if each.kind == "operation"),
        "operations": operations,
        "resident": {
            "bytes": resident["column_bytes"] + resident["text_bytes"],
            "limit_bytes": resident["limit_bytes"],
        },
        "waiting": {"embeddings": behind["embeddings_waiting"], "jobs": behind["jobs_waiting"]},
        "jobs": states,
        "team": team_figures(memory),
        "records": {name: count for name, count in stats["records"].items() if count},
    }


def _watch(settings: Settings, memory: Caliber, interval: float, window: float) -> None:
    """Draw the figures again and again, until a key or Ctrl-C ends it."""
    from rich.live import Live

    with (
        _keys() as pressed,
        Live(_drawn(look(memory, window)), console=settings.out.console, screen=True, auto_refresh=False) as live,
    ):
        try:
            while not pressed(interval):
                live.update(_drawn(look(memory, window)), refresh=True)
        except KeyboardInterrupt:  # the way to end it, not a failure
            return


@contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits some seconds for a key that quits, and returns whether there was one."""
    if sys.platform == "win32" or not sys.stdin.isatty():  # only Ctrl-C ends it
        yield Flag().wait
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> bool:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return bool(ready) and os.read(descriptor, 1).decode("ascii", "replace") in _QUIT

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _drawn(found: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    resident, waiting = found["resident"], found["waiting"]
    head = Text.assemble(
        (f"{found['operations_per_second']:,.1f}", "bold"),
        f" operations/s in {found['window_s']:g} s   resident ",
        (bytes_text(resident["bytes"]), "bold"),
        f" of {bytes_text(resident['limit_bytes'])}   store {bytes_text(found['store']['bytes'])}",
    )
    jobs = ", ".join(f"{count} {state}" for state, count in found["jobs"].items()) or "none"
    lines = [f"jobs {jobs}   waiting for vectors {waiting['embeddings']:,}"]
    work = Text("\n".join(lines + (team_lines(found["team"]) if found["team"] is not None else [])))
    table = Table(box=None, pad_edge=False)
    table.add_column("operation")
    for name in ("per second", "p50", "p95", "max", "errors"):
        table.add_column(name, justify="right")
    for each in found["operations"]:
        name = each.operation if each.kind == "operation" else f"{each.kind} {each.operation}"
        times = (took_text(us) for us in (each.p50_us, each.p95_us, each.max_us))
        table.add_row(name, f"{each.per_second:,.1f}", *times, f"{each.errors:,}")
    if found["operations"]:
        return Group(head, work, table, Text("q quits", style="dim"))
    advice = "no operations were recorded; set write_behind.operation_share in the programs to be watched"
    return Group(head, work, Text(advice, style="dim"), Text("q quits", style="dim"))


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
