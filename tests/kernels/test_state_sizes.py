"""Kernels at the sizes stated for them, against an oracle for every single answer. Issue 3, item 8.

``make test`` goes a short way; ``make soak`` goes all of it and records what it saw in ``docs/evidence/``.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import evidence
from support.kernels.instruction_sets import LOCAL, running_on
from support.kernels.twins import vectors as twins
from support.kernels.twins.identifiers import fill
from support.kernels.twins.rank import rank_and_fill
from support.kernels.vector_problems import KINDS, drawn, segment_of
from support.threads import at_once

from caliber import kernels
from caliber.kernels import RankColumns, dispatch, identifiers
from caliber.kernels.vectors import scoring

METRICS = {"cosine": twins.COSINE, "l2": twins.L2, "inner_product": twins.INNER_PRODUCT}
TOGETHER = 64  # queries of one problem


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def __call__(self) -> int:
        return round(time.monotonic() - self.started)


def loaded(path: str) -> dispatch.Native:
    with running_on(path):
        return dispatch.native()


def all_scores(path: str, rows: np.ndarray, queries: np.ndarray, metric: int) -> np.ndarray:
    """Every row against every query on a path, without any search."""
    native = loaded(path)
    with running_on(path):
        norms, query_norms = scoring.row_norms(rows, field="rows"), scoring.row_norms(queries, field="queries")
    out = np.empty((queries.shape[0], rows.shape[0]), np.float32)
    buffer = native.ffi.from_buffer
    status = native.lib.cal_score_batch_f32(
        native.features, metric, buffer("float[]", rows), buffer("double[]", norms), rows.shape[0], rows.shape[1],
        buffer("float[]", queries), buffer("double[]", query_norms), queries.shape[0], buffer("float[]", out),
    )  # fmt: skip
    assert status == native.lib.CAL_OK
    return out


# --- top-k -------------------------------------------------------------------------------------


class Question(NamedTuple):
    """A question about some rows, in several queries."""

    rows: np.ndarray
    queries: np.ndarray
    metric: int
    k: int
    floor: float | None
    mask: np.ndarray | None
    tie: np.ndarray | None


def best_by_sorting(asked: Question, scores: np.ndarray) -> tuple[list[np.ndarray], int, int]:
    """Ids for each query, by sorting all scores; and how many queries have equal and nearly equal scores at rank k."""
    kept = np.ones(scores.shape, np.bool_) if asked.mask is None else np.broadcast_to(asked.mask, scores.shape).copy()
    if asked.floor is not None:
        kept &= scores >= np.float32(asked.floor)
    descending = np.where(kept, -scores.astype(np.float64), np.inf)
    keys = [np.broadcast_to(np.arange(scores.shape[1]), scores.shape)]
    if asked.tie is not None:
        keys += [np.broadcast_to(asked.tie[:, half], scores.shape) for half in (1, 0)]
    order = np.lexsort([*keys, descending], axis=1)
    counts = np.minimum(kept.sum(axis=1), asked.k)
    equal = near = 0
    if asked.k < scores.shape[1]:
        last, next_one = (
            np.take_along_axis(scores, order[:, rank : rank + 1], axis=1)[:, 0] for rank in (asked.k - 1, asked.k)
        )
        decided = kept.sum(axis=1) > asked.k
        equal = int((decided & (last == next_one)).sum())
        near = int((decided & (np.abs(last - next_one) <= 4 * np.spacing(np.abs(last)))).sum())
    return [order[q, : counts[q]] for q in range(scores.shape[0])], equal, near


def check_topk(asked: Question, *, twin_of_one_in: int) -> tuple[int, int]:
    """Assert that every path, with codes and without, finds what sorting finds; return ties at rank k."""
    scores = all_scores("scalar", asked.rows, asked.queries, asked.metric)
    for q in range(0, asked.queries.shape[0], twin_of_one_in):
        assert scores[q].tobytes() == twins.scores(asked.rows, asked.queries[q], metric=asked.metric).tobytes()
    expected, equal, near = best_by_sorting(asked, scores)
    bounds = scoring.bounds(asked.rows.shape[0], asked.k, asked.floor, asked.mask, asked.tie)
    for path in LOCAL:
        with running_on(path):
            for coded in (False, True):
                segment = segment_of(asked.rows, coded=coded)
                found = scoring.search([segment], asked.rows.shape[1], asked.metric, asked.queries, bounds)
                for q, (ids, best) in enumerate(found):
                    assert ids.tobytes() == expected[q].tobytes(), (path, coded, asked.k)
                    assert best.tobytes() == scores[q, expected[q]].tobytes(), (path, coded, asked.k)
    return equal, near


def small_questions(generator: np.random.Generator, queries: int) -> Iterator[Question]:
    for _ in range(0, queries, TOGETHER):
        n = int(generator.integers(64, 513)) if generator.random() < 0.8 else int(generator.integers(1, 64))
        dimensions = int(generator.choice([64, 65, 96, 128]))
        problem = drawn(int(generator.integers(2**32)), n, dimensions, str(generator.choice(KINDS)), 1.0)
        spread = generator.choice([0, 1e-6, 1e-2, 1])
        around = problem.query + generator.standard_normal((TOGETHER, dimensions)) * spread
        few = generator.random() < 0.8  # so few that codes are asked first
        yield Question(
            rows=problem.rows,
            queries=around.astype(np.float32),
            metric=int(generator.choice(list(METRICS.values()))),
            k=int(generator.integers(1, max(2, n // 8))) if few else int(generator.integers(1, n + 1)),
            floor=None if generator.random() < 0.8 else float(generator.uniform(-1, 1)),
            mask=None if generator.random() < 0.7 else generator.random(n) < 0.7,
            tie=None if generator.random() < 0.5 else generator.integers(0, 3, (n, 2)).astype(np.uint64),
        )


def large_questions(generator: np.random.Generator, n: int, queries: int) -> Iterator[Question]:
    """Rows of which one in twenty is another one again, or nearly; queries near some of them."""
    rows = generator.standard_normal((n, 384), dtype=np.float32)
    again, of = generator.choice(n, n // 20, replace=False), generator.integers(0, n, n // 20)
    rows[again] = rows[of] * generator.choice(np.array([1, 1 + 2.0**-20], np.float32), (n // 20, 1))
    for _ in range(0, queries, TOGETHER):
        near = rows[generator.choice(of, TOGETHER)]
        around = near + generator.standard_normal((TOGETHER, 384), dtype=np.float32) * np.float32(0.5)
        yield Question(rows, around, twins.COSINE, int(generator.choice([1, 2, 20, 100])), None, None, None)


def test_topk_at_the_sizes_stated() -> None:
    generator, clock = np.random.default_rng(evidence.seed()), Clock()
    counts = {"small": 0, "large": 0}
    equal = near = 0
    small, large = evidence.scale(2_000, 1_000_000), evidence.scale(TOGETHER, 1_000)
    rows = evidence.scale(5_000, 100_000)
    for kind, questions, twin_of_one_in in (
        ("small", small_questions(generator, small), 1),
        ("large", large_questions(generator, rows, large), 16),
    ):
        for asked in questions:
            ties = check_topk(asked, twin_of_one_in=twin_of_one_in)
            counts[kind] += asked.queries.shape[0]
            equal, near = equal + ties[0], near + ties[1]
    assert equal > counts["small"] // 100  # near-ties at rank k are what this is about
    evidence.record(
        "topk",
        "Top-k searches against sorting every canonical score",
        {
            "seed": evidence.seed(),
            "queries at 1 to 512 rows of 64 to 128 dimensions": counts["small"],
            f"queries at {rows} rows of 384 dimensions": counts["large"],
            "of these with equal scores at ranks k and k + 1": equal,
            "of these within 4 units in the last place there": near,
            "paths, each with codes and without": ", ".join(LOCAL),
            "oracle": "scores of the twin in NumPy, sorted",
            f"oracle at {rows} rows": "scores of plain C, and of the twin for one query in 16, sorted",
            "answers compared, all equal": sum(counts.values()) * len(LOCAL) * 2,
            **evidence.kernels(),
            "seconds": clock(),
        },
    )


# --- pairs -------------------------------------------------------------------------------------


def check_pairs(rows: np.ndarray, scores: np.ndarray, threshold: float, limit: int) -> int:
    """Assert that every path finds the pairs that sorting all scores finds; return how many reach the threshold."""
    left, right = np.triu_indices(rows.shape[0], 1)
    reached = scores[left, right] >= np.float32(threshold)
    left, right, found = left[reached], right[reached], scores[left, right][reached]
    order = np.lexsort([right, left, -found.astype(np.float64)])[:limit]
    for path in LOCAL:
        with running_on(path):
            pairs = kernels.pairs_above(rows, threshold, max_pairs=limit)
        assert np.array_equal(pairs.index, np.stack([left[order], right[order]], axis=1)), path
        assert pairs.score.tobytes() == found[order].tobytes(), path
        assert pairs.truncated == (found.shape[0] > limit), path
    return int(found.shape[0])


def test_pairs_at_the_sizes_stated() -> None:
    generator, clock = np.random.default_rng(evidence.seed() + 1), Clock()
    problems, total = evidence.scale(20, 3_000), 0
    for _ in range(problems):
        n, dimensions = int(generator.integers(2, 300)), int(generator.choice([3, 63, 64, 65, 128]))
        rows = drawn(int(generator.integers(2**32)), n, dimensions, str(generator.choice(KINDS)), 1.0).rows
        scores = all_scores("scalar", rows, rows, twins.COSINE)
        threshold = float(generator.choice(scores[~np.eye(n, dtype=np.bool_)]))
        total += check_pairs(rows, scores, threshold, int(generator.choice([0, 1, n, n * n])))
    large = evidence.scale(600, 5_000)
    rows = generator.standard_normal((large, 384), dtype=np.float32)
    again = generator.choice(large, large // 20, replace=False)
    rows[again] = rows[again - 1] + generator.standard_normal((again.size, 384), dtype=np.float32) * np.float32(0.1)
    scores = all_scores("scalar", rows, rows, twins.COSINE)
    thresholds = (0.98, 0.9, 0.15)
    for threshold in thresholds:
        total += check_pairs(rows, scores, threshold, 10_000)
    evidence.record(
        "pairs",
        "Near pairs against every pair scored",
        {
            "seed": evidence.seed(),
            "problems of 2 to 299 rows of 3 to 128 dimensions": problems,
            "thresholds at one problem of 384 dimensions": f"{len(thresholds)} at {large} rows",
            "pairs that reached a threshold": total,
            "paths": ", ".join(LOCAL),
            "oracle": "all scores in plain C, sorted by NumPy",
            "answers compared, all equal": (problems + len(thresholds)) * len(LOCAL),
            **evidence.kernels(),
            "seconds": clock(),
        },
    )


# --- ranking -----------------------------------------------------------------------------------


def candidates(generator: np.random.Generator, n: int) -> tuple[RankColumns, dict[str, Any]]:
    """Columns in which each key decides now and then, with groups or without."""
    sections = int(generator.integers(1, 8))
    section = generator.integers(0, sections, n).astype(np.int32)
    grouped = generator.random() < 0.5
    group = np.where(generator.random(n) < 0.3, generator.integers(0, n // 3 + 1, n) * sections + section, -1)
    widths = generator.choice([1, 3, 1000, 2**31], 3)
    columns = RankColumns(
        priority=generator.integers(-widths[0] // 2, widths[0] // 2 + 1, n).clip(-(2**31), 2**31 - 1).astype(np.int32),
        relevance=(generator.integers(0, widths[1], n) / np.float64(max(1, widths[1] - 1))).astype(np.float32),
        age_us=generator.integers(0, widths[2], n) * int(generator.choice([1, 1_000_000, 2**31])),
        tokens=generator.integers(0, 300, n).astype(np.int32),
        tie=generator.integers(0, int(generator.choice([1, 2, 2**62])), (n, 2)).astype(np.uint64),
        group=(group if grouped else np.full(n, -1)).astype(np.int32),
        section=section,
    )
    return columns, {
        "budget": int(generator.integers(0, 200 * n)),
        "section_budget": generator.integers(-1, 100 * n, sections).clip(-1, 2**31 - 1).astype(np.int32),
        "section_overhead": generator.integers(0, 20, sections).astype(np.int32),
        "separator_tokens": int(generator.integers(0, 4)),
        "min_relevance": float(generator.choice([-math.inf, 0.2])),
    }


def test_ranking_at_the_sizes_stated() -> None:
    generator, clock = np.random.default_rng(evidence.seed() + 2), Clock()
    sizes = {10: (50, 20_000), 100: (20, 5_000), 1_000: (4, 500), 10_000: (1, 50), 100_000: (0, 10), 1_000_000: (0, 5)}
    done: dict[int, int] = {}
    for n, (small, full) in sizes.items():
        done[n] = evidence.scale(small, full)
        for _ in range(done[n]):
            columns, limits = candidates(generator, n)
            with running_on("scalar"):
                order, decision = kernels.rank_and_fill(columns, **limits)
            expected = rank_and_fill(columns, **limits)
            assert order.tobytes() == expected[0].tobytes()
            assert decision.tobytes() == expected[1].tobytes()
    evidence.record(
        "rank",
        "rank_and_fill against its twin",
        {
            "seed": evidence.seed(),
            **{f"problems of {n} candidates": count for n, count in done.items()},
            "paths": "one: it is the same code with every instruction set",
            "oracle": "the twin in Python",
            "answers compared, all equal": sum(done.values()),
            **evidence.kernels(),
            "seconds": clock(),
        },
    )


# --- digests -----------------------------------------------------------------------------------

# NIST's SHA256Monte.rsp: its seed, and some of the hundred digests that follow.
MONTE_SEED = bytes.fromhex("6d1e72ad03ddeb5de891e572e2396f8da015d899ef0e79503152d6010a3fe691")
MONTE_DIGESTS = {
    0: "e93c330ae5447738c8aa85d71a6c80f2a58381d05872d26bdd39f1fcd4f2b788",
    1: "2e78f8c8772ea7c9331d41ed3f9cdf27d8f514a99342ee766ee3b8b0d0b121c0",
    2: "d6a23dff1b7f2eddc1a212f8a218397523a799b07386a30692fd6fe9d2bf0944",
    99: "6a912ba4188391a78e6f13d88ed2d14e13afce9db6f7dcbf4a48c24f3db02778",
}
# NIST's vector of 2^29 bytes "Z", whose length in bits is the first that does not fit 32.
LONG_DIGEST = "15a1868c12cc53951e182344277447cd0979536badcc512ad24c67e9b2d4f3dd"


def compressions() -> dict[str, int]:
    """Each compression of this machine by name: plain C, and one for each of its features that hashes."""
    lib = loaded("scalar").lib
    present = lib.cal_cpu_features()
    named = {"plain C": 0, "AVX2": lib.CAL_CPU_AVX2, "SHA-NI": lib.CAL_CPU_SHANI, "ARMv8": lib.CAL_CPU_SHA2}
    return {name: bit for name, bit in named.items() if bit & present == bit}


def hashed(features: int, data: np.ndarray, offsets: np.ndarray) -> bytes:
    native = loaded("scalar")
    out = np.empty(32 * (offsets.shape[0] - 1), np.uint8)
    narrow = offsets.dtype == np.int32
    call = native.lib.cal_sha256_spans_i32 if narrow else native.lib.cal_sha256_spans_i64
    buffer = native.ffi.from_buffer
    status = call(
        features, buffer("uint8_t[]", data), data.shape[0], buffer("int32_t[]" if narrow else "int64_t[]", offsets),
        offsets.shape[0] - 1, buffer("uint8_t[]", out),
    )  # fmt: skip
    assert status == native.lib.CAL_OK
    return out.tobytes()


def monte_carlo(features: int, checkpoints: int) -> list[str]:
    """NIST's SHAVS 6.4: a thousand digests, each of the three before it, from a seed that is the last of them."""
    offsets = np.array([0, 96])
    seed, seen = MONTE_SEED, []
    for _ in range(checkpoints):
        last = [seed] * 3
        for _ in range(1000):
            last = [*last[1:], hashed(features, np.frombuffer(b"".join(last), np.uint8), offsets)]
        seed = last[2]
        seen.append(seed.hex())
    return seen


