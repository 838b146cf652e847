"""Commands ``jobs``: list, retry, cancel and run background jobs; and ``policies``, which make some of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from caliber.cli.output import Output, plural
from caliber.cli.settings import Settings, with_store
from caliber.model.jobs import Job, JobState

if TYPE_CHECKING:
    from caliber.cli.output import Output
    from caliber.config import CaliberConfig
    from caliber.jobs.handlers import ScheduledRule


@click.group()
def jobs() -> None:
    """List, retry, cancel and run jobs: work that is done behind calls."""


@jobs.command("list")
@click.option("--state", type=click.Choice([state.value for state in JobState]), help="Only jobs in this state.")
@click.option("--kind", help="Only jobs of this kind, such as trigger:turn.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The most jobs to list.")
@with_store
def list_(settings: Settings, state: str | None, kind: str | None, limit: int) -> None:
    """List jobs that wait or run, by kind and time; then those that ended, the newest first."""
    with settings.memory(note=False) as memory:
        found = [_fields(job) for job in memory.jobs.list(state=state, kind=kind, limit=limit)]
    settings.out.result({"jobs": found}, lambda: _print(settings.out, found))


@jobs.command()
@click.argument("job_id")
@with_store
def retry(settings: Settings, job_id: str) -> None:
    """Let a failed or cancelled job wait again."""
    with settings.memory(note=False) as memory:
        job = _fields(memory.jobs.retry(job_id))
    settings.out.result({"job": job}, lambda: _print(settings.out, [job]))


@jobs.command()
@click.argument("job_id")
@with_store
def cancel(settings: Settings, job_id: str) -> None:
    """End a job that waits or runs; it can be retried later."""
    with settings.memory(note=False) as memory:
        job = _fields(memory.jobs.cancel(job_id))
    settings.out.result({"job": job}, lambda: _print(settings.out, [job]))


@jobs.command()
@with_store
def run(settings: Settings) -> None:
    """Run due jobs, unless other processes run them."""
    with settings.memory(note=False) as memory:
        done = memory.jobs.run_due()
    settings.out.result({"actions_done": done}, lambda: settings.out.print(f"ran {plural(done, 'action')}"))


def _fields(job: Job) -> dict[str, Any]:
    fields = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    return {"job_id": fields.pop("job_id"), "kind": fields.pop("kind"), "state": job.state.value, **fields}


def _print(out: Output, found: list[dict[str, Any]]) -> None:
    if not found:
        out.print("there are no jobs")
    for job in found:
        out.print(f"{job['job_id']}  {job['state']:<9}  {job['kind']}")
        if job["ended_at"] is not None:
            when = f"ended {job['ended_at']:%Y-%m-%d %H:%M:%S}"
        else:
            when = f"due {job['due_at']:%Y-%m-%d %H:%M:%S}"
        progress = "" if job["total"] is None else f", {job['done']:,} of {job['total']:,}"
        attempts = f", {plural(job['attempts'], 'attempt')}" if job["attempts"] else ""
        out.print(f"    {when}{attempts}{progress}")
        if job["error"] is not None:
            out.print(f"    {job['error']}")


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
    settings.out.result(found, lambda: _print_rules(settings.out, found))


def _rules(config: CaliberConfig, scheduled: list[ScheduledRule]) -> list[dict[str, Any]]:
    due = {(rule.policy, rule.rule): dataclasses.asdict(rule) for rule in scheduled}
    out = []
    for policy in config.policies:
        for place, rule in enumerate(policy.rules):
            job = due.get((policy.name, place), {"policy": policy.name, "rule": place})
            out.append({**job, "on": rule.on.value, "actions": [action.shown for action in rule.actions]})
    return out


def _print_rules(out: Output, found: dict[str, Any]) -> None:
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
