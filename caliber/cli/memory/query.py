"""Commands ``context``, ``search``, ``explain`` and ``replay``, which read from a store."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from caliber.cli import show
from caliber.cli.failures import DONE, PROBLEM, UsageError
from caliber.cli.output import Output, printable
from caliber.cli.references import as_id
from caliber.cli.settings import Settings, with_store
from caliber.cli.setup import write_whole

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber
    from caliber.model.windows import ContextWindow

LATEST: Final = "latest"
_WINDOWS_TRIED: Final = 100
"""The newest windows of each task among which that of a principal who is no administrator is looked for."""
_ORIGINS: Final = {"last_user_turn": "  (the last user turn)", "goal": "  (the goal of the task)"}
"""Where a query came from that the caller did not give."""


def trajectory_id_of(memory: Caliber, text: str) -> uuid.UUID:
    """Return the trajectory that ``text`` names: an id, or ``latest``. Raises: UsageError."""
    if text != LATEST:
        return as_id(text, "trajectory")
    newest = memory.admin.inspect.latest_task()
    if newest is None:
        whose = f" of {memory.principal.id}" if memory.principal.is_user else ""
        raise UsageError(f"there is no active trajectory{whose} yet", "add data first, such as `caliber ingest git .`")
    return newest


def window_id_of(memory: Caliber, text: str) -> uuid.UUID:
    """Return the window that ``text`` names: an id, or ``latest``. Raises: UsageError."""
    if text != LATEST:
        return as_id(text, "window")
    newest = memory.admin.inspect.latest_window()
    if newest is None:
        raise UsageError("there is no window yet", "assemble one first: `caliber context latest`")
    return newest


def _query_of(memory: Caliber, window: ContextWindow) -> str | None:
    """Return the query of a window that the principal just assembled."""
    user = memory.admin.inspect.user_of(window.trajectory_id) if memory.principal.is_application else None
    query: str | None = memory.explain(window.window_id, user=user)["inputs"].get("query")
    return query


@click.command()
@click.argument("trajectory", default=LATEST)
@click.option("-q", "--query", help='What is asked; "" for nothing.  [default: the last user turn, else the goal]')
@click.option("--max-tokens", type=click.IntRange(min=1), help="Budget; at most token_budget of the configuration.")
@click.option("--text", "text_only", is_flag=True, help="Print the window's text and nothing else.")
@click.option("--trace", is_flag=True, help="With --json: every candidate and its decision about it.")
@with_store
def context(
    settings: Settings, trajectory: str, query: str | None, max_tokens: int | None, text_only: bool, trace: bool
) -> None:
    """Assemble the context window of TRAJECTORY: its id, or `latest`, the default; with --as user:X the user's.

    The window is recorded: `caliber explain` and `caliber replay` take its id.
    """
    with settings.memory() as memory:
        trajectory_id = trajectory_id_of(memory, trajectory)
        window = memory.assemble_context(trajectory_id, query=query, max_tokens=max_tokens)

        def human() -> None:
            if text_only:
                click.echo(window.text)
                return
            show.print_window(settings.out.console, memory, window, _query_of(memory, window))
            settings.out.print(f"why: caliber explain {window.window_id}    whole text: --text")

        settings.out.result(show.window_document(window, trace=trace), human)


def named_values(pairs: Sequence[str]) -> list[tuple[str, str]]:
    """Return ``k=v`` pairs apart. Raises: UsageError."""
    out = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--filter {pair}: expected NAME=VALUE", "for example --filter note_type=fact")
        out.append((name.strip(), text))
    return out


def _value(name: str, text: str, types: frozenset[str]) -> Any:
    """Return a value in a type of these columns; a value that fits none is left for the search to refuse."""
    if "uuid" in types:
        as_id(text, name)
    if types == {"bool"} and text in ("true", "false"):
        return text == "true"
    for kind in (int, float) if types <= {"int", "float", "instant", "bool"} else ():
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def conditions_of(pairs: Sequence[tuple[str, str]], memory: Caliber, kinds: Sequence[str]) -> dict[str, Any]:
    """Return names and values as a filter of these kinds, or of all; a name that comes again allows several values.

    Raises: UsageError
    """
    types = memory.admin.inspect.filters(kinds or None)
    out: dict[str, list[Any]] = {}
    for name, text in pairs:
        out.setdefault(name, []).append(_value(name, text, types.get(name, frozenset())))
    return {name: values if len(values) > 1 else values[0] for name, values in out.items()}


with_kinds: Final = click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    help="Search only these: note, artifact, turn, scope, or a declared memory; may be repeated.",
)
"""Parameter type of the kinds of a search; the store defines which exist."""


@click.command()
@click.argument("query")
@with_kinds
@click.option("--limit", type=click.IntRange(min=1), help="Most hits.  [default: 10]")
@click.option(
    "--filter", "filters", multiple=True, metavar="NAME=VALUE", help="Keep records with this value; repeatable."
)
@click.option(
    "--where",
    metavar="CONDITION",
    help="Keep records it holds for, such as 'confidence > 0.5 and valid_until > now()'.",
)
@click.option("--explain", "explained", is_flag=True, help="Show the analysis of QUERY and the parts of each score.")
@with_store
def search(
    settings: Settings,
    query: str,
    kinds: tuple[str, ...],
    limit: int | None,
    filters: tuple[str, ...],
    where: str | None,
    explained: bool,
) -> int:
    """Search memory by words, meaning, links, names and days; an empty QUERY lists what is recent and important.

    "Quotes" look for a phrase, a trailing * for the beginning of words. `scope` stands for the summaries of closed
    scopes. Exit code 1 when memory could not be searched as asked.
    """
    if filters and where is not None:
        raise UsageError("--filter and --where exclude each other", "put all conditions into --where, joined by `and`")
    values = named_values(filters)
    with settings.memory() as memory:
        conditions = conditions_of(values, memory, kinds) or where
        found = memory.search(query, kinds=kinds or None, limit=limit, filter=conditions)
        records = [show.peek(memory, hit.id) for hit in found.hits]
        hits = [
            (hit, show.label(record), show.trust_of(record)) for hit, record in zip(found.hits, records, strict=True)
        ]
        document = {
            "query": query,
            "status": found.status,
            "reason": found.reason,
            "pending": found.pending,
            "position": found.position,
            "analysis": found.analysis,
            "below_floor": found.below_floor,
            "hits": [
                {
                    "id": hit.id,
                    "kind": hit.kind,
                    "score": hit.score,
                    "breakdown": hit.breakdown,
                    "found_by": hit.found_by,
                    "snippet": hit.snippet,
                    "label": name,
                    "trust": trust,
                    "content": hit.content,
                }
                for hit, name, trust in hits
            ],
        }
        settings.out.result(document, lambda: _print_hits(settings.out, found, hits, explained))
    if found.reason is not None:
        settings.out.note(f"degraded: {found.reason}")
        if found.reason == "no_embedding_provider":
            settings.out.note(
                "  pip install 'caliber-memory[embed]', then configure [embedding_provider] (see `caliber init`)"
            )
        if "space_of_another_model" in found.reason:
            settings.out.note("  another program changed the model: make its one the [embedding_provider] here, too")
        if "space_being_filled" in found.reason:
            settings.out.note("  the model of [embedding_provider] is new: `caliber db reembed` makes its vectors")
        return PROBLEM
    return DONE


def _print_analysis(out: Output, analysis: Any) -> None:
    """Print the parsed query, and the weight of each leg."""
    parts = {
        "words": analysis.words,
        "stop words": analysis.stop_words,
        "phrases": analysis.phrases,
        "prefixes": analysis.prefixes,
        "names": analysis.names,
        "days": () if analysis.days is None else (" to ".join(day.isoformat() for day in analysis.days),),
        "weights": [f"{leg} {weight:.2f}" for leg, weight in analysis.weights.items() if weight],
    }
    for name, values in parts.items():
        if values:
            out.print(f"{name:<11}{printable(', '.join(values))}")
    if analysis.asks_time:
        out.print("asks when")
    if analysis.cut:
        out.print("the query was cut: only its first words were read")


def _print_hits(out: Output, found: Any, hits: list[tuple[Any, str, str | None]], explained: bool) -> None:
    from rich.text import Text

    width = min(out.console.width, 100)
    if explained:
        _print_analysis(out, found.analysis)
    for hit, name, trust in hits:
        line = Text()
        line.append(f"{hit.score:.2f} ", style="green")
        line.append(f"{hit.kind:<9}", style="cyan")
        line.append(show.shortened(name, width - 14), style="bold")
        out.console.print(line)
        body = " ".join(printable(hit.snippet).split())
        if body and not name.endswith(show.shortened(body, 60)):
            out.console.print(Text(f"     {show.shortened(body, width - 6)}", style="dim"))
        if explained:
            out.console.print(Text(f"     {_made_of(hit.breakdown)}", style="green"))
        out.console.print(Text(f"     {hit.id}  {trust or ''}".rstrip(), style="bright_black"))
    if not hits and found.reason is None:
        out.print("nothing found")
    if found.below_floor is not None:
        out.print(f"below the floor: {found.below_floor}")
    if found.pending:
        out.print(f"{found.pending} records still wait for their vector and were not searched")


@click.command()
@click.argument("window", default=LATEST)
@click.option("--exclusion", metavar="ID", help="One record: why it is in the window, or why not.")
@click.option("--html", "page", type=click.Path(path_type=Path), metavar="FILE", help="Write a page for browsers.")
@with_store
def explain(settings: Settings, window: str, exclusion: str | None, page: Path | None) -> None:
    """Explain WINDOW (its id, or `latest`, the default): its contents, and what was left out."""
    if page is not None and exclusion is not None:
        raise UsageError("a page shows the whole window", "use --html without --exclusion")
    if page is not None and page.is_dir():
        raise UsageError(f"--html {page}: is a directory", f"name a file, for example {page / 'window.html'}")
    record_id = None if exclusion is None else as_id(exclusion, "record")
    if window != LATEST:
        as_id(window, "window")
    with settings.memory() as memory:
        window_id = window_id_of(memory, window)
        if page is not None:
            write_whole(page, memory.windows.html(window_id), mode=0o600)  # it shows what was remembered
            document = {"window_id": window_id, "file": page}
            settings.out.result(document, lambda: settings.out.print(f"wrote {page}: open it in a browser"))
            return
        found = memory.explain(window_id, exclusion=record_id)
        if record_id is None:
            settings.out.result(found, lambda: _print_explained(settings.out, memory, found))
        else:
            settings.out.result(found, lambda: settings.out.print(in_words(memory, found)))


def _print_explained(out: Output, memory: Caliber, found: dict[str, Any]) -> None:
    from rich.text import Text

    budget, inputs = found["budget"], found["inputs"]
    query = inputs.get("query")
    out.print(f"window {found['window_id']}")
    origin = _ORIGINS.get(inputs.get("query_from", ""), "")
    out.print(f"  query      {printable(query) if query else 'none'}{origin}")
    out.print(f"  budget     {budget['used']:,} of {budget['total']:,} tokens")
    out.print(f"  sections   {', '.join(f'{name} {tokens:,}' for name, tokens in budget['by_section'].items())}")
    out.print(f"  position   {inputs['position']['sequence']:,}   configuration {inputs['config_hash'][:16]}")
    for title, key in (("included", "inclusions"), ("left out", "exclusions")):
        items = found[key]
        out.print(f"{title}: {len(items)}")
        for item in items[:20]:
            name = show.label(show.peek(memory, None if item["id"] is None else uuid.UUID(item["id"])))
            out.console.print(Text(f"  {item['section']:<10} {show.shortened(name, 64)}"))
            trust = f"; trust {item['trust']}" if item.get("trust") else ""
            out.console.print(Text(f"             {item['reason']}{trust}", style="dim"))
            if item["breakdown"]:
                out.console.print(Text(f"             {_made_of(item['breakdown'])}", style="green"))
        if len(items) > 20:
            out.print(f"  … and {len(items) - 20} more; --json has all")
    for rule in found["rules"]:
        once = f", once: {rule['once']}" if "once" in rule else ""
        brought = f"{rule['included']:,} of {rule['candidates']:,} candidates, {rule['tokens']:,} tokens"
        out.print(
            f"rule {rule['rule']}: {rule['mode']} of {rule['memory']}, priority {rule['priority']}{once}: {brought}"
        )
    for cut in found["cut_offs"]:
        by = f"rule {cut['rule']}, " if "rule" in cut else ""
        out.print(f"before ranking: of {cut['considered']:,} {cut['type']}s, {by}{cut['filter']} kept {_kept(cut)}")
        if "condition" in cut:
            out.print(f"    {printable(cut['condition'])}")


def _made_of(breakdown: dict[str, float]) -> str:
    """Return the parts of a score, by name."""
    return ", ".join(f"{name} {value:+.3f}" for name, value in breakdown.items())


def _kept(cut: dict[str, Any]) -> str:
    if cut["limit"] is None and "kept" in cut:
        return f"{cut['kept']:,}"
    limit = f"at most {cut['limit']:,}" if cut["limit"] is not None else "some"
    return (
        limit
        if cut["cutoff_score"] is None or cut["filter"] == "newest"
        else f"{limit}, down to {cut['cutoff_score']:.3f}"
    )


def in_words(memory: Caliber, found: dict[str, Any]) -> str:
    """Return the result of ``explain(exclusion=...)`` as sentences."""
    name = show.label(show.peek(memory, uuid.UUID(found["id"]))) if found.get("type") else found["id"]
    verdict = {
        "included": "is in the window",
        "excluded": "was considered and left out",
        "cut_off": "never became a candidate",
        "filtered": "was not eligible",
        "changed_since": "cannot be explained any more",
        "unknown": "is unknown",
    }.get(found["verdict"], found["verdict"])
    lines = [f"{show.shortened(name, 100)}", f"  {verdict}: {found['reason']}."]
    if found.get("trust"):
        lines.append(f"  Its trust label is {found['trust']}.")
    if "rank" in found and "candidates" in found:
        place = f"number {found['rank'] + 1:,} of {found['candidates']:,} candidates"
        least = f"{found['min_relevance']:.3f}"
        lines.append(f"  Its relevance is {found['relevance']:.3f}, where {least} is the least; it is {place}.")
        if found["breakdown"]:
            lines.append(f"  The search made it of {_made_of(found['breakdown'])}.")
    return "\n".join(lines)


@click.command()
@click.argument("window", default=LATEST)
@click.option("--text", "text_only", is_flag=True, help="Print the window's text and nothing else.")
@with_store
def replay(settings: Settings, window: str, text_only: bool) -> int:
    """Assemble a recorded WINDOW (its id, or `latest`, the default) again, and compare it with the record.

    Exit code 1 when the bytes differ.
    """
    if window != LATEST:
        as_id(window, "window")
    with settings.memory() as memory:
        window_id = window_id_of(memory, window)
        again = memory.replay(window_id)
        same = memory.admin.inspect.window_hash(window_id) == hashlib.sha256(again.text.encode()).digest()
        document = {**show.window_document(again, trace=False), "identical": same}

        def human() -> None:
            if text_only:
                click.echo(again.text)
                return
            show.print_window(settings.out.console, memory, again, memory.explain(window_id)["inputs"].get("query"))
            settings.out.print("replayed byte for byte" if same else "the text differs from the one that was recorded")

        settings.out.result(document, human)
    return DONE if same else PROBLEM
