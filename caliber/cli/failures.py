"""Failures of commands: class ``UsageError``, exit codes, and exceptions turned into a message and a remedy."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final, Protocol

import click

from caliber.importing.errors import SourceError
from caliber.model.errors import (
    CaliberError,
    ConfigError,
    Conflict,
    InternalError,
    LockAcquisitionFailed,
    NotFound,
    NotRegistered,
    PermissionDenied,
    SchemaMismatch,
    Unavailable,
    ValidationError,
)

DONE: Final = 0
PROBLEM: Final = 1
MISTAKE: Final = 2
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141


class UsageError(click.ClickException):
    """A mistake in the call: a message and a remedy."""

    exit_code = MISTAKE

    def __init__(self, message: str, hint: str = "", *, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.details = details or {}


class Problem(UsageError):
    """A fault in data that was read or examined."""

    exit_code = PROBLEM


class PipeClosed(Exception):
    """Raised when the reader of our output closed the pipe; nothing went wrong."""


_USERS: Final = (ConfigError, ValidationError, NotFound, NotRegistered, Conflict, SchemaMismatch, PermissionDenied)


_OPTIONS: Final = {
    "pass user= to": "add --as user:NAME to",
    "pass even_if_shared=True": "pass --even-if-shared",
    "even_if_shared=True": "--even-if-shared",
    "kinds: ": "--kind: ",
    "max_tokens=": "--max-tokens ",
}
"""Parameters of calls in messages, and the options that stand for them here."""


class Asked(Protocol):
    """The format of failure messages; known only once the command has read its options."""

    json: bool
    debug: bool


def guarded(run: Callable[[], Any], settings: Asked, *, json_asked: bool) -> int:
    """Run a command and return its exit code; every failure becomes a message."""
    try:
        code = run()
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted; what had been acknowledged is stored")
        return INTERRUPTED
    except (PipeClosed, BrokenPipeError):
        _leave_pipe()
        return PIPE_CLOSED
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click 8.2 and newer
            click.echo(error.format_message(), err=True)
            return MISTAKE
        return _report(error, as_json=settings.json or json_asked)
    except Exception as error:
        if settings.debug:
            traceback.print_exc()
        return _report(error, as_json=settings.json or json_asked)
    return code if isinstance(code, int) else DONE


def _leave_pipe() -> None:
    # Python flushes stdout once more at exit; it must not meet the closed pipe again.
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return


def _report(error: Exception, *, as_json: bool) -> int:
    code, message, hint, details = describe(error)
    if as_json:
        from caliber.cli.output import write_json

        write_json({"error": {"message": message, "hint": hint or None, "exit_code": code, **details}})
    _say(f"error: {message}")
    if hint:
        _say(f"       {hint}")
    return code


def _say(text: str) -> None:
    from caliber.cli.output import printable

    click.echo(printable(text), err=True)


def describe(error: Exception) -> tuple[int, str, str, dict[str, Any]]:
    """Return exit code, message, remedy, and details for programs."""
    if isinstance(error, UsageError):
        return error.exit_code, error.message, error.hint, error.details
    if isinstance(error, click.UsageError):
        hint = "" if error.ctx is None else f"see `{error.ctx.command_path} --help`"
        return MISTAKE, error.format_message(), hint, {"code": "CALIBER_CLI", "kind": "usage"}
    if isinstance(error, click.ClickException):
        return MISTAKE, error.format_message(), "", {"code": "CALIBER_CLI", "kind": "usage"}
    if isinstance(error, SourceError):
        return PROBLEM if error.in_data else MISTAKE, error.message, error.hint, {}
    if isinstance(error, CaliberError):
        details: dict[str, Any] = {"code": error.code, "kind": error.kind, "retryable": error.retryable}
        faults = error.context.get("errors")
        if isinstance(error, ConfigError) and isinstance(faults, list):
            details["faults"] = [str(fault) for fault in faults]
        message = details["faults"][0] if len(details.get("faults", ())) == 1 else str(error)
        for parameter, option in _OPTIONS.items():
            message = message.replace(parameter, option)
        return exit_code(error), message, advice(error), details
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename else ""
        return PROBLEM, f"{named}{error.strerror or error}", "", {"code": "CALIBER_CLI", "kind": "os"}
    text = f"{type(error).__name__}: {error}"
    hint = "this is a fault of CALIBER; please report it with the output of the same command and --debug"
    return PROBLEM, text, hint, {"code": "CALIBER_INTERNAL", "kind": type(error).__name__}


def exit_code(error: CaliberError) -> int:
    """Return 2 for a fault that the user can correct in the call or the configuration, else 1."""
    if isinstance(error, _USERS) or (isinstance(error, Unavailable) and error.context.get("reason") == "missing"):
        return MISTAKE
    return PROBLEM


LISTED: Final = {
    "trajectories": "trajectories", "scopes": "scopes", "notes": "notes", "artifacts": "artifacts",
    "context_windows": "windows", "events": "events",
}  # fmt: skip
"""Kinds of tables that ``caliber db list`` shows."""
_SHOWN_BY: Final = {
    "embedding_spaces": "db spaces",
    "agents": "agents list",
    "agent_messages": "messages list",
    "todos": "todos list",
}


def advice(error: CaliberError) -> str:
    """Return the next step, where the message does not name it already."""
    if isinstance(error, NotFound):
        from caliber.schema.relations import BY_NAME

        relation = BY_NAME.get(str(error.context.get("entity_type", "")))
        if relation is not None and relation.plural in LISTED:
            return f"`caliber db list {LISTED[relation.plural]}` shows what there is"
        if relation is not None and relation.plural in _SHOWN_BY:
            return f"`caliber {_SHOWN_BY[relation.plural]}` shows what there is"
    if isinstance(error, NotRegistered):
        return "`caliber agents list` shows those that are"
    if isinstance(error, PermissionDenied):
        return "an administrator may: add --as admin"
    if isinstance(error, LockAcquisitionFailed):
        return "another import of the same source is running; wait for it and try again"
    if isinstance(error, InternalError):
        return "this is a fault of CALIBER; please report it with the output of the same command and --debug"
    if isinstance(error, ConfigError) and len(error.context.get("errors", ())) > 1:
        return "`caliber check` lists the same faults; `caliber init --force` writes a fresh configuration"
    if error.retryable and "again" not in str(error):
        return "this may pass; try again"
    return ""
