"""Read session on one relation, opened after a check that its declared memory still exists in the store.

Source: docs/decisions/0160.
"""

from __future__ import annotations

from collections.abc import Iterator

from caliber.model.process.interrupts import managed
from caliber.schema.relation import Relation
from caliber.schema.relations.memory import is_declared
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store
from caliber.storage.write.catalog_guard import check_present


@managed
def reading(store: Store, relation: Relation) -> Iterator[StatementSession]:
    """Open a read session on one relation of the store. Raises: SchemaMismatch for a dropped memory."""
    with store.read() as session:
        if is_declared(relation):
            check_present(session, relation, store.plans, store.statements, store.catalog)
        yield session
