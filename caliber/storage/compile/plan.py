"""SQL compiler: DDL and regular statements (``Plan``: insert, update, select) of a relation, by ``Dialect``.

``compile_relation`` yields every regular statement of a relation once; at run time a plan's text goes to the driver
unchanged, so no SQL is built for a request. A ``Dialect`` holds the differences between databases.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, Protocol

from caliber.model.lazy_dataclass import dataclass
from caliber.schema.catalog import Catalog
from caliber.schema.relation import AccessPath, Column, ForeignKey, Relation, Unique
from caliber.schema.traits import Pruned
from caliber.schema.validity import active
from caliber.storage.compile.codec import Codec, codec_of
from caliber.storage.compile.predicates import trait_condition
from caliber.storage.compile.spelling import literal, quote, quote_all


class Dialect(Protocol):
    """The spelling of one database."""

    name: str
    ordinal_definition: str
    auto_key_definition: str
    table_suffix: str
    ordinal_value: str
    """The ordinal that an insert writes: ``{mark}``, or the next one of ``{relation}`` where that is NULL."""
    row_lock: str
    """The end of a SELECT that locks its rows against other writers; empty where there are none."""
    update_lock: str
    """As ``row_lock``, for rows whose keys stay: writers of rows that refer to them do not wait."""
    own_columns: Mapping[str, tuple[str, ...]]
    """Definitions of columns that only this database has, by relation."""
    read_only: str
    """The text after the table in a view that keeps anybody from writing through it."""

    def table(self, name: str) -> str:
        """Return a relation's table as statements name it."""
        ...

    def type_of(self, column: Column) -> str:
        """Return the column's type."""
        ...

    def checks_of(self, column: Column) -> list[str]:
        """Return the column's CHECK expressions."""
        ...

    def default_of(self, column: Column) -> str:
        """Return the column's default as a literal."""
        ...

    def own_statements(self, relation: Relation) -> tuple[str, ...]:
        """Return the statements that only this database runs beside a table."""
        ...

    def replace_enum_check(self, relation: str, before: Column, after: Column) -> tuple[str, ...]:
        """Return the statements that replace the check of an enum's members by a wider one, or by none."""
        ...

    def placeholder(self, position: int) -> str:
        """Return the placeholder of the parameter at ``position``, counted from 1."""
        ...

    def list_placeholder(self, position: int) -> str:
        """Return the placeholder of a parameter that is a JSON list."""
        ...

    def in_integers(self, position: int) -> str:
        """Return a row source of the integers packed in one parameter."""
        ...

    def in_texts(self, position: int) -> str:
        """Return a row source of the texts packed in one parameter, in a column ``value``."""
        ...

    def among(self, rows: str) -> str:
        """Return the condition that a value is among those of a query, which runs once."""
        ...

    def number_from(self, name: str, first: int) -> str:
        """Return the statement that makes a relation without rows give out ordinals from ``first`` on."""
        ...

    def contains(self, column: Column, mark: str, row: str = "") -> str:
        """Return the condition that a list has a member, or a text a part, that a placeholder stands for.

        ``row`` is a table's alias and a point.
        """
        ...

    def in_order(self, column: Column, expression: str) -> str:
        """Return a text, or its placeholder, so that comparing puts texts in the order of their characters."""
        ...

    def size(self, column: Column, expression: str) -> str:
        """Return the bytes, elements or dimensions of a column's value."""
        ...

    def shown(self, column: Column, expression: str) -> str:
        """Return a column's value for people: ids and hashes as text, instants as dates."""
        ...

    def one_of(self, column: Column, name: str, mark: str) -> str:
        """Return the condition that a column, called ``name``, has one of the values of the list ``mark``.

        The list holds ids in hexadecimal digits, instants in microseconds, true as 1, and null for having no value.
        """
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """One statement: its name, its text and the columns its parameters and results stand for, in order.

    ``is_kept``: it is one of a known number. Others follow from what callers ask, and no connection prepares them.
    """

    name: str
    sql: str
    binds: tuple[str, ...]
    results: tuple[str, ...] = ()
    is_kept: bool = True


