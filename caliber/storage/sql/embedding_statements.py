"""SQL statements about vectors (missing, of a space, orphaned), and the kinds of records that are embedded.

One text serves every database; the dialect writes the parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from caliber.model.lazy_dataclass import dataclass
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Relation
from caliber.schema.relations import EMBEDDING, RELATIONS
from caliber.schema.validity import active
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.plan import Dialect, Plan
from caliber.storage.compile.predicates import trait_condition
from caliber.storage.compile.spelling import quote, quote_all
from caliber.storage.compile.statements import of_embedded


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
