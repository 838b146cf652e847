"""SQL text of SQLite's full-text search queries; contracts in ``caliber.storage.sql.full_text``.

Terms are looked up by equality in FTS5's own vocabulary tables, as bound values: there is no MATCH, hence no query
syntax. Each searched relation has an FTS5 table ``text_K`` without content, its vocabularies ``text_K_places`` and
``text_K_words``, and ``text_K_entry``, which holds the number of terms of each text.
"""

from __future__ import annotations

import functools

from caliber.backends.sqlite.dialect import DIALECT
from caliber.backends.sqlite.statements import ROW
from caliber.schema.relation import Relation
from caliber.schema.relations import BY_NAME
from caliber.schema.relations.memory import is_declared
from caliber.schema.validity import validity
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.filters import filter_condition
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.predicates import trait_condition
from caliber.storage.compile.spelling import quote, quote_all
from caliber.storage.sql.full_text import (
    TEXTS,
    contracts_of,
    happened,
    own_condition,
    readers_of,
    task_condition,
    text_table,
)

_IDS = "SELECT unhex(value) FROM json_each({0})"
_IDS_AT = "SELECT unhex(value) FROM json_each({0}, '{1}')"


def _in_sight(relation: Relation, seen: str = "?2", at: str = "?3") -> str:
    """Return the condition under which row ``o`` is in force and may be seen.

    A parameter that a relation has no use for is named all the same, so that every relation takes the same ones.
    """
    parts = [trait_condition(validity(relation), relation, "o", at), f"{at} IS NOT NULL"]
    limit = f"json_extract({seen}, '$.limits.{relation.rights_of or relation.name}')"
    authors, workers = f"SELECT value FROM json_each({seen}, '$.authors')", _IDS_AT.format(seen, "$.workers")
    parts.append(f"({limit} IS NULL OR {limit} = 'own' AND {own_condition(relation, 'trajectory', authors, workers)})")
    granted = _IDS_AT.format(seen, "$.granted")
    if relation.readers is not None:
        readers = f"o.{quote(relation.readers)}"
        parts.append(
            f"({readers} IS NULL OR {readers} IN (SELECT value FROM json_each({seen}, '$.lists'))"
            f" OR o.{relation.key[0]} IN ({granted}))"
        )
    if relation.task is not None:
        ids = _IDS_AT.format(seen, "$.ids")
        parts.append(f"(json_type({seen}, '$.ids') IS NULL OR {task_condition(relation, 'trajectory', ids, granted)})")
    if relation.text is not None and relation.text.tokens is not None:
        parts.append(f"o.{quote(relation.text.tokens)} > 0")
    return " AND ".join(parts)


def _around(relation: Relation) -> dict[str, str]:
    """Return the statement that gives the records beside others, by its name; none where each stands alone."""
    if relation.neighbours is None:
        return {}
    rows, by, order = (quote(name) for name in (relation.name, relation.neighbours.by, relation.neighbours.order))
    standing = "".join(f" AND b.{quote(name)} IS NULL" for name in relation.active)
    beside = (
        f"SELECT b.ordinal FROM {rows} AS b WHERE b.{by} = s.{by} AND b.{order} {{0}} s.{order}{standing}"
        f" ORDER BY b.{order} {{1}} LIMIT ?2"
    )
    sql = (
        f"SELECT DISTINCT t.ordinal FROM json_each(?1) AS w CROSS JOIN {rows} AS s ON s.ordinal = w.value"
        f" CROSS JOIN {rows} AS t ON t.ordinal IN (SELECT ordinal FROM ({beside.format('<', 'DESC')})"
        f" UNION ALL SELECT ordinal FROM ({beside.format('>', 'ASC')}))"
    )
    return {f"search.around_{relation.name}": sql}


