"""Names of visible records (speakers, subjects of notes): recognised in a query, and matched with rows."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.search.query import names_in
from caliber.search.ranking.legs import Bools, Ints, KindSearch

_LONGEST = 6
"""Parts of the longest name that is recognised."""


class _Known:
    """The names of one column, as a query would spell them, and the codes of the values that are spelt so."""

    __slots__ = ("codes", "column", "firsts", "read")

    def __init__(self, column: str) -> None:
        self.column = column
        self.codes: dict[tuple[str, ...], list[int]] = {}
        self.firsts: set[str] = set()
        self.read = 0


class Names:
    """The names that records go by; read once a distinct value."""

    def __init__(self, spelling: Callable[[Sequence[str]], list[tuple[str, ...]]]) -> None:
        self._spelt = spelling
        self._lock = threading.Lock()
        self._known: weakref.WeakKeyDictionary[Generation, _Known] = weakref.WeakKeyDictionary()

    def named(self, searched: Sequence[KindSearch], parts: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the names in a query that a visible record has.

        A name that only hidden records have is not recognised: results would reveal it.
        """
        # Checked before the longest is chosen: a longer hidden name must not replace a shorter visible one.
        visible: set[tuple[str, ...]] = set()
        for item in searched:
            names = self._of(item.owners)
            if names is None or names.firsts.isdisjoint(parts):
                continue  # most words begin no name: one look each
            for start in range(len(parts)):
                for end in range(start + 1, start + 1 + _LONGEST) if parts[start] in names.firsts else ():
                    name = tuple(parts[start:end])
                    if name in names.codes and name not in visible and self._in_sight(item, name):
                        visible.add(name)
        return names_in(parts, visible.__contains__, _LONGEST) if visible else []

    def _in_sight(self, item: KindSearch, name: tuple[str, ...]) -> bool:
        """Return whether a visible record goes by a name."""
        remembered = item.visibility.remembered.get(name)
        if remembered is None:
            remembered = item.visibility.remember(name, bool(self.marked(item, name, item.visible).any()))
        return remembered

    def marked(self, item: KindSearch, name: tuple[str, ...], rows: Ints | Bools) -> Bools:
        """Return the mask of rows that go by a name. Shapes: rows as an index -> ``bool[rows]``."""
        names = self._of(item.owners)
        if names is None:
            return np.zeros(len(rows), np.bool_)
        codes = item.owners.column(names.column)[rows]
        found: Bools = np.zeros(len(codes), np.bool_)
        for code in names.codes.get(name, ()):
            found |= codes == code
        return found

    def _of(self, owners: RelationSnapshot) -> _Known | None:
        """Return the names of a relation; None for one whose records go by none."""
        column = None if owners.relation.text is None else owners.relation.text.head
        if column is None:
            return None
        with self._lock:
            cached = self._known.get(owners.generation)
            if cached is None:
                cached = self._known[owners.generation] = _Known(column)
            values = owners.interned(column)
            if cached.read < len(values):
                fresh = [value if isinstance(value, str) else "" for value in values[cached.read :]]
                for code, name in enumerate(self._spelt(fresh), cached.read):
                    spelling = name[:_LONGEST]
                    if spelling:
                        cached.codes.setdefault(spelling, []).append(code)
                        cached.firsts.add(spelling[0])
                cached.read += len(fresh)
            return cached
