"""The deterministic hash provider."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.protocols import EmbeddingProvider
from caliber.model.errors import EmbeddingFailed, InvalidConfigValue

ROOT = Path(__file__).parents[2]
KNOWN = [0.1474, 0.0, 0.2949, 0.1474, 0.0, 0.0, -0.2949, -0.8847]


def test_vectors_do_not_depend_on_the_process() -> None:
    # C-248
    script = (
        "from caliber.llm.local.hashed import HashEmbeddingProvider\n"
        "print(HashEmbeddingProvider(32, 'm').embed('The quick brown fox').tobytes().hex())\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert seen == {HashEmbeddingProvider(32, "m").embed("The quick brown fox").tobytes().hex()}


def test_a_known_vector_stays_what_it_is() -> None:
    # C-248: stores hold these vectors; if this changes, the version in the model's name must change too.
    vector = HashEmbeddingProvider(8, "m").embed("hello world")
    assert [round(float(value), 4) for value in vector] == KNOWN


def test_the_order_of_words_changes_no_bit() -> None:
    provider = HashEmbeddingProvider(8, "m")
    words = [f"word{number} " * (number % 5 + 1) for number in range(200)]
    np.testing.assert_array_equal(provider.embed(" ".join(words)), provider.embed(" ".join(words[::-1])))


def test_similar_texts_are_nearer() -> None:
    provider = HashEmbeddingProvider(512, "m")
    a, b, c = provider.embed_batch(
        ["database transactions commit", "a database transaction commits", "blue whale song"]
    )
    assert a @ b > 0.4 > a @ c


def test_models_of_other_names_are_other_spaces() -> None:
    one, other = HashEmbeddingProvider(64, "one"), HashEmbeddingProvider(64, "other")
    assert one.model_id != other.model_id
    assert abs(float(one.embed("the same text here") @ other.embed("the same text here"))) < 0.9


@pytest.mark.parametrize("dimensions", [1, 2, 3, 384, 16_384])
def test_any_dimensions_give_unit_vectors(dimensions: int) -> None:
    provider = HashEmbeddingProvider(dimensions, "m")
    for text in ("a", "!!!", "ab ba", "日本語", "\ud800", "long " * 1_000, "x" * 10_000):
        vector = provider.embed(text)
        assert vector.shape == (dimensions,)
        assert float(np.linalg.norm(vector.astype(np.float64))) == pytest.approx(1.0, abs=1e-6)


def test_features_that_cancel_still_give_a_direction() -> None:
    # In one dimension every feature is plus or minus its weight, so the sums of some pairs of words are zero.
    provider = HashEmbeddingProvider(1, "m")
    pairs = [f"w{number} v{number}" for number in range(300)]
    sums = [sum(float(value) for word in pair.split() for value in provider.features(word)[1]) for pair in pairs]
    assert 0.0 in sums
    assert {abs(float(provider.embed(pair)[0])) for pair in pairs} == {1.0}


@pytest.mark.parametrize(("dimensions", "model"), [(0, "m"), (16_385, "m"), (8, "")])
def test_bad_settings_are_refused(dimensions: int, model: str) -> None:
    with pytest.raises(InvalidConfigValue):
        HashEmbeddingProvider(dimensions, model)


def test_empty_text_fails() -> None:
    # M-014
    with pytest.raises(EmbeddingFailed, match="empty text"):
        HashEmbeddingProvider(8, "m").embed(" \n")


def test_it_is_an_embedding_provider() -> None:
    assert isinstance(HashEmbeddingProvider(8, "m"), EmbeddingProvider)
