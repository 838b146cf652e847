"""Ranking and filling a token budget against the plain Python loop. Goals: design section 9."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from harness.contest import CPU, PEER, Contender, paths

from caliber import kernels

PATHS = kernels.available_paths()
SEED = int(os.environ.get("CALIBER_SEED", "1"))
BUDGET = 100_000
CAPS = np.array([-1, 40_000, 30_000, 20_000, 10_000], np.int32)
OVERHEAD = np.array([4, 4, 4, 4, 4], np.int32)
GOALS = {10_000: 50.0}
# Beyond this the loop takes seconds.
ALL_UP_TO = 10_000


def candidates(n: int) -> kernels.RankColumns:
    generator = np.random.default_rng(SEED)
    return kernels.RankColumns(
        priority=generator.integers(0, 6, n).astype(np.int32) * 10,
        relevance=generator.random(n, dtype=np.float32),
        age_us=generator.integers(0, 2**45, n),
        tokens=generator.integers(5, 400, n).astype(np.int32),
        tie=generator.integers(0, 2**63, (n, 2)).astype(np.uint64),
        group=np.full(n, -1, np.int32),
        section=generator.integers(0, 5, n).astype(np.int32),
    )


def fill(columns: kernels.RankColumns) -> tuple[np.ndarray, np.ndarray]:
    return kernels.rank_and_fill(
        columns, budget=BUDGET, section_budget=CAPS, section_overhead=OVERHEAD, separator_tokens=1, min_relevance=0.1
    )


def python_records(columns: kernels.RankColumns) -> list[tuple[int, float, int, int, tuple[int, ...], int]]:
    """The candidates as a Python program would hold them; not timed."""
    return [
        (priority, relevance, age, tokens, tuple(tie), section)
        for priority, relevance, age, tokens, tie, section in zip(
            columns.priority.tolist(),
            columns.relevance.tolist(),
            columns.age_us.tolist(),
            columns.tokens.tolist(),
            columns.tie.tolist(),
            columns.section.tolist(),
            strict=True,
        )
    ]


def fill_in_python(records: list[tuple[int, float, int, int, tuple[int, ...], int]]) -> tuple[list[int], list[int]]:
    """The plain loop: sort by a key, then take what fits."""
    caps, overhead, floor = CAPS.tolist(), OVERHEAD.tolist(), float(np.float32(0.1))
    order = sorted(range(len(records)), key=lambda i: (-records[i][0], -records[i][1], records[i][2], records[i][4], i))
    decision = [0] * len(records)
    used, section_used = 0, [0] * len(caps)
    started = [False] * len(caps)
    for i in order:
        _, relevance, _, tokens, _, section = records[i]
        if relevance < floor:
            decision[i] = 2
            continue
        cost = tokens + (1 if started[section] else overhead[section])
        if caps[section] >= 0 and section_used[section] + cost > caps[section]:
            decision[i] = 3
        elif used + cost > BUDGET:
            decision[i] = 4
        else:
            decision[i] = 1
            used += cost
            section_used[section] += cost
            started[section] = True
    return order, decision


@pytest.mark.parametrize("n", [100, 10_000, 1_000_000])
def test_rank_and_fill(contest: Callable[..., None], quick: bool, n: int) -> None:
    if quick and n > ALL_UP_TO:
        pytest.skip("left out by --quick")
    columns = candidates(n)
    everyone = n <= ALL_UP_TO
    contenders = paths(lambda: fill(columns), PATHS if everyone else PATHS[-1:], goal=GOALS.get(n))
    records = python_records(columns)
    expected = fill_in_python(records)
    for contender in contenders:
        with contender.around():
            order, decision = fill(columns)
        assert (order.tolist(), decision.tolist()) == expected
    if everyone:
        contenders.append(Contender(PEER, "Python sort + loop", lambda: fill_in_python(records)))
    contest(f"rank_and_fill, {n:,} candidates", contenders, clock=CPU)
