"""A small store with everything a window is made of, for the tests of ``caliber.context``; and that it works."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import numpy as np
from support.kinds import KINDS

from caliber.backends.sqlite.store import SqliteStore
from caliber.config import CaliberConfig, profiles
from caliber.config.search import SearchConfig
from caliber.context.assembler import Assembled, assemble
from caliber.context.inputs import AssemblyInputs, WindowFacts
from caliber.explain.replayer import CurrentScore, rebuild_inputs, score_now
from caliber.kernels.evaluator import NUMPY, Allowed, Evaluator
from caliber.model.embedding import DistanceMetric, Embedding, EmbeddingSpace, SpaceState
from caliber.model.knowledge import Note, NoteType, Usage
from caliber.model.references import EntityRef, EntityType
from caliber.model.time import FixedClock, from_us
from caliber.model.trajectory import (
    TTL,
    Artifact,
    ArtifactType,
    ExtractionMethod,
    Scope,
    ToolCall,
    Trajectory,
    TrajectoryStatus,
    TTLKind,
    Turn,
    TurnRole,
    TurnSummary,
)
from caliber.model.trust import TrustLabel
from caliber.resident.memory import ResidentMemory
from caliber.schema.relation import Relation
from caliber.schema.relations import (
    ARTIFACT,
    BY_NAME,
    EMBEDDING,
    EMBEDDING_SPACE,
    NOTE,
    SCOPE,
    TRAJECTORY,
    TURN,
    TURN_SUMMARY,
    USAGE,
)
from caliber.search.searcher import Searcher
from caliber.storage.compile.codec import dump_json
from caliber.storage.compile.derived import pack_content, unpack_content

PLAIN: dict[str, Any] = {
    "embedding_provider": None,
    "vector": None,
    "embedding.embed": {"default": "off"},
    # Vectors that a test writes down say what is relevant; what searches make of it has its own tests.
    "assembly.relevance": "vector",
    "min_relevance_threshold": 0.1,
}


def config_of(**overrides: Any) -> CaliberConfig:
    """The reference profile without a provider, in memory."""
    return profiles.reference(":memory:", **{**PLAIN, **overrides})


def strict(**overrides: Any) -> CaliberConfig:
    """The profile `sources` without a provider, in memory: strictly by priority, and no section has a cap."""
    return profiles.sources(":memory:", **{**PLAIN, "assembly.section_shares": {}, **overrides})


SEARCHING: dict[str, Any] = {
    "embedding_provider": {"provider_type": "hash", "model": "test", "dimensions": 4, "options": {}},
    "search.keyword.similar_words": "none",
}


def searching(**overrides: Any) -> CaliberConfig:
    """The reference profile, in memory, with vectors of four numbers that tests write down themselves."""
    return profiles.reference(":memory:", **{**SEARCHING, **overrides})


def strict_searching(**overrides: Any) -> CaliberConfig:
    """The profile `sources`, as ``searching``, without caps, and with the dosage of the reference."""
    dosage = {f"pcp.dosage.max_{what}_in_window": 20 for what in ("scopes", "artifacts", "notes")}
    return profiles.sources(":memory:", **{**SEARCHING, **dosage, "assembly.section_shares": {}, **overrides})


def sha(text: str | bytes) -> bytes:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).digest()


def numbered(number: int) -> uuid.UUID:
    """A readable id."""
    return uuid.UUID(int=number)


ME = EntityRef(EntityType.AGENT, numbered(1))


class World:
    """One store, its mirrors, and short ways to write into it. Instants are steps of a clock."""

    def __init__(self, config: CaliberConfig | None = None, seed: int = 0, evaluator: Evaluator = NUMPY) -> None:
        self.config = config or config_of()
        self.clock = FixedClock()
        self.store = SqliteStore(self.config, clock_us=self.clock.now_us)
        resident = self.config.resident
        self.memory = ResidentMemory(self.store, resident_bytes=resident.resident_bytes, evaluator=evaluator)
        self.store.follow(self.memory)
        self._searchers: dict[SearchConfig, Searcher] = {}
        self.random = np.random.default_rng(seed)
        self.space: EmbeddingSpace | None = None
        self.turns_of: dict[uuid.UUID, int] = {}
        self.scopes_of: dict[uuid.UUID, int] = {}
        self.made = 0
        self.waiting: list[tuple[Relation, Any]] | None = None
        self.trajectory_id = self.trajectory()
        self.scope_id = self.scope()

    def close(self) -> None:
        self.store.close()

    def now(self) -> datetime:
        self.clock.advance(us=1_000)
        return from_us(self.clock.now_us())

    def new_id(self) -> uuid.UUID:
        self.made += 1
        return uuid.UUID(bytes=self.random.bytes(8) + self.made.to_bytes(8, "big"))

    def insert(self, relation: Relation, *entities: Any) -> None:
        rows = [(relation, entity) for entity in entities]
        if self.waiting is None:
            self._write(rows)
        else:
            self.waiting.extend(rows)

    def _write(self, rows: Sequence[tuple[Relation, Any]]) -> None:
        def work(uow: Any) -> None:
            for relation, entity in rows:
                uow.insert(relation, entity)

        self.store.write(work)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Write everything inserted inside in one transaction."""
        self.waiting = []
        yield
        rows, self.waiting = self.waiting, None
        self._write(rows)

    # --- records ---------------------------------------------------------------------------------

    def trajectory(
        self, parent: uuid.UUID | None = None, *, initiator: EntityRef = ME, session: uuid.UUID | None = None
    ) -> uuid.UUID:
        at, key = self.now(), self.new_id()
        self.insert(
            TRAJECTORY,
            Trajectory(
                trajectory_id=key,
                status=TrajectoryStatus.ACTIVE,
                initiator=initiator,
                goal_hash=sha("goal"),
                created_at=at,
                updated_at=at,
                last_activity_at=at,
                parent_trajectory_id=parent,
                session_id=session,
            ),
        )
        return key

    def scope(
        self, *, trajectory: uuid.UUID | None = None, summary: str | None = None, closed: bool = False
    ) -> uuid.UUID:
        trajectory = trajectory or self.trajectory_id
        at, key = self.now(), self.new_id()
        number = self.scopes_of.get(trajectory, 0)
        self.scopes_of[trajectory] = number + 1
        start = self.turns_of.get(trajectory, 0)
        if summary is not None:
            self.turns_of[trajectory] = start + 1  # the turn that it sums up is not kept
        self.insert(
            SCOPE,
            Scope(
                scope_id=key,
                trajectory_id=trajectory,
                sequence_number=number,
                start_turn=start,
                opened_at=at,
                last_activity_at=at,
                closed_at=at if closed or summary is not None else None,
                summary=summary,
                summary_tokens=0 if summary is None else -(-len(summary) // 4),
                trust=TrustLabel.TOOL,
            ),
        )
        return key

    def make_turn(
        self,
        content: str | bytes,
        role: TurnRole = TurnRole.USER,
        *,
        name: str | None = None,
        calls: Sequence[ToolCall] = (),
        call_id: str | None = None,
        scope: uuid.UUID | None = None,
        at: datetime | None = None,
        trajectory: uuid.UUID | None = None,
        trust: TrustLabel = TrustLabel.TOOL,
    ) -> Turn:
        scope, trajectory = scope or self.scope_id, trajectory or self.trajectory_id
        number = self.turns_of.get(trajectory, 0)
        self.turns_of[trajectory] = number + 1
        raw = content.encode() if isinstance(content, str) else content
        return Turn(
            turn_id=self.new_id(),
            trajectory_id=trajectory,
            scope_id=scope,
            sequence=number,
            turn_number=number,
            role=role,
            content=raw,
            token_count=-(-len(raw) // 4),
            created_at=at or self.now(),
            name=name,
            tool_calls=tuple(calls),
            tool_call_id=call_id,
            trust=trust,
        )

    def turn(self, content: str | bytes, role: TurnRole = TurnRole.USER, **options: Any) -> uuid.UUID:
        turn = self.make_turn(content, role, **options)
        self.insert(TURN, turn)
        return turn.turn_id

    def turn_summary(self, content: str, *, first: int = 0, last: int = 0) -> uuid.UUID:
        """Sum up some turns of the scope at hand."""
        key = self.new_id()
        self.insert(
            TURN_SUMMARY,
            TurnSummary(
                turn_summary_id=key,
                trajectory_id=self.trajectory_id,
                scope_id=self.scope_id,
                first_turn=first,
                last_turn=last,
                content=content,
                token_count=-(-len(content) // 4),
                source_turns=(),
                model_id="extractive",
                created_at=self.now(),
                trust=TrustLabel.TOOL,
            ),
        )
        return key

    def tool_turns(self, *results: str, name: str = "search", call: str = "") -> list[uuid.UUID]:
        """An assistant's turn that calls a tool once for each result, and the results."""
        calls = [ToolCall(f"call-{self.made}-{at}", name, '{"q": 1}') for at in range(len(results))]
        out = [self.turn(call, TurnRole.ASSISTANT, calls=calls)]
        out += [self.turn(text, TurnRole.TOOL, call_id=c.id, name=name) for c, text in zip(calls, results, strict=True)]
        return out

    def make_artifact(self, content: str | bytes, **options: Any) -> Artifact:
        at = options.pop("created_at", None) or self.now()
        raw = content.encode() if isinstance(content, str) else content
        fields: dict[str, Any] = {
            "artifact_id": self.new_id(), "trajectory_id": self.trajectory_id, "scope_id": self.scope_id,
            "artifact_type": ArtifactType.FACT, "schema_version": "1", "content": raw,
            "content_hash": sha(raw + str(self.made).encode()), "extraction_method": ExtractionMethod.EXPLICIT,
            "ttl": TTL(TTLKind.PERSISTENT), "trust": TrustLabel.TOOL, "token_count": -(-len(raw) // 4),
            "created_at": at, "updated_at": at,
        }  # fmt: skip
        return Artifact(**{**fields, **options})

    def artifact(self, content: str | bytes, vector: Any = None, **options: Any) -> uuid.UUID:
        artifact = self.make_artifact(content, **options)
        self.insert(ARTIFACT, artifact)
        self.embed(EntityType.ARTIFACT, artifact.artifact_id, vector)
        return artifact.artifact_id

    def make_note(self, content: str, **options: Any) -> Note:
        at = options.pop("created_at", None) or self.now()
        fields: dict[str, Any] = {
            "note_id": self.new_id(),
            "entity": "build",
            "entity_type": "project",
            "note_type": NoteType.FACT,
            "content": content,
            "content_hash": sha(content),
            "fingerprint": sha(content + str(self.made)),
            "confidence": 1.0,
            "token_count": -(-len(content) // 4),
            "created_at": at,
            "updated_at": at,
        }
        return Note(**{**fields, **options})

    def note(self, content: str, vector: Any = None, **options: Any) -> uuid.UUID:
        note = self.make_note(content, **options)
        self.insert(NOTE, note)
        self.embed(EntityType.NOTE, note.note_id, vector)
        return note.note_id

    def used(self, kind: EntityType, owner: uuid.UUID) -> None:
        self.insert(USAGE, Usage(kind, owner, 1, self.now()))

    # --- vectors ---------------------------------------------------------------------------------

    def open_space(self, dimensions: int = 4, model: str = "test", metric: str = "cosine") -> EmbeddingSpace:
        space = EmbeddingSpace(self.new_id(), model, dimensions, DistanceMetric(metric), SpaceState.ACTIVE, self.now())
        self.insert(EMBEDDING_SPACE, space)
        self.space = space
        return space

    def embed(self, kind: EntityType, owner: uuid.UUID, vector: Any, space: EmbeddingSpace | None = None) -> None:
        if vector is None:
            return
        space = space or self.space
        assert space is not None
        raw = np.asarray(vector, "<f4").tobytes()
        self.insert(EMBEDDING, Embedding(space.space_id, kind, owner, 0, sha(raw), raw, self.now()))

    # --- changing --------------------------------------------------------------------------------

    def change(self, relation: Relation, key: uuid.UUID, **fields: Any) -> Any:
        from dataclasses import replace

        return self.store.write(lambda uow: uow.update(relation, replace(uow.get(relation, key.bytes), **fields)))

    def delete(self, relation: Relation, key: uuid.UUID) -> None:
        self.store.write(lambda uow: uow.delete(relation, uow.get(relation, key.bytes)))

    # --- windows ---------------------------------------------------------------------------------

    def inputs(self, **options: Any) -> AssemblyInputs:
        config = options.pop("config", self.config)
        now = self.clock.now_us() + 1_000_000
        fields: dict[str, Any] = {
            "snapshot": self.memory.snapshot,
            "trajectory_id": self.trajectory_id,
            "max_tokens": config.token_budget,
            "as_of_us": now,
            "now_us": now,
            "window_id": numbered(77),
            "config": config,
            "config_hash": config.hash.hex(),
            "principal": "human:owner",
            "space_id": None if self.space is None else self.space.space_id,
        }
        if "query_embedding" in options and options["query_embedding"] is not None:
            options["query_embedding"] = np.asarray(options["query_embedding"], np.float32)
        mask = options.pop("note_mask", None)
        if mask is not None:
            options["masks"] = {"note": Allowed(mask.astype(np.int32), np.array([False, True]))}
        return AssemblyInputs(**{**fields, **options})

    def assemble(self, **options: Any) -> Assembled:
        inputs = self.inputs(**options)
        return assemble(inputs, self.memory, self.searcher(inputs.config))

    def score_now(self, key: uuid.UUID, facts: WindowFacts) -> CurrentScore | None:
        """Return the present relevance of a record that everybody may see to a window's query."""
        found = self.memory.snapshot.locate(key.bytes)
        if found is None:
            return None
        return score_now(
            rebuild_inputs(facts, self.memory.snapshot, self.config, {}),
            *found,
            self.searcher(self.config),
            self.memory,
        )

    def searcher(self, config: CaliberConfig) -> Searcher:
        """Return the searcher of a store with this configuration."""
        if config.search not in self._searchers:
            self._searchers[config.search] = Searcher(self.memory, config.search, KINDS)
        return self._searchers[config.search]

    def window(self, **options: Any) -> Any:
        return self.assemble(**options).window


class Contents:
    """The source of contents for replay and explain, over a world."""

    def __init__(self, world: World, hidden: frozenset[uuid.UUID] = frozenset()) -> None:
        self._world = world
        self._hidden = hidden
        self.asked: list[tuple[str, int]] = []

    def fetch(self, relation: str, ordinals: Sequence[int]) -> None:
        """Everything is in memory."""

    def content(self, relation: str, ordinal: int, version: int) -> Mapping[str, Any] | None:
        self.asked.append((relation, ordinal))
        store, name = self._world.store, relation
        with store.read() as session:
            kept = session.run(store.statements["content.at"], (name, ordinal, version))
            if kept:
                return unpack_content(kept[0][0])
            rows = session.run(store.plans[name].get_many, (dump_json([ordinal]),))
        return unpack_content(pack_content(BY_NAME[name], rows[0])) if rows else None

    def identity(self, relation: str, ordinal: int, known: uuid.UUID | None) -> uuid.UUID | None:
        if known is not None:
            return known
        store, name = self._world.store, relation
        with store.read() as session:
            rows = session.run(store.plans[name].get_many, (dump_json([ordinal]),))
            if rows:
                return uuid.UUID(bytes=rows[0][store.plans[name].codec.index(BY_NAME[name].key[0])])
            gone = session.run(store.statements["content.owner"], (name, ordinal))
        return uuid.UUID(bytes=gone[0][0]) if gone else None

    def entity(self, record_id: uuid.UUID) -> Any | None:
        found = None if record_id in self._hidden else self._world.memory.snapshot.locate(record_id.bytes)
        return None if found is None else self._world.memory.entity(*found)

    def relation(self, record_id: uuid.UUID) -> str | None:
        found = self._world.memory.snapshot.locate(record_id.bytes)
        return None if found is None else found[0].relation.name

    def ordinal(self, record_id: uuid.UUID) -> int | None:
        if record_id in self._hidden:
            return None
        found = self._world.memory.snapshot.locate(record_id.bytes)
        if found is not None:
            return int(found[0].packed(found[1])[0])
        store = self._world.store
        with store.read() as session:
            gone = session.run(store.plans["content_version"].lists["list_by_owner"], (record_id.bytes,))
        return int(store.plans["content_version"].codec.decode(gone[0]).owner_ordinal) if gone else None


def section(window: Any, name: str) -> Any:
    return next((item for item in window.sections if item.name == name), None)


def content(window: Any, name: str) -> str:
    found = section(window, name)
    return "" if found is None else found.content


def decisions(window: Any, rule: str) -> list[Any]:
    return [decision for decision in window.assembly_trace if decision.rule_id == rule]
