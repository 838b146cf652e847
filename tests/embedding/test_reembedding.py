"""From one embedding model to another on a real store: filled beside, resumable, switched in one transaction.

Two real local providers: static word vectors of 64 and 256 dimensions where both are wanted real, hashed ones of 32 and
48 where words must not cost time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from support.configs import HASH_PROVIDER, USER, config
from support.drawn import needs
from support.inspection import inspect
from support.providers import CountingEmbeddings, outage
from support.threads import begin
from support.waits import until

import caliber
from caliber.admin.checking import rebuild_full_text
from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.protocols import FloatMatrix, FloatVector
from caliber.model import EventType
from caliber.model.errors import (
    Conflict,
    ConstraintViolation,
    EmbeddingFailed,
    InvalidValue,
    MultipleErrors,
    NotFound,
    ProviderNotConfigured,
    RequestFailed,
)

OLD = HASH_PROVIDER
NEW = {**HASH_PROVIDER, "model": "newer", "dimensions": 48}
OLD_NAME, NEW_NAME = "hash-1:test@32", "hash-1:newer@48"
MANUAL = {"embedding.reembed": "manual"}
VECTORS_ONLY = {
    "search.normalisation": "saturation",
    "search.weights": {"vector": 1.0, "keyword": 0.0, "graph": 0.0, "importance": 0.0},
    "search.min_similarity": -1.0,
    "search.keyword.similar_words": "none",
}


def settings(path: Path | str, provider: dict[str, Any], **changes: Any) -> Any:
    base: dict[str, Any] = {"embedding_provider": provider, "search.keyword.similar_words": "none"}
    return config(str(path), **{**base, "vector.dimensions": provider["dimensions"], **changes})


def add(memory: caliber.Caliber, count: int, start: int = 0) -> None:
    for at in range(start, start + count):
        memory.add_note(
            entity=f"thing {at}", entity_type="t", note_type="fact", content=f"what is known of {at}", confidence=1.0
        )


def states(memory: caliber.Caliber) -> dict[str, str]:
    return {space.name: space.state.value for space in memory.storage.embedding_spaces.list_all()}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of 40 notes and some turns, embedded with the old model."""
    path = tmp_path / "store.db"
    caliber.create(settings(path, OLD))
    with caliber.open(settings(path, OLD)) as memory:
        add(memory, 40)
        task = memory.start_trajectory("goal", initiator=USER)
        scope = memory.current_scope(task.trajectory_id)
        memory.append_turns(scope.scope_id, [{"role": "user", "content": f"said {at}"} for at in range(10)])
        memory.append_turn(scope.scope_id, role="user", content=" \n ")  # nothing to embed
        memory.flush()
        assert states(memory) == {OLD_NAME: "active"}
    return path


def vectors_of(memory: caliber.Caliber, name: str) -> list[Any]:
    space = memory.storage.embedding_spaces.find(name)
    return [row for row in memory.storage.embeddings.all() if row.space_id == space.space_id]


# --- the cycle ---------------------------------------------------------------------------------------


