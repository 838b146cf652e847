"""Cache of statements as they were read for comparison, and of the rules' verdicts on pairs of them, by row of memory.

A row never changes, and an erasure makes new mirrors: with the old ones goes everything that was kept of their texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from caliber.resident.mirror import Generation

if TYPE_CHECKING:
    from caliber.model.guard.validation import Verdict
    from caliber.pcp.pairs import Candidate, Statement
    from caliber.text.contradictions import Reading

_MOST_READINGS: Final = 4_096
"""Readings kept of one relation, about 2 kB each."""
_MOST_VERDICTS: Final = 65_536
"""Verdicts kept of pairs of one relation, about 150 bytes each: more than one check compares."""
_UNKNOWN: Final = object()


class RelationReadings:
    """The readings and verdicts of the rows of one relation."""

    __slots__ = ("readings", "subjects", "verdicts")

    def __init__(self) -> None:
        self.readings: dict[int, Reading] = {}
        self.subjects: dict[str, tuple[str, ...]] = {}
        self.verdicts: dict[tuple[int, int], Verdict | None] = {}


class Readings:
    """The readings and verdicts of one tenant. Threads may share it."""

    def __init__(self) -> None:
        self.kept: WeakKeyDictionary[Generation, RelationReadings] = WeakKeyDictionary()

    def verdicts(self, pairs: Sequence[Candidate]) -> list[Verdict | None]:
        """Return by rule how each pair of statements contradicts itself, or None."""
        out: list[Verdict | None] = []
        generation: Generation | None = None
        kept = RelationReadings()
        for first, second, _ in pairs:
            if first.owners.generation is not generation:
                generation = first.owners.generation
                kept = self._of(generation)
            if second.owners.generation is not generation:
                out.append(self._compared(first, second))
                continue
            place = first.number, second.number
            found: Any = kept.verdicts.get(place, _UNKNOWN)
            if found is _UNKNOWN:
                found = self._compared(first, second)
                _keep(kept.verdicts, place, found, _MOST_VERDICTS)
            out.append(found)
        return out

    def _compared(self, first: Statement, second: Statement) -> Verdict | None:
        from caliber.text.contradictions import compare, keys_of  # word lists that few processes need

        keys: tuple[str, ...] | None = None
        if first.subject and first.subject == second.subject:
            name, kept = first.subject[0], self._of(first.owners.generation)
            keys = kept.subjects.get(name)
            if keys is None:
                keys = keys_of(name)
                _keep(kept.subjects, name, keys, _MOST_READINGS)
        return compare(self._reading(first), self._reading(second), keys)

    def _reading(self, statement: Statement) -> Reading:
        from caliber.text.contradictions import read_statement

        kept = self._of(statement.owners.generation)
        found = kept.readings.get(statement.number)
        if found is None:
            found = read_statement(statement.text)
            _keep(kept.readings, statement.number, found, _MOST_READINGS)
        return found

    def _of(self, generation: Generation) -> RelationReadings:
        kept = self.kept.get(generation)
        return self.kept.setdefault(generation, RelationReadings()) if kept is None else kept


def _keep(kept: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    if len(kept) >= most:
        kept.clear()
    kept[key] = value
