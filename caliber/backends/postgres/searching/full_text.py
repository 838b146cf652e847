"""Maintenance of PostgreSQL's full-text index: updates term tables in write transactions, rebuilds and checks them.

``text_state`` records whether a store has an index; every write transaction reads it in the round trip that begins the
transaction. Creating or dropping an index locks that table exclusively for a moment, so that each earlier transaction
knows of no index, and each later one keeps it.

Source: K-170, K-171; docs/decisions/0081.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from caliber.backends.postgres.connecting.connection import PgConnection, simple
from caliber.backends.postgres.connecting.pool import Transaction, with_lock_retry
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.searching.search_plans import (
    FullTextPlans,
    drop_texts,
    full_text_plans,
    full_text_statements,
    kind_plans,
)
from caliber.model.progress import Progress, unheard
from caliber.schema.relation import Relation
from caliber.storage.compile.codec import Row, dump_json
from caliber.storage.compile.plan import RelationPlans
from caliber.storage.compile.session import StatementSession
from caliber.storage.sql.full_text import (
    BATCH_ROWS,
    FullTextState,
    IndexerOf,
    Memories,
    TextEntry,
    TextIndexer,
    changed_texts,
    differences,
    index_all,
    memories_of,
    packed_memories,
    text_tables,
    to_index,
    unindexed,
    unpacked_memories,
)
from caliber.storage.stored_memories import check_indexed, indexed_now
from caliber.storage.write.changes import DELETE
from caliber.storage.write.unit_of_work import RowChange

T = TypeVar("T")


def _nobody(_: str) -> TextIndexer | None:
    return None


class FullTextWriter:
    """Keeps the index in the write transactions of one store. Safe to share between threads."""

    def __init__(self, dialect: PostgresDialect, texts: tuple[Relation, ...]) -> None:
        """``texts`` are all relations that an index may cover; the store records which it does."""
        self._dialect = dialect
        self.texts = {relation.name: relation for relation in texts}
        self._plans = full_text_plans(dialect, texts)
        self._indexer_of: IndexerOf = _nobody
        self._known: dict[str, TextIndexer | None] = {}
        self._memories: dict[str, Memories] = {}

    def keep(self, indexer_of: IndexerOf) -> None:
        """Set the indexer."""
        self._indexer_of = indexer_of
        self._known = {}

    def indexer(self, name: str) -> TextIndexer | None:
        """Return the indexer that makes entries by the rules of a name."""
        current = self._known
        if name not in current:
            current[name] = self._indexer_of(name)
        return current[name]

    def to_index(self, memories: str, relations: Iterable[Relation]) -> list[Relation] | None:
        """Return relations as an index holds them (see ``storage.full_text``); ``memories`` as the store keeps them."""
        indexed = self._memories.get(memories)
        if indexed is None:
            indexed = unpacked_memories(memories)
            self._memories = {memories: indexed}
        return to_index(indexed, relations)

    def written(self, connection: PgConnection, kept: str | None, changes: Sequence[RowChange]) -> None:
        """Update the index with the transaction's changes; ``kept`` holds the rules and memories of the index."""
        if kept is None:
            return
        analyzer, _, memories = kept.partition(" ")
        changed = changed_texts(self.texts, functools.partial(self.to_index, memories), changes)
        indexer = self.indexer(analyzer) if changed else None
        if changed is None or (changed and indexer is None):
            connection.later(self._plans.spoil, ())
        elif indexer is not None:
            for relation, of_kind in changed:
                self._bring_up(connection, indexer, relation, of_kind)

    def _bring_up(
        self, connection: PgConnection, indexer: TextIndexer, relation: Relation, changes: Iterable[RowChange]
    ) -> None:
        digests: dict[int, bytes | None] = {}
        texts = []
        for change in changes:
            digest = None if change.operation == DELETE else indexer.digest(relation, change.row)
            digests[change.row[0]] = digest
            if digest is not None:
                texts.append(change.row)
        plan = kind_plans(relation, self._dialect)
        hashes = [digest.hex() if digest is not None else "" for digest in digests.values()]
        # Without a query: unchanged texts keep their entries, which are not inserted again.
        connection.later(plan.forget, (_texts(digests), dump_json(hashes)))
        self.enter(connection, indexer, relation, texts)

    def enter(self, connection: PgConnection, indexer: TextIndexer, relation: Relation, rows: Sequence[Row]) -> int:
        """Index rows that have no entry, with the next statement; return how many have a text."""
        made = zip(rows, indexer.entries(relation, rows), strict=True)
        found: list[tuple[int, TextEntry]] = [(row[0], entry) for row, entry in made if entry is not None]
        if not found:
            return 0
        parameters = (
            _texts(ordinal for ordinal, _ in found),
            _texts(entry.terms for _, entry in found),
            dump_json([entry.digest.hex() for _, entry in found]),
            dump_json([entry.tokens for _, entry in found]),
        )
        connection.later(kind_plans(relation, self._dialect).enter, parameters)
        return len(found)


