"""Copy of a store to any database: protocols of both sides, a resumable, incremental row copy, proof by hashes.

The copy keeps ordinals and versions, since windows and content versions refer to rows by them. Rows come as Arrow
record batches in the order of their keys, so two stores are compared side by side with one batch of each in memory, and
only differing rows are written. Copying, resuming an interrupted copy and bringing a copy up to date are therefore one
operation; where the change feed names the rows written since, only those are read.

Source: design section 3; docs/decisions/0131.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from caliber.dump.dumped_relations import RowsDigest, dump_relations, dumped
from caliber.model.errors import Conflict, StorageError
from caliber.model.lazy_dataclass import dataclass
from caliber.model.progress import Progress
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Relation
from caliber.schema.relations import ERASURE
from caliber.storage.maintain.maintenance import FenceState, StoreSnapshot
from caliber.storage.write.changes import RELOAD_RECORD, unpack_changes

NAMED_MOST: Final = 200_000
"""Most rows that are brought up to date one by one; beyond, the whole relation is compared."""
_AT_ONCE: Final = 1_000

Key = tuple[Any, ...]


class Reading(StoreSnapshot, Protocol):
    """One commit boundary of a store, finished or not, as a move reads it."""

    mark: Any
    """The boundary, as ``changes_since`` takes it."""
    schema_version: int
    """The newest schema version of the store; 0 of a copy that is not finished."""

    def some(self, relation: Relation, ordinals: list[int]) -> Iterator[Any]:
        """Yield the existing rows of those ordinals, as record batches."""
        ...

    def changes_since(self, mark: Any) -> list[bytes] | None:
        """Return the change records beyond an earlier boundary, or None when they do not reach back to it."""
        ...


class Writing(Protocol):
    """One transaction of an unfinished copy; relations are those of ``dump_relations``."""

    def remove_between(self, relation: Relation, after: Key | None, upto: Key | None) -> None:
        """Delete the rows with keys beyond ``after`` up to ``upto``, each without limit if None."""
        ...

    def remove(self, relation: Relation, ordinals: list[int]) -> None:
        """Delete rows by ordinal."""
        ...

    def add(self, relation: Relation, batches: Iterable[Any]) -> None:
        """Insert rows as they are, ordinals too."""
        ...


class Replica(Protocol):
    """One side of a move: where a tenant leaves, or where it goes."""

    shown: str
    """The name in messages."""

    def reading(self) -> AbstractContextManager[Reading]:
        """Return a boundary of a store, finished or not, to read."""
        ...

    # --- where it goes ---------------------------------------------------------------------------

    def prepare(self, epoch: str, token: str, catalog: Catalog) -> bool:
        """Create an empty copy, or take over the one of an earlier attempt; return whether it is empty.

        ``catalog`` lists its relations; memories that an earlier attempt copied are copied again. From now on other
        tokens are refused. Raises: Conflict when something else is there
        """
        ...

    def writing(self, token: str) -> AbstractContextManager[Writing]:
        """Begin a transaction of the unfinished copy. Raises: Conflict when another attempt took over."""
        ...

    def finish(self, epoch: str, token: str, numbers: Mapping[str, int], catalog: Catalog) -> None:
        """Turn the copy into a store: rules, indexes, sequences, the epoch.

        ``numbers`` are the last ordinals given out, by relation, and the last number of a change.
        """
        ...

    def discard(self, epoch: str) -> None:
        """Remove the copy made for ``epoch``, finished or not; do nothing if there is none."""
        ...

    # --- where it leaves -------------------------------------------------------------------------

    def fence(self, state: FenceState, token: str, wait_ms: int) -> None:
        """Let writes under way end and have the database itself refuse all others.

        Raises: Unavailable when those under way do not end in time; then nothing is refused
        """
        ...

    def lift(self, token: str | None) -> None:
        """Let writers in again, unless the fence is another attempt's; None lifts any."""
        ...

    def fenced_by(self) -> str | None:
        """Return the token of the fence that stands."""
        ...

    def drop(self) -> None:
        """Remove the store with its content; do nothing if it is gone. Raises: Conflict if the place holds no store."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


def no_store(shown: str) -> Conflict:
    """Return the error of a place where something else is than a store: it is left alone."""
    return Conflict(
        f"{shown} is not a CALIBER store and was not removed: remove it yourself",
        entity_type="store",
        id=shown,
        reason="no store",
    )


def taken_over(tenant: str) -> Conflict:
    """Return the error of an attempt that another process continues."""
    return Conflict("another process has taken this move over", entity_type="tenant", id=tenant, reason="taken over")


def something_else(shown: str) -> Conflict:
    """Return the error of a place for a copy that is in use."""
    return Conflict(
        f"there is something else at {shown}: remove it, or move the tenant to another source",
        entity_type="store",
        id=shown,
        reason="exists",
    )


# --- comparing ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stretch:
    """The rows of two stores between two keys; ``batch`` is None where the first store has no more rows."""

    relation: Relation
    after: Key | None
    upto: Key | None
    batch: Any | None
    others: list[Any]

    @property
    def same(self) -> bool:
        """True when both stores hold the same rows there."""
        return self.batch is not None and _digest(self.relation, [self.batch]) == _digest(self.relation, self.others)


def _digest(relation: Relation, batches: Iterable[Any]) -> tuple[int, str]:
    """Return the number of rows and their hash."""
    digest = RowsDigest(relation)
    for batch in batches:
        digest.add_batch(batch)
    return digest.rows, digest.hex()


def _keys_of(relation: Relation, batch: Any) -> list[Key]:
    return list(zip(*(batch.column(name).to_pylist() for name in relation.key), strict=True))


class _Sorted:
    """Batches in the order of their keys, taken up to a key."""

    def __init__(self, relation: Relation, batches: Iterator[Any]) -> None:
        self._relation = relation
        self._batches = batches
        self._batch: Any = None
        self._keys: list[Key] = []

    def upto(self, key: Key | None) -> list[Any]:
        out: list[Any] = []
        while True:
            if not self._keys:
                self._batch = next(self._batches, None)
                if self._batch is None:
                    return out
                self._keys = _keys_of(self._relation, self._batch)
                continue
            count = len(self._keys) if key is None else bisect_right(self._keys, key)
            if count:
                out.append(self._batch.slice(0, count))
                self._batch = self._batch.slice(count)
                del self._keys[:count]
            if self._keys:
                return out


def stretches(relation: Relation, one: Iterator[Any], other: Iterator[Any]) -> Iterator[Stretch]:
    """Yield the rows of two stores side by side, in the batches of the first."""
    others = _Sorted(relation, other)
    after: Key | None = None
    for batch in one:
        if not batch.num_rows:
            continue
        last = _keys_of(relation, batch.slice(batch.num_rows - 1))[0]
        yield Stretch(relation, after, last, batch, others.upto(last))
        after = last
    rest = others.upto(None)
    if rest:
        yield Stretch(relation, after, None, None, rest)


# --- making equal ---------------------------------------------------------------------------------


def copy_all(source: Reading, copy: Replica, token: str, progress: Progress) -> None:
    """Fill an empty copy, one relation a transaction; each is a stage of ``progress``, in rows."""
    for relation in dump_relations(source.catalog):
        with copy.writing(token) as writing:
            writing.add(relation, _counted(relation, source.read(relation), progress))


def _counted(relation: Relation, batches: Iterator[Any], progress: Progress) -> Iterator[Any]:
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        yield batch
        progress(f"copy {relation.name}", rows, None)


def make_equal(source: Reading, copy: Replica, token: str, relations: Iterable[Relation]) -> int:
    """Compare whole relations and replace differing stretches; return the number of those."""
    different = 0
    for relation in relations:
        with copy.reading() as copied, copy.writing(token) as writing:
            for stretch in stretches(relation, source.read(relation), copied.read(relation)):
                if stretch.same:
                    continue
                different += 1
                writing.remove_between(relation, stretch.after, stretch.upto)
                if stretch.batch is not None:
                    writing.add(relation, [stretch.batch])
    return different


def named_since(source: Reading, mark: Any) -> dict[str, list[int]] | None:
    """Return the rows of mirrored relations that were written since a boundary; None when they cannot be named."""
    records = source.changes_since(mark)
    if records is None or RELOAD_RECORD in records:
        return None
    found: dict[str, set[int]] = {}
    rows = 0
    for record in records:
        for code, _, ordinal, _ in unpack_changes(record):
            relation = source.catalog.by_code.get(code)
            if relation is None or not relation.ordinal:
                return None
            found.setdefault(relation.name, set()).add(ordinal)
            rows += 1
            if rows > NAMED_MOST:
                return None
    return {name: sorted(ordinals) for name, ordinals in found.items()}


def bring_up(source: Reading, copy: Replica, token: str, named: Mapping[str, list[int]]) -> int:
    """Write the named rows as they are now; return how many there are."""
    count = 0
    for relation in dump_relations(source.catalog):
        ordinals = named.get(relation.name, [])
        if not ordinals:
            continue
        with copy.writing(token) as writing:
            # First all of them: a key may have gone from one row to another.
            for start in range(0, len(ordinals), _AT_ONCE):
                writing.remove(relation, ordinals[start : start + _AT_ONCE])
            for start in range(0, len(ordinals), _AT_ONCE):
                writing.add(relation, source.some(relation, ordinals[start : start + _AT_ONCE]))
        count += len(ordinals)
    return count


# --- proving it -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof that two stores are equal: the number of rows of each relation, and their hash."""

    rows: Mapping[str, int]
    hashes: Mapping[str, str]


def verify(source: Reading, copy: Reading, relations: Iterable[Relation]) -> Proof:
    """Read every row of both stores. Raises: StorageError naming the relation that differs."""
    rows, hashes = {}, {}
    for relation in relations:
        one, other = _digest(relation, source.read(relation)), _digest(relation, copy.read(relation))
        if one != other:
            raise StorageError(
                f"{relation.name} differs after copying: {one[0]} rows there, {other[0]} here; the tenant stays"
                " where it is: move it again",
                reason="verification",
                relation=relation.name,
            )
        rows[relation.name], hashes[relation.name] = one
    return Proof(rows, hashes)


def erasures_of(source: Reading) -> str | None:
    """Return a hash of the erasures, by which two boundaries are compared; None without any erasure."""
    rows, found = _digest(dumped(ERASURE), source.read(dumped(ERASURE)))
    return found if rows else None
