"""Integrity checks between rows (references, counters, orphans), as SQL queries that run on both databases.

Each query counts the rows of one relation that violate a condition, and names a few. Conditions that the database
enforces are checked too: the store may have been repaired, restored or written by other programs.

Source: relations.md section 3; docs/decisions/0139.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Final

from caliber.model.lazy_dataclass import dataclass
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Relation
from caliber.schema.relations import (
    CONTENT_VERSION,
    EDGE,
    EMBEDDING,
    SCHEMA_MIGRATION,
    TURN,
    TURN_SUMMARY,
    USAGE,
)
from caliber.storage.bulk.checks import other_owner
from caliber.storage.compile.codec import key_text
from caliber.storage.compile.plan import Dialect, Plan
from caliber.storage.compile.session import StatementSession
from caliber.storage.compile.spelling import quote
from caliber.storage.sql.core_statements import distrust_of

EXAMPLES: Final = 5


class FindingKind(StrEnum):
    """The kind of a fault: of the database, its schema, or its rows."""

    DATABASE = "database"
    SCHEMA = "schema"
    REFERENCE = "reference"
    COUNTER = "counter"
    LABEL = "label"
    VERSION = "version"
    HASH = "hash"
    EMBEDDING = "embedding"
    VALUE = "value"
    ORPHAN = "orphan"
    FULL_TEXT = "full_text"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not hold. ``harmless`` ones take room and change no answer; ``examples`` are keys."""

    kind: FindingKind
    relation: str
    count: int
    what: str
    advice: str
    examples: tuple[str, ...] = ()
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class IntegrityCheck:
    """A condition on rows ``t`` of a relation under which something is wrong with them."""

    kind: FindingKind
    relation: Relation
    what: str
    advice: str
    condition: str
    harmless: bool = False


_RESTORE: Final = "restore a backup of before, or load the missing rows with `caliber import`"


def _owner(table: Callable[[str], str], relation: Relation, column: str) -> str:
    key = quote(relation.key[0])
    return f"EXISTS (SELECT 1 FROM {table(relation.name)} AS o WHERE o.{key} = t.{quote(column)})"


def questions(dialect: Dialect, catalog: Catalog) -> Iterator[IntegrityCheck]:
    """Yield every question, in the words of a database."""
    table = dialect.table
    yield from _references(table, catalog)
    yield from _counters(table, catalog)
    yield from _labels(table, catalog)
    yield from _summaries(dialect)
    yield from _versions(table, [relation for relation in catalog.relations if relation.content_columns])
    yield from _embeddings(dialect, catalog.embedded)
    yield from _orphans(table, catalog.relations)
    yield from _dangling(table, catalog.relations)


def _references(table: Callable[[str], str], catalog: Catalog) -> Iterator[IntegrityCheck]:
    for relation in catalog.relations:
        for key in relation.foreign_keys:
            target = f"SELECT 1 FROM {table(key.relation)} AS o WHERE o.{quote(key.target)} = t.{quote(key.column)}"
            condition = f"t.{quote(key.column)} IS NOT NULL AND NOT EXISTS ({target})"
            yield IntegrityCheck(
                FindingKind.REFERENCE, relation, f"{key.column} refers to no {key.relation}", _RESTORE, condition
            )
            if key.alike is not None:
                yield IntegrityCheck(
                    FindingKind.REFERENCE,
                    relation,
                    f"stands in a {key.relation} of another {key.alike.removesuffix('_id')}",
                    _RESTORE,
                    f"EXISTS ({target}{other_owner(key)})",
                )


def _counters(table: Callable[[str], str], catalog: Catalog) -> Iterator[IntegrityCheck]:
    advice = "appending would fail or give a number twice: restore a backup, or raise the counter to what is there"
    following = ((each, each.neighbours) for each in catalog.relations)
    every = [(each, counted) for each, order in following if order is not None for counted in order.counted]
    for relation, counted in every:
        owner = catalog.by_name[counted.owner]
        matching = f"FROM {table(relation.name)} AS o WHERE o.{quote(counted.key)} = t.{quote(counted.key)}"
        yield IntegrityCheck(
            FindingKind.COUNTER,
            owner,
            f"{counted.counter} is not beyond the {counted.column} of its {relation.plural}",
            advice,
            f"EXISTS (SELECT 1 {matching} AND o.{quote(counted.column)} >= t.{quote(counted.counter)})",
        )
        yield IntegrityCheck(
            FindingKind.COUNTER,
            owner,
            f"{counted.total} is less than the {relation.plural} there are",
            advice,
            f"t.{quote(counted.total)} < (SELECT count(*) {matching})",
        )


