"""Retention ``compress_on``: records give way to one that sums them up, and are kept out of use.

What a provider says is asked for before any transaction; a group of records becomes one in one transaction, or stays.
Source: C-138, K-099; decision 0173, docs/retention.md.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caliber.config.memories import MemoryConfig
from caliber.embedding.service import Embeddings
from caliber.embedding.space_provider import Vectors, attach, embedded_text
from caliber.engine.engine import Engine
from caliber.engine.stale_inputs import StaleInputs, check_erasures, erasures
from caliber.kernels import uuid7
from caliber.knowledge import notes as note_ops
from caliber.knowledge.inheriting import trust_of_all
from caliber.knowledge.notes import NewNote
from caliber.model.knowledge import Note
from caliber.model.policies import Trigger
from caliber.model.time import from_us
from caliber.model.trajectory import TTL, Artifact, ArtifactType, ExtractionMethod, Scope, Trajectory, TTLKind, Turn
from caliber.model.trust import TrustLabel
from caliber.retention.pruning import ALL_ROWS, BY_SCOPE
from caliber.schema.in_force import is_active
from caliber.schema.memory_types import FieldType, RetentionKind
from caliber.schema.relation import Relation
from caliber.schema.relations import ARTIFACT, NOTE, SCOPE, TURN
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.damage import last_of
from caliber.storage.compile.derived import completed, derived_value
from caliber.storage.compile.plan import RelationPlans
from caliber.storage.write.ending import archive, prune
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory import artifacts as artifact_ops

if TYPE_CHECKING:
    from caliber.schema.own_memories import OwnMemory

_ONE = 2
"""Records that it takes to be worth one: a record by itself is short enough, and a summary is not summed up again."""


@dataclass(frozen=True, slots=True)
class Compression:
    """The action of a memory's retention when its trigger fires."""

    memory: MemoryConfig

    @property
    def policy(self) -> str:
        """The name in events, in place of a policy's; no policy can be called so."""
        return f"memory {self.memory.name}"

    @property
    def shown(self) -> str:
        """The action in a few words."""
        return f"compress {self.memory.name}"


@dataclass(slots=True)
class Group:
    """Records that become one: ``new`` is what says it instead, None where the closing scope's summary does.

    ``erased`` is how often something had been erased before they were read, where nobody else asks.
    """

    relation: Relation
    originals: Sequence[Any]
    scope_id: uuid.UUID | None = None
    new: Any = None
    vector: Vectors | None = None
    erased: int | None = None


def text_field(memory: OwnMemory) -> str:
    """Return the field that says most of a record; the configuration refuses to sum up what has no text."""
    texts = (item.name for item in memory.type.fields if item.type is FieldType.TEXT)
    return memory.content or next(texts)


def compressions(memories: Iterable[MemoryConfig], trigger: Trigger) -> list[Compression]:
    """Return what a trigger compresses, in the order of the declarations."""
    found = ((item, item.retention.when) for item in memories if item.retention.kind is RetentionKind.COMPRESS_ON)
    return [Compression(item) for item, when in found if when is not None and when.on is trigger]


