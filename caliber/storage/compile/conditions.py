"""User filters in SQL, for tenants whose records are not in memory: compiled to conditions and run for ordinals.

Every value of a filter is a bound parameter. Where a database cannot express a condition exactly (patterns, and texts
that begin as an escape of PostgreSQL's zero characters may end), the statement returns a superset, and
``schema.predicate.holds`` checks each row of it.

Source: C-161 to C-165, K-064, K-071; docs/decisions/0147.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from caliber.kernels.patterns import matches
from caliber.model.errors import InvalidValue
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import to_us
from caliber.schema.predicate import Predicate, Variable, holds
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.compile.codec import Row, codec_of, decoder_of
from caliber.storage.compile.filters import json_list
from caliber.storage.compile.plan import Dialect, Plan
from caliber.storage.compile.predicates import ConditionWriter
from caliber.storage.compile.session import StatementSession
from caliber.storage.compile.spelling import quote, quote_all

MOST_VALUES: Final = 30_000
"""SQLite binds at most 32,766 values, PostgreSQL 65,535."""
PAGE_ROWS: Final = 500
"""Records read at once."""
NUMBERS: Final = 10_000
"""Ordinals read at once."""
_BEFORE_ALL: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class StoredFilter:
    """A predicate in the SQL of one database. ``exact``: the statement alone decides it."""

    relation: Relation
    predicate: Predicate
    plan: Plan
    numbers: Plan
    """As ``plan``, of ordinals alone."""
    values: tuple[Any, ...]
    exact: bool

    def ordinals(
        self,
        session: StatementSession,
        variables: Mapping[Variable, Any],
        *,
        check: Callable[[], None] | None = None,
    ) -> list[int]:
        """Return the ordinals of the rows that the predicate holds for; ``check`` is called before each page."""
        plan = self.numbers if self.exact else self.plan
        page_rows = NUMBERS if self.exact else PAGE_ROWS
        parameters = [bound_value(variables[item] if isinstance(item, Variable) else item) for item in self.values]
        out: list[int] = []
        after = _BEFORE_ALL
        while True:
            if check is not None:
                check()
            page = session.run(plan, (*parameters, after, page_rows))
            out += [row[0] for row in page if self.exact or self._holds(row, variables)]
            if len(page) < page_rows:
                return out
            after = page[-1][0]

    def _holds(self, row: Row, variables: Mapping[Variable, Any]) -> bool:
        return meets(self.predicate, self.relation, row, variables)


def meets(predicate: Predicate, relation: Relation, row: Row, variables: Mapping[Variable, Any]) -> bool:
    """Return whether a predicate holds for one row as the driver stores it."""
    return holds(predicate, _Record(relation, row), variables, matches)


class _Record(dict[str, Any]):
    """A row's values by column, decoded on first use."""

    def __init__(self, relation: Relation, row: Row) -> None:
        super().__init__()
        self._relation = relation
        self._row = row

    def __missing__(self, name: str) -> Any:
        value = self._row[codec_of(self._relation).index(name)]
        decode = decoder_of(self._relation.column(name))
        self[name] = value = value if value is None or decode is None else decode(value)
        return value


def compile_stored(predicate: Predicate, relation: Relation, dialect: Dialect) -> StoredFilter:
    """Return a predicate over a relation that has ordinals as a statement of a database.

    Raises: InvalidValue for a filter with more values than a statement may bind
    """
    writer = FilterWriter(relation, dialect)
    condition = writer.of(predicate)
    if len(writer.values) > MOST_VALUES:
        raise InvalidValue(field="filter", reason=f"names more than {MOST_VALUES} values")
    after, limit = (dialect.placeholder(len(writer.values) + at) for at in (1, 2))
    binds = (*(column for column, _ in writer.values), "after", "limit")

    def plan(kind: str, names: tuple[str, ...]) -> Plan:
        selected = quote_all(names)
        sql = (
            f"SELECT {selected} FROM {dialect.table(relation.name)} WHERE {quote('ordinal')} > {after} AND {condition}"
            f" ORDER BY {quote('ordinal')} LIMIT {limit}"
        )
        return Plan(f"{relation.name}.{kind}_{digest_of(sql)}", sql, binds, names, is_kept=False)

    values = tuple(value for _, value in writer.values)
    return StoredFilter(
        relation,
        predicate,
        plan("filter", codec_of(relation).names),
        plan("filter_ordinals", ("ordinal",)),
        values,
        writer.exact,
    )


def digest_of(sql: str) -> str:
    """Return the digest that names a statement by its text."""
    return hashlib.sha256(sql.encode()).hexdigest()[:16]


class FilterWriter(ConditionWriter):
    """Writes the condition of a filter; ``values`` are its bound values, in order, each with a column of its type."""

    def __init__(self, relation: Relation, dialect: Dialect) -> None:
        super().__init__(relation)
        self.values: list[tuple[str, Any]] = []
        self._dialect = dialect
        self._places: dict[tuple[ColumnType, Any], int] = {}

    def mark(self, column: Column, value: Any) -> str:
        return self._dialect.placeholder(self._place(column, value))

    def one_of(self, column: Column, name: str, values: tuple[Any, ...]) -> str:
        return self._dialect.one_of(column, name, self._dialect.list_placeholder(self._place(column, values)))

    def contains(self, column: Column, mark: str) -> str:
        return self._dialect.contains(column, mark)

    def _place(self, column: Column, value: Any) -> int:
        key = (column.type, value)
        if key not in self._places:
            self._places[key] = len(self.values) + 1
            self.values.append((column.name, value))
        return self._places[key]


def bound_value(value: Any) -> Any:
    """Return a value of a filter as statements bind it."""
    if isinstance(value, tuple):
        return json_list(value)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, datetime):
        return to_us(value)
    return int(value) if isinstance(value, bool) else value
