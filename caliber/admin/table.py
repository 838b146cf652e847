"""Classes ``TableReader`` and ``Table`` of ``memory.storage``: rows of a relation, read or written with checks.

Reads go to the database, not to memory. Writes are checked against the schema and the row rules; the rules of the
lifecycle are in ``Caliber``'s own methods. Source: C §11, K-018.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

import numpy as np

from caliber.engine.engine import Engine
from caliber.model import arguments, states
from caliber.model.embedding import Embedding, EmbeddingSpace
from caliber.model.errors import (
    ConstraintViolation,
    DimensionMismatch,
    DTypeError,
    InvalidValue,
    InvalidVector,
)
from caliber.model.references import EntityType
from caliber.model.time import from_us, to_us
from caliber.model.trajectory import Artifact, Scope, ScopeStatus, Trajectory, TrajectoryStatus, Turn
from caliber.schema.derived import NotBefore
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.schema.relations import EMBEDDING_SPACE, SCOPE
from caliber.storage.compile.codec import Row, is_of_type, last_of
from caliber.storage.compile.derived import completed, reason_of, wrong_hash
from caliber.storage.protocol import reading
from caliber.storage.sql.search_statements import kinds_of
from caliber.storage.write.unit_of_work import UnitOfWork

_PAGE = 1_000
_TYPES: dict[ColumnType, type[Any]] = {ColumnType.TEXT: str, ColumnType.BYTES: bytes, ColumnType.INT: int}


def _bound(column: Column, value: Any) -> Any:
    """Return a value as the driver takes it; ids may be given as text, as everywhere."""
    if column.type is ColumnType.UUID:
        return arguments.as_uuid(value, column.name).bytes
    if column.enum is not None:
        return arguments.as_enum(value, column.enum, column.name).value
    if isinstance(value, datetime):
        return to_us(value, column.name)
    expected = _TYPES.get(column.type)
    if expected is not None and (not isinstance(value, expected) or isinstance(value, bool)):
        raise DTypeError(field=column.name, expected=expected.__name__, got=type(value).__name__)
    return value


def check_insert(uow: UnitOfWork, entity: Any) -> None:
    """Raise ConstraintViolation for a row that breaks a rule beyond the relation's columns (C-041, C-042, C-344)."""
    if isinstance(entity, Artifact | Turn):
        scope: Scope = uow.get(SCOPE, entity.scope_id.bytes)
        if scope.trajectory_id != entity.trajectory_id:
            raise ConstraintViolation(
                constraint="scope_of_trajectory", reason="the scope belongs to another trajectory"
            )
        if isinstance(entity, Turn) and not scope.is_open:
            raise ConstraintViolation(constraint="scope_open", reason=f"scope {scope.scope_id} is closed")
    check_embedding(uow, entity)


def check_embedding(uow: UnitOfWork, entity: Any) -> None:
    """Refuse a vector that memory cannot hold: of a kind without vectors, no space or record, or other dimensions.

    Raises: InvalidValue, NotFound, DimensionMismatch, InvalidVector, which includes a vector of zeros (C-025, M-024)
    """
    if not isinstance(entity, Embedding):
        return
    kinds = kinds_of(uow.catalog)
    if entity.owner_type not in kinds:
        raise InvalidValue(field="owner_type", reason=f"has no vectors; relations with vectors: {', '.join(kinds)}")
    space: EmbeddingSpace = uow.get(EMBEDDING_SPACE, entity.space_id.bytes)
    if len(entity.vector) != 4 * space.dimensions:
        raise DimensionMismatch(expected=space.dimensions, got=len(entity.vector) / 4)
    vector = np.frombuffer(entity.vector, "<f4")
    if not np.isfinite(vector).all():
        raise InvalidVector(reason="it contains NaN or infinity")
    if not vector.any():
        raise InvalidVector(reason="it consists of zeros, which are near to nothing")
    uow.lock_reads()  # a deletion of the record comes before, or after: no vector of a deleted one is left
    uow.get(uow.catalog.by_name[entity.owner_type], entity.owner_id.bytes)


def check_rules(relation: Relation, row: Mapping[str, Any]) -> None:
    """Raise InvalidValue for a row that breaks a rule between its columns (C-047, C-012)."""
    for rule in relation.rules:
        value = row[rule.column]
        if isinstance(rule, NotBefore):
            earlier = row[rule.earlier]
            broken = value is not None and earlier is not None and value < earlier
        else:
            broken = (value is not None) != (row[rule.kind] == rule.value)
        if broken:
            raise InvalidValue(field=rule.column, reason=rule.reason)


