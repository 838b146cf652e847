"""SQL statements of searches in a database and of vectors, each written once for every backend.

Those that find candidates find only what is valid and what the principal may see: ``seen`` has the names, lists of
readers and entities that let it see a record, and ``archived`` if archived ones count, as JSON; ``at_us`` is the
instant at which a record must hold; a filter is a JSON list of values, bytes in hexadecimal digits, null for having
none, or None for no filter.

Source: K-170, K-171; design, section 5; docs/decisions/0209.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityType
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Relation
from caliber.schema.relations import BY_NAME, EMBEDDING, RELATIONS, TRAJECTORY
from caliber.schema.validity import active, validity
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.conditions import filter_condition, filter_names
from caliber.storage.compile.plan import Dialect, Plan
from caliber.storage.compile.predicates import trait_condition
from caliber.storage.compile.spelling import literal, quote, quote_all
from caliber.storage.compile.statements import Irregular, of_embedded

_SIGHT = ("seen", "at_us")


class SearchSpelling(Protocol):
    """The words of one database for the statements of search."""

    @property
    def dialect(self) -> Dialect:
        """The database's dialect."""
        ...

    def mark(self, position: int, type_name: str) -> str:
        """Return the placeholder of a parameter; ``type_name`` is bigint, text, timestamptz or uuid."""
        ...

    def value(self, position: int, *path: str) -> str:
        """Return the text, or NULL, at a path of a JSON parameter."""
        ...

    def texts(self, position: int, *path: str) -> str:
        """Return a row source of the texts of a list in a JSON parameter."""
        ...

    def ids(self, position: int, *path: str) -> str:
        """Return a row source of the ids of a list in a JSON parameter."""
        ...

    def members(self, column: str) -> str:
        """Return a row source of the members of a list of texts, and of the part of each up to its first colon."""
        ...

    def scanned(self, table: str, alias: str) -> str:
        """Return a table as a statement names it that reads it in the order of ordinals."""
        ...

    def ranked(self, relation: Relation) -> str:
        """Return a row source ``w`` of the ordinals of texts that hold a term, the best by BM25 first.

        Its terms, and the beginnings of others, are in the first parameter.
        """
        ...

    def looked_up(self, relation: Relation, on: str, conditions: str) -> str:
        """Return the join of each row, in its order, with its record ``o``."""
        ...


def contracts_of(relation: Relation) -> dict[str, Irregular]:
    """Return the contracts of the statements that search one relation."""
    name, filters = relation.name, filter_names(relation)
    limited = (*_SIGHT, "limit", *filters)
    found = Irregular(limited, results=("ordinal",))
    contracts = {
        f"search.words_{name}": Irregular(("terms", *limited), results=("ordinal",)),
        f"search.of_days_{name}": Irregular(("first_us", "last_us", *limited), results=("ordinal",)),
        f"search.newest_{name}": found,
        f"search.matching_{name}": Irregular((*_SIGHT, *filters), results=("records",)),
        f"search.met_{name}": Irregular(("keys", *limited), results=("ordinal", "key")),
    }
    if relation.rights.listed:
        contracts[f"search.used_{name}"] = found
    if relation.neighbours is not None:
        contracts[f"search.around_{name}"] = Irregular(("ordinals", "steps"), results=("ordinal",))
    return contracts


ACROSS: dict[str, Irregular] = {
    "search.vectors": Irregular(("space_id", "kinds", "after", "limit"), results=("place", "kind", "key", "vector")),
    "search.vectors_of": Irregular(("space_id", "keys"), rows_of="embedding"),
    "search.usage_of": Irregular(("keys",), rows_of="usage"),
    "search.edges_of": Irregular(("keys",), rows_of="edge"),
}
"""The statements over all kinds."""


def _row(name: str, table: str) -> str:
    return ", ".join(f"{table}.{quote(column)}" for column in codec_of(BY_NAME[name]).names)


def _happened(relation: Relation) -> str:
    names = [f"o.{quote(name)}" for name in relation.times.happened]
    return names[0] if len(names) == 1 else f"coalesce({', '.join(names)})"


