"""The walk over every relation, in one transaction: what is the subject's own goes, what names it is redacted.

Own are: the record or records under the subject's id; trajectories and sessions it began; notes about it and turns it
said; what was made of those alone (summaries, extracted artifacts, notes of an erased trajectory); and everything that
hangs on what goes: versions kept for replay, vectors, links, counters, events.
"""

from __future__ import annotations

import dataclasses
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from caliber.context import erasing as windows
from caliber.erasure.digests import digests_of, digests_of_body
from caliber.erasure.redaction import Redactor
from caliber.erasure.subject import MARK, Subject
from caliber.model.errors import AmbiguousSubject
from caliber.model.events import EventFamily
from caliber.model.knowledge import Note
from caliber.model.pcp import Checkpoint
from caliber.model.trajectory import Artifact, Scope, Trajectory, Turn
from caliber.pcp.checkpoints import CODEC_ZLIB, read_state
from caliber.schema.in_force import is_active
from caliber.schema.relation import ColumnType, Relation, Residence
from caliber.schema.relations import (
    ARTIFACT,
    CHANGE,
    CHECKPOINT,
    CONFIG_DOCUMENT,
    CONTENT_VERSION,
    CONTEXT_WINDOW,
    EDGE,
    EMBEDDING,
    EMBEDDING_CACHE,
    EMBEDDING_SPACE,
    ERASURE,
    EVENT,
    LOCK,
    MEMORY_TYPE,
    NOTE,
    PENDING_INJECTION,
    POLICY_RUN,
    RELATIONS,
    SCHEMA_MIGRATION,
    SCOPE,
    SESSION,
    TRAJECTORY,
    TURN,
    TURN_SUMMARY,
    USAGE,
)
from caliber.storage.compile.codec import codec_of, dump_json
from caliber.storage.write.changes import DELETE
from caliber.storage.write.unit_of_work import UnitOfWork, unpack_content

_WALKED: Final = (SESSION, TRAJECTORY, TURN, TURN_SUMMARY, SCOPE, ARTIFACT, NOTE, USAGE, EDGE, EMBEDDING,
                  CONTENT_VERSION, CONTEXT_WINDOW, CHECKPOINT, EVENT, LOCK, CONFIG_DOCUMENT,
                  EMBEDDING_CACHE)  # fmt: skip
_NUMBERS_ONLY: Final = (CHANGE, SCHEMA_MIGRATION, ERASURE, POLICY_RUN, EMBEDDING_SPACE, PENDING_INJECTION, MEMORY_TYPE)
"""Relations without words of a subject or ids of its records; they are read afterwards like everything else."""
_SHARED_FROM: Final = 20
_SHARED_PART: Final = 0.5
_ALL_TIME_US: Final = 3_650 * 86_400_000_000


@dataclass
class Outcome:
    """The outcome of a walk. ``hashes`` are digests of contents that went, for a later search for them."""

    erased: Counter[str] = field(default_factory=Counter)
    redacted: Counter[str] = field(default_factory=Counter)
    windows_closed: int = 0
    hashes: set[bytes] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        """True when there was nothing to do."""
        return not self.erased and not self.redacted

    def add(self, other: Outcome) -> None:
        """Count what a later walk did besides."""
        self.erased += other.erased
        self.redacted += other.redacted
        self.windows_closed += other.windows_closed
        self.hashes |= other.hashes

    @property
    def counts(self) -> dict[str, int]:
        """Everything that was counted, by what it is."""
        out = {f"erased {name}": count for name, count in sorted(self.erased.items())}
        out |= {f"redacted {name}": count for name, count in sorted(self.redacted.items())}
        return out | {"windows closed": self.windows_closed}


@dataclass(frozen=True)
class Wanted:
    """The target of a walk: a subject and, when a task is purged, its trajectories."""

    subject: Subject
    trajectories: frozenset[bytes] = frozenset()
    even_if_shared: bool = False


