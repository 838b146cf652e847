"""Behaviour of providers as callers see it: deadlines, texts that are too long, batches that fail in part."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.configs import DIMENSIONS, USER, config
from support.deadlines import bounded
from support.drawn import needs
from support.inspection import held_back, inspect
from support.providers import CountingEmbeddings, ScriptedSummarizer, outage
from support.threads import begin
from support.waits import until

import caliber
from caliber.embedding.embedding_target import attach
from caliber.embedding.service import Embeddings
from caliber.llm.protocols import FloatVector
from caliber.model import EmbedMode, EntityType, EventType
from caliber.model.errors import (
    AuthenticationFailed,
    CaliberError,
    DimensionMismatch,
    EmbeddingFailed,
    IncompatibleOptions,
    InvalidValue,
    InvalidVector,
    MissingRequired,
    NotFound,
    RequestFailed,
    Unavailable,
)

PATIENT = {
    "llm_retry_config.max_retries": 1_000,
    "llm_retry_config.initial_backoff": 20,
    "llm_retry_config.max_backoff": 20,
}
"""Retries that would go on for twenty seconds."""

GROWING = {
    "llm_retry_config.max_retries": 1_000,
    "llm_retry_config.initial_backoff": 20,
    "llm_retry_config.max_backoff": 3_600_000,
    "llm_retry_config.backoff_multiplier": 100_000.0,
}
"""A second attempt at once, and a third one in half an hour: long after the deadline, however busy the machine is."""

ONCE = {"llm_retry_config__max_retries": 0}
BEHIND = {"embedding__embed__note": EmbedMode.BEHIND.value}

LATE_MS = 60_000

COMMIT = {"embedding.embed": {"default": "commit"}}
OFF = {"embedding.embed": {"default": "off"}}
LONG = "Bees dance in the hive. " * 12 + "Zebras run. " * 12 + "Ships sail the sea. " * 12


@pytest.fixture(autouse=True)
def _soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.embedding.embedder.IDLE_MS", 20)


class Down(CountingEmbeddings):
    """A service that is down while told so."""

    def __init__(self) -> None:
        super().__init__()
        self.failure = outage


class Partly(CountingEmbeddings):
    """A provider whose batches fail in part: some texts never work, others only after ``after`` calls."""

    def __init__(self, *, never: str = "never", later: str = "later", after: int = 2) -> None:
        super().__init__()
        self.never, self.later, self.after = never, later, after
        self.calls: list[list[str]] = []

    def embed_some(self, texts: Sequence[str]) -> list[FloatVector | CaliberError]:
        self.calls.append(list(texts))
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> FloatVector | CaliberError:
        if self.never in text:
            return EmbeddingFailed(reason="not this one")
        if self.later in text and len(self.calls) <= self.after:
            return outage()
        return self.embed(text)


def started(memory: caliber.Caliber) -> Any:
    task = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    assert scope is not None
    return task, scope


# --- deadlines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["search", "assemble_context", "assemble_context by vector"])
def test_retries_of_a_query_end_with_the_deadline(call: str) -> None:
    # design section 7: a deadline bounds the whole call
    provider = Down()
    by = {"assembly.relevance": "vector" if call.endswith("vector") else "search"}
    settings = config(":memory:", **{**GROWING, **OFF, "search.keyword.similar_words": "none", **by})
    with caliber.open(settings, embedding_provider=provider) as memory:
        task, _ = started(memory)
        if call == "search":  # M-040: the other legs answer, and the result says which one did not
            found = bounded(LATE_MS, memory.search, "words")
            assert (found.status, found.reason) == ("degraded", "query_not_embedded: request_failed")
        elif call == "assemble_context":
            window = bounded(LATE_MS, memory.assemble_context, task.trajectory_id, query="words")
            assert (window.status, window.degraded) == ("degraded", ("query_not_embedded: request_failed",))
        else:
            with pytest.raises(RequestFailed):
                bounded(LATE_MS, memory.assemble_context, task.trajectory_id, query="words")
        assert len(provider.asked) == 2


def test_a_search_without_a_deadline_is_patient() -> None:
    provider = Down()
    failures = iter([outage, outage, None])
    with caliber.open(config(":memory:", **PATIENT, **OFF), embedding_provider=provider) as memory:
        started(memory)

        def next_failure() -> Any:
            made = next(failures)
            if made is None:
                provider.failure = None
                return outage()
            return made()

        provider.failure = next_failure
        memory.search("words")
        assert len(provider.asked) == 4


@pytest.mark.parametrize("call", ["append_turn", "append_turns", "create_artifact", "add_note"])
def test_retries_of_a_write_end_with_the_deadline_and_nothing_is_written(call: str) -> None:
    provider = Down()
    with caliber.open(config(":memory:", **GROWING, **COMMIT), embedding_provider=provider) as memory:
        _, scope = started(memory)
        note = {"entity": "e", "entity_type": "t", "note_type": "fact", "content": "c", "confidence": 1.0}
        artifact = {"artifact_type": "fact", "content": "c", "extraction_method": "explicit"}
        asks: dict[str, Callable[[], object]] = {
            "append_turn": lambda: memory.append_turn(scope.scope_id, role="user", content="c"),
            "append_turns": lambda: memory.append_turns(scope.scope_id, [{"role": "user", "content": "c"}]),
            "create_artifact": lambda: memory.create_artifact(scope.scope_id, **artifact),
            "add_note": lambda: memory.add_note(**note),
        }
        with pytest.raises(RequestFailed), caliber.deadline(LATE_MS):
            asks[call]()
        assert len(provider.asked) == 2
        counts = [memory.storage.turns.count(), memory.storage.artifacts.count(), memory.storage.notes.count()]
        assert counts == [0, 0, 0]


def test_a_write_whose_preparation_took_all_the_time_is_not_written() -> None:
    provider = CountingEmbeddings()

    def slowly() -> Any:
        time.sleep(0.15)
        provider.failure = None
        return outage()

    provider.failure = slowly
    retries = {"llm_retry_config.max_retries": 1, "llm_retry_config.initial_backoff": 1}
    with caliber.open(config(":memory:", **retries, **COMMIT), embedding_provider=provider) as memory:
        note = {"entity": "e", "entity_type": "t", "note_type": "fact", "content": "c", "confidence": 1.0}
        with pytest.raises(CaliberError), caliber.deadline(100):
            memory.add_note(**note)
        assert memory.storage.notes.count() == 0
        provider.failure = slowly
        with caliber.deadline(60_000):
            memory.add_note(**note)
        assert memory.storage.notes.count() == 1


@pytest.mark.parametrize("call", ["close_scope", "complete_trajectory", "consolidate_notes"])
def test_a_slow_language_model_ends_with_the_deadline(call: str) -> None:
    summarizer = ScriptedSummarizer()
    summarizer.failing = {"summarize", "extract_artifacts", "generate_notes"}
    with caliber.open(config(":memory:", **GROWING, **OFF), summarization_provider=summarizer) as memory:
        task, scope = started(memory)
        memory.append_turn(scope.scope_id, role="user", content="KEEP this")
        asks: dict[str, Callable[[], object]] = {
            "close_scope": lambda: memory.close_scope(scope.scope_id),
            "complete_trajectory": lambda: memory.complete_trajectory(
                task.trajectory_id, status="success", summary="s"
            ),
            "consolidate_notes": lambda: memory.consolidate_notes(task.trajectory_id),
        }
        # Or it ends without what the model would have said.
        with contextlib.suppress(RequestFailed, Unavailable), caliber.deadline(LATE_MS):
            asks[call]()
        assert memory.storage.notes.count() == 0
        assert 2 <= len(summarizer.calls) <= 2 * len(set(summarizer.calls)), "each is asked a second time, and no more"


def test_a_query_that_another_thread_embeds_is_waited_for_no_longer_than_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A minute is kept for the other legs, not a tenth of a second: a busy machine may need it.
    monkeypatch.setattr("caliber.engine.pacing.KEPT_SHARE", 1)
    monkeypatch.setattr("caliber.engine.pacing.KEPT_MOST_MS", LATE_MS)
    provider = CountingEmbeddings()
    asked, go_on = threading.Event(), threading.Event()

    def slowly() -> Any:
        asked.set()
        go_on.wait(20)
        provider.failure = None
        return outage()

    provider.failure = slowly
    words = {"search.keyword.similar_words": "none"}  # whose vectors the first search would read
    with caliber.open(config(":memory:", **PATIENT, **OFF, **words), embedding_provider=provider) as memory:
        _, scope = started(memory)
        memory.append_turn(scope.scope_id, role="user", content="the goal of words")
        thread = begin(lambda: memory.search("words"))
        assert asked.wait(30)
        # An outage costs one leg: a part of the deadline is kept for the others.
        found = bounded(LATE_MS + 300, memory.search, "words")
        assert (found.status, found.reason) == ("degraded", "query_not_embedded: timeout")
        assert [hit.content for hit in found.hits] == ["the goal of words"]
        go_on.set()
        thread.result(timeout=30)


def test_flushing_does_not_wait_for_the_vectors_of_what_others_go_on_writing() -> None:
    """Each time that it asks for vectors somebody writes one more: what was there before it has its vector."""
    provider, here, most = CountingEmbeddings(), threading.get_ident(), 50
    embed_batch, written = provider.embed_batch, []
    settings = config(":memory:", **{**OFF, "embedding.embed.turn": "behind"})
    with caliber.open(settings, embedding_provider=provider) as memory:
        _, scope = started(memory)

        def busy(texts: Any) -> Any:
            if threading.get_ident() == here and len(written) < most:
                written.append(memory.append_turn(scope.scope_id, role="user", content=f"number {len(written)}"))
            return embed_batch(texts)

        provider.embed_batch = busy
        with held_back(inspect(memory).part(Embeddings).embedder):  # so that the worker does not take it
            turn = memory.append_turn(scope.scope_id, role="user", content="before")
        memory.flush()
        assert len(written) < most
        assert turn.turn_id in {vector.owner_id for vector in memory.storage.embeddings.all()}


# --- batches that fail in part -------------------------------------------------------------------------


def test_the_worker_stores_what_succeeded_and_asks_again_for_the_rest() -> None:
    # C-487
    provider = Partly(after=1)
    quick = {"llm_retry_config.max_retries": 0}
    settings = config(":memory:", **quick, **{**OFF, "embedding.embed.turn": "behind"})
    with caliber.open(settings, embedding_provider=provider) as memory:
        _, scope = started(memory)
        contents = ["one", "two never", "three later", "four"]
        with held_back(inspect(memory).part(Embeddings).embedder):  # so that the worker takes them at once
            memory.append_turns(scope.scope_id, [{"role": "user", "content": content} for content in contents])
        until(lambda: memory.storage.embeddings.count() >= 3)
        assert memory.storage.embeddings.count() == 3
        asked = [text for call in provider.calls for text in call]
        assert asked.count("one") == asked.count("four") == 1  # what had a vector is not asked for again
        assert asked.count("two never") == 1
        assert asked.count("three later") == 2
        memory.flush()
        errors = memory.storage.events.all()
        assert any(event.payload.get("where") == "embedding turn" for event in errors)


@pytest.mark.parametrize("error", [
    AuthenticationFailed(provider="p", status=401, message="the key was refused"),
    MissingRequired(field="env:KEY"),
    DimensionMismatch(expected=32, got=16),
])  # fmt: skip
def test_what_no_text_is_at_fault_for_is_waited_for(error: CaliberError) -> None:
    """A refused key is mended by somebody; the records it left without a vector must not be forgotten till then."""
    provider = CountingEmbeddings()
    provider.failure = lambda: error
    idle = {"llm_retry_config.max_backoff": 200}
    settings = config(":memory:", **idle, **{**OFF, "embedding.embed.turn": "behind"})
    with caliber.open(settings, embedding_provider=provider) as memory:
        _, scope = started(memory)
        embedder = inspect(memory).part(Embeddings).embedder
        with held_back(embedder):  # so that the worker does not find them in the store before it is told
            memory.append_turns(scope.scope_id, [{"role": "user", "content": f"number {at}"} for at in range(20)])
        with pytest.raises(type(error)):
            memory.flush()
        with held_back(embedder):
            assert memory.admin.stats()["behind"]["embeddings_waiting"] == 20
        time.sleep(0.1)
        errors = [event for event in memory.storage.events.all() if event.event_type == EventType.ERROR]
        assert len(errors) <= 2  # not one for each text
        provider.failure = None
        memory.flush()
        assert memory.storage.embeddings.count() == 20


def test_a_service_that_stays_down_is_asked_less_and_less() -> None:
    provider = CountingEmbeddings()
    times: list[float] = []

    def down() -> CaliberError:
        times.append(time.monotonic())
        return outage()

    provider.failure = down
    idle = {
        "llm_retry_config.max_retries": 0,
        "llm_retry_config.initial_backoff": 1,
        "llm_retry_config.max_backoff": 60_000,
    }
    settings = config(":memory:", **idle, **{**OFF, "embedding.embed.turn": "behind"})
    with caliber.open(settings, embedding_provider=provider) as memory:
        _, scope = started(memory)
        memory.append_turn(scope.scope_id, role="user", content="text")
        until(lambda: len(times) >= 5, seconds=60)
    waits = [after - before for before, after in pairwise(times)]
    assert len(waits) >= 4
    assert all(wait >= 0.02 * 2**at for at, wait in enumerate(waits)), waits


def test_a_write_names_what_failed_of_its_batch() -> None:
    provider = Partly()
    settings = config(":memory:", **{"llm_retry_config.max_retries": 0}, **COMMIT)
    with caliber.open(settings, embedding_provider=provider) as memory:
        _, scope = started(memory)
        turns = [{"role": "user", "content": content} for content in ("one", " ", "two never", "three", "never")]
        with pytest.raises(EmbeddingFailed, match=r"2 of 5 texts failed \(2, 4\)") as caught:
            memory.append_turns(scope.scope_id, turns)
        assert caught.value.indexes == (2, 4)
        assert memory.storage.turns.count() == 0


# --- texts that are too long ---------------------------------------------------------------------------


def long_config(mode: str, **changes: Any) -> Any:
    short = {"embedding.long_text": mode, "embedding.long_text_tokens": 40}
    return config(":memory:", **{**COMMIT, **short, **changes})


def test_a_text_cut_for_its_vector_is_reported() -> None:
    # M-015
    with caliber.open(long_config("truncate"), embedding_provider=CountingEmbeddings()) as memory:
        _, scope = started(memory)
        memory.append_turn(scope.scope_id, role="user", content="short")
        memory.append_turn(scope.scope_id, role="user", content=LONG)
        memory.search(LONG)
        memory.flush()
        cut = [event.payload for event in memory.storage.events.all() if event.event_type == EventType.EMBED_TRUNCATE]
        assert [(payload["kind"], payload["texts"]) for payload in cut] == [("turn", 1), ("query", 1)]
        assert all(payload["longest_tokens"] > 40 for payload in cut)
        assert LONG[:20] not in repr(cut)


def test_a_text_that_is_too_long_can_be_refused() -> None:
    with caliber.open(long_config("error"), embedding_provider=CountingEmbeddings()) as memory:
        _, scope = started(memory)
        with pytest.raises(EmbeddingFailed, match="more than long_text_tokens = 40"):
            memory.append_turn(scope.scope_id, role="user", content=LONG)
        assert memory.storage.turns.count() == 0


@pytest.mark.parametrize("mode", ["commit", "behind"])
def test_every_chunk_has_a_vector_and_the_best_one_counts(mode: str) -> None:
    # M-015: a part of a long text is found as well as if it stood alone
    provider = CountingEmbeddings()
    changes: dict[str, Any] = {"embedding.embed": {"default": mode}}
    # Similarities as they are: scores relative to the best would hide how near it is.
    changes["search.normalisation"] = "saturation"
    changes["search.weights"] = {"vector": 1.0, "keyword": 0.0, "graph": 0.0, "importance": 0.0}
    found: dict[str, float] = {}
    for rule in ("chunks", "chunk_mean"):
        with caliber.open(long_config(rule, **changes), embedding_provider=provider) as memory:
            _, scope = started(memory)
            turn = memory.append_turn(scope.scope_id, role="user", content=LONG)
            memory.append_turn(scope.scope_id, role="user", content="Something else entirely.")
            memory.flush()
            rows = [row for row in memory.storage.embeddings.all() if row.owner_id == turn.turn_id]
            assert sorted(row.chunk_index for row in rows) == list(range(len(rows)))
            assert (len(rows) > 2) == (rule == "chunks")
            hits = memory.search("Ships sail the sea.").hits
            assert [hit.id for hit in hits].count(turn.turn_id) == 1
            found[rule] = next(hit.score for hit in hits if hit.id == turn.turn_id)
            assert memory.admin.verify() == []
    assert found["chunks"] > found["chunk_mean"] + 0.1


def test_a_record_that_shrinks_loses_its_chunks() -> None:
    provider = CountingEmbeddings()
    with caliber.open(long_config("chunks"), embedding_provider=provider) as memory:
        note = memory.add_note(entity="e", entity_type="t", note_type="fact", content=LONG, confidence=1.0)
        assert memory.storage.embeddings.count() > 2
        embedder = inspect(memory).part(Embeddings).embedder
        assert embedder is not None
        for text, rows in (("short", 1), (LONG, 5), ("again short", 1)):
            vectors = np.eye(5, DIMENSIONS, dtype=np.float32)[:rows]
            inspect(memory).write(
                lambda uow, t=text, v=vectors: attach(uow, "note", note.note_id, t, [(embedder.configured, v)])
            )
            kept = sorted(row.chunk_index for row in memory.storage.embeddings.all())
            assert kept == list(range(rows))
            assert memory.admin.verify() == []


def test_a_long_query_has_one_vector_under_every_rule() -> None:
    for mode in ("chunks", "chunk_mean", "truncate"):
        with caliber.open(long_config(mode), embedding_provider=CountingEmbeddings()) as memory:
            _, scope = started(memory)
            memory.append_turn(scope.scope_id, role="user", content=LONG)
            assert memory.search(LONG).hits[0].score > 0.5


# --- counting by the model -------------------------------------------------------------------------------


class Counting(CountingEmbeddings):
    """A provider that reads ten words of a text."""

    max_tokens = 10

    def count_tokens(self, text: str) -> int:
        return len(text.split())


def test_long_texts_are_measured_by_the_models_own_tokenizer() -> None:
    provider = Counting()
    settings = long_config("chunks", **{"embedding.long_text_tokens": 10})
    with caliber.open(settings, embedding_provider=provider) as memory:
        _, scope = started(memory)
        memory.append_turn(scope.scope_id, role="user", content=LONG)
        assert all(len(text.split()) <= 10 for text in provider.asked)
        assert max(len(text.split()) for text in provider.asked) > 7
    with pytest.raises(IncompatibleOptions, match="of 11 tokens a piece the model would read 10"):
        caliber.open(long_config("chunks", **{"embedding.long_text_tokens": 11}), embedding_provider=provider)


def test_vectors_that_memory_cannot_hold_are_refused(memory: Any, start: Any) -> None:
    """A row that got in broke the mirrors of every program, in the middle of following the store."""
    embeddings = memory.storage.embeddings
    space = memory.storage.embedding_spaces.report()[0]
    note = start(memory).note("a lake")
    memory.flush()
    (made,) = embeddings.list_by_owner(note.note_id)
    for kind in set(EntityType) - {EntityType.TURN, EntityType.NOTE, EntityType.ARTIFACT, EntityType.SCOPE}:
        stray = dataclasses.replace(made, owner_type=kind, owner_id=uuid.uuid4())
        with pytest.raises(InvalidValue, match="scope, turn, artifact, note"):
            embeddings.insert(stray)
        with pytest.raises(InvalidValue, match="scope, turn, artifact, note"):
            embeddings.update(made.space_id, made.owner_id, made.chunk_index, owner_type=kind)
    other = dataclasses.replace(made, chunk_index=1)
    for wrong, error in (
        ({"space_id": uuid.uuid4()}, NotFound),
        ({"vector": made.vector[:-4]}, DimensionMismatch),
        ({"vector": b""}, DimensionMismatch),
        ({"vector": np.full(space.dimensions, np.nan, "<f4").tobytes()}, InvalidVector),
        ({"vector": bytes(4 * space.dimensions)}, InvalidVector),  # C-025
        ({"vector": np.full(space.dimensions, -0.0, "<f4").tobytes()}, InvalidVector),
        ({"owner_id": uuid.uuid4()}, NotFound),  # M-024, M-052
        ({"owner_type": EntityType.TURN}, NotFound),
    ):
        with pytest.raises(error):
            embeddings.insert(dataclasses.replace(other, **wrong))
        changes = {name: value for name, value in wrong.items() if name in ("vector", "owner_type")}
        if changes:
            with pytest.raises(error):
                embeddings.update(made.space_id, made.owner_id, made.chunk_index, **changes)
    assert embeddings.insert(other) == other
    assert embeddings.count() == 2
    assert memory.admin.verify() == []
    assert memory.search("lake").hits[0].id == note.note_id
    # M-018: a vector that is stored again replaces the one there was
    vector = np.ones(space.dimensions, "<f4").tobytes()
    stored = embeddings.insert(dataclasses.replace(other, vector=vector))
    assert (stored.vector, stored.version) == (vector, 2)
    assert embeddings.list_by_owner(note.note_id) == [made, stored]
    assert memory.records("note").nearest(np.ones(space.dimensions))[0][1] == pytest.approx(1)
    assert memory.admin.verify() == []
    memory.storage.notes.delete(note.note_id)
    with pytest.raises(NotFound):
        embeddings.insert(other)
    assert embeddings.count() == 0


def test_the_worker_does_not_stand_in_line_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """It rests after a small batch, so that writes meanwhile share its next transaction; nobody who asks waits."""
    monkeypatch.setattr("caliber.engine.pacing.REST_PARTS", 1e9)
    monkeypatch.setattr("caliber.engine.pacing.REST_MAX_S", 300.0)
    settings = config(":memory:", **{**OFF, "embedding.embed.turn": "behind"})
    provider = CountingEmbeddings()
    with caliber.open(settings, embedding_provider=provider) as memory:
        _, scope = started(memory)
        memory.flush()  # what it looks for when it begins is looked for: it does not come upon the first turn twice
        memory.append_turn(scope.scope_id, role="user", content="first")
        until(lambda: not memory.admin.stats()["behind"]["embeddings_waiting"], seconds=60)
        for at in range(30):
            memory.append_turn(scope.scope_id, role="user", content=f"turn {at}")
        assert memory.admin.stats()["behind"]["embeddings_waiting"] == 30
        memory.flush()
        assert memory.admin.stats()["behind"]["embeddings_waiting"] == 0
        assert memory.storage.embeddings.count() == 31


def test_a_changed_note_gets_a_new_vector_by_itself(backend: Any, start: Any) -> None:
    memory = backend.open(**BEHIND)
    note = start(memory).note("alpha beta gamma")
    memory.flush()
    memory.storage.notes.update(note.note_id, content="delta epsilon zeta")
    until(lambda: [hit.content for hit in memory.search("delta epsilon zeta").hits])
    assert memory.admin.verify() == []


def test_a_change_that_touches_no_content_keeps_the_vector(backend: Any, start: Any) -> None:
    embeddings = CountingEmbeddings()
    memory = backend.open(embedding_provider=embeddings, **BEHIND, **ONCE)
    note = start(memory).note("alpha beta gamma")
    memory.flush()
    embeddings.failure = outage
    memory.storage.notes.update(note.note_id, importance=5.0)
    assert memory.storage.embeddings.count() == 1


@needs("reopen")
def test_the_old_vector_goes_with_the_old_content_without_a_provider_too(backend: Any, start: Any) -> None:
    memory = backend.open()
    agent = start(memory)
    artifact = agent.keep("alpha beta gamma")
    memory.flush()
    memory.close()
    plain = backend.open(backend.config(embedding_provider=None))
    plain.storage.artifacts.update(artifact.artifact_id, content=b"delta epsilon zeta")
    assert plain.storage.embeddings.count() == 0
    assert plain.admin.verify() == []


def test_the_worker_survives_whatever_a_provider_raises(backend: Any, start: Any) -> None:
    embeddings = CountingEmbeddings()
    embeddings.failure = lambda: RuntimeError("a bug of the provider")
    memory = backend.open(embedding_provider=embeddings, **BEHIND)
    agent = start(memory)
    agent.note("alpha beta gamma")
    until(lambda: embeddings.asked)
    embeddings.failure = None
    until(lambda: memory.search("alpha beta gamma").hits)


def test_an_outage_is_waited_out_and_reported_once(backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.embedding.embedder.IDLE_MS", 150)
    embeddings = CountingEmbeddings()
    memory = backend.open(embedding_provider=embeddings, **{**BEHIND, **ONCE})
    calls: list[float] = []

    def down() -> Any:
        calls.append(time.monotonic())
        return outage()

    embeddings.failure = down
    agent = start(memory)
    for number in range(20):
        agent.note(f"note {number}")
    until(lambda: len(calls) > 3)
    inspect(memory).behind.flush()
    errors = [event for event in memory.storage.events.all() if event.event_type == EventType.ERROR]
    embeddings.failure = None
    assert len(errors) == 1
    assert all(after - before >= 0.15 for before, after in pairwise(calls)), "once a pause, not once a commit"
    memory.flush()
    assert memory.storage.embeddings.count() == 20