def visible(relation: Relation, sql: SearchSpelling, first: int) -> str:
    """Return the condition under which record ``o`` is valid and may be seen; ``first`` is the place of ``seen``.

    Each parameter is named for every relation, whether it uses it or not, so that all take the same ones.
    """
    at = sql.mark(first + 1, "timestamptz")
    parts = [trait_condition(validity(relation, archived=True), relation, "o", at), f"{at} IS NOT NULL"]
    archive = relation.archive
    if archive is not None and archive in relation.active:
        parts.append(f"(o.{quote(archive)} IS NULL OR {sql.value(first, 'archived')} IS NOT NULL)")
    limit = sql.value(first, "limits", relation.rights.kind or relation.name)
    parts.append(f"({limit} IS NULL OR {limit} = 'own' AND {_own(relation, sql, first)})")
    granted = sql.ids(first, "granted")
    if relation.rights.readers is not None:
        readers = f"o.{quote(relation.rights.readers)}"
        members, others = sql.members(readers), sql.texts(first, "others")
        listed = f"EXISTS (SELECT 1 FROM {members} WHERE member IN ({sql.texts(first, 'names')}))"
        hidden = f"EXISTS (SELECT 1 FROM {members} WHERE NOT (member IN ({others}) OR beginning IN ({others})))"
        parts.append(
            f"({readers} IS NULL OR {sql.value(first, 'names')} IS NULL OR {listed} OR"
            f" {sql.value(first, 'others')} IS NOT NULL AND NOT {hidden} OR o.{relation.key[0]} IN ({granted}))"
        )
    if relation.rights.task is not None:
        parts.append(f"({sql.value(first, 'ids')} IS NULL OR {_of_task(relation, sql, first)})")
    if relation.text is not None and relation.text.tokens is not None:
        parts.append(f"o.{quote(relation.text.tokens)} > 0")
    return " AND ".join(parts)


def _initiator() -> dict[str, str | None]:
    owner = TRAJECTORY.rights.owner
    assert owner is not None
    return next(dict(each.parts) for each in TRAJECTORY.composites if each.field == owner.by)


def _own(relation: Relation, sql: SearchSpelling, seen: int) -> str:
    """Return the condition that an agent wrote record ``o`` or, where no author is known, works on its task."""
    owner = TRAJECTORY.rights.owner
    if relation.rights.author is not None:
        return f"o.{quote(relation.rights.author)} IN ({sql.texts(seen, 'authors')})"
    if relation.rights.task is None or owner is None:
        return "1 = 0"
    kind, key = (quote(_initiator()[name] or "") for name in ("entity_type", "id"))
    workers, agent = sql.ids(seen, "workers"), quote(owner.agent or "")
    own = f"t.{kind} = {literal(EntityType.AGENT)} AND t.{key} IN ({workers}) OR t.{agent} IN ({workers})"
    of_task = f"t.{TRAJECTORY.key[0]} = o.{quote(relation.rights.task)}"
    return f"EXISTS (SELECT 1 FROM {sql.dialect.table('trajectory')} AS t WHERE {of_task} AND ({own}))"


def _of_task(relation: Relation, sql: SearchSpelling, first: int) -> str:
    """Return the condition that record ``o`` is of no user's task, of one whose user is seen, or of a granted one.

    A relation's records may be granted one by one too.
    """
    owner = TRAJECTORY.rights.owner
    assert owner is not None
    kind, key = (quote(_initiator()[name] or "") for name in ("entity_type", "id"))
    user, agent = quote(owner.user or ""), quote(owner.agent or "")
    ids, granted = sql.ids(first, "ids"), sql.ids(first, "granted")
    whose = f"CASE WHEN t.{kind} = {literal(EntityType.USER)} THEN t.{key} ELSE t.{user} END"
    seen = f"{whose} IS NULL OR {whose} IN ({ids}) OR t.{agent} IN ({ids}) OR t.{TRAJECTORY.key[0]} IN ({granted})"
    task = f"o.{quote(relation.rights.task or '')}"
    alone = f" OR o.{relation.key[0]} IN ({granted})" if relation.rights.grantable else ""
    of_task = f"FROM {sql.dialect.table('trajectory')} AS t WHERE t.{TRAJECTORY.key[0]} = {task}"
    return f"({task} IS NULL OR EXISTS (SELECT 1 {of_task} AND ({seen})){alone})"


