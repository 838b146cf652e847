"""Snapshots of what one call needs, read for it, where records are not in memory (``search.mode = "backend"``).

Windows, closing and completing work on a trajectory: its scopes, turns and artifacts, and the notes that come into
question. All of one snapshot is read in one session, hence at one commit boundary.

Source: design, section 5; docs/decisions/0083.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from caliber.config import CaliberConfig
from caliber.model.windows import Position
from caliber.resident.memory import ResidentSnapshot
from caliber.resident.partial import PartialMirrors
from caliber.runtime.rule_rows import RuleRows
from caliber.search.candidates import Asked
from caliber.search.stored import StoredSearch
from caliber.storage.codec import Row, dump_json
from caliber.storage.protocol import Store
from caliber.storage.session import StatementSession

_EMPTY = ("session", "trajectory", "scope", "turn", "turn_summary", "artifact", "note", "usage", "edge")


class StoredRecords:
    """Reads what a call about one trajectory needs."""

    def __init__(self, store: Store, search: StoredSearch, config: CaliberConfig) -> None:
        self._store = store
        self._search = search
        self._max_depth = config.pcp.context_dag.max_depth if config.pcp.context_dag.enabled else 0
        self._newest = config.assembly.notes_without_query

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
            rows = self._read(session, trajectory_id, [scope.bytes for scope in scopes])
            rows["note"] = [row for thing in things for row in self._list(session, "note", "find_by_entity", *thing)]
            return self._snapshot(session, resident, rows, None)

    def for_window(
        self, resident: ResidentSnapshot, trajectory_id: uuid.UUID, asked: Asked, rules: RuleRows | None = None
    ) -> tuple[ResidentSnapshot, dict[str, int]]:
        """Return a snapshot for a window: turns of the newest open scope, records that come into question.

        Besides, how many notes are in sight. ``rules`` say what else could enter.

        Raises: SchemaMismatch when the full text cannot be trusted
        """
        with self._store.read() as session:
            rows = self._read(session, trajectory_id, None)
            found, in_sight = self._search.rows_for(session, asked, self._newest)
            parts = [found]
            if rules is not None:
                parts.append(rules.read(self._store, session))
                searches = rules.searches(asked, self._search.kinds)
                parts += [self._search.rows_for(session, search, 0)[0] for search in searches]
            for name in dict.fromkeys(name for part in parts for name in part):
                rows[name] = list({row[0]: row for part in parts for row in part.get(name, ())}.values())
            return self._snapshot(session, resident, rows, asked), {"note": in_sight}

    def _read(
        self, session: StatementSession, trajectory_id: uuid.UUID, scopes: Sequence[bytes] | None
    ) -> dict[str, Sequence[Row]]:
        """Return the rows of a trajectory; ``scopes`` None: with the turns of the newest open one.

        Summaries of turns are those of all its scopes.
        """
        rows: dict[str, Sequence[Row]] = dict.fromkeys(_EMPTY, ())
        rows["trajectory"] = lineage = self._lineage(session, trajectory_id.bytes)
        rows["scope"] = self._list(session, "scope", "list_by_trajectory", trajectory_id.bytes)
        wanted = self._open_scope(rows["scope"]) if scopes is None else scopes
        rows["turn"] = [row for key in wanted for row in self._list(session, "turn", "list_by_scope", key)]
        rows["turn_summary"] = self._list(session, "turn_summary", "list_by_trajectory", trajectory_id.bytes)
        rows["artifact"] = [
            row for owner in lineage for row in self._list(session, "artifact", "list_by_trajectory", owner[1])
        ]
        return rows

    def _snapshot(
        self,
        session: StatementSession,
        resident: ResidentSnapshot,
        rows: dict[str, Sequence[Row]],
        asked: Asked | None,
    ) -> ResidentSnapshot:
        statements = self._search.full_text.statements
        ranked = ("artifact", "note", "scope", *(relation.name for relation in self._store.catalog.own))
        keys = dump_json([row[1].hex().upper() for kind in ranked for row in rows.get(kind, ())])
        mirrors = PartialMirrors(resident.evaluator, self._store.catalog)
        found: Sequence[Row] = ()
        space = None if asked is None else asked.space
        if asked is not None:
            rows["usage"] = session.run(statements["search.usage_of"], (keys,))
            rows["edge"] = session.run(statements["search.edges_of"], (keys,))
        if space is not None:
            found = session.run(statements["search.vectors_of"], (space.space_id.bytes, keys))
        relations = {name: mirrors.mirror(name, part) for name, part in rows.items()}
        vectors = {} if space is None else mirrors.vectors(space, found, relations)
        sequence = session.run(self._store.statements["change.bounds"], ())[0][1]
        position = Position(self._store.epoch, sequence)
        spaces = dict(resident.spaces)
        if space is not None:
            spaces[space.space_id] = space
        return ResidentSnapshot(position, relations, vectors, spaces, resident.evaluator, resident.space_in_use)

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

    def _open_scope(self, scopes: Sequence[Row]) -> list[bytes]:
        """Return the key of the newest open scope, if there is one."""
        codec = self._store.plans["scope"].codec
        closed_at, number_at = codec.index("closed_at"), codec.index("sequence_number")
        still_open = [row for row in scopes if row[closed_at] is None]
        return [max(still_open, key=lambda row: int(row[number_at]))[1]] if still_open else []
