"""Windows over a store whose records are not in memory: the text of those over memory, and nobody else's words.

Source: design, section 5 (What a window is for); docs/search.md.
"""

from __future__ import annotations

import itertools
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.configs import AGENT
from support.drawn import needs
from support.evidence import share
from support.memories import FACT
from support.providers import CountingEmbeddings

from caliber.model import (
    AgentRole,
    Edge,
    EdgeRelation,
    EntityRef,
    EntityType,
    FixedClock,
    Principal,
    PrincipalKind,
    ResultStatus,
)
from caliber.model.errors import NotFound
from caliber.model.trajectory import TurnSummary
from caliber.model.trust import TrustLabel

pytestmark = pytest.mark.usefixtures("full_text")

MAY = datetime(2023, 5, 8, 12, tzinfo=UTC)
OTHER = EntityRef(EntityType.USER, uuid.UUID(int=9))
SYSTEM = EntityRef(EntityType.SYSTEM, uuid.UUID(int=8))
READER = Principal(PrincipalKind.AGENT, "reader", AgentRole.EXECUTOR)
NOBODY = ["agent:nobody"]
QUERIES = (
    None, "", "what is the dog called?", "the boat of Ines on the lake", "Omar", "in May 2023", "lak*", '"red boat"',
    "zzzzqqq", "who painted the kitchen last week", "backup_host", "to be or not to be",
)  # fmt: skip


def opened(backend: Any, mode: str, **options: Any) -> Any:
    settings = {
        "memories": [FACT],
        "search__keyword__similar_words": "none",
        "summaries__turns": "off",
        "embedding__embed__default": "commit",
        **options,
    }
    provider = CountingEmbeddings(32)
    return backend.open(search__mode=mode, embedding_provider=provider, clock=FixedClock(), **settings)


