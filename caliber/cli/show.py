"""Rendering of context windows for terminal and JSON, and one-line labels of records, shared by commands."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from caliber.cli.output import plural, printable
from caliber.explain.picture import MEANINGS
from caliber.model.context import AssemblyAction, SectionType
from caliber.model.knowledge import Note
from caliber.model.trajectory import Artifact, Scope, Turn, TurnSummary
from caliber.model.trust import TrustLabel
from caliber.model.windows import ContextSection, ContextWindow, SourceRef

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from caliber.api.caliber import Caliber

_COLOURS: Final = {
    "system": "magenta",
    "persona": "magenta",
    "artifacts": "yellow",
    "notes": "green",
    "history": "cyan",
    "user": "blue",
    "recall": "red",
    "current": "blue",
    "custom": "white",
}
_CONVERSATION: Final = (SectionType.USER, SectionType.CURRENT)
_UNRANKED: Final = (*_CONVERSATION, SectionType.HISTORY)
"""Sections whose records the query does not rank."""
_SOURCES_SHOWN: Final = 5
_PREVIEW_LINES: Final = 4


def peek(memory: Caliber, record_id: uuid.UUID | None) -> Any | None:
    """Return a record without counting it as used, or None if it is gone or hidden."""
    return None if record_id is None else memory.admin.inspect.record(record_id)


def first_line(text: str) -> str:
    """Return the first line with content."""
    for line in text.splitlines():
        words = " ".join(printable(line).split()).lstrip("#-* ")
        if words:
            return words
    return ""


def label(entity: Any) -> str:
    """Return how a person would name a record."""
    if isinstance(entity, Note):
        return printable(entity.entity)
    if isinstance(entity, Artifact):
        return f"{entity.artifact_type.value}: {first_line(entity.text)}"
    if isinstance(entity, Turn):
        who = f"{entity.role.value} {entity.name}" if entity.name else entity.role.value
        return f"turn {entity.turn_number}, {printable(who)}: {first_line(entity.text)}"
    if isinstance(entity, TurnSummary):
        return f"turns {entity.first_turn} to {entity.last_turn}: {first_line(entity.content)}"
    if isinstance(entity, Scope):
        return f"scope {entity.sequence_number}: {first_line(entity.summary or '') or '(no summary)'}"
    return "text of the configuration" if entity is None else type(entity).__name__.lower()


def trust_of(entity: Any) -> str | None:
    """Return the label of a record, or None if it has none."""
    trust = getattr(entity, "trust", None)
    return None if trust is None else str(trust)


def _trust(entity: Any) -> Text:
    from rich.text import Text

    trust = trust_of(entity)
    return Text(trust or "", style="red" if trust == TrustLabel.WEB else "dim")


def shortened(text: str, width: int) -> str:
    """Return a text cut to a width, with an ellipsis."""
    return text if len(text) <= width else text[: max(1, width - 1)].rstrip() + "…"


def budget_bar(window: ContextWindow, width: int) -> Text:
    """Return the token budget as a bar, one colour a section."""
    from rich.text import Text

    bar = Text()
    drawn = 0
    so_far = 0
    for section in window.sections:
        so_far += section.token_count
        upto = round(so_far / window.max_tokens * width)
        bar.append("█" * (upto - drawn), style=_COLOURS.get(section.section_type.value, "white"))
        drawn = upto
    # The overhead of messages belongs to no section.
    used = min(width, round(window.used_tokens / window.max_tokens * width))
    bar.append("▓" * max(0, used - drawn), style="bright_black")
    bar.append("░" * (width - max(used, drawn)), style="bright_black")
    return bar


def print_window(console: Console, memory: Caliber, window: ContextWindow, question: str | None) -> None:
    """Print a window: its budget, then each section with its sources and how it begins."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    width = min(console.width, 100)
    share = window.used_tokens / window.max_tokens
    head = Table.grid(padding=(0, 1))
    head.add_row(
        budget_bar(window, width - 36),
        Text(f"{window.used_tokens:,} of {window.max_tokens:,} tokens ({share:.0%})"),
    )
    legend = _legend(window, width - 4)
    facts = Text(
        f"stable prefix {window.stable_prefix_tokens:,} tokens   {_decisions(window)}   status {window.status.value}",
        style="dim",
    )
    parts: list[RenderableType] = [head, *legend, facts]
    if window.degraded:
        parts.append(Text(f"degraded: {', '.join(window.degraded)}", style="red"))
    from rich.console import Group

    title = Text(f" {shortened(printable(question or 'no question: what comes next'), width - 8)} ", style="bold")
    console.print(Panel(Group(*parts), title=title, title_align="left", width=width))
    for section in window.sections:
        _print_section(console, memory, section, width)
    console.print(Text(f"window {window.window_id}", style="dim"))


