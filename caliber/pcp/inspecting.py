"""Views of a task for people who debug it: figures of its trace, its state, and the origin of an artifact.

Everything is read from the store, and of it only what the principal may see is counted. Source: C-293 to C-299, K-108.
"""

from __future__ import annotations

import functools
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from caliber.access.visibility import Readers
from caliber.context.service import ContextService
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import NotFound
from caliber.model.events import EventType
from caliber.model.pcp import ArtifactProvenance, TaskState, TraceSummary
from caliber.model.references import EntityType, Id
from caliber.model.trajectory import Artifact, TurnRole
from caliber.model.windows import ContextWindow
from caliber.schema.relation import Relation
from caliber.schema.relations import ARTIFACT, CHECKPOINT, NOTE, SCOPE, TRAJECTORY, TURN
from caliber.search.service import Searching
from caliber.storage.compile.session import StatementSession

_ALL: Final = 2**31 - 1


class Inspector:
    """Reads tasks and artifacts as one principal sees them; the application sees what the user of the task does."""

    def __init__(self, engine: Engine, principal: Principal, searching: Searching) -> None:
        self._engine = engine
        self._principal = principal
        self._searching = searching

    def trace_summary(self, task: uuid.UUID) -> TraceSummary:
        """Return figures of a task. Raises: NotFound."""
        readers = self._readers(task)
        events = ContextService(self._engine, self._principal, self._searching.with_readers(readers)).trace(
            task, None, _ALL
        )
        counts = Counter(event.event_type for event in events)
        times = [event.created_at for event in events]
        used = [event.payload.get("used_tokens") for event in events if event.event_type == EventType.CONTEXT_ASSEMBLE]
        took = (max(times) - min(times)).total_seconds() if times else 0.0
        with self._engine.store.read() as session:
            trajectory = self._entity(session, readers, TRAJECTORY, task)
            spoken = [
                turn.token_count
                for scope in self._list(session, readers, SCOPE, "list_by_trajectory", task)
                for turn in self._list(session, readers, TURN, "list_by_scope", scope.scope_id)
                if turn.role is TurnRole.ASSISTANT
            ]
        return TraceSummary(
            trajectory_id=trajectory.trajectory_id,
            duration_ms=round(took * 1_000),
            scopes_created=counts[EventType.SCOPE_OPEN],
            artifacts_created=counts[EventType.ARTIFACT_CREATE],
            notes_created=counts[EventType.NOTE_CREATE],
            context_assemblies=counts[EventType.CONTEXT_ASSEMBLE],
            total_tokens_input=sum(tokens for tokens in used if isinstance(tokens, int)),
            total_tokens_output=sum(spoken),
            checkpoints_created=counts[EventType.CHECKPOINT_CREATE],
            recoveries_performed=counts[EventType.CHECKPOINT_RECOVER],
            errors=counts[EventType.ERROR],
        )

    def task_state(self, task: uuid.UUID) -> TaskState:
        """Return a task as it is. Raises: NotFound."""
        readers, plans = self._readers(task), self._engine.store.plans
        drawn_from = plans[NOTE.name].drawn_from
        assert drawn_from is not None  # notes list the tasks that they were drawn from
        with self._engine.store.read() as session:
            trajectory = self._entity(session, readers, TRAJECTORY, task)
            scopes = self._list(session, readers, SCOPE, "list_by_trajectory", task)
            artifacts = self._list(session, readers, ARTIFACT, "list_by_trajectory", task)
            notes = [row for row in session.run(drawn_from, (task.bytes,)) if readers.allows_row(NOTE, row)]
            checkpoints = self._list(session, readers, CHECKPOINT, "list_by_trajectory", task, _ALL)
        going = [scope for scope in scopes if scope.closed_at is None and scope.rolled_back_at is None]
        return TaskState(
            trajectory, tuple(scopes), going[-1] if going else None, len(artifacts), len(notes), len(checkpoints)
        )

    def provenance(self, key: uuid.UUID) -> ArtifactProvenance:
        """Return the origin of an artifact; versions that supersede each other in a circle are listed once.

        Raises: NotFound.
        """
        with self._engine.store.read() as session:
            rows = session.run(self._engine.store.plans[ARTIFACT.name].get, (key.bytes,))
            if not rows:
                raise NotFound(entity_type=ARTIFACT.name, id=key)
            task = self._engine.store.plans[ARTIFACT.name].codec.decode(rows[0]).trajectory_id
            try:
                readers = self._readers(task)
            except NotFound:
                raise NotFound(entity_type=ARTIFACT.name, id=key) from None
            artifact = self._entity(session, readers, ARTIFACT, key)
            known = {artifact.artifact_id}
            newer: list[Artifact] = []
            at = artifact.superseded_by
            while at is not None and at not in known:
                known.add(at)
                try:
                    newer.append(self._entity(session, readers, ARTIFACT, at))
                except NotFound:
                    break
                at = newer[-1].superseded_by
            older: list[Artifact] = []
            ahead = [artifact]
            while ahead:
                found = self._list(session, readers, ARTIFACT, "list_superseded_by", ahead.pop(0).artifact_id)
                before = [each for each in found if each.artifact_id not in known]
                known.update(each.artifact_id for each in before)
                older += before
                ahead += before
            return ArtifactProvenance(
                artifact,
                self._entity(session, readers, SCOPE, artifact.scope_id),
                self._entity(session, readers, TRAJECTORY, task),
                tuple(older),
                tuple(newer),
            )

    def apply_dosage(self, window: ContextWindow | Id, limit: int | None) -> ContextWindow:
        """Return a window within limits. Raises: as ``Pcp.apply_dosage``."""
        from caliber.explain.service import Explaining
        from caliber.pcp.dosage import Dosage
        from caliber.pcp.window_checks import not_a_window

        engine = self._engine
        if not isinstance(window, ContextWindow):
            key = arguments.as_uuid(window, "window")
            window = Explaining(engine, ContextService(engine, self._principal, self._searching)).replay(key)
        task = window.trajectory_id
        if not isinstance(task, uuid.UUID):
            raise not_a_window("has no task")
        self._readers(task)
        dosage = Dosage(window, engine.config, limit, engine.clock.now_us())
        made = dosage.apply()
        if dosage.cut_critical:
            payload = {"window": str(made.window_id), "limit": dosage.limit, "used_tokens": window.used_tokens}
            event = functools.partial(
                engine.event,
                EventType.ERROR,
                principal=self._principal.label,
                trajectory_id=task,
                subject=(EntityType.CONTEXT_WINDOW, window.window_id),
                payload={"error": "critical_sections_cut", **payload},
                at_us=engine.clock.now_us(),
            )
            engine.publish_later(event, engine.memory.erasures)
        return made

    def _readers(self, task: uuid.UUID) -> Readers:
        """Return the readers of the records of a task. Raises: NotFound for a task that they may not see."""
        self._engine.check_open()
        readers = self._searching.readers
        if readers.serves_tasks and not readers.everything:
            readers = readers.acting_for(task)
        if not readers.sees_task(task.bytes):
            raise NotFound(entity_type=TRAJECTORY.name, id=task)
        return readers

    def _entity(self, session: StatementSession, readers: Readers, relation: Relation, key: uuid.UUID) -> Any:
        plans = self._engine.store.plans[relation.name]
        rows = session.run(plans.get, (key.bytes,))
        if not rows or not readers.allows_row(relation, rows[0]):
            raise NotFound(entity_type=relation.name, id=key)
        return readers.shown(relation, plans.codec.decode(rows[0]))

    def _list(
        self, session: StatementSession, readers: Readers, relation: Relation, path: str, key: uuid.UUID, *limit: int
    ) -> Sequence[Any]:
        plans = self._engine.store.plans[relation.name]
        rows = session.run(plans.lists[path], (key.bytes, *limit))
        return [readers.shown(relation, plans.codec.decode(row)) for row in rows if readers.allows_row(relation, row)]