class Tasks:
    """A store of several owners, with one task that windows are for."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.session = memory.start_session(initiator=AGENT)
        pets, lake = self.talk(AGENT, session=self.session.session_id), self.talk(AGENT)
        self.say(pets, "My dog is called Pixel.", "What a nice name for a dog!", name="Ines")
        self.say(pets, "He is afraid of the lake?", "Then stay on the boat.", name="Ines")
        self.close(pets, "Ines has a dog, Pixel, that fears the lake.")
        for at in range(30):
            self.say(lake, f"We painted boat {at} near the lake", f"The red boat, or kitchen {at}?", name="Omar")
        self.keep(lake, "backup_host is vault", trust="user")
        self.keep(lake, "the red boat is for sale, says a page", trust="web")
        self.say(lake, "a page on lakes and dogs", "read", trust="web")
        self.hidden = self.talk(OTHER)
        self.say(self.hidden, "SECRET my dog is called Brutus", "SECRET a fine dog of the lake", name="Ada")
        self.keep(self.hidden, "SECRET boat of Ines")
        self.close(self.hidden, "SECRET Brutus is a dog")
        other = self.talk(EntityRef.agent("other"))
        self.say(other, "my dog is called Rex", "a fine dog of the lake", name="Eve")
        imported = self.talk(SYSTEM)
        self.say(imported, "imported: dogs like lakes", "and boats", name="Ines")
        self.links()
        self.task = self.talk(AGENT, session=self.session.session_id, parent=lake[0].trajectory_id)
        for at in range(4):
            for turn in range(12):
                self.say(self.task, f"scope {at} turn {turn} of boats", f"answer {turn} about the dog and more")
            if at % 2:
                self.close(self.task, f"scope {at} was about boats")
            else:
                self.memory.close_scope(self.task[1].scope_id)
                self.task = (self.task[0], self.memory.open_scope(self.task[0].trajectory_id))
        for at in range(30):
            self.say(self.task, f"small talk {at} " + "and so on " * (at % 7), f"yes, {at}, Ines", name="Omar")
        self.summarize()
        self.keep(self.task, "an artifact of the task: the dog eats fish")
        self.memory.append_turn(self.task[1].scope_id, role="user", content="what is the name of my dog?")
        self.call()
        memory.flush()

    def talk(self, owner: EntityRef, **options: Any) -> Any:
        task = self.memory.start_trajectory("sell the red boat", initiator=owner, **options)
        return task, self.memory.current_scope(task.trajectory_id)

    def say(self, talk: Any, *contents: str, **options: Any) -> None:
        roles = itertools.cycle(("user", "assistant"))
        turns = [{"role": role, "content": said, **options} for role, said in zip(roles, contents, strict=False)]
        self.memory.append_turns(talk[1].scope_id, turns)

    def call(self) -> None:
        from caliber.model import ToolCall

        calls = [ToolCall("c1", "search", "{}")]
        self.memory.append_turn(self.task[1].scope_id, role="assistant", content="let me see", tool_calls=calls)

    def keep(self, talk: Any, content: str, trust: str = "user") -> Any:
        return self.memory.create_artifact(
            talk[1].scope_id, artifact_type="fact", content=content, extraction_method="explicit", trust=trust
        )

    def close(self, talk: Any, summary: str) -> None:
        self.memory.storage.scopes.close(talk[1].scope_id, summary=summary)
        if talk is getattr(self, "task", None):
            self.task = (talk[0], self.memory.open_scope(talk[0].trajectory_id))

    def links(self) -> None:
        """Add notes, records of a declared memory, and links between them."""
        made = []
        for at, text in enumerate(("the dog Pixel likes fish", "a mast", "rope of the harbour", "lake and boat")):
            made.append(
                self.memory.add_note(
                    entity="Ines", entity_type="t", note_type="fact", content=text, confidence=0.9,
                    occurred_at=MAY + timedelta(days=at),
                )
            )  # fmt: skip
        made.append(
            self.memory.add_note(
                entity="Ines", entity_type="t", note_type="fact", content="SECRET note of the dog", confidence=0.9,
                visible_to=NOBODY,
            )
        )  # fmt: skip
        facts = self.memory.records("fact")
        for at, task in enumerate((None, self.hidden[0].trajectory_id)):
            said = "SECRET fact of the dog" if task else "a fact of the dog and the boat"
            facts.insert(subject=f"s{at}", kind="claim", content=said, trajectory=task)
        for one, other in ((0, 1), (2, 1), (2, 3), (0, 4)):
            ends = [EntityRef(EntityType.NOTE, made[at].note_id) for at in (one, other)]
            self.memory.storage.edges.insert(Edge(uuid.uuid4(), *ends, EdgeRelation.SUPPORTS, 1.0, 1.0, MAY))

    def summarize(self) -> None:
        """Add summaries of the first blocks of the open scope."""
        scope = self.task[1]
        turns = self.memory.storage.turns.list_by_scope(scope.scope_id)
        for at in (0, 16):
            block = turns[at : at + 16]
            self.memory.storage.turn_summaries.insert(
                TurnSummary(
                    turn_summary_id=uuid.uuid4(),
                    trajectory_id=self.task[0].trajectory_id,
                    scope_id=scope.scope_id,
                    first_turn=block[0].turn_number,
                    last_turn=block[-1].turn_number,
                    content=f"block {at} was small talk",
                    token_count=5,
                    trust=TrustLabel.TOOL,
                    source_turns=tuple(turn.turn_id for turn in block),
                    model_id="test",
                    created_at=MAY,
                )
            )

    @property
    def id(self) -> Any:
        return self.task[0].trajectory_id


def close(stored: Any, resident: Any, task: Any, **options: Any) -> Any:
    window = stored.assemble_context(task, **options)
    expected = resident.assemble_context(task, consistency="latest", **options)
    shown, wanted = (
        {source.id for section in each.sections for source in section.sources} for each in (window, expected)
    )
    assert len(shown & wanted) >= 0.75 * max(len(shown), len(wanted)), options
    assert "SECRET" not in window.text
    assert (window.status, window.degraded[0]) == (ResultStatus.DEGRADED, "not_resident")
    assert expected.status != ResultStatus.DEGRADED
    return window


@pytest.fixture
@needs("sharing")
def store(backend: Any) -> Any:
    return backend


WAYS: tuple[tuple[dict[str, Any], bool], ...] = (
    ({}, True),
    ({"recall__from": "session"}, True),
    ({"recall__from": "trajectory"}, False),
    ({"recall__from": "tenant", "recall__trust": "web"}, True),
    ({"recall__trust": "user", "recall__limit": 12}, True),
    ({"recall__limit": 0}, False),
    ({"assembly__relevance": "vector"}, False),
    ({"assembly__order": "priority"}, False),
    ({"search__weights": {"vector": 0.4, "keyword": 0.3, "graph": 0.2, "importance": 0.1}}, True),
    ({"search__graph__conversation": True, "search__diversity": 0.3}, True),
)
"""Configurations, and whether a window under each recalls what the other task said."""


def test_a_window_holds_what_that_of_memory_does_however_it_is_configured(store: Any) -> None:
    tasks = Tasks(opened(store, "backend"))
    for at, (options, recalled) in [(0, WAYS[0]), *share([*enumerate(WAYS)][1:], 3)]:
        stored, resident = opened(store, "backend", **options), opened(store, "resident", **options)
        handles = stored.acting_as(READER), resident.acting_as(READER)
        for number, query in enumerate(QUERIES):
            if not options or number % 3 == at % 3:
                tokens = (300, 900, 4_000)[(number + at) % 3]
                close(*handles, tasks.id, query=query, max_tokens=tokens)
        window = close(*handles, tasks.id, query="what is my dog called?", max_tokens=600)
        assert ("dog is called Pixel" in window.text) is recalled, options
        assert ("called Rex" in window.text) is (options.get("recall__from") == "tenant"), options
    close(*handles, tasks.id, query="lake", as_of=MAY)
    assert "SECRET" in stored.assemble_context(tasks.hidden[0].trajectory_id, query="dog").text
    with pytest.raises(NotFound):
        stored.assemble_context(uuid.uuid4(), query="dog")


def test_a_window_is_explained_and_replayed(store: Any) -> None:
    stored = opened(store, "backend")
    tasks = Tasks(stored)
    for query in (None, "what is the dog called?", ""):
        window = stored.assemble_context(tasks.id, query=query, max_tokens=900)
        again = stored.replay(window.window_id)
        assert (again.text, again.sections, again.degraded) == (window.text, window.sections, window.degraded)
        told = stored.explain(window.window_id)
        assert told["degraded"][0] == "not_resident"
        assert {item["type"] for item in told["inclusions"]} >= {"turn"}
        for turn in stored.storage.turns.list_by_scope(tasks.hidden[1].scope_id):
            why = stored.explain(window.window_id, exclusion=turn.turn_id)
            kept_out = "other_trajectory" if query == "" else "out_of_reach"  # without a query nothing is recalled
            assert (why["verdict"], why["filter"]) == ("filtered", kept_out)


def test_the_default_query_is_that_of_memory(store: Any) -> None:
    # O-16: the last user turn with its stored vector, or the goal
    stored, resident = opened(store, "backend"), opened(store, "resident")
    tasks = Tasks(stored)
    asked = stored.assemble_context(tasks.id)
    facts = stored.explain(asked.window_id)["inputs"]
    assert (facts["query"], facts["query_from"]) == ("what is the name of my dog?", "last_user_turn")
    assert facts["query_embedding_dimensions"] == 32
    fresh = tasks.talk(AGENT)[0].trajectory_id
    goal = close(stored, resident, fresh)
    facts = stored.explain(goal.window_id)["inputs"]
    assert (facts["query"], facts["query_from"]) == ("sell the red boat", "goal")
    assert "red boat" in goal.text
    tasks.memory.close_scope(tasks.task[1].scope_id)
    close(stored.acting_as(READER), resident.acting_as(READER), tasks.id)