def _of(relation: Relation) -> dict[str, str]:
    kind, key = relation.name, relation.key[0]
    records, words = quote(kind), text_table(relation)
    importance = f"coalesce(o.{relation.importance}, ?5)" if relation.importance else "?5"
    used_at = f"(SELECT max(u.last_accessed_at) FROM usage AS u WHERE u.owner_id = o.{key} AND u.used_by IN ({{}}))"
    sight, first_sight, time = _in_sight(relation), _in_sight(relation, "?1", "?2"), happened(relation)
    meets = functools.partial(filter_condition, relation, DIALECT)
    row = quote_all(codec_of(relation).names)
    linked = {
        f"search.by_key_{kind}": f"SELECT {row} FROM {records} AS o WHERE o.{key} IN ({_IDS.format('?1')}) AND {sight}"
    }
    used = {
        f"search.used_{kind}": (
            f"SELECT o.ordinal FROM {records} AS o WHERE {first_sight} AND {meets(4)} ORDER BY coalesce("
            f"{used_at.format(_IDS_AT.format('?1', '$.used_by'))}, o.{quote(relation.dates.entered)})"
            f" DESC, o.{key} LIMIT ?3"
        )
    }
    return {
        **readers_of(relation, records),
        **(used if relation.listed else {}),
        **(linked if relation.linked else {}),
        **_around(relation),
        f"search.figures_{kind}": (
            f"SELECT count(*), coalesce(sum(e.terms), 0), max({time}) FROM {records} AS o"
            f" JOIN {words}_entry AS e ON e.ordinal = o.ordinal WHERE {first_sight}"
        ),
        f"search.matching_{kind}": (f"SELECT count(*) FROM {records} AS o WHERE {first_sight} AND {meets(3)}"),
        f"search.count_{kind}": (
            f"SELECT count(*) FROM (SELECT DISTINCT doc FROM {words}_places WHERE term = ?1) AS v"
            f" CROSS JOIN {records} AS o ON o.ordinal = v.doc WHERE {sight}"
        ),
        f"search.best_{kind}": (
            "SELECT v.doc, v.hits, e.terms"
            f" FROM (SELECT doc, count(*) AS hits FROM {words}_places WHERE term = ?1 GROUP BY doc) AS v"
            f" CROSS JOIN {records} AS o ON o.ordinal = v.doc CROSS JOIN {words}_entry AS e ON e.ordinal = v.doc"
            f" WHERE {sight} AND {meets(7)}"
            " ORDER BY v.hits / (v.hits + ?4 + ?5 * e.terms) DESC, v.doc DESC LIMIT ?6"
        ),
        f"search.tokens_{kind}": (
            f"SELECT term FROM {words}_words WHERE term >= max(?1, ?2) AND term > ?2 AND term < ?3 LIMIT ?4"
        ),
        f"search.recent_{kind}": (
            f"SELECT o.ordinal FROM {records} AS o WHERE {sight} AND {meets(7)} ORDER BY 0.5 / (1.0 + max(?1 -"
            f" max({time}, coalesce({used_at.format(_IDS_AT.format('?2', '$.used_by'))}, {time})), 0)"
            f" * 1.0 / ?4) + 0.05 * {importance} DESC, o.ordinal DESC LIMIT ?6"
        ),
        f"search.newest_{kind}": (
            f"SELECT o.ordinal FROM {records} AS o WHERE {first_sight} AND {meets(4)}"
            f" ORDER BY o.{quote(relation.dates.entered)} DESC, o.{key} LIMIT ?3"
        ),
        f"search.of_days_{kind}": (
            f"SELECT o.ordinal FROM {records} AS o WHERE {sight} AND {meets(6)}"
            f" AND {time} BETWEEN ?1 AND ?4 ORDER BY {time} DESC, o.ordinal DESC LIMIT ?5"
        ),
        f"search.count_of_days_{kind}": (
            f"SELECT count(*) FROM {records} AS o WHERE {sight} AND {time} BETWEEN ?1 AND ?4"
        ),
        f"search.vectors_{kind}": (
            f"SELECT e.ordinal, o.ordinal, o.{key}, e.vector FROM embedding AS e"
            f" CROSS JOIN {records} AS o ON o.{key} = e.owner_id"
            f" WHERE e.ordinal > ?4 AND e.space_id = ?1 AND e.owner_type = '{kind}'"
            f" AND {sight} AND {meets(6)} ORDER BY e.ordinal LIMIT ?5"
        ),
    }


def _asked(relation: Relation) -> str:
    """Return the parameter of the instant at which a record must hold: ``as_of`` of valid time, else now."""
    return "?2" if relation.valid is not None and relation.valid.as_of else "?3"


def _end_in_sight(end: str, texts: tuple[Relation, ...]) -> str:
    """Return whether a principal may see one end of edge ``l``, whatever kind of record it is."""
    return " OR ".join(
        f"(l.{end}_type = '{relation.name}' AND EXISTS (SELECT 1 FROM {relation.name} AS o"
        f" WHERE o.{relation.key[0]} = l.{end}_id"
        f" AND {_in_sight(relation, '?1', _asked(relation))}))"
        for relation in texts
        if relation.linked
    )


def _linked(texts: tuple[Relation, ...]) -> str:
    """Return the statement whether any edge is between two records that may be seen: hidden ones weigh nothing."""
    ends = (_end_in_sight(end, texts) for end in ("source", "target"))
    return f"SELECT EXISTS (SELECT 1 FROM edge AS l WHERE l.removed_at IS NULL AND ({') AND ('.join(ends)}))"


_TEXTS = {
    **{name: text for relation in TEXTS for name, text in _of(relation).items()},
    "search.vectors_of": (
        f"SELECT {ROW['embedding']} FROM embedding WHERE space_id = ?1 AND owner_id IN ({_IDS.format('?2')})"
        " ORDER BY ordinal"
    ),
    "search.usage_of": f"SELECT {ROW['usage']} FROM usage WHERE usage_id IN ({_IDS.format('?1')}) ORDER BY ordinal",
    "search.edges_of": (
        f"SELECT {ROW['edge']} FROM edge WHERE removed_at IS NULL AND source_id IN ({_IDS.format('?1')})"
        f" UNION SELECT {ROW['edge']} FROM edge WHERE removed_at IS NULL AND target_id IN ({_IDS.format('?1')})"
    ),
}


@functools.lru_cache(maxsize=64)
def full_text_statements(texts: tuple[Relation, ...]) -> dict[str, Plan]:
    """Return the statements that search a store of which these relations are indexed."""
    sql = _TEXTS | {name: text for relation in texts if is_declared(relation) for name, text in _of(relation).items()}
    sql |= {"search.linked": _linked(texts), "search.linked_built_in": _linked(TEXTS)}
    known = BY_NAME | {relation.name: relation for relation in texts}
    out = {}
    for name, contract in contracts_of(texts).items():
        results = codec_of(known[contract.rows_of]).names if contract.rows_of else contract.results
        out[name] = Plan(name, sql[name], contract.parameters, results)
    return out
