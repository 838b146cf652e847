"""The embedding cache beside a plain dictionary, alone and under threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.evidence import examples
from support.llm.embedding import embed_texts
from support.threads import at_once

from caliber.llm.cache import EmbeddingCache
from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.protocols import FloatMatrix
from caliber.llm.texts import LongText, LongTextMode

RULE = LongText(LongTextMode.CHUNK_MEAN, 30, len)
NAMES = st.sampled_from([f"text number {number}" for number in range(12)] + ["long " * 20, "longer text " * 30])


class Counting(HashEmbeddingProvider):
    """Counts how often each text is embedded, from any thread."""

    def __init__(self) -> None:
        super().__init__(32, "counting")
        self.asked: list[str] = []

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        self.asked.extend(texts)
        return super().embed_batch(texts)


@given(st.lists(st.lists(NAMES, max_size=6), max_size=12), st.integers(0, 40), st.sampled_from([None, 1, 3]))
def test_the_cache_changes_no_answer(calls: list[list[str]], capacity: int, batch_size: int | None) -> None:
    provider = Counting()
    cache = EmbeddingCache(max_entries=capacity)
    plain = HashEmbeddingProvider(32, "counting")
    for texts in calls:
        got = embed_texts(provider, cache, texts, long_text=RULE, batch_size=batch_size)
        np.testing.assert_array_equal(got, embed_texts(plain, None, texts, long_text=RULE))
        assert len(cache) <= capacity
    if capacity == 40:
        assert len(provider.asked) == len(set(provider.asked))


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.lists(NAMES, min_size=1, max_size=8), min_size=2, max_size=6))
def test_threads_never_embed_the_same_text_twice(work: list[list[str]]) -> None:
    provider = Counting()
    cache = EmbeddingCache(max_entries=1_000)
    results: dict[int, FloatMatrix] = {}

    def run(number: int, texts: list[str]) -> None:
        results[number] = embed_texts(provider, cache, texts, long_text=RULE)

    at_once([partial(run, *pair) for pair in enumerate(work)])
    plain = HashEmbeddingProvider(32, "counting")
    for number, texts in enumerate(work):
        np.testing.assert_array_equal(results[number], embed_texts(plain, None, texts, long_text=RULE))
    assert len(provider.asked) == len(set(provider.asked))
