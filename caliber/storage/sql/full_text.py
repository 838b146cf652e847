"""Contract of a backend's full-text index: indexed relations, entries, and protocol.

The index holds terms of our own analyzer, the one that the in-memory search uses, so that both find the same records; a
backend stores them. Write transactions keep the index of a store that has one. The store records whether it
has one, not the configuration, so processes of any mode keep it complete.

Source: K-170, K-171, P-039; design, sections 3 and 5; docs/decisions/0081.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from caliber.model.progress import Progress, unheard
from caliber.schema.catalog import Catalog
from caliber.schema.relation import ColumnType, Relation
from caliber.schema.relations import RELATIONS
from caliber.schema.relations.storage import is_declared
from caliber.schema.traits import Text
from caliber.storage.compile.codec import Row, dump_json
from caliber.storage.compile.paging import pages
from caliber.storage.compile.plan import Plan, RelationPlans
from caliber.storage.compile.session import StatementSession

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

    def rebuild(self, indexer: TextIndexer, progress: Progress = unheard, *, unless_there: bool = False) -> int:
        """Rebuild the index in one transaction, for which writers wait; return the number of texts.

        ``unless_there`` keeps a complete index. An interrupted rebuild leaves the index as it was.
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


BATCH_ROWS: Final = 1_000
"""Rows that are indexed or compared at once."""


def text_tables(relations: Iterable[Relation], state: FullTextState | None) -> list[str]:
    """Return the prefixes of all tables of an index, also of memories unknown to this process."""
    codes = () if state is None else state.memories
    names = [text_table(relation) for relation in relations]
    return list(dict.fromkeys([*names, *(text_table_of(code) for code in codes)]))


def changed_texts(
    texts: Mapping[str, Relation], memories: Callable[[list[Relation]], list[Relation] | None], changes: Iterable[Any]
) -> list[tuple[Relation, list[Any]]] | None:
    """Return the changes of a transaction that an index follows: of each row the last one, by relation.

    ``memories`` is ``to_index`` of the memories that the index holds. None as there.
    """
    last = {(change.relation.name, change.row[0]): change for change in changes if change.relation.name in texts}
    relations = memories([texts[name] for name in dict.fromkeys(name for name, _ in last)]) if last else []
    if relations is None:
        return None
    return [(each, [change for (name, _), change in last.items() if name == each.name]) for each in relations]


def index_all(
    session: StatementSession,
    plans: Mapping[str, RelationPlans],
    relations: Sequence[Relation],
    enter: Callable[[Relation, Sequence[Row]], int],
    progress: Progress,
) -> int:
    """Index every record of some relations, a page at a time; return the number of texts.

    ``enter`` indexes rows and returns how many of them have a text.
    """
    done = held = 0
    total = sum(int(session.run(plans[relation.name].count, ())[0][0]) for relation in relations)
    for relation in relations:
        for rows in pages(session, plans[relation.name], BATCH_ROWS):
            done, held = done + len(rows), held + enter(relation, rows)
            progress("indexing words", done, total)
    return held


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
