"""Facet ``memory.storage``: one table per relation, some with additional queries, and bulk load and read.

Source: C-318 to C-361, K-018.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from caliber.admin.spaces import SpaceTable
from caliber.admin.table import Table, TableReader, table_of
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.errors import NotFound
from caliber.model.pcp import Checkpoint
from caliber.model.progress import Progress
from caliber.model.time import from_us
from caliber.model.trajectory import Artifact, Scope, Turn
from caliber.retention.retaining import Retaining
from caliber.schema.relations import (
    ARTIFACT,
    CHECKPOINT,
    CONTEXT_WINDOW,
    EMBEDDING,
    EMBEDDING_CACHE,
    EMBEDDING_SPACE,
    EVENT,
    MEMORY_TYPE,
    NOTE,
    SCOPE,
    TURN,
)
from caliber.schema.traits import Exported
from caliber.schema.validity import is_valid
from caliber.storage.bulk.protocol import BATCH_ROWS, BulkReport, OnExisting
from caliber.storage.compile.codec import Row
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory import lifecycle, triggers
from caliber.trajectory.triggers import SCOPE_CLOSED

_LIMIT_MAX = 999
_NO_TIME = -(2**63)
_EVERY = 2**63 - 1


class ScopeTable(Table, of=SCOPE):
    """Scopes."""

    def get_current(self, trajectory_id: Any) -> Scope | None:
        """Return the open scope with the highest sequence number, or None (C-327)."""
        found: list[Scope] = self._list("list_open", trajectory_id)
        return found[-1] if found else None

    def close(
        self,
        scope_id: Any,
        *,
        summary: str | None = None,
        artifact_ids: tuple[uuid.UUID, ...] = (),
        checkpoint_id: uuid.UUID | None = None,
    ) -> Scope:
        """Close a scope without running policies. Raises: NotFound, InvalidStateTransition (C-325)."""
        scope = arguments.as_uuid(scope_id, "scope_id")
        if summary is not None:
            summary = arguments.as_text(summary, "summary")
        made = arguments.as_uuids(artifact_ids, "artifact_ids")
        checkpoint = None if checkpoint_id is None else arguments.as_uuid(checkpoint_id, "checkpoint_id")

        def work(uow: UnitOfWork) -> Scope:
            closed = lifecycle.close_scope(
                uow,
                scope,
                summary=summary,
                estimator=self._engine.estimator,
                artifact_ids=list(made),
                checkpoint_id=checkpoint,
            )
            triggers.cancel(self._engine, uow, "list_by_scope", scope.bytes, SCOPE_CLOSED)
            Retaining(self._engine).scope_closed(uow, closed)
            return closed

        return self._engine.write(work)

    def count_by_trajectory(self, trajectory_id: Any) -> int:
        """Return how many scopes a trajectory has (C-328)."""
        return self._count("list_by_trajectory", trajectory_id)


class TurnTable(Table, of=TURN):
    """Turns."""

    def count_by_scope(self, scope_id: Any) -> int:
        """Return how many turns a scope has (C-347)."""
        return self._count("list_by_scope", scope_id)

    def delete_by_scope(self, scope_id: Any) -> int:
        """Delete a scope's turns, keeping their content for replay; return how many (C-346)."""
        scope = arguments.as_uuid(scope_id, "scope_id")

        def work(uow: UnitOfWork) -> int:
            turns: list[Turn] = uow.select_path(TURN, "list_by_scope", scope.bytes)
            for turn in turns:
                uow.delete(TURN, turn)
            return len(turns)

        return self._engine.write(work)


