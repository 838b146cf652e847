"""User filters in SQL, for tenants whose records are not in memory: compiled to conditions, parameters and listings.

Every value of a filter is a bound parameter. Where a database cannot express a condition exactly (patterns, and texts
that begin as an escape of PostgreSQL's zero characters may end), the statement returns a superset, and
``schema.predicate.holds`` checks each row of it.

One prepared search statement serves every filter that compares columns with values: it has a parameter a column, a JSON
list of values, or NULL for no condition. A filter that needs more is a statement of its own (``StoredFilter``), whose
ordinals are passed as the last parameter.

Source: C-161 to C-165, K-064, K-071; docs/search.md; docs/decisions/0147.
"""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from caliber.kernels.patterns import matches
from caliber.model.errors import InvalidValue
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import to_us
from caliber.schema.predicate import All, Comparison, OneOf, Operator, Predicate, Variable, holds
from caliber.schema.relation import Column, ColumnType, Relation, Residence
from caliber.storage.compile.codec import Row, codec_of, decoder_of, dump_json
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
        self, session: StatementSession, variables: Mapping[Variable, Any], *, check: Callable[[], None] | None = None
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

    def in_order(self, column: Column, expression: str) -> str:
        return self._dialect.in_order(column, expression)

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


_ORDINAL: Final = "ordinal"

Filters: TypeAlias = tuple[str | None, ...]
"""The parameters of one filter."""


@functools.lru_cache(maxsize=512)
def filterable(relation: Relation) -> tuple[str, ...]:
    """Return the columns that searches of a relation can be filtered by."""
    return tuple(
        column.name
        for column in relation.columns
        if column.residence in (Residence.COLUMN, Residence.INTERNED)
        and column.name not in ("version", relation.rights.readers)
    )


def filter_names(relation: Relation) -> tuple[str, ...]:
    """Return the names of the parameters: one per column, and the ordinals that match a filter."""
    return tuple(f"filter_{name}" for name in (*filterable(relation), _ORDINAL))


def filter_condition(relation: Relation, dialect: Dialect, first: int) -> str:
    """Return the condition that row ``o`` meets a filter whose parameters begin at ``first``."""
    parts = []
    for at, name in enumerate((*filterable(relation), _ORDINAL), start=first):
        column, mark = f"o.{quote(name)}", dialect.list_placeholder(at)
        if name == _ORDINAL:
            condition = f"{column} IN ({dialect.in_integers(at)})"
        else:
            condition = dialect.one_of(relation.column(name), column, mark)
        parts.append(f"({mark} IS NULL OR {condition})")
    return " AND ".join(parts)


def unfiltered(relation: Relation) -> Filters:
    """Return the parameters of no filter."""
    return (None,) * (len(filterable(relation)) + 1)


def parameters(relation: Relation, predicate: Predicate | None, among: Sequence[int] | None = None) -> Filters | None:
    """Return a filter as parameters, or None where it needs a statement of its own; ``among`` are ordinals."""
    listed: dict[str, tuple[Any, ...]] = {}
    for part in _parts(predicate):
        match part:
            case OneOf(column, values):
                pass
            case Comparison(column, Operator.EQUAL, value) if not isinstance(value, Variable):
                values = (value,)
            case _:
                return None
        if column in listed:
            values = tuple(value for value in listed[column] if value in values)
        listed[column] = values
    names = filterable(relation)
    if not listed.keys() <= set(names):
        return None
    known = (json_list(listed[name]) if name in listed else None for name in names)
    return (*known, None if among is None else dump_json(among))


def _parts(predicate: Predicate | None) -> tuple[Predicate, ...]:
    if isinstance(predicate, All):
        return tuple(part for each in predicate.conditions for part in _parts(each))
    return () if predicate is None else (predicate,)


def json_list(values: Sequence[Any]) -> str:
    """Return values of a filter as ``Dialect.one_of`` reads them."""
    return dump_json([_plain(value) for value in values])


