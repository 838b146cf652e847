"""Class ``MemoryBinding``: a memory's relation and field names; the bindings of built-in memories.

Source: C-183, K-058, K-060.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from caliber.model.declared import MemoryCategory
from caliber.model.lazy_dataclass import dataclass
from caliber.schema.memory_types import FieldType, MemoryType, Retention, RetentionKind
from caliber.schema.relation import Column, Relation, Residence
from caliber.schema.relations import RELATIONS
from caliber.schema.traits import Window

BLOCKS: Final = "memory_block"
"""The declared memory whose records stand in every window of their owner; it comes with CALIBER."""
_BLOCK_FIELDS: Final = {"owner", "label", "description", "kind", "used", "max_chars", "agents", "writers", "content"}


def holds_blocks(memory: MemoryType) -> bool:
    """Return True for the memory of blocks; False for one of an application that has its name."""
    return memory.name == BLOCKS and {field.name for field in memory.fields} >= _BLOCK_FIELDS


_STAYS = Retention(RetentionKind.PERSISTENT)


@dataclass(frozen=True, slots=True)
class MemoryBinding:
    """A memory bound to a relation; ``names`` are fields that the language calls otherwise than the relation.

    ``vectors`` are fields that stand for the record's vector: they can be declared and indexed, not compared.
    ``unknown`` are fields of a declaration that is broken there: every use of them passes the checks.
    ``declared`` are the values of enums that a program declares fewer of than the relation has (K-059).
    """

    relation: Relation
    type: MemoryType
    names: Mapping[str, str] = field(default_factory=dict)
    vectors: frozenset[str] = frozenset()
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    content: str | None = None
    """The field that holds a record's main text: the embedded one, or the first."""
    declared_columns: tuple[str, ...] = ()
    """The columns of declared fields; the others are the same for every declared memory."""

    def column(self, name: str) -> Column | None:
        """Return the column of a field, or None if there is none."""
        column_name = self.names.get(name, name)
        column = self.relation.column(column_name) if self.relation.has(column_name) else None
        return column if column is not None and _is_field(column) else None

    @property
    def embedded(self) -> str | None:
        """The field whose vectors are kept, or None."""
        return self.relation.embedded

    @property
    def text_field(self) -> str | None:
        """The main text field of a record; None if it has none."""
        texts = (item.name for item in self.type.fields if item.type is FieldType.TEXT)
        return self.content or next(texts, None)

    @property
    def fields(self) -> tuple[str, ...]:
        """Every name by which a field can be called."""
        return (*(column.name for column in self.relation.columns if _is_field(column)), *self.names, *self.vectors)


def _is_field(column: Column) -> bool:
    """Return whether a column has a name in filters and records: what the store keeps for itself has none."""
    return column.declared or column.residence is not Residence.STORED


@functools.lru_cache(maxsize=64)
def built_in(relation: Relation) -> MemoryBinding:
    """Return the memory of a relation that every store has, as filters see it."""
    trait, text = relation.memory, relation.text
    name, category = (relation.name, MemoryCategory.META) if trait is None else (trait.name, trait.category)
    return MemoryBinding(
        relation,
        MemoryType(name, category, (), _STAYS),
        {} if trait is None else dict(trait.names),
        frozenset(() if trait is None else trait.vectors),
        content=None if text is None else text.embedded or text.searched[0],
    )


BUILT_IN: dict[str, MemoryBinding] = {
    relation.memory.name: built_in(relation) for relation in RELATIONS if relation.memory is not None
}
"""The built-in memories, by name; a memory of another name is its own relation."""


def window_of(memory: str) -> Window | None:
    """Return the window trait of a built-in memory's records; None if windows do not use them."""
    bound = BUILT_IN.get(memory)
    return None if bound is None else bound.relation.window
