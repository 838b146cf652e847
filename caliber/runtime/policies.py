"""The policy engine: what happens by itself at a trigger, prepared outside the transaction, applied inside it.

Providers are called in ``prepare``; ``apply`` only writes. Each declared action runs exactly once a trigger.
Source: C-213, C-226 to C-229, K-066, K-067, K-099.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np

from caliber.access.visibility import author_of, default_visible_to, may_change
from caliber.config.policies import ActionConfig, PolicyAction, PolicyTarget
from caliber.knowledge import notes as note_ops
from caliber.knowledge.notes import NewNote
from caliber.llm.protocols import ExtractedArtifact, ExtractionTurn, GeneratedNote, TrajectoryDigest
from caliber.model.access import Principal
from caliber.model.entities import Artifact, Event, Note, Scope, Trajectory, Turn
from caliber.model.enums import (
    ArtifactType,
    EntityType,
    EventType,
    ExtractionMethod,
    OutcomeStatus,
    Trigger,
    TurnRole,
)
from caliber.model.errors import CaliberError, Conflict
from caliber.model.time import from_us
from caliber.model.windows import ContextWindow
from caliber.pcp.checkpoints import build_state, insert_checkpoint
from caliber.resident.memory import ResidentSnapshot
from caliber.runtime.embedder import Vectors
from caliber.runtime.engine import Engine
from caliber.runtime.space_provider import embedded_text
from caliber.schema.relations import ARTIFACT, NOTE, SCOPE, TURN
from caliber.storage.unit_of_work import UnitOfWork
from caliber.trajectory import artifacts as artifact_ops
from caliber.trajectory import lifecycle
from caliber.trajectory.artifacts import NewArtifact


class Changed(Conflict):
    """What was prepared no longer fits what is stored; prepare again."""


@dataclass(slots=True)
class PreparedNote:
    """A note to add, or a note of version ``version`` to change."""

    new: NewNote | None
    note_id: uuid.UUID | None
    version: int
    content: str
    confidence: float
    vector: Vectors | None


@dataclass(slots=True)
class Prepared:
    """What the actions of one trigger came to, before anything is written."""

    summary: str | None = None
    summary_vector: Vectors | None = None
    artifacts: list[tuple[NewArtifact, Vectors | None]] = field(default_factory=list)
    notes: list[PreparedNote] = field(default_factory=list)
    checkpoint: tuple[str, bytes] | None = None
    prunes: list[ActionConfig] = field(default_factory=list)
    channels: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a trigger is about: a trajectory, and the scope that is closing or the last one."""

    trajectory: Trajectory
    scopes: list[Scope]
    scope: Scope | None
    turns: list[Turn]
    outcome: OutcomeStatus | None = None
    outcome_summary: str | None = None


