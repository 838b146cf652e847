"""Conversion of cuts, candidate limits and one-time injections between objects and JSON data, for a window's record."""

from __future__ import annotations

from typing import Any

from caliber.config.injection import InjectionKind
from caliber.context.rules import OneShot
from caliber.kernels.tokens.counting import Cut
from caliber.model.context import SourceType
from caliber.model.windows import CutOff


def typed(value: Any, kind: type[Any]) -> Any:
    """Return a value that must be of a type. Raises: TypeError."""
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}")
    return value


def packed_cut_off(item: CutOff) -> list[Any]:
    """Return a cut-off as plain data; a rule's filter itself is in the configuration."""
    packed = [item.source_type.value, item.filter, item.limit, item.cutoff_score, item.considered]
    return packed if item.rule is None else [*packed, item.rule, item.kept]


def unpacked_cut_off(item: list[Any]) -> CutOff:
    """Return the cut-off packed by ``packed_cut_off``. Raises: TypeError, ValueError."""
    source, name, limit, score, considered, *by_rule = item
    rule, kept = by_rule or (None, None)
    return CutOff(
        SourceType(source),
        typed(name, str),
        None if limit is None else typed(limit, int),
        None if score is None else float(score),
        typed(considered, int),
        None if rule is None else typed(rule, str),
        None if kept is None else typed(kept, int),
    )


def packed_one_shot(shot: OneShot) -> list[Any]:
    """Return a rule of one window as plain data."""
    return [shot.memory, shot.kind.value, shot.count, shot.min_relevance, shot.origin]


def unpacked_one_shot(memory: Any, kind: Any, count: Any, least: Any, origin: Any) -> OneShot:
    """Return the rule packed by ``packed_one_shot``. Raises: TypeError, ValueError."""
    return OneShot(
        typed(memory, str),
        InjectionKind(kind),
        None if count is None else typed(count, int),
        None if least is None else float(least),
        typed(origin, str),
    )


def packed_cut(place: int, shown: int, cut: Cut) -> list[Any]:
    """Return a cut as a row of the record; only of a compressed text are there spans."""
    row: list[Any] = [place, shown, cut.characters, cut.dots]
    return [*row, [list(span) for span in cut.spans]] if cut.spans else row


def unpacked_cut(row: Any) -> tuple[int, int, Cut]:
    """Return the place, the length and the cut of a row.

    Raises: ValueError, TypeError for anything else.
    """
    place, shown, characters, dots, *more = typed(row, list)
    (spans,) = more or ([],)
    parts = tuple((typed(start, int), typed(end, int)) for start, end in typed(spans, list))
    cut = Cut(typed(characters, int), typed(dots, bool), parts)
    if cut.characters < 0 or any(not 0 <= start <= end for start, end in parts):
        raise ValueError("no text is cut like this")
    return typed(place, int), typed(shown, int), cut
