"""SQLite's words for the statements of search; texts in ``caliber.storage.sql.search_statements``.

Each searched relation has an FTS5 table ``text_K`` without content, and ``text_K_entry`` beside it. Terms are bound
values, each quoted as a string of FTS5: no text of a user is query syntax.
"""

from __future__ import annotations

import functools

from caliber.backends.sqlite.dialect import DIALECT, SqliteDialect
from caliber.schema.relation import Relation
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.spelling import quote
from caliber.storage.sql.full_text import text_table
from caliber.storage.sql.search_statements import search_statements


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