class PolicyEngine:
    """Runs the configuration's policies for one principal."""

    def __init__(
        self, engine: Engine, principal: Principal, assemble: Callable[[uuid.UUID, int], ContextWindow]
    ) -> None:
        self._engine = engine
        self._principal = principal
        self._assemble = assemble
        self._actions: dict[Trigger, list[ActionConfig]] = {trigger: [] for trigger in Trigger}
        for policy in engine.config.policies:
            for rule in policy.rules:
                self._actions[rule.on].extend(rule.actions)

    def actions(self, trigger: Trigger) -> list[ActionConfig]:
        """Return the actions of a trigger in the order they were declared."""
        return self._actions[trigger]

    # --- preparing -------------------------------------------------------------------------------

    def prepare(self, trigger: Trigger, subject: Subject, actions: Sequence[ActionConfig] | None = None) -> Prepared:
        """Do all that needs a provider; nothing is written.

        Raises: what a provider raised, when ``policy_engine.on_error`` is abort; at closing a scope, when
            ``close.on_llm_failure`` is fail.
        """
        prepared = Prepared()
        for action in self.actions(trigger) if actions is None else actions:
            try:
                self._prepare_action(trigger, action, subject, prepared)
            except CaliberError as error:
                if self._must_stop(trigger, action):
                    raise
                prepared.events.append(self._error_event(trigger, action, subject, error))
        return prepared

    def _must_stop(self, trigger: Trigger, action: ActionConfig) -> bool:
        config = self._engine.config
        if trigger is Trigger.SCOPE_CLOSE and action.action is PolicyAction.SUMMARIZE:
            return config.close.on_llm_failure == "fail"
        return config.policy_engine.on_error == "abort"

    def _error_event(self, trigger: Trigger, action: ActionConfig, subject: Subject, error: CaliberError) -> Event:
        return self._engine.event(
            EventType.ERROR,
            principal=self._principal.label,
            trajectory_id=subject.trajectory.trajectory_id,
            scope_id=None if subject.scope is None else subject.scope.scope_id,
            payload={
                "trigger": trigger.value,
                "action": action.action.value,
                "error": error.kind,
                "message": str(error)[:500],
            },
        )

    def _prepare_action(self, trigger: Trigger, action: ActionConfig, subject: Subject, prepared: Prepared) -> None:
        kind = action.action
        if kind is PolicyAction.SUMMARIZE:
            self._prepare_summary(trigger, action, subject, prepared)
        elif kind is PolicyAction.CONSOLIDATE_NOTES or (
            kind is PolicyAction.EXTRACT_ARTIFACTS and action.target is PolicyTarget.TRAJECTORY
        ):
            prepared.notes += self.prepare_notes(subject)
        elif kind is PolicyAction.EXTRACT_ARTIFACTS:
            prepared.artifacts += self._extract(subject)
        elif kind is PolicyAction.CHECKPOINT:
            prepared.checkpoint = self.prepare_checkpoint(subject)
        elif kind is PolicyAction.PRUNE:
            prepared.prunes.append(action)
        else:
            assert action.channel is not None  # the configuration requires it of notify
            prepared.channels.append(action.channel)

    def _prepare_summary(self, trigger: Trigger, action: ActionConfig, subject: Subject, prepared: Prepared) -> None:
        """A closing scope's turns become its summary; anywhere else a summary becomes an artifact."""
        limit = self._engine.config.close.summary_max_tokens
        if action.target is PolicyTarget.TURN_BUFFER:
            text = transcript(subject.turns)
        else:
            text = "\n\n".join(scope.summary for scope in subject.scopes if scope.summary)
        if not text.strip():
            return
        summary = self._engine.summarizer.summarize(text, limit)
        if not summary.strip():
            return
        if trigger is Trigger.SCOPE_CLOSE and action.target is PolicyTarget.TURN_BUFFER:
            prepared.summary = summary
            embedder = self._engine.embedder
            vectors = None if embedder is None else embedder.prepare("scope", [summary])
            prepared.summary_vector = None if vectors is None else vectors[0]
            return
        new = artifact_ops.check_artifact(
            self._engine.count_bytes,
            artifact_type=ArtifactType.INTERMEDIATE_OUTPUT,
            content=summary,
            extraction_method=ExtractionMethod.INFERRED,
        )
        prepared.artifacts += self._with_vectors([new])

    def _extract(self, subject: Subject) -> list[tuple[NewArtifact, Vectors | None]]:
        turns = [ExtractionTurn(turn.turn_number, turn.role, turn.text, turn.name) for turn in subject.turns]
        found = self._engine.summarizer.extract_artifacts(turns)
        new = [
            artifact_ops.check_artifact(
                self._engine.count_bytes,
                artifact_type=item.artifact_type,
                content=item.content,
                extraction_method=ExtractionMethod.INFERRED,
                confidence=item.confidence,
                source_turn=item.source_turn,
            )
            for item in found
            if item.content
        ]
        return self._with_vectors(new)

    def _with_vectors(self, new: Sequence[NewArtifact]) -> list[tuple[NewArtifact, Vectors | None]]:
        embedder = self._engine.embedder
        texts = [item.content.decode("utf-8", "replace") for item in new]
        vectors = None if embedder is None else embedder.prepare_each("artifact", texts)
        return [(item, None if vectors is None else vectors[at]) for at, item in enumerate(new)]

    def prepare_checkpoint(self, subject: Subject) -> tuple[str, bytes]:
        """Return codec and state of a checkpoint of the trajectory as it is now (C-266)."""
        config = self._engine.config
        window = self._assemble(subject.trajectory.trajectory_id, config.pcp.dosage.max_context_tokens)
        compress = config.pcp.recovery_points.compression_enabled
        return build_state(subject.trajectory, subject.scopes, window, compress=compress)

    # --- notes -----------------------------------------------------------------------------------

    def prepare_notes(self, subject: Subject) -> list[PreparedNote]:
        """Generate notes and merge each into what is known about the same thing (C-233, K-111)."""
        engine, trajectory_id = self._engine, subject.trajectory.trajectory_id
        snapshot = engine.around(engine.memory.snapshot, trajectory_id, ())
        provider = engine.summarizer
        digest = TrajectoryDigest(subject.trajectory.goal, subject.outcome_summary)
        speakers = {turn.name for turn in subject.turns if turn.name} | {role.value for role in TurnRole}
        summaries = [without_speakers(scope.summary, speakers) for scope in subject.scopes if scope.summary]
        generated = provider.generate_notes(digest, summaries, self._artifacts_of(snapshot, subject.trajectory))
        things = [(note.entity, note.entity_type) for note in generated]
        snapshot = engine.around(engine.memory.snapshot, trajectory_id, (), things)
        out = [self._prepare_note(snapshot, subject.trajectory, note) for note in generated]
        embedder = self._engine.embedder
        texts = [
            embedded_text(self._entity_of(note, made), note.content) for note, made in zip(out, generated, strict=True)
        ]
        vectors = None if embedder is None else embedder.prepare_each("note", texts)
        if vectors is not None:
            for note, vector in zip(out, vectors, strict=True):
                note.vector = vector
        return out

    def _entity_of(self, note: PreparedNote, made: GeneratedNote) -> str:
        return made.entity if note.new is None else note.new.entity

    def _artifacts_of(self, snapshot: ResidentSnapshot, trajectory: Trajectory) -> list[ExtractedArtifact]:
        artifacts = snapshot[ARTIFACT.name]
        out = []
        for row in artifacts.group("trajectory_id", trajectory.trajectory_id.bytes).tolist():
            artifact: Artifact = self._engine.memory.entity(artifacts, row)
            if artifact.superseded_by is None and artifact.rolled_back_at is None and artifact.retired_at is None:
                confidence = 1.0 if artifact.confidence is None else artifact.confidence
                out.append(ExtractedArtifact(artifact.artifact_type, artifact.text, confidence, artifact.source_turn))
        return out

    def _prepare_note(self, snapshot: ResidentSnapshot, trajectory: Trajectory, made: GeneratedNote) -> PreparedNote:
        known = self._mergeable(snapshot, made)
        config = self._engine.config
        if known is not None:
            old = GeneratedNote(known.entity, known.entity_type, known.note_type, known.content, known.confidence)
            merged = self._engine.summarizer.merge_notes(old, made)
            return PreparedNote(None, known.note_id, known.version, merged.content, merged.confidence, None)
        visibility = config.access.default_visibility
        roles = None if self._principal.role is None else visibility.for_role(self._principal.role)
        new = NewNote(
            entity=made.entity,
            entity_type=made.entity_type,
            note_type=made.note_type,
            content=made.content,
            confidence=min(made.confidence, config.notes.initial_confidence),
            token_count=self._engine.count_text(made.content),
            visible_to=default_visible_to(self._principal, roles),
            created_by=author_of(self._principal),
            source_trajectory_ids=(trajectory.trajectory_id,),
        )
        return PreparedNote(new, None, 0, made.content, new.confidence, None)

    def _mergeable(self, snapshot: ResidentSnapshot, made: GeneratedNote) -> Note | None:
        """Return the oldest active note about the same thing that this principal may change."""
        notes = snapshot[NOTE.name]
        wanted = {"entity": made.entity, "entity_type": made.entity_type}
        mask = notes.live_mask & (notes.column("superseded_by") == 0)
        for column, value in wanted.items():
            values = notes.interned(column)
            if value not in values:
                return None
            mask = mask & (notes.column(column) == values.index(value))
        mask = mask & (notes.column("note_type") == notes.enum_code("note_type", made.note_type.value))
        ownership = self._engine.config.access.ownership
        for row in np.flatnonzero(mask).tolist():
            note: Note = self._engine.memory.entity(notes, row)
            if note.active and may_change(note, self._principal, ownership=ownership):
                return note
        return None

    # --- applying --------------------------------------------------------------------------------

    def apply(
        self, uow: UnitOfWork, subject: Subject, prepared: Prepared
    ) -> tuple[list[Artifact], list[Note], uuid.UUID | None]:
        """Write what was prepared, all but the summary and the prunes; return what came of it.

        Raises: Changed when a note was changed meanwhile.
        """
        engine = self._engine
        artifacts = []
        scope = subject.scope
        for new, vector in prepared.artifacts:
            if scope is None:
                break
            artifact, created = artifact_ops.create_artifact(uow, scope.scope_id, new, closing=True)
            artifacts.append(artifact)
            if created:
                if vector is not None and engine.embedder is not None:
                    engine.embedder.attach(uow, "artifact", artifact.artifact_id, artifact.text, vector)
                uow.emit(self._event(EventType.ARTIFACT_CREATE, subject, (EntityType.ARTIFACT, artifact.artifact_id)))
        written = [self._apply_note(uow, subject, note) for note in prepared.notes]
        checkpoint_id = None
        if prepared.checkpoint is not None:
            checkpoint_id = self.apply_checkpoint(uow, subject, prepared.checkpoint)
        for channel in prepared.channels:
            uow.emit(
                engine.event(
                    f"caliber_{channel}",
                    principal=self._principal.label,
                    trajectory_id=subject.trajectory.trajectory_id,
                    scope_id=None if scope is None else scope.scope_id,
                    payload={"id": str(subject.trajectory.trajectory_id)},
                )
            )
        for event in prepared.events:
            uow.emit(event)
        return artifacts, written, checkpoint_id

    def apply_checkpoint(self, uow: UnitOfWork, subject: Subject, state: tuple[str, bytes]) -> uuid.UUID:
        """Store a prepared checkpoint."""
        keep = self._engine.config.checkpoint_retention
        scope_id = None if subject.scope is None else subject.scope.scope_id
        checkpoint = insert_checkpoint(uow, subject.trajectory, scope_id, *state, keep=keep)
        uow.emit(self._event(EventType.CHECKPOINT_CREATE, subject, (EntityType.CHECKPOINT, checkpoint.checkpoint_id)))
        return checkpoint.checkpoint_id

    def _apply_note(self, uow: UnitOfWork, subject: Subject, prepared: PreparedNote) -> Note:
        engine = self._engine
        if prepared.new is not None:
            note, created = note_ops.add_note(uow, prepared.new)
            kind = EventType.NOTE_CREATE if created else EventType.NOTE_UPDATE
        else:
            assert prepared.note_id is not None
            known: Note = uow.get(NOTE, prepared.note_id.bytes)
            if known.version != prepared.version:
                raise Changed(entity_type="note", id=known.note_id, reason="it was changed while notes were prepared")
            source = subject.trajectory.trajectory_id
            sources = known.source_trajectory_ids
            note = note_ops.change_note(
                uow,
                known,
                engine.count_bytes,
                content=prepared.content,
                confidence=prepared.confidence,
                source_trajectory_ids=sources if source in sources else (*sources, source),
            )
            created = False
            kind = EventType.NOTE_UPDATE
        if engine.embedder is not None and prepared.vector is not None:
            engine.embedder.attach(uow, "note", note.note_id, embedded_text(note.entity, note.content), prepared.vector)
        uow.emit(self._event(kind, subject, (EntityType.NOTE, note.note_id)))
        return note

    def _event(self, kind: EventType, subject: Subject, about: tuple[EntityType, uuid.UUID]) -> Event:
        return self._engine.event(
            kind,
            principal=self._principal.label,
            trajectory_id=subject.trajectory.trajectory_id,
            scope_id=None if subject.scope is None else subject.scope.scope_id,
            subject=about,
        )

    def prune(self, uow: UnitOfWork, trigger: Trigger, subject: Subject, actions: Sequence[ActionConfig]) -> int:
        """Take out of use what the prune actions name, in the range of the trigger (C-228); return how many records.

        Turns are deleted, their content kept for replay; artifacts are retired; notes are archived.
        """
        count = 0
        for action in actions:
            before = None
            if action.older_than_ms is not None:
                before = from_us(uow.now_us) - timedelta(milliseconds=action.older_than_ms)

            def old(created: datetime, before: datetime | None = before) -> bool:
                return before is None or created <= before

            def doubtful(confidence: float | None, least: float | None = action.below_confidence) -> bool:
                return least is None or (confidence is not None and confidence < least)

            if action.target in (PolicyTarget.TURN_BUFFER, PolicyTarget.SCOPE):
                for turn in self._turns_in_range(uow, trigger, subject, action.target):
                    if old(turn.created_at):
                        uow.delete(TURN, turn)
                        count += 1
            elif action.target is PolicyTarget.ARTIFACT:
                for artifact in uow.select_path(ARTIFACT, "list_by_trajectory", subject.trajectory.trajectory_id.bytes):
                    if artifact.retired_at is None and old(artifact.created_at) and doubtful(artifact.confidence):
                        lifecycle.retire_artifact(uow, artifact)
                        count += 1
            elif action.target is PolicyTarget.NOTE:
                for note in uow.select_entities(NOTE, "note.of_trajectory", subject.trajectory.trajectory_id.bytes):
                    if note.active and old(note.created_at) and doubtful(note.confidence):
                        note_ops.archive_note(uow, note)
                        count += 1
        return count

    def _turns_in_range(self, uow: UnitOfWork, trigger: Trigger, subject: Subject, target: PolicyTarget) -> list[Turn]:
        if (
            trigger in (Trigger.SCOPE_CLOSE, Trigger.TURN)
            and target is PolicyTarget.TURN_BUFFER
            and subject.scope is not None
        ):
            scopes = [subject.scope.scope_id]
        else:
            all_scopes = uow.select_path(SCOPE, "list_by_trajectory", subject.trajectory.trajectory_id.bytes)
            closed_only = target is PolicyTarget.SCOPE
            scopes = [scope.scope_id for scope in all_scopes if not (closed_only and scope.is_open)]
        return [turn for scope_id in scopes for turn in uow.select_path(TURN, "list_by_scope", scope_id.bytes)]


def without_speakers(summary: str, speakers: Iterable[str]) -> str:
    """Return a summary without the names that ``transcript`` put before each paragraph: they are no knowledge."""
    prefixes = tuple(f"{speaker}: " for speaker in speakers)
    lines = []
    for line in summary.split("\n"):
        prefix = next((item for item in prefixes if line.startswith(item)), "")
        lines.append(line[len(prefix) :])
    return "\n".join(lines)


def transcript(turns: Sequence[Turn]) -> str:
    """Return turns as one text, one paragraph each, with who said it."""
    return "\n\n".join(f"{turn.name or turn.role.value}: {turn.text}" for turn in turns if turn.content)
