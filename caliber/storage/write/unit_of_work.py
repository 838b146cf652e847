"""Unit of work: the interface through which services write; one transaction with its changes and events.

Services write through it only. Row changes go to the mirrors after the commit, events are published after the commit,
and neither happens when the transaction rolls back.
"""

from __future__ import annotations

import copy
import dataclasses
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from caliber.model import arguments
from caliber.model.errors import (
    Conflict,
    InsertFailed,
    InternalError,
    LockExpired,
    NotFound,
    PermissionDenied,
)
from caliber.model.events import Event
from caliber.model.time import from_us
from caliber.schema.catalog import BUILT_IN, Catalog
from caliber.schema.relation import ForeignKey, Relation
from caliber.schema.traits import Mirror
from caliber.storage.compile.codec import Row, dump_json
from caliber.storage.compile.paging import pages
from caliber.storage.compile.plan import Plan, RelationPlans
from caliber.storage.compile.session import StatementSession
from caliber.storage.stored_memories import check_present, stale_catalog
from caliber.storage.write.changes import DELETE, UPSERT
from caliber.storage.write.consequences import LOWERS, changed, drop_references, lower, lower_owner_trust

if TYPE_CHECKING:
    from caliber.model.access import Principal
    from caliber.model.agents import LockToken
    from caliber.schema.predicate import Variable
    from caliber.storage.compile.conditions import Listing


class RowChange(NamedTuple):
    """One row written (``row`` is its new value) or deleted (``row`` is its last value)."""

    relation: Relation
    operation: int
    row: Row


class Query(NamedTuple):
    """An irregular statement that updates rows of ``relation`` and returns them whole, as ``UnitOfWork.change``."""

    relation: Relation
    statement: str
    parameters: tuple[Any, ...]
    key: bytes
    """The key of the row: transactions of several requests lock rows in the order of their keys."""


