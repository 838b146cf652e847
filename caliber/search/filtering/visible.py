"""Cache of masks of the rows that a principal may see at a boundary and instant, with filter masks and counts.

Consecutive searches need the same mask over all rows, so the mask is cached with the counts over it. It is reused only
for the same boundary, the same access decisions, and an instant between two at which some record begins or ends to be
valid. Rows that were committed since are checked alone: rows are only added, and a retired row stays retired.

A caller's filter text is compiled to one predicate per kind of record, with a cache. The parser is imported with the
first filter text, so callers without one do not wait for it.

Source: design, section 5; C-161 to C-165; docs/search.md; docs/decisions/0147.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.dsl.variables import variables_of
from caliber.kernels import KeywordSnapshot
from caliber.kernels.evaluator import LEAST_INSTANT, MOST_INSTANT, Allowed
from caliber.model.access import Principal
from caliber.model.errors import CaliberError, ConfigError, InvalidValue, MultipleErrors
from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.resident.predicates import Texts, held_texts, mask
from caliber.schema.memories import MemoryBinding
from caliber.schema.predicate import Predicate, Variable
from caliber.schema.validity import asked_us
from caliber.search.filtering.filters import Seen, Where, alive

Bools = NDArray[np.bool_]

_KEPT = 16
"""Cache entries per kind of record: this many principals, or instants, can alternate without eviction."""

_REMEMBERED = 4_096
"""Beginnings of words and names of which it is remembered whether a visible record has them."""

_FILTERS = 16
"""Masks that one set of visible rows keeps, each of another filter."""


class VisibleRows:
    """The visible rows. ``visible`` is read-only. Shapes: ``bool[length of the mirror]``"""

    __slots__ = (
        "_before",
        "_grown",
        "_lengths",
        "count",
        "dead",
        "filtered",
        "live",
        "newest_us",
        "remembered",
        "since_us",
        "until_us",
        "verdicts",
        "visible",
    )

    def __init__(self, visible: Bools) -> None:
        self.visible = visible
        self.count = int(np.count_nonzero(visible))
        self.newest_us: int | None = None  # set on first use
        self.remembered: dict[Hashable, bool] = {}
        self.filtered: dict[object, Bools] = {}
        self._before: dict[object, Bools] = {}  # of earlier boundaries, over the rows of those
        # The conditions under which the entry is valid.
        self.live: Bools | None = None
        self.dead = 0
        self.verdicts: Bools | None = None
        self.since_us, self.until_us = LEAST_INSTANT, MOST_INSTANT
        self._lengths: int | None = None
        self._grown: tuple[int, NDArray[np.int64], int] | None = None

    def meeting(self, owners: RelationSnapshot, where: Where, texts: Texts) -> Bools:
        """Return which of the rows meet a filter, read-only; no other row is read."""
        predicate, key = where.predicates[owners.relation.name], where.key(owners.relation.name)
        if key is not None:
            return self._kept(owners, predicate, where.variables, texts, key)
        return mask(predicate, owners, where.variables, texts, self.visible)

    def having(self, owners: RelationSnapshot, predicate: Predicate, key: Hashable | None = None) -> Bools:
        """Return the rows that meet a condition without variable and text, read-only; ``key`` may stand for it."""
        return self._kept(owners, predicate, {}, held_texts, key or predicate)

    def _kept(
        self,
        owners: RelationSnapshot,
        predicate: Predicate,
        variables: Mapping[Variable, Any],
        texts: Texts,
        key: object,
    ) -> Bools:
        cached = self.filtered.get(key)
        if cached is None:
            before = self._before.get(key, self.visible[:0])
            fresh = self.visible.copy()
            fresh[: len(before)] = False
            cached = mask(predicate, owners, variables, texts, fresh)
            np.logical_and(before, self.visible[: len(before)], out=cached[: len(before)])
            cached.flags.writeable = False
            if len(self.filtered) >= _FILTERS:
                self.filtered.clear()
            self.filtered[key] = cached
        return cached

    def lengths(self, words: KeywordSnapshot) -> int:
        """Return the number of terms in visible texts: whole numbers, so the sum is exact in any order."""
        if self._lengths is None:
            lengths = words.lengths[: len(self.visible)]
            if self._grown is None:
                self._lengths = _sum(lengths, self.visible)
            else:
                before, lost, start = self._grown
                gone = int(lengths[lost].sum(dtype=np.int64))
                self._lengths = before - gone + _sum(lengths[start:], self.visible[start:])
        return self._lengths

    def mean_length(self, words: KeywordSnapshot) -> float:
        """Return the mean number of terms in a visible text; 0 without any."""
        lengths = self.lengths(words) if self._lengths is None else self._lengths
        return lengths / self.count if self.count else 0.0

    def remember(self, key: Hashable, answer: bool) -> bool:
        """Remember whether a visible record goes by a name, or holds a term in one of some spellings; return it."""
        if len(self.remembered) >= _REMEMBERED:
            self.remembered.clear()
        self.remembered[key] = answer
        return answer

    def grown(self, visible: Bools) -> VisibleRows:
        """Return the entry for a later boundary: ``visible`` tells which rows of this one remain."""
        later = VisibleRows(visible)
        start = len(self.visible)
        if self._lengths is not None:
            lost = np.flatnonzero(self.visible & ~visible[:start]) if self.count else np.zeros(0, np.int64)
            later._grown = (self._lengths, lost, start)
        later._before = {**self._before, **self.filtered} if len(self._before) < _FILTERS else self.filtered
        later.verdicts, later.since_us, later.until_us = self.verdicts, self.since_us, self.until_us
        return later


def _sum(lengths: NDArray[np.uint32], mask: Bools) -> int:
    return int(np.dot(lengths.astype(np.int64), mask))


class VisibleCache:
    """The sights of one store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.known: weakref.WeakKeyDictionary[Generation, list[VisibleRows]] = weakref.WeakKeyDictionary()

    def of(
        self, owners: RelationSnapshot, readers: Seen, as_of_us: int, now_us: int, *, archived: bool = False
    ) -> VisibleRows:
        """Return which rows are in force, or ``archived``, and may be seen: by valid time at ``as_of_us``, else now."""
        seen = readers.over(owners)
        at = asked_us(owners.relation, as_of_us, now_us)
        if archived or (seen is not None and not seen.interned):
            return VisibleRows(alive(owners, at, seen, archived=archived))
        verdicts = None if seen is None else seen.verdicts
        with self._lock:
            entries = self.known.setdefault(owners.generation, [])
            older = None
            for place, entry in enumerate(entries):
                agrees = entry.verdicts is verdicts or _agree(entry.verdicts, verdicts)
                if not (entry.since_us <= at < entry.until_us and agrees):
                    continue
                if entry.live is owners.live_mask:
                    if place:
                        entries.insert(0, entries.pop(place))
                    return entry
                if len(entry.visible) <= owners.length and entry.dead <= owners.dead:
                    older = place if older is None else older
            found = _fresh(owners, seen, at) if older is None else _grown(entries.pop(older), owners, seen, at)
            entries.insert(0, found)
            del entries[_KEPT:]
            return found


