"""Keyset-paginated SELECT of one relation: the records that meet a condition, in a given order.

The order is that of ids, or of a column and then of ids; NULL comes last. A page begins after the last record of the
previous page, by its values, so it does not matter whether that record still exists.

Source: C-161 to C-165; docs/search.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from caliber.model.errors import InvalidValue
from caliber.model.lazy_dataclass import dataclass
from caliber.schema.predicate import Predicate, Variable
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.compile.codec import Row, codec_of
from caliber.storage.compile.conditions import MOST_VALUES, PAGE_ROWS, FilterWriter, bound_value, digest_of, meets
from caliber.storage.compile.plan import Dialect, Plan
from caliber.storage.compile.session import StatementSession
from caliber.storage.compile.spelling import quote, quote_all

ORDERED: Final = (ColumnType.INT, ColumnType.FLOAT, ColumnType.INSTANT)
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
                column = quote(self._order_by.name)
                if behind.value is None:
                    after = f"({column} IS NULL AND {after})"
                else:
                    binds.append((self._order_by.name, behind.value))
                    value = mark(first + 1)
                    after = f"({column} IS NULL OR {column} {beyond} {value} OR ({column} = {value} AND {after}))"
            parts.append(after)
        down = " DESC" if self._turned else ""
        order = f"{key}{down}"
        if self._order_by is not None:
            column = quote(self._order_by.name)
            order = f"({column} IS NULL), {column}{down}, {order}"
        where = f" WHERE {' AND '.join(parts)}" if parts else ""
        names = self._codec.names
        sql = (
            f"SELECT {quote_all(names)} FROM {self._dialect.table(self._relation.name)}{where}"
            f" ORDER BY {order} LIMIT {mark(first + len(binds))}"
        )
        columns = (*(column for column, _ in self._values), *(column for column, _ in binds), "limit")
        plan = Plan(f"{self._relation.name}.list_{digest_of(sql)}", sql, columns, names, is_kept=False)
        return plan, tuple(value for _, value in binds)

    def count(self, session: StatementSession, variables: Mapping[Variable, Any]) -> int | None:
        """Return the number of rows; None where the statement alone cannot decide."""
        if not self._exact:
            return None
        bound = [bound_value(variables[item] if isinstance(item, Variable) else item) for _, item in self._values]
        where = f" WHERE {self._condition}" if self._condition else ""
        sql = f"SELECT count(*) FROM {self._dialect.table(self._relation.name)}{where}"
        binds = tuple(column for column, _ in self._values)
        plan = Plan(f"{self._relation.name}.count_{digest_of(sql)}", sql, binds, ("count",), is_kept=False)
        count: int = session.run(plan, bound)[0][0]
        return count
