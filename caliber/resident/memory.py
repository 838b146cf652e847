"""Class ``ResidentMemory``: a tenant's mirrors at one position of the change feed, published as snapshots.

Writers (our own commits and the feed of other processes) apply changes under one lock and then publish a new
``ResidentSnapshot`` in a single assignment. A reader takes that snapshot once and sees one commit boundary.

A thread that changes mirrors may be interrupted at any line (Ctrl-C, a signal handler that raises). So mirrors count as
torn from before the first change until after the last one, and torn mirrors are never changed further: they are
reloaded. Snapshots that were taken earlier see only the rows of their time.

Source: design, section 5.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.evaluator import Evaluator
from caliber.model.errors import CaliberError, InvalidConfigValue
from caliber.model.process.interrupts import let_through
from caliber.model.windows import Position
from caliber.resident.indexes import IndexKey
from caliber.resident.mirror import EVICTED, TEXTS_AT_ONCE, RelationSnapshot
from caliber.resident.mirrors import Mirrors, ResidentStats
from caliber.resident.partial import PartialMirrors, read_back
from caliber.resident.snapshot import ENTITY_RELATIONS, ResidentSnapshot
from caliber.resident.tables import layout_of
from caliber.resident.vectors import VectorSnapshot
from caliber.resident.verifier import Difference, differences
from caliber.schema.relation import Column, Relation, Residence
from caliber.schema.traits import Mirror
from caliber.storage.compile.codec import Row, decoder_of, dump_json
from caliber.storage.compile.session import StatementSession
from caliber.storage.migrate.migrations import epoch_of
from caliber.storage.protocol import ChangeBatch, Store, reading
from caliber.storage.stored_memories import dropped_memories
from caliber.storage.waiting import DeadlineLock
from caliber.storage.write.changes import DELETE, RELOAD_RECORD, UPSERT, unpack_changes
from caliber.storage.write.unit_of_work import RowChange

SEGMENT_ROWS: Final = 4_096
"""Rows in one immutable segment of a column."""
_PENDING_ROWS = 4_096
"""Rows that may wait for a reader before the writer applies them itself."""

_ORDER = (Mirror.SPACES, Mirror.ROWS, Mirror.VECTORS)
"""Spaces and records before their vectors, which may come in the same batch."""


_HELD = nullcontext()


class ResidentMemory:
    """The mirrors of one tenant, and the ``Follower`` of its store."""

    def __init__(
        self,
        store: Store,
        *,
        resident_bytes: int,
        evaluator: Evaluator,
        relations: Sequence[Relation] | None = None,
        session: StatementSession | None = None,
    ) -> None:
        """``session`` is the one to load from; None means another one of the store."""
        self._store = store
        self._evaluator = evaluator
        self._lock = DeadlineLock("another thread was reading what others wrote")
        self._is_owned: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        if relations is None:
            relations = store.catalog.mirrored
        self._entities = (*ENTITY_RELATIONS, *(relation.name for relation in store.catalog.declared_relations))
        self._gone: frozenset[str] = frozenset()
        self._held = frozenset(relation.name for relation in relations)
        self._partial = PartialMirrors(evaluator, store.catalog)
        self._elsewhere = None if self._held.issuperset(self._entities) else self._read_record
        self.stats = ResidentStats()
        rows = [relation for relation in relations if relation.resident.form is not Mirror.VECTORS]
        self._holds_vectors = len(rows) < len(relations)
        layouts = {relation.name: layout_of(relation) for relation in rows}
        texts = [layout.relation for layout in layouts.values() if layout.text_place >= 0]
        self.mirrors = Mirrors(
            layouts,
            segment_rows=SEGMENT_ROWS,
            resident_bytes=resident_bytes,
            evicted_in_order=[relation.name for relation in sorted(texts, key=attrgetter("resident.evicted"))],
            stats=self.stats,
        )
        self.sequence = 0
        """The last commit that is applied, or waits to be."""
        self._stale = False
        self._again = False
        """Whether a change was missed since the reload began; set without the lock."""
        self._torn = False
        """Whether mirrors are being changed, or were left half way."""
        self._pending: list[RowChange] = []
        self.waiting = False
        """Whether the next reader has something to do first."""
        self.published: ResidentSnapshot
        self.erasures = 0
        """The number of erasures of the store, at most those before the present snapshot."""
        self.on_commit: Callable[[Sequence[RowChange]], None] | None = None
        self.on_missed: Callable[[], None] | None = None
        self.on_erased: Callable[[], None] | None = None
        self.on_failure: Callable[[str, BaseException], None] | None = None
        with store.read() if session is None else contextlib.nullcontext(session) as loading:
            self._load(loading)
        excess = self.stats.over_budget_bytes
        if excess > 0:
            raise InvalidConfigValue(
                field="resident.resident_bytes",
                value=str(resident_bytes),
                reason=f"this store needs at least {resident_bytes + excess} bytes of resident memory; raise the limit,"
                ' or set search.mode = "backend"',
            )

    # --- loading ---------------------------------------------------------------------------------

    def _load(self, session: StatementSession) -> None:
        """Load everything in one session, hence at one commit boundary."""
        self.sequence = self._store.feed.bound(session)
        counts = [self._store.plans[each.name].count for each in self._store.catalog.relations if each.purges]
        self.erasures = sum(session.run(count, ())[0][0] for count in counts)
        self._let_go(session)
        self.mirrors.load(session, self._store, embeddings=self._holds_vectors)
        self._stale = False
        self._publish(set(self.mirrors.layouts))
        self.mirrors.enforce_budget(self.sequence, exact=True)

    def _let_go(self, session: StatementSession) -> None:
        """Hold nothing of memories that another process removed, or took a field from: they cannot be read any more."""
        store = self._store
        gone = dropped_memories(session, store.plans, store.catalog) if store.catalog.memories else frozenset()
        self._gone |= gone
        self._held -= gone
        for name in gone:
            self.mirrors.layouts.pop(name, None)

    def _publish(self, changed: set[str], vectors_changed: set[IndexKey] | None = None) -> None:
        mirrors, before = self.mirrors, getattr(self, "published", None)
        relations = {} if before is None else {k: kept for k, kept in before.relations.items() if k in self._held}
        for name in changed:
            if name in mirrors.generations:
                relations[name] = RelationSnapshot(mirrors.generations[name], self._evaluator)
        if before is None or vectors_changed is None:
            vectors = {
                key: VectorSnapshot(index, mirrors.spaces.by_id[key[1]].model_id)
                for key, index in mirrors.indexes.items()
            }
        else:
            # A space that was retired is out of memory with this very boundary.
            vectors = {key: kept for key, kept in before.vectors.items() if key in mirrors.indexes}
            for key in vectors_changed:
                vectors[key] = VectorSnapshot(mirrors.indexes[key], mirrors.spaces.by_id[key[1]].model_id)
        in_use = mirrors.spaces.in_use
        self.published = ResidentSnapshot(
            Position(self._store.epoch, self.sequence),
            relations,
            vectors,
            mirrors.spaces.by_id,
            self._evaluator,
            None if in_use is None else in_use.space_id,
            self._elsewhere,
            tuple(name for name in self._entities if name not in self._gone),
            self._gone,
        )

    def _read_record(self, name: str, key: bytes) -> RelationSnapshot:
        """Return a mirror of the one record under an id, or of none."""
        with reading(self._store, self._store.catalog.by_name[name]) as session:
            return self._partial.mirror(name, session.run(self._store.plans[name].get, (key,)))

    @property
    def snapshot(self) -> ResidentSnapshot:
        """The newest commit boundary in memory.

        Commits of ours are queued until a reader comes: writers do not pay for it, and a row that changed ten times in
        between is applied once.
        """
        # A flag decides: another reader may have taken the queue, and not have published its changes yet.
        if self.waiting:
            with self._mine():
                self._apply_pending()
        return self.published

    # --- following -------------------------------------------------------------------------------

    def follow(self, session: StatementSession) -> None:
        """Apply the commits of other processes, up to the boundary of ``session``.

        Raises: Unavailable when the deadline of the call passed.
        """
        with self._mine():
            news = None if self._stale or self._again or self._torn else self._news(session)
            if news is not None and RELOAD_RECORD in news.records:
                news = None
            if news is not None and not news.records:
                self._torn = False
                return
            # Set until all of it is applied: after a failure half way everything is reloaded.
            self._stale = self._torn = True
            if news is None:
                # The feed no longer reaches back to our position: everything is reloaded.
                self.stats.reloads += 1
                self._pending = []
                self._store.epoch = epoch_of(session, self._store.plans)
                self._load(session)
            else:
                self._apply_waiting()
                erased = self._apply_foreign(session, news)
                if self.mirrors.spaces.revived or erased:
                    self._load(session)
                if erased and self.on_erased is not None:
                    self.on_erased()
            self._stale = False
            self._whole()

    def _news(self, session: StatementSession) -> ChangeBatch | None:
        self._torn = True  # the feed reports a change once, applied or not
        try:
            return self._store.feed.since(session, self.sequence)
        except CaliberError:
            self._torn = False  # it reported nothing
            raise

    def _apply_foreign(self, session: StatementSession, news: ChangeBatch) -> bool:
        """Apply changes; return whether an erasure was among them, after which deleted rows must leave memory."""
        erased = False
        changed: dict[int, dict[int, int]] = {}
        by_code = self._store.catalog.by_code
        for entries in news.records:
            for code, operation, ordinal, _ in unpack_changes(entries):
                # A newer version beside us may write relations that we do not know.
                if code not in by_code:
                    continue
                erased |= by_code[code].purges
                if by_code[code].name in self._held:
                    changed.setdefault(code, {})[ordinal] = operation
        changes: list[RowChange] = []
        deleted: list[tuple[Relation, int]] = []
        for code in sorted(changed, key=lambda code: (_ORDER.index(by_code[code].resident.form), code)):
            relation = by_code[code]
            upserts = [ordinal for ordinal, operation in changed[code].items() if operation != DELETE]
            plan = self._store.plans[relation.name].get_many
            assert plan is not None
            rows = session.run(plan, (dump_json(upserts),)) if upserts else []
            changes.extend(RowChange(relation, UPSERT, row) for row in rows)
            found = {row[0] for row in rows}
            deleted.extend((relation, ordinal) for ordinal in changed[code] if ordinal not in found)
        self.sequence = max(self.sequence, news.sequence)
        self.stats.applied_foreign += len(changes) + len(deleted)
        self._apply(changes, deleted)
        return erased

    def committed(self, sequence: int, changes: Sequence[RowChange]) -> None:
        """Take over a commit of ours; the next reader sees it. Interrupted, or too late, it is to be called ``missed``.

        Raises: Unavailable when the deadline of the call passed.
        """
        with self._mine():
            # Changes that were followed up to our commit or beyond may supersede it: a row that another process deleted
            # since must not come back.
            if not self._store.feed.covers(sequence):
                self.waiting = True
                self._pending.extend([change for change in changes if change.relation.name in self._held])
                self.sequence = max(sequence, self.sequence)
            self.stats.applied_own += len(changes)
            if len(self._pending) > _PENDING_ROWS:
                self._apply_pending()
        if self.on_commit is not None:
            self.on_commit(changes)

    def settle(self) -> None:
        """Return once the changes that another thread is applying, if any, are applied.

        Raises: Unavailable when the deadline of the call passed.
        """
        with self._mine():
            pass

    def _mine(self) -> AbstractContextManager[object]:
        """Hold the lock, within the deadline of the call; a thread that holds it needs no more."""
        return _HELD if self._is_owned() else self._lock

    def lost(self, error: BaseException) -> None:
        """Record that a commit of another process could not be followed: everything must be reloaded."""
        # Without the lock: its holder may be the cause.
        self._again = self._stale = True
        self.stats.failures += 1
        if self.on_failure is not None:
            self.on_failure("resident memory", error)

    def missed(self, error: BaseException) -> None:
        """Record that a commit of ours may not have been applied: the next reader reloads everything."""
        # A reload may have begun before that commit: then it is repeated.
        self._again = self._stale = self.waiting = True
        self.stats.failures += 1
        if self.on_missed is not None:
            self.on_missed()
        if self.on_failure is not None:
            self.on_failure("resident memory", error)

    def _whole(self) -> None:
        """Take note that mirrors hold all of the boundary that was published."""
        self._torn = False
        self.waiting = self._stale or self._again or bool(self._pending)

    def _apply_pending(self) -> None:
        """Apply the commits that wait, each row once, in its last state."""
        if self._stale or self._again or self._torn:
            self.reload()
        try:
            self._torn = True
            self._apply_waiting()
            if self.mirrors.spaces.revived:
                self.reload()
            self._whole()
        except Exception as error:
            let_through(error)  # mirrors are torn until the next reader
            # The commits are done and the store is right: memory is reloaded, or the reader gets an error.
            self.lost(error)
            self.reload()

    def _apply_waiting(self) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        last = {(change.relation.code, change.row[0]): change for change in pending}
        self._apply(list(last.values()), ())

    def _apply(self, changes: Sequence[RowChange], deleted: Sequence[tuple[Relation, int]]) -> None:
        self._publish(*self.mirrors.apply(changes, deleted))
        self.mirrors.enforce_budget(self.sequence)

    def compact(self) -> None:
        """Drop dead rows of every mirror now; snapshots already out stay as they are."""
        with self._mine():
            self._apply_pending()
            self._torn = True
            vectors = self.mirrors.compact()
            self._publish(set(self.mirrors.generations), vectors)
            self._whole()

    def reload(self) -> None:
        """Read everything from the store again."""
        with self._mine():
            # Before the boundary is read: changes missed from here on are within it, or cause another reload.
            self._again, self._stale = False, True
            with self._store.read() as session:
                self.stats.reloads += 1
                self._torn = True
                self._pending = []
                self._load(session)
                self._whole()

    def has_vector(self, owner_type: str, space_id: uuid.UUID, owner: bytes) -> bool:
        """Return whether a record has a vector in a space, as of now."""
        with self._mine():
            index = self.mirrors.indexes.get((owner_type, space_id))
            return index is not None and index.has_owner(owner)

    def may_lack_vectors(self, kinds: Sequence[str], space_id: uuid.UUID) -> bool:
        """Return whether a record of some kinds with a text to embed may have no vector in a space: else all have."""
        with self._mine():
            for kind in kinds:
                owners = self.mirrors.generations.get(kind)
                if owners is None:
                    return True
                layout, embedded = owners.layout, owners.layout.relation.embedded
                lacking = self.mirrors.indexes.lacking((kind, space_id), owners) if owners.length else []
                # Only the text of a row is at hand: what else is embedded may be empty, or not.
                is_text = embedded is not None and layout.codec.index(embedded) == layout.text_place
                if lacking and (not is_text or any(map(owners.texts.__getitem__, lacking))):
                    return True
        return False

    def texts(self, snapshot: RelationSnapshot, numbers: Sequence[int]) -> list[Any]:
        """Return the texts of rows; evicted ones are read back in one statement and counted."""
        texts = snapshot.generation.texts
        out = [texts[number] for number in numbers]
        if EVICTED in out:
            missing = [at for at, text in enumerate(out) if text is EVICTED]
            read_back(self._store, snapshot, numbers, missing, out, snapshot.layout.text_place)
            self.stats.evicted_texts_read += len(missing)
        return out

    def columns(self, snapshot: RelationSnapshot, numbers: Sequence[int], columns: Sequence[Column]) -> list[Row]:
        """Return the values of rows in some columns, a tuple a row."""
        read = []
        for column in columns:
            stored, decode = self.stored(snapshot, numbers, column), decoder_of(column)
            read.append(stored if decode is None else [None if each is None else decode(each) for each in stored])
        return list(zip(*read, strict=True))

    def distinct(self, snapshot: RelationSnapshot, column: Column, among: NDArray[np.bool_]) -> list[Any]:
        """Return the different values but None that some rows have in a column, as stored, in order."""
        if column.residence is not Residence.INTERNED:
            return sorted(set(self.stored(snapshot, np.flatnonzero(among).tolist(), column)) - {None})
        values, codes = snapshot.in_order(column.name)
        present = np.zeros(len(snapshot.interned(column.name)), np.bool_)
        present[snapshot.column(column.name)[among]] = True
        return [values[place] for place in np.flatnonzero(present[codes]).tolist()]

    def stored(self, snapshot: RelationSnapshot, numbers: Sequence[int], column: Column) -> list[Any]:
        """Return the values of rows in a column, as the driver stores them."""
        if column.residence is not Residence.TEXT:
            return snapshot.stored(column, numbers)
        out: list[Any] = []
        for start in range(0, len(numbers), TEXTS_AT_ONCE):
            out += self.texts(snapshot, numbers[start : start + TEXTS_AT_ONCE])
        return out

    def entity(self, snapshot: RelationSnapshot, number: int) -> Any:
        """Return the entity of one row."""
        layout = snapshot.layout
        row = snapshot.generation.row(number)
        for place in layout.absent:
            if row[place] is EVICTED:
                return self.entities(snapshot, [number])[0]
        return layout.codec.decode(row)

    def entities(self, snapshot: RelationSnapshot, numbers: Sequence[int]) -> list[Any]:
        """Return the entities of rows; values that are in the store alone are read in one statement a column."""
        rows: list[Any] = [snapshot.row(number) for number in numbers]
        for place in snapshot.layout.absent:
            missing = [at for at, row in enumerate(rows) if row[place] is EVICTED]
            values: dict[int, Any] = {}
            if missing:
                read_back(self._store, snapshot, numbers, missing, values, place)
            for at, value in values.items():
                is_text = place == snapshot.layout.text_place or value is None
                rows[at] = (*rows[at][:place], value, *rows[at][place + 1 :]) if is_text else value
            self.stats.evicted_texts_read += len(missing) * (place == snapshot.layout.text_place)
        return list(map(snapshot.layout.codec.decode, rows))

    def held(self) -> Iterator[str | bytes]:
        """Yield every text and every string of every row in memory, deleted rows included."""
        with self._mine():
            yield from self.mirrors.strings()

    # --- verifying -------------------------------------------------------------------------------

    def verify(self) -> list[Difference]:
        """Compare every mirror with the store, row by row; return the differences, empty when all is well."""
        with self._mine(), self._store.read() as session:
            self.follow(session)  # others may have committed in between: compare at the store's boundary
            self._torn = True
            self._apply_waiting()
            self._whole()
            indexes = self.mirrors.indexes if self._holds_vectors else None
            return differences(session, self._store.plans, self.mirrors.generations, indexes, self.mirrors.spaces.holds)