def allowed(relation: Relation, sql: SearchSpelling, first: int) -> str:
    """Return the condition that record ``o`` may be a hit: parameters are seen, the instant, a limit and filters."""
    return f"{visible(relation, sql, first)} AND {filter_condition(relation, sql.dialect, first + 3)}"


def _of(relation: Relation, sql: SearchSpelling) -> dict[str, str]:
    kind, key = relation.name, relation.key[0]
    records, happened = sql.dialect.table(kind), _happened(relation)
    entered = f"o.{quote(relation.times.entered)}"
    days = f"{happened} BETWEEN {sql.mark(1, 'timestamptz')} AND {sql.mark(2, 'timestamptz')}"
    from_records, limit = f"SELECT o.ordinal FROM {records} AS o WHERE", functools.partial(sql.mark, type_name="bigint")
    matching = f"{visible(relation, sql, 1)} AND {filter_condition(relation, sql.dialect, 3)}"
    used = (
        f"(SELECT max(u.last_accessed_at) FROM {sql.dialect.table('usage')} AS u"
        f" WHERE u.owner_id = o.{key} AND u.used_by IN ({sql.ids(1, 'used_by')}))"
    )
    texts = {
        f"search.words_{kind}": (
            f"SELECT o.ordinal FROM {sql.ranked(relation)}"
            f" {sql.looked_up(relation, 'o.ordinal = w.ordinal', allowed(relation, sql, 2))} LIMIT {limit(4)}"
        ),
        f"search.of_days_{kind}": (
            f"{from_records} {allowed(relation, sql, 3)} AND {days}"
            f" ORDER BY {happened} DESC, o.ordinal DESC LIMIT {limit(5)}"
        ),
        f"search.newest_{kind}": (
            f"{from_records} {allowed(relation, sql, 1)} ORDER BY o.ordinal DESC LIMIT {limit(3)}"
        ),
        f"search.used_{kind}": (
            f"{from_records} {allowed(relation, sql, 1)}"
            f" ORDER BY coalesce({used}, {entered}) DESC, o.{key} LIMIT {limit(3)}"
        ),
        f"search.matching_{kind}": f"SELECT count(*) FROM {records} AS o WHERE {matching}",
        f"search.met_{kind}": (
            f"SELECT o.ordinal, o.{key} FROM {records} AS o WHERE o.{key} IN ({sql.ids(1)})"
            f" AND {allowed(relation, sql, 2)} LIMIT {limit(4)}"
        ),
    }
    if relation.neighbours is not None:
        by, order = quote(relation.neighbours.by), quote(relation.neighbours.order)
        steps = limit(2)
        near = [f"o.{order} >= s.{order} - {steps}", f"o.{order} <= s.{order} + {steps}"]
        beside = " AND ".join(near + [f"o.{quote(name)} IS NULL" for name in relation.active])
        texts[f"search.around_{kind}"] = (
            f"SELECT DISTINCT o.ordinal FROM {records} AS s {sql.looked_up(relation, f'o.{by} = s.{by}', beside)}"
            f" WHERE s.ordinal {sql.dialect.among(sql.dialect.in_integers(1))}"
        )
    return texts


