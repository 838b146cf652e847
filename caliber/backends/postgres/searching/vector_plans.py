"""SQL statements that create, drop and search pgvector indexes, with a space's id and dimensions as literals.

A partial index is used only where the planner sees its condition, and an expression index only where it sees the
expression: a parameter in their place would read every vector. Only a checked UUID and a checked number are written
into a statement. Operators and types are qualified, since a caller may have another ``search_path``.

Source: design, section 3; docs/decisions/0121.
"""

from __future__ import annotations

import functools
import uuid
from typing import Final

from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.searching.full_text_plans import PostgresSearch
from caliber.model.embedding import DistanceMetric, EmbeddingSpace
from caliber.model.errors import InternalError
from caliber.model.lazy_dataclass import dataclass
from caliber.schema.relation import Relation
from caliber.storage.compile.conditions import filter_names
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.spelling import quote
from caliber.storage.sql.full_text import text_table
from caliber.storage.sql.search_statements import allowed

VECTOR_MAX: Final = 2_000
"""Most dimensions of an indexed vector; more are indexed in half precision."""
HALFVEC_MAX: Final = 4_000
PREFIX: Final = "vector_"

_OPERATORS: Final = {DistanceMetric.COSINE: "<=>", DistanceMetric.L2: "<->", DistanceMetric.INNER_PRODUCT: "<#>"}
_CLASSES: Final = {
    DistanceMetric.COSINE: "cosine_ops",
    DistanceMetric.L2: "l2_ops",
    DistanceMetric.INNER_PRODUCT: "ip_ops",
}


@dataclass(frozen=True, slots=True)
class Space:
    """The properties of an embedding space that its statements depend on."""

    space_id: uuid.UUID
    dimensions: int
    metric: DistanceMetric

    @classmethod
    def of(cls, space: EmbeddingSpace) -> Space:
        """Return it of a space, checked. Raises: InternalError"""
        found = cls(uuid.UUID(str(space.space_id)), int(space.dimensions), DistanceMetric(space.metric))
        if not 1 <= found.dimensions <= HALFVEC_MAX:
            raise InternalError(f"a space of {found.dimensions} dimensions has no index")
        return found

    @property
    def type(self) -> str:
        """The type that its vectors are indexed as."""
        return "vector" if self.dimensions <= VECTOR_MAX else "halfvec"


def index_name(space_id: uuid.UUID, relation: Relation) -> str:
    """Return the name of the index of the vectors of one kind of record."""
    return f"{PREFIX}{space_id.hex}_{text_table(relation).removeprefix('text_')}"


def _expression(space: Space, dialect: PostgresDialect, table: str = "") -> str:
    return f'({table}"vector"::{quote(dialect.vector_schema)}.{space.type}({space.dimensions}))'


def _where(space: Space, kind: str, table: str = "") -> str:
    return f"{table}space_id = '{space.space_id}'::uuid AND {table}owner_type = '{kind}'"


def create_index(
    space: Space, relation: Relation, dialect: PostgresDialect, method: str, options: str, how: str = ""
) -> str:
    """Return the statement that makes one index; ``how`` is CONCURRENTLY or nothing."""
    schema, name = quote(dialect.vector_schema), quote(index_name(space.space_id, relation))
    return (
        f"CREATE INDEX {how} IF NOT EXISTS {name} ON {dialect.table('embedding')}"
        f" USING {method} ({_expression(space, dialect)} {schema}.{space.type}_{_CLASSES[space.metric]})"
        f" WITH ({options}) WHERE {_where(space, relation.name)}"
    )


def drop_index(name: str, dialect: PostgresDialect) -> str:
    """Return the statement that drops an index, while others use the table."""
    return f"DROP INDEX CONCURRENTLY IF EXISTS {dialect.table(name)}"


@functools.lru_cache(maxsize=256)
def nearest_plan(relation: Relation, space: Space, dialect: PostgresDialect) -> Plan:
    """Return the plan that finds near vectors of one kind of record in a space."""
    kind, key, sql = relation.name, relation.key[0], PostgresSearch(dialect)
    schema = quote(dialect.vector_schema)
    query = f"$1::{schema}.vector::{schema}.{space.type}({space.dimensions})"
    distance = f"{_expression(space, dialect, 'e.')} OPERATOR({schema}.{_OPERATORS[space.metric]}) {query}"
    return Plan(
        f"nearest.{space.space_id.hex}_{kind}",
        f"SELECT e.ordinal, o.ordinal, o.{key}, e.vector FROM {dialect.table('embedding')} AS e"
        f" {sql.looked_up(relation, f'o.{key} = e.owner_id', allowed(relation, sql, 2))}"
        f" WHERE {_where(space, kind, 'e.')} ORDER BY {distance} LIMIT $4::bigint",
        ("query", "seen", "at_us", "limit", *filter_names(relation)),
        ("place", "ordinal", "key", "vector"),
    )