def test_digests_at_the_sizes_stated() -> None:
    generator, clock = np.random.default_rng(evidence.seed() + 3), Clock()
    checkpoints, wanted, done = evidence.scale(2, 100), evidence.scale(3_000, 1_000_000), 0
    for features in compressions().values():
        seen = monte_carlo(features, checkpoints)
        assert all(seen[at] == digest for at, digest in MONTE_DIGESTS.items() if at < checkpoints)
    edges = np.array([0, 1, 31, 32, 33, 54, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 129])
    while done < wanted:
        count = int(generator.integers(1, 200))
        lengths = np.where(
            generator.random(count) < 0.5, generator.choice(edges, count), generator.integers(0, 2000, count)
        )
        start = int(generator.integers(0, 64))
        offsets = (start + np.cumsum([0, *lengths])).astype(generator.choice([np.int32, np.int64]))
        data = np.frombuffer(generator.bytes(int(offsets[-1])), np.uint8)
        spans = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        expected = b"".join(hashlib.sha256(data[a:b]).digest() for a, b in spans)
        for name, features in compressions().items():
            assert hashed(features, data, offsets) == expected, name
        done += count
    if evidence.soaking():
        long = np.full(2**29, ord("Z"), np.uint8)
        for features in compressions().values():
            assert hashed(features, long, np.array([0, 2**29])).hex() == LONG_DIGEST
    evidence.record(
        "sha256",
        "SHA-256 against NIST's vectors and hashlib",
        {
            "seed": evidence.seed(),
            "NIST Monte Carlo checkpoints, of a thousand digests each": checkpoints,
            "NIST's message of 2^29 bytes": "once with each compression",
            "spans against hashlib, in batches of 1 to 199": done,
            "compressions": ", ".join(compressions()),
            "digests compared, all equal": (done + 1000 * checkpoints) * len(compressions()),
            **evidence.kernels(),
            "seconds": clock(),
        },
    )


