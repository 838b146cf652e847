"""Who a query names: speakers of turns, and what notes are about."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.search.legs import Floats, Searched
from caliber.search.query import names_in

_NAMED_BY = {"note": "entity", "turn": "name"}
_LONGEST = 6
"""Parts of the longest name that is recognised."""


class _Known:
    """The names of one column, as a query would spell them, and the codes of the values that are spelt so."""

    __slots__ = ("codes", "read")

    def __init__(self) -> None:
        self.codes: dict[tuple[str, ...], list[int]] = {}
        self.read = 0


class Names:
    """The names that records go by; read once a distinct value."""

    def __init__(self, spelt: Callable[[str], tuple[str, ...]]) -> None:
        self._spelt = spelt
        self._lock = threading.Lock()
        self._known: weakref.WeakKeyDictionary[Generation, _Known] = weakref.WeakKeyDictionary()

    def named(self, searched: Sequence[Searched], parts: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the names that a query holds and that somebody in sight goes by.

        A name that only hidden records have is no name: it would show in what the query finds.
        """
        known = [(item, self._of(item.owners)) for item in searched if item.kind in _NAMED_BY]

        def in_sight(name: tuple[str, ...]) -> bool:
            # Asked before the longest is taken: a longer hidden name must not stand in for a shorter one.
            return any(name in names and (self.rows(item, name)[item.visible] > 0).any() for item, names in known)

        return names_in(parts, in_sight, _LONGEST)

    def rows(self, item: Searched, name: tuple[str, ...]) -> Floats:
        """Return 1 for the rows that go by a name. Shapes: ``f64[owners.length]``."""
        out = np.zeros(item.owners.length)
        column = _NAMED_BY.get(item.kind)
        if column is not None:
            codes = item.owners.column(column)
            for code in self._of(item.owners).get(name, ()):
                out[codes == code] = 1.0
        return out

    def _of(self, owners: RelationSnapshot) -> dict[tuple[str, ...], list[int]]:
        with self._lock:
            known = self._known.get(owners.generation)
            if known is None:
                known = self._known[owners.generation] = _Known()
            values = owners.interned(_NAMED_BY[owners.relation.name])
            while known.read < len(values):
                value = values[known.read]
                spelt = self._spelt(value)[:_LONGEST] if isinstance(value, str) else ()
                if spelt:
                    known.codes.setdefault(spelt, []).append(known.read)
                known.read += 1
            return known.codes