def _agree(one: Bools | None, other: Bools | None) -> bool:
    """Return whether two lists of verdicts agree up to the shorter length: lists of readers are only ever appended."""
    if one is None or other is None:
        return False
    shared = min(len(one), len(other))
    return bool((one[:shared] == other[:shared]).all())


def _fresh(owners: RelationSnapshot, seen: Allowed | None, at: int) -> VisibleRows:
    return _marked(VisibleRows(alive(owners, at, seen)), owners, seen, at, 0)


def _grown(before: VisibleRows, owners: RelationSnapshot, seen: Allowed | None, at: int) -> VisibleRows:
    start = len(before.visible)
    visible = np.empty(owners.length, np.bool_)
    np.logical_and(before.visible, owners.live_mask[:start], out=visible[:start])
    if start < owners.length:
        visible[start:] = alive(owners, at, seen, start)
    return _marked(before.grown(visible), owners, seen, at, start)


def _marked(entry: VisibleRows, owners: RelationSnapshot, seen: Allowed | None, at: int, start: int) -> VisibleRows:
    """Record the conditions of an entry: this boundary, these verdicts, and an expiry instant."""
    entry.visible.flags.writeable = False
    entry.live, entry.dead = owners.live_mask, owners.dead
    entry.verdicts = None if seen is None else seen.verdicts
    for name in owners.relation.times.bounds:
        instants = owners.column(name)[start:]
        begun = instants <= at
        entry.since_us = max(entry.since_us, int(instants.max(where=begun, initial=LEAST_INSTANT)))
        entry.until_us = min(entry.until_us, int(instants.min(where=~begun, initial=MOST_INSTANT)))
    return entry


