"""Commands ``init``, ``check`` and ``create``: write a configuration, validate it, create the store."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from caliber.cli.failures import DONE, PROBLEM, UsageError
from caliber.cli.settings import DEFAULT_CONFIG, DEFAULT_STORE, Settings, with_settings, with_whole_store

if TYPE_CHECKING:
    from caliber.config import CaliberConfig
    from caliber.config.faults import ConfigWarning
    from caliber.config.manual.render import Short

PROFILES = ("reference", "coding-agent", "chat-companion", "ops-agent", "sources")
EMBEDDINGS = ("static", "minilm", "openai", "voyage", "ollama", "none")
SUMMARIES = ("extractive", "openai", "anthropic", "ollama", "none")


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file so that it is there in full or not at all."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        # It names the draft, which says nothing to the one who asked for the file.
        raise OSError(error.errno, error.strerror, str(path)) from error
    draft = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        # mkstemp's 0600 would surprise in a repository; a configuration holds no secrets.
        draft.chmod(mode)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def render(config: CaliberConfig, path: Path, reasons: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the text of a configuration file that states every knob, by its suffix. Raises: UsageError."""
    suffix = _suffix(path)
    if suffix == ".caliber":
        from caliber.dsl.writing import render_caliber

        return render_caliber(config, reasons)
    from caliber.config.manual.render import render_json, render_toml

    return render_json(config) if suffix == ".json" else render_toml(config, reasons)


def render_short(short: Short, path: Path) -> str:
    """Return the text of a configuration file based on a profile, by its suffix. Raises: UsageError."""
    suffix = _suffix(path)
    if suffix == ".caliber":
        from caliber.dsl.writing import short_caliber

        return short_caliber(short)
    from caliber.config.manual.render import short_json, short_toml

    return short_json(short) if suffix == ".json" else short_toml(short)


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (".json", ".toml", ".caliber"):
        raise UsageError(f"{path.name}: a configuration ends in .caliber, .toml or .json", "choose another --path")
    return suffix


def in_command(path: Path) -> str:
    """Return the option that later commands need to find this configuration; empty in the usual place."""
    return "" if path == Path(DEFAULT_CONFIG) else f" -c {path}"


@click.command()
@click.option(
    "--profile", type=click.Choice(PROFILES), default="reference", show_default=True, help="Profile to start from."
)
@click.option("--path", type=click.Path(path_type=Path), help=f"File to write.  [default: {DEFAULT_CONFIG}]")
@click.option("--store", default=DEFAULT_STORE, show_default=True, help="The store's file, relative to --path.")
@click.option(
    "--embedding",
    type=click.Choice(EMBEDDINGS),
    help="Provider of embeddings.  [default: static where it is installed, else none]",
)
@click.option(
    "--summaries", type=click.Choice(SUMMARIES), default="extractive", show_default=True, help="Provider of summaries."
)
@click.option(
    "--from",
    "part",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write this file out in full: missing knobs come from its base, else from the profile.",
)
@click.option("--tenants", is_flag=True, help="Many stores, one for each tenant, opened by name.")
@click.option("--full", is_flag=True, help="Write every knob, with its meaning and range.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@with_settings
def init(
    settings: Settings,
    profile: str,
    path: Path | None,
    store: str,
    embedding: str | None,
    summaries: str,
    part: Path | None,
    tenants: bool,
    full: bool,
    force: bool,
) -> None:
    """Write a short, commented configuration.

    The file names a profile as its base and states the knobs that people change first; the profile supplies the
    others. With --full every knob is written. Nothing but the file is created.

    With --from, the knobs of FILE and of its base are written out in full.
    """
    from caliber.config import StorageConfig, profiles
    from caliber.config.manual.render import Short
    from caliber.config.profiles import services
    from caliber.config.profiles.fitting import MAIN

    target = path or settings.config or Path(DEFAULT_CONFIG)
    if target.is_dir():
        raise UsageError(f"{target} is a folder", f"name a file in it: --path {target / DEFAULT_CONFIG}")
    if target.exists() and not force:
        raise UsageError(f"{target} exists already", "keep it, choose another --path, or overwrite it with --force")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"the folder {target.absolute().parent} does not exist", "create it first")
    if part is not None:
        config, profile = _completed(part, profile)
        store = config.storage.path if isinstance(config.storage, StorageConfig) else config.storage.shown
    else:
        tenancy = {"tenancy": {"new_tenants": MAIN}} if tenants else {}
        config = profiles.PROFILES[profile](store, **services.chosen(embedding, summaries), **tenancy)
    if full or part is not None:
        text = render(config, target, profiles.reasons(profile, config))
    else:
        embedder = embedding or ("static" if config.embedding_provider is not None else "none")
        text = render_short(Short(profile, store, embedder, summaries, config), target)
    write_whole(target, text)
    embeds = config.embedding_provider is not None
    option = in_command(target)
    both = (config.embedding_provider, config.summarization_provider)
    keys = sorted({provider.api_key.name for provider in both if provider is not None and provider.api_key is not None})
    document = {
        "path": str(target.absolute()),
        "profile": profile,
        "store": store,
        "config_hash": config.hash.hex(),
        "embedding": config.embedding_provider.model if config.embedding_provider else None,
        "keys": keys,
        "next": [
            f"caliber db tenant create NAME{option}" if tenants else f"caliber create{option}",
            f"caliber {_first_import(profile)}{option}",
        ],
    }

    def human() -> None:
        out = settings.out
        out.print(f"wrote {target} (profile {profile}, store {store})")
        if not embeds and embedding is None and part is None:
            out.print("without an embedding provider: nothing is found by meaning until the extra 'embed' is installed")
            out.print("  pip install 'caliber-memory[embed]' && caliber init --force")
        for name in keys:
            out.print(f"it reads a key from the environment: export {name}=...")
        if tenants:
            out.print(f"next: caliber db tenant create NAME{option}")
            return
        out.print("next:")
        out.print(f"  caliber create{option}    create the store")
        out.print(f"  caliber {_first_import(profile)}{option}    import what there is")

    settings.out.result(document, human)