def _plain(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return value.hex
    if isinstance(value, datetime):
        return to_us(value)
    return int(value) if isinstance(value, bool) else value


ORDERED: Final = (ColumnType.INT, ColumnType.FLOAT, ColumnType.INSTANT, ColumnType.TEXT)
"""Types by which records can be sorted: those that the language compares by ``<``."""


@dataclass(frozen=True, slots=True)
class Behind:
    """The record that a page begins behind: its key and its value of the column that gives the order."""

    key: bytes
    value: Any = None


class Listing:
    """A condition over one relation (None: every record) and an order, in the words of one database.

    Raises: InvalidValue for a filter with more values than a statement may bind
    """

    def __init__(
        self,
        relation: Relation,
        predicate: Predicate | None,
        dialect: Dialect,
        order_by: Column | None = None,
        *,
        descending: bool = False,
    ) -> None:
        writer = FilterWriter(relation, dialect)
        self._relation, self._predicate, self._dialect = relation, predicate, dialect
        self._condition = "" if predicate is None else writer.of(predicate)
        self._values, self._exact = writer.values, writer.exact
        if len(self._values) > MOST_VALUES:
            raise InvalidValue(field="filter", reason=f"names more than {MOST_VALUES} values")
        self._order_by, self._turned = order_by, descending
        self._codec = codec_of(relation)

    def rows(
        self,
        session: StatementSession,
        variables: Mapping[Variable, Any],
        behind: Behind | None = None,
        *,
        page_rows: int = PAGE_ROWS,
    ) -> Iterator[Row]:
        """Yield the rows, read in pages."""
        key_at = self._codec.key_places[0]
        order_at = None if self._order_by is None else self._codec.index(self._order_by.name)
        bound = [bound_value(variables[item] if isinstance(item, Variable) else item) for _, item in self._values]
        while True:
            plan, more = self._page(behind)
            page = session.run(plan, (*bound, *more, page_rows))
            for row in page:
                if self._exact or self._predicate is None or meets(self._predicate, self._relation, row, variables):
                    yield row
            if len(page) < page_rows:
                return
            last = page[-1]
            behind = Behind(last[key_at], None if order_at is None else last[order_at])

    def _page(self, behind: Behind | None) -> tuple[Plan, tuple[Any, ...]]:
        """Return the statement of one page, and its parameters besides the values of the condition."""
        key = quote(self._relation.key[0])
        beyond = "<" if self._turned else ">"
        first = len(self._values) + 1
        mark = self._dialect.placeholder
        parts = [self._condition] if self._condition else []
        binds: list[tuple[str, Any]] = []
        if behind is not None:
            binds.append((self._relation.key[0], behind.key))
            after = f"{key} {beyond} {mark(first)}"
            if self._order_by is not None:
                name = quote(self._order_by.name)
                column = self._dialect.in_order(self._order_by, name)
                if behind.value is None:
                    after = f"({name} IS NULL AND {after})"
                else:
                    binds.append((self._order_by.name, behind.value))
                    value = self._dialect.in_order(self._order_by, mark(first + 1))
                    after = f"({name} IS NULL OR {column} {beyond} {value} OR ({column} = {value} AND {after}))"
            parts.append(after)
        down = " DESC" if self._turned else ""
        order = f"{key}{down}"
        if self._order_by is not None:
            name = quote(self._order_by.name)
            order = f"({name} IS NULL), {self._dialect.in_order(self._order_by, name)}{down}, {order}"
        where = f" WHERE {' AND '.join(parts)}" if parts else ""
        names = self._codec.names
        sql = (
            f"SELECT {quote_all(names)} FROM {self._dialect.table(self._relation.name)}{where}"
            f" ORDER BY {order} LIMIT {mark(first + len(binds))}"
        )
        columns = (*(column for column, _ in self._values), *(column for column, _ in binds), "limit")
        plan = Plan(f"{self._relation.name}.list_{digest_of(sql)}", sql, columns, names, is_kept=False)
        return plan, tuple(value for _, value in binds)

    def distinct(self, session: StatementSession, variables: Mapping[Variable, Any], column: Column) -> set[Any] | None:
        """Return the different values of a column, as stored; None where the statement alone cannot decide."""
        rows = self._selected(session, variables, f"DISTINCT {quote(column.name)}", "distinct", column.name)
        return None if rows is None else {value for (value,) in rows}

    def count(self, session: StatementSession, variables: Mapping[Variable, Any]) -> int | None:
        """Return the number of rows; None where the statement alone cannot decide."""
        rows = self._selected(session, variables, "count(*)", "count", "count")
        return None if rows is None else int(rows[0][0])

    def _selected(
        self, session: StatementSession, variables: Mapping[Variable, Any], selected: str, kind: str, result: str
    ) -> list[Row] | None:
        if not self._exact:
            return None
        bound = [bound_value(variables[item] if isinstance(item, Variable) else item) for _, item in self._values]
        where = f" WHERE {self._condition}" if self._condition else ""
        sql = f"SELECT {selected} FROM {self._dialect.table(self._relation.name)}{where}"
        binds = tuple(column for column, _ in self._values)
        plan = Plan(f"{self._relation.name}.{kind}_{digest_of(sql)}", sql, binds, (result,), is_kept=False)
        return session.run(plan, bound)
