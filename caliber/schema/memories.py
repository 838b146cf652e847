"""The memories that every store has, and what their fields are called in the language. Source: C-183, K-058, K-060."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from caliber.schema.relation import Column, Relation
from caliber.schema.relations import BY_NAME
from caliber.schema.traits import Window


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A memory bound to a relation; ``names`` are fields that the language calls otherwise than the relation.

    ``vectors`` are fields that stand for the record's vector: they can be declared and indexed, not compared.
    ``unknown`` are fields of a declaration that is broken there: what is said of them counts as right.
    ``declared`` are the values of enums that a program declares fewer of than the relation has (K-059).
    """

    relation: Relation
    names: Mapping[str, str] = field(default_factory=dict)
    vectors: frozenset[str] = frozenset()
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()

    def column(self, name: str) -> Column | None:
        """Return the column behind a field, or None where there is none."""
        wanted = self.names.get(name, name)
        return next((column for column in self.relation.columns if column.name == wanted), None)

    @property
    def fields(self) -> tuple[str, ...]:
        """Every name by which a field can be called."""
        return (*(column.name for column in self.relation.columns), *self.names, *self.vectors)


_CONTENT = frozenset({"content_embedding"})
BUILT_IN: dict[str, BuiltIn] = {
    "trajectory": BuiltIn(BY_NAME["trajectory"], {"id": "trajectory_id", "goal_summary": "goal"}),
    "scope": BuiltIn(
        BY_NAME["scope"],
        {"id": "scope_id", "sequence": "sequence_number", "created_at": "opened_at"},
        frozenset({"summary_embedding"}),
    ),
    "artifact": BuiltIn(BY_NAME["artifact"], {"id": "artifact_id"}, _CONTENT),
    "note": BuiltIn(BY_NAME["note"], {"id": "note_id"}, _CONTENT),
    "turn_buffer": BuiltIn(BY_NAME["turn"], {"id": "turn_id"}, _CONTENT),
}
"""By name; a memory of another name is a relation of its own."""

OF_RELATION: dict[str, BuiltIn] = {memory.relation.name: memory for memory in BUILT_IN.values()}
"""By the name of the relation, which is what searches call a kind."""


def window_of(memory: str) -> Window | None:
    """Return how the records of a built-in memory stand in windows; None where none is made of them."""
    built_in = BUILT_IN.get(memory)
    return None if built_in is None else built_in.relation.window
