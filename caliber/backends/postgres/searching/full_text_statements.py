"""SQL text of PostgreSQL's full-text search queries; contracts in ``caliber.storage.sql.full_text``.

Each searched relation K has a table ``text_K`` of terms, one row for each text that holds a term, and ``text_K_entry``,
which holds the terms that a text was indexed under. Terms are bound values looked up in a B-tree: there is no
``tsquery``, hence no query syntax. Reasons for terms instead of a ``tsvector``: docs/decisions/0081.
"""

from __future__ import annotations

import functools
from typing import Final

from caliber.backends.postgres.dialect import PostgresDialect
from caliber.schema.relation import Relation
from caliber.schema.relations import BY_NAME
from caliber.schema.validity import validity
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.filters import filter_condition
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.predicates import trait_condition
from caliber.storage.compile.spelling import quote
from caliber.storage.sql.full_text import (
    TEXTS,
    contracts_of,
    happened,
    own_condition,
    readers_of,
    task_condition,
    text_table,
)

_IDS: Final = "SELECT id::uuid FROM jsonb_array_elements_text({0}::jsonb) AS ids (id)"


def in_sight(relation: Relation, dialect: PostgresDialect, seen: str = "$2", at: str = "$3") -> str:
    """Return the condition under which row ``o`` of a relation is active, valid and visible.

    Each parameter is named for every relation, whether it uses it or not, so that all take the same ones.
    """
    instant = f"{at}::timestamptz"
    parts = [trait_condition(validity(relation), relation, "o", instant), f"{instant} IS NOT NULL"]
    tasks = dialect.table("trajectory")
    limit = f"(SELECT {seen}::jsonb #>> '{{limits,{relation.rights_of or relation.name}}}')"
    authors = f"SELECT jsonb_array_elements_text({seen}::jsonb -> 'authors')"
    workers = f"SELECT id::uuid FROM jsonb_array_elements_text({seen}::jsonb -> 'workers') AS workers (id)"
    parts.append(f"({limit} IS NULL OR {limit} = 'own' AND {own_condition(relation, tasks, authors, workers)})")
    granted = f"SELECT id::uuid FROM jsonb_array_elements_text({seen}::jsonb -> 'granted') AS granted (id)"
    if relation.readers is not None:
        readers = f"o.{quote(relation.readers)}"
        lists = (
            f"SELECT ARRAY(SELECT jsonb_array_elements_text(list)) FROM jsonb_array_elements({seen}::jsonb -> 'lists')"
        )
        parts.append(
            f"({readers} IS NULL OR {readers} IN ({lists} AS lists (list)) OR o.{relation.key[0]} IN ({granted}))"
        )
    if relation.task is not None:
        ids = f"SELECT id::uuid FROM jsonb_array_elements_text({seen}::jsonb -> 'ids') AS ids (id)"
        parts.append(f"({seen}::jsonb -> 'ids' IS NULL OR {task_condition(relation, tasks, ids, granted)})")
    if relation.text is not None and relation.text.tokens is not None:
        parts.append(f"o.{quote(relation.text.tokens)} > 0")
    return " AND ".join(parts)


def _hides(relation: Relation) -> bool:
    """Return whether a record whose text is indexed may be out of sight."""
    lacks = relation.text is not None and relation.text.tokens is not None
    return bool(relation.active or relation.valid or relation.hides) or lacks


def looked_up(relation: Relation, dialect: PostgresDialect, on: str, first: int | None) -> str:
    """Return the join of each row with its visible record ``o`` under ``on`` that meets the filters.

    Each row is looked up by its key: with so many conditions the planner expects one row of the whole relation, and
    would scan that for each row.

    Units: first, the parameter of the first filter; None for no filters
    """
    kind, key = relation.name, relation.key[0]
    conditions = f"{on} AND {in_sight(relation, dialect)}" + (
        f" AND {filter_condition(relation, dialect, first)}" if first is not None else ""
    )
    return (
        f"CROSS JOIN LATERAL (SELECT o.ordinal, o.{key} FROM {dialect.table(kind)} AS o WHERE {conditions} OFFSET 0)"
        " AS o"
    )


def _row(relation: Relation, table: str) -> str:
    return ", ".join(f"{table}.{quote(column)}" for column in codec_of(relation).names)