def _first_import(profile: str | None) -> str:
    """Return the command that fills a store of a profile first."""
    return "ingest chat FILE.jsonl --for NAME" if profile == "chat-companion" else "ingest git ."


def _completed(part: Path, profile: str) -> tuple[CaliberConfig, str]:
    """Return the configuration of a file on its base, else on a profile, and the name of that profile.

    Raises: UsageError for an option that the file decides.
    """
    from click.core import ParameterSource

    from caliber.dsl.loading import check as check_file
    from caliber.model.errors import MultipleErrors, lacks_a_base

    context = click.get_current_context()
    for name in ("store", "embedding", "summaries", "tenants"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name} does not go with --from: {part.name} decides it", f"say it in {part.name}")
    chosen = context.get_parameter_source("profile") is ParameterSource.COMMANDLINE
    try:
        checked = check_file(part, base=profile if chosen else None)
    except MultipleErrors as error:
        if chosen or not any(map(lacks_a_base, error.errors)):
            raise
        checked = check_file(part, base=profile)
    return checked.config, profile if checked.origin is None else checked.origin.base


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--explain", "key", metavar="KEY", help="Explain a knob, such as search.boosts.exact, instead.")
@click.option("--base", type=click.Choice(PROFILES), help="Take missing knobs from a profile, to check a part of one.")
@click.option("--strict", is_flag=True, help="Exit code 1 when there are warnings, too.")
@with_settings
def check(settings: Settings, file: Path | None, key: str | None, base: str | None, strict: bool) -> int:
    """Check a configuration: list every fault, or print a summary; and list warnings.

    Exit code 1 when it has faults. With --explain: what a knob or section means, accepts, has here and in each
    profile, and which modules it acts in.
    """
    from caliber.model.errors import MultipleErrors

    if file is not None:
        settings.config = file
    if key is not None:
        from caliber.cli.knobs import explain

        return explain(settings, key)
    path = settings.config_path()
    if not path.exists():
        raise UsageError(
            f"{path}: there is no such file", "write one with `caliber init`, or name another with --config"
        )
    try:
        config, warnings, origin = settings.check(base)
    except MultipleErrors as error:
        faults = [
            {"kind": fault.kind, "message": str(fault), "field": fault.context.get("field")}
            for fault in error.context["errors"]
        ]
        settings.out.result(
            {"path": str(path), "ok": False, "faults": faults}, lambda: _print_faults(settings, path, faults)
        )
        return PROBLEM
    doubtful = [{**dataclasses.asdict(warning), "message": str(warning)} for warning in warnings]
    refused = _refusals(config)
    if refused:
        document = {"path": str(path), "ok": False, "faults": refused, "warnings": doubtful}
        settings.out.result(document, lambda: _print_faults(settings, path, refused, warnings))
        return PROBLEM
    summary = {
        **sum_up(config),
        "commands_act_for": settings.principal(config).label,
        "base": None if origin is None else origin.base,
        "stated": [] if origin is None else list(origin.stated),
    }
    settings.out.result(
        {"path": str(path), "ok": True, "faults": [], "warnings": doubtful, **summary},
        lambda: _print_summary(settings, path, summary, warnings),
    )
    return PROBLEM if strict and warnings else DONE


def _refusals(config: CaliberConfig) -> list[dict[str, Any]]:
    """Return the reasons outside the file that would keep every command from opening the store."""
    from caliber.engine.refusals import provider_refusals, refusals

    return [
        {"kind": fault.kind, "message": str(fault), "field": fault.context.get("field")}
        for fault in (*refusals(config), *provider_refusals(config))
    ]


def _print_warnings(settings: Settings, warnings: Sequence[ConfigWarning]) -> None:
    for warning in warnings:
        settings.out.warn(str(warning))


