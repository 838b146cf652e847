"""Checks of declared relations: columns that traits name exist and can be what they say."""

from __future__ import annotations

from collections.abc import Iterator

from caliber.schema.derived import NotBefore, Tokens
from caliber.schema.erase import Erase, Packed, Redaction
from caliber.schema.relation import ColumnType, Relation, Residence


def check_declaration(relation: Relation) -> None:
    """Raise AssertionError for a column that is declared twice, named and not declared, or cannot be what it says."""
    for fault in _faults(relation):
        raise AssertionError(f"relation {relation.name}: column {fault}")


def _faults(relation: Relation) -> Iterator[str]:
    names = [column.name for column in relation.columns]
    yield from (f"{name} is declared twice" for name in names if names.count(name) > 1)
    known = {*names, "ordinal"}
    yield from (
        f"{name} is used but not declared" for name in _named(relation) if name is not None and name not in known
    )
    for name in relation.times.happened if relation.text is not None else ():
        if relation.column(name).residence is not Residence.COLUMN:
            yield f"{name} dates what is found, and must be resident"
    for rule in relation.derived or ():
        made = ColumnType.INT if isinstance(rule, Tokens) else ColumnType.BYTES
        if relation.column(rule.column).type is not made:
            yield f"{rule.column} is derived, and must be {made}"
    for column in relation.columns:
        stated = column.redact is not None or column.name in relation.rule_of or relation.erase is None
        if column.type in (ColumnType.BYTES, ColumnType.JSON) and not stated:
            yield f"{column.name} holds {column.type}: state how it is redacted"
        if column.redact is Redaction.EMPTIED and not column.nullable:
            yield f"{column.name} cannot be emptied: it is not nullable"
        if column.per_record and not column.nullable:
            yield f"{column.name} cannot belong to one record: it is not nullable"
        if isinstance(column.redact, Packed) and column.redact.digest not in (None, *names):
            yield f"{column.name}: {column.redact.digest} is used but not declared"


def _named(relation: Relation) -> Iterator[str | None]:
    yield from (*relation.key, *relation.resident.groups, *relation.active, *relation.times.bounds)
    for columns, where in (
        *((unique.columns, unique.where) for unique in relation.uniques),
        *(((*path.by, *path.order), path.where) for path in relation.paths),
    ):
        yield from (*columns, *(name for name, _ in where))
    for key in relation.foreign_keys:
        yield from (key.column, key.alike, None if key.frees is None else key.frees[0])
    for rule in relation.derived or ():
        yield from (rule.column, *sorted(rule.sources))
    for between in relation.rules:
        yield from (between.column, between.earlier if isinstance(between, NotBefore) else between.kind)
    if relation.memory is not None:
        yield from (column for _, column in relation.memory.names)
    if relation.neighbours is not None:
        yield from (relation.neighbours.by, relation.neighbours.order, relation.neighbours.speaker)
        yield from (name for each in relation.neighbours.counted for name in (each.column, each.key))
    if relation.text is not None:
        yield from (*relation.text.columns, *relation.times.happened, relation.times.entered)
    if relation.trust is not None:
        yield relation.trust.column
    if relation.window is not None:
        yield from (*relation.window.shown, relation.age)
    yield relation.usage.importance
    rights, ends, grounded = relation.rights, relation.ends, relation.grounded
    owner = () if rights.owner is None else (rights.owner.user, rights.owner.agent)
    yield from (rights.task, rights.readers, rights.author, *owner)
    if ends is not None:
        yield from (ends.archive, ends.supersede, ends.recovered, ends.doubted, *ends.together)
        yield from (ends.lasting or ())[:1]
    if relation.finished is not None:
        yield from (relation.finished.status, relation.finished.since)
    if grounded is not None:
        pairs = (pair[0] for pair in (grounded.kinds, grounded.given, grounded.decides) if pair is not None)
        yield from (grounded.since, *grounded.sources, *grounded.subject, *pairs, grounded.confidence)
    if relation.erase is not None:
        yield from _named_by(relation.erase)


def _named_by(erase: Erase) -> Iterator[str | None]:
    yield from (*erase.names, *erase.owned, *erase.hangs_on, *(erase.version_of or ()))
    yield from (erase.kind, erase.sources, erase.digest)
    yield from (name for made in erase.made_from for name in (*made.columns, made.empties))
    if erase.stub is not None:
        yield from (erase.stub.column, *(name for name, _ in erase.stub.left))
