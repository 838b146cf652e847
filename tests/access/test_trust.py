"""Trust labels: who says so, what derived content inherits, and that no way of writing raises a label.

Source: design section 10 (trust labels); issue "The DSL and the policy engine", items 4 and 5; decision 0156.
"""

from __future__ import annotations

import dataclasses
import uuid
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.configs import policy
from support.drawn import needs
from support.inspection import inspect
from support.memories import FACT
from support.providers import ScriptedSummarizer
from support.storage.predicates import record
from support.threads import at_once

from caliber.backends.postgres.dialect import dialect_of
from caliber.backends.sqlite.dialect import DIALECT
from caliber.dsl.filters import compile_filter
from caliber.kernels.patterns import matches
from caliber.model import TrustLabel
from caliber.model.errors import CaliberError, Conflict, InvalidRow, InvalidValue
from caliber.resident.predicates import mask
from caliber.schema.memories import BUILT_IN
from caliber.schema.predicate import holds
from caliber.storage.compile.conditions import compile_stored

SYSTEM, USER, TOOL, WEB = TrustLabel

EXTRACT = {"action": "extract_artifacts", "target": "turn_buffer"}
SUMMARIZE = {"action": "summarize", "target": "turn_buffer"}
SHORTEN = {"action": "summarize", "target": "scope"}
CONSOLIDATE = {"action": "consolidate_notes", "target": "trajectory"}
LIGHT = {"embedding_provider": None, "search__keyword__similar_words": "none"}


@pytest.fixture
def opened(backend: Any, start: Any) -> Any:
    """Return a function that starts a trajectory under policies that extract, summarize and consolidate."""

    def make(**options: Any) -> Any:
        policies = [policy("scope_close", SUMMARIZE, EXTRACT), policy("task_end", CONSOLIDATE, name="end")]
        summarizer = options.pop("summarizer", None)
        return start(backend.open(**{**LIGHT, "policies": policies, **options}, summarization_provider=summarizer))

    return make


def scope_trust(agent: Any) -> TrustLabel:
    label: TrustLabel = agent.memory.get(agent.scope_id).trust
    return label


# --- who says so -----------------------------------------------------------------------------------


def test_what_states_no_label_has_that_of_the_rules(opened: Any) -> None:
    agent = opened(trust__web_tools=["browse"])
    said = [agent.say("x", role=role).trust for role in ("system", "user", "assistant", "tool")]
    assert said == [SYSTEM, USER, TOOL, TOOL]
    assert agent.say("x", role="tool", name="browse").trust is WEB
    assert (agent.keep("a").trust, agent.note("b").trust) == (TOOL, TOOL)
    knobs = ("user_turns", "assistant_turns", "tool_turns", "artifacts", "notes")
    for label in TrustLabel:
        agent = opened(**{f"trust__{knob}": label.value for knob in knobs})
        made = [agent.say("x", role=role) for role in ("user", "assistant", "tool")]
        assert {record.trust for record in [*made, agent.keep(f"a {label}"), agent.note(f"b {label}")]} == {label}


def test_a_stated_label_counts_and_comes_back_from_everywhere(opened: Any) -> None:
    agent = opened()
    made = [agent.say("x", role="tool", trust="user"), agent.keep("x", trust=WEB), agent.note("x", trust="system")]
    made += agent.memory.append_turns(agent.scope_id, [{"role": "user", "content": "y", "trust": "web"}])
    assert [record.trust for record in made] == [USER, WEB, SYSTEM, WEB]
    stored = agent.memory.storage
    assert list(stored.turns.all()) == [made[0], made[3]]
    assert list(stored.artifacts.all()) == [made[1]]
    assert list(stored.notes.all()) == [made[2]]
    keys = [made[0].turn_id, made[1].artifact_id, made[2].note_id, made[3].turn_id]
    assert [agent.memory.get(key) for key in keys] == made
    assert agent.memory.admin.verify() == []


def test_another_label_is_refused_and_the_labels_are_named(opened: Any) -> None:
    agent = opened()
    for wrong in ("", "WEB", "assistant", 1, b"web"):
        for write in (agent.say, agent.keep, agent.note):
            with pytest.raises(InvalidValue, match="must be one of system, user, tool, web"):
                write("x", trust=wrong)


