"""Maintenance of SQLite's full-text index: contentless FTS5 tables, updated in write transactions.

The tables exist only in stores that have an index, so that a small store stays small and its writes pay nothing. A
writer learns of an index without a statement: building and dropping write a change record, and a gap in the numbers of
change records makes a writer look again.

Source: K-170, K-171; docs/decisions/0081.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from caliber.backends.sqlite.connecting.connection import SqliteConnection
from caliber.backends.sqlite.dialect import DIALECT, SqliteDialect
from caliber.backends.sqlite.statements import STATEMENTS as IRREGULAR_STATEMENTS
from caliber.model.errors import StorageError
from caliber.model.progress import Progress, unheard
from caliber.schema.relation import Relation
from caliber.storage.compile.codec import Row
from caliber.storage.compile.plan import Plan, RelationPlans
from caliber.storage.compile.session import StatementSession
from caliber.storage.compile.spelling import quote
from caliber.storage.sql.full_text import (
    BATCH_ROWS,
    FullTextState,
    IndexerOf,
    TextEntry,
    TextIndexer,
    changed_texts,
    differences,
    index_all,
    memories_of,
    packed_memories,
    text_table,
    text_tables,
    to_index,
    unindexed,
    unpacked_memories,
)
from caliber.storage.sql.search_statements import search_statements
from caliber.storage.stored_memories import check_indexed, indexed_now
from caliber.storage.write.changes import DELETE
from caliber.storage.write.unit_of_work import RowChange

# Tokens come with one space between two: everything else in ASCII belongs to them, and everything beyond anyway.
_SIGNS = "".join(chr(code) for code in range(33, 127) if not chr(code).isalnum())
_TOKENIZER = "ascii tokenchars '" + _SIGNS.replace("'", "''") + "'"


def create_texts(name: str) -> tuple[str, ...]:
    """Return the statements that create the tables of one relation's index; ``name`` is their prefix."""
    tokenizer = _TOKENIZER.replace("'", "''")
    options = f"tokens, content='', contentless_delete=1, tokenize='{tokenizer}'"
    return (
        f"CREATE TABLE {name}_entry (ordinal INTEGER PRIMARY KEY, terms INTEGER NOT NULL, digest BLOB) STRICT",
        f"CREATE VIRTUAL TABLE {name} USING fts5({options})",
    )


def drop_texts(name: str) -> tuple[str, ...]:
    """Return the statements that drop the tables of ``create_texts``, if they exist."""
    return tuple(f"DROP TABLE IF EXISTS {name}{part}" for part in ("", "_entry"))


_STATE = (
    "CREATE TABLE text_state (id INTEGER PRIMARY KEY CHECK (id = 1), analyzer TEXT NOT NULL,"
    " complete INTEGER NOT NULL CHECK (complete IN (0, 1)), memories TEXT NOT NULL) STRICT"
)

_EXISTS = Plan("text.exists", "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'text_state'", ())
_ASK = Plan("text.state", "SELECT analyzer, complete, memories FROM text_state", ())
_BEGIN = Plan("text.begin", "INSERT INTO text_state VALUES (1, ?1, 1, ?2)", ("analyzer", "memories"))
SPOIL: Final = "UPDATE text_state SET complete = 0"
_SPOIL = Plan("text.spoil", SPOIL, ())


class _Statements:
    """The statements that keep the entries of one relation."""

    def __init__(self, name: str) -> None:
        self.known = Plan(f"{name}.known", f"SELECT digest FROM {name}_entry WHERE ordinal = ?1", ("ordinal",))
        self.enter = Plan(f"{name}.enter", f"INSERT OR REPLACE INTO {name}_entry VALUES (?1, ?2, ?3)", ("ordinal",))
        self.index = Plan(f"{name}.index", f"INSERT OR REPLACE INTO {name} (rowid, tokens) VALUES (?1, ?2)", ())
        self.forget = Plan(f"{name}.forget", f"DELETE FROM {name}_entry WHERE ordinal = ?1", ("ordinal",))
        self.unindex = Plan(f"{name}.unindex", f"DELETE FROM {name} WHERE rowid = ?1", ("ordinal",))
        self.entries = Plan(
            f"{name}.entries",
            f"SELECT ordinal, digest FROM {name}_entry WHERE ordinal > ?1 AND ordinal <= ?2 ORDER BY ordinal",
            ("after", "last"),
        )
        self.unlike = Plan(
            f"{name}.unlike",
            f"SELECT (SELECT count(*) FROM {name}_entry WHERE ordinal NOT IN (SELECT id FROM {name}_docsize))"
            f" + (SELECT count(*) FROM {name}_docsize WHERE id NOT IN (SELECT ordinal FROM {name}_entry))",
            (),
        )


