"""Vector index of one kind of record in one embedding space, and its snapshots, searched exactly by kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from caliber.kernels import VectorMatrix, checks
from caliber.kernels.vectors.scoring import Bounds
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.tables import KeyTable, OrdinalTable, SegmentedColumn


class RowOf(Protocol):
    """Returns the row of an owner by its key."""

    def get(self, key: bytes, default: int, /) -> int: ...


class VectorIndex:
    """Vectors, and the row of the owner's mirror that each belongs to. Written by one thread at a time.

    Columns hold everything about a vector, by its number. An owner's vectors are linked, from the one in the table.
    """

    def __init__(self, dimensions: int, metric: str, segment_rows: int) -> None:
        self.dimensions = dimensions
        self.metric = metric
        self.segment_rows = segment_rows
        self.matrix = VectorMatrix(dimensions, metric)
        # Changed in place when an owner's row moves: a reader of an older boundary sees a row number that it
        # does not know yet and walks back (RelationSnapshot.current).
        self.owner_rows = SegmentedColumn(np.int64, segment_rows)
        self._orphans = False  # whether a vector ever came before its record
        self._reset()

    def _reset(self) -> None:
        self.ordinals = SegmentedColumn(np.int64, self.segment_rows)
        self.versions = SegmentedColumn(np.int64, self.segment_rows)
        """The version of each embedding row; 0 for a deleted one."""
        self.owners = SegmentedColumn(np.uint64, self.segment_rows, 2)
        self._next = SegmentedColumn(np.int32, self.segment_rows)
        self.of_ordinal = OrdinalTable(self.ordinals)
        self._highest = -1
        self.of_owner = KeyTable(self.owners)

    def __len__(self) -> int:
        return len(self.matrix)

    def put_many(
        self,
        ordinals: Sequence[int],
        versions: Sequence[int],
        owners: Sequence[bytes],
        vectors: Sequence[bytes],
        owner_rows: Iterable[int],
    ) -> None:
        """Add or replace the vectors of embedding rows, each row once."""
        count = len(ordinals)
        if not count:
            return
        if self.matrix.size:
            self.remove_many(ordinals)
        rows = np.frombuffer(b"".join(vectors), "<f4").reshape(count, self.dimensions)
        start = int(self.matrix.append(np.ascontiguousarray(rows, np.float32))[0])
        of_owners = np.fromiter(owner_rows, np.int64, count)
        self._orphans = self._orphans or bool((of_owners < 0).any())
        self.owner_rows.put_many(start, of_owners)
        pairs = np.frombuffer(b"".join(owners), ">u8").reshape(count, 2).astype(np.uint64)
        self._enter(start, np.fromiter(ordinals, np.int64, count), np.fromiter(versions, np.int64, count), pairs)

    def _enter(
        self, start: int, ordinals: NDArray[np.int64], versions: NDArray[np.int64], owners: NDArray[np.uint64]
    ) -> None:
        """Note whose the vectors from ``start`` are."""
        count = len(ordinals)
        self._highest = max(self._highest, int(ordinals.max(initial=-1)))
        self.ordinals.put_many(start, ordinals)
        self.versions.put_many(start, versions)
        self.owners.put_many(start, owners)
        self._next.put_many(start, np.full(count, -1, np.int32))
        for number, gone in self.of_ordinal.extend(start, count):
            self.of_ordinal[int(self.ordinals.at(gone))] = number
        for number, _ in self.of_owner.extend(start, count):
            # Looked up again: where all vectors of an owner were deleted, its first new one has taken the place.
            owner = self.owner_at(number)
            first = self.of_owner.get(owner)
            if self.versions.at(first):
                self._next.put(number, self._next.at(first))
                self._next.put(first, number)
            else:
                self.of_owner[owner] = number

    def remove(self, ordinal: int) -> bool:
        """Retire the vector of an embedding row; return whether there was one."""
        return self.remove_many((ordinal,))

    def remove_many(self, ordinals: Iterable[int]) -> bool:
        """Retire the vectors of embedding rows; return whether there were any."""
        gone = [number for number in map(self._number_of, dict.fromkeys(ordinals)) if number >= 0]
        if not gone:
            return False
        self.matrix.retire(np.array(gone, np.int64))
        for number in gone:
            self._unlink(number)
            self.versions.put(number, 0)
        return True

    def _unlink(self, number: int) -> None:
        owner = self.owner_at(number)
        later = int(self._next.at(number))
        first = self.of_owner.get(owner)
        if first == number:
            if later >= 0:
                self.of_owner[owner] = later
            return
        while first >= 0:
            after = int(self._next.at(first))
            if after == number:
                self._next.put(first, later)
                return
            first = after

    def _number_of(self, ordinal: int) -> int:
        """Return the number of the vector of an embedding row, or -1."""
        if ordinal > self._highest:
            return -1  # as nearly every ordinal that a commit brings
        number = self.of_ordinal.get(ordinal)
        return number if number >= 0 and self.versions.at(number) else -1

    def owner_at(self, number: int) -> bytes:
        """Return the key of the owner of a vector."""
        return bytes(self.owners.at(number).astype(">u8").tobytes())

    def _numbers_of(self, owner: bytes) -> list[int]:
        """Return the numbers of an owner's vectors."""
        number = self.of_owner.get(owner)
        if number < 0 or not self.versions.at(number):
            return []
        numbers = [number]
        while (number := int(self._next.at(number))) >= 0:
            numbers.append(number)
        return numbers

    def version_of(self, ordinal: int) -> int:
        """Return the version of an embedding row whose vector is here, or 0."""
        number = self._number_of(ordinal)
        return int(self.versions.at(number)) if number >= 0 else 0

    def owner_moved(self, owner: bytes, row: int, *, fresh: bool = False) -> None:
        """Note that the owner's newest row in its mirror is now ``row``; a ``fresh`` one is its first there."""
        if fresh and not self._orphans:
            return
        for number in self._numbers_of(owner):
            self.owner_rows.put(number, row)

    def renumber(self, owner_index: RowOf) -> None:
        """Take over the owners' row numbers after a compaction of their mirror."""
        fresh = SegmentedColumn(np.int64, self.segment_rows)
        there = self.versions.view(self.matrix.size) > 0
        rows = np.full(self.matrix.size, -1, np.int64)
        owners = self.owners.view(self.matrix.size)[there].astype(">u8").tobytes()
        new_rows = (owner_index.get(owners[at : at + 16], -1) for at in range(0, len(owners), 16))
        rows[there] = np.fromiter(new_rows, np.int64, len(owners) // 16)
        self._orphans = bool((rows[there] < 0).any())
        fresh.put_many(0, rows)
        self.owner_rows = fresh

    def compact(self, owner_index: RowOf) -> None:
        """Drop retired vectors; snapshots already out keep the rows of their boundary."""
        size = self.matrix.size
        kept = self.matrix.compact() >= 0
        ordinals, versions = self.ordinals.view(size)[kept], self.versions.view(size)[kept]
        owners = self.owners.view(size)[kept]
        self._reset()
        self._enter(0, ordinals, versions, owners)
        self.renumber(owner_index)

    @property
    def dead(self) -> int:
        """The number of retired vectors that still take room."""
        return self.matrix.size - len(self.matrix)

    def has_owner(self, owner: bytes) -> bool:
        return bool(self._numbers_of(owner))

    def numbers(self) -> list[int]:
        """Return the numbers of the vectors there are."""
        found: list[int] = np.flatnonzero(self.versions.view(self.matrix.size)).tolist()
        return found

    def content(self) -> dict[int, tuple[bytes, bytes, int]]:
        """Return owner, vector bytes and version by ordinal, for the verifier."""
        snapshot = self.matrix.snapshot()
        out = {}
        for number in self.numbers():
            vector = np.asarray(snapshot.rows(np.array([number], np.int64))[0], "<f4").tobytes()
            out[int(self.ordinals.at(number))] = (self.owner_at(number), vector, int(self.versions.at(number)))
        return out

    def places(self) -> list[tuple[int, bytes, int, bool]]:
        """Return ordinal, owner, the row recorded as the owner's, and whether vector and keys are found."""
        live = np.asarray(self.matrix.snapshot().live, np.bool_)
        out = []
        for number in self.numbers():
            ordinal, owner = int(self.ordinals.at(number)), self.owner_at(number)
            found = bool(live[number]) and self._number_of(ordinal) == number and number in self._numbers_of(owner)
            out.append((ordinal, owner, int(self.owner_rows.at(number)), found))
        return out

    @property
    def nbytes(self) -> int:
        columns = (self.ordinals, self.versions, self.owners, self.owner_rows, self._next)
        arrays = sum(column.nbytes(self.matrix.size) for column in columns)
        return int(self.matrix.snapshot().nbytes) + arrays + self.of_ordinal.nbytes + self.of_owner.nbytes


class VectorSnapshot:
    """The vectors of one kind of owner at one commit boundary."""

    def __init__(self, index: VectorIndex, model_id: str) -> None:
        # Compaction of the owners gives the index a new column; this one keeps the numbers of its boundary.
        self._owner_rows = index.owner_rows
        self._matrix = index.matrix.snapshot()
        self._length = self._matrix.size
        self._bound: _Bound | None = None
        self.dimensions = index.dimensions
        self.metric = index.metric
        self.model_id = model_id

    def _bound_to(self, owners: RelationSnapshot) -> _Bound:
        """Return how vectors and owners of two boundaries belong together; worked out once for a pair."""
        bound = self._bound
        if bound is None or bound.owners is not owners:
            bound = self._bound = _Bound(owners, self.owner_rows(owners), np.asarray(self._matrix.live, np.bool_))
        return bound

    def owner_rows(self, owners: RelationSnapshot) -> NDArray[np.int64]:
        """Return, for each vector row, the owner's row at this boundary; -1 where it has none."""
        # Copied first: the column keeps changing in place when owners move.
        rows: NDArray[np.int64] = self._owner_rows.view(self._length).copy()
        late = np.flatnonzero(rows >= owners.length)
        for at in late.tolist():
            rows[at] = owners.current(int(rows[at]))
        return rows

    def best(
        self,
        query: NDArray[np.float32],
        owners: RelationSnapshot,
        allowed: NDArray[np.bool_],
        k: int,
        min_similarity: float | None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the rows of the ``k`` most similar allowed owners, best first, ties by id, and their scores.

        An owner of several vectors, one a chunk, counts by its best one.

        Shapes: query ``f32[d]``; allowed ``bool[owners.length]``.
        """
        bound = self._bound_to(owners)
        if not len(bound.known):
            return np.empty(0, np.int64), np.empty(0, np.float32)
        mask = bound.mask_of(allowed).view(np.uint8)
        least = -math.inf if min_similarity is None else checks.threshold(min_similarity, field="min_similarity")
        limit = k
        while True:
            asked = Bounds(min(limit, self._length), least, mask, bound.ties)
            numbers, scores = self._matrix.nearest(query, asked)
            rows = bound.rows[numbers]
            if bound.single:
                return rows, scores
            # The first vector of an owner is its best one: the list is in order, and complete down to its end.
            first = np.sort(np.unique(rows, return_index=True)[1])[:k]
            if len(first) == k or len(numbers) < limit:
                return rows[first], scores[first]
            limit *= 2

    def scores(
        self, query: NDArray[np.float32], owners: RelationSnapshot, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the similarity of given owner rows, of the best chunk of each, and which of them have a vector at all.

        Shapes: wanted ``int64[m]``; scores ``f32[m]``, 0 where there is no vector.
        """
        bound = self._bound_to(owners)
        numbers = bound.number_of[rows]
        present = numbers >= 0
        scores = np.zeros(len(rows), np.float32)
        if not present.any():
            return scores, present
        if bound.single:
            scores[present] = self._matrix.scores(query, numbers[present])
            return scores, present
        chunks, starts = bound.chunks_of(rows[present])
        scores[present] = np.maximum.reduceat(self._matrix.scores(query, chunks), starts)
        return scores, present

    def first(self, owners: RelationSnapshot, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return one vector, the first, of each given owner row that has one, and which have.

        Shapes: wanted ``int64[m]``; -> ``f32[sum(present), d]``, present ``bool[m]``.
        """
        numbers = self._bound_to(owners).number_of[rows]
        present = numbers >= 0
        return self._matrix.rows(numbers[present]), present

    def vectors(self, owners: RelationSnapshot, row: int) -> NDArray[np.float32]:
        """Return the vectors of one owner's row, one a chunk, none where it has none. Shapes: ``f32[chunks, d]``."""
        bound = self._bound_to(owners)
        number = int(bound.number_of[row])
        if number < 0 or bound.single:
            return self._matrix.rows(np.array([number][: number >= 0], np.int64))
        return self._matrix.rows(bound.chunks_of(np.array([row], np.int64))[0])


class _Bound:
    """The vector row of each owner row, at one boundary of both."""

    def __init__(self, owners: RelationSnapshot, rows: NDArray[np.int64], live: NDArray[np.bool_]) -> None:
        self.owners = owners
        self.rows = rows
        self._newest: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None
        count = len(rows)
        every: NDArray[np.int64] = np.arange(max(count, owners.length))
        # As written together, vectors and owners go by the same numbers.
        self._aligned = count <= owners.length and bool(live.all()) and bool((rows == every[:count]).all())
        if self._aligned:
            self.known = self.known_rows = rows
            self.ties = owners.ties()[:count]
            every[count:] = -1
            self.number_of = every
            self.single = True
            return
        self.known = np.flatnonzero((rows >= 0) & live)
        self.known_rows = rows[self.known]
        self.ties = np.zeros((count, 2), np.uint64)
        self.ties[self.known] = owners.ties().take(self.known_rows, axis=0)
        self.number_of = np.full(owners.length, -1, np.int64)
        self.number_of[self.known_rows] = self.known
        self.single = int(np.count_nonzero(self.number_of >= 0)) == len(self.known)
        """Whether no owner has more than one vector, as long as texts are not embedded in chunks."""
        if not self.single:
            self._counts = counts = np.bincount(self.known_rows, minlength=owners.length)
            self._firsts = np.cumsum(counts) - counts
            self._by_owner = self.known[np.argsort(self.known_rows, kind="stable")]

    def mask_of(self, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the mask of vectors of allowed owners; kept for a mask that cannot change. Shapes: ``bool[n]``."""
        if self._aligned:
            return allowed[: len(self.rows)]
        newest = self._newest
        if newest is not None and newest[0] is allowed:
            return newest[1]
        mask = self.owners.evaluator.carry(self.known, self.known_rows, allowed, len(self.rows))
        if not allowed.flags.writeable:
            self._newest = (allowed, mask)
        return mask

    def chunks_of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the vectors of owners that have some, one owner's after another's, and where each owner's begin."""
        counts = self._counts[rows]
        starts = np.cumsum(counts) - counts
        within = np.arange(int(counts.sum())) - np.repeat(starts, counts)
        chunks: NDArray[np.int64] = self._by_owner[np.repeat(self._firsts[rows], counts) + within]
        return chunks, starts


def as_query(vector: Any, dimensions: int) -> NDArray[np.float32]:
    """Return a query vector as the kernels want it; its length is checked by the caller."""
    return np.ascontiguousarray(vector, np.float32).reshape(dimensions)
