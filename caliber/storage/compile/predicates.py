"""Base compiler of predicates to SQL conditions: of relations' traits, and, by a subclass, of user filters.

The text depends on the shape of a predicate alone. ``storage.compile.conditions`` binds the values of filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from caliber.kernels.patterns import matches
from caliber.model.errors import InternalError
from caliber.model.time import EPOCH
from caliber.schema.predicate import (
    RANGES,
    All,
    Comparison,
    OneOf,
    Operator,
    Predicate,
    Variable,
    after_all_with,
    holds,
)
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.compile.spelling import quote

_SIGNS: Final = {Operator.UNEQUAL: "<>"}


class ConditionWriter:
    """Writes the condition of one predicate, whose only parameter is the instant of ``now``.

    ``row`` is the alias of the table, or empty. ``exact`` becomes False where the condition alone does not decide the
    predicate.
    """

    def __init__(self, relation: Relation, row: str = "", now: str = "") -> None:
        self.relation = relation
        self.exact = True
        self._prefix = f"{row}." if row else ""
        self._now = now

    def of(self, predicate: Predicate) -> str:
        """Return the condition."""
        if isinstance(predicate, Comparison):
            return self._comparison(predicate)
        if isinstance(predicate, OneOf):
            if not predicate.values:
                return "1 = 0"
            column = self.relation.column(predicate.column)
            return self.one_of(column, self._name(column), predicate.values)
        word = "AND" if isinstance(predicate, All) else "OR"
        return _joined([self.of(part) for part in predicate.conditions], word)

    def mark(self, column: Column, value: Any) -> str:
        """Return the placeholder of a value that a column is compared with."""
        if value is not Variable.NOW or not self._now:
            raise self._unbound(column)
        return self._now

    def one_of(self, column: Column, name: str, values: tuple[Any, ...]) -> str:  # noqa: ARG002
        """Return the condition that a column, called ``name``, has one of some values."""
        raise self._unbound(column)

    def contains(self, column: Column, mark: str) -> str:  # noqa: ARG002
        """Return the condition that a list has a member, or a text a part."""
        raise self._unbound(column)

    def in_order(self, column: Column, expression: str) -> str:  # noqa: ARG002
        """Return a text, or its placeholder, as texts are put in order."""
        return expression

    def _unbound(self, column: Column) -> InternalError:
        return InternalError(f"a condition of {self.relation.name} compares {column.name} with a value, and binds none")

    def _name(self, column: Column) -> str:
        return self._prefix + quote(column.name)

    def _comparison(self, asked: Comparison) -> str:
        column, operator = self.relation.column(asked.column), asked.operator
        name = self._name(column)
        if asked.value is None:
            return f"{name} IS {'' if operator is Operator.EQUAL else 'NOT '}NULL"
        if operator in (Operator.MATCHES, Operator.FITS):
            self.exact = False
            return f"{name} IS NOT NULL"
        mark = self.mark(column, asked.value)
        if operator is Operator.CONTAINS:
            # PostgreSQL keeps a zero character as an escape that ends in 0 or 1.
            if column.type is ColumnType.TEXT and str(asked.value)[:1] in ("0", "1"):
                self.exact = False
            return self.contains(column, mark)
        if column.type is ColumnType.TEXT and operator in RANGES:
            return self._in_range(column, name, mark, asked)
        compared = f"{name} {_SIGNS.get(operator, operator.value)} {mark}"
        # Comparing NULL gives NULL, which is not true: as it should be, but for open bounds.
        if (
            column.type is ColumnType.INSTANT
            and column.nullable
            and holds(replace(asked, value=EPOCH), {column.name: None}, {}, matches)
        ):
            return f"({compared} OR ({name} IS NULL AND {mark} IS NOT NULL))"
        return compared

    def _in_range(self, column: Column, name: str, mark: str, asked: Comparison) -> str:
        name = self.in_order(column, name)
        if asked.operator is not Operator.STARTS:
            return f"{name} {asked.operator.value} {self.in_order(column, mark)}"
        end = after_all_with(str(asked.value))
        begins = f"{name} >= {self.in_order(column, mark)}"
        return begins if end is None else f"({begins} AND {name} < {self.in_order(column, self.mark(column, end))})"


def trait_condition(predicate: Predicate | None, relation: Relation, row: str = "", now: str = "") -> str:
    """Return the condition of a trait, "TRUE" where every record meets it; ``now`` stands for its instant."""
    return "TRUE" if predicate is None else ConditionWriter(relation, row, now).of(predicate)


def _joined(parts: Sequence[str], word: str) -> str:
    """Return conditions joined in pairs of pairs: databases bound how deep a condition may be, and a chain is deep."""
    while len(parts) > 1:
        pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
        parts = [f"({pair[0]} {word} {pair[1]})" if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]