@functools.cache
def _statements_of(name: str) -> _Statements:
    return _Statements(name)


def _of(relation: Relation) -> _Statements:
    return _statements_of(text_table(relation))


def read_state(connection: StatementSession) -> FullTextState | None:
    """Return the recorded state of the store's index; None when it has none."""
    if not connection.run(_EXISTS, ()):
        return None
    rows = connection.run(_ASK, ())
    return FullTextState(rows[0][0], bool(rows[0][1]), unpacked_memories(rows[0][2])) if rows else None


def _put(connection: SqliteConnection, of: _Statements, row: Row, entry: TextEntry) -> None:
    connection.run(of.enter, (row[0], entry.terms, entry.digest))
    connection.run(of.index, (row[0], entry.tokens))


def _remove(connection: SqliteConnection, of: _Statements, ordinal: int) -> None:
    if connection.changed(of.forget, (ordinal,)):
        connection.run(of.unindex, (ordinal,))


def _nobody(_: str) -> TextIndexer | None:
    return None


class FullTextWriter:
    """Keeps the index in the transactions of one writer."""

    def __init__(self, texts: Sequence[Relation]) -> None:
        """``texts`` are all relations that an index may cover; the store records which it does."""
        self._texts = {relation.name: relation for relation in texts}
        self._indexer_of: IndexerOf = _nobody
        self._sequence = -1
        self._state: FullTextState | None = None
        self._indexer: TextIndexer | None = None

    def keep(self, indexer_of: IndexerOf) -> None:
        """Set the indexer; the state of the index is read again."""
        self._indexer_of = indexer_of
        self._sequence = -1

    def forget(self) -> None:
        """Read the state again at the next write, whatever happens in between."""
        self._sequence = -1

    def written(self, connection: SqliteConnection, sequence: int, changes: Sequence[RowChange]) -> None:
        """Bring the index up to the changes of the transaction under way, which got change number ``sequence``."""
        if sequence != self._sequence + 1:
            self._state = read_state(connection)
            self._indexer = None if self._state is None else self._indexer_of(self._state.analyzer)
        self._sequence = sequence
        if self._state is None:
            return
        changed = changed_texts(self._texts, functools.partial(to_index, self._state.memories), changes)
        if changed is None or (changed and self._indexer is None):
            connection.run(_SPOIL, ())
        elif self._indexer is not None:
            for relation, of_kind in changed:
                self._bring_up(connection, self._indexer, relation, of_kind)

    def _bring_up(
        self, connection: SqliteConnection, indexer: TextIndexer, relation: Relation, changes: Iterable[RowChange]
    ) -> None:
        fresh, of = [], _of(relation)
        for change in changes:
            digest = None if change.operation == DELETE else indexer.digest(relation, change.row)
            if digest is None:
                _remove(connection, of, change.row[0])
            elif connection.run(of.known, (change.row[0],)) != [(digest,)]:
                fresh.append(change.row)
        _index(connection, indexer, relation, fresh)


def _index(connection: SqliteConnection, indexer: TextIndexer, relation: Relation, rows: Sequence[Row]) -> int:
    """Index rows; return how many have a text."""
    of, indexed = _of(relation), 0
    for row, entry in zip(rows, indexer.entries(relation, rows), strict=True):
        if entry is not None:
            _put(connection, of, row, entry)
            indexed += 1
    return indexed