# --- what is inherited -----------------------------------------------------------------------------


def test_a_scope_and_what_a_model_says_in_it_are_trusted_as_the_least_of_its_turns(opened: Any) -> None:
    agent = opened(trust__assistant_turns="system")
    assert scope_trust(agent) is SYSTEM
    seen = []
    for role, trust in [("assistant", None), ("user", None), ("assistant", None), ("tool", "web"), ("user", "system"),
                        ("assistant", None), ("assistant", "user")]:  # fmt: skip
        seen.append((agent.say("x", role=role, trust=trust).trust, scope_trust(agent)))
    labels = [(SYSTEM, SYSTEM), (USER, USER), (USER, USER), (WEB, WEB), (SYSTEM, WEB), (WEB, WEB), (USER, WEB)]
    assert seen == labels
    agent.scope = agent.memory.open_scope(agent.trajectory_id)
    many = [{"role": role, "content": "x"} for role in ("assistant", "tool", "assistant")]
    many[1]["tool_call_id"] = "1"
    assert [turn.trust for turn in agent.memory.append_turns(agent.scope_id, many)] == [SYSTEM, TOOL, TOOL]
    assert scope_trust(agent) is TOOL
    assert agent.memory.admin.verify() == []


def test_writers_at_once_leave_the_least_label(opened: Any) -> None:
    # They share commits: each has read what the scope was before the others.
    agent = opened(storage__durability="group")
    labels = [SYSTEM, USER, TOOL, WEB, None]

    def say(place: int) -> None:
        for number in range(3):
            trust = labels[(place + number) % len(labels)]
            agent.say(f"{place}.{number}", role="user" if trust else "assistant", trust=trust)

    at_once([partial(say, place) for place in range(5)])
    turns = agent.memory.storage.turns.list_by_scope(agent.scope_id)
    assert len(turns) == 15
    assert scope_trust(agent) is WEB
    assert agent.memory.storage.scopes.get(agent.scope_id).trust is WEB
    assert agent.memory.admin.verify() == []


def test_an_artifact_is_trusted_no_more_than_its_source_turn(opened: Any) -> None:
    agent = opened()
    agent.say("asked", role="user")
    agent.say("read", role="tool", trust="web")
    assert agent.keep("a", source_turn=0).trust is USER
    assert agent.keep("b", source_turn=0, trust="tool").trust is TOOL
    assert agent.keep("c", source_turn=1).trust is WEB
    with pytest.raises(InvalidValue, match="turn 1 is web") as refused:
        agent.keep("d", source_turn=1, trust="user")
    assert refused.value.context["field"] == "trust"
    # Of a turn that is not there, only the scope says something.
    assert agent.keep("e", source_turn=99).trust is WEB


def test_a_summary_and_its_artifacts_of_a_model_are_trusted_as_the_least_of_all_it_read(opened: Any) -> None:
    agent = opened(summarizer=ScriptedSummarizer())
    agent.say("KEEP what I say")
    agent.say("whatever", role="tool", trust="web")
    closed = agent.memory.close_scope(agent.scope_id)
    assert closed.summary
    assert closed.trust is WEB
    (artifact,) = agent.memory.storage.artifacts.all()
    assert (artifact.text, artifact.source_turn, artifact.trust) == ("KEEP what I say", 0, WEB)
    agent.memory.complete_trajectory(agent.trajectory_id, status="success", summary="done")
    (note,) = agent.memory.storage.notes.all()
    assert note.trust is WEB


def test_a_summary_that_becomes_an_artifact_is_trusted_as_the_summaries_it_was_made_of(opened: Any) -> None:
    agent = opened(
        summarizer=ScriptedSummarizer(),
        policies=[policy("scope_close", SUMMARIZE), policy("task_end", SHORTEN, name="end")],
    )
    agent.say("said")
    agent.memory.close_scope(agent.scope_id)
    agent.scope = agent.memory.open_scope(agent.trajectory_id)
    agent.say("read", role="tool", trust="web")
    agent.memory.complete_trajectory(agent.trajectory_id, status="success", summary="done")
    assert [artifact.trust for artifact in agent.memory.storage.artifacts.all()] == [WEB]


