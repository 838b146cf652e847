"""Turns and artifacts: kept as they are, once, for as long as they are to live.

Source: C-026 to C-045, C-230 to C-235.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from contract.entities import plain
from support.configs import USER
from support.drawn import needs
from support.evidence import scale
from support.inspection import inspect
from support.providers import CountingEmbeddings, outage

import caliber
from caliber.kernels import estimate_tokens
from caliber.model import TTL, ExtractionMethod, FixedClock, ToolCall, TTLKind, TurnRole
from caliber.model.errors import Conflict, ConstraintViolation, InputError, RequiredFieldMissing
from caliber.model.time import from_us

INVALID_UTF8 = b"caf\xe9 \xff\xfe \x00 end"


# --- turns ---------------------------------------------------------------------------------------


def test_turn_comes_back_with_everything(agent: Any) -> None:
    # C-026, C-235
    call = ToolCall("call-1", "search", '{"q": 1}')
    when = datetime(2024, 2, 29, 12, tzinfo=UTC)
    first = agent.say("hello", role="user", name="Ann", occurred_at=when)
    second = agent.say("", role="assistant", tool_calls=[call], model_id="m", token_count=9, idempotency_key="k")
    third = agent.say(b"result", role="tool", tool_call_id="call-1")
    stored = agent.memory.storage.turns.list_by_scope(agent.scope_id)
    assert stored == [first, second, third]
    assert [agent.memory.get(turn.turn_id) for turn in stored] == stored
    assert (first.role, first.text, first.name, first.occurred_at) == (TurnRole.USER, "hello", "Ann", when)
    assert (second.tool_calls, second.model_id, second.token_count) == ((call,), "m", 9)
    assert (third.content, third.tool_call_id) == (b"result", "call-1")
    assert [turn.sequence for turn in stored] == [0, 1, 2]
    assert [turn.turn_number for turn in stored] == [0, 1, 2]


def test_a_tool_turn_needs_its_call(agent: Any) -> None:
    # P-032; of messages of others, whose results may name none, it is "unknown"
    memory, scope = agent.memory, agent.scope_id
    for call in (
        lambda: memory.append_turn(scope, role="tool", content="x"),
        lambda: memory.append_turns(scope, [{"role": "tool", "content": "x", "tool_call_id": None}]),
    ):
        with pytest.raises(RequiredFieldMissing, match="tool_call_id"):
            call()
    assert memory.storage.turns.count() == 0
    learned = memory.remember([{"role": "user", "content": "Look."}, {"role": "tool", "content": "x"}], user="ana")
    turns = [turn for turn in memory.storage.turns.all() if turn.trajectory_id == learned.trajectory_id]
    assert [turn.tool_call_id for turn in turns] == [None, "unknown"]


def test_token_count_is_estimated_when_left_out(agent: Any) -> None:
    # C-027
    text = "tokens are estimated from bytes: é"
    assert agent.say(text).token_count == estimate_tokens(text, estimator=inspect(agent.memory).engine.estimator)
    assert agent.say(text, token_count=0).token_count == 0
    for wrong in (-1, 1.5, "3", True, 2**63):
        with pytest.raises(InputError):
            agent.say("x", token_count=wrong)


def test_invalid_utf8_is_kept_as_bytes_and_shown_with_replacement(agent: Any) -> None:
    # issue, Bad input: invalid UTF-8 turns
    turn = agent.say(INVALID_UTF8)
    assert agent.memory.get(turn.turn_id).content == INVALID_UTF8
    assert turn.text == INVALID_UTF8.decode("utf-8", "replace")
    window = agent.memory.assemble_context(agent.trajectory_id)
    assert turn.text in window.text
    assert window.to_messages()[-1]["content"] == turn.text
    with pytest.raises(InputError):
        window.to_messages(form="other")
    artifact = agent.keep(INVALID_UTF8)
    assert agent.memory.get(artifact.artifact_id).content == INVALID_UTF8
    assert agent.memory.admin.verify() == []


def test_empty_turn_is_a_turn_and_empty_artifact_is_none(agent: Any) -> None:
    # issue, Bad input: empty content
    turn = agent.say("")
    assert (turn.content, turn.token_count) == (b"", 0)
    assert agent.say(b"").content == b""
    for empty in ("", b""):
        with pytest.raises(InputError, match="empty"):
            agent.keep(empty)
    assert agent.memory.assemble_context(agent.trajectory_id).used_tokens >= 0


def test_content_of_many_megabytes_is_kept_whole(backend: Any, start: Any) -> None:
    # issue, Bad input: 50 MB content
    agent = start(backend.open(backend.config(embedding_provider=None, resident__resident_bytes=16 << 20)))
    content = b"0123456789abcdef" * (scale(20, 50) * 1024 * 1024 // 16)
    turn = agent.say(content)
    artifact = agent.keep(content)
    assert hashlib.sha256(agent.memory.get(turn.turn_id).content).digest() == hashlib.sha256(content).digest()
    assert agent.memory.get(artifact.artifact_id).content == content
    window = agent.memory.assemble_context(agent.trajectory_id)
    assert window.used_tokens <= window.max_tokens
    assert agent.memory.admin.verify() == []


def test_content_beyond_the_limit_is_refused(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from caliber.model import arguments

    monkeypatch.setattr(arguments, "MAX_CONTENT_BYTES", 1_000)
    agent.say(b"x" * 1_000)
    with pytest.raises(InputError, match="1001 bytes"):
        agent.say(b"x" * 1_001)
    assert agent.memory.storage.turns.count() == 1


@pytest.mark.parametrize("wrong", [
    {"role": "nobody"},
    {"content": "lone \ud800 surrogate"},
    {"name": ""},
    {"name": "n" * 2_000},
    {"tool_calls": [ToolCall("1", "f", "{}")]},
    {"tool_calls": [{"id": "1"}], "role": "assistant"},
    {"tool_calls": [ToolCall("", "f", "{}")], "role": "assistant"},
    {"tool_call_id": "1"},
    {"occurred_at": datetime(2024, 1, 1)},  # noqa: DTZ001
    {"idempotency_key": ""},
    {"raw": {1: "a key that JSON has not"}},
    {"raw": float("nan")},
    {"raw": {"when": datetime(2024, 1, 1, tzinfo=UTC)}},
    {"raw": "lone \ud800 surrogate"},
])  # fmt: skip
def test_wrong_turn_is_refused_and_nothing_written(wrong: dict[str, Any], module_agent: Any) -> None:
    memory, scope_id = module_agent.memory, module_agent.scope_id
    with pytest.raises(InputError):
        memory.append_turn(scope_id, **{"role": "user", "content": "x", **wrong})
    assert memory.storage.turns.count() == 0
    assert memory.get(scope_id).turn_count == 0


def test_many_turns_are_stored_all_or_none(agent: Any) -> None:
    memory = agent.memory
    turns = memory.append_turns(agent.scope_id, ({"role": "user", "content": f"{at}"} for at in range(5)))
    assert [turn.text for turn in turns] == list("01234")
    assert [turn.turn_number for turn in turns] == list(range(5))
    assert memory.append_turns(agent.scope_id, []) == []
    for bad in (
        [{"role": "user", "content": "a"}, {"role": "no", "content": "b"}],
        [{"role": "user", "content": "a"}, {"role": "user"}],
        [{"role": "user", "content": "a", "colour": "red"}],
        [{"role": "user", "content": "a"}, 5],
    ):
        with pytest.raises(InputError):
            memory.append_turns(agent.scope_id, bad)
    assert memory.storage.turns.count() == 5
    assert memory.get(agent.scope_id).turn_count == 5


RAW: Any = {"z": [1, 2.5, None, True], "a": {"id": "secretform", "ä": "\0"}}


@pytest.mark.databases("all")
def test_a_message_comes_back_in_the_form_of_its_program(
    backend: Any, start: Any, another: Any, tmp_path: Path
) -> None:
    memory = backend.open()
    agent = start(memory)
    given = [RAW, "", b"", b"\0{\xff", False, None]
    stored = [agent.say(f"hello {at}", raw=raw, idempotency_key=f"k{at}") for at, raw in enumerate(given)]
    task, found = agent.trajectory_id, memory.records("turn_buffer").find
    before = inspect(memory).store.statement_count()
    listed = found(scope_id=agent.scope_id, order_by="sequence")
    assert inspect(memory).store.statement_count() - before < len(given), "all of them are read at once"
    for turns in (stored, listed, [memory.get(turn.turn_id) for turn in stored]):
        assert [turn.raw for turn in turns] == given
        assert list(turns[0].raw) == ["z", "a"], "in the order of its members"
    assert agent.say("hello 0", raw=RAW, idempotency_key="k0") == stored[0]
    with pytest.raises(Conflict):
        agent.say("hello 0", raw={**RAW, "z": 0}, idempotency_key="k0")
    memory.flush()
    assert not any(b"secretform" in (held if isinstance(held, bytes) else held.encode())
                   for held in inspect(memory).engine.memory.held()), "it is in the store alone"  # fmt: skip
    assert not memory.search("secretform").hits
    assert "secretform" not in memory.assemble_context(task, query="secretform").text
    with pytest.raises(InputError, match="no field raw_form"):
        found('raw_form = "x"')
    assert stored[0].token_count == memory.append_turn(agent.scope_id, role="user", content="hello 0").token_count
    assert memory.admin.verify() == []
    memory.admin.backup(tmp_path / "copy.zip")
    copy = another("sqlite").config()
    caliber.restore(copy, tmp_path / "copy.zip")
    with caliber.open(copy) as restored:
        assert [restored.get(turn.turn_id).raw for turn in stored] == given
    assert memory.delete_turn(stored[1].turn_id).raw == ""
    named = agent.say("said by forgettable", raw={"no": "name"})
    assert memory.forget(texts=["secretform", "forgettable"]).findings == 0
    assert [memory.get(turn.turn_id).raw for turn in (stored[0], named, stored[3])] == [None, None, given[3]]


def test_openai_style_tool_calls_are_taken(agent: Any) -> None:
    turn = agent.say("", role="assistant", tool_calls=[{"id": "1", "function": {"name": "f", "arguments": "{}"}}])
    assert turn.tool_calls == (ToolCall("1", "f", "{}"),)


def test_same_key_is_the_same_turn(agent: Any) -> None:
    # design section 7: the same idempotency key with other content is a Conflict
    first = agent.say("once", idempotency_key="k")
    assert agent.say("once", idempotency_key="k") == first
    with pytest.raises(Conflict) as caught:
        agent.say("changed", idempotency_key="k")
    assert "changed" not in str(caught.value)
    for changed in ({"role": "system"}, {"name": "Ann"}):
        with pytest.raises(Conflict):
            agent.say("once", **{"idempotency_key": "k", **changed})
    other = agent.memory.start_trajectory("other", initiator=USER)
    scope = agent.memory.current_scope(other.trajectory_id)
    assert (
        agent.memory.append_turn(scope.scope_id, role="user", content="x", idempotency_key="k").turn_id != first.turn_id
    )
    assert agent.memory.get(agent.scope_id).turn_count == 1


def test_repeated_turn_is_found_after_its_scope_closed(agent: Any) -> None:
    """A caller that did not hear the answer asks again, however long after."""
    first = agent.say("once", idempotency_key="k")
    agent.memory.close_scope(agent.scope_id)
    assert agent.say("once", idempotency_key="k").turn_id == first.turn_id


def test_import_that_is_repeated_adds_what_is_new(agent: Any) -> None:
    batch = [{"role": "user", "content": f"{at}", "idempotency_key": f"k{at}"} for at in range(3)]
    first = agent.memory.append_turns(agent.scope_id, batch)
    longer = [*batch, {"role": "user", "content": "3", "idempotency_key": "k3"}, {"role": "user", "content": "free"}]
    second = agent.memory.append_turns(agent.scope_id, longer)
    assert second[:3] == first
    assert [turn.text for turn in second[3:]] == ["3", "free"]
    assert agent.memory.storage.turns.count() == 5
    with pytest.raises(Conflict, match="twice"):
        agent.memory.append_turns(agent.scope_id, [batch[0] | {"idempotency_key": "new"}] * 2)
    assert agent.memory.storage.turns.count() == 5


def test_turn_into_a_closed_scope_is_refused(agent: Any) -> None:
    # issue, Bad input: closed scopes; C-344, C-232
    agent.memory.close_scope(agent.scope_id)
    with pytest.raises(ConstraintViolation, match="closed"):
        agent.say("late")
    with pytest.raises(ConstraintViolation, match="closed"):
        agent.keep("late")
    assert agent.memory.storage.turns.count() == 0
    assert agent.memory.storage.artifacts.count() == 0
    from caliber.schema.relations import TURN

    late = plain(TURN, trajectory_id=agent.trajectory_id, scope_id=agent.scope_id)
    with pytest.raises(ConstraintViolation):
        agent.memory.storage.turns.insert(late)


# --- artifacts -----------------------------------------------------------------------------------


def test_artifact_comes_back_with_everything(backend: Any, start: Any) -> None:
    # C-040, C-041
    clock = FixedClock()
    agent = start(backend.open(clock=clock))
    artifact = agent.keep(
        "content", artifact_type="code_patch", extraction_method="inferred", confidence=0.25, ttl="90s", source_turn=0,
        schema_version="2", idempotency_key="k", occurred_at=datetime(2024, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    assert agent.memory.get(artifact.artifact_id) == artifact
    assert artifact.content_hash == hashlib.sha256(b"content").digest()
    assert artifact.ttl == TTL(TTLKind.DURATION, 90_000)
    assert artifact.expires_at == from_us(clock.now_us() + 90_000_000)
    assert artifact.provenance.extraction_method is ExtractionMethod.INFERRED
    assert (artifact.trajectory_id, artifact.scope_id) == (agent.trajectory_id, agent.scope_id)
    storage = agent.memory.storage.artifacts
    assert storage.list_by_scope(agent.scope_id) == [artifact]
    assert storage.list_by_trajectory(agent.trajectory_id) == [artifact]
    assert storage.list_by_type(agent.trajectory_id, "code_patch") == [artifact]
    assert storage.list_by_type(agent.trajectory_id, "fact") == []
    assert storage.list_by_hash(agent.trajectory_id, artifact.content_hash) == [artifact]


def test_equal_content_is_kept_once_in_a_trajectory_and_type(agent: Any) -> None:
    # C-230, K-043
    first = agent.keep("the same", confidence=0.2)
    again = agent.keep("the same", confidence=0.9, extraction_method="inferred", source_turn=3)
    assert again.artifact_id == first.artifact_id
    assert (again.confidence, again.extraction_method, again.source_turn) == (0.9, ExtractionMethod.INFERRED, 3)
    unchanged = agent.keep("the same", confidence=0.9, extraction_method="inferred", source_turn=3)
    assert unchanged.version == again.version, "nothing new, nothing written"
    assert agent.keep("the same", artifact_type="constraint").artifact_id != first.artifact_id
    other = agent.memory.start_trajectory("other", initiator=USER)
    scope = agent.memory.current_scope(other.trajectory_id)
    elsewhere = agent.memory.create_artifact(
        scope.scope_id, artifact_type="fact", content="the same", extraction_method="explicit"
    )
    assert elsewhere.artifact_id != first.artifact_id
    assert agent.memory.storage.artifacts.count() == 3


def test_provider_is_asked_once_for_the_same_content(backend: Any, start: Any) -> None:
    # C-231: the same content does not cost a second call
    provider = CountingEmbeddings()
    agent = start(backend.open(embedding_provider=provider))
    for _ in range(3):
        agent.keep("the same content")
    assert provider.asked.count("the same content") == 1


def test_artifact_key_given_again(agent: Any) -> None:
    first = agent.keep("one", idempotency_key="k")
    assert agent.keep("one", idempotency_key="k") == first
    with pytest.raises(Conflict):
        agent.keep("two", idempotency_key="k")
    with pytest.raises(Conflict):
        agent.keep("one", idempotency_key="k", artifact_type="constraint")
    agent.memory.close_scope(agent.scope_id)
    assert agent.keep("one", idempotency_key="k").artifact_id == first.artifact_id


def test_failed_embedding_at_commit_stores_nothing(backend: Any, start: Any) -> None:
    # design section 4: ``commit`` prepares first, and its failure stores nothing
    provider = CountingEmbeddings()
    memory = backend.open(embedding_provider=provider, embedding__embed__turn="commit")
    agent = start(memory)
    provider.failure = outage
    for attempt in (lambda: agent.keep("x"), lambda: agent.say("x"), lambda: agent.note("x")):
        with pytest.raises(Exception, match="503"):
            attempt()
    for table in ("turns", "artifacts", "notes"):
        assert getattr(memory.storage, table).count() == 0
    provider.failure = None
    agent.say("x")
    agent.keep("y")
    agent.note("z")
    assert memory.storage.embeddings.count() == 3
    assert memory.admin.verify() == []


@pytest.mark.parametrize("mode", ["commit", "behind"])
def test_white_space_is_kept_without_a_vector(mode: str, backend: Any, start: Any) -> None:
    """There is nothing to embed in it, which is no reason not to keep it (K-116)."""
    provider = CountingEmbeddings()
    memory = backend.open(embedding_provider=provider, embedding__embed__turn=mode, embedding__embed__artifact=mode)
    agent = start(memory)
    for content in (b"\t", " \n ", "\u2003"):
        agent.keep(content)
        agent.say(content)
    memory.append_turns(agent.scope_id, [{"role": "user", "content": text} for text in ("a", "", "b", " ")])
    memory.flush()
    assert memory.storage.turns.count() == 7
    assert memory.storage.artifacts.count() == 3
    assert sorted(provider.asked) == ["a", "b"]
    assert memory.search("a", kinds=["turn"]).pending == 0
    assert [event for event in memory.storage.events.all() if event.event_type == "error"] == []
    assert memory.admin.verify() == []


@pytest.mark.parametrize("mode", ["commit", "behind"])
def test_a_turn_is_embedded_with_who_says_it(mode: str, backend: Any, start: Any) -> None:
    """As it is indexed by word: a question that names its speaker is then nearer to it."""
    provider = CountingEmbeddings()
    memory = backend.open(embedding_provider=provider, embedding__embed__turn=mode)
    agent = start(memory)
    agent.say("the tea is ready", name="Ines")
    agent.say("thanks")
    agent.say("  ", name="Tomas")
    memory.append_turns(agent.scope_id, [{"role": "user", "content": "more tea", "name": "Tomas"}])
    memory.flush()
    assert sorted(provider.asked) == ["Ines: the tea is ready", "Tomas: more tea", "thanks"]
    assert memory.storage.embeddings.count() == 3
    assert memory.admin.verify() == []


@needs("reopen")
def test_what_was_left_without_a_vector_is_embedded_with_its_head(backend: Any, start: Any) -> None:
    with backend.open(backend.config(embedding_provider=None)) as memory:
        agent = start(memory)
        agent.say("the tea is ready", name="Ines")
        agent.say("\t", name="Ines")
        agent.note("kettles boil", entity="kettle")
        agent.keep("a recipe")
    provider = CountingEmbeddings()
    with backend.open(embedding_provider=provider) as memory:
        memory.flush()
        assert sorted(provider.asked) == ["Ines: the tea is ready", "a recipe", "kettle: kettles boil"]
        memory.flush()
        assert len(provider.asked) == 3, "white space is not asked for, however often"


def test_embedding_behind_is_made_up_for(backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedding behind the commit is pending until it is done; an outage only delays it."""
    monkeypatch.setattr("caliber.embedding.embedder.IDLE_MS", 5)
    provider = CountingEmbeddings()
    memory = backend.open(
        embedding_provider=provider, embedding__embed__turn="behind",
        embedding__embed__note="behind",
    )  # fmt: skip
    agent = start(memory)
    provider.failure = outage
    turn = agent.say("said during the outage")
    agent.note("noted during the outage")
    assert memory.get(turn.turn_id).text == "said during the outage"
    provider.failure = None
    memory.flush()
    assert memory.storage.embeddings.count() == 2
    assert memory.search("said during the outage", kinds=["turn"]).hits[0].id == turn.turn_id
    assert memory.search("said", limit=1).pending == 0
    assert memory.admin.verify() == []