def _legend(window: ContextWindow, width: int) -> list[Text]:
    """Return the legend of the bar's colours, in lines of a width; no entry is broken."""
    from rich.text import Text

    entries = [
        ("■", _COLOURS.get(section.section_type.value, "white"), f"{section.name} {section.token_count:,}")
        for section in window.sections
    ]
    around = window.used_tokens - sum(section.token_count for section in window.sections)
    if around > 0:
        entries.append(("▓", "bright_black", f"messages {around:,}"))
    lines = [Text()]
    for mark, style, words in entries:
        entry = Text.assemble((f"{mark} ", style), words)
        if lines[-1].cell_len and lines[-1].cell_len + 2 + entry.cell_len > width:
            lines.append(Text())
        if lines[-1].cell_len:
            lines[-1].append("  ")
        lines[-1].append_text(entry)
    return lines


def _decisions(window: ContextWindow) -> str:
    trace = window.assembly_trace
    left_out = sum(1 for decision in trace if decision.action is AssemblyAction.EXCLUDE)
    return f"{len(trace) - left_out} of {len(trace)} candidates in"


def _print_section(console: Console, memory: Caliber, section: ContextSection, width: int) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    colour = _COLOURS.get(section.section_type.value, "white")
    heading = Text(f"▌{section.name}", style=f"bold {colour}")
    about = MEANINGS.get(section.name, "a section of yours")
    count = len(section.sources)
    heading.append(f"  {about} · {section.token_count:,} tokens · {plural(count, 'source')}", style="dim")
    console.print(heading)
    table = Table.grid(padding=(0, 1))
    table.add_column(width=9)
    table.add_column(justify="right", width=7, no_wrap=True)
    table.add_column(width=6, no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=width - 29)
    spoken = section.section_type in _CONVERSATION
    for source in _most_telling(section.sources, spoken=spoken):
        entity = peek(memory, source.id)
        tokens = Text(f"{source.tokens:,} t", style="dim")
        relevance = Text("") if section.section_type in _UNRANKED else _relevance(source)
        table.add_row(relevance, tokens, _trust(entity), Text(label(entity)))
    console.print(Padding(table, (0, 0, 0, 2)))
    hidden = count - min(count, _SOURCES_SHOWN)
    if hidden:
        console.print(Text(f"  … and {hidden} more", style="dim"))
    if section.sources and not spoken and section.section_type is not SectionType.RECALL:
        for line in _preview(section, width - 6):
            console.print(Text(f"  ┆ {line}", style="dim"))


def _most_telling(sources: Sequence[SourceRef], *, spoken: bool) -> list[SourceRef]:
    """Return the sources to show: of the conversation the newest turns, of all else the most relevant records."""
    if spoken:
        return list(sources)[-_SOURCES_SHOWN:]
    return sorted(sources, key=lambda source: -source.relevance)[:_SOURCES_SHOWN]


def _relevance(source: SourceRef) -> Text:
    from rich.text import Text

    if source.id is None:
        return Text("")
    filled = round(max(0.0, min(1.0, source.relevance)) * 4)
    text = Text(f"{source.relevance:.2f} ")
    text.append("━" * filled, style="green")
    text.append("╌" * (4 - filled), style="bright_black")
    return text


def _preview(section: ContextSection, width: int) -> list[str]:
    lines = [line.rstrip() for line in printable(section.content).splitlines() if line.strip()]
    shown = [shortened(line.expandtabs(4), width) for line in lines[:_PREVIEW_LINES]]
    if len(lines) > _PREVIEW_LINES:
        shown.append(f"… and {plural(len(lines) - _PREVIEW_LINES, 'line')} more")
    return shown


def window_document(window: ContextWindow, *, trace: bool) -> dict[str, Any]:
    """Return a window for programs."""
    document: dict[str, Any] = {
        "window_id": window.window_id,
        "trajectory_id": window.trajectory_id,
        "scope_id": window.scope_id,
        "assembled_at": window.assembled_at,
        "status": window.status,
        "degraded": window.degraded,
        "max_tokens": window.max_tokens,
        "used_tokens": window.used_tokens,
        "stable_prefix_tokens": window.stable_prefix_tokens,
        "sections": window.sections,
        "text": window.text,
        "messages": window.to_messages(),
        "cut_offs": window.cut_offs,
        "position": window.position,
        "config_hash": window.config_hash,
        "evaluator": window.evaluator,
        "estimator": window.estimator,
    }
    if trace:
        document["assembly_trace"] = window.assembly_trace
    return document