def _across(sql: SearchSpelling) -> dict[str, str]:
    embedding, edge = sql.dialect.table("embedding"), sql.dialect.table("edge")
    usage, space = sql.dialect.table("usage"), sql.mark(1, "uuid")
    return {
        "search.vectors": (
            f"SELECT e.ordinal, e.owner_type, e.owner_id, e.vector FROM {sql.scanned('embedding', 'e')}"
            f" WHERE e.space_id = {space} AND e.owner_type IN ({sql.dialect.in_texts(2)})"
            f" AND e.ordinal > {sql.mark(3, 'bigint')}"
            f" ORDER BY e.ordinal LIMIT {sql.mark(4, 'bigint')}"
        ),
        "search.vectors_of": (
            f"SELECT {_row('embedding', 'e')} FROM {embedding} AS e WHERE e.space_id = {space}"
            f" AND e.owner_id IN ({sql.ids(2)}) ORDER BY e.ordinal"
        ),
        "search.usage_of": (
            f"SELECT {_row('usage', 'u')} FROM {usage} AS u WHERE u.usage_id IN ({sql.ids(1)}) ORDER BY u.ordinal"
        ),
        "search.edges_of": (
            f"SELECT {_row('edge', 'l')} FROM {edge} AS l WHERE l.removed_at IS NULL AND l.ordinal IN"
            f" (SELECT ordinal FROM {edge} WHERE source_id IN ({sql.ids(1)})"
            f" UNION SELECT ordinal FROM {edge} WHERE target_id IN ({sql.ids(1)})) ORDER BY l.ordinal"
        ),
    }


def search_contracts(texts: Sequence[Relation]) -> dict[str, Irregular]:
    """Return the contracts of the statements that search a store of which these relations are indexed."""
    return {name: each for relation in texts for name, each in contracts_of(relation).items()} | ACROSS


def search_statements(sql: SearchSpelling, texts: Sequence[Relation]) -> dict[str, Plan]:
    """Return the statements that search a store of which these relations are indexed."""
    spelt = {name: text for relation in texts for name, text in _of(relation, sql).items()} | _across(sql)
    return {
        name: Plan(
            name, spelt[name], each.parameters, codec_of(BY_NAME[each.rows_of]).names if each.rows_of else each.results
        )
        for name, each in search_contracts(texts).items()
    }


@dataclass(frozen=True, slots=True)
class Embedded:
    """A kind of record that is embedded: the column of its text, and the condition that it is active."""

    key: str
    content: str
    head: str
    active: str

    @property
    def wanted(self) -> str:
        """The condition under which a record is to have vectors."""
        return f"length({self.content}) > 0 AND {self.active}"


def _embedded(relations: Iterable[Relation]) -> dict[str, Embedded]:
    """Return how each relation that is embedded is, by name."""
    out = {}
    for relation in relations:
        text = relation.text
        if text is not None and text.embedded is not None:
            head = "NULL" if text.head is None else quote(text.head)
            in_use = trait_condition(active(relation), relation)
            out[relation.name] = Embedded(quote(relation.key[0]), quote(text.embedded), head, in_use)
    return out


KINDS: dict[str, Embedded] = _embedded(RELATIONS)


def kinds_of(catalog: Catalog) -> dict[str, Embedded]:
    """Return the kinds of records of a store that are embedded, its own memories among them."""
    return KINDS | _embedded(catalog.declared_relations) if catalog.declared_relations else KINDS


def with_memories(built_in: dict[str, Plan], catalog: Catalog, dialect: Dialect) -> dict[str, Plan]:
    """Return the irregular statements of a store: those every store has, and of its memories those about vectors."""
    declared = {kind: how for kind, how in kinds_of(catalog).items() if kind not in KINDS}
    if not declared:
        return built_in
    out = dict(built_in)
    for kind, how in declared.items():
        contracts = of_embedded(kind)
        for name, sql in _of_kind(kind, how, dialect):
            out[name] = Plan(name, sql, contracts[name].parameters, contracts[name].results)
    return out


