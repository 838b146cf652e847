"""Command ``doctor``: checks the installation and configuration, and prints a remedy for each problem."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from caliber.cli.failures import DONE, PROBLEM, UsageError, describe
from caliber.cli.output import plural
from caliber.cli.settings import DISTRIBUTION, Settings, with_whole_store
from caliber.model.errors import Unavailable
from caliber.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from caliber.model.access import Principal

OK: Final = "ok"
HINT: Final = "hint"
BAD: Final = "problem"
MISSING: Final = "missing"
_MARKS: Final = {OK: ("✓", "green"), HINT: ("·", "yellow"), BAD: ("✗", "red")}

_PURPOSE: Final = {
    "embed": "local embeddings: search by meaning",
    "embed-minilm": "a better model on this machine, a few hundred times slower",
    "http": "embeddings and language models of services",
    "jit": "loops over whole columns, compiled: evaluator numba",
    "regex": "patterns in filters: the operator ~",
    "tokens": "exact token counts",
    "arrow": "bulk transfer",
    "postgres": "stores in PostgreSQL",
}
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9._-]+).*extra\s*==\s*['\"]([A-Za-z0-9_-]+)['\"]")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of the report; ``advice`` is the remedy, for all but ``ok``."""

    area: str
    level: str
    text: str
    advice: str = ""


@click.command()
@click.option("--network", is_flag=True, help="Ask each configured service one question, which may cost money.")
@with_whole_store
def doctor(settings: Settings, network: bool) -> int:
    """Examine the installation, the configuration and the store.

    Without a configuration only the installation is examined. Exit code 1 when there is a problem.
    """
    findings = [*_installation(), *_configured(settings, network)]
    problems = sum(1 for finding in findings if finding.level == BAD)
    document = {
        "ok": not problems,
        "version": _version(DISTRIBUTION),
        "findings": [asdict(finding) for finding in findings],
    }
    settings.out.result(document, lambda: _print(settings, findings, problems))
    return PROBLEM if problems else DONE


def _print(settings: Settings, findings: list[Diagnosis], problems: int) -> None:
    from rich.text import Text

    console = settings.out.console
    area = ""
    for finding in findings:
        if finding.area != area:
            area = finding.area
            console.print(Text(area, style="bold"))
        mark, colour = _MARKS[finding.level]
        line = Text("  ")
        line.append(mark, style=colour)
        line.append(f" {finding.text}")
        console.print(line, soft_wrap=True)
        if finding.advice:
            console.print(Text(f"    → {finding.advice}", style="dim"), soft_wrap=True)
    console.print(Text(f"{problems} problem{'s' if problems != 1 else ''} found" if problems else "all is well"))


def _installation() -> Iterator[Diagnosis]:
    area = "installation"
    on = f"Python {platform.python_version()} on {platform.system()}"
    yield Diagnosis(area, OK, f"caliber {_version(DISTRIBUTION)}, {on}")
    yield _sqlite()
    yield from _kernels()
    names = ("numpy", "pydantic", "cffi", "click", "rich")
    yield Diagnosis(area, OK, ", ".join(f"{name} {_version(name)}" for name in names))
    for extra, packages in _extras().items():
        missing = [name for name in packages if _version(name) == MISSING]
        if missing:
            text = f"extra {extra} is not installed ({_PURPOSE[extra]}): {', '.join(missing)} missing"
            yield Diagnosis(area, HINT, text, f"pip install 'caliber-memory[{extra}]'")
        else:
            versions = ", ".join(f"{name} {_version(name)}" for name in packages)
            yield Diagnosis(area, OK, f"extra {extra}: {versions}{_driver(extra)}")


def _extras() -> dict[str, list[str]]:
    """Return the packages of each extra that adds a feature, as the installed package itself declares them."""
    out: dict[str, list[str]] = {extra: [] for extra in _PURPOSE}
    try:
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    for requirement in required:
        match = _REQUIREMENT.match(requirement)
        if match and match[2] in out:
            out[match[2]].append(match[1])
    return {extra: packages for extra, packages in out.items() if packages}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return MISSING


def _driver(extra: str) -> str:
    """Return the implementation of psycopg in use, found without importing it."""
    if extra != "postgres":
        return ""
    for module, name in (("psycopg_c", "C"), ("psycopg_binary", "binary")):
        if importlib.util.find_spec(module) is not None:
            return f" ({name} implementation)"
    return " (Python implementation: slower; pip install 'caliber-memory[postgres]')"


