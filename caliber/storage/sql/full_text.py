"""Contract of a backend's full-text index: indexed relations, entries, protocol, and search statements.

The index holds terms of our own analyzer, the one that the in-memory search uses, so that both find the same records; a
backend stores and counts them. Write transactions keep the index of a store that has one. The store records whether it
has one, not the configuration, so processes of any mode keep it complete.

Source: K-170, K-171, P-039; design, sections 3 and 5; docs/decisions/0081.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from caliber.model.references import EntityType
from caliber.schema.catalog import Catalog
from caliber.schema.relation import ColumnType, Relation
from caliber.schema.relations import RELATIONS, TRAJECTORY
from caliber.schema.relations.memory import is_declared
from caliber.schema.traits import Text
from caliber.storage.compile.codec import Row, dump_json
from caliber.storage.compile.filters import filter_names
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.session import StatementSession
from caliber.storage.compile.spelling import literal, quote
from caliber.storage.compile.statements import Irregular

TEXTS: Final[tuple[Relation, ...]] = tuple(
    sorted(
        (relation for relation in RELATIONS if relation.text is not None),
        key=lambda relation: (relation.window is None, -relation.code),
    )
)
"""The relations whose texts are indexed in every store: knowledge before its sources, then what windows do not use."""

PART_MARK: Final = "^"
"""Prefix of a token that is a part of a spelt word, not a term: prefixes of words match these."""

Memories = Mapping[int, tuple[str, ...]]
"""Declared memories that are indexed, by their codes: the fields whose words are."""


class TextEntry(NamedTuple):
    """The index entry of one text: tokens separated by spaces, the number of terms among them, and its digest.

    Terms occur as often as in the text; after them each part with another spelling, once, after ``PART_MARK``. No token
    contains a space. ``digest`` (8 bytes) changes with the text.
    """

    tokens: str
    terms: int
    digest: bytes


class TextIndexer(Protocol):
    """The maker of index entries. ``name`` is that of its rules: entries of others do not fit."""

    name: str

    def digest(self, relation: Relation, row: Row) -> bytes | None:
        """Return the digest of a row's text; None for a row that is not indexed."""
        ...

    def entries(self, relation: Relation, rows: Sequence[Row]) -> list[TextEntry | None]:
        """Return the entry of each row; None for a row that is not indexed."""
        ...


IndexerOf = Callable[[str], TextIndexer | None]
"""Gives the indexer of a name; None for one that this version does not have."""


class FullTextState(NamedTuple):
    """The state of an index: its rules, whether it holds every text, and the declared memories that it holds."""

    analyzer: str
    complete: bool
    memories: Memories


class BuildPosition(NamedTuple):
    """The point at which a build continues: after an ordinal of a relation, "" at the end.

    ``done`` counts the rows that were read and entered before it.
    """

    build: bytes
    kind: str
    last: int
    done: int
    held: int
    total: int

    def after(self, relations: Sequence[Relation], last: int | None, rows: int, entered: int) -> BuildPosition:
        """Return the position after a page; ``last`` is its last ordinal, None at the end of the relation."""
        names = [*(relation.name for relation in relations), ""]
        kind, last = (names[names.index(self.kind) + 1], -1) if last is None else (self.kind, last)
        return self._replace(kind=kind, last=last, done=self.done + rows, held=self.held + entered)


class FullText(Protocol):
    """The full text of one open store."""

    statements: dict[str, Plan]

    def state(self, session: StatementSession | None = None) -> FullTextState | None:
        """Return the recorded state of the index, at the boundary of a session if given; None when it has none."""
        ...

    def keep(self, indexer_of: IndexerOf) -> None:
        """Set the indexer that makes entries for the writes of this handle.

        A write whose entries cannot be made marks the index as incomplete, in its own transaction.
        """
        ...

    def build(
        self, indexer: TextIndexer, after: BuildPosition | None = None, *, unless_there: bool = False
    ) -> Iterator[BuildPosition]:
        """Rebuild the index in short transactions, between which others write; yield its position after each.

        It goes on ``after`` a position of the last build, or from the start; one cut short leaves an incomplete index.
        ``unless_there`` keeps an index that exists or is being built.
        """
        ...

    def drop(self) -> bool:
        """Remove the index, so that writes no longer pay for it; return whether there was one."""
        ...

    def check(self, indexer: TextIndexer) -> list[str]:
        """Return the differences between index and texts, and the database's own findings; empty when sound."""
        ...


# --- indexed relations ------------------------------------------------------------------------------


def texts_of(catalog: Catalog) -> tuple[Relation, ...]:
    """Return the relations of a store whose texts are indexed, its own memories among them."""
    return TEXTS + tuple(relation for relation in catalog.declared_relations if relation.text is not None)


