"""Commands ``plan``, the records that each injection rule would select now, and ``diff`` of two windows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from caliber.admin.rule_outcomes import plan_rules
from caliber.cli.memory.query import LATEST, window_id_of
from caliber.cli.output import Output, plural, printable
from caliber.cli.references import as_id
from caliber.cli.settings import Settings, with_store
from caliber.explain.diff import lines_of
from caliber.explain.replayer import WindowPlan


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--trajectory", default=LATEST, show_default=True, metavar="ID", help="Task of the window: its id, or `latest`."
)
@click.option(
    "-q",
    "--query",
    help="Query of the window; by default the last user message, or the goal. An empty one asks nothing.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), help="Budget; at most token_budget of the configuration.")
@with_store
def plan(settings: Settings, file: Path | None, trajectory: str, query: str | None, max_tokens: int | None) -> None:
    """Show the records that each injection rule would select, and their token cost.

    FILE is a configuration, such as a changed copy of the active one: its rules are tried on the store that it names.
    Nothing is written: the window is not stored, and nothing counts as used.
    """
    if file is not None:
        settings.config = file
    config = settings.load()
    trajectory_id = None if trajectory == LATEST else as_id(trajectory, "trajectory")
    found = plan_rules(config, trajectory_id, query=query, max_tokens=max_tokens, principal=settings.principal(config))
    settings.out.result(_document(found), lambda: _print(settings.out, found))


_BY = {"last_user_turn": " by the last user message", "goal": " by the goal"}


def _document(found: WindowPlan) -> dict[str, Any]:
    window = found.window
    return {
        "trajectory_id": str(window.trajectory_id),
        "max_tokens": window.max_tokens,
        "used_tokens": window.used_tokens,
        "left_tokens": found.left_tokens,
        "degraded": list(window.degraded),
        "query": found.query,
        "query_from": found.query_from,
        "sections": [{"name": item.name, "tokens": item.token_count} for item in window.sections],
        "rules": [dataclasses.asdict(item) for item in found.rules],
    }


def _print(out: Output, found: WindowPlan) -> None:
    window = found.window
    asked = "nothing is asked" if not found.query else f"asked{_BY.get(found.query_from, '')}: {printable(found.query)}"
    out.print(f"trajectory {window.trajectory_id}, {asked}")
    if all(item.once is not None for item in found.rules):
        out.print("there are no rules of injection: records enter as the section [assembly] says")
    for item in found.rules:
        cap = "" if item.cap_tokens is None else f", at most {item.cap_tokens} tokens"
        out.print(f"{item.rule}: {item.mode} of {item.memory}, priority {item.priority}{cap}")
        if item.once is not None:
            out.print(f"    once, in the next window: {item.once}")
        if item.filter is not None:
            out.print(f"    where {printable(item.filter)}")
        through = "" if item.filter is None else f", {item.through} pass the filter"
        counts = f"{item.considered} considered{through}, {item.selected} selected ({item.cost_tokens} tokens)"
        out.print(f"    {counts}; {item.included} included ({item.used_tokens} tokens)")
        for reason, count in item.excluded.items():
            out.print(f"    {plural(count, 'record')} left out: {reason}")
    out.print(f"{window.used_tokens} of {window.max_tokens} tokens used, {found.left_tokens} left")


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
            for line in lines_of(found):
                settings.out.print(line)

        settings.out.result(found, human)
