"""Detection of declared memories that other processes changed or removed since this one opened the store.

Source: docs/decisions/0160.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caliber.model.errors import SchemaMismatch
from caliber.schema.catalog import Catalog
from caliber.schema.relation import ColumnType, Relation
from caliber.storage.compile.plan import Plan, RelationPlans
from caliber.storage.compile.session import StatementSession
from caliber.storage.sql.full_text import Memories, memories_of, texts_of
from caliber.storage.stored_memories import catalog_of


def stale_catalog() -> SchemaMismatch:
    """Return the error for work that needs all memories, in a process that does not know them all."""
    return SchemaMismatch(
        store="the store",
        reason="its memories were changed since this process opened it; open it again with the present configuration",
    )


def dropped_memories(session: StatementSession, plans: Mapping[str, RelationPlans], catalog: Catalog) -> frozenset[str]:
    """Return the relations of memories that others removed, or took a field from, since the store was opened.

    Another one may have the name by now, and another field the place of one that went.
    """
    present = catalog_of(session, plans)
    if present.revision == catalog.revision:
        return frozenset()
    lost = set()
    for memory in catalog.memories.values():
        relation, now = memory.relation, present.by_code.get(memory.relation.code)
        if now is None or not _columns(relation) <= _columns(now):
            lost.add(relation.name)
    return frozenset(lost)


def dropped_since(
    session: StatementSession, plans: Mapping[str, RelationPlans], statements: Mapping[str, Plan], catalog: Catalog
) -> frozenset[str]:
    """As ``dropped_memories``, at the cost of one small statement while no memory was changed."""
    if tuple(session.run(statements["memory.revision"], ())[0]) == catalog.revision:
        return frozenset()
    return dropped_memories(session, plans, catalog)


def indexed_now(
    session: StatementSession, plans: Mapping[str, RelationPlans], texts: Sequence[Relation]
) -> tuple[Memories, list[Relation]]:
    """Return the memories that an index of this store must cover, and the present state of the relations in ``texts``.

    Other processes may have added memories, changed their searched fields, or removed a field.
    """
    present = catalog_of(session, plans)
    known = []
    for relation in texts:
        now = present.by_code.get(relation.code)
        if now is not None and memories_of([now]) == memories_of([relation]) and _columns(relation) <= _columns(now):
            known.append(relation)
    return memories_of(texts_of(present)), known


def check_indexed(session: StatementSession, plans: Mapping[str, RelationPlans], texts: Sequence[Relation]) -> None:
    """Refuse to build an index that would lack another process's declarations. Raises: SchemaMismatch."""
    memories, present = indexed_now(session, plans, texts)
    if len(present) < len(texts) or memories != memories_of(texts):
        raise stale_catalog()


def _columns(relation: Relation) -> set[tuple[str, ColumnType]]:
    return {(column.name, column.type) for column in relation.columns}


def check_present(
    session: StatementSession,
    relation: Relation,
    plans: Mapping[str, RelationPlans],
    statements: Mapping[str, Plan],
    catalog: Catalog,
) -> None:
    """Refuse to touch records of a dropped memory: its table may belong to another memory by now.

    Raises: SchemaMismatch.
    """
    if relation.name in dropped_since(session, plans, statements, catalog):
        raise stale_catalog()


def check_current(session: StatementSession, statements: Mapping[str, Plan], catalog: Catalog) -> None:
    """Refuse to continue with memories that other processes have changed. Raises: SchemaMismatch."""
    if tuple(session.run(statements["memory.revision"], ())[0]) != catalog.revision:
        raise stale_catalog()