def memories_of(relations: Iterable[Relation]) -> dict[int, tuple[str, ...]]:
    """Return the declared memories among relations, and the fields whose words are indexed."""
    return {
        relation.code: relation.text.searched
        for relation in relations
        if relation.text is not None and is_declared(relation)
    }


def packed_memories(memories: Memories) -> str:
    """Return declared memories as the store keeps them."""
    return dump_json({str(code): list(memories[code]) for code in sorted(memories)})


def unpacked_memories(kept: str) -> dict[int, tuple[str, ...]]:
    """Return declared memories as ``packed_memories`` was given them; none where damaged, which searches refuse."""
    try:
        return {int(code): tuple(fields) for code, fields in json.loads(kept).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def holds(memories: Memories, relations: Iterable[Relation]) -> bool:
    """Return whether an index of these memories covers the fields that relations are searched by."""
    return all(memories.get(code) == fields for code, fields in memories_of(relations).items())


def may_be_indexed(catalog: Catalog) -> tuple[Relation, ...]:
    """Return the relations of a store whose texts an index may hold, as others may have declared since."""
    return TEXTS + catalog.declared_relations


def to_index(memories: Memories, relations: Iterable[Relation]) -> list[Relation] | None:
    """Return the relations as an index of ``memories`` covers them, without those that it does not cover.

    None if one is indexed by a field that this process does not know: another process declared it since.
    """
    out = []
    for relation in relations:
        if not is_declared(relation):
            out.append(relation)
            continue
        fields = memories.get(relation.code)
        if fields is None:
            continue
        if not all(relation.has(name) and relation.column(name).type is ColumnType.TEXT for name in fields):
            return None
        out.append(_searched_by(relation, fields))
    return out


@functools.lru_cache(maxsize=512)
def _searched_by(relation: Relation, fields: tuple[str, ...]) -> Relation:
    if relation.text is not None and relation.text.searched == fields:
        return relation
    text = Text(fields) if relation.text is None else replace(relation.text, searched=fields)
    return replace(relation, text=text, _by_name={})


def text_table(relation: Relation) -> str:
    """Return the prefix of the tables of a relation's index; a memory's has its code, which is never used again."""
    return text_table_of(relation.code) if is_declared(relation) else f"text_{relation.name}"


def text_table_of(code: int) -> str:
    """Return the prefix of the tables of a declared memory's index."""
    return f"text_m{code}"


# --- statements -----------------------------------------------------------------------------------


def differences(
    session: StatementSession, indexer: TextIndexer, relation: Relation, page: Plan, entries: Plan, batch_rows: int
) -> list[str]:
    """Return in which entries an index and the records of a kind differ; ``page`` and ``entries`` go by ordinal."""
    kind = relation.name
    found: list[str] = []
    last = -1
    while True:
        rows = session.run(page, (last, batch_rows))
        upto = rows[-1][0] if len(rows) == batch_rows else 2**62
        entered: dict[int, bytes] = dict(session.run(entries, (last, upto)))
        unlike = [row[0] for row in rows if entered.pop(row[0], None) != indexer.digest(relation, row)]
        found += [f"full text of {kind} {ordinal}: says something else than the record" for ordinal in unlike]
        found += [f"full text of {kind} {ordinal}: there is no such record" for ordinal in entered]
        if len(rows) < batch_rows:
            return found
        last = upto


def unindexed(session: StatementSession, kind: str, unlike: Plan) -> list[str]:
    """Return a fault when texts are entered and not indexed, or the other way round."""
    count = session.run(unlike, ())[0][0]
    return [f"full text of {kind}: {count} texts are entered but not indexed, or the other way round"] if count else []


_AROUND = Irregular(("ordinals", "steps"), results=("ordinal",))


def _of(relation: Relation) -> dict[str, Irregular]:
    """Return the statements that search one relation.

    ``seen`` are the lists of readers that the principal is on, a JSON list of lists; ``at_us`` the instant at which
    records must be in force; a filter is a JSON list of values, bytes in hexadecimal digits, null for having none, or
    None for no filter. All count and find only what is in force and may be seen.
    """
    name = relation.name
    filters = filter_names(relation)
    sight = ("seen", "at_us")
    linked = {
        f"search.by_key_{name}": Irregular(("keys", *sight), rows_of=name),
    }
    readers = {f"search.readers_{name}": Irregular((), results=(relation.readers,))} if relation.readers else {}
    used = {f"search.used_{name}": Irregular((*sight, "limit", *filters), results=("ordinal",))}
    return {
        **readers,
        **(used if relation.listed else {}),
        **(linked if relation.linked else {}),
        **({f"search.around_{name}": _AROUND} if relation.neighbours else {}),
        f"search.figures_{name}": Irregular(sight, results=("texts", "terms", "newest_us")),
        f"search.matching_{name}": Irregular((*sight, *filters), results=("records",)),
        f"search.count_{name}": Irregular(("term", *sight), results=("texts",)),
        f"search.best_{name}": Irregular(
            ("term", *sight, "flat", "slope", "limit", *filters), results=("ordinal", "count", "terms")
        ),
        f"search.tokens_{name}": Irregular(("low", "beyond", "high", "limit"), results=("token",)),
        f"search.recent_{name}": Irregular(
            ("now_us", *sight, "half_us", "neutral", "limit", *filters), results=("ordinal",)
        ),
        f"search.newest_{name}": Irregular((*sight, "limit", *filters), results=("ordinal",)),
        f"search.of_days_{name}": Irregular(("first_us", *sight, "last_us", "limit", *filters), results=("ordinal",)),
        f"search.count_of_days_{name}": Irregular(("first_us", *sight, "last_us"), results=("records",)),
        f"search.vectors_{name}": Irregular(
            ("space_id", *sight, "after", "limit", *filters), results=("place", "ordinal", "key", "vector")
        ),
    }


def happened(relation: Relation) -> str:
    """Return the time of record ``o``, in SQL that both databases share."""
    names = [f"o.{quote(name)}" for name in relation.dates.happened]
    return names[0] if len(names) == 1 else f"coalesce({', '.join(names)})"


def readers_of(relation: Relation, table: str) -> dict[str, str]:
    """Return the statement that lists the readers of a relation, by its name; none where everybody reads."""
    if relation.readers is None:
        return {}
    column = quote(relation.readers)
    name = f"search.readers_{relation.name}"
    return {name: f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL"}


def own_condition(relation: Relation, tasks: str, authors: str, workers: str) -> str:
    """Return the condition that an agent wrote record ``o`` or, where no author is known, works on its task.

    ``authors`` are its names as an author, ``workers`` the entities that it is. It is SQL that both databases share.
    """
    if relation.author is not None:
        return f"o.{quote(relation.author)} IN ({authors})"
    owner = TRAJECTORY.owner
    if relation.task is None or owner is None:
        return "1 = 0"
    by = next(dict(each.parts) for each in TRAJECTORY.composites if each.field == owner.by)
    kind, key, agent = (quote(name or "") for name in (by["entity_type"], by["id"], owner.agent))
    own = f"t.{kind} = {literal(EntityType.AGENT)} AND t.{key} IN ({workers}) OR t.{agent} IN ({workers})"
    key = f"t.{TRAJECTORY.key[0]} = o.{quote(relation.task)}"
    return f"EXISTS (SELECT 1 FROM {tasks} AS t WHERE {key} AND ({own}))"


def task_condition(relation: Relation, tasks: str, ids: str, granted: str) -> str:
    """Return the condition that record ``o`` is of no user's task, of one of ``ids``, or of a ``granted`` task.

    A relation's records may be ``granted`` one by one too. It is SQL that both databases share.
    """
    owner = TRAJECTORY.owner
    assert owner is not None
    by = next(dict(each.parts) for each in TRAJECTORY.composites if each.field == owner.by)
    kind, key, user, agent = (quote(name or "") for name in (by["entity_type"], by["id"], owner.user, owner.agent))
    whose = f"CASE WHEN t.{kind} = {literal(EntityType.USER)} THEN t.{key} ELSE t.{user} END"
    seen = f"{whose} IS NULL OR {whose} IN ({ids}) OR t.{agent} IN ({ids}) OR t.{TRAJECTORY.key[0]} IN ({granted})"
    task = f"o.{quote(relation.task or '')}"
    alone = f" OR o.{relation.key[0]} IN ({granted})" if relation.grantable else ""
    seen_task = f"EXISTS (SELECT 1 FROM {tasks} AS t WHERE t.{TRAJECTORY.key[0]} = {task} AND ({seen}))"
    return f"({task} IS NULL OR {seen_task}{alone})"


_LINKED = Irregular(("seen", "at_us", "now_us"), results=("linked",))

FULL_TEXT: dict[str, Irregular] = {
    **{name: contract for relation in TEXTS for name, contract in _of(relation).items()},
    "search.vectors_of": Irregular(("space_id", "keys"), rows_of="embedding"),
    "search.usage_of": Irregular(("keys",), rows_of="usage"),
    "search.edges_of": Irregular(("keys",), rows_of="edge"),
    "search.linked": _LINKED,
    "search.linked_built_in": _LINKED,
}
"""The statements of full text, by name; every backend that has one writes its own text for each."""


def contracts_of(texts: Sequence[Relation]) -> dict[str, Irregular]:
    """Return the statements that search a store, by name: ``FULL_TEXT``, and those of its declared memories."""
    return FULL_TEXT | {
        name: each for relation in texts if is_declared(relation) for name, each in _of(relation).items()
    }