def _print_faults(
    settings: Settings, path: Path, faults: list[dict[str, Any]], warnings: Sequence[ConfigWarning] = ()
) -> None:
    from caliber.model.errors import BASE_HINT

    _print_warnings(settings, warnings)
    settings.out.print(f"{path}: {len(faults)} fault{'s' if len(faults) != 1 else ''}")
    for fault in faults:
        settings.out.print(f"  - {fault['message']}")
    if any(fault["kind"] == "missing_required" and "." not in str(fault["field"]) for fault in faults):
        settings.out.print(BASE_HINT)
    settings.out.print(
        "correct them and run `caliber check` again; `caliber init --path FILE` writes a sound one to compare"
    )


def sum_up(config: CaliberConfig) -> dict[str, Any]:
    """Return the choices of a configuration that decide how it behaves."""
    store = config.storage.shown
    embedding, summarization = config.embedding_provider, config.summarization_provider
    return {
        "adapter": config.storage.adapter,
        "store": store,
        "store_exists": config.storage.adapter != "sqlite" or _is_there(store),
        "tenants": config.tenancy is not None,
        "durability": config.storage.durability.value,
        "token_budget": config.token_budget,
        "estimator": config.tokens.estimator,
        "embedding": None if embedding is None else f"{embedding.provider_type} {embedding.model}",
        "summarization": None if summarization is None else f"{summarization.provider_type} {summarization.model}",
        "principal": config.principal.to_principal().label,
        "administers": config.principal.admin,
        "policies": [policy.name for policy in config.policies],
        "memories": [memory.name for memory in config.memories],
        "injection_rules": [rule.memory if rule.name is None else rule.name for rule in config.injection_rules],
        "config_hash": config.hash.hex(),
    }


def _is_there(store: str) -> bool:
    return store == ":memory:" or Path(store.removeprefix("file:")).exists()


def _print_summary(
    settings: Settings, path: Path, summary: dict[str, Any], warnings: Sequence[ConfigWarning] = ()
) -> None:
    say = settings.out.print
    _print_warnings(settings, warnings)
    doubtful = f", with {len(warnings)} warning{'s' if len(warnings) != 1 else ''}" if warnings else ""
    say(f"{path} is sound{doubtful}")
    advice = "name a tenant with --tenant" if summary["tenants"] else "run `caliber create`"
    missing = "" if summary["store_exists"] else f"  (not created yet: {advice})"
    say(f"  store          {summary['adapter']} {summary['store']}{missing}")
    say(f"  durability     {summary['durability']}")
    say(f"  token budget   {summary['token_budget']:,} (estimator {summary['estimator']})")
    say(f"  embedding      {summary['embedding'] or 'none: nothing is found by meaning'}")
    say(f"  summarization  {summary['summarization'] or 'none: closed scopes get no summary'}")
    administers = ", an administrator" if summary["administers"] else ""
    say(f"  principal      {summary['principal']}{administers}  (commands act for {summary['commands_act_for']})")
    say(f"  policies       {', '.join(summary['policies']) or 'none'}")
    say(f"  memories       {', '.join(summary['memories']) or 'the built-in ones'}")
    say(f"  injection      {', '.join(summary['injection_rules']) or 'as assembly says'}")
    if summary["base"] is not None:
        say(f"  base           {summary['base']}; this file sets {', '.join(summary['stated']) or 'nothing'}")
    say(f"  hash           {summary['config_hash'][:16]}")


@click.command()
@click.option("--exist-ok", is_flag=True, help="An existing store is no mistake.")
@with_whole_store
def create(settings: Settings, exist_ok: bool) -> None:
    """Create the store that the configuration names."""
    from caliber.api.opening import create as create_store
    from caliber.model.errors import Conflict

    if settings.tenant is not None:
        raise UsageError("a tenant is created by `caliber db tenant create NAME`", "it says where, with --source")
    path = settings.config_path()
    config, _, origin = settings.check(None)
    store = config.storage.shown
    if store == ":memory:":
        raise UsageError("a store in memory is not created: opening it makes it", "name a file in storage.path")
    in_file = config.storage.adapter == "sqlite"
    existed = in_file and Path(store).exists()
    try:
        create_store(config, exist_ok=exist_ok)
    except Conflict as error:
        if not in_file:
            raise UsageError(
                f"{store} holds a store already", "if it is your store, it is ready; else change storage.schema_name"
            ) from error
        if Path(store).is_dir():
            raise UsageError(f"{store} is a folder", "storage.path must name a file in it") from error
        raise UsageError(
            f"there is a file at {store} already", "if it is your store, it is ready; else change storage.path"
        ) from error
    option, first = in_command(path), _first_import(None if origin is None else origin.base)

    def human() -> None:
        settings.out.print(f"{'kept' if existed else 'created'} {store}")
        settings.out.print(f"next: caliber {first}{option}, or open it in Python: caliber.open({str(path)!r})")

    settings.out.result({"store": store, "created": not existed}, human)