@dataclass(frozen=True, slots=True)
class RelationPlans:
    """All regular statements of one relation."""

    relation: Relation
    codec: Codec
    create: tuple[str, ...]
    insert: Plan
    insert_or_ignore: Plan
    upsert: Plan
    get: Plan
    update: Plan | None
    delete: Plan
    count: Plan
    any: Plan
    page: Plan
    get_many: Plan | None
    find_many: Plan | None
    delete_many: Plan | None
    lock: Plan | None = None
    """Keeps others from writing a row until the transaction ends, where a database lets them."""
    lists: dict[str, Plan] = field(default_factory=dict)
    counts: dict[str, Plan] = field(default_factory=dict)
    references: dict[str, Plan] = field(default_factory=dict)
    """For each foreign key's column, the rows that refer to one target; for mirrored relations only."""
    unique: dict[tuple[str, ...], Plan] = field(default_factory=dict)
    """For the columns of each rule of uniqueness, the row with given values under it."""
    drawn_from: Plan | None = None
    """Records derived from a trajectory, among others; where a column lists the sources of each."""
    lapsed: Plan | None = None
    """Active records whose validity ended before an instant; where such records are archived."""
    expired: Plan | None = None
    """Keys of records that were made up to a time, the first ones; where retention reaches them, as the next three."""
    stale: Plan | None = None
    """Records that were made up to a time, and are less sure than so much."""
    surplus: Plan | None = None
    """Keys of records that are not among the newest N of the store."""
    surplus_by_trajectory: Plan | None = None
    """Keys of records that are not among the newest N of their trajectory."""


def index_names(plans: RelationPlans) -> list[str]:
    """Return the names of the indexes that a relation is created with."""
    return indexes_made_by(plans.create)


def indexes_made_by(statements: Iterable[str]) -> list[str]:
    """Return the names of the indexes that statements create."""
    found = (_INDEX.match(statement) for statement in statements)
    return [match[1] for match in found if match is not None]


NAME_BYTES: Final = 63
"""The longest name of PostgreSQL."""
_INDEX: Final = re.compile(r'CREATE (?:UNIQUE )?INDEX "([^"]+)"')


def _where(conditions: tuple[tuple[str, bool | StrEnum], ...]) -> str:
    tests: dict[Any, str] = {True: "IS NULL", False: "IS NOT NULL"}
    return " AND ".join(f"{quote(name)} {tests.get(value) or '= ' + literal(str(value))}" for name, value in conditions)


def column_definition(relation: Relation, column: Column, dialect: Dialect) -> str:
    """Return a column as CREATE TABLE defines it."""
    if relation.auto_key and relation.key == (column.name,):
        return f"{quote(column.name)} {dialect.auto_key_definition}"
    parts = [quote(column.name), dialect.type_of(column)]
    if not column.nullable and not column.declared:
        parts.append("NOT NULL")
    if column.default is not None:
        parts.append(f"DEFAULT {dialect.default_of(column)}")
    checks = dialect.checks_of(column)
    low, high = column.check or (None, None)
    if low is not None:
        checks.append(f"{quote(column.name)} >= {low}")
    if high is not None:
        checks.append(f"{quote(column.name)} <= {high}")
    if members := enum_check(column):
        checks.append(members)
    if column.length is not None:
        checks.append(f"length({quote(column.name)}) = {column.length}")
    parts.extend(f"CHECK ({check})" for check in checks)
    return " ".join(parts)


def enum_check(column: Column) -> str:
    """Return the condition that a column holds a member of its enum; empty for an open one."""
    if column.enum is None or column.open:
        return ""
    return f"{quote(column.name)} IN ({', '.join(literal(member.value) for member in column.enum)})"


def _foreign_key(key: ForeignKey, dialect: Dialect) -> str:
    return f"REFERENCES {dialect.table(key.relation)} ({quote(key.target)}) ON DELETE {key.on_delete.upper()}"


def added_column(relation: Relation, column: Column, dialect: Dialect) -> str:
    """Return a column as ALTER TABLE adds it, with its foreign key."""
    keys = [_foreign_key(key, dialect) for key in relation.foreign_keys if key.column == column.name]
    return " ".join([column_definition(relation, column, dialect), *keys])


def _short(name: str) -> str:
    """Return a name that no database cuts short: of a long one the end is a digest."""
    return name if len(name) <= NAME_BYTES else f"{name[: NAME_BYTES - 9]}_{sha256(name.encode()).hexdigest()[:8]}"


