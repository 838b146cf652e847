"""Confirmation of commands that change or erase what others rely on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from caliber.cli.failures import UsageError

if TYPE_CHECKING:
    from caliber.cli.output import Output
    from caliber.cli.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


def yes_option(command: F) -> F:
    """Add --yes, which answers the question that ``confirm`` asks."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(command)


def confirm(settings: Settings, yes: bool, effect: str, question: str) -> None:
    """Ask before a change, unless ``yes``. Raises: UsageError where no terminal can answer, click.Abort for a no."""
    if not yes:
        require_terminal(settings.out, effect)
        click.confirm(question, abort=True)


def require_terminal(out: Output, effect: str, advice: str = "confirm with --yes") -> None:
    """Raise UsageError where no terminal can answer a question."""
    if out.json or not sys.stdin.isatty():
        raise UsageError(f"{effect}, and no terminal can confirm it", advice)