class ArtifactTable(Table, of=ARTIFACT):
    """Artifacts."""

    def get_by_hash(self, trajectory_id: Any, content_hash: bytes) -> Artifact | None:
        """Return the active artifact of this content in a trajectory, or None (C-331)."""
        found: list[Artifact] = self._list("list_by_hash", trajectory_id, content_hash)
        now = from_us(self._engine.clock.now_us())
        return next((artifact for artifact in found if is_valid(ARTIFACT, artifact, now)), None)

    def list_by_trajectory(
        self, trajectory_id: Any, *, include_superseded: bool = False, limit: int | None = None
    ) -> list[Artifact]:
        """Return a trajectory's artifacts, without superseded ones by default (C-334)."""
        found: list[Artifact] = self._list("list_by_trajectory", trajectory_id)
        every = arguments.as_flag(include_superseded, "include_superseded")
        kept = [artifact for artifact in found if every or artifact.superseded_by is None]
        return kept if limit is None else kept[: arguments.as_whole(limit, "limit")]

    def count_by_trajectory(self, trajectory_id: Any) -> int:
        """Return the number of a trajectory's artifacts, inactive ones included (C-337)."""
        return self._count("list_by_trajectory", trajectory_id)


class NoteTable(Table, of=NOTE):
    """Notes."""

    def count_by_trajectory(self, trajectory_id: Any) -> int:
        """Return how many notes name a trajectory as their source (C-343)."""
        trajectory = arguments.as_uuid(trajectory_id, "trajectory_id")
        self._engine.check_open()
        plan = self._plans.drawn_from
        assert plan is not None  # notes list the tasks that they were drawn from
        with self._engine.store.read() as session:
            return len(session.run(plan, (trajectory.bytes,)))


class CheckpointTable(Table, of=CHECKPOINT):
    """Checkpoints."""

    def get_latest(self, trajectory_id: Any) -> Checkpoint | None:
        """Return a trajectory's newest checkpoint, or None (C-351)."""
        found: list[Checkpoint] = self._list("list_by_trajectory", trajectory_id, limit=1)
        return found[0] if found else None

    def delete_oldest(self, trajectory_id: Any, keep: int) -> int:
        """Delete all but a trajectory's newest ``keep`` checkpoints; return how many (C-352).

        Those that recoveries made are counted apart, and the ones that recoveries went to stay with them.
        """
        trajectory = arguments.as_uuid(trajectory_id, "trajectory_id")
        arguments.as_whole(keep, "keep")
        return self._engine.write(lambda uow: uow.execute("checkpoint.prune", trajectory.bytes, keep, _EVERY))


class WindowTable(Table, of=CONTEXT_WINDOW):
    """Persisted windows; those whose time is over are absent, and only counted until they are deleted (C-354)."""

    def _entities(self, rows: Sequence[Row]) -> list[Any]:
        now = from_us(self._engine.clock.now_us())
        return [each for each in super()._entities(rows) if each.expires_at is None or each.expires_at > now]

    def _list(self, path: str, *by: Any, limit: int | None = None) -> list[Any]:
        found = super()._list(path, *by, limit=limit)
        return found if limit is None or len(found) == limit else super()._list(path, *by)[:limit]

    def delete_expired(self) -> int:
        """Delete windows whose time is over; return how many (C-355)."""
        self._engine.behind.flush()
        return self._engine.write(lambda uow: uow.execute("window.prune", uow.now_us, _NO_TIME))


class EventTable(Table, of=EVENT):
    """The event log."""

    def delete_by_trajectory(self, trajectory_id: Any) -> int:
        """Delete a trajectory's trace, but no audit record; return how many events (C-358)."""
        trajectory = arguments.as_uuid(trajectory_id, "trajectory_id")
        self._engine.behind.flush()
        return self._engine.write(lambda uow: uow.execute("event.drop_trace", trajectory.bytes))


class EmbeddingTable(Table, of=EMBEDDING):
    """Vectors of records. One that is inserted again under its key replaces the stored one (M-018)."""

    def _insert(self, uow: UnitOfWork, entity: Any) -> Any:
        stored = uow.find(self._relation, *self._key((entity.space_id, entity.owner_id, entity.chunk_index)))
        if stored is None:
            return super()._insert(uow, entity)
        return uow.update(self._relation, dataclasses.replace(entity, version=stored.version))