@needs("reopen")
def test_pending_embeddings_are_found_after_reopening(backend: Any, start: Any) -> None:
    provider = CountingEmbeddings()
    provider.failure = outage
    memory = backend.open(embedding_provider=provider, embedding__embed__turn="behind")
    turn = start(memory).say("found again")
    memory.close()
    with backend.open(embedding_provider=CountingEmbeddings(), embedding__embed__turn="behind") as again:
        again.flush()
        assert again.search("found again", kinds=["turn"]).hits[0].id == turn.turn_id


# --- time to live --------------------------------------------------------------------------------


def test_artifacts_live_as_long_as_they_are_told(backend: Any, start: Any) -> None:
    # C-012 to C-014
    clock = FixedClock()
    memory = backend.open(clock=clock, policies=[])
    session = memory.start_session(initiator=USER)
    trajectory = memory.start_trajectory("goal", initiator=USER, session=session.session_id)
    first = memory.current_scope(trajectory.trajectory_id)

    def keep(content: str, ttl: Any) -> Any:
        return memory.create_artifact(
            first.scope_id, artifact_type="fact", content=content, extraction_method="explicit", ttl=ttl
        ).artifact_id

    kept = {
        "for ever": keep("for ever", None),
        "also for ever": keep("also for ever", "persistent"),
        "of the scope": keep("of the scope", "scope"),
        "of the session": keep("of the session", "session"),
        "ten seconds": keep("ten seconds", "10s"),
        "twenty seconds": keep("twenty seconds", 20_000),
    }

    def alive() -> set[str]:
        found = {hit.content for hit in memory.search("", kinds=["artifact"], limit=20).hits}
        text = memory.assemble_context(trajectory.trajectory_id).text
        assert {name for name in kept if f"{name}\n" in text + "\n"} == found
        return found

    everything = set(kept)
    assert alive() == everything
    memory.close_scope(first.scope_id)
    assert alive() == everything - {"of the scope"}
    clock.advance(ms=9_999)
    assert alive() == everything - {"of the scope"}
    clock.advance(ms=1)
    assert alive() == everything - {"of the scope", "ten seconds"}
    memory.end_session(session.session_id)
    clock.advance(ms=10_000)
    assert alive() == {"for ever", "also for ever"}
    assert memory.storage.artifacts.count() == 6, "what has expired stays in the store"
    assert memory.admin.maintain()["artifacts"] == 2
    assert memory.admin.maintain()["artifacts"] == 0
    assert memory.get(kept["ten seconds"]).retired_at is not None
    assert memory.admin.verify() == []


