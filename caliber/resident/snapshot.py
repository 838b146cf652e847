"""Immutable snapshot of resident memory: every mirror of a tenant at one commit boundary.

With ``search.mode = "backend"`` memory holds the relations of ``FRAME`` alone. Source: design, section 5.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.evaluator import Allowed, Evaluator, Within
from caliber.model.embedding import EmbeddingSpace
from caliber.model.errors import Unavailable
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import Clock
from caliber.model.windows import Position
from caliber.resident.indexes import IndexKey
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.tables import HASH_BITS, HASH_HIGH, HASH_LOW, HASH_MASK, NO_ID, PAIR
from caliber.resident.vectors import VectorSnapshot
from caliber.schema.relation import Relation, Residence
from caliber.schema.relations import MIRRORED
from caliber.storage.compile.codec import damaged
from caliber.storage.stored_memories import stale_catalog

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
        try:
            high, low = pair = [*PAIR.unpack(key)]
        except struct.error:
            raise damaged(NO_ID) from None
        mixed = (high * HASH_HIGH + low * HASH_LOW) & HASH_MASK
        for name in self.entities:
            rows = self.relations.get(name)
            if rows is None:
                rows = self[name] if self.elsewhere is None else self.elsewhere(name, key)
            # As ``find``, without a call for each step: a read by id probes one relation after another.
            generation = rows.generation
            table, ties, per = generation.index.table, generation.ties.segments, generation.segment_rows  # type: ignore[union-attr]
            last = len(table) - 1
            slot = mixed >> (HASH_BITS - last.bit_length())
            while (number := table.item(slot)) >= 0:
                if ties[number // per][number % per].tolist() == pair:
                    number = number if number < rows.length else rows.current(number)
                    if number >= 0 and rows.live_mask[number]:
                        return rows, number
                    break
                slot = (slot + 1) & last
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


FRAME: tuple[Relation, ...] = tuple(relation for relation in MIRRORED if relation.resident.framed)
"""The relations in memory of a tenant whose records are not: tasks, scopes, pending injections, spaces."""


def not_resident(relation: str) -> Unavailable:
    """Return the error for a read of a relation that is not in memory."""
    return Unavailable(
        f'this call reads every {relation} from memory, and search.mode = "backend" keeps none there; use search() and'
        ' get(), or open the store with search.mode = "resident"',
        reason="not_resident",
        retryable=False,
    )


def visible_rows(
    snapshot: RelationSnapshot, at_us: int, allowed: Allowed | None = None, start: int = 0, *, archived: bool = False
) -> NDArray[np.bool_]:
    """Return the mask of rows from row ``start`` on that are active, valid at an instant and visible.

    ``archived`` rows count as active too, if that is True. Shapes: ``bool[snapshot.length - start]``
    """
    flags, instants = _columns_of(snapshot.relation, archived)
    live = snapshot.live_mask[start:]
    times = snapshot.relation.times
    ranges = [Within(snapshot.column(name)[start:], unset, unset) for name, unset in instants]
    if times.since is not None:
        ranges.append(Within(snapshot.column(times.since)[start:], most=at_us))
    if times.until is not None:
        ranges.append(Within(snapshot.column(times.until)[start:], least=at_us + 1))
    if allowed is not None and start:
        allowed = Allowed(allowed.codes[start:], allowed.verdicts)
    if len(flags) == 1 and len(ranges) == 3:
        one, two, three = ranges
        return snapshot.evaluator.valid_rows(live, snapshot.column(flags[0])[start:], (one, two, three), allowed)
    found = live.copy()
    for name in flags:
        found &= snapshot.column(name)[start:] == 0
    for bounds in ranges:
        found &= (bounds.column >= bounds.least) & (bounds.column <= bounds.most)
    if allowed is not None:
        found &= allowed.mask()
    return found


def is_gone(snapshot: RelationSnapshot, row: int, clock: Clock) -> bool:
    """Return whether the instant has passed from which a record is gone, though no sweep has deleted it yet."""
    until = snapshot.relation.gone_at
    return until is not None and bool(snapshot.column(until)[row] <= clock.now_us())


def active_rows(snapshot: RelationSnapshot, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of some rows that are active, valid or not. Shapes: ``int64[n]``"""
    flags, instants = _columns_of(snapshot.relation)
    found = np.ones(len(rows), np.bool_)
    for name in flags:
        found &= snapshot.column(name)[rows] == 0
    for name, unset in instants:
        found &= snapshot.column(name)[rows] == unset
    return rows[found]


@functools.lru_cache(maxsize=512)
def _columns_of(relation: Relation, archived: bool = False) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Return the columns that are empty in an active record, or an ``archived`` one: flags, instants and their null."""
    names = [name for name in relation.active if not archived or name != relation.archive]
    flags = [name for name in names if relation.column(name).residence is Residence.FLAG]
    instants = [(name, int(relation.column(name).resident_null or 0)) for name in names if name not in flags]
    return tuple(flags), tuple(instants)