# --- identifiers -------------------------------------------------------------------------------


def check_clocks(generator: np.random.Generator, wanted: int) -> int:
    """Assert that the kernel gives the ids of its twin for clocks that stand, jump and go back."""
    done = 0
    while done < wanted:
        now = int(generator.integers(1, 2**48 - 10_000))
        counter = int(generator.integers(0, 4096))
        states = [np.array((now, counter), dtype=identifiers.STATE) for _ in range(2)]
        for _ in range(20):
            now = max(0, now + int(generator.choice([0, 0, 1, 1, 2, 1000, -1, -1000])))
            count = int(generator.choice([1, 2, 100, 3000]))
            entropy = generator.bytes(10 * count)
            made = identifiers.fill(states[0], now, entropy, count)
            assert made == fill(states[1], now, entropy, count)
            assert states[0] == states[1]
            done += count
    return done


def ids_of_threads(threads: int, each: int) -> list[list[bytes]]:
    made: list[list[bytes]] = [[] for _ in range(threads)]

    def make(into: list[bytes]) -> None:
        while len(into) < each:
            into.append(kernels.uuid7().bytes)
            if len(into) % 7 == 0:
                into.extend(row.tobytes() for row in kernels.uuid7_batch(5))

    at_once([partial(make, into) for into in made])
    return made


