"""Token estimates and truncation by example. C-308 to C-310."""

from __future__ import annotations

import numpy as np
import pytest

from caliber.kernels import BytesEstimator, estimate_tokens, estimate_tokens_batch, truncate_to_tokens
from caliber.kernels.tokens.counting import is_boundary

HALF = BytesEstimator(3.5)
ONE = BytesEstimator(1)

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
FLAGS = "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7"  # DE FR
SKIN = "\U0001f44d\U0001f3fd"
KEYCAP = "1\ufe0f\u20e3"
ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
ACCENT = "e\u0301"


def test_estimate_is_bytes_over_divisor_rounded_up() -> None:  # C-308
    sizes = {0: 0, 1: 1, 3: 1, 4: 2, 7: 2, 8: 3, 35: 10, 36: 11}
    assert {n: estimate_tokens("x" * n, estimator=HALF) for n in sizes} == sizes
    assert estimate_tokens("é", estimator=ONE) == 2
    assert estimate_tokens_batch(["", "é", "abcd"], estimator=HALF).tolist() == [0, 1, 2]


def test_estimate_of_large_texts_is_exact() -> None:  # C-308: f32 loses integers beyond 2^24
    for length in (2**24 + 1, 50_000_001, 2**53 + 1):
        assert HALF.tokens_of_length(length) == -(-2 * length // 7)
    assert estimate_tokens("x" * (2**24 + 1), estimator=ONE) == 2**24 + 1


def test_the_divisor_is_the_decimal_that_was_written() -> None:
    # As a binary fraction 3.3 is a little less than 33/10, and 33 bytes would cost 11 tokens.
    assert BytesEstimator(3.3).tokens_of_length(33) == 10
    assert BytesEstimator(0.1).tokens_of_length(3) == 30


def test_estimators_are_values_with_names() -> None:
    assert BytesEstimator(3.5) == HALF
    assert hash(HALF) == hash(BytesEstimator(3.5))
    assert BytesEstimator(4) == BytesEstimator(4.0)
    assert [e.name for e in (HALF, ONE, BytesEstimator(4), BytesEstimator(3.8271))] == [
        "bytes/3.5", "bytes/1", "bytes/4", "bytes/3.8271",
    ]  # fmt: skip
    assert repr(HALF) == "BytesEstimator(bytes_per_token=3.5)"


def test_lone_surrogates_are_counted_not_refused() -> None:
    assert estimate_tokens("a\ud800", estimator=ONE) == 4
    assert truncate_to_tokens("\ud800" * 9, 9, estimator=ONE) == "\ud800\ud800..."


@pytest.mark.parametrize(("text", "limit", "expected"), [
    ("short", 5, "short"),  # fits
    ("", 3, ""),
    ("hello brave new world", 15, "hello brave..."),  # the last space
    ("hello brave new world", 14, "hello brave..."),  # already at a word's end
    ("hello brave new world", 13, "hello..."),
    ("hello  \n brave", 12, "hello..."),  # white space before the dots is dropped
    ("hello\nbrave", 9, "hello..."),
    ("abcdefghij", 7, "abcd..."),  # no space at all
    (" abcdefghij", 7, " abc..."),  # nothing before the only space
    ("abcdefghij", 4, "a..."),
    ("abcdefghij", 3, "abc"),  # C-310: no room for dots and a byte
    ("abcdefghij", 1, "a"),
    ("abcdefghij", 0, ""),
    ("abcdefghij", -5, ""),
    ("", 0, ""),
    ("äöüäöü", 6, "ä..."),  # never inside a code point
    ("äöüäöü", 1, ""),
    (f"ab{FAMILY}cd", 16, "ab..."),  # never inside a family
    (f"{FAMILY}{FAMILY}", 21, f"{FAMILY}..."),
    (f"{FLAGS}{FLAGS}", 15, f"{FLAGS[:2]}..."),  # flags are pairs
    (f"a{SKIN}b{SKIN}", 9, "a..."),
    (f"a{KEYCAP}{KEYCAP}{KEYCAP}", 11, f"a{KEYCAP}..."),
    (f"a{ENGLAND}bcdefgh", 30, "a..."),
    (f"abc{ACCENT}defghijk", 7, "abc..."),
    ("ab\r\ncdefgh", 6, "ab..."),
])  # fmt: skip
def test_truncation(text: str, limit: int, expected: str) -> None:  # C-309, C-310
    assert truncate_to_tokens(text, limit, estimator=ONE) == expected


def test_no_prefix_of_a_cluster_is_ever_left() -> None:
    clusters = [FAMILY, FLAGS[:2], FLAGS[2:], SKIN, KEYCAP, ENGLAND, ACCENT, "x", "ß", "漢"]
    text = "".join(clusters)
    edges = np.cumsum([0, *map(len, clusters)]).tolist()
    assert [at for at in range(len(text) + 1) if is_boundary(text, at)] == edges
    prefixes = {text[:edge].rstrip() for edge in edges}
    for limit in range(1, len(text.encode()) + 3):
        cut = truncate_to_tokens(text, limit, estimator=ONE)
        assert len(cut.encode()) <= limit
        assert cut.removesuffix("...") in prefixes


def test_truncating_a_huge_text_is_quick() -> None:
    import time

    text = "word " * 10_000_000
    started = time.perf_counter()
    assert estimate_tokens(truncate_to_tokens(text, 100, estimator=HALF), estimator=HALF) <= 100
    assert time.perf_counter() - started < 5
