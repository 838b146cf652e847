"""Cache of statements as they were read for comparison, by row of memory.

A row never changes, and an erasure makes new mirrors: with the old ones go the readings of their texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from caliber.resident.mirror import Generation, RelationSnapshot

if TYPE_CHECKING:
    from caliber.text.contradiction.reading import Reading

_MOST: Final = 4_096
"""Readings kept of one relation, about 2 kB each."""


class Readings:
    """The readings of one tenant. Threads may share it."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Generation, dict[int, Reading]] = WeakKeyDictionary()

    def of(self, owners: RelationSnapshot, number: int, text: str) -> Reading:
        """Return the text of a row as it is compared."""
        from caliber.text.contradiction.reading import read_statement  # word lists that few processes need

        kept = self._kept.setdefault(owners.generation, {})
        found = kept.get(number)
        if found is None:
            if len(kept) >= _MOST:
                kept.clear()
            found = kept[number] = read_statement(text)
        return found
