"""Rows and queries of kinds that are hard for bounds and for order."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from caliber.kernels.vectors import scoring
from caliber.kernels.vectors.scoring import Segment


@dataclass(frozen=True)
class Problem:
    rows: np.ndarray = field(repr=False)
    query: np.ndarray = field(repr=False)
    kind: str


def drawn(seed: int, n: int, dimensions: int, kind: str, scale: float) -> Problem:
    """Rows and a query of a kind that is hard for bounds or for order."""
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((n, dimensions))
    query = generator.standard_normal(dimensions)
    if kind == "near ties":  # far closer to each other than codes can tell apart
        rows = query + 1e-6 * rows
    elif kind == "last bits":  # the query, and copies of it with one bit of one element changed
        rows = np.tile(query, (n, 1))
        at = generator.integers(0, dimensions, n)
        rows[np.arange(n), at] *= 1 + 2.0**-23 * generator.integers(-1, 2, n)
    elif kind == "duplicates":
        rows = rows[generator.integers(0, max(1, n // 8), n)]
    elif kind == "few values":
        rows, query = np.round(rows), np.round(query)
    elif kind == "spikes":  # one element large: the others' codes are all zero
        rows[np.arange(n), generator.integers(0, dimensions, n)] = 1e4
        query[generator.integers(0, dimensions)] = 1e4
    elif kind == "halves":  # what the codes of row 0 leave out points along the query: as far off as bounds allow
        rest = generator.choice([-0.49, 0.49], dimensions)
        rows = generator.integers(-100, 100, (n, dimensions)) + rest
        rows[:, 0] = 127
        query = np.sign(rest) * 60
        query[0] = 67  # 67 + 60 = 127: the codes of the query are exact
    elif kind == "one sign":  # all codes at the end of their range: the largest sums
        rows, query = np.ones((n, dimensions)), np.ones(dimensions)
        rows[: n // 2] *= -1
    elif kind == "zeros":
        rows[generator.random(n) < 0.5] = 0
        rows[:, generator.random(dimensions) < 0.9] = 0
    elif kind == "opposite":
        rows = -query + 1e-3 * rows
    elif kind == "rising":  # each better than the one before: everything is a candidate when it is met
        rows = query + rows * np.linspace(3, 0.1, n)[:, np.newaxis]
    spread = 10.0 ** generator.integers(-3, 4, n) if kind == "lengths" else np.ones(n)
    with np.errstate(over="ignore", under="ignore"):
        wide = np.clip(rows * scale * spread[:, np.newaxis], -3.4e38, 3.4e38).astype(np.float32)
        return Problem(wide, np.clip(query * scale, -3.4e38, 3.4e38).astype(np.float32), kind)


KINDS = [
    "normal", "near ties", "last bits", "duplicates", "few values", "spikes", "halves", "one sign", "zeros",
    "opposite", "rising", "lengths",
]  # fmt: skip


def segment_of(rows: np.ndarray, *, coded: bool = True) -> Segment:
    norms = scoring.row_norms(rows, field="rows")
    return Segment(rows, norms, scoring.code_rows(rows, norms) if coded else None, None, rows.shape[0])
