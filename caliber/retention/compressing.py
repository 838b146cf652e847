"""Compression (``compress_on``), which replaces a group of records with a summary and archives them, and pruning.

The provider is called before any transaction; a group of records is replaced in one transaction, or stays.

Policy action ``prune`` removes records by scope, age and confidence.

Source: C-138, C-157, C-228, K-063, K-095, K-099; docs/retention.md.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from caliber.config.memories import MemoryConfig
from caliber.config.policies import ActionConfig, PolicyTarget
from caliber.embedding.embedding_target import Vectors, attach
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.engine.stale_inputs import StaleInputs, check_erasures, erasures
from caliber.kernels import uuid7
from caliber.knowledge.inheriting import trust_of_all
from caliber.knowledge.notes import NoteSums
from caliber.model.declared import Trigger
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import from_us
from caliber.model.trajectory import Artifact, Scope, Trajectory, Turn
from caliber.model.trust import TrustLabel
from caliber.schema.catalog import Catalog
from caliber.schema.memories import BUILT_IN
from caliber.schema.memory_types import RetentionKind
from caliber.schema.relation import Initial, Relation
from caliber.schema.relations import SCOPE, TRAJECTORY, TURN
from caliber.schema.validity import is_active
from caliber.storage.compile.codec import codec_of, last_of
from caliber.storage.compile.derived import completed
from caliber.storage.compile.plan import RelationPlans
from caliber.storage.write.ending import RETENTION, archive, prune
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.artifacts import ArtifactSums

SUMMARY_MAX_TOKENS: Final = 200
"""Longest summary of a scope, and of records that retention compresses."""
_PAGE: Final = 500
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
    """Records that become one: ``new`` replaces them, None where the closing scope's summary does.

    ``erased`` is the number of erasures before they were read, where no other code checks it.
    """

    relation: Relation
    originals: Sequence[Any]
    scope_id: uuid.UUID | None = None
    new: Any = None
    vector: Vectors | None = None
    erased: int | None = None


def compressions(memories: Iterable[MemoryConfig], trigger: Trigger) -> list[Compression]:
    """Return the compressions of a trigger, in the order of the declarations."""
    found = ((item, item.retention.when) for item in memories if item.retention.kind is RetentionKind.COMPRESS_ON)
    return [Compression(item) for item, when in found if when is not None and when.on is trigger]


class Compressor:
    """Prepares and writes compressions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

        made: tuple[ArtifactSums | NoteSums, ...] = (ArtifactSums(engine), NoteSums(engine))
        self._sums = {sums.relation.name: sums for sums in made}

    def _relation(self, memory: MemoryConfig) -> Relation:
        bound = self._engine.store.catalog.named(memory.name)
        assert bound is not None  # a store that lacks declared memories is not opened
        return bound.relation

    def _sums_of(self, relation: Relation) -> ArtifactSums | NoteSums | RecordSums:
        """Return the function that makes the record that stands for several of a relation."""
        assert relation.ends is not None  # the configuration compresses nothing that stays
        name = relation.ends.summed or relation.name
        return self._sums.get(name) or RecordSums(self._engine, relation)

    # --- which records become one ------------------------------------------------------------------

    def in_range(
        self, memory: MemoryConfig, trigger: Trigger, trajectory: Trajectory, scope: Scope, turns: Sequence[Turn]
    ) -> list[Group]:
        """Return the groups in the range of a trigger (C-228), prepared. A conversation is summed up as one.

        Raises: LlmError kinds.
        """
        relation = self._relation(memory)
        if relation.neighbours is not None:
            return self._prepared(relation, [turns], scope.scope_id, least=1)
        return self._prepared(
            relation, _split(relation, self._of(relation, trigger, trajectory, scope)), scope.scope_id
        )

    def said(
        self, relation: Relation, trigger: Trigger, trajectory: Trajectory, scope: Scope | None
    ) -> tuple[str, list[TrustLabel]]:
        """Return the texts of a declared memory's records in the range of a trigger, with the trust of each."""
        records = self._of(relation, trigger, trajectory, scope)
        found = [(_text_of(self._engine.store.catalog, relation, each), _label(relation, each)) for each in records]
        return "\n\n".join(text for text, _ in found if text), [label for text, label in found if text]

    def _of(self, relation: Relation, trigger: Trigger, trajectory: Trajectory, scope: Scope | None) -> list[Any]:
        """Return the active records in the range of a trigger."""
        store = self._engine.store
        with store.read() as session:
            reading = UnitOfWork(session, store.plans, store.statements, 0, keep_content=False, catalog=store.catalog)
            scope_id = None if scope is None else scope.scope_id
            found = in_range(reading, relation, trigger, trajectory.trajectory_id, scope_id)
        return [record for record in found if _in_use(relation, record)]

    def everywhere(self, memory: MemoryConfig) -> Iterator[Group]:
        """Yield the groups of the whole tenant, each prepared on demand: by task, notes by subject.

        Of turns those of closed scopes. Raises: LlmError kinds.
        """
        relation = self._relation(memory)
        follows = relation.neighbours
        ended = frozenset() if follows is None else self._closed_scopes()
        least = _ONE if follows is None else 1
        places: dict[Hashable, list[bytes]] = {}
        for record in self._pages(relation):
            if follows is None or getattr(record, follows.by) in ended:
                places.setdefault(_belongs(relation, record), []).append(getattr(record, relation.key[0]).bytes)
        for keys in places.values():
            if len(keys) < least:
                continue
            erased = erasures(self._engine)
            records = [record for record in self._again(relation, keys) if _in_use(relation, record)]
            scope_id = (
                getattr(records[-1], "scope_id", None) if records else None
            )  # of an artifact that is made of them
            for group in self._prepared(relation, [records], scope_id, least=least):
                group.erased = erased
                yield group

    def _closed_scopes(self) -> frozenset[uuid.UUID]:
        return frozenset(scope.scope_id for scope in self._pages(SCOPE) if not scope.is_open)

    def _pages(self, relation: Relation) -> Iterator[Any]:
        plans, last = self._plans(relation), -1
        while True:
            with self._engine.store.read() as session:
                page = session.run(plans.page, (last, _PAGE))
            yield from (record for record in map(plans.codec.decode, page) if _in_use(relation, record))
            if len(page) < _PAGE:
                return
            last = last_of(page, last)

    def _again(self, relation: Relation, keys: Sequence[bytes]) -> list[Any]:
        plans = self._plans(relation)
        with self._engine.store.read() as session:
            found = [row for key in keys for row in session.run(plans.get, (key,))]
        return [plans.codec.decode(row) for row in found]

    def _plans(self, relation: Relation) -> RelationPlans:
        return self._engine.store.plans[relation.name]

    # --- preparing ---------------------------------------------------------------------------------

    def _prepared(
        self, relation: Relation, groups: Iterable[Sequence[Any]], scope_id: uuid.UUID | None, *, least: int = _ONE
    ) -> list[Group]:
        out = []
        for records in groups:
            texts = (_text_of(self._engine.store.catalog, relation, record) for record in records)
            nonblank = [text for text in texts if text.strip()]
            if len(records) < least or not nonblank:
                continue
            summary = self._engine.summarizer.summarize("\n\n".join(nonblank), SUMMARY_MAX_TOKENS)
            if summary.strip():
                trust = trust_of_all((_label(relation, record) for record in records), TrustLabel.WEB)
                new, vector = self._sums_of(relation).prepare(records, summary, trust)
                out.append(Group(relation, records, scope_id, new, vector))
        return out

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
        made, ends = None, relation.ends
        assert ends is not None  # the originals end
        if group.new is not None:
            made = self._sums_of(relation).write(uow, group.new, group.vector, group.scope_id)
        if ends.archive is None:
            count = prune(uow, relation, found)
        elif ends.supersede is not None:
            count = _retire(uow, relation, found, getattr(made, relation.key[0]))
        else:
            for record in found:
                archive(uow, relation, record)
            count = len(found)
        return count, made if isinstance(made, Artifact) else None


