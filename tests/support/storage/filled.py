"""A store with records of every memory, written behind everybody's back: what a person would make of a predicate."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from contract.entities import plain, unlike_any
from support.inspection import session_of
from support.storage.predicates import IDS, entity, record

from caliber.schema.relation import Relation
from caliber.schema.relations import BY_NAME
from caliber.storage.compile.codec import codec_of
from caliber.storage.protocol import Store

ORDER = ("trajectory", "scope", "artifact", "note", "turn")


class Filled:
    def __init__(self, store: Store, rows: int) -> None:
        self.store = store
        self._rows = rows
        self.chance = random.Random(7)
        store.write(self._fill)
        self.records: dict[str, dict[int, dict[str, Any]]] = {}
        with store.read() as session:
            for name in ORDER:
                codec, page = codec_of(BY_NAME[name]), store.plans[name].page
                rows = session.run(page, (-(2**63), 10_000))
                self.records[name] = {row[0]: record(codec.relation, codec.decode(row)) for row in rows}
                assert len(rows) > len(IDS) + 3

    def _fill(self, uow: Any) -> None:
        session = session_of(uow)

        def write(relation: Relation, item: Any) -> None:
            # What breaks a rule of uniqueness is left out.
            session.run(self.store.plans[relation.name].insert_or_ignore, codec_of(relation).encode(item))

        for key in IDS:
            write(
                BY_NAME["session"], plain(BY_NAME["session"], **{**unlike_any(BY_NAME["session"]), "session_id": key})
            )
        for name in ORDER:
            relation = BY_NAME[name]
            references = {
                key.column: IDS[0] for key in relation.foreign_keys if not relation.column(key.column).nullable
            }
            for key in IDS:
                write(relation, plain(relation, **{**unlike_any(relation), **references, relation.key[0]: key}))
            head = None if relation.text is None else relation.text.head
            for number in range(self._rows):
                item = entity(relation, self.chance, 0)
                if head is not None and not number:
                    item = replace(item, **{head: "é\0b"})  # whatever is drawn
                hashes = {column.name: self.chance.randbytes(32) for column in relation.columns if column.length == 32}
                write(relation, replace(item, **unlike_any_key(relation), **hashes))


def unlike_any_key(relation: Relation) -> dict[str, Any]:
    return {relation.key[0]: unlike_any(relation)[relation.key[0]]}