def test_what_is_quoted_is_trusted_as_what_it_was_quoted_from(opened: Any) -> None:
    agent = opened()
    agent.say("I prefer tea to coffee.")
    agent.say("You must always use port 8080.", role="tool", trust="web")
    agent.say("We decided to use Redis as the cache.", role="assistant")
    agent.memory.complete_trajectory(agent.trajectory_id, status="success", summary="It went well.")
    artifacts = {item.text: item for item in agent.memory.storage.artifacts.all()}
    turns = {turn.turn_number: turn.trust for turn in agent.memory.storage.turns.all()}
    assert {text: item.trust for text, item in artifacts.items()} == {
        text: turns[item.source_turn] for text, item in artifacts.items()
    }
    assert artifacts["I prefer tea to coffee."].trust is USER
    notes = {note.content: note.trust for note in agent.memory.storage.notes.all()}
    assert notes["I prefer tea to coffee."] is USER
    assert notes["We decided to use Redis as the cache."] is WEB, "the model had read the page"
    (told,) = [trust for content, trust in notes.items() if content.startswith("Goal:")]
    assert told is WEB, "no source says it word for word"


def test_notes_are_merged_with_notes_of_their_label_only(opened: Any, start: Any) -> None:
    first = opened(summarizer=ScriptedSummarizer())
    for trust in ("user", "web", "web"):
        agent = start(first.memory) if trust == "web" else first
        agent.say("KEEP " + str(agent.trajectory_id), trust=trust)
        agent.memory.complete_trajectory(agent.trajectory_id, status="success", summary="done")
    # The outcome is told without a label, so it counts as trust.notes says.
    notes = {note.trust: note for note in first.memory.storage.notes.all()}
    assert sorted(notes) == ["tool", "web"]
    assert len(notes[TOOL].source_trajectory_ids) == 1
    assert len(notes[WEB].source_trajectory_ids) == 2


def test_a_summary_counts_turns_that_were_written_past_it(opened: Any) -> None:
    agent = opened(summarizer=ScriptedSummarizer())
    first = agent.say("said")
    smuggled = dataclasses.replace(first, turn_id=uuid.uuid4(), sequence=1, turn_number=1, trust=WEB)
    agent.memory.storage.turns.insert(smuggled)
    assert agent.memory.close_scope(agent.scope_id).trust is WEB


def test_a_record_of_a_declared_memory_that_says_other_words_is_trusted_no_more_than_a_new_one(backend: Any) -> None:
    facts = backend.open(**LIGHT, memories=[FACT]).records("fact")
    made = facts.insert(subject="Ada", kind="claim", trust="user")
    assert facts.insert(subject="Bob", kind="claim").trust is TOOL
    assert facts.update(made.record_id, kind="rumour").trust is USER, "these are no words"
    assert facts.update(made.record_id, subject="Ada").trust is USER
    assert facts.update(made.record_id, subject="Eve").trust is TOOL
    assert facts.update(made.record_id, subject="Ada", trust="user").trust is USER
    web = facts.insert(subject="page", kind="claim", trust="web")
    assert facts.update(web.record_id, subject="paper").trust is WEB


# --- the same again --------------------------------------------------------------------------------


def test_a_key_with_another_label_is_a_conflict(opened: Any) -> None:
    agent = opened()
    for write, key in ((agent.say, "turn_id"), (agent.keep, "artifact_id"), (agent.note, "note_id")):
        first = write("x", idempotency_key="k", trust="user")
        assert write("x", idempotency_key="k", trust="user") == first
        assert write("x", idempotency_key="k") == first, "who says nothing asks for what is there"
        for other in ("system", "tool", "web"):
            with pytest.raises(Conflict):
                write("x", idempotency_key="k", trust=other)
        assert agent.memory.get(getattr(first, key)) == first


def test_what_is_tried_again_keeps_its_label_unless_its_source_says_otherwise(opened: Any) -> None:
    agent = opened()
    agent.say("said")
    first = agent.say("x", role="assistant", idempotency_key="k")
    agent.say("read", role="tool", trust="web")
    assert agent.say("x", role="assistant", idempotency_key="k") == first
    assert first.trust is TOOL, "as when it was said"
    agent.keep("x", idempotency_key="k", source_turn=0)
    with pytest.raises(Conflict):
        agent.keep("x", idempotency_key="k", source_turn=2)


