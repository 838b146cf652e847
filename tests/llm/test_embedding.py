"""From texts to validated vectors: checks of answers, long texts, batches that fail in part; registry of providers."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.llm.embedding import embed_texts

from caliber.llm import EmbeddingProvider, SummarizationProvider, build_embedding_provider, build_summarization_provider
from caliber.llm.cache import EmbeddingCache
from caliber.llm.embedding import Embedded, embed_records
from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.protocols import FloatMatrix, FloatVector
from caliber.llm.registry import EMBEDDING
from caliber.llm.texts import LongText, LongTextMode
from caliber.model.errors import (
    CaliberError,
    ConfigError,
    DimensionMismatch,
    EmbeddingFailed,
    IncompatibleOptions,
    InvalidConfigValue,
    InvalidResponse,
    InvalidValue,
    InvalidVector,
    MissingRequired,
    ProviderNotSupported,
    RateLimited,
)


def count(text: str) -> int:
    return math.ceil(len(text.encode("utf-8", "replace")) / 3.5)


WHOLE = LongText(LongTextMode.CHUNK_MEAN, 8_000, count)


class Spy:
    """A provider that records what it is asked, and can answer wrongly."""

    def __init__(self, dimensions: int = 16) -> None:
        self.inner = HashEmbeddingProvider(dimensions, "spy")
        self.calls: list[list[str]] = []
        self.answer: object = None
        self.poison: str | None = None
        self.error: CaliberError | None = None

    @property
    def model_id(self) -> str:
        return self.inner.model_id

    @property
    def dimensions(self) -> int:
        return self.inner.dimensions

    def embed(self, text: str) -> FloatVector:
        return self.inner.embed(text)

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        self.calls.append(list(texts))
        if self.error is not None:
            raise self.error
        if self.poison is not None and any(self.poison in text for text in texts):
            raise EmbeddingFailed(reason="poison")
        return self.inner.embed_batch(texts) if self.answer is None else self.answer  # type: ignore[return-value]


def test_order_is_kept_and_repetitions_are_asked_once() -> None:
    # C-247
    spy = Spy()
    cache = EmbeddingCache(max_entries=100)
    texts = ["one", "two", "one", "three"]
    vectors = embed_texts(spy, cache, texts, long_text=WHOLE)
    np.testing.assert_array_equal(vectors, spy.inner.embed_batch(texts))
    assert spy.calls == [["one", "two", "three"]]
    embed_texts(spy, cache, ["four", "two"], long_text=WHOLE)
    assert spy.calls[1:] == [["four"]]
    vectors[0] = 0.0  # the caller's own
    assert embed_texts(spy, cache, ["one"], long_text=WHOLE)[0].any()


def test_batches_are_no_larger_than_asked_for_and_what_succeeded_is_kept() -> None:
    # C-247, M-007
    spy = Spy()
    cache = EmbeddingCache(max_entries=100)
    texts = [str(number) for number in range(5)]
    assert embed_texts(spy, None, texts, long_text=WHOLE, batch_size=2).shape == (5, 16)
    assert [len(call) for call in spy.calls] == [2, 2, 1]
    spy.calls.clear()
    spy.poison = "4"
    with pytest.raises(EmbeddingFailed):
        embed_texts(spy, cache, texts, long_text=WHOLE, batch_size=2)
    spy.calls.clear()
    spy.poison = None
    embed_texts(spy, cache, texts, long_text=WHOLE, batch_size=2)
    assert spy.calls == [["4"]]


def test_no_texts_ask_nobody() -> None:
    spy = Spy()
    assert embed_texts(spy, None, [], long_text=WHOLE).shape == (0, 16)
    assert spy.calls == []


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(("answer", "error"), [
    (np.ones((1, 16), dtype=np.float32), InvalidResponse),  # M-012, K-113: one vector for two texts
    (np.ones((3, 16), dtype=np.float32), InvalidResponse),
    (np.ones(32, dtype=np.float32), InvalidResponse),
    (np.ones((2, 16), dtype=np.int64), InvalidResponse),
    ([[1.0] * 16] * 2, InvalidResponse),
    (np.ones((2, 8), dtype=np.float32), DimensionMismatch),  # M-011
    (np.full((2, 16), np.nan, dtype=np.float32), InvalidVector),
    (np.full((2, 16), 1e300), InvalidVector),  # infinite once it is f32
    (np.zeros((2, 16), dtype=np.float32), InvalidVector),  # K-116: no direction
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_wrong_answers_of_a_provider_are_errors(answer: object, error: type[CaliberError], cached: bool) -> None:
    spy = Spy()
    spy.answer = answer
    cache = EmbeddingCache(max_entries=10) if cached else None
    with pytest.raises(error):
        embed_texts(spy, cache, ["a", "b"], long_text=WHOLE)
    if cache is not None:
        assert len(cache) == 0


def test_doubles_from_a_provider_are_taken_as_floats() -> None:
    spy = Spy()
    spy.answer = np.ones((1, 16), dtype=np.float64)
    assert embed_texts(spy, None, ["a"], long_text=WHOLE).dtype == np.float32


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_nobody_is_asked_for_an_empty_text(text: str) -> None:
    # M-014
    spy = Spy()
    with pytest.raises(EmbeddingFailed, match="empty text"):
        embed_texts(spy, None, [text], long_text=WHOLE)
    assert spy.calls == []


LONG = "alpha beta gamma delta. " * 40  # 960 bytes, 275 tokens


def test_a_long_text_is_the_weighted_mean_of_its_chunks() -> None:
    # M-015, K-116
    spy = Spy()
    rule = LongText(LongTextMode.CHUNK_MEAN, 100, count)
    vector = embed_texts(spy, None, [LONG + "omega"], long_text=rule)[0]
    (chunks,) = spy.calls
    assert "".join(chunks) == LONG + "omega"
    assert len(chunks) == 3
    assert all(count(chunk) <= 100 for chunk in chunks)
    assert all(chunk[-1] == " " for chunk in chunks[:-1])
    weights = np.array([count(chunk) for chunk in chunks], dtype=np.float64)
    mean = weights @ spy.inner.embed_batch(chunks).astype(np.float64)
    np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)
    assert float(np.linalg.norm(vector)) == pytest.approx(1.0, abs=1e-6)


def test_a_long_text_can_be_truncated() -> None:
    spy = Spy()
    vector = embed_texts(spy, None, [LONG], long_text=LongText(LongTextMode.TRUNCATE, 100, count))[0]
    ((only,),) = spy.calls
    assert LONG.startswith(only)
    assert 90 <= count(only) <= 100
    np.testing.assert_array_equal(vector, spy.inner.embed(only))


def test_a_long_text_can_be_an_error_that_says_how_long_but_not_what() -> None:
    spy = Spy()
    with pytest.raises(EmbeddingFailed, match="275 tokens, more than long_text_tokens = 100") as caught:
        embed_texts(spy, None, [LONG], long_text=LongText(LongTextMode.ERROR, 100, count))[0]
    assert "alpha" not in str(caught.value) + repr(caught.value.context)
    assert spy.calls == []


def test_cached_vectors_do_not_depend_on_the_rule_for_long_texts() -> None:
    cache = EmbeddingCache(max_entries=100)
    spy = Spy()
    truncated = embed_texts(spy, cache, [LONG], long_text=LongText(LongTextMode.TRUNCATE, 100, count))[0]
    mean = embed_texts(spy, cache, [LONG], long_text=LongText(LongTextMode.CHUNK_MEAN, 100, count))[0]
    whole = embed_texts(spy, cache, [LONG], long_text=WHOLE)[0]
    assert not np.array_equal(truncated, mean)
    np.testing.assert_array_equal(whole, spy.inner.embed(LONG))


def test_blank_chunks_of_a_long_text_are_left_out() -> None:
    spy = Spy()
    rule = LongText(LongTextMode.CHUNK_MEAN, 10, count)
    vector = embed_texts(spy, None, ["start" + " " * 500 + "end"], long_text=rule)[0]
    assert np.isfinite(vector).all()
    assert all(chunk.strip() for chunk in spy.calls[0])


def test_a_limit_below_one_character_is_refused() -> None:
    with pytest.raises(InvalidValue):
        LongText(LongTextMode.ERROR, 0, count)
    with pytest.raises(InvalidValue, match="single character"):
        embed_texts(Spy(), None, ["text"], long_text=LongText(LongTextMode.CHUNK_MEAN, 1, lambda text: 5 * len(text)))[
            0
        ]


def test_each_text_gets_its_own_result() -> None:
    spy = Spy()
    spy.poison = "bad"
    results = embed_records(spy, None, ["good", "bad", "", "fine"], long_text=WHOLE)
    assert [isinstance(result, EmbeddingFailed) for result in results] == [False, True, True, False]
    good = results[0]
    assert isinstance(good, Embedded)
    np.testing.assert_array_equal(good.rows[0], spy.inner.embed("good"))


def test_an_outage_is_not_asked_again_for_every_text() -> None:
    spy = Spy()
    spy.error = RateLimited(provider="spy", retry_after_ms=10)
    results = embed_records(spy, None, ["a", "b", "c"], long_text=WHOLE)
    assert results == [spy.error] * 3
    assert len(spy.calls) == 1


ROOT = Path(__file__).parents[2]


@dataclass
class Settings:
    provider_type: str
    model: str
    dimensions: int | None = None
    endpoint: str | None = None
    api_key: object | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    http: Any = None
    chat: Any = None


STATIC = "wordllama-l2-supercat"


def test_each_named_embedding_provider_is_built() -> None:
    # C-102, C-246, C-248
    static = build_embedding_provider(Settings("static", STATIC))
    short = build_embedding_provider(Settings("static", STATIC, dimensions=64))
    hashed = build_embedding_provider(Settings("hash", "tests", dimensions=48))
    assert (static.dimensions, short.dimensions, hashed.dimensions) == (256, 64, 48)
    assert isinstance(static, EmbeddingProvider)
    assert hashed.model_id == "hash-1:tests"


def test_the_extractive_provider_is_built_with_and_without_embeddings() -> None:
    # C-103, C-497
    hashed = build_embedding_provider(Settings("hash", "tests", dimensions=48))
    for embedder in (None, hashed):
        provider = build_summarization_provider(Settings("extractive", "extractive"), embedder, len)
        assert isinstance(provider, SummarizationProvider)
        assert provider.summarize("Some words here. Other words there.", 20) in (
            "Some words here.",
            "Other words there.",
        )
    assert provider.model_id == "extractive-2+hash-1:tests"


def test_an_unknown_type_lists_the_known_ones() -> None:
    with pytest.raises(ProviderNotSupported, match="'cohere' is not supported; supported: hash, minilm") as caught:
        build_embedding_provider(Settings("cohere", "m"))
    assert caught.value.supported == tuple(sorted(EMBEDDING))
    with pytest.raises(ProviderNotSupported, match="supported: anthropic, extractive"):
        build_summarization_provider(Settings("voyage", "m"), None, len)


@pytest.mark.parametrize(("settings", "error"), [
    (Settings("static", "another"), InvalidConfigValue),
    (Settings("static", STATIC, dimensions=100), InvalidConfigValue),
    (Settings("static", STATIC, endpoint="http://localhost"), IncompatibleOptions),
    (Settings("static", STATIC, api_key="env:KEY"), IncompatibleOptions),
    (Settings("static", STATIC, options={"speed": 3}), InvalidConfigValue),
    (Settings("hash", "m"), MissingRequired),
    (Settings("hash", "m", dimensions=0), InvalidConfigValue),
    (Settings("hash", "", dimensions=8), InvalidConfigValue),
])  # fmt: skip
def test_settings_that_cannot_hold_are_refused_and_none_is_ignored(
    settings: Settings, error: type[ConfigError]
) -> None:
    with pytest.raises(error):
        build_embedding_provider(settings)


@pytest.mark.parametrize("settings", [
    Settings("extractive", "another"),
    Settings("extractive", "extractive", endpoint="http://localhost"),
    Settings("extractive", "extractive", options={"damping": 0.5}),
])  # fmt: skip
def test_settings_of_the_extractive_provider_are_checked_too(settings: Settings) -> None:
    with pytest.raises(ConfigError):
        build_summarization_provider(settings, None, len)


def test_errors_never_show_a_key() -> None:
    # M-013, C-105
    with pytest.raises(CaliberError) as caught:
        build_embedding_provider(Settings("static", STATIC, api_key="sk-very-secret"))
    assert "sk-very-secret" not in str(caught.value) + repr(caught.value.context)


def test_the_reference_profile_names_providers_that_exist(tmp_path: Path) -> None:
    # Issue 2, providers: without an LLM everything still works.
    from caliber.config import profiles

    config = profiles.reference(tmp_path / "store.db")
    assert config.embedding_provider is not None
    assert config.summarization_provider is not None
    embedder = build_embedding_provider(config.embedding_provider)
    assert embedder.dimensions == config.embedding_provider.dimensions
    build_summarization_provider(config.summarization_provider, embedder, len)


def test_importing_the_room_is_cheap() -> None:
    script = (
        "import sys, json, numpy\n"
        "before = set(sys.modules)\n"
        "import caliber.llm\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    loaded = json.loads(done.stdout)
    assert not [name for name in loaded if name.split(".")[0] in ("tokenizers", "safetensors", "pydantic", "logging")]
    assert "caliber.llm.local.static" not in loaded
    assert len(loaded) < 35  # half of them are the model
