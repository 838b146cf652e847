"""DDL and statements of PostgreSQL's search: pgvector indexes, and full-text tables.

Statements of a vector index have a space's id and dimensions as literals.

A partial index is used only where the planner sees its condition, and an expression index only where it sees the
expression: a parameter in their place would read every vector. Only a checked UUID and a checked number are written
into a statement. Operators and types are qualified, since a caller may have another ``search_path``.

``text_state`` always exists, empty until there is an index; the other tables are created and dropped with the index.
Each searched relation K has a table ``text_K`` of terms, one row for each text that holds a term, and ``text_K_entry``,
which holds the terms that a text was indexed under. Terms are bound values looked up in a B-tree: there is no
``tsquery``, hence no query syntax. Reasons for terms instead of a ``tsvector``: docs/decisions/0081.

Source: design, section 3; docs/decisions/0121.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable, Iterator
from typing import Final

from caliber.backends.postgres.dialect import PostgresDialect
from caliber.model.embedding import DistanceMetric, EmbeddingSpace
from caliber.model.errors import InternalError
from caliber.model.lazy_dataclass import dataclass
from caliber.schema.relation import Relation
from caliber.storage.compile.conditions import filter_names
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.spelling import quote
from caliber.storage.sql.full_text import text_table
from caliber.storage.sql.search_statements import allowed, search_statements

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


STATE = "text_state"


def state_table(dialect: PostgresDialect) -> tuple[str, ...]:
    """Return the statements that create the table which records whether there is an index.

    ``generation`` is the number of a table of that index: a reader whose snapshot is older than the tables it would
    read finds another one, and does not take them for empty.
    """
    table = dialect.table(STATE)
    columns = '"only" BOOLEAN PRIMARY KEY CHECK ("only"), analyzer TEXT NOT NULL, complete BOOLEAN NOT NULL'
    comment = "Whose rules the full text follows and whether it is whole; no row without one."
    return (
        f"CREATE TABLE {table} ({columns}, generation BIGINT NOT NULL, memories TEXT NOT NULL)",
        f"COMMENT ON TABLE {table} IS '{comment}'",
    )


@dataclass(frozen=True, slots=True)
class KindPlans:
    """The statements that keep the entries of one relation."""

    enter: Plan
    forget: Plan
    entries: Plan
    unlike: Plan


@dataclass(frozen=True, slots=True)
class FullTextPlans:
    """The statements that keep the full text of one schema."""

    lock: str
    create: tuple[str, ...]
    forget_all: str
    state: Plan
    begin: Plan
    spoil: Plan
    unhurried: Plan


def create_texts(name: str, dialect: PostgresDialect) -> Iterator[str]:
    """Yield the statements that create the tables of one relation's index; ``name`` is their prefix."""
    words, entries = dialect.table(name), dialect.table(f"{name}_entry")
    yield (
        f"CREATE TABLE {entries} (ordinal BIGINT PRIMARY KEY, terms INT NOT NULL, digest BYTEA NOT NULL,"
        ' tokens TEXT COLLATE "C" NOT NULL)'
    )
    # The index contains every column that ranking reads: the table itself is not read.
    yield (
        f'CREATE TABLE {words} (term TEXT COLLATE "C" NOT NULL, ordinal BIGINT NOT NULL, hits INT NOT NULL,'
        " terms INT NOT NULL, PRIMARY KEY (term, ordinal) INCLUDE (hits, terms))"
    )
    kind = name.removeprefix("text_")
    yield f"COMMENT ON TABLE {entries} IS 'What each {kind} was indexed as by full text.'"
    yield f"COMMENT ON TABLE {words} IS 'Which {kind}s hold a term, and how often.'"


def drop_texts(names: Iterable[str], dialect: PostgresDialect) -> str:
    """Return the statement that drops the tables of ``create_texts``, if they exist."""
    tables = ", ".join(dialect.table(f"{name}{part}") for name in names for part in ("_entry", ""))
    return f"DROP TABLE IF EXISTS {tables}"


def kept_plan(dialect: PostgresDialect) -> Plan:
    """Return the plan that reads which declared memories the index holds; no row without an index."""
    return Plan("text.kept", f"SELECT memories FROM {dialect.table(STATE)}", (), ("memories",))


