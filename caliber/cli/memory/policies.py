"""Command ``policies``: lists policy rules with their next run times; ``--run`` runs due ones first."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from caliber.cli.output import plural
from caliber.cli.settings import Settings, with_store

if TYPE_CHECKING:
    from caliber.cli.output import Output
    from caliber.config import CaliberConfig
    from caliber.jobs.handlers import ScheduledRule


@click.command()
@click.option("--run", is_flag=True, help="First run due policies, unless another process runs them.")
@with_store
def policies(settings: Settings, run: bool) -> None:
    """List the policies' rules in their order; those on a schedule with when they are due next.

    An open store runs due jobs every `jobs.poll_ms`.
    """
    with settings.memory(note=False) as memory:
        done = memory.jobs.run_due() if run else None
        scheduled = memory.jobs.schedules()
        config = memory.config
    found = {
        "time_zone": config.time_zone or "UTC",
        "rules": _rules(config, scheduled),
        **({} if done is None else {"actions_done": done}),
    }
    settings.out.result(found, lambda: _print(settings.out, found))


def _rules(config: CaliberConfig, scheduled: list[ScheduledRule]) -> list[dict[str, Any]]:
    due = {(rule.policy, rule.rule): dataclasses.asdict(rule) for rule in scheduled}
    out = []
    for policy in config.policies:
        for place, rule in enumerate(policy.rules):
            job = due.get((policy.name, place), {"policy": policy.name, "rule": place})
            out.append({**job, "on": rule.on.value, "actions": [action.shown for action in rule.actions]})
    return out


def _print(out: Output, found: dict[str, Any]) -> None:
    if "actions_done" in found:
        out.print(f"ran {plural(found['actions_done'], 'action')}")
    if not found["rules"]:
        out.print("there are no policies")
    for rule in found["rules"]:
        trigger = f'schedule("{rule["cron"]}")' if "cron" in rule else rule["on"]
        out.print(f"{rule['policy']}: on {trigger}: {', '.join(rule['actions'])}")
        if "cron" in rule:
            covered_at = rule["covered_at"]
            since = (
                "new: counts from the first look" if covered_at is None else f"done up to {covered_at:%Y-%m-%d %H:%M}"
            )
            if rule["running_since"] is not None:
                since = f"a run of {rule['running_since']:%Y-%m-%d %H:%M} is not finished"
            out.print(f"    next {rule['next_at']:%Y-%m-%d %H:%M} {found['time_zone']}, {since}")