def test_expired_content_can_be_kept_anew(backend: Any, start: Any) -> None:
    clock = FixedClock()
    agent = start(backend.open(clock=clock))
    first = agent.keep("again", ttl="1s")
    clock.advance(ms=1_000)
    second = agent.keep("again", ttl="1s")
    assert second.artifact_id != first.artifact_id
    assert agent.memory.get(first.artifact_id).retired_at is not None
    assert second.expires_at == from_us(clock.now_us() + 1_000_000)


@pytest.mark.parametrize("wrong", [
    {"artifact_type": "poem"}, {"extraction_method": "guessed"}, {"confidence": 1.5}, {"confidence": float("nan")},
    {"ttl": "soon"}, {"ttl": 0}, {"ttl": -5}, {"ttl": 2**63}, {"ttl": 1.5}, {"ttl": "session"},
    {"ttl": TTL(TTLKind.DURATION)}, {"ttl": TTL(TTLKind.PERSISTENT, 5)}, {"ttl": "99999999999999999999w"},
    {"ttl": 2**62}, {"source_turn": -1}, {"schema_version": ""},
])  # fmt: skip
def test_wrong_artifact_is_refused_and_nothing_written(wrong: dict[str, Any], module_agent: Any) -> None:
    with pytest.raises(InputError):
        module_agent.keep(**{"content": "x", **wrong})
    assert module_agent.memory.storage.artifacts.count() == 0


