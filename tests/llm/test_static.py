"""Local static embeddings against the real wordllama, and what they cost; the deterministic hash provider."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.inspection import replaced
from support.threads import at_once

from caliber.llm.local import static
from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.local.static import StaticEmbeddingProvider
from caliber.llm.protocols import EmbeddingProvider
from caliber.model.errors import EmbeddingFailed, ExtraNotInstalled, InvalidConfigValue, InvalidValue

ROOT = Path(__file__).parents[2]
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "x",
    "  two  spaces   and a tab\t",
    "def f(x):\n    return x ** 2\n",
    "Überraschung in Köln, 日本語, emoji 🙂🏳️‍🌈, null \x00 byte",
    "a <s> special </s> token <unk>",
    "\u2581 the mark itself \u2581\u2581",
    " 1 22  333   4444    55555",
    "word " * 3_000 + "<s> the end",
    "many    spaces 1    2   3 " * 900,
    "日本語" * 900,
]
REFERENCE = """
import json, os, sys
import numpy as np
import wordllama
model = wordllama.WordLlama.load(cache_dir=os.path.dirname(wordllama.__file__), disable_download=True)
texts = json.load(open(sys.argv[1], encoding="utf-8"))
np.save(sys.argv[2], np.vstack([model.embed(text, norm=True) for text in texts]))
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)


@pytest.fixture(scope="module")
def provider() -> StaticEmbeddingProvider:
    return StaticEmbeddingProvider()


def test_vectors_equal_those_of_wordllama(tmp_path: Path, provider: StaticEmbeddingProvider) -> None:
    # C-246, M-004
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS), encoding="utf-8")
    run(REFERENCE, str(tmp_path / "texts.json"), str(tmp_path / "vectors.npy"))
    expected = np.load(tmp_path / "vectors.npy")
    vectors = provider.embed_batch(TEXTS)
    np.testing.assert_allclose(vectors[:8], expected[:8], rtol=0, atol=1e-6)
    # wordllama adds thousands of vectors up in single precision; that its tokens are ours, a property test shows.
    np.testing.assert_allclose(vectors[8:], expected[8:], rtol=0, atol=2e-5)


def test_batch_keeps_order_and_equals_single_vectors_bit_for_bit(provider: StaticEmbeddingProvider) -> None:
    # C-247
    together = provider.embed_batch(TEXTS)
    assert together.shape == (len(TEXTS), 256)
    assert together.dtype == np.float32
    for row, text in zip(together, TEXTS, strict=True):
        np.testing.assert_array_equal(row, provider.embed(text))
    assert provider.embed_batch([]).shape == (0, 256)


def test_related_texts_are_nearer_than_unrelated_ones(provider: StaticEmbeddingProvider) -> None:
    cat, kitten, database = provider.embed_batch(["a cat on a mat", "a kitten on a rug", "database transaction commit"])
    assert cat @ kitten > 0.4 > cat @ database


@pytest.mark.parametrize("dimensions", [64, 128, 256])
def test_shorter_vectors_are_the_normalised_beginning(provider: StaticEmbeddingProvider, dimensions: int) -> None:
    short = StaticEmbeddingProvider(dimensions)
    vector = short.embed("The quick brown fox")
    whole = provider.embed("The quick brown fox")[:dimensions]
    assert short.dimensions == dimensions
    assert float(np.linalg.norm(vector)) == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(vector, whole / np.linalg.norm(whole), atol=1e-6)


def test_other_dimensions_are_refused() -> None:
    with pytest.raises(InvalidConfigValue, match="64, 128 or 256"):
        StaticEmbeddingProvider(384)


@pytest.mark.parametrize("text", ["", " ", "\n\t \u2003"])
def test_empty_text_fails_and_is_never_a_zero_vector(provider: StaticEmbeddingProvider, text: str) -> None:
    # M-014, K-116
    with pytest.raises(EmbeddingFailed, match="empty text"):
        provider.embed(text)
    with pytest.raises(EmbeddingFailed, match=r"texts\[1\]"):
        provider.embed_batch(["fine", text])


def test_bytes_are_refused(provider: StaticEmbeddingProvider) -> None:
    with pytest.raises(InvalidValue, match="expected str, got bytes"):
        provider.embed(b"bytes")  # type: ignore[arg-type]