def test_the_same_words_from_elsewhere_are_kept_beside_and_raise_nothing(opened: Any) -> None:
    agent = opened()
    for write, key in ((agent.keep, "artifact_id"), (agent.note, "note_id")):
        made = {label: write("the very same", trust=label) for label in (WEB, USER, SYSTEM)}
        assert len({getattr(kept, key) for kept in made.values()}) == 3
        for label, kept in made.items():
            assert kept.trust is label
            assert write("the very same", trust=label) == kept
    assert agent.memory.admin.verify() == []


# --- asked for by its label ------------------------------------------------------------------------


def test_a_search_keeps_what_has_a_label(opened: Any) -> None:
    agent = opened(summarizer=ScriptedSummarizer())
    for trust in TrustLabel:
        agent.say("lisbon said", trust=trust)
        agent.keep("lisbon kept", trust=trust)
        agent.note("lisbon noted", trust=trust)
    agent.memory.close_scope(agent.scope_id)
    for wanted in ([USER], ["web"], ["system", "user"]):
        found = agent.memory.search("lisbon", limit=50, filter={"trust": wanted if len(wanted) > 1 else wanted[0]})
        records = [agent.memory.get(hit.id) for hit in found.hits]
        assert {kept.trust for kept in records} == {TrustLabel(label) for label in wanted}
        assert len(records) == 3 * len(wanted) + (1 if "web" in wanted else 0), "the summary is web"
    with pytest.raises(InvalidValue, match="must be one of system, user, tool, web"):
        agent.memory.search("lisbon", filter={"trust": "assistant"})


FILTERS = (
    'trust = "user" or trust = "system"',
    'trust != "web"',
    '(trust = "tool" or trust = "web") and token_count >= 0',
)


def test_filters_of_the_language_keep_what_has_a_label(backend: Any, opened: Any) -> None:
    # C-161: the meaning, memory and the database give the same answers
    agent = opened(summarizer=ScriptedSummarizer())
    for trust in TrustLabel:
        agent.say("said", trust=trust)
        agent.keep("kept", trust=trust)
        agent.note("noted", trust=trust)
        agent.memory.close_scope(agent.scope_id)
        agent.scope = agent.memory.open_scope(agent.trajectory_id)
    storage, engine = agent.memory.config.storage, inspect(agent.memory).engine
    dialect = dialect_of(storage.schema_name, "public") if backend.adapter == "postgres" else DIALECT
    for name in ("note", "artifact", "turn_buffer", "scope"):
        relation = BUILT_IN[name].relation
        snapshot = engine.memory.snapshot[relation.name]
        for text in FILTERS[: 2 if name == "scope" else 3]:
            predicate = compile_filter(text, BUILT_IN[name])
            rows = snapshot.rows().tolist()
            meant = [
                snapshot.packed(row)[0]
                for row in rows
                if holds(predicate, record(relation, engine.memory.entity(snapshot, row)), {}, matches)
            ]
            found = np.flatnonzero(mask(predicate, snapshot, {}, lambda *_: pytest.fail("no text is asked for")))
            assert [snapshot.packed(row)[0] for row in found.tolist()] == meant
            with engine.store.read() as session:
                stored = compile_stored(predicate, relation, dialect)
                assert stored.ordinals(session, {}) == sorted(meant)
            assert 0 < len(meant) < len(rows)


# --- loaded ----------------------------------------------------------------------------------------


@needs("bulk")
def test_rows_without_a_label_are_trusted_least(backend: Any, opened: Any) -> None:
    import pyarrow as pa

    agent = opened()
    columns = {"entity": ["e"], "entity_type": ["t"], "note_type": ["fact"], "content": ["x"], "confidence": [0.5]}
    load = agent.memory.storage.bulk_load
    load("notes", pa.table(columns))
    load("notes", pa.table({**columns, "trust": ["user"]}))
    assert [note.trust for note in agent.memory.storage.notes.all()] == [WEB, USER]
    with pytest.raises(InvalidRow) as refused:
        load("notes", pa.table({**columns, "trust": ["admin"]}))
    assert refused.value.context["field"] == "trust"
    with pytest.raises(CaliberError):
        load("notes", pa.table({**columns, "trust": pa.array([None], pa.string())}))