class RecordSums:
    """Makes a record of the newest of several, with the summary as its text: its other fields were known last."""

    def __init__(self, engine: Engine, relation: Relation) -> None:
        self._engine = engine
        self.relation = relation

    def prepare(self, records: Sequence[Any], summary: str, trust: TrustLabel) -> tuple[Any, Vectors | None]:
        """Return the summary of records with its tokens and vector."""
        relation = self.relation
        changes = {_content_of(self._engine.store.catalog, relation): summary, relation.key[0]: uuid7(), "version": 1}
        if relation.trust is not None:
            changes[relation.trust.column] = trust
        changes |= {column.name: None for column in relation.columns if column.per_record}
        new = completed(relation, dataclasses.replace(records[-1], **changes), self._engine.estimator)
        return new, self._engine.part(Embeddings).vector(relation.name, _embedded(relation, new))

    def write(self, uow: UnitOfWork, new: Any, vector: Vectors | None, scope_id: uuid.UUID | None) -> Any:  # noqa: ARG002
        """Store it; it is where the newest of the records was."""
        relation, at = self.relation, from_us(uow.now_us)
        stamps = {column.name: at for column in relation.columns if column.initial is Initial.NOW}
        uow.insert(relation, dataclasses.replace(new, **stamps))
        attach(uow, relation.name, getattr(new, relation.key[0]), _embedded(relation, new), vector)
        return new