def create_statements(relation: Relation, dialect: Dialect) -> tuple[str, ...]:
    """Return the statements that create a relation: its table, then its indexes and comments."""
    lines = []
    if relation.ordinal:
        lines.append(f"{quote('ordinal')} {dialect.ordinal_definition}")
    lines += [column_definition(relation, column, dialect) for column in relation.columns]
    lines += dialect.own_columns.get(relation.name, ())
    if not relation.auto_key:
        keys = quote_all(relation.key)
        lines.append(f"UNIQUE ({keys})" if relation.ordinal else f"PRIMARY KEY ({keys})")
    for key in relation.foreign_keys:
        lines.append(f"FOREIGN KEY ({quote(key.column)}) {_foreign_key(key, dialect)}")
    body = ",\n  ".join(lines)
    table = dialect.table(relation.name)
    statements = [f"CREATE TABLE {table} (\n  {body}\n){dialect.table_suffix}"]
    for unique in relation.uniques:
        columns = quote_all(unique.columns)
        where = f" WHERE {_where(unique.where)}" if unique.where else ""
        name = quote(_short(f"uq_{relation.name}_{'_'.join(unique.columns)}"))
        statements.append(f"CREATE UNIQUE INDEX {name} ON {table} ({columns}){where}")
    indexed = {unique.columns for unique in relation.uniques if not unique.where} | {relation.key}
    for path in relation.paths:
        # The ordinal ends every SQLite index by itself; naming it there would store it twice.
        order = tuple(name for name in path.order if name != "ordinal") if dialect.name == "sqlite" else path.order
        columns_of_index = (*path.by, *order)
        if not columns_of_index or any(known[: len(columns_of_index)] == columns_of_index for known in indexed):
            continue
        where = f" WHERE {_where(path.where)}" if path.where else ""
        columns = quote_all(columns_of_index)
        name = quote(_short(f"ix_{relation.name}_{path.name}"))
        statements.append(f"CREATE INDEX {name} ON {table} ({columns}){where}")
    # References are followed backwards when their target goes: without an index each delete is a scan.
    leading = {columns[0] for columns in indexed} | {path.by[0] for path in relation.paths if path.by}
    for key in relation.foreign_keys:
        if key.column not in leading:
            name = quote(_short(f"ix_{relation.name}_{key.column}"))
            where = f" WHERE {_where(((key.column, False),))}" if relation.column(key.column).nullable else ""
            statements.append(f"CREATE INDEX {name} ON {table} ({quote(key.column)}){where}")
    return (*statements, *dialect.own_statements(relation))


def _count_plan(relation: Relation, path: AccessPath, dialect: Dialect) -> Plan:
    sql = f"SELECT count(*) FROM {dialect.table(relation.name)}{_path_conditions(path, dialect)}"
    return Plan(f"{relation.name}.count_{path.name}", sql, path.by, ("count",))


def _path_conditions(path: AccessPath, dialect: Dialect) -> str:
    conditions = [f"{quote(name)} = {dialect.placeholder(at)}" for at, name in enumerate(path.by, start=1)]
    if path.where:
        conditions.append(_where(path.where))
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _list_plan(relation: Relation, path: AccessPath, codec: Codec, dialect: Dialect) -> Plan:
    binds = list(path.by)
    where = _path_conditions(path, dialect)
    direction = " DESC" if path.descending else ""
    order = ", ".join(quote(name) + direction for name in path.order)
    limit = ""
    if path.limited:
        binds.append("limit")
        limit = f" LIMIT {dialect.placeholder(len(binds))}"
    selected = quote_all(codec.names)
    sql = f"SELECT {selected} FROM {dialect.table(relation.name)}{where} ORDER BY {order}{limit}"
    return Plan(f"{relation.name}.{path.name}", sql, tuple(binds), codec.names)


def _unique_plan(relation: Relation, unique: Unique, codec: Codec, dialect: Dialect) -> Plan:
    where = _path_conditions(AccessPath("unique", unique.columns, (), where=unique.where), dialect)
    selected = quote_all(codec.names)
    sql = f"SELECT {selected} FROM {dialect.table(relation.name)}{where}"
    return Plan(f"{relation.name}.by_{'_'.join(unique.columns)}", sql, unique.columns, codec.names)


def _drawn_plan(relation: Relation, codec: Codec, dialect: Dialect) -> Plan | None:
    sources = None if relation.erase is None else relation.erase.sources
    if sources is None:
        return None
    selected = quote_all(codec.names)
    sql = (
        f"SELECT {selected} FROM {dialect.table(relation.name)}"
        f" WHERE {dialect.contains(relation.column(sources), dialect.placeholder(1))}"
        f" ORDER BY {quote(relation.times.entered)}, {quote('ordinal')}"
    )
    return Plan(f"{relation.name}.drawn_from", sql, ("trajectory_id",), codec.names)


