"""Shared options of all commands (configuration file, tenant, output format), and opening of the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from caliber.cli.failures import UsageError
from caliber.model.errors import Unavailable

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber
    from caliber.cli.output import Output
    from caliber.config import CaliberConfig
    from caliber.dsl.checking import Checked

CONFIG_VARIABLE: Final = "CALIBER_CONFIG"
PROGRAM: Final = "caliber"
DEFAULT_CONFIG: Final = f"{PROGRAM}.toml"
DEFAULT_STORE: Final = f"{PROGRAM}.db"
DISTRIBUTION: Final = "caliber-memory"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Settings:
    """The shared options of one run."""

    config: Path | None = None
    json: bool = False
    debug: bool = False
    tenant: str | None = None
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
        config = self.load_all()
        if self.tenant is None:
            return config
        from caliber.api.tenants import tenant_config

        return tenant_config(config, self.tenant)

    @contextmanager
    def memory(self, *, note: bool = True) -> Iterator[Caliber]:
        """Open the configured store for as long as the block runs.

        Unless ``note`` is false, print a note while re-embedding with another model is in progress.
        """
        from caliber.admin.spaces import in_short
        from caliber.api.opening import open as open_store
        from caliber.api.tenants import MISSING

        config = self.load()
        try:
            opened = open_store(config)
        except Unavailable as error:
            if config.tenancy is None or error.context.get("reason") != MISSING:
                raise
            advice = "name a tenant with --tenant NAME (`caliber db tenants` lists them), or run `caliber create`"
            raise UsageError(
                f"no tenant is named, and the store without one is missing: {error.message}", advice
            ) from error
        with opened as memory:
            state = in_short(memory._engine) if note else None
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
    """Add the shared options and hand the command its ``Settings`` as first argument."""
    return click.pass_obj(shared_options(command))  # type: ignore[return-value]
