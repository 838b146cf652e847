"""Facet ``memory.pcp``: checkpoints of tasks and recovery from them; validation and lint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caliber.access.visibility import require
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.guard.validation import LintResult, ValidationResult
from caliber.model.pcp import (
    ArtifactProvenance,
    Checkpoint,
    RecoveryResult,
    TaskState,
    TraceSummary,
)
from caliber.model.references import EntityRef, Id
from caliber.model.windows import ContextWindow
from caliber.schema.relations import TRAJECTORY
from caliber.search.service import Searching
from caliber.trajectory.service import Tasks

if TYPE_CHECKING:
    from caliber.pcp.inspecting import Inspector
    from caliber.pcp.recovery import LearntFacts


class Pcp:
    """Guards of a task's memory, as one principal uses them."""

    def __init__(
        self, engine: Engine, principal: Principal, searching: Searching, tasks: Tasks, facts: LearntFacts
    ) -> None:
        from caliber.pcp.recovery import Recovery  # most processes recover no task

        self._engine = engine
        self._principal = principal
        self._searching = searching
        self._recovery = Recovery(engine, principal, tasks, facts)

    def checkpoint(self, task: Id) -> Checkpoint:
        """Store a checkpoint of a task as it is now; the oldest beyond ``checkpoint_retention`` go.

        Raises: NotFound; PermissionDenied for a task that the principal may only read; InvalidStateTransition for a
            task that ended.
        """
        return self._recovery.checkpoint(self._own(task))

    def recover(self, task: Id, checkpoint: Id | None = None, *, preview: bool = False) -> RecoveryResult:
        """Bring a task back to a checkpoint, by default the newest: later records leave windows and searches at once.

        Nothing is deleted: turns, summaries, artifacts and learnt facts that came after are marked, and the result
        names a checkpoint of the task as it was before. A new scope opens. Recovering again changes nothing. A damaged
        checkpoint is passed over for the one before it, and named. ``preview`` counts what would change, and writes
        nothing.

        Raises: NotFound, also for a checkpoint of another task; NoCheckpointAvailable; InvalidValue for a checkpoint
            that is not recoverable; StorageError for a damaged one that a recovery made; InvalidStateTransition for a
            task that ended; PermissionDenied; Conflict.
        """
        arguments.as_flag(preview, "preview")
        wanted = None if checkpoint is None else arguments.as_uuid(checkpoint, "checkpoint")
        return self._recovery.recover(self._own(task), wanted, preview=preview)

    def validate(
        self, target: ContextWindow | Id, *, record: bool = False, user: str | EntityRef | None = None
    ) -> ValidationResult:
        """Check the records of a window, a scope or a task: contradictions, age, confidence, sources; docs/pcp.md.

        ``target`` is a window, or the id of a persisted window, of a scope or of a task. Nothing is changed unless
        ``record`` is set: then each confirmed contradiction is recorded as a conflict, once a pair, and resolved by
        ``pcp.grounding.conflict_resolution``, as far as the principal may correct the side that loses. ``user`` is whom
        the call is for, as in ``explain``.

        Raises: ConstraintViolation for an id of no window, scope or task, or of a window that has expired; Unavailable;
            PermissionDenied for another user.
        """
        from caliber.pcp.validation import Validator  # its word lists load with the first check

        arguments.as_flag(record, "record")
        validator = Validator(self._engine, self._principal, self._searching.seen_by(user))
        if not record:
            return validator.validate(target)
        from caliber.pcp.conflicts import StatementConflicts  # most processes record no conflict

        return validator.validate(target, StatementConflicts(self._engine, self._principal, user))

    def apply_dosage(
        self, window: ContextWindow | Id, *, max_tokens: int | None = None, user: str | EntityRef | None = None
    ) -> ContextWindow:
        """Return a window within ``pcp.dosage``, and ``max_tokens``: itself if it is, else a new, smaller one.

        ``window`` is a window or the id of a persisted one, which is replayed. Its sources fill the smaller limit as
        those of an assembly with shared sections do: instructions and the last user message first, then the newest
        turns and records by rank, compressed where they do not fit whole. Where the sections from
        priority 90 on exceed the limit by themselves, the log of the task gets an event ``error``. The new
        window has the old trace, and one decision about each source that it lost or holds shorter. It is not persisted.
        ``user`` is whom the call is for, as in ``explain``.

        Raises: InputError kinds; NotFound for a window or task that does not exist or is hidden; PermissionDenied for
            another user.
        """
        limit = None if max_tokens is None else arguments.as_whole(max_tokens, "max_tokens", 1)
        return self._inspector(user).apply_dosage(window, limit)

    def lint(self, artifact: Id) -> LintResult:
        """Check an artifact: its size, near duplicates, its declared format, its tags; docs/pcp.md. Nothing is changed.

        Raises: NotFound; InvalidValue.
        """
        from caliber.pcp.lint import Linter  # parsers that few processes need

        key = arguments.as_uuid(artifact, "artifact")
        return Linter(self._engine, self._principal).lint(key)

    def trace_summary(self, task: Id) -> TraceSummary:
        """Return figures of a task's events: durations, records created, windows and their tokens, recoveries.

        Raises: NotFound.
        """
        key = arguments.as_uuid(task, "task")
        return self._inspector().trace_summary(key)

    def task_state(self, task: Id) -> TaskState:
        """Return a task with its scopes and the number of its records. Raises: NotFound."""
        key = arguments.as_uuid(task, "task")
        return self._inspector().task_state(key)

    def provenance(self, artifact: Id) -> ArtifactProvenance:
        """Return the origin of an artifact, and the versions before and after it. Raises: NotFound."""
        key = arguments.as_uuid(artifact, "artifact")
        return self._inspector().provenance(key)

    def _inspector(self, user: str | EntityRef | None = None) -> Inspector:
        from caliber.pcp.inspecting import Inspector  # only people who debug a task need it

        return Inspector(self._engine, self._principal, self._searching.seen_by(user))

    def _own(self, task: Id) -> Any:
        self._engine.check_open()
        key = arguments.as_uuid(task, "task")
        readers = self._searching.readers
        require(self._engine, readers, TRAJECTORY, key, write=True)
        if readers.limited:  # a state holds a window, and what follows is of every kind
            readers.require_kind(*self._engine.store.catalog.by_name.values(), read=True)
        return key