@dataclass(frozen=True, slots=True)
class VectorPlans:
    """The statements of one schema that name no space."""

    indexes: Plan
    doing: Plan
    many: Plan
    of_kind: Plan
    begin: dict[str, Plan]
    end: Plan
    few: dict[str, Plan]


def _few(relation: Relation, dialect: PostgresDialect) -> Plan:
    """Return the plan that reads the vectors of all records that meet a filter, beginning with the records."""
    kind, key = relation.name, relation.key[0]
    return Plan(
        f"nearest.few_{kind}",
        f"WITH met AS MATERIALIZED (SELECT o.ordinal, o.{key} FROM {dialect.table(kind)} AS o"
        f" WHERE {allowed(relation, PostgresSearch(dialect), 2)} LIMIT $4::bigint)"
        f" SELECT e.ordinal, met.ordinal, met.{key}, e.vector FROM met JOIN {dialect.table('embedding')} AS e"
        f" ON e.owner_id = met.{key} AND e.space_id = $1::uuid"
        " UNION ALL SELECT NULL, count(*), NULL, NULL FROM met",
        ("space_id", "seen", "at_us", "limit", *filter_names(relation)),
        ("place", "ordinal", "key", "vector"),
    )


_SETTINGS: Final = {
    "hnsw": ("hnsw.ef_search", "hnsw.max_scan_tuples", "hnsw.iterative_scan"),
    "ivfflat": ("ivfflat.probes", "ivfflat.max_probes", "ivfflat.iterative_scan"),
}
"""How many entries are examined first and at most, and whether the scan continues until enough are found."""


def _settings(method: str, iterative: bool) -> Plan:
    """Return the statements that set up a search by an index, until its transaction ends.

    Sorting is discouraged: the index gives the order, and estimates of filters would speak for sorting everything.
    """
    first, most, again = _SETTINGS[method]
    local = [f"set_config('{first}', $1::text, true)", "set_config('enable_sort', 'off', true)"]
    more = [f"set_config('{most}', $2::text, true)", f"set_config('{again}', 'relaxed_order', true)"]
    parts = local + (more if iterative else ["$2::text"])
    return Plan(f"nearest.begin_{method}", f"SELECT {', '.join(parts)}", ("first", "most"), ("set",) * len(parts))


@functools.lru_cache(maxsize=16)
def vector_plans(dialect: PostgresDialect, iterative: bool, texts: tuple[Relation, ...]) -> VectorPlans:
    """Return the statements of one schema that name no space; ``iterative`` as pgvector can it from 0.8 on."""
    embedding = dialect.table("embedding")
    doing = (
        "SELECT c.relname::text, p.phase::text,"
        " (CASE WHEN p.blocks_total > 0 THEN p.blocks_done ELSE p.tuples_done END)::bigint,"
        " (CASE WHEN p.blocks_total > 0 THEN p.blocks_total ELSE p.tuples_total END)::bigint"
        " FROM pg_stat_progress_create_index AS p JOIN pg_class AS c ON c.oid = p.index_relid"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = $1::text AND starts_with(c.relname, $2::text)"
    )
    indexes = (
        "SELECT c.relname::text, a.amname::text, i.indisvalid, coalesce(array_to_string(c.reloptions, ', '), '')"
        " FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS a ON a.oid = c.relam"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = $1::text AND starts_with(c.relname, $2::text)"
    )
    return VectorPlans(
        indexes=Plan("nearest.indexes", indexes, ("schema", "prefix"), ("name", "method", "valid", "options")),
        doing=Plan("nearest.doing", doing, ("schema", "prefix"), ("name", "phase", "done", "total")),
        many=Plan(
            "nearest.many",
            f"SELECT count(*) FROM (SELECT 1 FROM {embedding} WHERE space_id = $1::uuid LIMIT $2::bigint) AS counted",
            ("space_id", "limit"),
            ("count",),
        ),
        of_kind=Plan(
            "nearest.of_kind",
            f"SELECT count(*) FROM {embedding} WHERE space_id = $1::uuid AND owner_type = $2::text",
            ("space_id", "owner_type"),
            ("count",),
        ),
        begin={method: _settings(method, iterative) for method in _SETTINGS},
        end=Plan("nearest.end", "SELECT set_config('enable_sort', 'on', true)", (), ("set",)),
        few={relation.name: _few(relation, dialect) for relation in texts},
    )