def _of(relation: Relation, dialect: PostgresDialect) -> dict[str, str]:
    kind, key = relation.name, relation.key[0]
    records, embedding, usage = dialect.table(kind), dialect.table("embedding"), dialect.table("usage")
    words, entries = dialect.table(text_table(relation)), dialect.table(f"{text_table(relation)}_entry")
    importance = f"coalesce(o.{relation.importance}, $5::float8)" if relation.importance else "$5::float8"

    def used_at(seen: str) -> str:
        ids = f"SELECT id::uuid FROM jsonb_array_elements_text({seen}::jsonb -> 'used_by') AS ids (id)"
        return f"(SELECT max(u.last_accessed_at) FROM {usage} AS u WHERE u.owner_id = o.{key} AND u.used_by IN ({ids}))"

    last_used = f"greatest({happened(relation)}, {used_at('$2')})"
    age_us = f"greatest(extract(epoch FROM $1::timestamptz - {last_used}) * 1000000, 0)::float8"
    sight, first_sight = in_sight(relation, dialect), in_sight(relation, dialect, "$1", "$2")
    meets = functools.partial(filter_condition, relation, dialect)
    linked = {
        f"search.by_key_{kind}": (
            f"SELECT {_row(relation, 'o')} FROM {records} AS o WHERE o.{key} IN ({_IDS.format('$1')}) AND {sight}"
        ),
    }
    used = {
        f"search.used_{kind}": (
            f"SELECT o.ordinal FROM {records} AS o WHERE {first_sight} AND {meets(4)}"
            f" ORDER BY coalesce({used_at('$1')}, o.{quote(relation.dates.entered)}) DESC, o.{key} LIMIT $3::bigint"
        )
    }
    return {
        **readers_of(relation, records),
        **(used if relation.listed else {}),
        **(linked if relation.linked else {}),
        **_around(relation, dialect),
        f"search.figures_{kind}": (
            f"SELECT count(*), coalesce(sum(e.terms), 0)::bigint, max({happened(relation)}) FROM {records} AS o"
            f" JOIN {entries} AS e ON e.ordinal = o.ordinal WHERE {first_sight}"
        ),
        f"search.matching_{kind}": (f"SELECT count(*) FROM {records} AS o WHERE {first_sight} AND {meets(3)}"),
        f"search.count_{kind}": (
            f"SELECT count(*) FROM {words} AS v {looked_up(relation, dialect, 'o.ordinal = v.ordinal', None)}"
            " WHERE v.term = $1::text"
            if _hides(relation)
            else f"SELECT count(*) FROM {words} AS v WHERE v.term = $1::text AND {sight}"
        ),
        f"search.best_{kind}": (
            f"SELECT v.ordinal, v.hits, v.terms FROM {words} AS v"
            f" {looked_up(relation, dialect, 'o.ordinal = v.ordinal', 7)} WHERE v.term = $1::text"
            " ORDER BY v.hits / (v.hits + $4::float8 + $5::float8 * v.terms) DESC, v.ordinal DESC LIMIT $6::bigint"
        ),
        # From one term to the next, however many texts hold it.
        f"search.tokens_{kind}": (
            "WITH RECURSIVE found (term) AS ("
            f"(SELECT term FROM {words} WHERE term >= $1::text AND term > $2::text AND term < $3::text"
            " ORDER BY term LIMIT 1)"
            f" UNION ALL SELECT (SELECT w.term FROM {words} AS w WHERE w.term > f.term AND w.term < $3::text"
            " ORDER BY w.term LIMIT 1) FROM found AS f WHERE f.term IS NOT NULL)"
            " SELECT term FROM found WHERE term IS NOT NULL LIMIT $4::bigint"
        ),
        f"search.recent_{kind}": (
            f"SELECT o.ordinal FROM {records} AS o WHERE {sight} AND {meets(7)}"
            f" ORDER BY 0.5::float8 / (1.0::float8 + {age_us} / $4::float8) + 0.05::float8 * {importance} DESC,"
            " o.ordinal DESC LIMIT $6::bigint"
        ),
        f"search.newest_{kind}": (
            f"SELECT o.ordinal FROM {records} AS o WHERE {first_sight} AND {meets(4)}"
            f" ORDER BY o.{quote(relation.dates.entered)} DESC, o.{key} LIMIT $3::bigint"
        ),
        f"search.of_days_{kind}": (
            f"SELECT o.ordinal FROM {records} AS o WHERE {sight} AND {meets(6)}"
            f" AND {happened(relation)} BETWEEN $1::timestamptz AND $4::timestamptz"
            f" ORDER BY {happened(relation)} DESC, o.ordinal DESC LIMIT $5::bigint"
        ),
        f"search.count_of_days_{kind}": (
            f"SELECT count(*) FROM {records} AS o WHERE {sight}"
            f" AND {happened(relation)} BETWEEN $1::timestamptz AND $4::timestamptz"
        ),
        f"search.vectors_{kind}": (
            f"SELECT e.ordinal, o.ordinal, o.{key}, e.vector FROM {embedding} AS e"
            f" {looked_up(relation, dialect, f'o.{key} = e.owner_id', 6)}"
            f" WHERE e.ordinal > $4::bigint AND e.space_id = $1::uuid AND e.owner_type = '{kind}'"
            " ORDER BY e.ordinal LIMIT $5::bigint"
        ),
    }