def test_search_goes_on_with_the_old_model_until_the_new_one_is_complete(store: Path) -> None:
    # K-101, C-494, C-495
    changes = {**MANUAL, "previous_embedding_provider": OLD}
    with caliber.open(settings(store, NEW, **changes)) as memory:
        assert states(memory) == {OLD_NAME: "active", NEW_NAME: "building"}
        found = memory.search("what is known of 7")
        assert (found.status, found.reason) == ("ok", None)
        assert "vector" in found.hits[0].breakdown
        heard: list[tuple[str, int, int | None]] = []
        came = memory.storage.embedding_spaces.reembed(progress=lambda *at: heard.append(at))
        assert (came.space, came.switched_from, came.in_use) == (NEW_NAME, OLD_NAME, True)
        assert (came.made, came.done, came.total, came.refused) == (50, 50, 51, 0)  # white space has no vector
        assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)
        assert heard[-1][1] == 50
        assert states(memory) == {OLD_NAME: "retired", NEW_NAME: "active"}
        after = memory.search("what is known of 7")
        assert (after.status, "vector" in after.hits[0].breakdown) == ("ok", True)
        assert {space.name for space in inspect(memory).resident.snapshot.spaces.values()} == {OLD_NAME, NEW_NAME}
        held = {
            inspect(memory).resident.snapshot.spaces[key[1]].name for key in inspect(memory).resident.snapshot.vectors
        }
        assert held == {NEW_NAME}, "vectors of the old model left memory"
        assert memory.admin.verify() == []
        again = memory.storage.embedding_spaces.reembed()
        assert (again.made, again.switched_from, again.in_use) == (0, None, True)
        kinds = [event.event_type for event in memory.storage.events.all() if event.family == "audit"]
        assert kinds == [EventType.SPACE_FILL, EventType.SPACE_SWITCH]
    with caliber.open(settings(store, NEW)) as memory:
        assert memory.admin.verify() == []
        assert memory.search("what is known of 7").status == "ok"
        assert len(vectors_of(memory, OLD_NAME)) == 50, "the old space is dropped by nothing but a command"


def test_without_the_old_provider_the_vector_leg_is_out_and_says_why(store: Path) -> None:
    # M-042: the other legs answer
    with caliber.open(settings(store, NEW, **MANUAL)) as memory:
        found = memory.search("what is known of 7")
        assert (found.status, found.reason) == ("degraded", f"space_being_filled: {NEW_NAME}")
        assert found.hits
        assert "vector" not in found.hits[0].breakdown
        task = memory.start_trajectory("goal", initiator=USER)
        window = memory.assemble_context(task.trajectory_id, query="what is known of 7")
        assert window.degraded == (f"space_being_filled: {NEW_NAME}",)
        memory.storage.embedding_spaces.reembed()
        assert memory.search("what is known of 7").status == "ok"


def test_a_program_that_has_the_store_open_does_it_behind(store: Path) -> None:
    with caliber.open(settings(store, NEW, previous_embedding_provider=OLD)) as memory:
        until(lambda: states(memory)[NEW_NAME] == "active")
        assert memory.admin.verify() == []
        assert memory.search("what is known of 7").status == "ok"
    # And back again: what was kept is not asked for a second time.
    provider = CountingEmbeddings()
    with caliber.open(settings(store, OLD), embedding_provider=provider) as memory:
        until(lambda: states(memory)[OLD_NAME] == "active")
        assert provider.asked == []
        assert states(memory)[NEW_NAME] == "retired"
        assert memory.admin.verify() == []
        assert memory.search("what is known of 7").status == "ok"