def test_lone_surrogates_are_shown_as_replacement_characters(provider: StaticEmbeddingProvider) -> None:
    np.testing.assert_array_equal(provider.embed("bad \ud800 text"), provider.embed("bad \ufffd text"))
    np.testing.assert_array_equal(provider.embed("pair \ud83d\ude42"), provider.embed("pair 🙂"))


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(static, "installed_folder", static.installed_folder.__wrapped__)  # looks anew
    for missing in ("wordllama", "tokenizers"):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, gone=missing: None if name == gone else real(name)
        )
        with pytest.raises(ExtraNotInstalled, match=r"caliber-memory\[embed\]") as caught:
            StaticEmbeddingProvider()
        assert caught.value.extra == "embed"


def test_a_tokenizer_that_cannot_be_imported_names_the_extra_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = StaticEmbeddingProvider()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    unread = replaced(static, "shared", {})  # as in a process that has no model open yet
    with unread, pytest.raises(ExtraNotInstalled, match=r"caliber-memory\[embed\]"):
        fresh.embed("text")


def test_missing_or_damaged_model_files_are_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "static_model_folder", lambda: tmp_path)
    with pytest.raises(EmbeddingFailed, match="cannot be read") as caught:
        StaticEmbeddingProvider().embed("text")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    (tmp_path / "weights").mkdir()
    weights = tmp_path / static.WEIGHT_FILE
    weights.write_bytes(b"\xff" * 100)
    with pytest.raises(EmbeddingFailed, match="not a safetensors file"):
        StaticEmbeddingProvider().embed("text")
    header = json.dumps({static.TENSOR: {"dtype": "F16", "shape": [4, 256], "data_offsets": [0, 10]}}).encode()
    weights.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 10)
    with pytest.raises(EmbeddingFailed, match="is damaged"):
        StaticEmbeddingProvider().embed("text")


def test_threads_share_one_provider(provider: StaticEmbeddingProvider) -> None:
    fresh = StaticEmbeddingProvider()
    results: list[np.ndarray] = []

    def work() -> None:
        results.append(fresh.embed_batch(TEXTS[:5]))

    at_once([work] * 8)
    expected = provider.embed_batch(TEXTS[:5])
    assert len(results) == 8
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_it_works_after_fork_and_prints_no_warning() -> None:
    done = run(
        "import os, threading\n"
        "from caliber.llm.local.static import StaticEmbeddingProvider\n"
        "used, fresh = StaticEmbeddingProvider(), StaticEmbeddingProvider()\n"
        "before = used.embed_batch(['some text', 'more'])\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    same = (used.embed_batch(['some text', 'more']) == before).all()\n"
        "    os._exit(0 if same and (fresh.embed('more') == before[1]).all() else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert done.stdout.strip() == "0"
    assert done.stderr == ""


def test_import_and_construction_load_no_model_runtime() -> None:
    done = run(
        "import sys, json\n"
        "import caliber.llm\n"
        "from caliber.llm.local.static import StaticEmbeddingProvider\n"
        "provider = StaticEmbeddingProvider()\n"
        "heavy = ('tokenizers', 'safetensors', 'wordllama', 'requests', 'huggingface_hub', 'torch')\n"
        "before = [name for name in heavy if name in sys.modules]\n"
        "provider.embed('text')\n"
        "print(json.dumps([before, [name for name in heavy if name in sys.modules]]))\n"
    )
    assert json.loads(done.stdout) == [[], ["tokenizers"]]


def test_weights_are_mapped_and_not_read() -> None:
    rows = static.load_static_model(static.static_model_folder()).rows
    assert not rows.flags.owndata
    assert not rows.flags.writeable
    assert rows.dtype == np.float16
    assert pathlib.Path(static.static_model_folder(), static.WEIGHT_FILE).stat().st_size > rows.nbytes


def test_it_is_an_embedding_provider(provider: StaticEmbeddingProvider) -> None:
    assert isinstance(provider, EmbeddingProvider)
    assert (provider.model_id, provider.dimensions) == ("wordllama-l2-supercat", 256)


def test_one_model_is_read_once_for_all_who_use_it() -> None:
    folder = static.static_model_folder()
    model = static.load_static_model(folder)
    assert static.load_static_model(folder) is model


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


def test_the_hash_provider_is_an_embedding_provider() -> None:
    assert isinstance(HashEmbeddingProvider(8, "m"), EmbeddingProvider)
