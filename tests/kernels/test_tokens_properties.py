"""The calibrated and the exact estimator: every path against the twin, and what truncation promises under each."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.evidence import share
from support.kernels.instruction_sets import COMPILED, LOCAL, running_on, searched
from support.kernels.native_builds import build, on_path, with_fault
from token_machine import WARM_UP, token_keys, token_units

from caliber import kernels
from caliber.kernels.dispatch import running
from caliber.kernels.tokens import counting
from caliber.kernels.tokens.costs import COSTS
from caliber.kernels.tokens.counting import truncate_to_length
from caliber.kernels.tokens.estimators import VOCABULARIES
from caliber.kernels.tokens.tokenizer import LONGEST_TOKEN
from caliber.model.errors import DTypeError, InvalidValue

ESTIMATORS = [
    kernels.BytesEstimator(3.5),
    kernels.BytesEstimator(0.25),
    *map(kernels.CalibratedEstimator, VOCABULARIES),
    # The extra tokens has no wheel for the newest Python.
    *map(kernels.ExactEstimator, VOCABULARIES if find_spec("quicktok") else ()),
]
READING = ESTIMATORS[2:]  # those that read text, not only its length

# Bytes that make runs, repeats, and characters of every length, whole and broken.
PIECES = st.sampled_from(
    [b"a", b"Z", b"the ", b"1", b" ", b"\n", b"\t", b"_", b'"', b"..", b"{", b"\x00", b"\x7f"]
    + [char.encode() for char in "éßжяا的の한😀\U0001f468\u200d\ufe0f，"]
    + [b"\x80", b"\xbf", b"\xc3", b"\xe3\x81", b"\xf0", b"\xff"]
)
RAW = st.binary(max_size=120) | st.lists(PIECES | PIECES.map(lambda piece: piece * 11), max_size=60).map(b"".join)


@st.composite
def spans(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Data at any alignment, and offsets that may start late and end early."""
    data = draw(RAW)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), min_size=1, max_size=8)))
    start = draw(st.integers(0, 31))
    buffer = np.frombuffer(bytes(start) + data, np.uint8)[start:]
    return buffer, np.array(cuts, dtype=draw(st.sampled_from([np.int32, np.int64])))


@pytest.mark.parametrize("path", COMPILED)
@searched(problem=spans(), vocabulary=st.sampled_from(VOCABULARIES))
def test_calibrated_spans_equal_the_twin(path: str, problem: tuple[np.ndarray, np.ndarray], vocabulary: str) -> None:
    data, offsets = problem
    estimator = kernels.CalibratedEstimator(vocabulary)
    costs = np.frombuffer(COSTS[vocabulary], np.uint8)
    with running_on(path):
        lengths = estimator.lengths_of_spans(data, offsets)
        tokens = kernels.estimate_tokens_spans(data, offsets, estimator=estimator)
    assert lengths.tolist() == [token_units(data[a:b], costs) for a, b in pairwise(offsets.tolist())]
    assert tokens.tolist() == [-(-length // 256) for length in lengths.tolist()]


@pytest.mark.parametrize("path", COMPILED)
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 4095, 4096, 4097, 10_007])
def test_calibrated_lengths_at_block_edges(path: str, size: int) -> None:
    rng = np.random.default_rng(size)
    for alphabet in (b"ab C", "日本語、の漢字".encode(), "русский текст ".encode(), bytes(range(256))):
        data = np.resize(np.frombuffer(alphabet, np.uint8), size + 40)
        data = np.roll(data, int(rng.integers(0, 7)))[3 : 3 + size]
        offsets = np.array([0, size // 3, size])
        for vocabulary in VOCABULARIES:
            costs = np.frombuffer(COSTS[vocabulary], np.uint8)
            with running_on(path):
                found = kernels.CalibratedEstimator(vocabulary).lengths_of_spans(data, offsets)
            assert found.tolist() == [token_units(data[a:b], costs) for a, b in pairwise(offsets.tolist())]


@pytest.mark.parametrize("path", COMPILED)
@searched(data=RAW, more=st.integers(1, 40), limit=st.integers(0, 60_000), vocabulary=st.sampled_from(VOCABULARIES))
@example(data=b"", more=1, limit=0, vocabulary="o200k_base")
def test_the_beginning_within_a_length_is_the_longest(
    path: str, data: bytes, more: int, limit: int, vocabulary: str
) -> None:
    data = data * (more if more % 3 == 0 else 1)  # also longer than what is measured at once
    estimator = kernels.CalibratedEstimator(vocabulary)
    costs = np.frombuffer(COSTS[vocabulary], np.uint8)
    with running_on(path):
        fitting = estimator.fitting(data, limit)
    sums = np.cumsum(costs[token_keys(np.frombuffer(data, np.uint8))], dtype=np.int64)
    assert fitting == int(np.count_nonzero(sums <= limit))
    assert estimator.within(data, limit) == (fitting == len(data))


@given(data=RAW, at=st.integers(0, 200), vocabulary=st.sampled_from(VOCABULARIES))
def test_a_beginning_never_costs_more_than_the_whole(data: bytes, at: int, vocabulary: str) -> None:
    estimator = kernels.CalibratedEstimator(vocabulary)
    whole = estimator.tokens_of_bytes(data)
    assert estimator.tokens_of_bytes(data[:at]) <= whole
    assert len(data) / LONGEST_TOKEN <= whole <= len(data)


@given(data=RAW, start=st.integers(WARM_UP, 300))
def test_a_cost_depends_on_the_bytes_just_before_only(data: bytes, start: int) -> None:
    raw = np.frombuffer(data * 3, np.uint8)
    keys = token_keys(raw)
    looked_on = token_keys(raw[start - WARM_UP :])
    assert keys[start:].tolist() == looked_on[WARM_UP:].tolist()


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: estimator.name)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=6))
def test_batches_and_spans_equal_single_texts(estimator: kernels.Estimator, texts: list[str]) -> None:
    single = [kernels.estimate_tokens(text, estimator=estimator) for text in texts]
    assert kernels.estimate_tokens_batch(texts, estimator=estimator).tolist() == single
    raws = [text.encode() for text in texts]
    assert [estimator.tokens_of_bytes(raw) for raw in raws] == single
    data = np.frombuffer(b"".join(raws), np.uint8)
    for kind in (np.int32, np.int64):
        offsets = np.cumsum([0, *map(len, raws)]).astype(kind)
        found = kernels.estimate_tokens_spans(data, offsets, estimator=estimator)
        assert (found.dtype, found.tolist()) == (np.int64, single)