class UnitOfWork:
    """The reads and writes of one piece of work inside the write transaction."""

    def __init__(
        self,
        session: StatementSession,
        plans: dict[str, RelationPlans],
        statements: dict[str, Plan],
        now_us: int,
        keep_content: bool,
        catalog: Catalog = BUILT_IN,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self._session = session
        self._plans = plans
        self._statements = statements
        self.keeps_content = keep_content
        self.catalog = catalog
        self._locks_reads = False
        # Where a write may wait for others after it began, time has gone on.
        self._clock_us = clock_us
        self._knows_all = False
        self._live: set[str] = set()
        self._held: dict[tuple[str, tuple[Any, ...]], Row] = {}
        self._inserted_rows: list[tuple[RelationPlans, Row]] = []
        self.now_us = now_us
        self.changes: list[RowChange] = []
        self.events: list[Event] = []
        self.logged: list[Event] = []
        """Events that are in the log already; their writer notifies this process."""
        self.on_commit: list[Callable[[], None]] = []

    def part(self, now_us: int) -> UnitOfWork:
        """Return a unit of work for one of several calls of this transaction: what it did counts once it is taken."""
        out = copy.copy(self)
        out.now_us = max(self.now_us, now_us)
        out._held, out._inserted_rows = {}, []
        out.changes, out.events, out.logged, out.on_commit = [], [], [], []
        return out

    def take(self, part: UnitOfWork) -> None:
        """Count as done here what a part of this transaction did."""
        for whole, of_part in zip(self._done(), part._done(), strict=True):
            whole.extend(of_part)

    def _done(self) -> tuple[list[Any], ...]:
        return self.changes, self.events, self.logged, self.on_commit

    # --- reading ---------------------------------------------------------------------------------

    def find(self, relation: Relation, *key: Any) -> Any | None:
        """Return the entity under ``key`` (driver values), or None."""
        plans = self._plans[relation.name]
        if self._locks_reads and plans.lock is not None and relation.versioned:
            self._hold_owners(plans, key)
            self._session.run(plans.lock, key)
        rows = self._session.run(plans.get, key)
        self._check_live(relation)
        if not rows:
            return None
        return self._hold(plans, rows[0])

    def _hold_owners(self, plans: RelationPlans, key: tuple[Any, ...]) -> None:
        """Lock the row first, as other transactions do, so that no deadlock occurs."""
        first = [each for each in plans.relation.foreign_keys if each.locked_first]
        for row in self._session.run(plans.get, key) if first else ():
            for each in first:
                self.lock_row(self._plans[each.relation].relation, row[plans.codec.index(each.column)])

    def get(self, relation: Relation, *key: Any) -> Any:
        """Return the entity under ``key``.

        Raises: NotFound.
        """
        entity = self.find(relation, *key)
        if entity is None:
            raise NotFound(entity_type=relation.name, id=_show_key(key))
        return entity

    def select_path(self, relation: Relation, path: str, *key: Any) -> list[Any]:
        """Return the entities of one access path, in its order."""
        plans = self._plans[relation.name]
        return [self._hold(plans, row) for row in self._session.run(plans.lists[path], key)]

    def path_rows(self, relation: Relation, path: str, *key: Any) -> list[Row]:
        """Return the rows of one access path as the driver stores them, in its order; they are not tracked."""
        return self._session.run(self._plans[relation.name].lists[path], key)

    def find_rows(self, relation: Relation, keys: Iterable[bytes]) -> dict[bytes, Row]:
        """Return the rows under some ids, as the driver stores them; they are not tracked."""
        plans, ids = self._plans[relation.name], [key.hex() for key in keys]
        assert plans.find_many is not None  # asked of relations whose records are found by their id alone
        place = plans.codec.key_places[0]
        return {row[place]: row for row in (self._session.run(plans.find_many, (dump_json(ids),)) if ids else ())}

    def find_all(self, relation: Relation, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """Return the entities under some ids, by id."""
        for key in sorted(keys) if self._locks_reads else ():
            self.lock(relation, key)
        rows = self.find_rows(relation, keys)
        self._check_live(relation)
        return {key: self._hold(self._plans[relation.name], row) for key, row in rows.items()}

    def find_by(self, relation: Relation, columns: tuple[str, ...], *values: Any) -> Any | None:
        """Return the one entity that a rule of uniqueness lets have values in its columns, or None."""
        plans = self._plans[relation.name]
        rows = self._session.run(plans.unique[columns], values)
        return self._hold(plans, rows[0]) if rows else None

    def referring(self, relation: Relation, column: str, target: Any) -> list[Row]:
        """Return the rows of a mirrored relation whose foreign key refers to a row."""
        return self._session.run(self._plans[relation.name].references[column], (target,))

    def has_twin(self, relation: Relation, old: Row, new: Row) -> bool:
        """Return whether a row that changes would hold values that another row holds, and one row may hold."""
        plans = self._plans[relation.name]
        place = plans.codec.index
        for unique in relation.uniques:
            if all(old[place(name)] == new[place(name)] for name in (*unique.columns, *dict(unique.where))):
                continue
            values = [new[place(name)] for name in unique.columns]
            if None in values or any((new[place(name)] is None) != is_null for name, is_null in unique.where):
                continue
            if any(row[0] != old[0] for row in self._session.run(plans.unique[unique.columns], values)):
                return True
        return False

    def drawn_from(self, relation: Relation, trajectory: bytes) -> list[Any]:
        """Return the records of a relation that were drawn from a trajectory, the oldest first."""
        plans = self._plans[relation.name]
        assert plans.drawn_from is not None  # only relations that list their sources are queried
        return [self._hold(plans, row) for row in self._session.run(plans.drawn_from, (trajectory,))]

    def lapsed(self, relation: Relation) -> list[Any]:
        """Return the active records whose validity has ended; empty for a relation without validity."""
        plans = self._plans[relation.name]
        rows = [] if plans.lapsed is None else self._session.run(plans.lapsed, (self.now_us,))
        return [self._hold(plans, row) for row in rows]

    def stale(self, relation: Relation, until_us: int, below: float) -> list[Any]:
        """Return the records in reach of retention: made up to a time, and less sure than ``below``."""
        plans = self._plans[relation.name]
        assert plans.stale is not None  # asked of relations whose records end
        return [self._hold(plans, row) for row in self._session.run(plans.stale, (until_us, below))]

    def count(self, relation: Relation) -> int:
        """Return how many rows a relation has."""
        total: int = self._session.run(self._plans[relation.name].count, ())[0][0]
        return total

    def select(self, statement: str, *parameters: Any) -> list[Row]:
        """Run an irregular statement and return its rows."""
        return self._session.run(self._statements[statement], parameters)

    def select_entities(self, relation: Relation, statement: str, *parameters: Any) -> list[Any]:
        """Run an irregular statement that returns whole rows of ``relation``."""
        plans = self._plans[relation.name]
        return [self._hold(plans, row) for row in self._session.run(self._statements[statement], parameters)]

    def pages(self, relation: Relation, rows: int = 500) -> Iterator[list[Row]]:
        """Yield every row of a relation as the driver stores it, in the order of its ordinal or key."""
        return pages(self._session, self._plans[relation.name], rows)

    def listed_rows(
        self, relation: Relation, listing: Listing, variables: Mapping[Variable, Any] = MappingProxyType({})
    ) -> Iterator[Row]:
        """Yield the rows of a listing, locked as rows that are read are; they are not tracked."""
        key_of = self._plans[relation.name].codec.key_of
        for key in sorted(map(key_of, listing.rows(self._session, variables))) if self._locks_reads else ():
            self.lock(relation, *key)
        return listing.rows(self._session, variables)

    def listed(
        self, relation: Relation, listing: Listing, variables: Mapping[Variable, Any] = MappingProxyType({})
    ) -> Iterator[Any]:
        """Yield the entities of a listing, with the values of its variables, read in pages."""
        plans = self._plans[relation.name]
        return (self._hold(plans, row) for row in listing.rows(self._session, variables))

    def current(self, relation: Relation, row: Row) -> Row:
        """Return a row that was read by page as this unit of work has it by now."""
        return self._held.get((relation.name, self._plans[relation.name].codec.key_of(row)), row)

    def track(self, relation: Relation, row: Row) -> None:
        """Track a row that was read by page, because it may be changed; by default such rows are not tracked."""
        self._held.setdefault((relation.name, self._plans[relation.name].codec.key_of(row)), row)

    # --- writing ---------------------------------------------------------------------------------

    def insert(self, relation: Relation, entity: Any, *, trust_handled: bool = False) -> int | None:
        """Insert an entity and return its ordinal.

        ``trust_handled``: the caller lowers the label of its owner itself, within a statement that it runs anyway.

        Raises: InsertFailed or Conflict when a key or a uniqueness rule is broken; on some databases only with the
            next statement, or the commit.
        """
        plans = self._plans[relation.name]
        row = plans.codec.encode(entity)
        returned = self._session.insert(plans.insert, row)
        ordinal = self._inserted(plans, row, returned)
        if not trust_handled and relation.name in LOWERS:
            lower(self, relation, row)
        return ordinal

    def insert_new(self, relation: Relation, entity: Any) -> bool:
        """Insert an entity unless a uniqueness rule refuses it; return whether it was inserted."""
        plans = self._plans[relation.name]
        row = plans.codec.encode(entity)
        if relation.ordinal:
            returned = self._session.run(plans.insert_or_ignore, row)
            if not returned:
                return False
            self._inserted(plans, row, returned)
            lower(self, relation, row)
            return True
        return self._session.changed(plans.insert_or_ignore, row) == 1

    def insert_all(self, relation: Relation, rows: Sequence[Row]) -> bool:
        """Insert new rows of a mirrored relation; return False when one was refused: then undo the transaction."""
        plans = self._plans[relation.name]
        ordinals = self._session.run_many(plans.insert_or_ignore, rows)
        if len(ordinals) != len(rows):
            return False
        for row, ordinal in zip(rows, ordinals, strict=True):
            self._inserted(plans, row, (ordinal,))
            lower(self, relation, row)
        return True

    def upsert(self, relation: Relation, entity: Any) -> None:
        """Insert an entity, or overwrite the row with the same key."""
        plans = self._plans[relation.name]
        row = plans.codec.encode(entity)
        returned = self._session.run(plans.upsert, row)
        self._inserted(plans, row, returned)
        lower(self, relation, row)

    def insert_row(self, relation: Relation, row: Row) -> None:
        """Insert a row, in the driver's form, of a relation without ordinals, unless it exists."""
        self._session.run(self._plans[relation.name].insert_or_ignore, row)

    def update(self, relation: Relation, entity: Any) -> Any:
        """Update an entity that was read in this unit of work, unless another transaction changed it; return it as
        stored.

        The version is raised here. When content columns change, their old value is kept for replay.

        Raises: Conflict when the row's version is no longer the one that was read.
        """
        plans = self._plans[relation.name]
        encoded = plans.codec.encode(entity)
        key = plans.codec.key_of(encoded)
        if plans.update is None:
            raise InternalError(f"{relation.name} cannot be updated")
        old = self._old_row(plans, key)
        row = [old[0], *encoded[1:]] if relation.ordinal else list(encoded)
        place = plans.codec.version_place
        row[place] = old[place] + 1
        new = tuple(row)
        lower_owner_trust(self, relation, old, new)
        values = [new[plans.codec.index(name)] for name in plans.update.binds[: -len(key) - 1]]
        if self._session.changed(plans.update, (*values, *key, old[place])) != 1:
            raise _changed_first(relation, key)
        self._held[relation.name, key] = new
        if relation.resident.form is not Mirror.NONE:
            self.changes.append(RowChange(relation, UPSERT, new))
        changed(self, plans, old, new)
        self._check_live(relation)
        return plans.codec.decode(new)

    def delete(self, relation: Relation, entity: Any) -> None:
        """Delete an entity that was read in this unit of work, and the records it owns, keeping content for replay."""
        plans = self._plans[relation.name]
        key = plans.codec.key_of(plans.codec.encode(entity))
        # No new reference may appear between looking for referrers and deleting the entity.
        self.lock(relation, *key)
        self._release_referrers(plans, self._old_row(plans, key))
        old = self._old_row(plans, key)
        del self._held[relation.name, key]
        if self._session.changed(plans.delete, key) != 1:
            raise NotFound(entity_type=relation.name, id=_show_key(key))
        if relation.resident.form is not Mirror.NONE:
            # Only now: a process that adds a memory whose records may refer to this one waits for us, or came first.
            self.check_catalog()
            self.changes.append(RowChange(relation, DELETE, old))
        changed(self, plans, old, None)
        drop_references(self, relation, key)

    def delete_rows(self, relation: Relation, rows: Sequence[Row]) -> None:
        """Delete rows that were just read by page, as ``delete``; at once where no records refer to them.

        Raises: Conflict when another transaction changed or deleted one of them.
        """
        plans = self._plans[relation.name]
        keys, version = [row[plans.codec.key_places[0]] for row in rows], plans.codec.version_place
        if plans.delete_many is None or relation.name in self.catalog.referrers:
            for key, row in zip(keys, rows, strict=True):
                if self.lock(relation, key) not in (None, row[version]):
                    raise _changed_first(relation, (key,))
                self.delete(relation, self._hold(plans, row))
        elif rows:
            deleted = self._session.run(plans.delete_many, (dump_json([key.hex() for key in keys]),))
            if {*map(tuple, deleted)} != {(key, row[version]) for key, row in zip(keys, rows, strict=True)}:
                reason = "another writer changed one of several records first"
                raise Conflict(entity_type=relation.name, id="…", reason=reason, retryable=True)
            self.check_catalog()
            for row in rows:
                self.changes.append(RowChange(relation, DELETE, row))
                changed(self, plans, row, None)
            drop_references(self, relation, keys)

    def change(self, relation: Relation, statement: str, *parameters: Any) -> list[Row]:
        """Run an irregular statement that updates rows of ``relation`` and returns them whole; return the rows.

        For narrow updates of hot counters, where reading first would only cost time. It must not touch content.
        """
        rows = self._session.run(self._statements[statement], parameters)
        for row in rows:
            self.changes.append(RowChange(relation, UPSERT, row))
        return rows

    def remove(self, relation: Relation, statement: str, *parameters: Any) -> int:
        """Run an irregular statement that deletes rows of ``relation`` and returns them; return how many."""
        rows = self._session.run(self._statements[statement], parameters)
        if relation.resident.form is not Mirror.NONE:
            self.changes.extend(RowChange(relation, DELETE, row) for row in rows)
        return len(rows)

    def execute(self, statement: str, *parameters: Any) -> int:
        """Run an irregular statement on a relation that is not mirrored; return how many rows it changed."""
        return self._session.changed(self._statements[statement], parameters)

    # --- around ----------------------------------------------------------------------------------

    def check_catalog(self) -> None:
        """Refuse to continue with memories that others have changed: records unknown to this process may have to go
        too.

        Raises: SchemaMismatch.
        """
        if not self._knows_all and tuple(self.select("memory.revision")[0]) != self.catalog.revision:
            raise stale_catalog()
        self._knows_all = True

    def _check_live(self, relation: Relation) -> None:
        """Refuse reads and writes in the table of a memory that others dropped, or removed a field from.

        Its name, and that of a field, may belong to another one by now. The check comes last: while this transaction
        runs, no other can drop it. Raises: SchemaMismatch.
        """
        name = relation.name
        if name in self.catalog.declared and name not in self._live:
            check_present(self._session, relation, self._plans, self._statements, self.catalog)
            self._live.add(name)

    def run(self, plan: Plan) -> None:
        """Run a plan of the backend's own that takes nothing, in this transaction."""
        self._session.changed(plan, ())

    def guard(self, token: LockToken | None, writer: Principal) -> None:
        """Check a fencing token, and that it is the writer's, inside this very transaction.

        Raises: LockExpired when the lock has expired, was released or was taken over; PermissionDenied when another
            holds it, unless the application or an admin writes.
        """
        if token is None:
            return
        proof = arguments.as_token(token, "guard")
        assert proof is not None  # as checked above
        self.serialize(proof.resource)
        now_us = self.now_us if self._clock_us is None else self._clock_us()
        held = self.select("lock.held", proof.resource, proof.token, now_us)
        if not held:
            raise LockExpired(resource=proof.resource)
        if not writer.serves and held[0][0] != writer.label:
            raise PermissionDenied(
                f"{writer.label} may not write under a lock of another holder: guard the write with a lock of its own",
                agent_id=writer.label,
                action="write under",
                resource="a lock of another holder",
            )

    def lock_reads(self) -> None:
        """From now on, keep others from changing the rows that are read one by one.

        For work that lost a race and is done again: now it waits instead of losing the next one.
        """
        self._locks_reads = True

    def lock_row(self, relation: Relation, *key: Any) -> None:
        """Lock this row now, where rows that are read are locked, before others that are locked after it elsewhere."""
        if self._locks_reads:
            self.lock(relation, *key)

    def lock(self, relation: Relation, *key: Any) -> int | None:
        """Keep others from changing a row until this transaction ends; return its version where that takes a lock."""
        lock = self._plans[relation.name].lock
        rows = () if lock is None else self._session.run(lock, key)
        return rows[0][0] if rows and relation.versioned else None

    def serialize(self, resource: str) -> None:
        """Block other transactions that serialize on ``resource`` until this one has ended.

        For rules over rows that do not exist yet, which no row's own version protects.
        """
        self.select("lock.serialize", resource)

    def serialize_and_list(self, resource: str, *paths: tuple[Relation, str]) -> list[list[Any]]:
        """As ``serialize``, and return the entities of access paths under ``resource`` as they are from then on.

        A path may be an irregular statement of one parameter. A server gets all of these statements in one go.
        """
        plans = [(self._plans[relation.name], path) for relation, path in paths]
        asked = [(self._statements["lock.serialize"], (resource,))]
        asked += [(each.lists.get(path) or self._statements[path], (resource,)) for each, path in plans]
        _, *lists = self._session.run_all(asked)
        return [[self._hold(each, row) for row in rows] for (each, _), rows in zip(plans, lists, strict=True)]

    def record_change(self, relation: Relation, entity: Any, ordinal: int | None) -> None:
        """Name a row in the change record that followers do not hold: its use is up to them."""
        plans = self._plans[relation.name]
        if ordinal is None:
            ordinal = self._old_row(plans, plans.codec.key_of(plans.codec.encode(entity)))[0]
        self.changes.append(RowChange(relation, UPSERT, plans.codec.encode(entity, ordinal)))

    def emit(self, event: Event) -> None:
        """Queue an event for after the commit."""
        self.events.append(event)

    def _inserted(self, plans: RelationPlans, row: Row, returned: Sequence[Row]) -> int | None:
        relation = plans.relation
        if not relation.ordinal:
            return None
        if not returned:
            raise InsertFailed(entity_type=relation.name, reason="the database returned no ordinal")
        ordinal: int = returned[0][0]
        full = (ordinal, *row[1:])
        self._inserted_rows.append((plans, full))
        if relation.resident.form is not Mirror.NONE:
            self.changes.append(RowChange(relation, UPSERT, full))
        self._check_live(relation)
        return ordinal

    def _hold(self, plans: RelationPlans, row: Row) -> Any:
        self._held[plans.relation.name, plans.codec.key_of(row)] = row
        return plans.codec.decode(row)

    def _old_row(self, plans: RelationPlans, key: tuple[Any, ...]) -> Row:
        """Return the row as this unit of work read or inserted it."""
        # Inserted rows are looked up only when one of them is changed again, which is rare.
        while self._inserted_rows:
            inserted, row = self._inserted_rows.pop()
            self._held.setdefault((inserted.relation.name, inserted.codec.key_of(row)), row)
        held = self._held.get((plans.relation.name, key))
        if held is None:
            raise InternalError(f"{plans.relation.name} was changed without being read first")
        return held

    def _release_referrers(self, plans: RelationPlans, old: Row) -> None:
        """Apply the foreign keys to mirrored rows that refer to a row about to be deleted.

        The database would do it too, but unnoticed: mirrors would keep the rows, and their content would be lost.
        """
        for relation, key in self.catalog.referrers.get(plans.relation.name, ()):
            referrer = self._plans[relation.name]
            target = old[plans.codec.index(key.target)]
            for row in self.referring(relation, key.column, target):
                entity = self._hold(referrer, row)
                if key.on_delete == "cascade":
                    self.delete(relation, entity)
                else:
                    self.update(relation, self._released(relation, row, entity, key))

    def _released(self, relation: Relation, row: Row, entity: Any, key: ForeignKey) -> Any:
        """Return a record without its reference to a deleted row; archived if it would duplicate another record."""
        out, ends = dataclasses.replace(entity, **{key.column: None}), relation.ends
        if key.frees is not None and getattr(out, key.frees[0]) is key.frees[1]:
            out = dataclasses.replace(out, **{key.frees[0]: key.frees[2]})
        if ends is None or ends.archive is None or ends.supersede != key.column:
            return out
        again = self.has_twin(relation, row, self._plans[relation.name].codec.encode(out, row[0]))
        return dataclasses.replace(out, **{ends.archive: from_us(self.now_us)}) if again else out


def _changed_first(relation: Relation, key: tuple[Any, ...]) -> Conflict:
    reason = "another writer changed it first"
    return Conflict(entity_type=relation.name, id=_show_key(key), reason=reason, retryable=True)


def _show_key(key: tuple[Any, ...]) -> str:
    # Keys are ids or natural keys; only ids are shown, as content must not appear in messages.
    return ", ".join(str(uuid.UUID(bytes=part)) if isinstance(part, bytes) and len(part) == 16 else "…" for part in key)