def test_static_vectors_of_two_sizes(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    small, large = (
        {"provider_type": "static", "model": "wordllama-l2-supercat", "dimensions": size, "options": {}}
        for size in (64, 256)
    )
    path = tmp_path / "store.db"
    caliber.create(settings(path, large))
    texts = ["Bees dance in the hive.", "The ship sails at dawn.", "Bread is baked in an oven."]
    with caliber.open(settings(path, large)) as memory:
        for text in texts:
            memory.add_note(entity="e", entity_type="t", note_type="fact", content=text, confidence=1.0)
        memory.flush()
    with caliber.open(settings(path, small, previous_embedding_provider=large, **VECTORS_ONLY)) as memory:
        until(lambda: states(memory)["wordllama-l2-supercat@64"] == "active")
        assert memory.search("the dance of bees").hits[0].content == texts[0]
        assert memory.search("a ship at sea").hits[0].content == texts[1]
        rows = vectors_of(memory, "wordllama-l2-supercat@64")
        assert {len(row.vector) for row in rows} == {4 * 64}
        assert memory.admin.verify() == []


# --- while it is filled ---------------------------------------------------------------------------------


def test_what_is_written_meanwhile_is_in_both_spaces(store: Path) -> None:
    with caliber.open(settings(store, NEW, previous_embedding_provider=OLD, **MANUAL)) as memory:
        add(memory, 5, start=100)
        memory.flush()
        assert len(vectors_of(memory, OLD_NAME)) == 55
        assert len(vectors_of(memory, NEW_NAME)) == 5, "what is there already waits for its turn"
        assert memory.search("what is known of 103").hits[0].breakdown["vector"] > 0
        memory.storage.embedding_spaces.reembed()
        add(memory, 1, start=200)
        memory.flush()
        assert len(vectors_of(memory, OLD_NAME)) == 55, "nobody searches it any more"
        assert len(vectors_of(memory, NEW_NAME)) == 56
        assert memory.admin.verify() == []


@pytest.mark.parametrize("mode", ["behind", "commit"])
def test_no_record_is_lost_by_vector_at_the_switch(store: Path, mode: str) -> None:
    """Writers go on; whatever could be found before the switch can be found after it."""
    kinds = {"embedding.embed": {"default": mode}}
    changes = {"previous_embedding_provider": OLD, **MANUAL, **kinds, "embedding.batch_size": 4}
    with caliber.open(settings(store, NEW, **changes)) as memory:
        stop = threading.Event()
        written = 0

        def write() -> None:
            nonlocal written
            while not stop.is_set():
                add(memory, 1, start=1_000 + written)
                written += 1
                stop.wait(0.002)

        thread = begin(write)
        try:
            until(lambda: written > 5)
            came = memory.storage.embedding_spaces.reembed()
            until(lambda: written > 20)
        finally:
            stop.set()
            thread.result()
        assert came.switched_from == OLD_NAME
        memory.flush()
        owners = [row.owner_id for row in vectors_of(memory, NEW_NAME)]
        assert len(owners) == len(set(owners)) == 50 + written
        assert memory.storage.embedding_spaces.progress().done == 50 + written
        assert memory.admin.verify() == []


class Pointing:
    """A deterministic provider: every record has the vector ``towards``, every query too, in its own dimensions."""

    def __init__(self, model: str, dimensions: int, towards: int) -> None:
        self.model_id, self.dimensions, self._towards = model, dimensions, towards
        self.slow_s = 0.0

    def embed(self, text: str) -> FloatVector:
        time.sleep(self.slow_s)
        out = np.zeros(self.dimensions, np.float32)
        out[self._towards], out[0] = 1.0, 0.1 if text.startswith("what is known") else 0.5
        return out

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        return np.stack([self.embed(text) for text in texts])


def test_each_search_is_answered_from_one_space(tmp_path: Path) -> None:
    """Searches beside the switch: all similarities of a result are those of one model, and no result lacks them."""
    path = tmp_path / "store.db"
    old, new = Pointing("one", 32, 1), Pointing("two", 48, 2)
    plain = {**VECTORS_ONLY, **MANUAL, "embedding_provider": None, "embedding.batch_size": 8}
    plain |= {"embedding.embed": {"default": "behind"}}

    def open_with(provider: Any, previous: Any = None) -> caliber.Caliber:
        vector = {
            "dimensions": provider.dimensions, "index_type": "exact", "distance_metric": "cosine", "hnsw_m": 16,
            "hnsw_ef_construction": 64,
        }  # fmt: skip
        made = config(str(path), **{**plain, "vector": vector})
        if not path.exists():
            caliber.create(made)
        return caliber.open(made, embedding_provider=provider, previous_embedding_provider=previous)

    with open_with(old) as memory:
        add(memory, 60)
        memory.flush()
    with open_with(new, old) as memory:
        new.slow_s = 0.002
        scores: dict[float, str] = {}
        for provider in (old, new):
            query, note = provider.embed("question"), provider.embed("thing 1\nwhat is known of 1")
            scores[round(float(query @ note / np.linalg.norm(query) / np.linalg.norm(note)), 4)] = provider.model_id
        stop = threading.Event()
        seen: list[tuple[set[float], str, int]] = []
        failures: list[BaseException] = []

        def ask() -> None:
            at = 0
            try:
                while not stop.is_set():
                    at += 1
                    found = memory.search(f"question {at}", limit=10)
                    values = {round(hit.breakdown.get("vector", -1.0), 4) for hit in found.hits}
                    seen.append((values, found.status, found.position.sequence))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        came = memory.storage.embedding_spaces.reembed()
        count = len(seen)
        until(lambda: len(seen) > count + 20)
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert came.switched_from == "one@32"
        assert {status for _, status, _ in seen} == {"ok"}
        assert all(len(values) == 1 for values, _, _ in seen), "a result mixes two models"
        # By position: first only the old model's, from one commit on only the new one's.
        spaces = memory.storage.events.all()
        assert EventType.SPACE_SWITCH in [event.event_type for event in spaces]
        in_order = [next(iter(values)) for values, _, _ in sorted(seen, key=lambda item: item[2])]
        changes = sum(one != other for one, other in pairwise(in_order))
        assert changes <= 1


def test_an_outage_stops_it_and_it_goes_on_from_there(store: Path) -> None:
    provider = Counting("newer", 48)
    changes = {**MANUAL, "previous_embedding_provider": OLD, "embedding.batch_size": 8}
    changes |= {"llm_retry_config.max_retries": 0}
    with caliber.open(settings(store, NEW, **changes), embedding_provider=provider) as memory:
        provider.fail_after = 20
        heard: list[tuple[str, int, int | None]] = []
        with pytest.raises(RequestFailed):
            memory.storage.embedding_spaces.reembed(progress=lambda *at: heard.append(at))
        assert heard[-1][1] == 18  # pages of one kind: 8 and 2 turns, 8 notes
        assert states(memory) == {OLD_NAME: "active", NEW_NAME: "building"}
        assert memory.search("what is known of 7").status == "ok", "the old model answers"
    with caliber.open(settings(store, NEW, **changes), embedding_provider=provider) as memory:
        provider.fail_after = None
        first = len(provider.asked)
        came = memory.storage.embedding_spaces.reembed()
        assert came.made == 50 - 18
        assert len(provider.asked) == first + 50 - 18, "what has a vector is not asked for again"
        assert states(memory)[NEW_NAME] == "active"


class Counting(CountingEmbeddings):
    """Hashed vectors of another model, which fails after some texts."""

    def __init__(self, model: str, dimensions: int) -> None:
        super().__init__(dimensions)
        self._inner = HashEmbeddingProvider(dimensions, model)
        self.fail_after: int | None = None
        self.refused: Callable[[str], bool] = lambda _: False

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        if self.fail_after is not None and len(self.asked) + len(texts) > self.fail_after:
            raise outage()
        if any(self.refused(text) for text in texts):
            raise EmbeddingFailed(reason="not this one")
        return super().embed_batch(texts)


def test_a_model_that_refuses_much_does_not_take_over_by_itself(store: Path) -> None:
    provider = Counting("newer", 48)
    provider.refused = lambda text: "known" in text
    changes = {**MANUAL, "previous_embedding_provider": OLD}
    with caliber.open(settings(store, NEW, **changes), embedding_provider=provider) as memory:
        with pytest.raises(EmbeddingFailed, match=r"refused 40 of 51 records.*--accept-refused"):
            memory.storage.embedding_spaces.reembed()
        assert states(memory)[OLD_NAME] == "active"
        came = memory.storage.embedding_spaces.reembed(accept_refused=True)
        assert (came.in_use, came.refused, came.done) == (True, 40, 10)
    provider.refused = lambda _: False
    with caliber.open(settings(store, NEW), embedding_provider=provider) as memory:
        memory.flush()
        assert memory.storage.embedding_spaces.progress().done == 50, "they are asked for again by the next program"


def test_with_the_old_model_down_the_new_one_is_filled_all_the_same(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caliber.embedding.embedder.IDLE_MS", 10)
    old = Counting("test", 32)
    old.fail_after = 0
    changes = {"llm_retry_config.max_retries": 0, "embedding.embed.note": "behind"}
    with caliber.open(settings(store, NEW, **changes), previous_embedding_provider=old) as memory:
        found = memory.search("what is known of 7")
        assert found.status in ("degraded", "ok")  # it may be complete by now
        add(memory, 3, start=300)
        until(lambda: states(memory)[NEW_NAME] == "active")
        until(lambda: memory.search("what is known of 7").status == "ok")  # memory follows the store
        memory.flush()
        assert len(vectors_of(memory, NEW_NAME)) == 53


def test_a_program_of_the_old_model_says_that_it_cannot_answer_any_more(store: Path) -> None:
    with caliber.open(settings(store, OLD, **{"resident.feed_poll_ms": 0})) as before:
        assert before.search("what is known of 7").status == "ok"
        with caliber.open(settings(store, NEW, **MANUAL)) as memory:
            memory.storage.embedding_spaces.reembed()
        found = before.search("what is known of 8", consistency="latest")
        assert (found.status, found.reason) == ("degraded", f"space_of_another_model: {NEW_NAME}")
        add(before, 1, start=500)  # it still writes; whoever knows the new model embeds it
        before.flush()
        assert before.admin.verify() == []
    with caliber.open(settings(store, NEW)) as memory:
        memory.flush()
        assert memory.storage.embedding_spaces.progress().done == 51


def test_what_others_leave_without_a_vector_gets_one(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.engine.pacing.FOREIGN_S", 0.05)
    off = {"embedding.embed": {"default": "off"}}
    with caliber.open(settings(store, OLD, **{"resident.feed_poll_ms": 20})) as memory:
        with caliber.open(settings(store, OLD, **off)) as other:
            add(other, 3, start=700)
        until(lambda: len(vectors_of(memory, OLD_NAME)) == 53)
        assert memory.admin.verify() == []


# --- dropping, sweeping, making anew ----------------------------------------------------------------------


@pytest.fixture
def switched(store: Path) -> Path:
    """The store, searched with the new model; the old space is retired."""
    with caliber.open(settings(store, NEW, **MANUAL)) as memory:
        memory.storage.embedding_spaces.reembed()
    return store


def test_a_space_is_dropped_by_name_unless_it_is_searched_or_configured(switched: Path) -> None:
    with caliber.open(settings(switched, NEW)) as memory:
        table = memory.storage.embedding_spaces
        with pytest.raises(ConstraintViolation, match=r"hash-1:newer@48 is the active search space; .*db reembed"):
            table.drop(NEW_NAME)
        with pytest.raises(NotFound):
            table.drop("nothing")
        with pytest.raises(NotFound):
            table.drop("hash")  # neither a model nor long enough for an id
        heard: list[tuple[str, int, int | None]] = []
        assert table.drop("hash-1:test", progress=lambda *at: heard.append(at)) == 50
        assert heard[-1] == (OLD_NAME, 50, 50)
        assert [space.name for space in table.report()] == [NEW_NAME]
        assert memory.storage.embeddings.count() == 50
        assert memory.search("what is known of 7").status == "ok"
        assert memory.admin.verify() == []
        assert memory.storage.events.all()
        with pytest.raises(NotFound):
            table.drop(OLD_NAME)
    with caliber.open(settings(switched, OLD, **MANUAL)) as memory:
        with pytest.raises(ConstraintViolation, match="would be filled again"):
            memory.storage.embedding_spaces.drop(OLD_NAME)
        assert states(memory) == {NEW_NAME: "active", OLD_NAME: "building"}
    with caliber.open(settings(switched, NEW, **MANUAL)) as memory:
        # Given up before it was filled: nobody here fills it, and it goes by a part of its id.
        space = memory.storage.embedding_spaces.find(OLD_NAME)
        assert memory.storage.embedding_spaces.drop(str(space.space_id)[:30]) == 0
        with pytest.raises(InvalidValue):
            memory.storage.embedding_spaces.find("")


def test_several_spaces_of_one_model_have_to_be_told_apart(store: Path) -> None:
    other = {**OLD, "dimensions": 16}
    with caliber.open(settings(store, other, **MANUAL)) as memory:
        find = memory.storage.embedding_spaces.find
        with pytest.raises(InvalidValue, match="the name matches several spaces: hash-1:test@32, hash-1:test@16"):
            find("hash-1:test")


def test_a_dropped_space_is_gone_from_programs_that_had_it(store: Path) -> None:
    with caliber.open(settings(store, OLD)) as before:
        with caliber.open(settings(store, NEW, **MANUAL)) as memory:
            memory.storage.embedding_spaces.reembed()
            memory.storage.embedding_spaces.drop(OLD_NAME)
        note = before.add_note(
            entity="late", entity_type="t", note_type="fact", content="written by the old", confidence=1.0
        )
        before.flush()
        assert before.search("written by the old", consistency="latest").hits[0].id == note.note_id
        assert before.admin.verify() == []
        assert before.storage.embeddings.count() == 50


def test_another_model_only_starts_where_there_is_something_to_keep(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    caliber.create(settings(path, OLD))
    with caliber.open(settings(path, OLD)) as memory:
        assert states(memory) == {OLD_NAME: "active"}
    with caliber.open(settings(path, NEW, **MANUAL)) as memory:
        assert states(memory) == {OLD_NAME: "retired", NEW_NAME: "active"}, "an empty space has nothing to wait for"


def test_the_configuration_opened_last_is_what_is_filled(store: Path) -> None:
    third = {**OLD, "model": "third"}
    with caliber.open(settings(store, NEW, **MANUAL)) as memory:
        add(memory, 1, start=50)
        with caliber.open(settings(store, third, **MANUAL)) as later:
            assert states(later) == {OLD_NAME: "active", NEW_NAME: "retired", "hash-1:third@32": "building"}
        assert memory.search("wait for its news", consistency="latest").status == "degraded"
        with pytest.raises(Conflict, match="retired or dropped by another program"):
            memory.storage.embedding_spaces.reembed()


def test_strays_are_counted_and_removed(store: Path) -> None:
    with caliber.open(settings(store, OLD)) as memory:
        assert memory.admin.sweep(dry_run=True).count == 0
        notes = list(memory.storage.notes.all())
        memory.storage.notes.update(notes[0].note_id, archived_at=notes[0].created_at)
    with contextlib.closing(apsw.Connection(str(store))) as raw:
        raw.execute("PRAGMA foreign_keys = OFF")
        raw.execute("DELETE FROM note WHERE note_id = ?", (notes[1].note_id.bytes,))
        raw.execute("UPDATE embedding SET space_id = ? WHERE owner_id = ?", (b"x" * 16, notes[2].note_id.bytes))
        raw.execute(
            "INSERT INTO embedding_space (space_id, model_id, dimensions, metric, state, created_at, version)"
            " VALUES (?, 'gone', 8, 'cosine', 'retired', 0, 1)",
            (b"y" * 16,),
        )
    with caliber.open(settings(store, OLD, **{"embedding.embed.note": "off"})) as memory:
        assert memory.search("what is known of 7").status == "ok", "vectors of an unknown space keep nobody out"
        planned = memory.admin.sweep(dry_run=True)
        counts = (planned.owner_gone, planned.owner_out_of_use, planned.space_unknown, planned.empty_spaces)
        assert counts == (1, 1, 1, ("gone@8",))
        assert memory.storage.embeddings.count() == 50
        removed = memory.admin.sweep()
        assert dataclasses.replace(removed, removed=False) == planned
        assert removed.removed
        assert memory.admin.sweep().count == 0
        assert memory.storage.embeddings.count() == 47
        assert states(memory) == {OLD_NAME: "active"}
        assert memory.admin.verify() == []


@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_what_search_is_answered_from_is_made_anew(store: Path, mode: str) -> None:
    changes = {"search.mode": mode}
    if mode == "backend":
        rebuild_full_text(settings(store, OLD, **changes))
    with contextlib.closing(apsw.Connection(str(store))) as raw:
        # A vector is lost; another was made of a text that is no longer the record's.
        raw.execute("DELETE FROM embedding WHERE ordinal = 1")
        raw.execute("UPDATE embedding SET content_hash = ? WHERE ordinal IN (2, 3)", (b"z" * 32,))
    with caliber.open(settings(store, OLD, **changes)) as memory:
        steps: list[str] = []
        came = memory.admin.rebuild_search(progress=lambda stage, *_: steps.append(stage))
        assert len(steps) >= 4
        assert (came.outdated, came.differences, came.swept.count) == (2, (), 0)
        assert memory.storage.embeddings.count() == 50
        assert came.vectors in (2, 3)  # the worker may have made the missing one already
        assert (came.full_text is None, came.texts == 0) == ((True, False) if mode == "resident" else (False, True))
        again = memory.admin.rebuild_search()
        assert (again.outdated, again.vectors, again.differences) == (0, 0, ())
        assert memory.search("what is known of 7").hits


def test_a_tenant_searched_in_the_database_changes_its_model_too(store: Path) -> None:
    changes = {"search.mode": "backend", "previous_embedding_provider": OLD, **MANUAL}
    rebuild_full_text(settings(store, NEW, **changes))
    with caliber.open(settings(store, NEW, **changes)) as memory:
        found = memory.search("what is known of 7")
        assert found.reason == "not_resident"
        assert "vector" in found.hits[0].breakdown
        assert memory.storage.embedding_spaces.reembed().switched_from == OLD_NAME
        after = memory.search("what is known of 7")
        assert after.reason == "not_resident"
        assert "vector" in after.hits[0].breakdown
        assert memory.storage.embedding_spaces.drop(OLD_NAME) == 50
        assert memory.admin.verify() == []


def test_without_a_provider_there_is_nothing_to_fill(store: Path) -> None:
    plain = {
        "embedding_provider": None,
        "search.weights": {"vector": 0.0, "keyword": 0.7, "graph": 0.2, "importance": 0.1},
    }
    with caliber.open(config(str(store), **{**plain, "vector": None})) as memory:
        for ask in (memory.storage.embedding_spaces.reembed, memory.storage.embedding_spaces.progress):
            with pytest.raises(ProviderNotConfigured):
                ask()
        assert [space.provider for space in memory.storage.embedding_spaces.report()] == [None]
        assert memory.admin.rebuild_search().differences == ()


def test_a_previous_provider_alone_is_refused_and_faults_name_their_section() -> None:
    with pytest.raises(MultipleErrors, match="to keep the earlier model, set it as embedding_provider"):
        config(":memory:", embedding_provider=None, previous_embedding_provider=OLD, vector=None)
    wrong = {**OLD, "dimensions": None}
    with pytest.raises(caliber.model.errors.MissingRequired, match=r"previous_embedding_provider\.dimensions"):
        caliber.open(settings(":memory:", NEW, previous_embedding_provider={k: v for k, v in wrong.items() if v}))


# --- on every database ------------------------------------------------------------------------------------


@needs("reopen")
def test_the_whole_cycle_on_every_database(backend: Any) -> None:
    words = {"search.keyword.similar_words": "none", "embedding.batch_size": 4, **MANUAL}
    before = backend.config(**words)
    after = backend.config(
        embedding_provider=NEW, previous_embedding_provider=OLD, **{"vector.dimensions": 48, **words}
    )
    with backend.open(before) as memory:
        add(memory, 12)
        memory.flush()
    with backend.open(after) as memory:
        assert memory.search("what is known of 7").status == "ok"
        add(memory, 1, start=20)
        memory.flush()
        came = memory.storage.embedding_spaces.reembed()
        assert (came.made, came.done, came.switched_from) == (12, 13, OLD_NAME)
        assert memory.search("what is known of 7").status == "ok"
        assert memory.admin.verify() == []
        note = next(iter(memory.storage.notes.all()))
        memory.storage.notes.update(note.note_id, archived_at=note.created_at)
        swept = memory.admin.sweep()
        assert (swept.owner_out_of_use, swept.count) == (2, 2)  # in either space
        assert memory.storage.embedding_spaces.drop(OLD_NAME) == 12
        rebuilt = memory.admin.rebuild_search()
        assert (rebuilt.outdated, rebuilt.vectors, rebuilt.differences) == (0, 0, ())
        assert [space.name for space in memory.storage.embedding_spaces.report()] == [NEW_NAME]