def _sqlite() -> Diagnosis:
    """Open a store in memory: that needs the driver, its SQLite in a recent version, and the whole schema."""
    from caliber.api.opening import open as open_store
    from caliber.config import profiles

    try:
        with open_store(profiles.reference(":memory:", embedding_provider=None)) as memory:
            store = memory.admin.stats()["store"]
    except Exception as error:
        _, message, hint, _ = describe(error)
        return Diagnosis("installation", BAD, message, hint or "pip install --upgrade apsw")
    return Diagnosis("installation", OK, f"SQLite {store['sqlite']} through apsw {store['apsw']}")


def _kernels() -> Iterator[Diagnosis]:
    from caliber.kernels import active_path, available_paths
    from caliber.model.errors import CaliberError

    try:
        active = active_path()
        paths = available_paths()
    except CaliberError as error:
        yield Diagnosis("installation", BAD, str(error), "reinstall caliber-memory, or run `make setup` in a checkout")
        return
    text = f"kernels: {active} in use, available here: {', '.join(paths)}"
    advice = f"CALIBER_NATIVE chooses it; unset it for {paths[-1]}, the fastest here"
    yield Diagnosis("installation", OK, text) if active == paths[-1] else Diagnosis("installation", HINT, text, advice)


def _configured(settings: Settings, network: bool) -> Iterator[Diagnosis]:
    from caliber.engine.refusals import provider_refusals

    area = "configuration"
    try:
        path = settings.config_path()
    except UsageError as error:
        yield Diagnosis(area, HINT, error.message, error.hint)
        return
    try:
        config = settings.load()
    except Exception as error:
        _, message, hint, details = describe(error)
        for fault in details.get("faults", [message]):
            yield Diagnosis(area, BAD, fault, "")
        yield Diagnosis(area, BAD, f"{path} cannot be used", hint or "correct it and run `caliber doctor` again")
        return
    yield Diagnosis(area, OK, f"{path} is sound, hash {config.hash.hex()[:16]}")
    for fault in provider_refusals(config):
        yield Diagnosis(area, BAD, str(fault), "`caliber check` says what else is wrong")
    if config.embedding_provider is None:
        yield Diagnosis(
            area, HINT, "no embedding provider: nothing is found by meaning",
            "pip install 'caliber-memory[embed]', then take its sections from a fresh `caliber init`",
        )  # fmt: skip
    yield from opened(config, settings.principal(config), network)


def _tenants(config: Any) -> Diagnosis:
    """Look into the directory of tenants, where there is no store without one."""
    from caliber.api.tenants import Tenants

    try:
        with Tenants(config) as tenants:
            count = len(tenants.all())
    except Exception as error:
        _, message, hint, _ = describe(error)
        return Diagnosis("tenants", BAD, message, hint or "`caliber db tenant create NAME` makes the first tenant")
    return Diagnosis("tenants", OK, f"the directory has {count:,}; `caliber --tenant NAME doctor` examines one")


def opened(config: Any, principal: Principal, network: bool) -> Iterator[Diagnosis]:
    """Open the store, build its providers, and compare memory with it."""
    from caliber.api.opening import open as open_store
    from caliber.api.tenants import MISSING
    from caliber.model.access import Principal

    area = "store"
    try:
        # A user or agent knows no figures of the store; who runs the command may read its files anyway.
        memory = open_store(config, principal=principal if principal.serves else Principal.admin())
    except Exception as error:
        if config.tenancy is not None and isinstance(error, Unavailable) and error.context.get("reason") == MISSING:
            yield _tenants(config)
            return
        _, message, hint, _ = describe(error)
        yield Diagnosis(area, BAD, message, hint or "correct that and run `caliber doctor` again")
        return
    with memory:
        found = memory.admin.stats()
        store = found["store"]
        yield Diagnosis(area, OK, f"{store['path']}: {store['bytes']:,} bytes, {store['summary']}")
        if store["synchronous"] in ("off", "normal"):
            lost = f"synchronous is {store['synchronous']}: a power failure can lose acknowledged writes"
            advice = "please report this: CALIBER sets full"
            yield Diagnosis(area, BAD, lost, advice if store["adapter"] == "sqlite" else "set fsync = on on the server")
        yield _evaluator(found)
        for kind, name in found["providers"].items():
            if name is not None:
                yield Diagnosis(area, OK, f"{kind} provider {name}")
        yield from _spaces(memory)
        yield from _answers(memory, config, network)
        differences = memory.admin.verify()
        if differences:
            for line in differences[:10]:
                yield Diagnosis(area, BAD, line, "")
            yield Diagnosis(
                area, BAD, f"{len(differences)} differences between file and memory",
                "stop writing, copy the file away, restore a backup; please report it",
            )  # fmt: skip
        else:
            rows = sum(found["records"].values())
            yield Diagnosis(area, OK, f"the file is whole, and memory equals it ({rows:,} records)")
        behind, later = found["behind"], "they get it while a program has the store open"
        jobs, failed = behind["jobs_waiting"], behind["jobs_failed"]
        vectors, summaries = behind["embeddings_waiting"], behind["turn_summaries_waiting"]
        waits = "waits" if jobs == 1 else "wait"
        run = "a program that has the store open runs them, every jobs.poll_ms; or `caliber jobs run`"
        retry = "`caliber jobs list --state failed` shows the errors; `caliber jobs retry ID` runs one again"
        for count, level, text, advice in (
            (vectors, HINT, f"{vectors:,} records wait for their vector", later),
            (summaries, HINT, f"{plural(summaries, 'block')} of turns without a summary yet", later),
            (jobs, HINT, f"{plural(jobs, 'job')} {waits}", run),
            (failed, BAD, f"{plural(failed, 'job')} failed for good", retry),
        ):
            if count:
                yield Diagnosis(area, level, text, advice)