def check_update(entity: Any, changes: dict[str, Any]) -> None:
    """Raise InvalidStateTransition for a status that may not follow the present one (C-320, C-325)."""
    if isinstance(entity, Trajectory) and "status" in changes:
        states.TRAJECTORY.check(entity.status, arguments.as_enum(changes["status"], TrajectoryStatus, "status"))
    if isinstance(entity, Scope) and "closed_at" in changes:
        after = ScopeStatus.OPEN if changes["closed_at"] is None else ScopeStatus.CLOSED
        states.SCOPE.check(ScopeStatus.OPEN if entity.is_open else ScopeStatus.CLOSED, after)


_CONTENT = (str, bytes, bytearray, memoryview)
"""Types that content may come as."""
_PLAIN = (str, int, float, bool)
"""Types that memory keeps as they are: a subclass that offers a buffer (NumPy's) would be kept as its bytes."""


class TableReader:
    """One relation, read: ``get``, ``count``, ``all`` and its ``list_…`` paths."""

    _by_relation: ClassVar[dict[str, type[TableReader]]] = {}

    def __init_subclass__(cls, *, of: Relation | None = None) -> None:
        if of is not None:
            TableReader._by_relation[of.name] = cls

    def __init__(self, engine: Engine, relation: Relation) -> None:
        self._engine = engine
        self._relation = relation
        self._plans = engine.store.plans[relation.name]

    def get(self, *key: Any) -> Any | None:
        """Return the entity under its key, or None."""
        self._engine.check_open()
        with reading(self._engine.store, self._relation) as session:
            found = self._entities(session.run(self._plans.get, self._key(key)))
        return found[0] if found else None

    def count(self) -> int:
        """Return how many rows there are."""
        self._engine.check_open()
        with reading(self._engine.store, self._relation) as session:
            total: int = session.run(self._plans.count, ())[0][0]
        return total

    def all(self) -> Iterator[Any]:
        """Yield every entity in the order of insertion, page by page."""
        if not self._relation.ordinal:
            raise InvalidValue(field=self._relation.name, reason="cannot be paged through")
        last = -1
        while True:
            self._engine.check_open()
            with reading(self._engine.store, self._relation) as session:
                rows = session.run(self._plans.page, (last, _PAGE))
            yield from self._entities(rows)
            if len(rows) < _PAGE:
                return
            last = last_of(rows, last)

    def _entities(self, rows: Sequence[Row]) -> list[Any]:
        """Return the entities of rows that were read."""
        return [self._plans.codec.decode(row) for row in rows]

    def _key(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(key) != len(self._relation.key):
            raise InvalidValue(field="key", reason=f"expected {', '.join(self._relation.key)}")
        return tuple(
            _bound(self._relation.column(name), part) for name, part in zip(self._relation.key, key, strict=True)
        )

    def _list(self, path: str, *by: Any, limit: int | None = None) -> list[Any]:
        plan = self._plans.lists[path]
        declared = next(item for item in self._relation.paths if item.name == path)
        if len(by) != len(declared.by):
            raise InvalidValue(field=path, reason=f"expected {', '.join(declared.by) or 'no arguments'}")
        parameters = [_bound(self._relation.column(name), part) for name, part in zip(declared.by, by, strict=True)]
        if limit is not None:
            # A negative limit would mean "all" to one database and an error to the other.
            arguments.as_whole(limit, "limit")
        if declared.limited:
            parameters.append(2**62 if limit is None else limit)
        self._engine.check_open()
        with reading(self._engine.store, self._relation) as session:
            rows = session.run(plan, parameters)
        found = self._entities(rows)
        return found if limit is None else found[:limit]

    def _count(self, path: str, *by: Any) -> int:
        declared = next(item for item in self._relation.paths if item.name == path)
        parameters = [_bound(self._relation.column(name), part) for name, part in zip(declared.by, by, strict=True)]
        self._engine.check_open()
        with reading(self._engine.store, self._relation) as session:
            total: int = session.run(self._plans.counts[path], parameters)[0][0]
        return total

    def __getattr__(self, name: str) -> Callable[..., list[Any]]:
        if name.startswith("_") or name not in self._plans.lists:
            paths = ", ".join(sorted(self.__dict__["_plans"].lists)) if "_plans" in self.__dict__ else ""
            raise AttributeError(f"{self._relation.plural} has no {name}; it lists by: {paths or 'nothing'}")

        def listed(*by: Any, limit: int | None = None) -> list[Any]:
            return self._list(name, *by, limit=limit)

        return listed


def table_of(engine: Engine, relation: Relation) -> TableReader:
    """Return the table of a relation: a ``Table``, or a subclass with additional methods."""
    return TableReader._by_relation.get(relation.name, Table)(engine, relation)


class Table(TableReader):
    """One relation, read and written: ``insert``, ``update``, ``delete``."""

    def insert(self, entity: Any) -> Any:
        """Insert an entity and return it. Raises: DTypeError, Conflict, StorageError."""
        if not isinstance(entity, self._relation.entity):
            raise DTypeError(field="entity", expected=self._relation.entity.__name__, got=type(entity).__name__)

        self._check_row(self._encodable(entity))

        def work(uow: UnitOfWork) -> Any:
            check_insert(uow, entity)
            return self._insert(uow, entity)

        return self._engine.write(work)

    def _insert(self, uow: UnitOfWork, entity: Any) -> Any:
        """Write a checked entity, and return it as stored."""
        uow.insert(self._relation, entity)
        return entity

    def _encodable(self, entity: Any) -> tuple[Any, ...]:
        """Return the row of an entity. Raises: DTypeError, InvalidValue for a value that no database holds."""
        try:
            row = self._plans.codec.encode(entity)
        except (AttributeError, TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
            raise DTypeError(
                field=self._relation.name, expected="values of the fields' types", got=type(error).__name__
            ) from None
        for name, value in zip(self._plans.codec.names, row, strict=True):
            if self._relation.has(name) and not is_of_type(self._relation.column(name), value):
                raise DTypeError(field=name, expected=self._relation.column(name).type.value, got=type(value).__name__)
            if isinstance(value, str | int | float) and type(value) not in _PLAIN:
                raise DTypeError(field=name, expected="a plain str, int or float", got=type(value).__name__)
            if isinstance(value, str):
                arguments.as_content(value, name, allow_empty=True)
            elif isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise InvalidValue(field=name, reason="must fit 64 bits")
        return row

    def update(self, *key: Any, expected_version: int | None = None, **changes: Any) -> Any:
        """Change fields of an entity and return it as stored.

        Raises: NotFound; Conflict when ``expected_version`` is no longer the stored one; InvalidValue for a field
            that is unknown or part of the key.
        """
        if not self._relation.versioned:
            raise InvalidValue(field=self._relation.name, reason="rows of this relation cannot be changed")
        fields = {field.name for field in dataclasses.fields(self._relation.entity)}
        for name in changes:
            if name not in fields or name in (*self._relation.key, "version"):
                raise InvalidValue(field=name, reason=f"is no field of {self._relation.name} that can be changed")
        bound = self._key(key)
        expected = None if expected_version is None else arguments.as_whole(expected_version, "expected_version")

        def work(uow: UnitOfWork) -> Any:
            entity = uow.get(self._relation, *bound)
            arguments.check_version(self._relation.name, str(key[0]), entity.version, expected)
            return self._write_changed(uow, entity, changes)

        return self._engine.write(work)

    def _write_changed(self, uow: UnitOfWork, entity: Any, changes: dict[str, Any]) -> Any:
        relation, codec = self._relation, self._plans.codec
        check_update(entity, changes)
        for name in relation.content_columns:
            if relation.column(name).type is ColumnType.BYTES and isinstance(changes.get(name), _CONTENT):
                changes = {**changes, name: arguments.as_content(changes[name], name, allow_empty=True)}
        # As it will be read again: an array or a list is no tuple, and is compared otherwise.
        changed = codec.decode(self._encodable(dataclasses.replace(entity, **changes)))
        if changed == entity:
            return entity
        followed = completed(relation, changed, self._engine.estimator, changes.keys())
        stated = {name: getattr(changed, name) for name in changes}
        if relation.has("updated_at"):
            stated = {"updated_at": from_us(uow.now_us), **stated}
        changed = dataclasses.replace(followed, **stated)
        self._check_row(self._encodable(changed))
        check_embedding(uow, changed)
        return uow.update(relation, changed)

    def _check_row(self, row: tuple[Any, ...]) -> None:
        """Raise InvalidValue, ConstraintViolation for a column that does not go with the others (C-041, C-047)."""
        stored = dict(zip(self._plans.codec.names, row, strict=True))
        check_rules(self._relation, stored)
        for column in self._relation.columns:
            kind = stored[column.name] if column.enum is EntityType else None
            if kind is not None and kind not in (kinds := self._engine.store.catalog.kinds):
                raise InvalidValue(field=column.name, reason=f"is no kind of record; there are {', '.join(kinds)}")
        wrong = wrong_hash(self._relation, stored)
        if wrong is not None:
            raise ConstraintViolation(constraint=wrong.column, reason=f"it is {reason_of(self._relation, wrong)}")

    def delete(self, *key: Any) -> bool:
        """Delete a row and the rows that it owns, keeping their content for replay; return whether it existed."""
        bound = self._key(key)

        def work(uow: UnitOfWork) -> bool:
            entity = uow.find(self._relation, *bound)
            if entity is None:
                return False
            uow.delete(self._relation, entity)
            return True

        return self._engine.write(work)