class Compressor:
    """Prepares and writes what compressions come to."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._embeddings = engine.part(Embeddings)

    def _relation(self, memory: MemoryConfig) -> Relation:
        bound = self._engine.store.catalog.named(memory.name)
        assert bound is not None  # a store that lacks what is declared is not opened
        return bound.relation

    # --- which records become one ------------------------------------------------------------------

    def in_range(
        self, memory: MemoryConfig, trigger: Trigger, trajectory: Trajectory, scope: Scope, turns: Sequence[Turn]
    ) -> list[Group]:
        """Return the groups in the range of a trigger (C-228), prepared.

        Raises: LlmError kinds.
        """
        relation = self._relation(memory)
        if relation is TURN:
            return self._prepared(relation, [turns], scope.scope_id, least=1)
        return self._prepared(
            relation, _split(relation, self._of(relation, trigger, trajectory, scope)), scope.scope_id
        )

    def said(
        self, relation: Relation, trigger: Trigger, trajectory: Trajectory, scope: Scope | None
    ) -> tuple[str, list[TrustLabel]]:
        """Return what the records of a declared memory say in the range of a trigger, and how far each is trusted."""
        records = self._of(relation, trigger, trajectory, scope)
        found = [(self._text_of(relation, record), record.trust) for record in records]
        return "\n\n".join(text for text, _ in found if text), [label for text, label in found if text]

    def _of(self, relation: Relation, trigger: Trigger, trajectory: Trajectory, scope: Scope | None) -> list[Any]:
        """Return the records in use in the range of a trigger; notes belong to no scope."""
        owner, key = "trajectory", trajectory.trajectory_id.bytes
        if trigger in BY_SCOPE and scope is not None:
            owner, key = "scope", scope.scope_id.bytes
        store = self._engine.store
        with store.read() as session:
            if relation is NOTE:
                rows = session.run(store.statements["note.of_trajectory"], (trajectory.trajectory_id.bytes,))
            else:
                path = next(item for item in relation.paths if item.name == f"list_by_{owner}")
                plan = store.plans[relation.name].lists[path.name]
                rows = session.run(plan, (key, ALL_ROWS) if path.limited else (key,))
        return [record for record in map(codec_of(relation).decode, rows) if _in_use(relation, record)]

    def everywhere(self, memory: MemoryConfig) -> Iterator[Group]:
        """Yield the groups of the whole tenant, each prepared when it is asked for: by task, notes by what they are of.

        Of turns those of closed scopes. Raises: LlmError kinds.
        """
        relation = self._relation(memory)
        ended = self._closed_scopes() if relation is TURN else frozenset()
        places: dict[Hashable, list[bytes]] = {}
        for record in self._pages(relation):
            if relation is TURN and record.scope_id not in ended:
                continue
            places.setdefault(_belongs(relation, record), []).append(getattr(record, relation.key[0]).bytes)
        for keys in places.values():
            if len(keys) < (1 if relation is TURN else _ONE):
                continue
            erased = erasures(self._engine)
            records = [record for record in self._again(relation, keys) if _in_use(relation, record)]
            scope_id = self._last_scope(records)
            least = 1 if relation is TURN else _ONE
            for group in self._prepared(relation, [records], scope_id, least=least):
                group.erased = erased
                yield group

    def _closed_scopes(self) -> frozenset[uuid.UUID]:
        return frozenset(scope.scope_id for scope in self._pages(SCOPE) if not scope.is_open)

    def _pages(self, relation: Relation) -> Iterator[Any]:
        plans, last, rows = self._plans(relation), -1, self._engine.config.retention.sweep_rows
        while True:
            with self._engine.store.read() as session:
                page = session.run(plans.page, (last, rows))
            yield from (record for record in map(plans.codec.decode, page) if _in_use(relation, record))
            if len(page) < rows:
                return
            last = last_of(page, last)

    def _again(self, relation: Relation, keys: Sequence[bytes]) -> list[Any]:
        plans = self._plans(relation)
        with self._engine.store.read() as session:
            found = [row for key in keys for row in session.run(plans.get, (key,))]
        return [plans.codec.decode(row) for row in found]

    def _plans(self, relation: Relation) -> RelationPlans:
        return self._engine.store.plans[relation.name]

    def _last_scope(self, records: Sequence[Any]) -> uuid.UUID | None:
        """Return the scope that an artifact made of records is kept in: that of the newest of them."""
        return getattr(records[-1], "scope_id", None) if records else None

    # --- preparing ---------------------------------------------------------------------------------

    def _prepared(
        self, relation: Relation, groups: Iterable[Sequence[Any]], scope_id: uuid.UUID | None, *, least: int = _ONE
    ) -> list[Group]:
        out = []
        for records in groups:
            said = [text for text in (self._text_of(relation, record) for record in records) if text.strip()]
            if len(records) < least or not said:
                continue
            limit = self._engine.config.close.summary_max_tokens
            summary = self._engine.summarizer.summarize("\n\n".join(said), limit)
            if summary.strip():
                out.append(self._group(relation, records, scope_id, summary))
        return out

    def _text_of(self, relation: Relation, record: Any) -> str:
        if relation is TURN:
            return f"{record.name or record.role.value}: {record.text}" if record.content else ""
        if relation is ARTIFACT:
            text: str = record.text
            return text
        return str(getattr(record, self._content_of(relation)) or "")

    def _content_of(self, relation: Relation) -> str:
        if relation is NOTE:
            return "content"
        memory = self._engine.store.catalog.declared.get(relation.name)
        assert memory is not None  # every relation that is not built in is a memory's
        return text_field(memory)

    def _group(self, relation: Relation, records: Sequence[Any], scope_id: uuid.UUID | None, summary: str) -> Group:
        trust = trust_of_all((record.trust for record in records), TrustLabel.WEB)
        if relation is NOTE:
            new: Any = self._note(records, summary, trust)
            return Group(
                relation, records, scope_id, new, self._embeddings.vector("note", embedded_text(new.entity, summary))
            )
        if relation in (TURN, ARTIFACT):
            new = artifact_ops.check_artifact(
                self._engine.estimator,
                artifact_type=ArtifactType.INTERMEDIATE_OUTPUT,
                content=summary,
                extraction_method=ExtractionMethod.INFERRED,
                trust=trust,
            )
            return Group(relation, records, scope_id, new, self._embeddings.vector("artifact", summary))
        new = self._own(relation, records, summary, trust)
        return Group(
            relation, records, scope_id, new, self._embeddings.vector(relation.name, self._embedded(relation, new))
        )

    def _embedded(self, relation: Relation, record: Any) -> str:
        memory = self._engine.store.catalog.declared.get(relation.name)
        return "" if memory is None or memory.embedded is None else getattr(record, memory.embedded) or ""

    def _note(self, notes: Sequence[Note], summary: str, trust: TrustLabel) -> NewNote:
        newest = notes[-1]
        return NewNote(
            entity=newest.entity,
            entity_type=newest.entity_type,
            note_type=newest.note_type,
            content=summary,
            confidence=min(note.confidence for note in notes),
            token_count=derived_value(NOTE, "token_count", self._engine.estimator, content=summary),
            importance=max((note.importance for note in notes if note.importance is not None), default=None),
            valid_from=newest.valid_from,
            valid_until=newest.valid_until,
            namespace=newest.namespace,
            tags=tuple(dict.fromkeys(tag for note in notes for tag in note.tags)),
            visible_to=newest.visible_to,
            created_by=newest.created_by,
            source_trajectory_ids=tuple(dict.fromkeys(item for note in notes for item in note.source_trajectory_ids)),
            trust=trust,
        )

    def _own(self, relation: Relation, records: Sequence[Any], summary: str, trust: TrustLabel) -> Any:
        """The newest record with the summary as its text: the other fields are the last that were known."""
        changes = {self._content_of(relation): summary, "record_id": uuid7(), "trust": trust, "version": 1}
        made: Any = dataclasses.replace(records[-1], **changes, fingerprint=None, idempotency_key=None)
        return completed(relation, made, self._engine.estimator)

    # --- writing -----------------------------------------------------------------------------------

    def apply(self, uow: UnitOfWork, group: Group) -> tuple[int, Artifact | None]:
        """Let one record stand for those of a group; return how many gave way, and the artifact that was made.

        Records out of use by now stay as they are. Raises: StaleInputs when a record was changed meanwhile, or
        something was forgotten.
        """
        check_erasures(uow, group.erased)
        relation = group.relation
        found = []
        for original in group.originals:
            now: Any = uow.find(relation, getattr(original, relation.key[0]).bytes)
            if now is None or not _in_use(relation, now):
                continue
            if now.version != original.version:
                key = getattr(now, relation.key[0])
                raise StaleInputs(entity_type=relation.name, id=key, reason="it was changed while it was summed up")
            found.append(now)
        if not found:
            return 0, None
        if relation is TURN:
            made = None if group.new is None else self._apply_artifact(uow, group)
            return prune(uow, TURN, found), made
        if relation is ARTIFACT:
            made = self._apply_artifact(uow, group)
            return _retire(uow, ARTIFACT, found, made.artifact_id), made
        if relation is NOTE:
            return _retire(uow, NOTE, found, self._apply_note(uow, group).note_id), None
        at = from_us(uow.now_us)
        uow.insert(relation, dataclasses.replace(group.new, created_at=at, updated_at=at))
        attach(uow, relation.name, group.new.record_id, self._embedded(relation, group.new), group.vector)
        for record in found:
            archive(uow, relation, record)
        return len(found), None

    def _apply_artifact(self, uow: UnitOfWork, group: Group) -> Artifact:
        assert group.scope_id is not None  # turns and artifacts have a scope
        artifact, created = artifact_ops.create_artifact(
            uow, group.scope_id, group.new, unlabelled=self._engine.config.trust.artifacts, closing=True
        )
        if created:
            attach(uow, "artifact", artifact.artifact_id, artifact.text, group.vector)
        if artifact.ttl.kind is not TTLKind.PERSISTENT:
            # These very words were there already, for a while: now they stand for what stays.
            lasting = dataclasses.replace(artifact, ttl=TTL(TTLKind.PERSISTENT), expires_at=None)
            artifact = uow.update(ARTIFACT, lasting)
        return artifact

    def _apply_note(self, uow: UnitOfWork, group: Group) -> Note:
        note, created = note_ops.add_note(uow, group.new)
        if created:
            attach(uow, "note", note.note_id, embedded_text(note.entity, note.content), group.vector)
        return note


def _in_use(relation: Relation, record: Any) -> bool:
    # What goes by itself is not kept on in a summary that stays.
    if relation is ARTIFACT and record.ttl.kind is not TTLKind.PERSISTENT:
        return False
    return is_active(relation, record)


_BELONGS: dict[str, Callable[[Any], Hashable]] = {
    # Notes that somebody else may not see, or that hold at another time, are not summed up with the rest.
    NOTE.name: lambda note: (
        note.entity, note.entity_type, note.visible_to, note.created_by, note.namespace, note.valid_from,
        note.valid_until,
    ),
}  # fmt: skip


def _belongs(relation: Relation, record: Any) -> Hashable:
    of = _BELONGS.get(relation.name)
    owners = (getattr(record, "trajectory_id", None), getattr(record, "parent_id", None))
    place = owners if of is None else of(record)
    # A conversation is one; anything else does not give way to what is trusted less.
    return place if relation is TURN else (place, record.trust)


def _split(relation: Relation, records: Iterable[Any]) -> list[list[Any]]:
    groups: dict[Hashable, list[Any]] = {}
    for record in records:
        groups.setdefault(_belongs(relation, record), []).append(record)
    return list(groups.values())


def _retire(uow: UnitOfWork, relation: Relation, found: Sequence[Any], by: uuid.UUID) -> int:
    """Take records out of use that another says now; that other may be one of them, and stays."""
    assert relation.ends is not None  # what is summed up ends
    assert relation.ends.supersede is not None
    count = 0
    for record in found:
        if getattr(record, relation.key[0]) == by:
            continue
        now: Any = uow.find(relation, getattr(record, relation.key[0]).bytes)
        archive(uow, relation, dataclasses.replace(now, **{relation.ends.supersede: by}))
        count += 1
    return count