if TYPE_CHECKING:
    from collections.abc import Iterator

    from caliber.dsl import ast

_FILTERS_KEPT: Final = 256
_KEPT_CHARS: Final = 4_096
"""Longer texts are compiled each time, so that the cache stays small."""


class Filters:
    """The compiled filters of one store. ``memory_of`` gives the fields of a kind. Safe to share between threads."""

    def __init__(self, memory_of: Callable[[str], MemoryBinding]) -> None:
        self._memory_of = memory_of
        self._lock = threading.Lock()
        self.kept: dict[tuple[str, tuple[str, ...], bool], dict[str, Predicate]] = {}

    def clear(self) -> None:
        """Clear the cache: a filter text may name an erased subject."""
        with self._lock:
            self.kept.clear()

    def of(self, text: str, kinds: Sequence[str], *, named: bool) -> Mapping[str, Predicate]:
        """Return the condition of a filter text for each kind that it fits.

        ``named`` kinds, those that the caller listed, are never left out.

        Raises: InvalidValue, with all that is wrong in the text.
        """
        key = (text, tuple(kinds), named)
        with self._lock:
            cached = self.kept.get(key)
        if cached is None:
            cached = self._compiled(text, kinds, named)
            if len(text) <= _KEPT_CHARS:
                with self._lock:
                    if len(self.kept) >= _FILTERS_KEPT:
                        self.kept.clear()
                    self.kept[key] = cached
        return cached

    def _compiled(self, text: str, kinds: Sequence[str], named: bool) -> dict[str, Predicate]:
        from caliber.dsl.filters import compile_condition
        from caliber.dsl.parser import read_condition
        from caliber.dsl.source import Source, nearest

        source = Source(text, "<filter>")
        try:
            condition = read_condition(source)
        except MultipleErrors as error:
            raise _wrong(error.context["errors"]) from error
        if not kinds:
            return {}
        fields = dict.fromkeys(_fields(condition))
        lacking = {kind: [name for name in fields if not self._has(kind, name)] for kind in kinds}
        fitting = [kind for kind in kinds if not lacking[kind]]
        if named and fitting and len(fitting) < len(kinds):
            what = "; ".join(f"{kind} has no {', '.join(lacking[kind])}" for kind in kinds if lacking[kind])
            raise InvalidValue(field="filter", reason=f"{what}; search only {', '.join(fitting)}, or name no kinds")
        out: dict[str, Predicate] = {}
        faults: list[ConfigError] = []

        def distance(kind: str) -> tuple[int, int]:
            known = self._memory_of(kind).fields
            return len(lacking[kind]), sum(not nearest(name, known) for name in lacking[kind])

        # A filter that fits no kind is compiled for the nearest one, whose error explains the fault.
        for kind in fitting or [min(kinds, key=distance)]:
            predicate, found, _ = compile_condition(source, condition, self._memory_of(kind))
            faults += found
            if predicate is not None:
                out[kind] = predicate
        if faults and (named or not out):
            raise _wrong(faults)
        return out

    def _has(self, kind: str, name: str) -> bool:
        memory = self._memory_of(kind)
        return name in memory.vectors or memory.column(name) is not None


def _fields(condition: ast.Value) -> Iterator[str]:
    """Yield the fields that a condition compares."""
    from caliber.dsl import ast

    if isinstance(condition, ast.Joined):
        for part in condition.conditions:
            yield from _fields(part)
    elif isinstance(condition, ast.Compared) and isinstance(condition.left, ast.Word):
        yield condition.left.text


def _wrong(faults: Sequence[CaliberError]) -> InvalidValue:
    messages = dict.fromkeys(map(str, faults))
    return InvalidValue(field="filter", reason="\n".join(messages))


def variables(principal: Principal, now_us: int) -> Mapping[Variable, object]:
    """Return the variables of a filter outside a task: there is no trajectory and no scope."""
    return variables_of(None, None, principal.label, now_us)
