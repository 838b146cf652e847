"""From one embedding model to another on a real store: filled beside, resumable, switched in one transaction.

Two real local providers: static word vectors of 64 and 256 dimensions where both are wanted real, hashed ones of 32 and
48 where words must not cost time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.configs import HASH_PROVIDER, USER, config
from support.providers import CountingEmbeddings

import caliber
from caliber.model import EventType
from caliber.runtime.reembedding import Progress

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


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of 40 notes and some turns, embedded with the old model."""
    path = tmp_path / "store.db"
    caliber.create(settings(path, OLD))
    with caliber.open(settings(path, OLD)) as memory:
        add(memory, 40)
        task = memory.start_trajectory("goal", initiator=USER)
        scope = memory.current_scope(task.trajectory_id)
        assert scope is not None
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
        heard: list[Progress] = []
        came = memory.storage.embedding_spaces.reembed(heard.append)
        assert (came.space, came.switched_from, came.in_use) == (NEW_NAME, OLD_NAME, True)
        assert (came.made, came.done, came.total, came.refused) == (50, 50, 51, 0)  # white space has no vector
        assert [item.done for item in heard] == sorted(item.done for item in heard)
        assert heard[-1].done == 50
        assert states(memory) == {OLD_NAME: "retired", NEW_NAME: "active"}
        after = memory.search("what is known of 7")
        assert (after.status, "vector" in after.hits[0].breakdown) == ("ok", True)
        assert {space.name for space in memory._engine.memory.snapshot.spaces.values()} == {OLD_NAME, NEW_NAME}
        held = {memory._engine.memory.snapshot.spaces[key[1]].name for key in memory._engine.memory.snapshot.vectors}
        assert held == {NEW_NAME}, "vectors of the old model left memory"
        assert memory.verify() == []
        again = memory.storage.embedding_spaces.reembed()
        assert (again.made, again.switched_from, again.in_use) == (0, None, True)
        kinds = [event.event_type for event in memory.storage.events.all() if event.family == "audit"]
        assert kinds == [EventType.SPACE_FILL, EventType.SPACE_SWITCH]
    with caliber.open(settings(store, NEW)) as memory:
        assert memory.verify() == []
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
        assert memory.verify() == []
        assert memory.search("what is known of 7").status == "ok"
    # And back again: what was kept is not asked for a second time.
    provider = CountingEmbeddings()
    with caliber.open(settings(store, OLD), embedding_provider=provider) as memory:
        until(lambda: states(memory)[OLD_NAME] == "active")
        assert provider.asked == []
        assert states(memory)[NEW_NAME] == "retired"
        assert memory.verify() == []
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
        assert memory.verify() == []
