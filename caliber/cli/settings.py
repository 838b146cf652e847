"""Shared options of commands (configuration, tenant, principal, format, confirmation), and opening of the store."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from caliber.cli.failures import UsageError
from caliber.model.errors import InputError, Unavailable

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber
    from caliber.cli.output import Output
    from caliber.config import CaliberConfig
    from caliber.dsl.checking import Checked
    from caliber.model.access import Principal


CONFIG_VARIABLE: Final = "CALIBER_CONFIG"
PROGRAM: Final = "caliber"
DEFAULT_CONFIG: Final = f"{PROGRAM}.toml"
DEFAULT_STORE: Final = f"{PROGRAM}.db"
DISTRIBUTION: Final = "caliber-memory"
_PRINCIPALS: Final = "name one: user:ana@example.com, agent:planner, app or admin"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Settings:
    """The shared options of one run."""

    config: Path | None = None
    json: bool = False
    debug: bool = False
    tenant: str | None = None
    acts_as: Principal | None = None
    """The principal that --as names."""
    _output: Output | None = field(default=None, repr=False)

    @property
    def out(self) -> Output:
        """The output of this run."""
        if self._output is None:
            from caliber.cli.output import Output

            self._output = Output(json=self.json)
        return self._output

    def config_path(self) -> Path:
        """Return the configuration file: --config, then CALIBER_CONFIG, then ./caliber.toml.

        Raises: UsageError when there is none.
        """
        if self.config is not None:
            return self.config
        named = os.environ.get(CONFIG_VARIABLE)
        if named:
            return Path(named)
        here = Path(DEFAULT_CONFIG)
        if here.exists():
            return here
        raise UsageError(
            f"no configuration: there is no {DEFAULT_CONFIG} in this folder",
            "write one with `caliber init`, or name one with --config FILE or the variable CALIBER_CONFIG",
        )

    def load_all(self) -> CaliberConfig:
        """Return the configuration as the file has it. Raises: MultipleErrors with every fault, UsageError."""
        from caliber.dsl.loading import load_config

        return load_config(self.config_path())

    def check(self, base: str | None) -> Checked:
        """Return the configuration as ``load`` does, and the warnings; ``base`` is a profile that a file stands on."""
        from caliber.dsl.loading import check

        checked = check(self.config_path(), base=base)
        if self.tenant is None:
            return checked
        from caliber.api.tenants import tenant_config

        return checked._replace(config=tenant_config(checked.config, self.tenant))

    def load(self) -> CaliberConfig:
        """Return the configuration, of the tenant that was named if one was. Raises: as ``load_all``, NotFound."""
        return self.check(None).config

    def principal(self, config: CaliberConfig) -> Principal:
        """Return the principal that a command acts for: that of --as, else the configured one.

        In place of the application, which serves users, an administrator acts: whoever runs a command may read the
        store anyway.
        """
        if self.acts_as is not None:
            return self.acts_as
        from caliber.model.access import Principal

        stated = config.principal.to_principal()
        return Principal.admin() if stated.is_application else stated

    @contextmanager
    def memory(self, *, note: bool = True, overrides: Mapping[str, Any] | None = None) -> Iterator[Caliber]:
        """Open the configured store for as long as the block runs, with some knobs set otherwise.

        Unless ``note`` is false, print a note while re-embedding with another model is in progress.
        """
        from caliber.api.opening import open as open_store
        from caliber.api.tenants import MISSING

        config = self.load()
        if overrides is not None:
            config = config.with_overrides(**overrides)
        try:
            opened = open_store(config, principal=self.principal(config))
        except Unavailable as error:
            if config.tenancy is None or error.context.get("reason") != MISSING:
                raise
            advice = "name a tenant with --tenant NAME (`caliber db tenants` lists them), or run `caliber create`"
            raise UsageError(
                f"no tenant is named, and the store without one is missing: {error.message}", advice
            ) from error
        with opened as memory:
            state = memory.admin.inspect.searched_space() if note else None
            if state is not None and state["filling"] is not None:
                self.out.note(changing_model(state))
            yield memory


def changing_model(state: Mapping[str, Any]) -> str:
    """Return the note to show while the vectors of another model are being made."""
    meanwhile = (
        f"until it is complete, questions are answered with {state['in_use']}"
        if state["answering"]
        else f"until it is complete, nothing is found by meaning: {state['in_use']} is searched, and there is no "
        "[previous_embedding_provider] of its model to embed questions"
    )
    return f"note: {state['filling']} is being filled; {meanwhile}; `caliber db reembed` completes it now"


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, _: click.Parameter, value: Any) -> None:
        if value:
            setattr(context.ensure_object(Settings), name, value)

    return callback


def shared_options(command: F) -> F:
    """Add --config, --tenant, --json and --debug; they work before and after the name of a command."""
    for option in (
        click.option(
            "--debug", is_flag=True, expose_value=False, callback=_set("debug"), help="Show the traceback of an error."
        ),
        click.option(
            "--json", is_flag=True, expose_value=False, callback=_set("json"), help="Print one JSON document on stdout."
        ),
        click.option(
            "-t",
            "--tenant",
            expose_value=False,
            callback=_set("tenant"),
            metavar="NAME",
            help="A tenant, instead of the configuration's own store.",
        ),
        click.option(
            "-c",
            "--config",
            type=click.Path(path_type=Path),
            expose_value=False,
            callback=_set("config"),
            metavar="FILE",
            help=f"Configuration; else ${CONFIG_VARIABLE}, else ./{DEFAULT_CONFIG}.",
        ),
    ):
        command = option(command)
    return command


def with_settings(command: F) -> F:
    """Add the shared options, for a command without a store; it takes its ``Settings`` as first argument."""

    @functools.wraps(command)
    def alone(settings: Settings, *args: Any, **options: Any) -> Any:
        if settings.acts_as is not None:
            raise UsageError("this command acts for no principal", "leave --as out")
        return command(settings, *args, **options)

    return click.pass_obj(shared_options(alone))  # type: ignore[return-value]


def with_store(command: F) -> F:
    """Add the shared options and --as, for a command that opens ``Settings.memory``."""
    return click.pass_obj(shared_options(acting_option(command)))  # type: ignore[return-value]


def with_whole_store(command: F) -> F:
    """Add the shared options and --as, for a command that works on a store as a whole: for an administrator only."""

    @functools.wraps(command)
    def administering(settings: Settings, *args: Any, **options: Any) -> Any:
        if settings.acts_as is not None:
            settings.acts_as.require_admin("run", f"`{click.get_current_context().command_path}`")
        return command(settings, *args, **options)

    return with_store(administering)  # type: ignore[return-value]


def acting_option(command: F) -> F:
    """Add --as, the principal that a command acts for."""
    return click.option(
        "--as",
        expose_value=False,
        callback=_set_principal,
        metavar="KIND:NAME",
        help="Act for user:NAME, agent:NAME, app or admin; else for [principal], as admin in place of the application.",
    )(command)


def _set_principal(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Settings).acts_as = as_principal(value)


def as_principal(text: str) -> Principal:
    """Return the principal that ``KIND:NAME``, ``app`` or ``admin`` names. Raises: UsageError."""
    from caliber.model import arguments
    from caliber.model.access import Principal

    kind, colon, name = text.partition(":")
    named: dict[str, Callable[[str], Principal]] = {"user": Principal.user, "agent": Principal.agent}
    alone: dict[str, Callable[..., Principal]] = {"app": Principal.application, "admin": Principal.admin}
    try:
        if kind in alone and not colon:
            return alone[kind]()
        if kind in named or kind in alone:
            return arguments.as_principal((named | alone)[kind](name))
    except InputError as error:
        raise UsageError(f"--as {text!r}: {error}", _PRINCIPALS) from None
    raise UsageError(f"--as {text!r}: unknown principal", _PRINCIPALS)


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