CLUSTERS = st.sampled_from(
    ["\U0001f468", "\u200d", "\U0001f3fd", "\ufe0f", "\u20e3", "\U0001f1e9", "\U0001f1ea", "\u0301", "\r", "\n", " "]
)
WORDS = st.sampled_from(
    ["hello ", "wörld ", "supercalifragilistic", "0x7fffffff", '{"a": 1}, ', "漢字かな", "😀😀", " " * 9]
)
TEXTS = st.lists(CLUSTERS | WORDS | st.characters(exclude_categories=["Cs"]), max_size=40).map("".join)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: estimator.name)
@given(text=TEXTS, limit=st.integers(-2, 60), ending=st.sampled_from(["", "\n\n", "|"]))
@example(text="a" * 500, limit=3, ending="")
@example(text="\U0001f1e9\U0001f1ea" * 40, limit=5, ending="")
@example(text="\u0301" * 300, limit=7, ending="")
@example(text=" " * 2_000 + "x", limit=2, ending="")
@example(text="\U0001f468\u200d\n\ufe0f\U0001f468", limit=8, ending="")
def test_truncation_keeps_its_promises(
    estimator: kernels.Estimator, text: str, limit: int, ending: str
) -> None:  # C-309, C-310
    cut = kernels.truncate_to_tokens(text, limit, estimator=estimator)
    if limit <= 0:
        assert cut == ""
        return
    _check_cut(estimator, text, cut, limit, "")
    with_ending = truncate_to_length(
        text, estimator.encoded(text, field="text"), estimator.longest(limit), estimator, ending=ending
    )
    if estimator.longest(limit) >= estimator.length_of(ending):
        _check_cut(estimator, text, with_ending, limit, ending)


def _check_cut(estimator: kernels.Estimator, text: str, cut: str, limit: int, ending: str) -> None:
    tokens = kernels.estimate_tokens(cut + ending, estimator=estimator)
    assert tokens <= limit or cut == ""
    if kernels.estimate_tokens(text + ending, estimator=estimator) <= limit:
        assert cut == text
        return
    kept = cut.removesuffix("...") if not text.startswith(cut) else cut
    assert text.startswith(kept)
    rest = text[len(kept) :]
    gap = len(rest) - len(rest.lstrip())
    # Either a boundary between clusters, or only white space was dropped from one.
    assert any(counting.is_boundary(text, at) for at in range(len(kept), len(kept) + gap + 1))


@pytest.mark.parametrize("estimator", READING, ids=lambda estimator: estimator.name)
@given(text=st.text(max_size=8), at=st.integers(0, 8), surrogate=st.characters(categories=["Cs"]))
def test_surrogates_are_refused(estimator: kernels.Estimator, text: str, at: int, surrogate: str) -> None:
    broken = text[:at] + surrogate + text[at:]
    with pytest.raises(InvalidValue, match="lone surrogate"):
        kernels.estimate_tokens(broken, estimator=estimator)
    with pytest.raises(InvalidValue, match="lone surrogate"):
        kernels.estimate_tokens_batch(["fine", broken], estimator=estimator)
    with pytest.raises(InvalidValue, match="lone surrogate"):
        kernels.truncate_to_tokens(broken, 3, estimator=estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: estimator.name)