# --- a record's content -------------------------------------------------------------------------------


def _content_of(catalog: Catalog, relation: Relation) -> str:
    text_field = catalog.binding(relation.name).text_field
    assert text_field is not None  # the configuration refuses to compress records without text
    return text_field


def _text_of(catalog: Catalog, relation: Relation, record: Any) -> str:
    content = getattr(record, _content_of(catalog, relation)) or ""
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else str(content)
    follows, text_trait = relation.neighbours, relation.text
    if not text or follows is None or text_trait is None or text_trait.head is None:
        return text
    return f"{getattr(record, text_trait.head) or getattr(record, follows.speaker)}: {text}"


def _embedded(relation: Relation, record: Any) -> str:
    return "" if relation.embedded is None else getattr(record, relation.embedded) or ""


def _label(relation: Relation, record: Any) -> TrustLabel:
    label: TrustLabel = TrustLabel.WEB if relation.trust is None else getattr(record, relation.trust.column)
    return label


def _in_use(relation: Relation, record: Any) -> bool:
    # Records that expire by themselves must not live on in a lasting summary.
    lasting = None if relation.ends is None else relation.ends.lasting
    if lasting is not None:
        codec = codec_of(relation)
        if codec.encode(record, 0)[codec.index(lasting[0])] != lasting[1]:
            return False
    return is_active(relation, record)


def _belongs(relation: Relation, record: Any) -> Hashable:
    assert relation.ends is not None  # the originals end
    place = tuple(getattr(record, name) for name in relation.ends.together)
    # A conversation has one label; other records do not yield to less trusted ones.
    return place if relation.neighbours is not None else (place, _label(relation, record))


def _split(relation: Relation, records: Iterable[Any]) -> list[list[Any]]:
    groups: dict[Hashable, list[Any]] = {}
    for record in records:
        groups.setdefault(_belongs(relation, record), []).append(record)
    return list(groups.values())


def _retire(uow: UnitOfWork, relation: Relation, found: Sequence[Any], by: uuid.UUID) -> int:
    """Retire records that another one replaces; that one may be among them, and stays."""
    assert relation.ends is not None  # the originals end
    assert relation.ends.supersede is not None
    count = 0
    for record in found:
        if getattr(record, relation.key[0]) == by:
            continue
        now: Any = uow.find(relation, getattr(record, relation.key[0]).bytes)
        archive(uow, relation, now, RETENTION, **{relation.ends.supersede: by})
        count += 1
    return count


_ALL_TIME_US = 2**62
ALL_ROWS = 2**31 - 1
_ANY_CONFIDENCE = 2.0  # above all there are

BY_SCOPE = (Trigger.SCOPE_CLOSE, Trigger.TURN)
"""Triggers whose range is one scope; that of the others is the whole trajectory."""


# --- which records -------------------------------------------------------------------------------


def records_of(uow: UnitOfWork, relation: Relation, owner: Relation, key: uuid.UUID) -> list[Any]:
    """Return the records that belong to a scope, trajectory or session, directly or through other records."""
    name = f"list_by_{owner.name}"
    if (listed := _listed(uow, relation, name, key)) is not None:
        return listed
    if relation.erase is not None and relation.erase.sources is not None:
        return uow.drawn_from(relation, key.bytes)
    for foreign in relation.foreign_keys:
        between = uow.catalog.by_name[foreign.relation]
        if (above := _listed(uow, between, name, key)) is not None:
            keys = [getattr(each, foreign.target) for each in above]
            return [record for each in keys for record in records_of(uow, relation, between, each)]
    return []