def _labels(table: Callable[[str], str], catalog: Catalog) -> Iterator[IntegrityCheck]:
    """Yield the checks for records that are more trusted than one of their parts."""
    for relation in catalog.relations:
        if relation.trust is not None and relation.trust.least_of is not None:
            least, key = relation.trust.least_of, quote(relation.key[0])
            yield IntegrityCheck(
                FindingKind.LABEL,
                relation,
                f"is trusted more than a {least} in it",
                f"give it that label: `storage.{relation.plural}.update(id, {relation.trust.column}=…)`;"
                " summaries and artifacts may have been made since",
                f"EXISTS (SELECT 1 FROM {table(least)} AS o WHERE o.{key} = t.{key} AND {_TRUSTED_LESS})",
            )


def _summaries(dialect: Dialect) -> Iterator[IntegrityCheck]:
    """Yield the checks for summaries of turns that do not cover exactly their turns."""
    sources = TURN_SUMMARY.column("source_turns")
    source = dialect.contains(sources, f"o.{quote('turn_id')}", "t.")
    size = dialect.size(sources, f"t.{quote(sources.name)}")
    same = f"o.{quote('scope_id')} = t.{quote('scope_id')}"
    inside = f"{same} AND o.{quote('turn_number')} BETWEEN t.{quote('first_turn')} AND t.{quote('last_turn')}"
    turns = f"SELECT count(*) FROM {dialect.table(TURN.name)} AS o WHERE {inside} AND {source}"
    one = f"SELECT 1 FROM {dialect.table(TURN.name)} AS o WHERE {inside}"
    other = f"SELECT 1 FROM {dialect.table(TURN_SUMMARY.name)} AS o WHERE {same}"
    overlap = f"o.{quote('first_turn')} <= t.{quote('last_turn')} AND o.{quote('last_turn')} >= t.{quote('first_turn')}"
    key = quote(TURN_SUMMARY.key[0])
    advice = "`storage.turn_summaries.delete(id)` removes it; an open store then makes it anew"
    for kind, what, condition in (
        (FindingKind.REFERENCE, "was made of turns that are gone", f"{size} > ({turns})"),
        (FindingKind.REFERENCE, "lacks a turn between its first and its last", f"EXISTS ({one} AND NOT ({source}))"),
        (
            FindingKind.REFERENCE,
            "overlaps another of its scope",
            f"EXISTS ({other} AND o.{key} <> t.{key} AND {overlap})",
        ),
        (FindingKind.LABEL, "is trusted more than a turn of it", f"EXISTS ({one} AND {_TRUSTED_LESS})"),
    ):
        yield IntegrityCheck(kind, TURN_SUMMARY, what, advice, condition)


_TRUSTED_LESS: Final = f"{distrust_of('o.' + quote('trust'))} > {distrust_of('t.' + quote('trust'))}"
"""Row ``o`` is trusted less than row ``t``."""


def _versions(table: Callable[[str], str], kept: Sequence[Relation]) -> Iterator[IntegrityCheck]:
    advice = "windows that were made of it cannot be replayed; restore a backup if they must"
    for relation in kept:
        same = f"t.{quote('owner_type')} = '{relation.name}' AND EXISTS (SELECT 1 FROM {table(relation.name)} AS o"
        same += f" WHERE o.{quote('ordinal')} = t.{quote('owner_ordinal')} AND {{}})"
        yield IntegrityCheck(
            FindingKind.VERSION,
            CONTENT_VERSION,
            f"keeps a version of a {relation.name} that is not older than the present one",
            advice,
            same.format(f"o.{quote('version')} <= t.{quote('owner_version')}"),
        )
        yield IntegrityCheck(
            FindingKind.VERSION,
            CONTENT_VERSION,
            f"its ordinal names another {relation.name} by now",
            advice,
            same.format(f"o.{quote(relation.key[0])} <> t.{quote('owner_id')}"),
        )
    yield IntegrityCheck(
        FindingKind.VERSION,
        SCHEMA_MIGRATION,
        "has another epoch than the first",
        "the store was put together of two; restore a backup",
        f"t.{quote('epoch')} <> (SELECT o.{quote('epoch')} FROM {table('schema_migration')} AS o"
        f" ORDER BY o.{quote('schema_version')} LIMIT 1)",
    )