class Walk:
    """One walk over a store, inside one write transaction."""

    def __init__(
        self,
        uow: UnitOfWork,
        wanted: Wanted,
        count_text: Callable[[str], int],
        count_bytes: Callable[[bytes], int],
    ) -> None:
        self._uow = uow
        self._row: tuple[Any, ...] = ()
        self._wanted = wanted
        self._subject = wanted.subject
        self._redactor = Redactor(wanted.subject, count_text, count_bytes)
        self.outcome = Outcome()
        self._seen_changes = 0
        self._deleted: set[tuple[str, int]] = set()
        self._touched: set[tuple[str, int]] = set()
        """Relation and ordinal of each record whose content went or changed."""
        self._gone: set[bytes] = self._redactor.gone
        self._said_by: set[tuple[bytes, int]] = set()
        """Trajectory and number of each turn that went."""
        self._emptied: set[bytes] = set()
        """Scopes that lost a turn."""

    def run(self) -> Outcome:
        """Erase and redact everything that is wanted.

        Raises: AmbiguousSubject when what names the subject names others too.
        """
        self._uow.keep_nothing()
        if not self._wanted.even_if_shared:
            self._refuse_shared()
        steps: dict[str, Callable[[], None]] = {
            TURN.name: self._turns,
            SCOPE.name: self._scopes,
            ARTIFACT.name: self._artifacts,
            NOTE.name: self._notes,
            USAGE.name: self._usage,
            EDGE.name: self._edges,
            EMBEDDING.name: self._embeddings,
            CONTENT_VERSION.name: self._contents,
            CONTEXT_WINDOW.name: self._windows,
            CHECKPOINT.name: self._checkpoints,
            EVENT.name: self._events,
            LOCK.name: self._locks,
            CONFIG_DOCUMENT.name: self._configurations,
            EMBEDDING_CACHE.name: self._cache,
            TRAJECTORY.name: self._trajectories,
        }
        self._refuse_declared()
        own = self._uow.catalog.own
        others = tuple(item for item in RELATIONS if item not in _WALKED and item not in _NUMBERS_ONLY)
        at = _WALKED.index(USAGE)  # what hangs on records comes after them
        for relation in (*_WALKED[:at], *own, *_WALKED[at:], *others):
            if relation in own:
                self._memory(relation)
            else:
                steps.get(relation.name, lambda relation=relation: self._plain(relation))()
        return self.outcome

    def _refuse_declared(self) -> None:
        """Refuse what is a word of a declaration: it is no record's, and stands in records of everybody."""
        for memory in self._each(MEMORY_TYPE):
            if self._subject.mentioned(memory.name) or self._subject.mentioned(memory.definition):
                raise AmbiguousSubject(
                    reason=f"the declaration of the memory {memory.code} names it; give texts that it does not hold, or"
                    " remove the memory or the field (caliber db migrate --drop) and declare it in other words",
                    memory=memory.code,
                )

    def _refuse_shared(self) -> None:
        kinds: dict[str, set[str]] = {}
        notes = naming = 0
        for entity in self._each(NOTE):
            notes += 1
            naming += self._subject.mentioned(entity.content) or self._subject.mentioned(entity.entity)
            if self._subject.named(entity.entity):
                kinds.setdefault(" ".join(entity.entity.casefold().split()), set()).add(entity.entity_type)
        shared = max((len(types) for types in kinds.values()), default=0)
        if shared > 1:
            raise AmbiguousSubject(
                reason=f"a name is that of {shared} kinds of entities; give texts that name one only, or all the same "
                "with even_if_shared",
                kinds=shared,
            )
        if notes >= _SHARED_FROM and naming > _SHARED_PART * notes:
            raise AmbiguousSubject(
                reason=f"{naming} of {notes} notes name it, more than half; give texts that fewer hold, or all the same"
                " with even_if_shared",
                notes=naming,
            )

    # --- what every relation has in common -----------------------------------------------------------

    def _each(self, relation: Relation) -> Iterator[Any]:
        """Yield the entities of a relation that are still there, as this transaction has them by now."""
        codec = codec_of(relation)
        for page in self._uow.pages(relation):
            for row in page:
                if not relation.ordinal or (relation.name, row[0]) not in self._deleted:
                    self._row = row
                    yield codec.decode(self._uow.current(relation, row))

    def _erase(self, relation: Relation, entity: Any) -> None:
        """Delete the record that is being looked at, and what is owned by it."""
        self._uow.adopt(relation, self._row)
        self._uow.delete(relation, entity)
        if not relation.mirrored:
            self.outcome.erased[relation.name] += 1
        for change in self._uow.changes[self._seen_changes :]:
            if change.operation == DELETE:
                self._note_gone(change.relation, change.row)
        self._seen_changes = len(self._uow.changes)

    def _note_gone(self, relation: Relation, row: tuple[Any, ...]) -> None:
        self._deleted.add((relation.name, row[0]))
        self.outcome.erased[relation.name] += 1
        if relation.content_columns:
            self._touched.add((relation.name, row[0]))
        if relation.content_columns or relation.name in ("trajectory", "session"):
            self._gone.add(row[relation.index(relation.key[0]) + 1])
        entity = _decoded(relation, row)
        self.outcome.hashes |= digests_of(entity)
        if isinstance(entity, Turn):
            self._said_by.add((entity.trajectory_id.bytes, entity.turn_number))
            self._emptied.add(entity.scope_id.bytes)

    def _redact(self, relation: Relation, entity: Any, changed: Any) -> None:
        """Write a record that no longer names the subject."""
        if relation.versioned:
            self._uow.adopt(relation, self._row)
            self._uow.update(relation, changed)
            for change in self._uow.changes[self._seen_changes :]:
                if change.operation == DELETE and change.relation.content_columns:  # the summary of a turn
                    self._note_gone(change.relation, change.row)
            self._seen_changes = len(self._uow.changes)
        else:
            self._uow.upsert(relation, changed)
        self.outcome.redacted[relation.name] += 1
        self.outcome.hashes |= digests_of(entity) - digests_of(changed)
        if relation.content_columns:
            self._touched.add((relation.name, self._row[0]))

    def _plain(self, relation: Relation) -> None:
        """Redact records of a relation that has nothing of its own to it; erase what is the subject itself."""
        for entity in self._each(relation):
            if self._is_subject(relation, entity):
                self._erase(relation, entity)
                continue
            changed = self._redactor.without(relation, entity)
            if changed != entity:
                self._redact(relation, entity, changed)

    def _is_subject(self, relation: Relation, entity: Any) -> bool:
        key = getattr(entity, relation.key[0])
        initiator = getattr(entity, "initiator", None)
        return _bytes(key) in self._subject.ids or (initiator is not None and initiator.id.bytes in self._subject.ids)

    def _own(self, relation: Relation, is_own: Callable[[Any], bool]) -> None:
        """Erase what ``is_own`` or the subject itself, and redact the rest."""
        for entity in self._each(relation):
            if is_own(entity) or self._is_subject(relation, entity):
                self._erase(relation, entity)
                continue
            changed = self._redactor.without(relation, entity)
            if changed != entity:
                self._redact_unique(relation, entity, changed)

    def _redact_unique(self, relation: Relation, entity: Any, changed: Any) -> None:
        """Redact a record, or erase it when another one says the same by now."""
        twins: Sequence[Any] = ()
        if isinstance(changed, Note) and is_active(relation, changed) and changed.idempotency_key is None:
            twins = self._uow.select("note.by_fingerprint", changed.fingerprint)
        elif isinstance(changed, Artifact) and is_active(relation, changed):
            twins = self._uow.select(
                "artifact.active_by_hash",
                changed.trajectory_id.bytes,
                changed.content_hash,
                changed.artifact_type.value,
                changed.trust.value,
            )
        if any(row[0] != self._row[0] for row in twins):
            self._erase(relation, entity)
        else:
            self._redact(relation, entity, changed)

    # --- one relation after another ------------------------------------------------------------------

    def _trajectories(self) -> None:
        wanted = set(self._wanted.trajectories)

        def own(entity: Trajectory) -> bool:
            return entity.trajectory_id.bytes in wanted

        self._own(TRAJECTORY, own)

    def _turns(self) -> None:
        self._own(TURN, lambda turn: turn.name is not None and self._subject.named(turn.name))

    def _scopes(self) -> None:
        for entity in self._each(SCOPE):
            scope: Scope = entity
            if scope.scope_id.bytes in self._subject.ids:
                self._erase(SCOPE, scope)
                continue
            changed = self._redactor.without(SCOPE, scope)
            if scope.summary is not None and scope.scope_id.bytes in self._emptied:
                # It was made of what somebody said who is to be forgotten.
                changed = dataclasses.replace(changed, summary=None, summary_tokens=0)
            if changed != scope:
                self._redact(SCOPE, scope, changed)

    def _artifacts(self) -> None:
        said = self._said_by

        def own(artifact: Artifact) -> bool:
            return artifact.source_turn is not None and (artifact.trajectory_id.bytes, artifact.source_turn) in said

        self._own(ARTIFACT, own)

    def _notes(self) -> None:
        def own(note: Note) -> bool:
            sources = {item.bytes for item in note.source_trajectory_ids}
            return self._subject.named(note.entity) or (bool(sources) and sources <= self._gone)

        self._own(NOTE, own)

    def _memory(self, relation: Relation) -> None:
        """Erase records of a memory that are about the subject, by a field they are looked up by; redact others.

        A field that must have a value and is the subject's id goes with its record.
        """
        looked_up = [
            column.name
            for column in relation.columns
            if column.declared and column.type is ColumnType.TEXT and column.residence is Residence.INTERNED
        ]
        ids = [column.name for column in relation.columns if column.type is ColumnType.UUID and not column.nullable]

        def own(record: Any) -> bool:
            named = (getattr(record, name) for name in looked_up)
            return any(value is not None and self._subject.named(value) for value in named) or any(
                getattr(record, name).bytes in self._subject.ids for name in ids
            )

        self._own(relation, own)

    def _usage(self) -> None:
        lost = self._gone | self._subject.ids
        for usage in self._each(USAGE):
            if usage.owner_id.bytes in lost:
                self._erase(USAGE, usage)

    def _edges(self) -> None:
        lost = self._gone | self._subject.ids
        for edge in self._each(EDGE):
            if {edge.source.id.bytes, edge.target.id.bytes, edge.edge_id.bytes} & lost:
                self._erase(EDGE, edge)

    def _embeddings(self) -> None:
        lost = self._gone | self._subject.ids
        for embedding in self._each(EMBEDDING):
            if embedding.owner_id.bytes in lost or embedding.content_hash in self.outcome.hashes:
                self._erase(EMBEDDING, embedding)

    def _contents(self) -> None:
        """Drop what records said before: of those touched all versions, of others those that name the subject."""
        for entity in self._each(CONTENT_VERSION):
            place = (str(entity.owner_type), entity.owner_ordinal)
            task = None if entity.trajectory_id is None else entity.trajectory_id.bytes
            # Of a record that was deleted before its task is purged, this is all there is.
            named = entity.owner_id.bytes in self._subject.ids or task in self._wanted.trajectories
            if place in self._touched or named or self._says(entity.body):
                self._touched.add(place)
                self.outcome.hashes |= digests_of_body(entity.body)
                self._erase(CONTENT_VERSION, entity)

    def _says(self, body: str) -> bool:
        return any(
            self._subject.mentioned_in(value) if isinstance(value, bytes) else self._subject.mentioned(dump_json(value))
            for value in unpack_content(body).values()
            if value is not None
        )

    def _windows(self) -> None:
        forgotten = windows.Forgotten(
            content=lambda relation, ordinal: (relation, ordinal) in self._touched,
            words=self._redactor.within,
            ids=self._subject.ids,
        )
        for window in self._each(CONTEXT_WINDOW):
            if window.window_id.bytes in self._subject.ids:
                self._erase(CONTEXT_WINDOW, window)
                continue
            found = windows.without(window.record, forgotten)
            if found is None:
                continue
            record, closed = found
            # The digest of a whole text tells whether it was a given one.
            text_hash = bytes(32) if closed else window.text_hash
            self.outcome.windows_closed += closed
            self._redact(CONTEXT_WINDOW, window, dataclasses.replace(window, record=record, text_hash=text_hash))

    def _checkpoints(self) -> None:
        lost = {str(_uuid(raw)) for raw in self._gone | self._subject.ids} | self._touched_ids()
        for entity in self._each(CHECKPOINT):
            checkpoint: Checkpoint = entity
            state = read_state(checkpoint)
            for section in (state.get("context_snapshot") or {}).get("sections", ()):
                if any(source[1] in lost for source in section["sources"]):
                    section["content"], section["token_count"] = MARK, 0
            raw = dump_json(self._redactor.within(state)).encode()
            if raw != dump_json(read_state(checkpoint)).encode():
                packed = zlib.compress(raw) if checkpoint.codec == CODEC_ZLIB else raw
                self._redact(CHECKPOINT, checkpoint, dataclasses.replace(checkpoint, state=packed))

    def _touched_ids(self) -> set[str]:
        """Return the ids of records that were redacted: copies of what they said are elsewhere."""
        return {
            str(_uuid(change.row[change.relation.index(change.relation.key[0]) + 1]))
            for change in self._uow.changes
            if change.relation.content_columns and (change.relation.name, change.row[0]) in self._touched
        }

    def _events(self) -> None:
        lost = self._gone | self._subject.ids
        for event in self._each(EVENT):
            about = [event.event_id, event.subject_id, event.trajectory_id, event.scope_id]
            if any(item is not None and item.bytes in lost for item in about):
                if event.family is not EventFamily.AUDIT:
                    self._erase(EVENT, event)
                    continue
                # That something happened stays in the audit; what, and to whom, does not.
                bare = dataclasses.replace(event, payload={"erased": True}, principal=None, subject_id=None)
                bare = dataclasses.replace(bare, trajectory_id=None, scope_id=None)
                if bare != event:
                    self._redact(EVENT, event, bare)
                continue
            changed = self._redactor.without(EVENT, event)
            if changed != event:
                self._redact(EVENT, event, changed)

    def _locks(self) -> None:
        for lock in self._each(LOCK):
            if self._subject.mentioned(lock.resource):
                self._erase(LOCK, lock)
            elif self._subject.mentioned(lock.holder):
                self._redact(LOCK, lock, dataclasses.replace(lock, holder=self._subject.without(lock.holder)))

    def _configurations(self) -> None:
        for document in self._each(CONFIG_DOCUMENT):
            if self._subject.mentioned(document.body):
                self._erase(CONFIG_DOCUMENT, document)

    def _cache(self) -> None:
        """Empty the cache of vectors: its keys are hashes of texts that nobody keeps."""
        if not self.outcome.is_empty:
            dropped = self._uow.execute("embedding_cache.prune", self._uow.now_us + _ALL_TIME_US)
            if dropped:
                self.outcome.erased[EMBEDDING_CACHE.name] += dropped


def _decoded(relation: Relation, row: tuple[Any, ...]) -> Any:
    return codec_of(relation).decode(row)


def _bytes(key: Any) -> bytes:
    return getattr(key, "bytes", key) if not isinstance(key, bytes) else key


def _uuid(raw: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=raw)
