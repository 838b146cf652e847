"""Loader of one task's records from the database into a temporary snapshot (``search.mode = "backend"``).

Windows, closing and completing work on a task: its scopes, turns and artifacts, and notes on given subjects. All rows
of one snapshot are read in one session, hence at one commit boundary.

Source: design, section 5; docs/search.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Protocol

from caliber.config import CaliberConfig
from caliber.model.embedding import EmbeddingSpace
from caliber.model.windows import Position
from caliber.resident.partial import PartialMirrors
from caliber.resident.snapshot import ResidentSnapshot
from caliber.resident.vectors import VectorSnapshot
from caliber.schema.relations import MIRRORED
from caliber.schema.traits import Enters, Mirror
from caliber.search.in_database.stored import StoredSearch
from caliber.search.usage import keys_of
from caliber.storage.compile.codec import Codec, Row, dump_json
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store
from caliber.storage.sql.full_text import texts_of

_OF_TASK = "list_by_trajectory"
_EMPTY = tuple(relation.name for relation in MIRRORED if relation.resident.form is Mirror.ROWS)


class Ranked(Protocol):
    """The records of a snapshot to be ranked: their space, their reader, and the turns that searches found."""

    @property
    def space(self) -> EmbeddingSpace | None:
        """The space that is searched."""
        ...

    @property
    def used_by(self) -> Sequence[bytes]:
        """The ids whose uses of records count."""
        ...

    @property
    def found_turns(self) -> Sequence[bytes]:
        """The keys of turns that searches found, and of those beside them."""
        ...


def open_scope(codec: Codec, scopes: Iterable[Row]) -> bytes | None:
    """Return the key of the newest open scope, if there is one."""
    closed_at, number_at = codec.index("closed_at"), codec.index("sequence_number")
    still_open = [row for row in scopes if row[closed_at] is None]
    return bytes(max(still_open, key=lambda row: int(row[number_at]))[1]) if still_open else None


class StoredRecords:
    """Reads the records that a call about one trajectory needs."""

    def __init__(self, store: Store, search: StoredSearch, config: CaliberConfig) -> None:
        self._store = store
        self._search = search
        self._max_depth = config.pcp.context_dag.max_depth if config.pcp.context_dag.enabled else 0

    def around(
        self,
        resident: ResidentSnapshot,
        trajectory_id: uuid.UUID,
        scopes: Iterable[uuid.UUID],
        things: Sequence[tuple[str, str]] = (),
    ) -> ResidentSnapshot:
        """Return a snapshot of a trajectory and those above it, their artifacts, its scopes and the turns of some.

        Its notes are those on ``things``, by name and type.
        """
        with self._store.read() as session:
            rows = self.read(session, trajectory_id, [scope.bytes for scope in scopes])
            rows["note"] = [row for thing in things for row in self._list(session, "note", "find_by_entity", *thing)]
            return self.snapshot(session, resident, rows)

    def read(
        self, session: StatementSession, trajectory_id: uuid.UUID, scopes: Sequence[bytes] | None
    ) -> dict[str, Sequence[Row]]:
        """Return the rows of a trajectory; ``scopes`` None: with the turns of the newest open one.

        Summaries of turns are those of all its scopes.
        """
        rows: dict[str, Sequence[Row]] = dict.fromkeys(_EMPTY, ())
        rows["trajectory"] = lineage = self._lineage(session, trajectory_id.bytes)
        rows["scope"] = self._list(session, "scope", "list_by_trajectory", trajectory_id.bytes)
        newest = open_scope(self._store.plans["scope"].codec, rows["scope"])
        scope_ids = scopes if scopes is not None else [] if newest is None else [newest]
        rows["turn"] = [row for key in scope_ids for row in self._list(session, "turn", "list_by_scope", key)]
        rows["turn_summary"] = self._list(session, "turn_summary", "list_by_trajectory", trajectory_id.bytes)
        for relation in self._store.catalog.mirrored:
            if relation.window is not None and relation.window.enters is Enters.TASK:
                name = relation.name
                rows[name] = [row for owner in lineage for row in self._list(session, name, _OF_TASK, owner[1])]
        return rows

    def snapshot(
        self,
        session: StatementSession,
        resident: ResidentSnapshot,
        rows: dict[str, Sequence[Row]],
        ranked: Ranked | None = None,
    ) -> ResidentSnapshot:
        """Return a snapshot of rows, with vectors, links and usage counts of those that are to be ranked."""
        vectors: dict[tuple[str, uuid.UUID], VectorSnapshot] = {}
        spaces = dict(resident.spaces)
        space = None if ranked is None else ranked.space
        found: Sequence[Row] = ()
        if ranked is not None:
            statements = self._search.statements
            kinds = [relation.name for relation in texts_of(self._store.catalog) if relation.neighbours is None]
            keys = [*(row[1] for kind in kinds for row in rows.get(kind, ())), *ranked.found_turns]
            packed = dump_json([key.hex().upper() for key in dict.fromkeys(keys)])
            uses = keys_of(dict.fromkeys(keys), ranked.used_by)
            rows["usage"] = session.run(
                statements["search.usage_of"], (dump_json([key.hex().upper() for key in uses]),)
            )
            rows["edge"] = session.run(statements["search.edges_of"], (packed,))
            if space is not None:
                found = session.run(statements["search.vectors_of"], (space.space_id.bytes, packed))
        mirrors = PartialMirrors(resident.evaluator, self._store.catalog)
        relations = {name: mirrors.mirror(name, part) for name, part in rows.items()}
        relations |= {name: each for name, each in resident.relations.items() if each.relation.rights.ends}  # conflicts
        if space is not None:
            vectors = mirrors.vectors(space, found, relations)
            spaces[space.space_id] = space
        position = self.position(session)
        return ResidentSnapshot(position, relations, vectors, spaces, resident.evaluator, resident.space_in_use)

    def position(self, session: StatementSession) -> Position:
        """Return the change-feed position of a session."""
        sequence = session.run(self._store.statements["change.bounds"], ())[0][1]
        return Position(self._store.epoch, sequence)

    def _list(self, session: StatementSession, relation: str, path: str, *key: object) -> list[Row]:
        return session.run(self._store.plans[relation].lists[path], key)

    def _lineage(self, session: StatementSession, key: bytes) -> list[Row]:
        """Return a trajectory and those above it, nearest first."""
        plans = self._store.plans["trajectory"]
        parent_at = plans.codec.index("parent_trajectory_id")
        out: list[Row] = []
        following: bytes | None = key
        while following is not None and len(out) <= self._max_depth and all(row[1] != following for row in out):
            rows = session.run(plans.get, (following,))
            out += rows
            following = rows[0][parent_at] if rows else None
        return out
