"""Root of the command line: registers the commands, and imports each command's module when it runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from caliber.cli.failures import PipeClosed, guarded
from caliber.cli.settings import DISTRIBUTION, PROGRAM, Settings, acting_option, shared_options
from caliber.model.hints import did_you_mean

# Name -> module:command, and the line in the help. Written here so that help imports nothing.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("caliber.cli.setup:init", "Write a short, commented configuration."),
    "check": ("caliber.cli.setup:check", "Check a configuration and sum it up."),
    "fmt": ("caliber.cli.fmt:fmt", "Lay out .caliber files."),
    "create": ("caliber.cli.setup:create", "Create the store that the configuration names."),
    "demo": ("caliber.cli.demo.command:demo", "Import a repository or folder, and show its memory."),
    "ingest": ("caliber.cli.memory.ingest:ingest", "Remember a git history, a conversation or files."),
    "context": ("caliber.cli.memory.query:context", "Assemble the context window of a trajectory."),
    "plan": ("caliber.cli.memory.plan:plan", "Show the records that each rule selects."),
    "search": ("caliber.cli.memory.query:search", "Search memory."),
    "explain": ("caliber.cli.memory.query:explain", "Explain a window's contents and omissions."),
    "diff": ("caliber.cli.memory.plan:diff", "Compare two windows: what changed, and why."),
    "replay": ("caliber.cli.memory.query:replay", "Assemble a recorded window again and compare."),
    "eval": ("caliber.cli.evaluating.command:evaluate", "Measure search on questions of yours, and explain misses."),
    "trace": ("caliber.cli.observing.trace:trace", "Tell the story of a task: turns, windows, jobs, durations."),
    "top": ("caliber.cli.observing.top:top", "Watch operations, latencies, memory and jobs."),
    "forget": ("caliber.cli.memory.forget:forget", "Erase a person or thing from everything that is kept."),
    "jobs": ("caliber.cli.memory.jobs:jobs", "List, retry, cancel and run work that is done behind calls."),
    "access": ("caliber.cli.memory.access:access", "Grant, revoke and list rights on records of others."),
    "agents": ("caliber.cli.team.agents:agents", "List agents, change their status, fail and retire them."),
    "locks": ("caliber.cli.team.locks:locks", "List locks between agents, and break one."),
    "messages": ("caliber.cli.team.messages:messages", "List messages between agents, and deliver them again."),
    "todos": ("caliber.cli.team.todos:todos", "List to-dos that agents share, assign, release and cancel them."),
    "blocks": ("caliber.cli.team.blocks:blocks", "List, show and edit memory blocks, and take back changes."),
    "conflicts": ("caliber.cli.memory.conflicts:conflicts", "List and resolve contradictions between records."),
    "policies": ("caliber.cli.memory.jobs:policies", "List policies and their next run times."),
    "stats": ("caliber.cli.observing.top:stats", "Show the contents of the store and their sizes."),
    "doctor": ("caliber.cli.doctor:doctor", "Examine the installation, the configuration and the store."),
    "export": ("caliber.cli.memory.bulk:export", "Write records to Parquet files."),
    "import": ("caliber.cli.memory.bulk:import_", "Load records from Parquet files."),
    "db": ("caliber.cli.db.command:db", "Look after the store: check, back up, restore, migrate."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported on first use."""

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            hint = did_you_mean(args[0], self.list_commands(ctx), mark="'")
            unknown = f"there is no command {args[0]!r}"
            raise click.UsageError(f"{unknown}; {hint}" if hint else unknown, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        rows = [(name, self.lazy[name][1]) for name in self.lazy]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Root(LazyGroup):
    """The root command: every failure ends in one message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click would end the process with code 1 here, as if something had gone wrong.
            raise PipeClosed from error

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        settings = Settings()
        _never_fail_to_print()

        def run() -> Any:
            return super(Root, self).main(
                arguments, prog_name, complete_var, standalone_mode=False, obj=settings, **extra
            )

        code = guarded(run, settings, json_asked="--json" in arguments)
        if standalone_mode:
            sys.exit(code)
        return code


def _never_fail_to_print() -> None:
    """Let characters that the terminal cannot show become question marks instead of errors."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


@click.group(
    cls=Root,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 a problem was found or something failed, 2 a mistake in the call.",
)
@click.version_option(None, "-V", "--version", package_name=DISTRIBUTION, prog_name=PROGRAM)
@shared_options
@acting_option
def cli() -> None:
    """CALIBER, the memory engine for latency-critical agents.

    \b
    Start here:
      caliber demo              see it remember this repository
      caliber init              write caliber.toml
      caliber create            create its store
      caliber ingest git .      remember this repository
      caliber search "why..."   ask
    """