def _answers(memory: Any, config: Any, network: bool) -> Iterator[Diagnosis]:
    """Send each provider one request; remote services only on request."""
    inspect = memory.admin.inspect
    for section, what, ask in (
        ("embedding_provider", "embedding a text", inspect.ask_embedding),
        ("summarization_provider", "asking about two statements", inspect.ask_summarization),
    ):
        provider = getattr(config, section)
        if provider is None:
            continue
        if provider.http is not None and not network:
            text = f"{section} is {provider.provider_type} at {provider.endpoint}, which was not asked"
            yield Diagnosis("store", HINT, text, "`caliber doctor --network` asks it one question")
            continue
        started = time.perf_counter()
        try:
            ask()
        except Exception as error:
            _, message, hint, _ = describe(error)
            yield Diagnosis("store", BAD, f"{what} failed: {message}", hint or f"check [{section}]")
        else:
            took = f" ({(time.perf_counter() - started) * 1_000:.0f} ms)" if provider.http is not None else ""
            yield Diagnosis("store", OK, f"{what} works{took}")


def _spaces(memory: Any) -> Iterator[Diagnosis]:
    """Report the searched embedding space, and give advice on the others."""
    found = memory.admin.inspect.spaces()
    for space in found:
        if space.state == "being filled" and space.provider is not None:
            done = f"{space.records:,} records have a vector, {space.pending:,} lack one"
            yield Diagnosis(
                "store", HINT, f"{space.name} is being filled: {done}", "`caliber db reembed` completes it now"
            )
        elif space.state == "in use" and space.provider is None and any(other.provider for other in found):
            text = f"questions cannot be embedded for {space.name}, which is searched"
            yield Diagnosis("store", HINT, text, "name its model in [previous_embedding_provider] until then")
        elif space.state != "in use":
            text = f"{space.name} is not searched: {space.vectors:,} vectors, {space.stored_bytes:,} bytes"
            yield Diagnosis("store", HINT, text, f"`caliber db drop-space {space.name}` removes it")
    if memory.config.previous_embedding_provider is not None and all(
        space.provider != "previous_embedding_provider" for space in found
    ):
        yield Diagnosis(
            "store", HINT, "previous_embedding_provider is not needed: what is searched is of another model",
            "take its section out of the configuration",
        )  # fmt: skip


def _evaluator(found: dict[str, Any]) -> Diagnosis:
    """Report the evaluator in use, and whether its compiled code is cached."""
    code = found["compiled_loops"]
    if code is None:
        return Diagnosis("store", OK, f"evaluator {found['evaluator']}")
    text = (
        f"evaluator {found['evaluator']}: {code['loaded']} loops loaded from {code['folder']}, "
        f"{code['compiled']} compiled, in {code['seconds']:.1f} s"
    )
    if not code["problems"]:
        return Diagnosis("store", OK, text)
    return Diagnosis(
        "store",
        HINT,
        f"{text}; {'; '.join(code['problems'])}",
        "make cache_dir a folder that you, and nobody else, can write to; until then every process compiles anew",
    )
