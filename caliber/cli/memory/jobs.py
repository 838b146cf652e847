"""Commands ``jobs``: list, retry, cancel and run background jobs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from caliber.cli.output import plural
from caliber.cli.settings import Settings, with_store
from caliber.model.jobs import JobState

if TYPE_CHECKING:
    from caliber.cli.output import Output
    from caliber.model.jobs import Job


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
