"""Commands ``forget`` (erase a subject) and ``db purge`` (erase a task or the whole store)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from caliber.access.owners import private_to
from caliber.cli.failures import DONE, PROBLEM, UsageError
from caliber.cli.output import bytes_text, plural
from caliber.cli.references import as_id, as_reference
from caliber.cli.settings import Settings, require_terminal, with_store, with_whole_store
from caliber.model.references import EntityRef

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber
    from caliber.cli.output import Output
    from caliber.model.erasure import ForgetReport

_SHOWN: Final = 12
_MS: Final = 1_000

_dry_run = click.option("--dry-run", is_flag=True, help="Count the records to erase, and change nothing.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_wait = click.option(
    "--wait", "wait_s", type=click.FloatRange(min=0), default=10, show_default=True, help="Seconds for others to end."
)
_scrub_log = click.option(
    "--scrub-log", is_flag=True, help="On PostgreSQL also write over the server's log, up to 1,024 segments of it."
)


@click.command()
@click.argument("texts", nargs=-1)
@click.option("--texts-from", type=click.File(), help="More names and identifiers, one a line; - for stdin.")
@click.option(
    "--entity", metavar="TYPE:ID", help="A user by name or id, an agent or record by id: user:maria, agent:ID."
)
@click.option("--even-if-shared", is_flag=True, help="Also when a name is that of others too.")
@click.option("--resume", is_flag=True, help="Finish interrupted erasures.")
@_dry_run
@_yes
@_wait
@_scrub_log
@with_store
def forget(
    settings: Settings,
    texts: tuple[str, ...],
    texts_from: Iterable[str] | None,
    entity: str | None,
    even_if_shared: bool,
    resume: bool,
    dry_run: bool,
    yes: bool,
    wait_s: float,
    scrub_log: bool,
) -> int:
    """Erase a person or thing from all stored data, and report the proof.

    TEXTS are names and identifiers, as whole words in any case: "Ada Lovelace" ada@example.org. If one is the name of a
    user, all that is this user's goes; if it names several, --entity says which. What is about them goes; what names
    them is kept without the name; windows made of either can no longer be replayed. Arguments may stay in the history
    of your shell: --texts-from - takes them from stdin.

    Exit code 1 when something was found afterwards, or could not be done yet.
    """
    named = [*texts, *([] if texts_from is None else (line.strip() for line in texts_from if line.strip()))]
    wait_ms = int(wait_s * _MS)
    with settings.memory(note=False) as memory:
        if resume:
            reports = memory.admin.resume_forgetting(wait_ms=wait_ms)
            document = {"resumed": [report.to_dict() for report in reports]}
            settings.out.result(document, lambda: _print_resumed(settings.out, reports))
            return PROBLEM if any(report.remaining for report in reports) else DONE
        who = _meant(settings.out, memory, named) if entity is None else as_reference(entity, "--entity")
        subject: dict[str, Any] = {"entity" if who is None or who.entity_type != "user" else "user": who}

        def run(rehearsal: bool) -> ForgetReport:
            return memory.forget(
                **subject,
                texts=named,
                dry_run=rehearsal,
                even_if_shared=even_if_shared,
                wait_ms=wait_ms,
                scrub_log=scrub_log,
            )

        return _carry_out(settings.out, run, dry_run=dry_run, yes=yes)


def _meant(out: Output, memory: Caliber, texts: Sequence[str]) -> EntityRef | None:
    """Return the user that a text names, None if none does. Raises: UsageError where one of several may be meant."""
    names = [text.strip() for text in texts if text.strip()]
    found = memory.admin.inspect.named(names)
    ids = {private_to(entity): entity for entity, _ in found}
    if not ids:
        return None
    entity, name = found[-1]
    if len(ids) == 1 and entity.entity_type == "user" and name in names:
        return entity
    shown = ", ".join(dict.fromkeys(f"{name} ({private_to(entity)})" for entity, name in found))
    if out.json or not sys.stdin.isatty():
        raise UsageError(f"several may be meant: {shown}", f"name one of them, such as --entity {next(iter(ids))}")
    out.print(f"which is meant? {shown}")
    return ids[click.prompt("its id", type=click.Choice(list(ids)), show_choices=False)]


@click.command("purge", short_help="Remove a task, or the whole store.")
@click.option("--trajectory", metavar="ID", help="This task, those it started, and what was drawn from them alone.")
@click.option("--store", "whole", is_flag=True, help="The whole store, files or schema included.")
@_dry_run
@_yes
@_wait
@_scrub_log
@with_whole_store
def purge(
    settings: Settings,
    trajectory: str | None,
    whole: bool,
    dry_run: bool,
    yes: bool,
    wait_s: float,
    scrub_log: bool,
) -> int:
    """Remove a task or the whole store, so that nothing is left of it in files.

    Exit code 1 when something was found afterwards, or could not be done yet.
    """
    if (trajectory is None) != whole:
        raise UsageError("name the data to purge", "either --trajectory ID or --store")
    wait_ms = int(wait_s * _MS)
    if trajectory is None:
        from caliber.api.opening import purge as purge_store

        config = settings.load()
        return _carry_out(
            settings.out,
            lambda rehearsal: purge_store(config, dry_run=rehearsal, wait_ms=wait_ms, scrub_log=scrub_log),
            dry_run=dry_run,
            yes=yes,
        )
    trajectory_id = as_id(trajectory)
    with settings.memory(note=False) as memory:
        return _carry_out(
            settings.out,
            lambda rehearsal: memory.admin.purge_trajectory(
                trajectory_id, dry_run=rehearsal, wait_ms=wait_ms, scrub_log=scrub_log
            ),
            dry_run=dry_run,
            yes=yes,
        )


def _carry_out(out: Output, run: Callable[[bool], ForgetReport], *, dry_run: bool, yes: bool) -> int:
    """Rehearse, ask for confirmation, erase, and print the result."""
    if dry_run or not yes:
        counted = run(True)
        if dry_run:
            out.result(counted.to_dict(), lambda: _print_counted(out, counted))
            return DONE
        require_terminal(out, "this cannot be undone", "check with --dry-run, then confirm with --yes")
        _print_counted(out, counted)
        click.confirm("erase all of this? It cannot be undone", abort=True)
    report = run(False)
    out.result(report.to_dict(), lambda: _print(out, report))
    return DONE if report.proven else PROBLEM


def _print_counted(out: Output, report: ForgetReport) -> None:
    for what, counts in (("erased", report.erased), ("redacted", report.redacted)):
        for name, count in sorted(counts.items()):
            out.print(f"  {what:<9} {count:>8,} {name}")
    if report.windows_closed:
        out.print(f"  {plural(report.windows_closed, 'window')} could no longer be replayed")
    if not report.records:
        out.print("nothing here names it")


def _print(out: Output, report: ForgetReport) -> None:
    out.print(f"erased {plural(sum(report.erased.values()), 'record')}, redacted {sum(report.redacted.values()):,}")
    if report.windows_closed:
        out.print(f"{plural(report.windows_closed, 'window')} can no longer be replayed")
    size = sum(place.searched_bytes for place in report.searched)
    out.print(f"read {plural(len(report.searched), 'place')}, {bytes_text(size)}: {plural(report.findings, 'finding')}")
    for place in [place for place in report.searched if place.findings][:_SHOWN]:
        out.print(f"  - {place.findings:,} in {place.name} ({place.kind})")
    if report.inside_words:
        out.print(f"{report.inside_words:,} times a name is a part of a longer word, and was left alone")
    for line in report.remaining:
        out.print(f"not done: {line}")
    for line in report.out_of_reach:
        out.print(f"out of reach: {line}")


def _print_resumed(out: Output, reports: list[ForgetReport]) -> None:
    if not reports:
        out.print("nothing was left in the middle")
    for report in reports:
        out.print(f"erasure {report.erasure_id}: " + ("not finished yet" if report.remaining else "finished"))
        for line in report.remaining:
            out.print(f"not done: {line}")