def _texts(numbers: Iterable[int]) -> str:
    return dump_json([str(number) for number in numbers])


class PostgresFullText:
    """The full text of one open store."""

    def __init__(
        self,
        writer: FullTextWriter,
        dialect: PostgresDialect,
        texts: tuple[Relation, ...],
        plans: dict[str, RelationPlans],
        read: Callable[[], AbstractContextManager[StatementSession]],
        transaction: Transaction,
        lock_timeout_ms: int,
    ) -> None:
        self.statements = full_text_statements(dialect, texts)
        self._dialect = dialect
        self._texts = texts
        self._writer = writer
        self._own: FullTextPlans = full_text_plans(dialect, texts)
        self._plans = plans
        self._read = read
        self._transaction = transaction
        self._lock_timeout_ms = lock_timeout_ms

    def state(self, session: StatementSession | None = None) -> FullTextState | None:
        if session is None:
            with self._read() as connection:
                return self.state(connection)
        rows = session.run(self._own.state, ())
        return FullTextState(rows[0][0], bool(rows[0][1]), unpacked_memories(rows[0][2])) if rows else None

    def keep(self, indexer_of: IndexerOf) -> None:
        self._writer.keep(indexer_of)

    def drop(self) -> bool:
        def work(connection: PgConnection) -> bool:
            connection.command(self._own.lock)
            state = self.state(connection)
            if state is not None:
                connection.exchange(*(simple(text) for text in self._drop(state)))
            return state is not None

        return self._patiently(work)

    def _drop(self, state: FullTextState | None) -> tuple[str, str]:
        """Return the statements that drop an index, also of memories unknown to this process."""
        return drop_texts(text_tables(self._texts, state), self._dialect), self._own.forget_all

    def rebuild(self, indexer: TextIndexer, progress: Progress = unheard, *, unless_there: bool = False) -> int:
        def work(connection: PgConnection) -> int:
            plans = self._own
            connection.command(plans.lock)
            state = self.state(connection)
            if unless_there and state is not None and state.complete:
                return 0
            check_indexed(connection, self._plans, self._texts)
            connection.exchange(*(simple(text) for text in (*self._drop(state), *plans.create)))
            connection.run(plans.begin, (indexer.name, packed_memories(memories_of(self._texts))))
            enter = functools.partial(self._writer.enter, connection, indexer)
            held = index_all(connection, self._plans, self._texts, enter, progress)
            connection.flush()
            return held

        return self._patiently(work)

    def check(self, indexer: TextIndexer) -> list[str]:
        with self._read() as session:
            state = self.state(session)
            if state is None:
                return []
            if state.analyzer != indexer.name or not state.complete:
                return ["full text is not complete, or was made by other rules; run `caliber db rebuild-search`"]
            memories, texts = indexed_now(session, self._plans, self._texts)
            if state.memories != memories:
                return ["full text does not hold every memory; run `caliber db rebuild-search`"]
            session.run(self._own.unhurried, ())
            return [fault for relation in texts for fault in self._check_kind(session, indexer, relation)]

    def _check_kind(self, session: StatementSession, indexer: TextIndexer, relation: Relation) -> list[str]:
        kind, of = relation.name, kind_plans(relation, self._dialect)
        found = differences(session, indexer, relation, self._plans[kind].page, of.entries, BATCH_ROWS)
        return found + unindexed(session, kind, of.unlike)

    # --- bulk loads ------------------------------------------------------------------------------

    def loaded(self, connection: PgConnection, relation: Relation, ordinals: Sequence[int]) -> None:
        """Index rows that were loaded in the current transaction.

        It runs at the end of the load, so that a concurrent index build need not wait for all of it: an index begun
        earlier is found here, and one begun later waits for these rows.
        """
        if not ordinals or relation.name not in self._writer.texts:
            return
        state = connection.run(self._own.state, ())
        if not state:
            return
        indexer = self._writer.indexer(state[0][0])
        indexed = self._writer.to_index(state[0][2], (relation,))
        if indexed == []:
            return
        if indexed is None or indexer is None:
            connection.run(self._own.spoil, ())
            return
        plan = self._plans[relation.name].get_many
        assert plan is not None
        for start in range(0, len(ordinals), BATCH_ROWS):
            some = list(ordinals[start : start + BATCH_ROWS])
            rows = connection.run(plan, (dump_json(some),))
            self._writer.enter(connection, indexer, indexed[0], rows)
        connection.flush()

    def _patiently(self, work: Callable[[PgConnection], T]) -> T:
        return with_lock_retry(self._transaction, work, self._lock_timeout_ms)
