"""Facet ``memory.pcp``: checkpoints of tasks and recovery from them; validation and lint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caliber.access.visibility import require
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.deadline import bounded
from caliber.model.guard.lint import LintResult
from caliber.model.guard.validation import ValidationResult
from caliber.model.ids import Id
from caliber.model.pcp import Checkpoint, RecoveryResult
from caliber.model.windows import ContextWindow
from caliber.schema.relations import TRAJECTORY
from caliber.search.service import Searching
from caliber.trajectory.service import Tasks

if TYPE_CHECKING:
    from caliber.pcp.recovery import LearntFacts


class Pcp:
    """Guards of a task's memory, as one principal uses them."""

    def __init__(
        self, engine: Engine, principal: Principal, searching: Searching, tasks: Tasks[Any], facts: LearntFacts
    ) -> None:
        from caliber.pcp.recovery import Recovery  # most processes recover no task

        self._engine = engine
        self._principal = principal
        self._searching = searching
        self._recovery = Recovery(engine, principal, tasks, facts)

    def checkpoint(self, task: Id, *, deadline_ms: int | None = None) -> Checkpoint:
        """Store a checkpoint of a task as it is now; the oldest beyond ``checkpoint_retention`` go.

        Raises: NotFound; PermissionDenied for a task that the principal may only read; InvalidStateTransition for a
            task that ended.
        """
        with bounded(deadline_ms):
            return self._recovery.checkpoint(self._own(task))

    def recover(
        self, task: Id, checkpoint: Id | None = None, *, preview: bool = False, deadline_ms: int | None = None
    ) -> RecoveryResult:
        """Bring a task back to a checkpoint, by default the newest: later records leave windows and searches at once.

        Nothing is deleted: turns, summaries, artifacts and learnt facts that came after are marked, and the result
        names a checkpoint of the task as it was before. A new scope opens. Recovering again changes nothing. A damaged
        checkpoint is passed over for the one before it, and named. ``preview`` counts what would change, and writes
        nothing.

        Raises: NotFound, also for a checkpoint of another task; NoCheckpointAvailable; InvalidValue for a checkpoint
            that is not recoverable; InvalidStateTransition for a task that ended; PermissionDenied; Conflict.
        """
        arguments.as_flag(preview, "preview")
        wanted = None if checkpoint is None else arguments.as_uuid(checkpoint, "checkpoint")
        with bounded(deadline_ms):
            return self._recovery.recover(self._own(task), wanted, preview=preview)

    def validate(self, target: ContextWindow | Id, *, deadline_ms: int | None = None) -> ValidationResult:
        """Check the records of a window, a scope or a task: contradictions, age, confidence, sources; docs/pcp.md.

        ``target`` is a window, or the id of a persisted window, of a scope or of a task. Nothing is changed.

        Raises: ConstraintViolation for an id of no window, scope or task, or of a window that has expired; Unavailable.
        """
        from caliber.pcp.validation import Validator  # its word lists load with the first check

        with bounded(deadline_ms):
            return Validator(self._engine, self._principal).validate(target)

    def lint(self, artifact: Id, *, deadline_ms: int | None = None) -> LintResult:
        """Check an artifact: its size, near duplicates, its declared format, its tags; docs/pcp.md. Nothing is changed.

        Raises: NotFound; InvalidValue.
        """
        from caliber.pcp.lint import Linter  # parsers that few processes need

        key = arguments.as_uuid(artifact, "artifact")
        with bounded(deadline_ms):
            return Linter(self._engine, self._principal).lint(key)

    def _own(self, task: Id) -> Any:
        self._engine.check_open()
        key = arguments.as_uuid(task, "task")
        readers = self._searching.readers
        require(self._engine, readers, TRAJECTORY, key, write=True)
        if readers.limited:  # a state holds a window, and what follows is of every kind
            readers.require_kind(*self._engine.store.catalog.by_name.values(), read=True)
        return key
