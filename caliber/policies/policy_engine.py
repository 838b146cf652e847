"""Policy engine: prepares a trigger's actions outside a transaction, applies them in it; task service factory.

All actions of a trigger see the state at the time it fired. Providers are called in ``prepare``; ``apply`` only writes,
in the order in which the actions are declared, and logs an event for each of them. Source: C-213, C-226 to C-229,
K-066, K-067, K-099; decision 0172.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from caliber.config.policies import ActionConfig, PolicyAction, PolicyTarget
from caliber.context.pending_injections import PendingInjections, ask_for, drop
from caliber.embedding.embedding_target import Vectors, attach
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.engine.stale_inputs import StaleInputs, check_erasures, check_turns
from caliber.jobs.claims import Claim
from caliber.knowledge.drawing import NoteMaker, PreparedNote
from caliber.knowledge.inheriting import trust_of_all, trust_of_extracted
from caliber.model.access import Principal
from caliber.model.declared import Trigger
from caliber.model.errors import CaliberError, Conflict, LockExpired, Unavailable, error_fields
from caliber.model.events import EventType
from caliber.model.knowledge import Note
from caliber.model.providers import ExtractionTurn
from caliber.model.references import EntityType
from caliber.model.trajectory import Artifact, ArtifactType, ExtractionMethod
from caliber.model.trust import TrustLabel
from caliber.model.windows import ContextWindow
from caliber.pcp.checkpoints import build_state, insert_checkpoint
from caliber.policies.steps import (
    COMPRESS,
    Declared,
    Prepared,
    Step,
    StepFailed,
    declared_actions,
    source_of,
)
from caliber.retention.compressing import (
    SUMMARY_MAX_TOKENS,
    Compression,
    Compressor,
    Group,
    own_relation,
    prune_in_range,
)
from caliber.retention.retaining import Retaining, record_taken
from caliber.schema.relations import TURN
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory import artifacts as artifact_ops
from caliber.trajectory.artifacts import NewArtifact
from caliber.trajectory.service import Tasks
from caliber.trajectory.triggers import Applied, Subject
from caliber.trajectory.turns import transcript

T = TypeVar("T")


class PolicyEngine:
    """Runs the configuration's policies for one principal."""

    def __init__(
        self, engine: Engine, principal: Principal, assemble: Callable[[uuid.UUID, int], ContextWindow]
    ) -> None:
        self._engine = engine
        self._principal = principal
        self._assemble = assemble
        self._embeddings = engine.part(Embeddings)
        self._pending = engine.part(PendingInjections)
        self.notes = NoteMaker(engine, principal)
        self._compressor = Compressor(engine)
        self._actions = declared_actions(engine.config)

    def actions(self, trigger: Trigger) -> list[Declared]:
        """Return the actions of a trigger in the order they were declared."""
        return self._actions[trigger]

    # --- preparing -------------------------------------------------------------------------------

    def prepare(self, trigger: Trigger, subject: Subject, claim: Claim | None = None) -> Prepared:
        """Run everything that needs a provider; nothing is written but the event of an action that aborts all.

        Raises: what a provider raised, when ``policy_engine.on_error`` is abort; at closing a scope, when
            ``close.on_llm_failure`` is fail. Of a job also: what stops the store and may pass; Superseded.
        """
        prepared = Prepared(trigger, claim)
        for declared in self._actions[trigger]:
            step, begun = Step(declared), time.monotonic()
            prepared.steps.append(step)
            try:
                if isinstance(declared.action, Compression):
                    self._prepare_compression(trigger, declared.action, subject, prepared, step)
                else:
                    self._prepare_action(trigger, declared.action, subject, prepared, step)
            except CaliberError as error:
                if claim is not None and isinstance(error, Conflict | Unavailable) and error.retryable:
                    raise  # the job is done when that has passed
                step.error = error
            step.took_s = time.monotonic() - begun
            if step.error is not None and self._must_stop(trigger, declared):
                self._stop(prepared, step, subject)
                raise step.error
        return prepared

    def _must_stop(self, trigger: Trigger, declared: Declared) -> bool:
        config = self._engine.config
        if trigger is Trigger.SCOPE_CLOSE and declared.kind in (PolicyAction.SUMMARIZE, COMPRESS):
            return config.close.on_llm_failure == "fail"
        return config.policy_engine.on_error == "abort"

    def _stop(self, prepared: Prepared, step: Step, subject: Subject) -> None:
        """Record that nothing of a trigger is done because of one action, and will be.

        Where nothing can be written, the job is done later. Raises: Superseded.
        """
        skipped = len(self._actions[prepared.trigger]) - 1

        def work(uow: UnitOfWork) -> None:
            if prepared.claim is not None:
                prepared.claim.ack(uow)
            check_erasures(uow, subject.erased)  # the error may quote a record
            self._record(uow, prepared, step, subject, skipped=skipped)

        try:
            self._engine.write(work)
        except CaliberError as error:
            self._engine.record_error(f"the event of a policy on {prepared.trigger.value}", error)

    def _prepare_action(
        self, trigger: Trigger, action: ActionConfig, subject: Subject, prepared: Prepared, step: Step
    ) -> None:
        kind = action.action
        # C-216: a scope without turns closes without summary and artifacts.
        has_content = trigger is not Trigger.SCOPE_CLOSE or bool(subject.turns)
        if kind is PolicyAction.SUMMARIZE:
            if has_content:
                self._prepare_summary(trigger, action, subject, step)
        elif kind is PolicyAction.EXTRACT_ARTIFACTS and action.target is not PolicyTarget.TRAJECTORY:
            if has_content:
                step.artifacts = self._extract(subject)
        elif kind is PolicyAction.CONSOLIDATE_NOTES or (kind is PolicyAction.EXTRACT_ARTIFACTS and has_content):
            step.notes = self.notes.prepare(
                source_of(subject), [note for each in prepared.steps for note in each.notes]
            )
        elif kind is PolicyAction.CHECKPOINT:
            step.checkpoint = self.prepare_checkpoint(subject)

    def _prepare_summary(self, trigger: Trigger, action: ActionConfig, subject: Subject, step: Step) -> None:
        """A closing scope's turns become its summary; anywhere else a summary becomes an artifact."""
        limit = SUMMARY_MAX_TOKENS
        declared = own_relation(self._engine.store.catalog, action)
        if declared is not None:
            text, labels = self._compressor.said(declared, trigger, subject.trajectory, subject.scope)
        elif action.target is PolicyTarget.TURN_BUFFER:
            text = transcript(subject.turns)
            labels = [turn.trust for turn in subject.turns if turn.content]
        else:
            text = "\n\n".join(scope.summary for scope in subject.scopes if scope.summary)
            labels = [scope.trust for scope in subject.scopes if scope.summary]
        if not text.strip():
            return
        summary = self._engine.summarizer.summarize(text, limit)
        if not summary.strip():
            return
        if trigger is Trigger.SCOPE_CLOSE and action.target is PolicyTarget.TURN_BUFFER:
            step.summary = summary
            step.summary_vector = self._embeddings.vector("scope", summary)
            return
        new = artifact_ops.check_artifact(
            self._engine.estimator,
            artifact_type=ArtifactType.INTERMEDIATE_OUTPUT,
            content=summary,
            extraction_method=ExtractionMethod.INFERRED,
            trust=trust_of_all(labels, TrustLabel.WEB),
        )
        step.artifacts = self._with_vectors([new])

    def _prepare_compression(
        self, trigger: Trigger, action: Compression, subject: Subject, prepared: Prepared, step: Step
    ) -> None:
        """Compute the summaries of a retention's groups; the turns of a closing scope are replaced by its summary."""
        assert subject.scope is not None  # a trajectory has a scope from its first moment
        if trigger is Trigger.SCOPE_CLOSE and action.memory.name == PolicyTarget.TURN_BUFFER:
            if prepared.summarized is None and subject.turns:
                self._prepare_summary(trigger, _TURNS, subject, step)
            if prepared.summarized is not None:
                step.groups = [Group(TURN, subject.turns)]
            return
        step.groups = self._compressor.in_range(
            action.memory, trigger, subject.trajectory, subject.scope, subject.turns
        )

    def _extract(self, subject: Subject) -> list[tuple[NewArtifact, Vectors | None]]:
        turns = [ExtractionTurn(turn.turn_number, turn.role, turn.text, turn.name) for turn in subject.turns]
        found = self._engine.summarizer.extract_artifacts(turns)
        new = [
            artifact_ops.check_artifact(
                self._engine.estimator,
                artifact_type=item.artifact_type,
                content=item.content,
                extraction_method=ExtractionMethod.INFERRED,
                confidence=item.confidence,
                source_turn=item.source_turn,
                trust=trust_of_extracted(item, subject.turns, self._engine.summarizer),
            )
            for item in found
            if item.content
        ]
        return self._with_vectors(new)

    def _with_vectors(self, new: Sequence[NewArtifact]) -> list[tuple[NewArtifact, Vectors | None]]:
        texts = [item.content.decode("utf-8", "replace") for item in new]
        return list(zip(new, self._embeddings.vectors("artifact", texts, apart=True), strict=True))

    def prepare_checkpoint(self, subject: Subject) -> tuple[str, bytes]:
        """Return codec and state of a checkpoint of the trajectory as it is now (C-266)."""
        from caliber.pcp.rollback.reach import state_of  # many processes make no checkpoint

        config = self._engine.config
        window = self._assemble(subject.trajectory.trajectory_id, config.pcp.dosage.max_context_tokens)
        compress = config.pcp.recovery_points.compression_enabled
        state = state_of(self._engine, subject.snapshot, subject.trajectory)
        return build_state(state, window, compress)

    # --- applying --------------------------------------------------------------------------------

    def write(self, prepared: Prepared, subject: Subject, work: Callable[[UnitOfWork], T]) -> T:
        """Run work that applies prepared actions; an action that cannot be written is left out, or aborts everything.

        Either way nothing of it stays: the transaction is repeated without it, or not at all.

        Raises: what stopped an action, when ``policy_engine.on_error`` is abort.
        """
        while True:
            try:
                return self._engine.write(work)
            except StepFailed as failed:
                failed.step.error = failed.error
                if self._engine.config.policy_engine.on_error == "abort":
                    self._stop(prepared, failed.step, subject)
                    raise failed.error from None

    def apply(self, uow: UnitOfWork, subject: Subject, prepared: Prepared) -> Applied:
        """Write the prepared actions, one by one, all but the closing scope's summary; return the outcomes.

        Raises: StaleInputs when a note was changed meanwhile, or something was forgotten; StepFailed; Superseded.
        """
        erased = None if prepared.claim is None else prepared.claim.ack(uow)
        check_erasures(uow, subject.erased, erased)
        if any(step.error is None for step in prepared.steps):
            check_turns(uow, subject.turns)
        applied = Applied()
        trajectory_id = subject.trajectory.trajectory_id
        if prepared.trigger is Trigger.TASK_END and self._pending.waiting(trajectory_id):
            drop(uow, trajectory_id)
        for step in prepared.steps:
            begun, counts = time.monotonic(), {}
            if step.error is None:
                try:
                    counts = self.apply_step(uow, subject, prepared, step, applied)
                except (StaleInputs, LockExpired, Unavailable):
                    raise
                except CaliberError as error:
                    if error.retryable:
                        raise
                    raise StepFailed(step, error) from error
            self._record(uow, prepared, step, subject, begun=begun, **counts)
        if prepared.checkpoint is not None:
            applied.checkpoint_id = self.apply_checkpoint(uow, subject, prepared.checkpoint)
        return applied

    def apply_step(
        self, uow: UnitOfWork, subject: Subject, prepared: Prepared, step: Step, applied: Applied
    ) -> dict[str, int]:
        """Write one action; return its outcome in numbers."""
        action = step.declared.action
        if not isinstance(action, Compression):
            return self._apply_action(uow, prepared.trigger, subject, step, action, applied)
        count = 0
        for group in step.groups:
            if group.new is None and prepared.summarized is None:
                continue  # its replacement could not be written
            gone, artifact = self._compressor.apply(uow, group)
            count += gone
            applied.artifacts += [] if artifact is None else [artifact]
        scope_id = None if subject.scope is None else subject.scope.scope_id
        record_taken(
            self._engine, uow, action.memory, count, trajectory_id=subject.trajectory.trajectory_id, scope_id=scope_id
        )
        return {"compressed": count}

    def _apply_action(
        self,
        uow: UnitOfWork,
        trigger: Trigger,
        subject: Subject,
        step: Step,
        action: ActionConfig,
        applied: Applied,
    ) -> dict[str, int]:
        if action.action is PolicyAction.PRUNE:
            scope_id = None if subject.scope is None else subject.scope.scope_id
            catalog = self._engine.store.catalog
            count = prune_in_range(uow, catalog, action, trigger, subject.trajectory.trajectory_id, scope_id)
            applied.pruned += count
            return {"pruned": count}
        if action.action is PolicyAction.NOTIFY:
            payload = {"id": str(subject.trajectory.trajectory_id)}
            self._emit(uow, f"caliber_{action.channel}", subject, None, payload)
            return {}
        if action.action is PolicyAction.INJECT and action.mode is not None:
            origin = f"{step.declared.origin} on {trigger.value}"
            asked = ask_for(uow, subject.trajectory.trajectory_id, str(action.target), action.mode, origin)
            return {"asked": int(asked)}
        if step.checkpoint is not None:
            applied.checkpoint_id = self.apply_checkpoint(uow, subject, step.checkpoint)
            return {}
        if action.action is PolicyAction.CONSOLIDATE_NOTES or step.notes:
            applied.notes += self.apply_notes(uow, subject, step.notes, applied.versions)
            return {"notes": len(step.notes)}
        made = [self._apply_artifact(uow, subject, *item) for item in step.artifacts]
        applied.artifacts += made
        return {"summaries": 1} if step.summary is not None else {"artifacts": len(made)}

    def _apply_artifact(self, uow: UnitOfWork, subject: Subject, new: NewArtifact, vector: Vectors | None) -> Artifact:
        assert subject.scope is not None  # a trajectory has a scope from its first moment
        artifact, created = artifact_ops.create_artifact(
            uow, subject.scope.scope_id, new, unlabelled=self._engine.config.trust.artifacts, closing=True
        )
        if created:
            attach(uow, "artifact", artifact.artifact_id, artifact.text, vector)
            self._emit(uow, EventType.ARTIFACT_CREATE, subject, (EntityType.ARTIFACT, artifact.artifact_id))
        return artifact

    def prepare_notes(self, subject: Subject) -> list[PreparedNote]:
        """Draw notes from a trajectory, outside any transaction."""
        return self.notes.prepare(source_of(subject))

    def apply_notes(
        self, uow: UnitOfWork, subject: Subject, prepared: Sequence[PreparedNote], versions: dict[uuid.UUID, int]
    ) -> list[Note]:
        """Write prepared notes. Raises: StaleInputs."""

        def told(kind: EventType, about: tuple[EntityType, uuid.UUID]) -> None:
            self._emit(uow, kind, subject, about)

        return [self.notes.apply(uow, subject.trajectory, note, versions, told) for note in prepared]

    def apply_checkpoint(
        self, uow: UnitOfWork, subject: Subject, state: tuple[str, bytes], recovered_to: uuid.UUID | None = None
    ) -> uuid.UUID:
        """Store a prepared checkpoint; a recovery names the one that it goes back to."""
        keep = self._engine.config.checkpoint_retention
        scope_id = None if subject.scope is None else subject.scope.scope_id
        checkpoint = insert_checkpoint(uow, subject.trajectory, scope_id, *state, keep=keep, recovered_to=recovered_to)
        self._emit(uow, EventType.CHECKPOINT_CREATE, subject, (EntityType.CHECKPOINT, checkpoint.checkpoint_id))
        return checkpoint.checkpoint_id

    # --- telling ---------------------------------------------------------------------------------

    def _record(
        self,
        uow: UnitOfWork,
        prepared: Prepared,
        step: Step,
        subject: Subject,
        *,
        begun: float | None = None,
        **counts: int,
    ) -> None:
        """Write the event of an action in this very transaction, so that a logged action was done."""
        declared = step.declared
        payload: dict[str, Any] = {
            "trigger": prepared.trigger.value,
            "policy": declared.policy,
            "rule": declared.rule,
            "step": declared.step,
            "action": declared.action.shown,
            "outcome": "done" if step.error is None else "failed",
            **counts,
        }
        if prepared.claim is not None and prepared.claim.job.attempts:
            payload["attempt"] = prepared.claim.job.attempts + 1
        if step.error is not None:
            payload |= error_fields(step.error)
            failed = {name: payload[name] for name in ("trigger", "error", "message")}
            self._emit(uow, EventType.ERROR, subject, None, {**failed, "action": declared.kind})
        took_s = step.took_s + (0 if begun is None else time.monotonic() - begun)
        of, took_ms = self._of(subject), int(took_s * 1_000)
        self._engine.trace(uow, EventType.POLICY_EXECUTE, **of, payload=payload, duration_ms=took_ms)

    def _emit(
        self,
        uow: UnitOfWork,
        kind: EventType | str,
        subject: Subject,
        about: tuple[EntityType, uuid.UUID] | None,
        payload: dict[str, Any] | None = None,
    ) -> None:
        self._engine.emit(uow, kind, **self._of(subject), subject=about, payload=payload)

    def _of(self, subject: Subject) -> dict[str, Any]:
        """Return the principal, task and scope of an event, as its fields."""
        scope_id = None if subject.scope is None else subject.scope.scope_id
        task = subject.trajectory.trajectory_id
        return {"principal": self._principal.label, "trajectory_id": task, "scope_id": scope_id}


_TURNS = ActionConfig(action=PolicyAction.SUMMARIZE, target=PolicyTarget.TURN_BUFFER)


def tasks_of(engine: Engine, principal: Principal, assemble: Callable[[uuid.UUID, int], ContextWindow]) -> Tasks:
    """Return the lifecycle of tasks for a principal, with the policies and the retention of the configuration."""
    return Tasks(engine, principal, PolicyEngine(engine, principal, assemble), Retaining(engine))
