"""The record of a window: its bytes, replaying it, explaining it."""

from __future__ import annotations

import json
import pickle
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from contract.entities import plain
from support.context import world as kit
from support.context.limits import set_limits

from caliber.context.record.record import FORMAT, MAGIC, principal_of, unpack_record
from caliber.explain.explainer import explain
from caliber.explain.replayer import replay
from caliber.model.context import DecisionCode, SourceType
from caliber.model.errors import InvalidValue, NotFound, StorageError
from caliber.model.lazy import LazyTuple
from caliber.model.references import EntityType
from caliber.model.trajectory import TurnRole
from caliber.model.trust import TrustLabel
from caliber.schema.relations import ARTIFACT, EMBEDDING, NOTE, TURN

QUERY = {"query": "what now?", "query_embedding": [1, 0, 0, 0]}


@pytest.fixture
def full(world: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A world with everything in it, and a configuration under which some of it stays out."""
    set_limits(monkeypatch, note_search_limit=3)
    world.config = kit.config_of(
        system_instructions="Be brief.",
        token_budget=500,
        **{
            "section_priorities.custom": [["facts", 65]],
            "assembly.evict_block_turns": 4,
            "pcp.dosage.max_artifacts_in_window": 2,
        },
    )
    world.open_space()
    world.keys = {
        "note": world.note("the best note", [1, 0, 0, 0]),
        "second note": world.note("the second note", [3, 1, 0, 0]),
        "third note": world.note("the third note", [1, 1, 0, 0]),
        "fourth note": world.note("the fourth note", [1, 2, 0, 0]),
        "far note": world.note("far from it", [0, 1, 0, 0]),
        "artifact": world.artifact("the best artifact", [1, 0, 0, 0]),
        "second artifact": world.artifact("the second artifact", [2, 1, 0, 0]),
        "third artifact": world.artifact("the third artifact", [1, 1, 0, 0]),
        "far artifact": world.artifact("unrelated", [0, 1, 0, 0]),
        "scope": world.scope(summary="it began well"),
    }
    world.scope_id = world.scope()
    for at in range(40):
        world.keys[f"turn {at}"] = world.turn(f"turn {at} said something", TurnRole.USER)
    world.keys["call"], world.keys["result"] = world.tool_turns("found it")
    return world


def same(one: Any, other: Any) -> bool:
    """Return whether two windows are the same to the byte, with everything that is lazily made."""
    return repr((one, one.assembly_trace, one.to_messages())) == repr(
        (other, other.assembly_trace, other.to_messages())
    )


# --- bytes -----------------------------------------------------------------------------------------


def test_a_record_keeps_the_inputs(full: Any) -> None:
    # design section 5: recorded inputs
    inputs = full.inputs(**QUERY, extra_sections={"facts": "water is wet"}, max_tokens=400)
    record = unpack_record(full.assemble(**QUERY, extra_sections={"facts": "water is wet"}, max_tokens=400).record)
    facts = record.facts
    assert facts.window_id == inputs.window_id
    assert facts.trajectory_id == full.trajectory_id
    assert facts.scope_id == full.scope_id
    assert facts.position == full.memory.snapshot.position
    assert facts.config_hash == full.config.hash.hex()
    assert (facts.max_tokens, facts.now_us, facts.as_of_us) == (400, inputs.now_us, inputs.as_of_us)
    assert (facts.query, facts.space_id, facts.principal, facts.evaluator) == (
        "what now?", full.space.space_id, "human:owner", "numpy",
    )  # fmt: skip
    assert facts.query_embedding.tolist() == [1, 0, 0, 0]
    assert facts.extra_sections == {"facts": "water is wet"}
    assert {cut.source_type.value for cut in facts.cut_offs} == {"note"}


def test_a_record_is_the_same_whenever_it_is_packed(full: Any) -> None:
    # C-467
    first, second = full.assemble(**QUERY), full.assemble(**QUERY)
    assert first.record == second.record
    assert first.record is first.record
    assert first.text_hash == second.text_hash
    assert principal_of(first.record) == "human:owner"


def test_a_record_of_many_candidates_is_small() -> None:
    # design section 5: columns, not rows
    world = kit.World()
    rng = np.random.default_rng(5)
    world.open_space(64)
    with world.at_once():
        for at in range(1_000):
            vector = rng.standard_normal(64)
            world.artifact(f"artifact {at} " * int(rng.integers(3, 40)), vector, artifact_id=kit.uuid.uuid4())
            world.clock.advance(us=int(rng.integers(0, 10**9)))
        for at in range(200):
            world.turn(f"turn {at} " * int(rng.integers(1, 20)))
            world.clock.advance(us=int(rng.integers(0, 10**8)))
    assembled = world.assemble(query="q", query_embedding=rng.standard_normal(64))
    assert len(assembled.window.assembly_trace) == 1_200
    assert len(assembled.record) <= 12 * 1_200
    assert same(replay(assembled.record, world.config, kit.Contents(world)), assembled.window)
    world.close()


def test_a_record_that_ends_early_or_goes_on_is_refused(full: Any) -> None:
    raw = full.assemble().record
    for wrong in (raw[:-1], raw[: len(raw) // 2], raw + b"x"):
        with pytest.raises(StorageError):
            unpack_record(wrong)
    body = zlib.decompress(raw[4:])
    for wrong in (body[:-1], body + b"x"):
        with pytest.raises(StorageError):
            unpack_record(MAGIC + bytes((FORMAT,)) + zlib.compress(wrong))


def test_a_record_with_another_decision_does_not_replay(full: Any) -> None:
    raw = full.assemble().record
    body = bytearray(zlib.decompress(raw[4:]))
    codes = unpack_record(raw).codes.tobytes()
    at = bytes(body).index(codes)
    body[at + len(codes) - 1] = DecisionCode.EXCLUDED_BUDGET
    forged = MAGIC + bytes((FORMAT,)) + zlib.compress(bytes(body))
    with pytest.raises(StorageError):
        replay(forged, full.config, kit.Contents(full))


# --- replay ----------------------------------------------------------------------------------------


def test_replay_reads_only_what_was_included(full: Any) -> None:
    assembled = full.assemble(**QUERY)
    contents = kit.Contents(full)
    window = replay(assembled.record, full.config, contents)
    included = [s for section in window.sections for s in section.sources if s.id is not None]
    assert len(contents.asked) == len(included) < len(window.assembly_trace)


def test_replay_names_the_source_that_is_gone(full: Any) -> None:
    # design section 5: only forget, purge or retention make a source gone
    assembled = full.assemble(**QUERY)

    class Forgotten(kit.Contents):  # type: ignore[misc, name-defined]
        def content(self, source_type: Any, ordinal: int, version: int) -> Any:
            return None if source_type == "artifact" else super().content(source_type, ordinal, version)

    with pytest.raises(NotFound, match=r"artifact .* is gone") as caught:
        replay(assembled.record, full.config, Forgotten(full))
    assert caught.value.entity_type == "artifact"
    assert caught.value.id == full.keys["artifact"]
    # explaining it still works
    told = explain(assembled.record, full.config, Forgotten(full))
    assert str(full.keys["artifact"]) in {item["id"] for item in told["inclusions"]}


def test_replay_notices_content_that_is_not_what_it_was(full: Any) -> None:
    assembled = full.assemble(**QUERY)

    class Wrong(kit.Contents):  # type: ignore[misc, name-defined]
        def content(self, source_type: Any, ordinal: int, version: int) -> Any:
            found = dict(super().content(source_type, ordinal, version))
            return {**found, "content": "forged"} if source_type == "note" else found

    with pytest.raises(NotFound, match="what it said then was not kept"):
        replay(assembled.record, full.config, Wrong(full))


def test_replay_wants_the_windows_configuration(full: Any) -> None:
    record = full.assemble().record
    with pytest.raises(InvalidValue, match="another configuration"):
        replay(record, kit.config_of(), kit.Contents(full))


def test_windows_can_be_compared_and_pickled(full: Any) -> None:
    window = full.window(**QUERY)
    copy = pickle.loads(pickle.dumps(window))
    assert copy == window
    assert isinstance(copy.assembly_trace, tuple)
    lazy = window.assembly_trace
    assert isinstance(lazy, LazyTuple)
    assert lazy == tuple(lazy)
    assert lazy[0] == copy.assembly_trace[0]
    assert lazy[-2:] == copy.assembly_trace[-2:]
    assert len(lazy) == len(tuple(lazy))
    assert lazy != replace(window, assembly_trace=()).assembly_trace
    assert hash(lazy) == hash(tuple(lazy))
    assert repr(lazy) == repr(tuple(lazy))


# --- explain ---------------------------------------------------------------------------------------


def test_explain_lists_everything(full: Any) -> None:
    # C-298
    assembled = full.assemble(**QUERY)
    window = assembled.window
    told = explain(assembled.record, full.config, kit.Contents(full))
    assert json.loads(json.dumps(told)) == told
    assert told["status"] == "ok"
    inclusions = [d for d in window.assembly_trace if d.action != "exclude"]
    assert [item["id"] for item in told["inclusions"]] == [
        None if d.target_id is None else str(d.target_id) for d in inclusions
    ]
    assert {"type", "id", "reason", "tokens", "relevance", "rank"} <= set(told["inclusions"][0])
    assert {"type", "id", "reason", "would_have_tokens", "relevance", "rank"} <= set(told["exclusions"][0])
    assert told["budget"]["total"] == 500
    assert told["budget"]["used"] == window.used_tokens
    assert told["budget"]["by_section"] == {
        section.section_type.value: section.token_count for section in window.sections
    }
    assert told["cut_offs"] == [
        {
            "type": "note",
            "filter": "similarity_limit",
            "limit": 3,
            "cutoff_score": pytest.approx(0.5**0.5),
            "considered": 5,
        }
    ]
    assert told["inputs"]["query"] == "what now?"
    assert told["inputs"]["candidates"] == len(window.assembly_trace)


def ask(world: Any, record: bytes, key: Any, **options: Any) -> dict[str, Any]:
    hidden = options.pop("hidden", frozenset())
    answer = explain(record, world.config, kit.Contents(world, hidden), exclusion=key, **options)
    assert json.loads(json.dumps(answer)) == answer
    return answer


def test_explain_answers_for_one_candidate(full: Any) -> None:
    # C-298: exact answers
    record = full.assemble(**QUERY).record
    included = ask(full, record, full.keys["note"])
    assert (included["verdict"], included["relevance"], included["section"]) == ("included", 1.0, "notes")
    assert included["tokens"] > 0
    dosage = ask(full, record, full.keys["third artifact"])
    assert (dosage["verdict"], dosage["rule_id"]) == ("excluded", "dosage_limit")
    assert dosage["reason"] == "better candidates fill the 2 places that pcp.dosage.max_artifacts_in_window allows"
    irrelevant = ask(full, record, full.keys["far artifact"])
    assert (irrelevant["verdict"], irrelevant["rule_id"]) == ("excluded", "relevance_threshold")
    assert (irrelevant["relevance"], irrelevant["min_relevance"]) == (0.0, 0.1)
    evicted = ask(full, record, full.keys["turn 0"])
    assert evicted["verdict"] == "excluded"
    assert evicted["reason"].startswith("turn 1 left with its block: the turns of this window begin at turn ")


def test_explain_answers_for_what_a_limit_cut_off(full: Any) -> None:
    # O-15
    record = full.assemble(**QUERY).record
    near = ask(full, record, full.keys["fourth note"], score_now=full.score_now)
    assert (near["verdict"], near["filter"], near["limit"]) == ("cut_off", "similarity_limit", 3)
    assert near["score"] == pytest.approx(0.4472, abs=1e-4)
    assert near["reason"] == "the 3 most similar of 5 notes were taken, down to 0.7071; its similarity is 0.4472"
    far = ask(full, record, full.keys["far note"], score_now=full.score_now)
    assert far["reason"] == "its similarity to the query, 0.0000, is below 0.1500"
    blind = ask(full, record, full.keys["far note"])
    assert (blind["verdict"], blind["score"]) == ("cut_off", None)
    assert "not known any more" in blind["reason"]
    recent = full.assemble(config=(few := full.config.with_overrides(**{"assembly.notes_without_query": 1}))).record
    full.config = few
    assert ask(full, recent, full.keys["note"])["reason"].startswith("only the newest 1 of 5 were considered")


def test_explain_answers_for_limits_on_turns_and_summaries(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [world.turn(f"turn {at}") for at in range(4)]
    scopes = [world.scope(summary=f"summary {at}") for at in range(3)]
    artifacts = [world.artifact(f"artifact {at}") for at in range(3)]
    set_limits(monkeypatch, max_turns=2, summary_limit=1, artifact_limit=2)
    record = world.assemble().record
    turn = ask(world, record, keys[0])
    assert (turn["verdict"], turn["limit"], turn["oldest"]) == ("cut_off", 2, 2)
    scope = ask(world, record, scopes[0])
    assert (scope["verdict"], scope["limit"], scope["oldest"]) == ("cut_off", 1, 3)
    artifact = ask(world, record, artifacts[0])
    assert (artifact["verdict"], artifact["limit"], artifact["considered"]) == ("cut_off", 2, 3)


def test_explain_answers_for_what_a_filter_kept_out(world: Any) -> None:
    now = world.now()
    later = now + timedelta(days=1)
    other = world.trajectory()
    keys = {
        "archived": world.note("a", archived_at=now),
        "superseded": world.note("b", superseded_by=world.note("c")),
        "not_yet_valid": world.note("d", valid_from=later),
        "expired": world.note("e", valid_until=now),
        "rolled_back": world.artifact("f", rolled_back_at=now),
        "retired": world.artifact("g", retired_at=now),
        "other_trajectory": world.artifact("h", trajectory_id=other),
        "no_summary": world.scope(closed=True),
    }
    spare = world.artifact("superseded artifact", superseded_by=world.artifact("its better"))
    gone = world.artifact("expired artifact", expires_at=now)
    world.scope_id = world.scope()
    keys["open"] = world.scope_id
    record = world.assemble().record
    for name, key in keys.items():
        answer = ask(world, record, key)
        assert (answer["verdict"], answer["filter"]) == ("filtered", name), name
    assert ask(world, record, spare)["filter"] == "superseded"
    assert ask(world, record, gone)["filter"] == "expired"
    world.clock.advance(ms=5_000)
    assert ask(world, record, world.note("written later"))["filter"] == "created_later"
    assert ask(world, record, world.trajectory_id)["filter"] == "kind"


def test_explain_does_not_say_whether_hidden_records_exist(world: Any) -> None:
    # design: nothing seen that should not be
    secret = world.note("secret")
    notes = world.memory.snapshot["note"]
    record = world.assemble(note_mask=np.zeros(notes.length, np.bool_)).record
    hidden = ask(world, record, secret, hidden=frozenset({secret}))
    unknown = ask(world, record, kit.numbered(12))
    assert {**hidden, "id": None} == {**unknown, "id": None}
    assert unknown["verdict"] == "unknown"


def test_explain_says_when_a_record_has_changed_since(world: Any) -> None:
    note = world.note("was archived then", archived_at=world.now())
    record = world.assemble().record
    world.change(NOTE, note, archived_at=None)
    assert ask(world, record, note)["verdict"] == "changed_since"


def test_explain_knows_candidates_that_were_deleted_since(full: Any) -> None:
    record = full.assemble(**QUERY).record
    for name in ("far artifact", "turn 0"):
        full.delete({"far artifact": ARTIFACT, "turn 0": TURN}[name], full.keys[name])
        assert ask(full, record, full.keys[name])["verdict"] == "excluded"


def test_explain_of_an_error_names_it(world: Any) -> None:
    # K-096
    world.open_space()
    artifact = world.artifact("a", [1, 0, 0, 0])
    record = world.assemble(query="q", query_embedding=[1, 0]).record
    answer = ask(world, record, artifact)
    assert (answer["verdict"], answer["rule_id"]) == ("excluded", "embedding_error")
    assert same(replay(record, world.config, kit.Contents(world)), world.window(query="q", query_embedding=[1, 0]))
    assert world.memory.snapshot.vectors
    assert EMBEDDING.name == EntityType.EMBEDDING.value


# --- what was not recalled -------------------------------------------------------------------------


@pytest.fixture
def recalling() -> Iterator[Any]:
    made = kit.World(kit.searching())
    made.open_space()
    yield made
    made.close()


def elsewhere(world: Any, **options: Any) -> tuple[uuid.UUID, uuid.UUID]:
    """Another task, and a scope of it."""
    task = world.trajectory(**options)
    return task, world.scope(trajectory=task)


def said(world: Any, text: str, where: tuple[uuid.UUID, uuid.UUID], **options: Any) -> uuid.UUID:
    made: uuid.UUID = world.turn(text, trajectory=where[0], scope=where[1], **options)
    return made


def test_explain_says_whom_recall_does_not_reach(recalling: Any) -> None:
    # issue item 1: one user's words do not come to another
    world, session = recalling, kit.numbered(50)
    world.insert(kit.BY_NAME["session"], plain(kit.BY_NAME["session"], session_id=session))
    world.trajectory_id = world.trajectory(session=session)
    world.scope_id = world.scope()
    stranger = kit.EntityRef(EntityType.USER, kit.numbered(2))
    system = kit.EntityRef(EntityType.SYSTEM, kit.numbered(3))
    turns = {
        "stranger": said(world, "the zeppelin of a stranger", elsewhere(world, initiator=stranger)),
        "mine": said(world, "the zeppelin is mine", elsewhere(world)),
        "session": said(world, "the zeppelin of a session", elsewhere(world, initiator=stranger, session=session)),
        "system": said(world, "the zeppelin that was imported", elsewhere(world, initiator=system)),
        "web": said(world, "the zeppelin from the web", elsewhere(world), trust=TrustLabel.WEB),
    }
    world.turn("what about the zeppelin?")
    expected = {
        "trajectory": set(),
        "session": {"session", "system"},
        "owner": {"mine", "system"},
        "tenant": {"stranger", "mine", "session", "system"},
    }
    for reach, recalled in expected.items():
        world.config = kit.searching(**{"recall.from": reach})
        record = world.assemble(query="zeppelin").record
        for name, turn in turns.items():
            answer = ask(world, record, turn, score_now=world.score_now)
            if name in recalled:
                assert answer["verdict"] == "included", (reach, name)
                continue
            assert (answer["verdict"], answer["filter"]) == ("filtered", "out_of_reach"), (reach, name)
            if name == "web" and reach in ("owner", "tenant"):
                assert (
                    answer["reason"]
                    == "its label is web: of other tasks, windows recall what is labelled tool or better"
                )
            else:
                assert answer["reason"].endswith(f"which recall.from = {reach} does not reach")


def test_explain_says_what_was_not_found(recalling: Any) -> None:
    # issue item 2: what explain says is true of the final window
    world = recalling
    other = elsewhere(world)
    keys = {
        "turn": said(world, "we had lunch at noon", elsewhere(world)),
        "artifact": world.artifact("lunch at noon", trajectory_id=other[0], scope_id=other[1]),
        "scope_summary": world.scope(trajectory=other[0], summary="lunch at noon"),
        "note": world.note("lunch is at noon"),
    }
    said(world, "the zeppelin landed", other)
    world.turn("when did the zeppelin land?")
    record = world.assemble(query="zeppelin").record
    for kind, key in keys.items():
        answer = ask(world, record, key, score_now=world.score_now)
        assert (answer["type"], answer["verdict"], answer["filter"]) == (kind, "cut_off", "not_found")
        assert (answer["score"], answer["breakdown"]) == (0.0, {})
        assert "too little in common with the query" in answer["reason"]
        assert "not known any more" in ask(world, record, key)["reason"]


def test_explain_says_what_the_limit_of_recall_kept_back(recalling: Any) -> None:
    # O-15
    world = recalling
    other = elsewhere(world)
    turns = [said(world, "zeppelin " * (at + 1) + "and other things " * (9 - at), other) for at in range(8)]
    world.config = kit.searching(**{"recall.limit": 3})
    record = world.assemble(query="zeppelin").record
    answers = [ask(world, record, turn, score_now=world.score_now) for turn in turns]
    cut = [answer for answer in answers if answer["verdict"] == "cut_off"]
    assert len(cut) == 5
    for answer in cut:
        assert (answer["filter"], answer["limit"], answer["considered"]) == ("relevance_limit", 3, 8)
        assert 0 < answer["score"] <= answer["cutoff_score"]
        assert answer["reason"].startswith("the 3 most relevant of 8 were taken, down to 0.")


@pytest.mark.parametrize(("overrides", "query", "reason"), [
    ({}, None, "without a query nothing is recalled"),
    ({"assembly.relevance": "vector"}, "zeppelin", "by vectors alone (assembly.relevance) nothing is recalled"),
    ({"recall.limit": 0}, "zeppelin", "with recall.limit = 0 nothing is recalled"),
])  # fmt: skip
def test_explain_says_why_nothing_was_recalled(
    recalling: Any, overrides: dict[str, Any], query: str | None, reason: str
) -> None:
    world = recalling
    other = elsewhere(world)
    turn = said(world, "the zeppelin landed", other)
    artifact = world.artifact("a zeppelin", trajectory_id=other[0], scope_id=other[1])
    world.config = kit.searching(**overrides)
    record = world.assemble(query=query).record
    for key in (turn, artifact):
        answer = ask(world, record, key, score_now=world.score_now)
        assert (answer["verdict"], answer["filter"]) == ("filtered", "other_trajectory")
        assert answer["reason"] == f"it belongs to trajectory {other[0]}, and {reason}"


def test_what_explain_says_of_the_sum_is_the_relevance(recalling: Any) -> None:
    # C-298: of carried neighbours too
    world = recalling
    other = elsewhere(world)
    said(world, "do you know where the zeppelin landed?", other)
    said(world, "in Lakehurst", other, role=TurnRole.ASSISTANT)
    window = world.window(query="where did the zeppelin land?")
    recalled = [item for item in window.assembly_trace if item.source_type is SourceType.TURN]
    assert len(recalled) == 2
    for decision in recalled:
        assert sum(decision.breakdown.values()) == pytest.approx(decision.relevance, abs=3e-4)