def _asked(relation: Relation) -> str:
    """Return the parameter of the instant at which a record must hold: ``as_of`` of valid time, else now."""
    return "$2" if relation.valid is not None and relation.valid.as_of else "$3"


def _end_in_sight(end: str, texts: tuple[Relation, ...], dialect: PostgresDialect) -> str:
    """Return whether a principal may see one end of edge ``l``, whatever kind of record it is."""
    return " OR ".join(
        f"(l.{end}_type = '{relation.name}' AND EXISTS (SELECT 1 FROM {dialect.table(relation.name)} AS o"
        f" WHERE o.{relation.key[0]} = l.{end}_id"
        f" AND {in_sight(relation, dialect, '$1', _asked(relation))}))"
        for relation in texts
        if relation.linked
    )


def _linked(texts: tuple[Relation, ...], dialect: PostgresDialect) -> str:
    """Return the statement whether any edge is between two records that may be seen: hidden ones weigh nothing."""
    ends = (_end_in_sight(end, texts, dialect) for end in ("source", "target"))
    edge = dialect.table("edge")
    return f"SELECT EXISTS (SELECT 1 FROM {edge} AS l WHERE l.removed_at IS NULL AND ({') AND ('.join(ends)}))"


def _around(relation: Relation, dialect: PostgresDialect) -> dict[str, str]:
    """Return the statement that gives the records beside others, by its name; none where each stands alone."""
    if relation.neighbours is None:
        return {}
    rows, by, order = dialect.table(relation.name), quote(relation.neighbours.by), quote(relation.neighbours.order)
    standing = "".join(f" AND b.{quote(name)} IS NULL" for name in relation.active)
    beside = (
        f"(SELECT b.ordinal FROM {rows} AS b WHERE b.{by} = s.{by} AND b.{order} {{0}} s.{order}{standing}"
        f" ORDER BY b.{order} {{1}} LIMIT $2::bigint)"
    )
    sql = (
        f"SELECT DISTINCT t.ordinal FROM {rows} AS s CROSS JOIN LATERAL"
        f" ({beside.format('<', 'DESC')} UNION ALL {beside.format('>', 'ASC')}) AS t"
        f" WHERE s.ordinal IN ({dialect.in_integers(1)})"
    )
    return {f"search.around_{relation.name}": sql}


def _across(texts: tuple[Relation, ...], dialect: PostgresDialect) -> dict[str, str]:
    edge = dialect.table("edge")
    return {
        "search.vectors_of": (
            f"SELECT {_row(BY_NAME['embedding'], 'e')} FROM {dialect.table('embedding')} AS e"
            f" WHERE e.space_id = $1::uuid AND e.owner_id IN ({_IDS.format('$2')}) ORDER BY e.ordinal"
        ),
        "search.usage_of": (
            f"SELECT {_row(BY_NAME['usage'], 'u')} FROM {dialect.table('usage')} AS u"
            f" WHERE u.usage_id IN ({_IDS.format('$1')}) ORDER BY u.ordinal"
        ),
        "search.edges_of": (
            f"SELECT {_row(BY_NAME['edge'], 'l')} FROM {edge} AS l WHERE l.removed_at IS NULL"
            f" AND l.ordinal IN (SELECT ordinal FROM {edge} WHERE source_id IN ({_IDS.format('$1')})"
            f" UNION SELECT ordinal FROM {edge} WHERE target_id IN ({_IDS.format('$1')}))"
        ),
        "search.linked": _linked(texts, dialect),
        "search.linked_built_in": _linked(TEXTS, dialect),
    }


@functools.lru_cache(maxsize=16)
def full_text_statements(dialect: PostgresDialect, texts: tuple[Relation, ...]) -> dict[str, Plan]:
    """Return the statements that search, for one schema of which these relations are indexed."""
    sql = {name: text for relation in texts for name, text in _of(relation, dialect).items()} | _across(texts, dialect)
    known = BY_NAME | {relation.name: relation for relation in texts}
    out = {}
    for name, contract in contracts_of(texts).items():
        results = codec_of(known[contract.rows_of]).names if contract.rows_of else contract.results
        out[name] = Plan(name, sql[name], contract.parameters, results)
    return out