def ids_of_child(count: int) -> bytes:
    """The random halves of ids that a forked child makes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(write, "wb") as pipe:
                pipe.write(b"".join(kernels.uuid7().bytes[8:] for _ in range(count)))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        theirs = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert len(theirs) == 8 * count
    return theirs


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_identifiers_at_the_sizes_stated() -> None:
    generator, clock = np.random.default_rng(evidence.seed() + 4), Clock()
    clocked = check_clocks(generator, evidence.scale(20_000, 5_000_000))
    threads, each = 8, evidence.scale(1_000, 250_000)
    made = ids_of_threads(threads, each)
    assert all(into == sorted(into) for into in made)
    everything = {one for into in made for one in into}
    assert len(everything) == sum(map(len, made))
    forks, halves = evidence.scale(5, 300), set()
    for _ in range(forks):
        kernels.uuid7()  # leaves entropy in the buffer, which the child must not use
        theirs = ids_of_child(200)
        ours = b"".join(kernels.uuid7().bytes[8:] for _ in range(200))
        halves |= {both[at : at + 8] for both in (theirs, ours) for at in range(0, len(both), 8)}
    assert len(halves) == forks * 400
    evidence.record(
        "uuid7",
        "UUIDv7 over clocks that go back, threads and forks",
        {
            "seed": evidence.seed(),
            "ids against the twin, on clocks that stand, jump and go back": clocked,
            f"ids of {threads} threads at once, all different, ascending in each": len(everything),
            "forks, after which parent and child share no random bits": forks,
            **evidence.kernels(),
            "seconds": clock(),
        },
    )
