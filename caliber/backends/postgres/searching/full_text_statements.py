"""PostgreSQL's words for the statements of search; texts in ``caliber.storage.sql.search_statements``.

Each searched relation K has a table ``text_K`` of terms, one row for each text that holds a term, and ``text_K_entry``,
which holds the terms that a text was indexed under. Terms are bound values looked up in a B-tree: there is no
``tsquery``, hence no query syntax. Reasons for terms instead of a ``tsvector``: docs/decisions/0081.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from caliber.backends.postgres.dialect import PostgresDialect
from caliber.schema.relation import Relation
from caliber.storage.compile.plan import Plan
from caliber.storage.sql.full_text import text_table
from caliber.storage.sql.search_statements import search_statements


@dataclass(frozen=True)
class PostgresSearch:
    """The words of PostgreSQL, for one schema."""

    dialect: PostgresDialect

    def mark(self, position: int, type_name: str) -> str:
        return f"${position}::{type_name}"

    def value(self, position: int, *path: str) -> str:
        return f"(SELECT ${position}::jsonb #>> '{{{','.join(path)}}}')"

    def texts(self, position: int, *path: str) -> str:
        return f"SELECT jsonb_array_elements_text({_at(position, path)})"

    def ids(self, position: int, *path: str) -> str:
        return f"SELECT id::uuid FROM jsonb_array_elements_text({_at(position, path)}) AS ids (id)"

    def members(self, column: str) -> str:
        members = f"unnest({column}) AS list (member)"
        return f"(SELECT member, substr(member, 1, strpos(member, ':')) AS beginning FROM {members}) AS members"

    def scanned(self, table: str, alias: str) -> str:
        return f"{self.dialect.table(table)} AS {alias}"

    def ranked(self, relation: Relation) -> str:
        table = text_table(relation)
        words, entries = self.dialect.table(table), self.dialect.table(f"{table}_entry")
        asked = (
            f"SELECT term AS low, term AS high FROM jsonb_array_elements_text({_at(1, ('terms',))}) AS terms (term)"
            " UNION ALL SELECT term, term || chr(1114111)"
            f" FROM jsonb_array_elements_text({_at(1, ('beginnings',))}) AS beginnings (term)"
        )
        holding = (
            f"SELECT ordinal, hits, terms, count(*) OVER () AS texts FROM {words}"
            ' WHERE term >= (low COLLATE "C") AND term <= (high COLLATE "C") OFFSET 0'
        )
        every = f"(SELECT coalesce(max(ordinal), 0) + 1 FROM {entries})"
        # BM25 with the constants of FTS5, and a text of thirty terms as the mean one.
        score = f"sum(ln(1 + {every}::float8 / h.texts) * h.hits / (h.hits + 0.3 + 0.03 * h.terms))"
        return (
            f"(SELECT h.ordinal FROM ({asked}) AS asked CROSS JOIN LATERAL ({holding}) AS h"
            f" GROUP BY h.ordinal ORDER BY {score} DESC, h.ordinal DESC) AS w"
        )

    def looked_up(self, relation: Relation, on: str, conditions: str) -> str:
        # Each row is looked up by its key: with so many conditions the planner expects one row of the whole relation,
        # and would scan that for each row.
        record = f"SELECT o.ordinal, o.{relation.key[0]} FROM {self.dialect.table(relation.name)} AS o"
        return f"CROSS JOIN LATERAL ({record} WHERE {on} AND {conditions} OFFSET 0) AS o"


def _at(position: int, path: tuple[str, ...]) -> str:
    return "".join((f"${position}::jsonb", *(f" -> '{name}'" for name in path)))


@functools.lru_cache(maxsize=16)
def full_text_statements(dialect: PostgresDialect, texts: tuple[Relation, ...]) -> dict[str, Plan]:
    """Return the statements that search, for one schema of which these relations are indexed."""
    return search_statements(PostgresSearch(dialect), texts)