class SqliteFullText:
    """The full text of one open store."""

    def __init__(
        self,
        writer: FullTextWriter,
        texts: tuple[Relation, ...],
        plans: dict[str, RelationPlans],
        read: Callable[[], AbstractContextManager[SqliteConnection]],
        transaction: Callable[[], AbstractContextManager[SqliteConnection]],
        clock_us: Callable[[], int],
    ) -> None:
        self.statements = full_text_statements(texts)
        self._texts = texts
        self._writer = writer
        self._plans = plans
        self._read = read
        self._transaction = transaction
        self._clock_us = clock_us

    def state(self, session: StatementSession | None = None) -> FullTextState | None:
        if session is not None:
            return read_state(session)
        with self._read() as connection:
            return read_state(connection)

    def keep(self, indexer_of: IndexerOf) -> None:
        self._writer.keep(indexer_of)

    def drop(self) -> bool:
        with self._transaction() as connection:
            state = read_state(connection)
            there = state is not None or bool(connection.run(_EXISTS, ()))
            if there:
                self._announced(connection, self._drop(state))
        return there

    def _drop(self, state: FullTextState | None) -> tuple[str, ...]:
        """Return the statements that drop an index, also of memories unknown to this process."""
        tables = (line for name in text_tables(self._texts, state) for line in drop_texts(name))
        return (*tables, "DROP TABLE IF EXISTS text_state")

    def _announced(self, connection: SqliteConnection, statements: Sequence[str]) -> None:
        """Change the schema, and write a change record: by its number other writers see that something is new."""
        for statement in statements:
            connection.command(statement)
        connection.run(IRREGULAR_STATEMENTS["change.insert"], (bytes(16), b"", self._clock_us()))
        self._writer.forget()

    def rebuild(self, indexer: TextIndexer, progress: Progress = unheard, *, unless_there: bool = False) -> int:
        with self._transaction() as connection:
            state = read_state(connection)
            if unless_there and state is not None and state.complete:
                return 0
            check_indexed(connection, self._plans, self._texts)
            create = (line for relation in self._texts for line in create_texts(text_table(relation)))
            self._announced(connection, (*self._drop(state), _STATE, *create))
            connection.run(_BEGIN, (indexer.name, packed_memories(memories_of(self._texts))))
            enter = functools.partial(_index, connection, indexer)
            return index_all(connection, self._plans, self._texts, enter, progress)

    def check(self, indexer: TextIndexer) -> list[str]:
        with self._read() as connection:
            state = read_state(connection)
            if state is None:
                return []
            if state.analyzer != indexer.name or not state.complete:
                return ["full text is not complete, or was made by other rules; run `caliber db rebuild-search`"]
            memories, texts = indexed_now(connection, self._plans, self._texts)
            if state.memories != memories:
                return ["full text does not hold every memory; run `caliber db rebuild-search`"]
            found = [fault for relation in texts for fault in self._check_kind(connection, indexer, relation)]
        for relation in texts:
            table = text_table(relation)
            try:
                with self._transaction() as connection:
                    connection.command(f"INSERT INTO {table} ({table}) VALUES ('integrity-check')")
            except StorageError as error:
                found.append(f"full text of {relation.name}: the database finds its index damaged ({error.kind})")
        return found

    def _check_kind(self, connection: SqliteConnection, indexer: TextIndexer, relation: Relation) -> list[str]:
        kind, of = relation.name, _of(relation)
        found = differences(connection, indexer, relation, self._plans[kind].page, of.entries, BATCH_ROWS)
        return found + unindexed(connection, kind, of.unlike)


class SqliteSearch:
    """The words of SQLite."""

    dialect: SqliteDialect = DIALECT

    def mark(self, position: int, type_name: str) -> str:
        del type_name  # parameters have no types
        return f"?{position}"

    def value(self, position: int, *path: str) -> str:
        return f"json_extract(?{position}, '{_path(path)}')"

    def texts(self, position: int, *path: str) -> str:
        return f"SELECT value FROM json_each(?{position}, '{_path(path)}')"

    def ids(self, position: int, *path: str) -> str:
        return f"SELECT unhex(value) FROM json_each(?{position}, '{_path(path)}')"

    def members(self, column: str) -> str:
        return f"(SELECT value AS member, substr(value, 1, instr(value, ':')) AS beginning FROM json_each({column}))"

    def scanned(self, table: str, alias: str) -> str:
        return f"{table} AS {alias} NOT INDEXED"

    def ranked(self, relation: Relation) -> str:
        table = text_table(relation)
        term = "'\"' || replace(value, '\"', '\"\"') || '\"'"
        terms = f"SELECT {term} AS said FROM json_each(?1, '$.terms')"
        beginnings = f"SELECT {term} || ' *' FROM json_each(?1, '$.beginnings')"
        asked = f"SELECT group_concat(said, ' OR ') FROM ({terms} UNION ALL {beginnings})"
        # FTS5 itself gives them in the order of their ranks: the last are not read.
        return f"(SELECT rowid AS ordinal FROM {table} WHERE {table} MATCH ({asked}) ORDER BY rank LIMIT -1) AS w"

    def looked_up(self, relation: Relation, on: str, conditions: str) -> str:
        return f"CROSS JOIN {quote(relation.name)} AS o ON {on} AND {conditions}"


def _path(path: tuple[str, ...]) -> str:
    return ".".join(("$", *path))


@functools.lru_cache(maxsize=64)
def full_text_statements(texts: tuple[Relation, ...]) -> dict[str, Plan]:
    """Return the statements that search a store of which these relations are indexed."""
    return search_statements(SqliteSearch(), texts)
