"""Token counts: the calibrated estimate on long texts and on short spans, and exact counts beside their packages.

Goal: a calibrated estimate reads at least 1 GB/s on one core, on long text (issue 3). Exact counting has no goal: it is
the package's work, and its door must cost nearly nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from harness.contest import ASIDE, CPU, OURS, PEER, Contender, paths

from caliber import kernels

quicktok = pytest.importorskip("quicktok", reason="not installed: make bench installs the peers")

NATIVE = [path for path in kernels.available_paths() if path != "off"]
VOCABULARY = "o200k_base"
LONG, QUICK_LONG = 8_000_000, 2_000_000  # bytes
SPAN = 200
PLAIN_GB_S = 1.0


@cache
def corpus() -> dict[str, bytes]:
    """All texts of each kind in a row, as the fit's corpus makes them."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
    try:
        import token_corpus
    finally:
        sys.path.pop(0)
    out: dict[str, bytes] = {}
    for document in token_corpus.documents():
        out[document.kind] = out.get(document.kind, b"") + document.text.encode()
    return out


def of_kind(kind: str, size: int) -> np.ndarray:
    text = corpus()[kind]
    return np.frombuffer((text * (size // len(text) + 1))[:size], np.uint8)


def counted(data: np.ndarray, offsets: np.ndarray, estimator: kernels.Estimator) -> list[int]:
    return kernels.estimate_tokens_spans(data, offsets, estimator=estimator).tolist()


@pytest.mark.parametrize("kind", ["english", "code", "json", "cjk", "mixed"])
def test_calibrated_long_text(contest: Callable[..., None], quick: bool, kind: str) -> None:
    size = QUICK_LONG if quick else LONG
    data, edges = of_kind(kind, size), np.array([0, size])
    estimator = kernels.CalibratedEstimator(VOCABULARY)
    exact = quicktok.Tokenizer(VOCABULARY, "")
    text = data.tobytes().decode("utf-8", "ignore")
    contenders = paths(
        lambda: kernels.estimate_tokens_spans(data, edges, estimator=estimator),
        NATIVE,
        at_most_s=size / PLAIN_GB_S / 1e9,
        bytes_read=size,
    )
    wanted = None
    for contender in contenders:
        with contender.around():
            found = counted(data, edges, estimator)
        wanted = wanted or found
        assert found == wanted
    contenders.append(
        Contender(
            ASIDE,
            "quicktok-v1",
            lambda: exact.count(text),
            note="counts exactly",
        )
    )
    contest(f"calibrated tokens, {size // 1_000_000} MB of {kind}", contenders, clock=CPU)


@pytest.mark.parametrize("kind", ["english", "json", "mixed"])
def test_calibrated_spans(contest: Callable[..., None], quick: bool, kind: str) -> None:
    """Notes and turns: a column of texts of about 200 bytes."""
    count = 1_000 if quick else 10_000
    data = of_kind(kind, count * SPAN)
    cuts = np.arange(count + 1) * SPAN
    # Not inside a character, as no column is.
    offsets = np.array(
        [next(c for c in range(cut, cut - 4, -1) if c == len(data) or data[c] & 0xC0 != 0x80) for cut in cuts]
    )
    texts = [data[a:b].tobytes().decode() for a, b in pairwise(offsets)]
    estimator = kernels.CalibratedEstimator(VOCABULARY)
    exact = quicktok.Tokenizer(VOCABULARY, "")
    contenders = paths(
        lambda: kernels.estimate_tokens_spans(data, offsets, estimator=estimator), NATIVE, bytes_read=len(data)
    )
    wanted = kernels.estimate_tokens_batch(texts, estimator=estimator).tolist()
    for contender in contenders:
        with contender.around():
            assert counted(data, offsets, estimator) == wanted
    contenders.append(
        Contender(ASIDE, "quicktok-v1 loop", lambda: [exact.count(text) for text in texts], note="counts exactly")
    )
    contest(f"calibrated tokens, {count // 1_000}k spans of 200 B, {kind}", contenders, clock=CPU)


def test_exact_batch(contest: Callable[..., None]) -> None:
    texts = [
        bytes(of_kind("mixed", 400_000)[at : at + SPAN]).decode("utf-8", "ignore") for at in range(0, 400_000, SPAN)
    ]
    estimator = kernels.ExactEstimator(VOCABULARY)
    direct = quicktok.Tokenizer(VOCABULARY, "")
    found = kernels.estimate_tokens_batch(texts, estimator=estimator).tolist()
    assert found == [direct.count(text) for text in texts]
    contest(
        "exact tokens, 2k texts of 200 B",
        [
            Contender(OURS, "exact", lambda: kernels.estimate_tokens_batch(texts, estimator=estimator), at_most=1.3),
            Contender(PEER, "quicktok-v1 loop", lambda: [direct.count(text) for text in texts]),
        ],
        clock=CPU,
    )


@pytest.mark.parametrize("name", ["bytes", "calibrated", "exact"])
def test_truncation(contest: Callable[..., None], name: str) -> None:
    """A long document cut to what a window has left; nothing else here cuts at words and clusters."""
    text = of_kind("english", 1_000_000).tobytes().decode("utf-8", "ignore")
    estimator = kernels.open_estimator(name, bytes_per_token=3.5, vocabulary=VOCABULARY)  # type: ignore[arg-type]
    cut = kernels.truncate_to_tokens(text, 1_000, estimator=estimator)
    assert 990 <= kernels.estimate_tokens(cut, estimator=estimator) <= 1_000
    contest(
        f"1 MB cut to 1,000 tokens, {name}",
        [Contender(OURS, name, lambda: kernels.truncate_to_tokens(text, 1_000, estimator=estimator))],
        clock=CPU,
    )
