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

    __slots__ = ("codes", "firsts", "read")

    def __init__(self) -> None:
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
        candidates = [(item, self._of(item.owners)) for item in searched if _name_of(item.owners) is not None]
        # Most words begin no name: one look each.
        if all(names.firsts.isdisjoint(parts) for _, names in candidates):
            return []

        def in_sight(name: tuple[str, ...]) -> bool:
            # Checked before the longest is chosen: a longer hidden name must not replace a shorter visible one.
            for item, names in candidates:
                if name in names.codes and self.marked(item, name, item.visible).any():
                    return True
            return False

        return names_in(parts, in_sight, _LONGEST)

    def marked(self, item: KindSearch, name: tuple[str, ...], rows: Ints | Bools) -> Bools:
        """Return the mask of rows that go by a name. Shapes: rows as an index -> ``bool[rows]``."""
        column = _name_of(item.owners)
        if column is None:
            return np.zeros(len(rows), np.bool_)
        codes = item.owners.column(column)[rows]
        found: Bools = np.zeros(len(codes), np.bool_)
        for code in self._of(item.owners).codes.get(name, ()):
            found |= codes == code
        return found

    def _of(self, owners: RelationSnapshot) -> _Known:
        with self._lock:
            cached = self._known.get(owners.generation)
            if cached is None:
                cached = self._known[owners.generation] = _Known()
            values = owners.interned(_name_of(owners) or "")
            if cached.read < len(values):
                fresh = [value if isinstance(value, str) else "" for value in values[cached.read :]]
                for code, name in enumerate(self._spelt(fresh), cached.read):
                    spelling = name[:_LONGEST]
                    if spelling:
                        cached.codes.setdefault(spelling, []).append(code)
                        cached.firsts.add(spelling[0])
                cached.read += len(fresh)
            return cached


def _name_of(owners: RelationSnapshot) -> str | None:
    """Return the column of the name that records of a relation go by."""
    return None if owners.relation.text is None else owners.relation.text.head
