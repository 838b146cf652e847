"""Cache of statements as they were read for comparison, by row of memory, and of the names of their subjects.

A row never changes, and an erasure makes new mirrors: with the old ones go the readings of their texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from caliber.resident.mirror import Generation, RelationSnapshot

if TYPE_CHECKING:
    from caliber.text.contradiction.reading import Reading

_Read = TypeVar("_Read")
_MOST: Final = 4_096
"""Readings and names kept of one relation, about 2 kB each."""


class Readings:
    """The readings of one tenant. Threads may share it."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Generation, dict[int | str, Any]] = WeakKeyDictionary()

    def of(self, owners: RelationSnapshot, number: int, text: str) -> Reading:
        """Return the text of a row as it is compared."""
        kept = self._kept_of(owners)
        found: Reading | None = kept.get(number)
        if found is None:
            from caliber.text.contradiction.reading import read_statement  # word lists that few processes need

            found = _keep(kept, number, read_statement(text))
        return found

    def subject(self, owners: RelationSnapshot, name: str) -> tuple[str, ...]:
        """Return the keys of the name that statements of a relation are stored under."""
        kept = self._kept_of(owners)
        found: tuple[str, ...] | None = kept.get(name)
        if found is None:
            from caliber.text.contradiction.rules import keys_of

            found = _keep(kept, name, keys_of(name))
        return found

    def _kept_of(self, owners: RelationSnapshot) -> dict[int | str, Any]:
        kept = self._kept.get(owners.generation)
        return self._kept.setdefault(owners.generation, {}) if kept is None else kept


def _keep(kept: dict[int | str, Any], place: int | str, value: _Read) -> _Read:
    if len(kept) >= _MOST:
        kept.clear()
    kept[place] = value
    return value
