"""Immutable snapshot of resident memory: every mirror of a tenant at one commit boundary. Source: design, section 5."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from caliber.kernels.evaluator import Evaluator
from caliber.model.embedding import EmbeddingSpace
from caliber.model.lazy_dataclass import dataclass
from caliber.model.windows import Position
from caliber.resident.frame import not_resident
from caliber.resident.indexes import IndexKey
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.vectors import VectorSnapshot
from caliber.schema.relations import MIRRORED
from caliber.storage.write.catalog_guard import stale_catalog

ENTITY_RELATIONS = tuple(
    relation.name
    for relation in sorted(MIRRORED, key=lambda relation: (relation.text is None, -relation.code))
    if relation.by_id
)
"""The order in which ``get`` looks up an id: relations with text first, declared memories last."""


@dataclass(frozen=True, slots=True)
class ResidentSnapshot:
    """Everything resident at one commit boundary."""

    position: Position
    relations: dict[str, RelationSnapshot]
    vectors: dict[IndexKey, VectorSnapshot]
    spaces: dict[uuid.UUID, EmbeddingSpace]
    evaluator: Evaluator
    space_in_use: uuid.UUID | None = None
    """The embedding space that is searched."""
    elsewhere: Callable[[str, bytes], RelationSnapshot] | None = None
    """Reads the record under an id of a relation that is not in memory; None while all of them are."""
    entities: tuple[str, ...] = ENTITY_RELATIONS
    """The relations whose records are found by their id alone."""
    gone: frozenset[str] = frozenset()
    """Memories that another process removed, or took a field from, while this one had the store open."""

    def __getitem__(self, relation: str) -> RelationSnapshot:
        found = self.relations.get(relation)
        if found is None:
            raise stale_catalog() if relation in self.gone else not_resident(relation)
        return found

    def locate(self, key: bytes) -> tuple[RelationSnapshot, int] | None:
        """Return the relation and row of an id, whatever kind of record it names, or None."""
        for name in self.entities:
            held = name in self.relations or self.elsewhere is None
            snapshot = self[name] if held else self.elsewhere(name, key)  # type: ignore[misc]
            number = snapshot.find(key)
            if number >= 0:
                return snapshot, number
        return None

    def locate_all(self, keys: Sequence[bytes]) -> list[tuple[RelationSnapshot, int] | None]:
        """Return the relation and row of each of some ids, or None, as ``locate`` does."""
        if self.elsewhere is not None:
            return [self.locate(key) for key in keys]
        out: list[tuple[RelationSnapshot, int] | None] = [None] * len(keys)
        left = list(range(len(keys)))
        for name in self.entities if keys else ():
            snapshot = self[name]
            numbers = snapshot.find_all([keys[place] for place in left])
            for place, number in zip(left, numbers, strict=True):
                if number >= 0:
                    out[place] = snapshot, number
            left = [place for place, number in zip(left, numbers, strict=True) if number < 0]
            if not left:
                break
        return out
