"""Helpers of the contract tests: make stores, roll back work, run threads at once, read rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from caliber.config import CaliberConfig
from caliber.model.time import Clock, SystemClock
from caliber.schema.relation import ColumnType, Relation
from caliber.schema.relations import CHANGE, MEMORY_TYPE
from caliber.storage.compile.codec import Row
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork
from contract import entities
from contract.memories import CATALOG
from contract.target import ContractTarget

DECLARED: tuple[Relation, ...] = tuple(each for each in CATALOG.relations if each not in (CHANGE, MEMORY_TYPE))
"""Every relation that is written through its entities, that of a declared memory too.

Change records have statements of their own; which memories there are is said when a store is made or migrated.
"""

PATIENCE_S = 60
"""How long a test waits for a thread before it calls it stuck; no figure of speed."""


class Undo(Exception):
    """Rolls a transaction back."""


def undone(store: Store, work: Callable[[UnitOfWork], Any]) -> None:
    """Run ``work`` in a transaction that leaves nothing behind."""

    def run(uow: UnitOfWork) -> None:
        work(uow)
        raise Undo

    with pytest.raises(Undo):
        store.write(run)


def refusal(work: Callable[[], Any]) -> BaseException | None:
    """Return the error of a call, or None; for faults of a caller, which a driver may report in its own way."""
    try:
        work()
    except Exception as error:
        return error
    return None


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work(0..count-1)`` in as many threads, released at once; return results or errors in their order."""
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count

    def run(at: int) -> None:
        barrier.wait(PATIENCE_S)
        try:
            results[at] = work(at)
        except BaseException as error:
            results[at] = error

    threads = [threading.Thread(target=run, args=(at,), daemon=True) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a writer is stuck"
    return results


def count(store: Store, relation: Relation) -> int:
    """Return how many rows a relation has."""
    with store.read() as session:
        number: int = session.run(store.plans[relation.name].count, ())[0][0]
    return number


def key_of(store: Store, relation: Relation, entity: Any) -> tuple[Any, ...]:
    """Return the key of an entity as statements take it."""
    codec = store.plans[relation.name].codec
    return codec.key_of(codec.encode(entity))


def all_rows(store: Store, session: StatementSession, relation: Relation, *, page_rows: int = 500) -> list[Row]:
    """Return every row of a relation, page by page."""
    plans = store.plans[relation.name]
    names = plans.page.binds[:-1]
    places = [plans.codec.index(name) for name in names]
    after = tuple(_before_all(relation, name) for name in names)
    rows: list[Row] = []
    ended = False
    while page := session.run(plans.page, (*after, page_rows)):
        assert len(page) <= page_rows
        assert not ended, f"a page of {relation.name} was short although there was more"
        ended = len(page) < page_rows
        rows += page
        border, after = after, tuple(page[-1][place] for place in places)
        assert after != border, f"a page of {relation.name} begins with the row before it"
    return rows


def _before_all(relation: Relation, name: str) -> Any:
    if name == "ordinal":
        return entities.INT64_MIN
    kind = relation.column(name).type
    if kind in (ColumnType.INT, ColumnType.INSTANT):
        return entities.INT64_MIN
    if kind is ColumnType.UUID:
        return bytes(16)
    return "" if kind in (ColumnType.TEXT, ColumnType.ENUM) else b""


class Contract:
    """Makes stores of the backend under test, and closes and discards them."""

    def __init__(self, target: ContractTarget, folder: Callable[[], Path]) -> None:
        self.target = target
        self._folder = folder
        self._handles: list[Store] = []
        self._configs: list[CaliberConfig] = []

    def needs(self, capability: str) -> None:
        """Skip the test where the backend lacks a capability; see ``ContractTarget.needs``."""
        self.target.needs(capability)

    def config(self, changes: Mapping[str, Any] | None = None) -> CaliberConfig:
        """Return the configuration of a store that does not exist yet; ``changes`` maps dotted paths to values."""
        config = self.target.fresh(self._folder())
        if changes:
            config = config.with_overrides(**changes)
        self._configs.append(config)
        return config

    def create(self, config: CaliberConfig, *, clock: Clock | None = None) -> None:
        """Create a store, where opening does not."""
        if self.target.has("reopen"):
            self.target.module.create(config, exist_ok=False, clock_us=(clock or SystemClock()).now_us)

    def open(self, config: CaliberConfig, *, clock: Clock | None = None) -> Store:
        """Open a handle."""
        store = self.target.module.open_store(config, clock_us=(clock or SystemClock()).now_us)
        self._handles.append(store)
        return store

    def store(self, changes: Mapping[str, Any] | None = None, *, clock: Clock | None = None) -> Store:
        """Return a new, empty store."""
        config = self.config(changes)
        self.create(config, clock=clock)
        return self.open(config, clock=clock)

    def close(self) -> None:
        """Close opened stores and release their resources."""
        for store in reversed(self._handles):
            store.close()
        for config in reversed(self._configs):
            self.target.discard(config)


class World:
    """One store for many tests: each leaves rows of its own behind, which no other refers to, or none at all."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.parents: dict[str, Any] = {}
        """For each relation that others refer to, the key of a row."""
        self.parent_entities: dict[str, Any] = {}
        catalog = store.catalog
        targets = {key.relation for relation in catalog.relations for key in relation.foreign_keys}

        def work(uow: UnitOfWork) -> None:
            for relation in catalog.relations:
                if relation.name in targets:
                    entity = self.fresh(relation)
                    uow.insert(relation, entity)
                    self.parents[relation.name] = getattr(entity, relation.key[0])
                    self.parent_entities[relation.name] = entity

        store.write(work)

    def references(self, relation: Relation, *, all_of_them: bool = False) -> dict[str, Any]:
        """Return the fields that refer to existing rows; optional ones only on request."""
        own = {*relation.key, *entities.told_apart_by_references(relation)}
        return {
            key.column: self._parent(key.relation) if key.column in own else self.parents[key.relation]
            for key in relation.foreign_keys
            if all_of_them or not relation.column(key.column).nullable
        }

    def _parent(self, name: str) -> Any:
        """Return the key of a new row of a relation: one row alone may have it as its own."""
        relation = self.store.catalog.by_name[name]
        entity = self.fresh(relation)
        self.insert(relation, entity)
        return getattr(entity, relation.key[0])

    def fresh(self, relation: Relation, /, **columns: Any) -> Any:
        """Return an unremarkable entity that clashes with no other; ``columns`` are as given."""
        entity = entities.plain(relation, **self.references(relation))
        return entities.changed(relation, entity, **{**entities.unlike_any(relation), **columns})

    def insert(self, relation: Relation, *made: Any) -> list[int | None]:
        """Insert entities in one transaction and return their ordinals."""
        return self.store.write(lambda uow: [uow.insert(relation, entity) for entity in made])

    def get(self, relation: Relation, entity: Any) -> Any:
        """Return the stored entity under the key of an entity, or None; read in a new session."""
        plans = self.store.plans[relation.name]
        with self.store.read() as session:
            rows = session.run(plans.get, key_of(self.store, relation, entity))
        assert len(rows) <= 1
        return plans.codec.decode(rows[0]) if rows else None
