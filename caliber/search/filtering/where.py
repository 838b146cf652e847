"""Filters of the language in a search: which of the records in sight they let through.

Source: C-161 to C-165; docs/decisions/0147.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caliber.resident.mirror import RelationSnapshot
from caliber.schema.predicate import Comparison, Predicate, Variable


@dataclass(frozen=True, slots=True)
class Where:
    """A filter as it was compiled for each kind that is searched, and what its variables stand for."""

    predicates: Mapping[str, Predicate]
    variables: Mapping[Variable, Any]

    def key(self, kind: str) -> tuple[Predicate, tuple[Any, ...]] | None:
        """Return what the answers of a kind may be kept by; None where they change with the clock."""
        asked = variables_of(self.predicates[kind])
        if Variable.NOW in asked:
            return None
        return self.predicates[kind], tuple(self.variables[name] for name in sorted(asked))


def variables_of(predicate: Predicate) -> frozenset[Variable]:
    """Return the variables that a predicate names."""
    if isinstance(predicate, Comparison):
        return frozenset((predicate.value,)) if isinstance(predicate.value, Variable) else frozenset()
    return frozenset().union(*map(variables_of, predicate.conditions))


def held_texts(snapshot: RelationSnapshot, rows: Sequence[int]) -> list[Any]:
    """Return the texts of rows of a mirror that none has left."""
    return [snapshot.text(row) for row in rows]