def _lapsed_plan(relation: Relation, codec: Codec, dialect: Dialect) -> Plan | None:
    ends, times = relation.ends, relation.times
    # A read may ask about the time in which a record held: then it is not taken out of use.
    if ends is None or ends.pruned is not Pruned.ARCHIVED or times.until is None or times.as_of:
        return None
    selected = quote_all(codec.names)
    sql = (
        f"SELECT {selected} FROM {dialect.table(relation.name)}"
        f" WHERE {quote(times.until)} <= {dialect.placeholder(1)} AND {trait_condition(active(relation), relation)}"
    )
    return Plan(f"{relation.name}.lapsed", sql, (times.until,), codec.names)


def _reached(relation: Relation) -> str:
    """Return the condition under which retention reaches a record: archiving happens once, other ends always."""
    archives = relation.ends is not None and relation.ends.pruned is Pruned.ARCHIVED
    return trait_condition(active(relation), relation) if archives else "TRUE"


def _expired_plan(relation: Relation, dialect: Dialect) -> Plan | None:
    if relation.ends is None:
        return None
    until, limit = (dialect.placeholder(at) for at in (1, 2))
    sql = (
        f"SELECT {quote(relation.key[0])} FROM {dialect.table(relation.name)}"
        f" WHERE {quote(relation.gone_at or relation.times.entered)} <= {until} AND {_reached(relation)}"
        f" ORDER BY {quote('ordinal')} LIMIT {limit}"
    )
    return Plan(f"{relation.name}.expired", sql, ("created_until", "limit"), relation.key)


def _stale_plan(relation: Relation, codec: Codec, dialect: Dialect) -> Plan | None:
    if relation.ends is None:
        return None
    # A record without a confidence is not doubted.
    confidence = "1" if relation.ends.doubted is None else f"coalesce({quote(relation.ends.doubted)}, 1)"
    selected = quote_all(codec.names)
    sql = (
        f"SELECT {selected} FROM {dialect.table(relation.name)}"
        f" WHERE {quote(relation.times.entered)} <= {dialect.placeholder(1)}"
        f" AND {confidence} < CAST({dialect.placeholder(2)} AS DOUBLE PRECISION) AND {_reached(relation)}"
        f" ORDER BY {quote('ordinal')}"
    )
    return Plan(f"{relation.name}.stale", sql, ("created_until", "confidence_below"), codec.names)


def _surplus_plan(relation: Relation, dialect: Dialect, by: str | None) -> Plan | None:
    if relation.ends is None or (by is not None and not relation.has(by)):
        return None
    key = quote(relation.key[0])
    part = "" if by is None else f"PARTITION BY {quote(by)} "
    ranked = (
        f"SELECT {key}, {quote('ordinal')}, row_number() OVER ({part}ORDER BY {quote(relation.times.entered)} DESC,"
        f" {quote('ordinal')} DESC) AS place FROM {dialect.table(relation.name)} WHERE {_reached(relation)}"
    )
    sql = (
        f"SELECT {key} FROM ({ranked}) AS ranked WHERE place > {dialect.placeholder(1)}"
        f" ORDER BY {quote('ordinal')} LIMIT {dialect.placeholder(2)}"
    )
    name = "surplus" if by is None else "surplus_by_trajectory"
    return Plan(f"{relation.name}.{name}", sql, ("keep", "limit"), relation.key)