def spoil_of(dialect: PostgresDialect) -> str:
    """Return the statement that marks the index as incomplete."""
    return f"UPDATE {dialect.table(STATE)} SET complete = false WHERE complete"


@functools.lru_cache(maxsize=256)
def kind_plans(relation: Relation, dialect: PostgresDialect) -> KindPlans:
    """Return the statements that keep the entries of one relation."""
    kind, table = relation.name, text_table(relation)
    words, entries = dialect.table(table), dialect.table(f"{table}_entry")
    counted = (
        "SELECT t.term, e.ordinal, count(*)::int AS hits, e.terms FROM {} AS e"
        " CROSS JOIN LATERAL unnest(string_to_array(e.tokens, ' ')) AS t (term) GROUP BY t.term, e.ordinal, e.terms"
    )
    enter = (
        f"WITH entered AS (INSERT INTO {entries} (ordinal, terms, digest, tokens)"
        " SELECT ordinal::bigint, terms::int, decode(digest, 'hex'), tokens"
        " FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS given (ordinal, terms, digest, tokens)"
        " ON CONFLICT (ordinal) DO NOTHING RETURNING ordinal, terms, tokens)"
        f" INSERT INTO {words} (term, ordinal, hits, terms) {counted.format('entered')} ORDER BY 1, 2"
    )
    # The rows of a text are found one by one, by term and number: a plan that joins might read all there are.
    forget = (
        f"WITH gone AS (DELETE FROM {entries} AS e"
        " USING unnest($1::text[], $2::text[]) AS given (ordinal, digest)"
        " WHERE e.ordinal = given.ordinal::bigint AND encode(e.digest, 'hex') <> given.digest"
        " RETURNING e.ordinal, e.tokens),"
        " doomed AS (SELECT w.place FROM gone CROSS JOIN LATERAL"
        f" (SELECT ctid AS place FROM {words} WHERE ordinal = gone.ordinal"
        " AND term = ANY (string_to_array(gone.tokens, ' ')) OFFSET 0) AS w)"
        f" DELETE FROM {words} WHERE ctid = ANY (ARRAY(SELECT place FROM doomed))"
    )
    recounted = counted.format(entries)
    held = f"SELECT term, ordinal, hits, terms FROM {words}"
    return KindPlans(
        enter=Plan(f"text.enter_{kind}", enter, ("ordinals", "terms", "digests", "tokens")),
        forget=Plan(f"text.forget_{kind}", forget, ("ordinals", "digests")),
        entries=Plan(
            f"text.entries_{kind}",
            f"SELECT ordinal, digest FROM {entries} WHERE ordinal > $1::bigint AND ordinal <= $2::bigint"
            " ORDER BY ordinal",
            ("after", "last"),
            ("ordinal", "digest"),
        ),
        unlike=Plan(
            f"text.unlike_{kind}",
            f"SELECT count(DISTINCT ordinal) FROM (({recounted} EXCEPT {held})"
            f" UNION ALL ({held} EXCEPT {recounted})) AS unlike",
            (),
            ("texts",),
        ),
    )


@functools.lru_cache(maxsize=16)
def full_text_plans(dialect: PostgresDialect, texts: tuple[Relation, ...]) -> FullTextPlans:
    """Return the statements that keep full text, for one schema of which these relations are indexed."""
    state = dialect.table(STATE)
    first = dialect.table(f"{text_table(texts[0])}_entry")
    generation = f"coalesce(to_regclass('{first}')::oid::bigint, 0)"
    return FullTextPlans(
        # The index is taken for itself: every write transaction before it has ended then.
        lock=f"LOCK TABLE {state} IN ACCESS EXCLUSIVE MODE",
        create=tuple(line for relation in texts for line in create_texts(text_table(relation), dialect)),
        forget_all=f"DELETE FROM {state}",
        state=Plan(
            "text.state",
            f"SELECT analyzer, complete AND generation = {generation}, memories FROM {state}",
            (),
            ("analyzer", "complete", "memories"),
        ),
        begin=Plan(
            "text.begin",
            f"INSERT INTO {state} VALUES (true, $1, true, {generation}, $2)",
            ("analyzer", "memories"),
        ),
        spoil=Plan("text.spoil", spoil_of(dialect), ()),
        unhurried=Plan("text.unhurried", "SELECT set_config('statement_timeout', '0', true)", (), ("limit",)),
    )


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
