"""One line for each object that people print: windows, results of searches, what was learnt."""

from __future__ import annotations

from typing import Any, Final

_LINE_CHARS: Final = 160
_TEXT_CHARS: Final = 80


def of_window(window: Any) -> str:
    """Return how a window prints."""
    sections = ", ".join(f"{each.section_type} {each.token_count}" for each in window.sections)
    used = f"{window.used_tokens} of {window.max_tokens} tokens"
    return _line(f"ContextWindow({window.window_id}, {window.status}, {used}: ", sections or "empty")


def of_hit(hit: Any) -> str:
    """Return how a hit prints."""
    return _line(f"SearchHit({hit.kind} {hit.id}, {hit.score:.4f}: ", repr(hit.content[:_TEXT_CHARS]))


def of_result(result: Any) -> str:
    """Return how the result of a search prints."""
    found = "; ".join(f"{hit.kind} {hit.score:.2f} {hit.content[:_TEXT_CHARS]!r}" for hit in result.hits)
    return _line(f"SearchResult({result.status}, {len(result.hits)} hits: ", found or result.reason or "nothing")


def of_learned(learned: Any) -> str:
    """Return how what was learnt prints."""
    found = "; ".join(f"{each.action} {each.statement!r}" for each in learned.decisions)
    begin = f"Learned({learned.state}, {len(learned.turns)} turns, task {learned.trajectory_id}: "
    return _line(begin, found or "nothing")


def _line(begin: str, rest: str) -> str:
    line = begin + " ".join(rest.split())
    return f"{line[: _LINE_CHARS - 2]}…)" if len(line) > _LINE_CHARS - 1 else f"{line})"
