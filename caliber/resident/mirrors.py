"""All mirrors of one tenant: loads them, applies changes, compacts them and evicts texts at the memory limit.

One thread changes them at a time, under the lock of ``ResidentMemory``. A change that is interrupted halfway is not
repaired: the mirrors are reloaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from caliber.resident.indexes import IndexKey, Spaces, VectorIndexes
from caliber.resident.mirror import FEW, Generation
from caliber.resident.tables import Layout
from caliber.schema.relation import Relation
from caliber.schema.relations import EMBEDDING
from caliber.schema.traits import Mirror
from caliber.storage.compile.codec import Row, blaming
from caliber.storage.compile.paging import filled, pages
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store
from caliber.storage.write.changes import DELETE
from caliber.storage.write.unit_of_work import RowChange

COMPACT_DEAD_RATIO = 0.3
"""Share of retired rows at which segments are rebuilt."""

_COMPACT_FROM_ROWS = 1_024
"""Below this size a compaction costs more than it frees."""

_BUDGET_CHECK_COMMITS = 64
"""Commits between exact sums while memory is less than half full."""

_PAGE_ROWS = 1_000_000
"""Rows read at once while loading."""


@dataclass(slots=True)
class ResidentStats:
    """Statistics of resident memory: contents and work done."""

    applied_own: int = 0
    applied_foreign: int = 0
    reloads: int = 0
    evicted_texts_read: int = 0
    compactions: int = 0
    failures: int = 0
    over_budget_bytes: int = 0


class Mirrors:
    """All mirrors, vector indexes and embedding spaces of one tenant."""

    def __init__(
        self,
        layouts: dict[str, Layout],
        *,
        segment_rows: int,
        resident_bytes: int,
        evicted_in_order: Sequence[str],
        stats: ResidentStats,
    ) -> None:
        self.layouts = layouts
        self.generations: dict[str, Generation] = {}
        self.indexes = VectorIndexes(segment_rows)
        self.spaces = Spaces()
        self._segment_rows = segment_rows
        self._budget = resident_bytes
        self.evicted_in_order = tuple(evicted_in_order)
        self._stats = stats

    def load(self, session: StatementSession, store: Store, *, embeddings: bool) -> None:
        """Load everything in one session, hence at one commit boundary."""
        plans = store.plans
        self.generations = {}
        self.indexes = VectorIndexes(self._segment_rows)
        self.spaces = Spaces()
        layouts = self.layouts
        vectors = plans[EMBEDDING.name]
        with_rows = filled(session, [*map(plans.__getitem__, layouts), vectors])
        for name, layout in layouts.items():
            generation = Generation(layout, self._segment_rows)
            rows: list[Row] = []
            # One long page: the session sees one boundary anyway, and fewer calls are quicker.
            for page in pages(session, plans[name], _PAGE_ROWS) if name in with_rows else ():
                rows.extend(page)
            if rows:
                with blaming(layout.relation, rows):
                    generation.load(rows)
            self.generations[name] = generation
            if layout.relation.resident.form is Mirror.SPACES:
                self.spaces = Spaces(rows)
        if embeddings and vectors.relation.name in with_rows:
            self.indexes.load(session, vectors, self.spaces, self.generations)

    def apply(
        self, changes: Sequence[RowChange], deleted: Sequence[tuple[Relation, int]]
    ) -> tuple[set[str], set[IndexKey]]:
        """Apply changes, and compact where due; return the relations and the indexes that were replaced."""
        touched: set[str] = set()
        vectors: set[IndexKey] = set()
        retire: dict[str, set[int]] = {}
        embeddings: list[RowChange] = []
        runs: dict[str, list[RowChange]] = {}
        for change in changes:
            runs.setdefault(change.relation.name, []).append(change)
        for name, several in runs.items():
            if several[0].relation.resident.form is Mirror.VECTORS:
                embeddings += several
                continue
            touched.add(name)
            going = retire.setdefault(name, set())
            with blaming(several[0].relation, [change.row for change in several]):
                if not self._added(name, several):
                    for change in several:
                        self._apply_row(change, going)
            if several[0].relation.resident.form is Mirror.SPACES:
                for change in several:
                    self._apply_space(change.operation, change.row)
        # Vectors after their owners, whose rows they point to, and all at once.
        vectors |= self.indexes.apply(embeddings, self.spaces, self.generations)
        for relation, ordinal in deleted:
            if relation.resident.form is Mirror.VECTORS:
                vectors |= self.indexes.remove(ordinal)
                continue
            if relation.resident.form is Mirror.SPACES:
                self._apply_space(DELETE, (ordinal,))
            touched.add(relation.name)
            generation = self.generations[relation.name]
            numbers = (generation.ordinals.view(generation.length) == ordinal).nonzero()[0].tolist()
            retire.setdefault(relation.name, set()).update(number for number in numbers if generation.live[number])
        for name, going in retire.items():
            self.generations[name].retire(going)
        for name in touched:
            if self._is_due(self.generations[name].length, self.generations[name].dead):
                vectors |= self._compact(name)
        vectors &= self.indexes.keys()
        for key in vectors:
            index = self.indexes[key]
            if self._is_due(index.matrix.size, index.dead):
                index.compact(self.generations[key[0]].index)
                self._stats.compactions += 1
        return touched, vectors

    def _added(self, name: str, changes: Sequence[RowChange]) -> bool:
        """Add the rows of changes at once, if they are many and each is the first of its key; return whether it did."""
        if len(changes) <= FEW or any(change.operation == DELETE for change in changes):
            return False
        generation, rows = self.generations[name], [change.row for change in changes]
        keys = list(map(generation.layout.key_of, rows))
        if len(set(keys)) < len(keys) or max(generation.newest(keys)) >= 0:
            return False
        start = generation.length
        generation.load(rows)
        for number, key in enumerate(keys, start):
            self.indexes.owner_moved(name, key, number, fresh=True)
        return True

    def _apply_row(self, change: RowChange, retire: set[int]) -> None:
        name = change.relation.name
        generation = self.generations[name]
        layout = generation.layout
        key = layout.key_of(change.row)
        old = generation.index.get(key, -1)
        # The index keeps pointing at deleted rows: snapshots of earlier boundaries still find them there.
        alive = old >= 0 and bool(generation.live[old])
        same = alive and int(generation.ordinals.at(old)) == change.row[0]
        if change.operation == DELETE:
            if same:
                retire.add(old)
            return
        if same and generation.arrays["version"].at(old) >= change.row[layout.version_place]:
            return
        if alive:
            retire.add(old)  # the older version, or another row that had the key until it was deleted
        number = generation.append(change.row, old)
        self.indexes.owner_moved(name, key, number, fresh=old < 0)

    def _apply_space(self, operation: int, row: Row) -> None:
        if operation == DELETE:
            self.spaces.remove(row[0])
        else:
            self.spaces.put(row)
        self.indexes.forget([key for key in self.indexes if not self.spaces.holds(key[1])])

    def _is_due(self, rows: int, dead: int) -> bool:
        return rows >= _COMPACT_FROM_ROWS and dead > COMPACT_DEAD_RATIO * rows

    def _compact(self, name: str) -> set[IndexKey]:
        fresh = self.generations[name].compacted()
        self.generations[name] = fresh
        self._stats.compactions += 1
        return self.indexes.renumber(name, fresh)

    def compact(self) -> set[IndexKey]:
        """Drop the dead rows of every mirror; return the indexes that are others now."""
        vectors: set[IndexKey] = set()
        for name in self.generations:
            vectors |= self._compact(name)
        for key, index in self.indexes.items():
            index.compact(self.generations[key[0]].index)
            vectors.add(key)
        return vectors

    # --- memory ----------------------------------------------------------------------------------

    @property
    def column_bytes(self) -> int:
        """Bytes of columns, packed rows, indexes and vectors, which are never evicted."""
        columns = sum(generation.column_bytes for generation in self.generations.values())
        return columns + self.indexes.nbytes

    @property
    def text_bytes(self) -> int:
        """Bytes of the texts that are in memory."""
        return sum(generation.text_bytes for generation in self.generations.values())

    def enforce_budget(self, sequence: int, *, exact: bool = False) -> None:
        """Evict texts until the limit holds; ``stats.over_budget_bytes`` is the excess that remains.

        While open, a store that has outgrown the limit stays readable and reports it in ``stats``: its writes were
        acknowledged, and refusing reads would not help.
        """
        texts = self.text_bytes
        if not exact and texts < self._budget // 2 and sequence % _BUDGET_CHECK_COMMITS:
            return  # far below the limit: the exact sum can wait
        fixed = self.column_bytes
        excess = fixed + texts - self._budget
        for name in self.evicted_in_order:
            if excess <= 0:
                break
            excess -= self.generations[name].evict_texts(excess)
        self._stats.over_budget_bytes = max(0, fixed - self._budget)

    def strings(self) -> Iterator[str | bytes]:
        """Yield every text and every string of every row in memory, deleted rows included."""
        for generation in self.generations.values():
            yield from generation.strings()
