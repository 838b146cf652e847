"""Note maker: derives notes from a task and merges them with existing ones, then writes them in a transaction.

Source: C-232, C-233, K-067, K-111.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

import numpy as np

from caliber.access.identities import identities_of
from caliber.access.owners import TaskOwners, author_of, default_readers, may_change, people_in, private_to, user_of
from caliber.access.visibility import Readers
from caliber.embedding.embedding_target import Vectors, attach, embedded_text
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.engine.stale_inputs import StaleInputs
from caliber.knowledge import inheriting
from caliber.knowledge import notes as note_ops
from caliber.knowledge.notes import NewNote
from caliber.model.access import Principal
from caliber.model.events import CorrectionAction, EventType
from caliber.model.knowledge import Note
from caliber.model.lazy_dataclass import dataclass
from caliber.model.providers import ExtractedArtifact, GeneratedNote, TrajectoryDigest
from caliber.model.references import EntityType
from caliber.model.time import from_us
from caliber.model.trajectory import Artifact, ArtifactType, Scope, Trajectory, Turn, TurnRole
from caliber.model.trust import TrustLabel
from caliber.resident.predicates import mask
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.predicate import All, Comparison, Operator
from caliber.schema.relations import ARTIFACT, NOTE
from caliber.schema.validity import is_active, is_valid
from caliber.search.opening import SearchEngine
from caliber.storage.compile.derived import derived_value
from caliber.storage.write.ending import log_change
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.text.statements import find_statements


@dataclass(slots=True)
class PreparedNote:
    """A note to add, or a note of version ``version`` to change."""

    new: NewNote | None
    note_id: uuid.UUID | None
    version: int
    content: str
    confidence: float
    vector: Vectors | None


@dataclass(frozen=True, slots=True)
class Source:
    """The sources of notes."""

    trajectory: Trajectory
    scopes: list[Scope]
    turns: list[Turn]
    outcome_summary: str | None


class NoteMaker:
    """Makes notes for one principal."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal
        self._readers = Readers(engine.part(TaskOwners), principal)
        self._search = engine.part(SearchEngine)
        self._embeddings = engine.part(Embeddings)

    def prepare(self, source: Source, earlier: Iterable[PreparedNote] = ()) -> list[PreparedNote]:
        """Generate notes and merge each into an existing note about the same thing (C-233, K-111).

        ``earlier`` are notes prepared for the same transaction: a note that one of them changes is changed further.
        """
        engine, trajectory = self._engine, source.trajectory
        snapshot = self._search.around(engine.memory.snapshot, trajectory.trajectory_id, ())
        digest = TrajectoryDigest(trajectory.goal, source.outcome_summary)
        speakers = {turn.name for turn in source.turns if turn.name} | {role.value for role in TurnRole}
        own = self._own_turns(source)
        said = [" ".join(turn.text.split()) for turn in own]
        summaries = [
            inheriting.Source(without_others_tastes(without_speakers(scope.summary, speakers), said), scope.trust)
            for scope in source.scopes
            if scope.summary
        ]
        others = {turn.turn_number for turn in source.turns} - {turn.turn_number for turn in own}
        artifacts = [
            each
            for each in self._artifacts_of(snapshot, trajectory)
            if each.artifact_type is not ArtifactType.USER_PREFERENCE or each.source_turn not in others
        ]
        generated = engine.summarizer.generate_notes(
            digest, [summary.text for summary in summaries], [_extracted(item) for item in artifacts]
        )
        made_of = inheriting.NoteSources(digest, summaries, artifacts, engine.config.trust.notes)
        things = [(note.entity, note.entity_type) for note in generated]
        snapshot = self._search.around(engine.memory.snapshot, trajectory.trajectory_id, (), things)
        changed = {note.note_id: note for note in earlier if note.note_id is not None}
        out = []
        for made in generated:
            trust = made_of.trust_of(made, engine.summarizer)
            note = self._prepare_note(snapshot, trajectory, made, trust, changed)
            if note.note_id is not None:
                changed[note.note_id] = note
            out.append(note)
        texts = [
            embedded_text(made.entity if note.new is None else note.new.entity, note.content)
            for note, made in zip(out, generated, strict=True)
        ]
        for note, vector in zip(out, self._embeddings.vectors("note", texts, apart=True), strict=True):
            note.vector = vector
        return out

    def _own_turns(self, source: Source) -> list[Turn]:
        """Return the turns in which the user of a task speaks: others talk too, under their names."""
        turns = [turn for turn in source.turns if turn.role is TurnRole.USER]
        user = user_of(source.trajectory)
        if user is None or not any(turn.name for turn in turns):
            return turns
        names = {each.name.casefold() for each in identities_of(self._engine, user)}
        return [turn for turn in turns if turn.name is None or turn.name.casefold() in names]

    def _artifacts_of(self, snapshot: ResidentSnapshot, trajectory: Trajectory) -> list[Artifact]:
        artifacts = snapshot[ARTIFACT.name]
        out = []
        for row in artifacts.group("trajectory_id", trajectory.trajectory_id.bytes).tolist():
            artifact: Artifact = self._engine.memory.entity(artifacts, row)
            if is_active(ARTIFACT, artifact):
                out.append(artifact)
        return out

    def _prepare_note(
        self,
        snapshot: ResidentSnapshot,
        trajectory: Trajectory,
        made: GeneratedNote,
        trust: TrustLabel,
        changed: dict[uuid.UUID, PreparedNote],
    ) -> PreparedNote:
        readers = self._readers_of(trajectory)
        known = self._mergeable(snapshot, made, trust, readers)
        if known is not None:
            content, confidence = known.content, known.confidence
            if known.note_id in changed:
                content, confidence = changed[known.note_id].content, changed[known.note_id].confidence
            old = GeneratedNote(known.entity, known.entity_type, known.note_type, content, confidence)
            merged = self._engine.summarizer.merge_notes(old, made)
            return PreparedNote(None, known.note_id, known.version, merged.content, merged.confidence, None)
        new = NewNote(
            entity=made.entity,
            entity_type=made.entity_type,
            note_type=made.note_type,
            content=made.content,
            confidence=made.confidence,
            token_count=derived_value(NOTE, "token_count", self._engine.estimator, content=made.content),
            visible_to=readers,
            created_by=author_of(self._principal),
            source_trajectory_ids=(trajectory.trajectory_id,),
            trust=trust,
        )
        return PreparedNote(new, None, 0, made.content, new.confidence, None)

    def _readers_of(self, trajectory: Trajectory) -> tuple[str, ...] | None:
        """Return the readers of a note about a task: one of a user's task is that user's, and its own agent's.

        A principal that was granted the task reads no note of its user, nor corrects it once the grant has ended.
        """
        user = user_of(trajectory)
        if user is not None and not self._principal.serves:
            ids = self._readers.visibility().ids
            if ids.isdisjoint(key.bytes for key in (user.id, trajectory.agent_id) if key is not None):
                return (private_to(user),)
        return default_readers(self._principal, self._engine.config.access, user)

    def _mergeable(
        self, snapshot: ResidentSnapshot, made: GeneratedNote, trust: TrustLabel, readers: tuple[str, ...] | None
    ) -> Note | None:
        """Return the oldest note of a label about the same thing that holds, for the same persons, and that this
        principal may change.

        What is decided again after it ended is another note. A less trusted note must neither change a more trusted
        one, nor lower its label.
        """
        notes = snapshot[NOTE.name]
        same = {"entity": made.entity, "entity_type": made.entity_type, "note_type": made.note_type, "trust": trust}
        wanted = [Comparison(name, Operator.EQUAL, value) for name, value in same.items()]
        wanted += [Comparison(name, Operator.EQUAL, None) for name in (*NOTE.active, "namespace")]
        found = mask(All(tuple(wanted)), notes, {}, self._engine.memory.texts)
        now = from_us(self._engine.clock.now_us())
        ownership = self._engine.config.access.ownership
        for row in np.flatnonzero(found).tolist():
            note: Note = self._engine.memory.entity(notes, row)
            if (
                is_valid(NOTE, note, now)
                and people_in(note.visible_to) == people_in(readers)
                and may_change(note.created_by, self._principal, self._engine.memory, ownership=ownership)
                and self._readers.allows(notes, row)
            ):
                return note
        return None

    def apply(
        self,
        uow: UnitOfWork,
        trajectory: Trajectory,
        prepared: PreparedNote,
        versions: dict[uuid.UUID, int],
        told: Callable[[EventType, tuple[EntityType, uuid.UUID]], None],
    ) -> Note:
        """Write one prepared note; ``versions`` are those of notes that this transaction has changed already.

        Raises: StaleInputs when another process changed the note meanwhile.
        """
        engine = self._engine
        if prepared.new is not None:
            note, created = note_ops.add_note(uow, prepared.new)
            kind = EventType.NOTE_CREATE if created else EventType.NOTE_UPDATE
        else:
            assert prepared.note_id is not None
            known: Note = uow.get(NOTE, prepared.note_id.bytes)
            if known.version != versions.get(prepared.note_id, prepared.version):
                raise StaleInputs(
                    entity_type="note", id=known.note_id, reason="it was changed while notes were prepared"
                )
            source, sources = trajectory.trajectory_id, known.source_trajectory_ids
            note = note_ops.change_note(
                uow,
                known,
                engine.estimator,
                content=prepared.content,
                confidence=prepared.confidence,
                source_trajectory_ids=sources if source in sources else (*sources, source),
            )
            if note is not known:
                log_change(uow, NOTE, known, note, CorrectionAction.MERGE, self._principal)
            versions[prepared.note_id] = note.version
            kind = EventType.NOTE_UPDATE
        attach(uow, "note", note.note_id, embedded_text(note.entity, note.content), prepared.vector)
        told(kind, (EntityType.NOTE, note.note_id))
        return note


def _extracted(artifact: Artifact) -> ExtractedArtifact:
    confidence = 1.0 if artifact.confidence is None else artifact.confidence
    return ExtractedArtifact(artifact.artifact_type, artifact.text, confidence, artifact.source_turn)


def without_speakers(summary: str, speakers: Iterable[str]) -> str:
    """Return a summary without the names that ``transcript`` put before each paragraph: they are no knowledge."""
    prefixes = tuple(f"{speaker}: " for speaker in speakers)
    lines = []
    for line in summary.split("\n"):
        prefix = next((item for item in prefixes if line.startswith(item)), "")
        lines.append(line[len(prefix) :])
    return "\n".join(lines)


def without_others_tastes(summary: str, said: Iterable[str]) -> str:
    """Return a summary without sentences that state a preference in other words than the user's.

    ``said`` are the turns of the user, each with single blanks.
    """
    own = list(said)
    kept, place = "", 0
    for each in find_statements(summary, frozenset({TurnRole.USER})):
        if each.artifact_type is ArtifactType.USER_PREFERENCE and not any(each.content in turn for turn in own):
            kept += summary[place : each.start]
            place = each.end
    return kept + summary[place:]