def embedding_statements(dialect: Dialect) -> dict[str, str]:
    """Return the text of each statement about vectors, by its name in ``IRREGULAR``."""
    out: dict[str, str] = {}
    for kind, how in KINDS.items():
        out.update(_of_kind(kind, how, dialect))
    one, two, three = (dialect.placeholder(at) for at in (1, 2, 3))
    embedding, cache = dialect.table("embedding"), dialect.table("embedding_cache")
    row = quote_all(codec_of(EMBEDDING).names)
    some = f"ordinal IN (SELECT ordinal FROM {embedding} WHERE space_id = {{}} ORDER BY ordinal LIMIT {{}})"
    out |= {
        "embedding.drop_owner": f"DELETE FROM {embedding} WHERE owner_id = {one} RETURNING {row}",
        "embedding.drop_many": f"DELETE FROM {embedding} WHERE ordinal IN ({dialect.in_integers(1)}) RETURNING {row}",
        "embedding.drop_some": f"DELETE FROM {embedding} WHERE {some.format(one, two)}",
        "embedding.of_space": (
            "SELECT owner_type, count(*), count(DISTINCT owner_id)"
            f" FROM {embedding} WHERE space_id = {one} GROUP BY owner_type ORDER BY owner_type"
        ),
        "embedding.spaceless": (
            f"SELECT ordinal FROM {embedding} AS stray WHERE ordinal > {one}"
            f" AND NOT EXISTS (SELECT 1 FROM {dialect.table('embedding_space')} WHERE space_id = stray.space_id)"
            f" ORDER BY ordinal LIMIT {two}"
        ),
        "embedding_cache.prune": f"DELETE FROM {cache} WHERE created_at < {one}",
        "embedding_cache.drop_some": (
            f"DELETE FROM {cache} WHERE (content_hash, model_id, dimensions) IN"
            f" (SELECT content_hash, model_id, dimensions FROM {cache}"
            f" WHERE model_id = {one} AND dimensions = {two} LIMIT {three})"
        ),
    }
    return out


def _of_kind(kind: str, how: Embedded, dialect: Dialect) -> Iterator[tuple[str, str]]:
    one, two, three, four = (dialect.placeholder(at) for at in (1, 2, 3, 4))
    embedding, owners = dialect.table("embedding"), dialect.table(kind)
    vector = f"SELECT 1 FROM {embedding} WHERE space_id = {{}} AND owner_id = owner.{how.key}"
    lacking = f"{how.wanted} AND NOT EXISTS ({vector.format(one)})"
    rows = f"SELECT ordinal, {how.key}, {how.head}, {how.content} FROM {owners} AS owner WHERE {lacking}"
    # An inactive record gets no vector when it is new, and needs none when it is old.
    no_more = f"owner.{how.key} IS NULL" + (f" OR NOT ({how.active})" if how.active != "TRUE" else "")
    yield f"embedding.pending_{kind}", f"{rows} AND ordinal < {two} ORDER BY ordinal DESC LIMIT {three}"
    yield f"embedding.pending_up_{kind}", f"{rows} AND ordinal > {two} ORDER BY ordinal LIMIT {three}"
    unmoved = (
        f"SELECT ordinal, {how.key} FROM {owners} AS owner WHERE {lacking} AND EXISTS ({vector.format(two)})"
        f" AND ordinal > {three} ORDER BY ordinal LIMIT {four}"
    )
    yield f"embedding.unmoved_{kind}", unmoved
    progress = (
        f"SELECT count(*), coalesce(sum(CASE WHEN EXISTS ({vector.format(one)}) THEN 0 ELSE 1 END), 0)"
        f" FROM {owners} AS owner WHERE {how.wanted}"
    )
    yield f"embedding.progress_{kind}", progress
    hashes = (
        f"SELECT owner.ordinal, {how.key}, {how.head}, {how.content}, made.content_hash FROM {owners} AS owner"
        f" JOIN {embedding} AS made ON made.space_id = {one} AND made.owner_id = owner.{how.key}"
        f" AND made.chunk_index = 0 WHERE {how.wanted} AND owner.ordinal > {two} ORDER BY owner.ordinal LIMIT {three}"
    )
    yield f"embedding.hashes_{kind}", hashes
    strays = (
        f"SELECT stray.ordinal, owner.{how.key} IS NULL FROM {embedding} AS stray"
        f" LEFT JOIN {owners} AS owner ON owner.{how.key} = stray.owner_id"
        f" WHERE stray.owner_type = '{kind}' AND stray.ordinal > {one} AND ({no_more})"
        f" ORDER BY stray.ordinal LIMIT {two}"
    )
    yield f"embedding.strays_{kind}", strays