def _listed(uow: UnitOfWork, relation: Relation, name: str, key: uuid.UUID) -> list[Any] | None:
    path = next((path for path in relation.paths if path.name == name), None)
    if path is None:
        return None
    return uow.select_path(relation, name, key.bytes, *((ALL_ROWS,) if path.limited else ()))


def in_range(
    uow: UnitOfWork, relation: Relation, trigger: Trigger, trajectory_id: uuid.UUID, scope_id: uuid.UUID | None
) -> list[Any]:
    """Return the records in the range of a trigger (C-228).

    The range of ``scope_close`` and ``turn`` is the scope, of ``task_start`` and ``task_end`` the trajectory; of what
    belongs to no scope it is the trajectory always.
    """
    if trigger in BY_SCOPE and scope_id is not None and relation.has(SCOPE.key[0]):
        return records_of(uow, relation, SCOPE, scope_id)
    return records_of(uow, relation, TRAJECTORY, trajectory_id)


def own_relation(catalog: Catalog, action: ActionConfig) -> Relation | None:
    """Return the relation of an action's target where that is a declared memory of the store's own."""
    if action.target is None or action.target in BUILT_IN:
        return None
    return catalog.memories[action.target].relation


def relation_of(catalog: Catalog, target: str | None) -> Relation:
    """Return the relation whose records a prune action takes: of a scope its turns."""
    bound = None if target is None or target == PolicyTarget.SCOPE else catalog.named(target)
    return TURN if bound is None else bound.relation


# --- by a policy -----------------------------------------------------------------------------------


def prune_in_range(
    uow: UnitOfWork,
    catalog: Catalog,
    action: ActionConfig,
    trigger: Trigger,
    trajectory_id: uuid.UUID,
    scope_id: uuid.UUID | None,
) -> int:
    """Run a prune action in the range of its trigger; return the number of records. A closing scope is closed."""
    relation = relation_of(catalog, action.target)
    assert relation.ends is not None  # the configuration prunes nothing that stays
    doubted = relation.ends.doubted
    before = None
    if action.older_than_ms is not None:
        before = from_us(uow.now_us) - timedelta(milliseconds=action.older_than_ms)

    def stale(record: Any) -> bool:
        old = before is None or getattr(record, relation.times.entered) <= before  # K-063: inclusive
        return old and (action.below_confidence is None or below(record, action.below_confidence))

    def below(record: Any, least: float) -> bool:
        confidence = None if doubted is None else getattr(record, doubted)
        return confidence is not None and confidence < least  # a record without a confidence is not doubted

    if action.target is PolicyTarget.SCOPE:
        scopes = _closed_scopes(uow, trigger, trajectory_id, scope_id)
        found = [record for each in scopes for record in records_of(uow, relation, SCOPE, each)]
    else:
        found = in_range(uow, relation, trigger, trajectory_id, scope_id)
    return prune(uow, relation, filter(stale, found))


def _closed_scopes(
    uow: UnitOfWork, trigger: Trigger, trajectory_id: uuid.UUID, scope_id: uuid.UUID | None
) -> list[uuid.UUID]:
    only = scope_id if trigger in BY_SCOPE else None
    if only is not None and trigger is Trigger.SCOPE_CLOSE:
        return [only]
    scopes = uow.select_path(SCOPE, "list_by_trajectory", trajectory_id.bytes)
    return [scope.scope_id for scope in scopes if only in (None, scope.scope_id) and not scope.is_open]


def prune_everywhere(uow: UnitOfWork, catalog: Catalog, action: ActionConfig) -> int:
    """Run a prune action in the whole tenant (C-228); return the number of records."""
    until = _ALL_TIME_US if action.older_than_ms is None else uow.now_us - action.older_than_ms * 1_000
    below = _ANY_CONFIDENCE if action.below_confidence is None else action.below_confidence
    if action.target is PolicyTarget.SCOPE:
        return prune(uow, TURN, uow.select_entities(TURN, "turn.of_closed_scopes", until) if below > 1 else ())
    relation = relation_of(catalog, action.target)
    return prune(uow, relation, uow.stale(relation, until, below))