class EmbeddingCacheTable(Table, of=EMBEDDING_CACHE):
    """Vectors of texts seen before."""

    def _insert(self, uow: UnitOfWork, entity: Any) -> Any:
        uow.upsert(self._relation, entity)  # C-360
        return entity

    def delete_older_than(self, age_ms: int) -> int:
        """Delete vectors that were cached longer ago than ``age_ms``; return their number (C-361)."""
        arguments.as_whole(age_ms, "age_ms")
        return self._engine.write(lambda uow: uow.execute("embedding_cache.prune", uow.now_us - age_ms * 1_000))


class MemoryTypeTable(TableReader, of=MEMORY_TYPE):
    """Declared memories."""


class Tables:
    """The tables of a tenant, by plural: ``storage.turns``, ``storage.notes``…"""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tables = {relation.plural: table_of(engine, relation) for relation in engine.store.catalog.relations}

    def __getattr__(self, name: str) -> Table:
        tables: dict[str, Any] = self.__dict__.get("_tables", {})
        if name not in tables:
            raise AttributeError(f"there is no relation {name}; there are {', '.join(tables)}")
        table: Table = tables[name]
        return table

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    @property
    def memory_types(self) -> TableReader:
        """The declared memories of the store; `caliber create` and `caliber db migrate` write them."""
        return self._tables[MEMORY_TYPE.plural]

    @property
    def embedding_spaces(self) -> SpaceTable:
        """The embedding spaces: report their content, fill that of the configured model, drop one."""
        return SpaceTable(self._engine, EMBEDDING_SPACE)

    def bulk_load(
        self,
        relation: str,
        data: Any,
        *,
        on_existing: OnExisting | str = OnExisting.ERROR,
        progress: Progress | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> BulkReport:
        """Load an Arrow table, record batch or stream (``__arrow_c_stream__``) into a relation, in one transaction.

        Columns are the relation's; ids, hashes, token counts, times and the version are made where they are not given.
        ``on_existing="skip"`` passes over rows that are there already. Two record batches are in memory at most;
        another thread may read the second from ``data``.

        Shapes: see ``bulk_read(relation).schema``.
        Raises: InvalidRow for a bad row, with its number and column; Conflict for one that is there; InvalidValue for
            columns that are unknown or lacking; DTypeError; ExtraNotInstalled. Nothing is loaded then.
        Source: design section 4; C-195, D-005.
        """
        from caliber.admin import bulk

        return bulk.load(
            self._engine, relation, data, on_existing=on_existing, progress=progress, batch_rows=batch_rows
        )

    def bulk_read(self, relation: str, *, batch_rows: int = BATCH_ROWS) -> Any:
        """Return a ``pyarrow.RecordBatchReader`` of every row of a relation, as of one commit.

        Batches are read as they are asked for; ``read_all()`` gives a table. The ordinal is the store's own and left
        out; ``bulk_load`` takes what this gives.

        Raises: InvalidValue, ExtraNotInstalled
        """
        from caliber.admin import bulk

        return bulk.read(self._engine, relation, batch_rows=batch_rows)

    @property
    def exported(self) -> dict[str, bool]:
        """The relations that can be exported, in the order of references, and whether each is exported by default."""
        loadable = self._engine.store.catalog.loadable
        unasked = {relation.name: relation.exported is Exported.RECORDS for relation in loadable}
        return dict(sorted(unasked.items(), key=lambda item: not item[1]))

    def table_of(self, relation: str) -> TableReader:
        """Return the table of a relation by its own name or its plural. Raises: InvalidValue."""
        from caliber.admin import bulk

        return self._tables[bulk.relation_named(relation, self._engine.store.catalog).plural]

    def get(self, relation_plural: str) -> TableReader:
        """Return a table by its name. Raises: NotFound."""
        if arguments.as_text(relation_plural, "relation_plural") not in self._tables:
            raise NotFound(entity_type="relation", id=relation_plural)
        return self._tables[relation_plural]