@pytest.mark.parametrize("path", COMPILED)
def test_wrong_offsets_and_types_are_refused(path: str, estimator: kernels.Estimator) -> None:
    data = np.zeros(10, np.uint8)
    with running_on(path):
        for offsets in ([3, 2], [-1, 4], [0, 11], [0, 5, 4, 10]):
            for kind in (np.int32, np.int64):
                with pytest.raises(InvalidValue):
                    kernels.estimate_tokens_spans(data, np.array(offsets, kind), estimator=estimator)
        with pytest.raises(DTypeError):
            kernels.estimate_tokens(b"bytes", estimator=estimator)  # type: ignore[arg-type]
        with pytest.raises(DTypeError):
            kernels.estimate_tokens_batch(["x", None], estimator=estimator)  # type: ignore[list-item]


# --- faults that these tests must see ----------------------------------------------------------

# File of csrc/, what stands there, what stands there instead.
MUTANTS = {
    "repeats forgotten": ("tokens/calibrated_scalar.c", "byte == s->previous", "byte == s->before"),
    "letter runs one short": ("tokens/calibrated_scalar.c", "(s->letters >= 8)", "(s->letters >= 9)"),
    "high runs one short": ("tokens/calibrated_scalar.c", "(s->highs >= 16)", "(s->highs > 16)"),
    "a run of eight carried from too near": (
        "tokens/calibrated_avx2.c",
        "BEFORE(now->letters4, was->letters4, 4)",
        "BEFORE(now->letters4, was->letters4, 3)",
    ),
    "nothing carried over a block": (
        "tokens/calibrated_avx2.c",
        "sums = _mm256_add_epi64(sums, _mm256_sad_epu8(block_costs(costs, &was, &now), zero));\n        was = now;",
        "sums = _mm256_add_epi64(sums, _mm256_sad_epu8(block_costs(costs, &was, &now), zero));",
    ),
    "a byte after the end counted": ("tokens/calibrated_avx2.c", "(kept + 32 - (to - at))", "(kept + 31 - (to - at))"),
    "fourth bytes taken for third ones": ("tokens/machine.h", "FOUR_FROM = 0xF0", "FOUR_FROM = 0xF1"),
    "a limit that is reached refused": ("tokens/calibrated.c", "if (cost <= left) {", "if (cost < left) {"),
    "a chunk measured without what is before it": (
        "tokens/calibrated.c",
        "measure(costs, data, at, at + step, size)",
        "measure(costs, data + at, 0, step, size - at)",
    ),
    "costs of another vocabulary": (
        "tokens/calibrated.c",
        "const uint8_t *costs = cal_token_costs[vocabulary];",
        "const uint8_t *costs = cal_token_costs[1 - vocabulary];",
    ),
}  # fmt: skip


def every_check() -> None:
    """Spans and beginnings of texts that have every class in every kind of run, against the twin."""
    rng = np.random.default_rng(11)
    alphabet = np.frombuffer('abcdefgh  ZZ09\n\n--""__..{é яя の漢字한😀😀\x00'.encode(), np.uint8)
    for vocabulary in VOCABULARIES:
        estimator = kernels.CalibratedEstimator(vocabulary)
        costs = np.frombuffer(COSTS[vocabulary], np.uint8)
        for size in (5, 31, 33, 64, 200, 9_000):
            runs = rng.choice(alphabet, size), np.repeat(rng.choice(alphabet, size), rng.integers(1, 20, size))[:size]
            for data in (*runs, np.resize(alphabet, size)):
                keys = token_keys(data)
                sums = np.cumsum(costs[keys], dtype=np.int64)
                assert estimator.lengths_of_spans(data, np.array([0, size])).tolist() == [int(sums[-1])]
                for limit in (int(sums[size // 2]), int(sums[size // 2]) - 1, int(sums[-1])):
                    assert estimator.fitting(data.tobytes(), limit) == int(np.count_nonzero(sums <= limit))


@pytest.mark.prove
@pytest.mark.parametrize("path", LOCAL)
def test_the_kernels_built_for_mutants_are_right_without_one(path: str, unchanged: Path, tmp_path: Path) -> None:
    with running(on_path(build(tmp_path / "built", unchanged=unchanged), path)):
        every_check()


@pytest.mark.prove
@pytest.mark.parametrize("name", share(MUTANTS, 3))
def test_a_planted_fault_is_seen(name: str, unchanged: Path, tmp_path: Path) -> None:
    with running(with_fault(MUTANTS[name], tmp_path / "built", unchanged)), pytest.raises(AssertionError):
        every_check()
