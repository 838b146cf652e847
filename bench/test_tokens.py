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
from typing import Any

import numpy as np
import pytest
from harness.contest import ASIDE, CPU, OURS, PEER, Contender, paths
from harness.report import amount

from caliber import kernels

try:
    import quicktok
except ModuleNotFoundError:
    quicktok = None
NO_WHEEL = "the extra tokens has no wheel for this Python"

PATHS = kernels.available_paths()
VOCABULARY = "o200k_base"
LONG, QUICK_LONG = 8_000_000, 100_000  # bytes
SPAN = 200
PLAIN_GB_S = 1.0


@cache
def corpus(quick: bool) -> dict[str, bytes]:
    """All texts of each kind in a row, as the fit's corpus makes them."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
    try:
        import token_corpus
    finally:
        sys.path.pop(0)
    out: dict[str, bytes] = {}
    for document in token_corpus.documents(docstrings=not quick):
        out[document.kind] = out.get(document.kind, b"") + document.text.encode()
    return out


def of_kind(kind: str, size: int, quick: bool) -> np.ndarray:
    text = corpus(quick)[kind]
    return np.frombuffer((text * (size // len(text) + 1))[:size], np.uint8)


@cache
def exact_counter() -> Any:
    """Return the exact counter; None where its package is not installed."""
    return None if quicktok is None else quicktok.Tokenizer(VOCABULARY, "")


def counted(data: np.ndarray, offsets: np.ndarray, estimator: kernels.Estimator) -> list[int]:
    return kernels.estimate_tokens_spans(data, offsets, estimator=estimator).tolist()


@pytest.mark.parametrize("kind", ["english", "code", "json", "cjk", "mixed"])
def test_calibrated_long_text(contest: Callable[..., None], quick: bool, kind: str) -> None:
    size = QUICK_LONG if quick else LONG
    data, edges = of_kind(kind, size, quick), np.array([0, size])
    estimator = kernels.CalibratedEstimator(VOCABULARY)
    contenders = paths(
        lambda: kernels.estimate_tokens_spans(data, edges, estimator=estimator),
        PATHS,
        at_most_s=size / PLAIN_GB_S / 1e9,
        bytes_read=size,
    )
    wanted = None
    for contender in contenders:
        with contender.around():
            found = counted(data, edges, estimator)
        wanted = wanted or found
        assert found == wanted
    exact, text = exact_counter(), data.tobytes().decode("utf-8", "ignore")
    if exact is not None:
        contenders.append(Contender(ASIDE, "quicktok-v1", lambda: exact.count(text), note="counts exactly"))
    contest(f"calibrated tokens, {amount(size)}B of {kind}", contenders, clock=CPU)


@pytest.mark.parametrize("kind", ["english", "json", "mixed"])
def test_calibrated_spans(contest: Callable[..., None], quick: bool, kind: str) -> None:
    """Notes and turns: a column of texts of about 200 bytes."""
    count = 100 if quick else 10_000
    data = of_kind(kind, count * SPAN, quick)
    cuts = np.arange(count + 1) * SPAN
    # Not inside a character, as no column is.
    offsets = np.array(
        [next(c for c in range(cut, cut - 4, -1) if c == len(data) or data[c] & 0xC0 != 0x80) for cut in cuts]
    )
    texts = [data[a:b].tobytes().decode() for a, b in pairwise(offsets)]
    estimator = kernels.CalibratedEstimator(VOCABULARY)
    contenders = paths(
        lambda: kernels.estimate_tokens_spans(data, offsets, estimator=estimator), PATHS, bytes_read=len(data)
    )
    wanted = kernels.estimate_tokens_batch(texts, estimator=estimator).tolist()
    for contender in contenders:
        with contender.around():
            assert counted(data, offsets, estimator) == wanted
    exact = exact_counter()
    if exact is not None:
        contenders.append(
            Contender(ASIDE, "quicktok-v1 loop", lambda: [exact.count(text) for text in texts], note="counts exactly")
        )
    contest(f"calibrated tokens, {amount(count)} spans of {SPAN} B, {kind}", contenders, clock=CPU)


@pytest.mark.skipif(quicktok is None, reason=NO_WHEEL)
def test_exact_batch(contest: Callable[..., None], quick: bool) -> None:
    count = 100 if quick else 2_000
    data = of_kind("mixed", count * SPAN, quick).tobytes()
    texts = [data[at : at + SPAN].decode("utf-8", "ignore") for at in range(0, len(data), SPAN)]
    estimator = kernels.ExactEstimator(VOCABULARY)
    direct = exact_counter()
    found = kernels.estimate_tokens_batch(texts, estimator=estimator).tolist()
    assert found == [direct.count(text) for text in texts]
    contest(
        f"exact tokens, {amount(count)} texts of {SPAN} B",
        [
            Contender(OURS, "exact", lambda: kernels.estimate_tokens_batch(texts, estimator=estimator), at_most=1.3),
            Contender(PEER, "quicktok-v1 loop", lambda: [direct.count(text) for text in texts]),
        ],
        clock=CPU,
    )


@pytest.mark.parametrize(
    "name",
    ["bytes", "calibrated", pytest.param("exact", marks=pytest.mark.skipif(quicktok is None, reason=NO_WHEEL))],
)
def test_truncation(contest: Callable[..., None], quick: bool, name: str) -> None:
    """A long document cut to what a window has left; nothing else here cuts at words and clusters."""
    size = 100_000 if quick else 1_000_000
    text = of_kind("english", size, quick).tobytes().decode("utf-8", "ignore")
    estimator = kernels.open_estimator(name, bytes_per_token=3.5, vocabulary=VOCABULARY)  # type: ignore[arg-type]
    cut = kernels.truncate_to_tokens(text, 1_000, estimator=estimator)
    assert 990 <= kernels.estimate_tokens(cut, estimator=estimator) <= 1_000
    contest(
        f"{amount(size)}B cut to 1,000 tokens, {name}",
        [Contender(OURS, name, lambda: kernels.truncate_to_tokens(text, 1_000, estimator=estimator))],
        clock=CPU,
    )
