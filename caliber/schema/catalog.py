"""Catalog of one store: lookup of its relations, built-in and declared, by name, code and plural.

The store's relation ``memory_type`` lists its declared memories; stores without any share the catalog ``BUILT_IN``.
Source: design, section 3; docs/decisions/0160.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from caliber.model.errors import StorageError
from caliber.model.references import EntityType
from caliber.schema.memories import BUILT_IN as BOUND
from caliber.schema.memories import MemoryBinding, built_in
from caliber.schema.relation import ForeignKey, Relation
from caliber.schema.relations import BY_CODE, BY_NAME, MIRRORED, RELATIONS
from caliber.schema.relations.storage import FIRST_CODE, LAST_CODE, TABLE_PREFIX, StoredMemory
from caliber.schema.traits import Mirror

Referrers = Mapping[str, Sequence[tuple[Relation, ForeignKey]]]


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """Every relation of a store, in an order in which references already exist; and its declared memories by name."""

    relations: tuple[Relation, ...]
    by_name: Mapping[str, Relation]
    by_code: Mapping[int, Relation]
    mirrored: tuple[Relation, ...]
    referrers: Referrers
    """Mirrored relations that refer to a relation, and by which key."""
    memories: Mapping[str, MemoryBinding] = field(default_factory=lambda: MappingProxyType({}))
    declared: Mapping[str, MemoryBinding] = field(default_factory=lambda: MappingProxyType({}))
    """The declared memories by the names of their relations."""
    revision: tuple[int, int] = (0, 0)
    """Version of its definitions: their number, dropped ones included, and the sum of their versions."""

    @property
    def declared_relations(self) -> tuple[Relation, ...]:
        """The relations of the declared memories."""
        return tuple(memory.relation for memory in self.memories.values())

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of records that a reference may name: those of every store, and its own relations."""
        return tuple(dict.fromkeys((*(kind.value for kind in EntityType), *self.by_name)))

    def binding(self, relation: str) -> MemoryBinding:
        """Return the memory whose records a relation of the store holds."""
        return self.declared.get(relation) or built_in(self.by_name[relation])

    @property
    def loadable(self) -> tuple[Relation, ...]:
        """The relations that are exported and loaded, each after those it refers to; the store writes the others."""
        found = (relation for relation in self.relations if relation.exported is not None)
        return tuple(sorted(found, key=lambda relation: relation.resident.form is Mirror.VECTORS))

    @property
    def embedded(self) -> tuple[Relation, ...]:
        """The relations whose records have vectors."""
        return tuple(relation for relation in self.relations if relation.embedded is not None)

    def named(self, name: str) -> MemoryBinding | None:
        """Return the memory of a name, built-in or declared; None if there is none."""
        return BOUND.get(name) or self.memories.get(name)

    def with_memories(self, stored: Iterable[StoredMemory]) -> Catalog:
        """Return the catalog of a store with these memories; itself for none.

        Raises: StorageError for definitions that CALIBER cannot have written.
        """
        rows = sorted(stored, key=lambda row: row.code)
        if not rows:
            return self
        codes = {row.code for row in rows}
        if len(codes) < len(rows) or not all(FIRST_CODE <= code <= LAST_CODE for code in codes):
            raise StorageError("memory_type holds an invalid or duplicate code; run `caliber doctor`")
        memories = {memory.type.name: memory for memory in _in_order(row for row in rows if row.retired_at is None)}
        declared = tuple(memory.relation for memory in memories.values())
        mirrored = (*MIRRORED, *declared)
        return Catalog(
            (*RELATIONS, *declared),
            MappingProxyType({**BY_NAME, **{relation.name: relation for relation in declared}}),
            MappingProxyType({**BY_CODE, **{relation.code: relation for relation in declared}}),
            mirrored,
            _referrers(mirrored),
            MappingProxyType(memories),
            MappingProxyType({memory.relation.name: memory for memory in memories.values()}),
            (len(rows), sum(row.version for row in rows)),
        )


def _referrers(mirrored: Iterable[Relation]) -> Referrers:
    found: dict[str, list[tuple[Relation, ForeignKey]]] = {}
    for relation in mirrored:
        for key in relation.foreign_keys:
            found.setdefault(key.relation, []).append((relation, key))
    return MappingProxyType(found)


def _in_order(rows: Iterable[StoredMemory]) -> list[MemoryBinding]:
    """Return memories, each after the one whose records its own belong to."""
    # Most stores have none, and opening one of them need not import the module that builds relations.
    from caliber.schema.declared_memories import bind_declared
    from caliber.schema.memory_definitions import memory_from

    waiting: dict[str, MemoryBinding] = {}
    for row in rows:
        memory = memory_from(row.definition)
        if memory.name != row.name or row.name in BOUND or row.name in waiting:
            raise StorageError("memory_type and its definition hold different names; run `caliber doctor`")
        waiting[row.name] = bind_declared(memory, row.code, plural_of(row.name))
    out: list[MemoryBinding] = []
    while waiting:
        ready = [name for name, memory in waiting.items() if memory.type.parent not in waiting]
        if not ready:
            raise StorageError("memory_type holds a circle of parents; run `caliber doctor`")
        out += [waiting.pop(name) for name in ready]
    names = {memory.type.name for memory in out} | BOUND.keys()
    if any(each.type.parent is not None and each.type.parent not in names for each in out):
        raise StorageError("memory_type names a missing parent; run `caliber doctor`")
    return out


_PLURALS = frozenset(name for relation in RELATIONS for name in (relation.plural, relation.name))


def plural_of(name: str) -> str:
    """Return the name of a memory's table in ``Caliber.storage``: no two have the same."""
    rest = name
    while rest not in _PLURALS and rest.startswith(TABLE_PREFIX):
        rest = rest.removeprefix(TABLE_PREFIX)
    return f"{TABLE_PREFIX}{name}" if rest in _PLURALS else name


BUILT_IN = Catalog(RELATIONS, MappingProxyType(BY_NAME), MappingProxyType(BY_CODE), MIRRORED, _referrers(MIRRORED))
"""The catalog of a store without declared memories."""
