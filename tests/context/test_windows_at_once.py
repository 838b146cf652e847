"""The window right after a message is the window after ``flush``, where a local provider makes vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caliber

HASH = {"provider_type": "hash", "model": "test", "dimensions": 64, "options": {}}
SAID = ("The band The Who plays on Saturday.", "We had soup for lunch.", "My sister moved to Lagos.", "The car is red.")


class Elsewhere:
    """A provider that computes on another machine, and counts how often it is asked."""

    model_id, dimensions = "elsewhere", 64

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, text: str) -> Any:
        return self.embed_batch([text])[0]

    def embed_batch(self, texts: Sequence[str]) -> Any:
        self.asked += texts
        return np.eye(64, dtype=np.float32)[[len(text) % 64 for text in texts]]


def opened(path: Path, **overrides: Any) -> caliber.Caliber:
    changes = {"embedding_provider": HASH, "vector.dimensions": 64, "search.floor.similarity": {}, **overrides}
    return caliber.open(caliber.profiles.chat_companion(path / "memory.db", **changes), create=True)


def relevances(memory: caliber.Caliber, task: Any) -> Any:
    window = memory.assemble_context(task)
    return window.text, [(each.target_id, round(each.relevance, 4)) for each in window.assembly_trace], window.status


@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_a_window_does_not_wait_for_vectors(tmp_path: Path, mode: str) -> None:
    # issue 40, item 13
    overrides = {"search.mode": mode, "search.keyword.similar_words": "none"}
    with opened(tmp_path, **overrides) as memory:
        ben = memory.acting_as(caliber.Principal.user("ben"))
        for text in SAID:
            ben.remember([{"role": "user", "content": text}, {"role": "assistant", "content": "Noted."}])
            task = ben.start_trajectory("another talk").trajectory_id
            ben.remember([{"role": "user", "content": f"Any news? {text}"}], task=task)
            before = relevances(ben, task)
            memory.flush()
            assert relevances(ben, task) == before
            scope = ben.current_scope(task)
            ben.append_turn(scope.scope_id, role="user", content=f"And what of this: {text}", name="Ben")
            before = relevances(ben, task)
            memory.flush()
            assert relevances(ben, task) == before


def test_a_window_asks_no_provider_elsewhere(tmp_path: Path) -> None:
    provider = Elsewhere()
    config = caliber.profiles.chat_companion(
        tmp_path / "memory.db", **{"embedding_provider": HASH, "vector.dimensions": 64, "embedding.embed.turn": "off"}
    )
    with caliber.open(config, create=True, embedding_provider=provider) as memory:
        task = memory.start_trajectory("a talk", user="ben").trajectory_id
        memory.remember([{"role": "user", "content": SAID[0]}], user="ben", task=task)
        memory.flush()
        asked = len(provider.asked)
        memory.assemble_context(task)
        assert len(provider.asked) == asked