def compile_relation(relation: Relation, dialect: Dialect) -> RelationPlans:
    """Return every regular statement of ``relation`` in the words of ``dialect``."""
    codec = codec_of(relation)
    table = dialect.table(relation.name)
    names = codec.names
    selected = quote_all(names)
    values = [dialect.placeholder(at) for at in range(1, len(names) + 1)]
    if relation.ordinal:
        values[0] = dialect.ordinal_value.format(mark=values[0], relation=relation.name)
    marks = ", ".join(values)
    returning = f" RETURNING {quote('ordinal')}" if relation.ordinal else ""
    insert = f"INSERT INTO {table} ({selected}) VALUES ({marks})"
    key_names = quote_all(relation.key)
    settable = [name for name in names if name not in relation.key and name != "ordinal"]
    overwrite = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in settable)
    key_where = " AND ".join(
        f"{quote(name)} = {dialect.placeholder(at)}" for at, name in enumerate(relation.key, start=1)
    )
    update = None
    if relation.versioned:
        assignments = ", ".join(
            f"{quote(name)} = {dialect.placeholder(at)}" for at, name in enumerate(settable, start=1)
        )
        after = len(settable)
        match = " AND ".join(
            f"{quote(name)} = {dialect.placeholder(after + at)}"
            for at, name in enumerate((*relation.key, "version"), start=1)
        )
        update = Plan(
            f"{relation.name}.update",
            f"UPDATE {table} SET {assignments} WHERE {match}",
            (*settable, *relation.key, "version"),
        )
    # The whole key, or rows that share its first part would be lost at the border of two pages.
    page_keys = ("ordinal",) if relation.ordinal else relation.key
    page_order = quote_all(page_keys)
    page_marks = ", ".join(dialect.placeholder(at) for at in range(1, len(page_keys) + 1))
    page_after = f"({page_order}) > ({page_marks})" if len(page_keys) > 1 else f"{page_order} > {page_marks}"
    get_many, select = None, f"SELECT {selected} FROM {table} WHERE "
    if relation.ordinal:
        among = f"{quote('ordinal')} IN ({dialect.in_integers(1)})"
        get_many = Plan(f"{relation.name}.get_many", f"{select}{among}", ("ordinals",), names)
    find_many = delete_many = None
    if relation.by_id:
        among = dialect.one_of(relation.column(relation.key[0]), key_names, dialect.list_placeholder(1))
        find_many = Plan(f"{relation.name}.find_many", f"{select}{among}", ("ids",), names)
        told = (relation.key[0], "version")
        sql = f"DELETE FROM {table} WHERE {among} RETURNING {quote_all(told)}"
        delete_many = Plan(f"{relation.name}.delete_many", sql, ("ids",), told)
    lock = None
    if dialect.row_lock:
        held = (quote("version"), "version") if relation.versioned else ("1", "found")
        sql = f"SELECT {held[0]} FROM {table} WHERE {key_where}{dialect.row_lock}"
        lock = Plan(f"{relation.name}.lock", sql, relation.key, held[1:])
    return RelationPlans(
        relation=relation,
        codec=codec,
        create=create_statements(relation, dialect),
        insert=Plan(f"{relation.name}.insert", insert + returning, names, ("ordinal",) if returning else ()),
        insert_or_ignore=Plan(
            f"{relation.name}.insert_or_ignore",
            f"{insert} ON CONFLICT DO NOTHING{returning}",
            names,
            ("ordinal",) if returning else (),
        ),
        upsert=Plan(
            f"{relation.name}.upsert",
            f"{insert} ON CONFLICT ({key_names}) DO UPDATE SET {overwrite}{returning}",
            names,
            ("ordinal",) if returning else (),
        ),
        get=Plan(f"{relation.name}.get", f"SELECT {selected} FROM {table} WHERE {key_where}", relation.key, names),
        update=update,
        delete=Plan(f"{relation.name}.delete", f"DELETE FROM {table} WHERE {key_where}", relation.key),
        count=Plan(f"{relation.name}.count", f"SELECT count(*) FROM {table}", (), ("count",)),
        any=Plan(f"{relation.name}.any", f"SELECT EXISTS (SELECT 1 FROM {table})", (), ("found",)),
        page=Plan(
            f"{relation.name}.page",
            f"SELECT {selected} FROM {table} WHERE {page_after}"
            f" ORDER BY {page_order} LIMIT {dialect.placeholder(len(page_keys) + 1)}",
            (*page_keys, "limit"),
            names,
        ),
        get_many=get_many,
        find_many=find_many,
        delete_many=delete_many,
        lock=lock,
        lists={path.name: _list_plan(relation, path, codec, dialect) for path in relation.paths},
        counts={path.name: _count_plan(relation, path, dialect) for path in relation.paths},
        references={
            key.column: _list_plan(
                relation, AccessPath(f"referring_{key.column}", (key.column,), ("ordinal",)), codec, dialect
            )
            for key in relation.foreign_keys
            if relation.mirrored
        },
        unique={unique.columns: _unique_plan(relation, unique, codec, dialect) for unique in relation.uniques},
        drawn_from=_drawn_plan(relation, codec, dialect),
        lapsed=_lapsed_plan(relation, codec, dialect),
        expired=_expired_plan(relation, dialect),
        stale=_stale_plan(relation, codec, dialect),
        surplus=_surplus_plan(relation, dialect, None),
        surplus_by_trajectory=_surplus_plan(relation, dialect, "trajectory_id"),
    )


@functools.lru_cache(maxsize=512)
def _compiled(relation: Relation, dialect: Any) -> RelationPlans:
    return compile_relation(relation, dialect)


def plans_of(catalog: Catalog, built_in: dict[str, RelationPlans], dialect: Dialect) -> dict[str, RelationPlans]:
    """Return the statements of every relation of a store; those of built-in relations are compiled once."""
    if not catalog.memories:
        return built_in
    words: Any = dialect
    return built_in | {relation.name: _compiled(relation, words) for relation in catalog.declared_relations}