def _embeddings(dialect: Dialect, kept: Sequence[Relation]) -> Iterator[IntegrityCheck]:
    table, vector = dialect.table, EMBEDDING.column("vector")
    space = f"SELECT 1 FROM {table('embedding_space')} AS o WHERE o.{quote('space_id')} = t.{quote('space_id')}"
    yield IntegrityCheck(
        FindingKind.EMBEDDING,
        EMBEDDING,
        "has another number of dimensions than its space",
        "run `caliber db rebuild-search`, or drop the space and run `caliber db reembed`",
        f"EXISTS ({space} AND o.{quote('dimensions')} <> {dialect.size(vector, 't.' + quote('vector'))})",
    )
    for relation in kept:
        yield IntegrityCheck(
            FindingKind.EMBEDDING,
            EMBEDDING,
            f"belongs to a {relation.name} that is gone",
            "run `caliber db sweep`",
            f"t.{quote('owner_type')} = '{relation.name}' AND NOT {_owner(table, relation, 'owner_id')}",
        )


def _orphans(table: Callable[[str], str], relations: Sequence[Relation]) -> Iterator[IntegrityCheck]:
    for relation in relations:
        if relation.links is not None and relation.links.uses:
            yield IntegrityCheck(
                FindingKind.ORPHAN,
                USAGE,
                f"counts the uses of a {relation.name} that is gone",
                "it takes a little room, and changes no answer",
                f"t.{quote('owner_type')} = '{relation.name}' AND NOT {_owner(table, relation, 'owner_id')}",
                harmless=True,
            )


def _dangling(table: Callable[[str], str], relations: Sequence[Relation]) -> Iterator[IntegrityCheck]:
    for relation in relations:
        for end in ("source", "target") if relation.linked else ():
            yield IntegrityCheck(
                FindingKind.ORPHAN,
                EDGE,
                f"its {end} is a {relation.name} that is gone",
                "it leads nowhere, and changes no answer; `caliber db sweep` removes it",
                f"t.{quote('removed_at')} IS NULL AND t.{quote(f'{end}_type')} = '{relation.name}'"
                f" AND NOT {_owner(table, relation, f'{end}_id')}",
                harmless=True,
            )


def dangling_links(session: StatementSession, dialect: Dialect, catalog: Catalog) -> list[bytes]:
    """Return the keys of links of which an end is gone."""
    asked = (each.condition for each in _dangling(dialect.table, catalog.relations))
    text = f"SELECT t.{quote(EDGE.key[0])} FROM {dialect.table(EDGE.name)} AS t WHERE ({') OR ('.join(asked)})"
    return [row[0] for row in session.run(Plan("check.dangling", text, (), EDGE.key), ())]


def ask(
    session: StatementSession, question: IntegrityCheck, table: Callable[[str], str], number: int
) -> Finding | None:
    """Return the finding of a question, or None."""
    relation = question.relation
    rows = f"FROM {table(relation.name)} AS t WHERE {question.condition}"
    name = f"check.{number}"
    count: int = session.run(Plan(f"{name}.count", f"SELECT count(*) {rows}", (), ("count",)), ())[0][0]
    if not count:
        return None
    keys = ", ".join(f"t.{quote(column)}" for column in relation.key)
    some = f"SELECT {keys} {rows} ORDER BY {keys} LIMIT {EXAMPLES}"
    found = session.run(Plan(f"{name}.some", some, (), relation.key), ())
    return Finding(
        question.kind,
        relation.name,
        count,
        question.what,
        question.advice,
        tuple(key_text(row) for row in found),
        question.harmless,
    )


def out_of_numbers(
    session: StatementSession, table: Callable[[str], str], last: dict[str, int], catalog: Catalog
) -> Iterator[Finding]:
    """Yield the relations whose next ordinal is one that a row already has."""
    for relation in catalog.relations:
        if not relation.ordinal:
            continue
        text = f"SELECT coalesce(max({quote('ordinal')}), 0) FROM {table(relation.name)}"
        highest: int = session.run(Plan(f"check.highest_{relation.name}", text, (), ("highest",)), ())[0][0]
        if highest > last.get(relation.name, 0):
            what = f"ordinals are given out from {last.get(relation.name, 0) + 1} on, but {highest} is taken"
            advice = "rows could not be added, or would take the place of others: restore a backup"
            yield Finding(FindingKind.COUNTER, relation.name, 1, what, advice)