def test_artifact_in_storage_must_fit_its_scope_and_hash(agent: Any) -> None:
    # C-041, C-042
    from caliber.schema.relations import ARTIFACT

    content = b"content"
    fitting = {
        "scope_id": agent.scope_id,
        "trajectory_id": agent.trajectory_id,
        "content": content,
        "content_hash": hashlib.sha256(content).digest(),
    }
    agent.memory.storage.artifacts.insert(plain(ARTIFACT, **fitting))
    other = agent.memory.start_trajectory("other", initiator=USER)
    with pytest.raises(ConstraintViolation, match="another trajectory"):
        agent.memory.storage.artifacts.insert(plain(ARTIFACT, **{**fitting, "trajectory_id": other.trajectory_id}))
    with pytest.raises(ConstraintViolation, match="SHA-256"):
        agent.memory.storage.artifacts.insert(plain(ARTIFACT, **{**fitting, "content_hash": b"\x00" * 32}))


def test_a_key_that_came_with_known_content_is_kept(agent: Any) -> None:  # C-230, K-044
    first = agent.keep("one")
    again = agent.keep("one", idempotency_key="k")
    assert again.artifact_id == first.artifact_id
    with pytest.raises(Conflict):
        agent.keep("two", idempotency_key="k")


def test_nothing_begins_to_live_as_long_as_an_ended_session(memory: caliber.Caliber) -> None:  # C-013, K-210
    session = memory.start_session(initiator=USER)
    trajectory = memory.start_trajectory("outlive", initiator=USER, session=session.session_id)
    scope = memory.current_scope(trajectory.trajectory_id)
    assert scope is not None
    memory.end_session(session.session_id)
    fact = {"artifact_type": "fact", "content": "temporary", "extraction_method": "explicit"}
    with pytest.raises(ConstraintViolation):
        memory.create_artifact(scope.scope_id, ttl="session", **fact)
    assert memory.create_artifact(scope.scope_id, **fact)


def test_an_artifact_changed_by_hand_keeps_a_true_hash(backend: Any, start: Any) -> None:  # C-041
    memory = backend.open(validation_mode="always")
    agent = start(memory)
    artifact = agent.keep("first")
    changed = memory.storage.artifacts.update(artifact.artifact_id, content="second, and longer")
    assert changed.content == b"second, and longer"
    assert changed.content_hash == hashlib.sha256(changed.content).digest()
    assert changed.token_count > artifact.token_count
    assert memory.get(artifact.artifact_id).text == "second, and longer"
    with pytest.raises(ConstraintViolation):
        memory.storage.artifacts.update(artifact.artifact_id, content_hash=bytes(32))
    assert memory.admin.verify() == []
