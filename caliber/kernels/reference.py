"""The twins: every kernel once more in NumPy and Python.

They are what the tests hold the C code to, bit for bit, and what runs under ``CALIBER_NATIVE=off``. Written to be
read; arguments are expected to be checked already.

Source: design sections 5 and 6; csrc/include/caliber.h.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.kernels import token_classes as machine

F32s = npt.NDArray[np.float32]
F64s = npt.NDArray[np.float64]
I64s = npt.NDArray[np.int64]
U8s = npt.NDArray[np.uint8]
U64s = npt.NDArray[np.uint64]

LANES = 8
COSINE, L2, INNER_PRODUCT = 0, 1, 2


# --- canonical scores --------------------------------------------------------------------------


def _lanes(values: F32s) -> F64s:
    """Widen f32[..., d] to f64[..., ceil(d / 8), 8], padded with zeros."""
    dimensions = values.shape[-1]
    steps = -(-dimensions // LANES)
    padded = np.zeros((*values.shape[:-1], steps * LANES), dtype=np.float64)
    padded[..., :dimensions] = values
    return padded.reshape(*values.shape[:-1], steps, LANES)


def _fold(terms: F64s) -> F64s:
    """Add f64[..., steps, 8] lane by lane in index order, then the lanes 4-2-1."""
    lane = np.zeros((*terms.shape[:-2], LANES), dtype=np.float64)
    for step in range(terms.shape[-2]):
        lane = lane + terms[..., step, :]
    four = lane[..., :4] + lane[..., 4:]
    two = four[..., :2] + four[..., 2:]
    return np.asarray(two[..., 0] + two[..., 1], dtype=np.float64)


def norms(rows: F32s) -> F64s:
    """Euclidean length of each row.

    Shapes:  rows f32[n, d] -> f64[n]
    """
    wide = _lanes(rows)
    return np.asarray(np.sqrt(_fold(wide * wide)), dtype=np.float64)


def sums(rows: F32s, query: F32s, *, metric: int) -> F64s:
    """The canonical f64 of each row before any rounding to f32: dot product, or for l2 the squared distance.

    Shapes:  rows f32[n, d]; query f32[d] -> f64[n]
    """
    wide, wide_query = _lanes(rows), _lanes(query)
    if metric == L2:
        difference = wide - wide_query
        return _fold(difference * difference)
    return _fold(wide * wide_query)


def scores(rows: F32s, query: F32s, *, metric: int) -> F32s:
    """Canonical score of each row.

    Shapes:  rows f32[n, d]; query f32[d] -> f32[n]
    Units:   cosine in [-1, 1], zero norm -> 0.0; l2 1/(1+distance); inner product
    """
    exact = sums(rows, query, metric=metric)
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        if metric == L2:
            exact = 1.0 / (1.0 + np.sqrt(exact))
        elif metric == COSINE:
            scale = norms(query[np.newaxis])[0] * norms(rows)
            exact = np.where(scale == 0.0, 0.0, np.clip(exact / scale, -1.0, 1.0))
        return exact.astype(np.float32)


def code_rows(rows: F32s, row_norms: F64s, stride: int) -> tuple[U8s, F32s, F32s]:
    """One byte an element, the scale that turns it back, and a bound of what it leaves out; csrc/vectors/codes.h.

    Shapes:  rows f32[n, d]; row_norms f64[n] -> uint8[n, stride], f32[n], f32[n]
    """
    count, dimensions = rows.shape
    codes = np.full((count, stride), 128, dtype=np.uint8)
    scales, errors = np.zeros(count, dtype=np.float32), np.zeros(count, dtype=np.float32)
    some = row_norms > 0.0
    if not some.any():
        return codes, scales, errors
    shrink = 1.0 / row_norms[some]
    units = rows[some].astype(np.float64) * shrink[:, np.newaxis]
    step = (np.abs(rows[some]).max(axis=1).astype(np.float64) * shrink / 127.0).astype(np.float32)
    wide = step.astype(np.float64)[:, np.newaxis]
    nearest = np.rint(units * (1.0 / wide))
    left = units - wide * nearest
    lanes = np.zeros((left.shape[0], -(-dimensions // LANES) * LANES), dtype=np.float64)
    lanes[:, :dimensions] = left * left
    squares = _fold(lanes.reshape(left.shape[0], -1, LANES))
    codes[some, :dimensions] = (nearest.astype(np.int32) + 128).astype(np.uint8)
    scales[some] = step
    errors[some] = (np.sqrt(squares) * (1.0 + 2.0**-20) + 2.0**-30).astype(np.float32)
    return codes, scales, errors


def canonical_order(found: F32s, ids: I64s, tie: U64s | None) -> I64s:
    """Positions of ``found`` by score descending, tie ascending, id ascending.

    Shapes:  found f32[m]; ids int64[m]; tie u64[n, 2] by id
    """
    keys: list[Any] = [ids]
    if tie is not None:
        keys += [tie[ids, 1], tie[ids, 0]]
    return np.lexsort([*keys, -found.astype(np.float64)]).astype(np.int64)


def topk(
    rows: F32s,
    query: F32s,
    k: int,
    *,
    metric: int,
    min_similarity: float,
    keep: npt.NDArray[np.bool_],
    tie: U64s | None,
) -> tuple[I64s, F32s]:
    """The best k rows in canonical order.

    Shapes:  rows f32[n, d]; query f32[d]; keep bool[n]; tie u64[n, 2] -> int64[m], f32[m]
    """
    every = scores(rows, query, metric=metric)
    ids = np.flatnonzero(keep & (every >= np.float32(min_similarity))).astype(np.int64)
    best = ids[canonical_order(every[ids], ids, tie)[:k]]
    return best, every[best]


def cosine_topk(
    rows: F32s,
    query: F32s,
    k: int,
    *,
    min_similarity: float | None = None,
    mask: npt.NDArray[Any] | None = None,
    tie: U64s | None = None,
) -> tuple[I64s, F32s]:
    """The best k rows by cosine in canonical order.

    Shapes:  rows f32[n, d]; query f32[d]; mask bool or uint8[n]; tie u64[n, 2] -> int64[m], f32[m]
    """
    keep = np.ones(rows.shape[0], dtype=np.bool_) if mask is None else mask.astype(np.bool_)
    floor = -np.inf if min_similarity is None else min_similarity
    return topk(rows, query, k, metric=COSINE, min_similarity=floor, keep=keep, tie=tie)


def cosine_batch(rows: F32s, queries: F32s) -> F32s:
    """Cosine of every row with every query.

    Shapes:  rows f32[n, d]; queries f32[q, d] -> f32[q, n]
    """
    out = np.empty((queries.shape[0], rows.shape[0]), dtype=np.float32)
    for number, query in enumerate(queries):
        out[number] = scores(rows, query, metric=COSINE)
    return out


def pairs_above(rows: F32s, threshold: float, *, max_pairs: int) -> tuple[I64s, F32s, bool]:
    """The best ``max_pairs`` pairs i < j whose cosine is at least ``threshold``.

    Shapes:  rows f32[n, d] -> int64[p, 2], f32[p], truncated
    """
    left, right, found = [], [], []
    for i in range(rows.shape[0] - 1):
        row_scores = scores(rows[i + 1 :], rows[i], metric=COSINE)
        hits = np.flatnonzero(row_scores >= np.float32(threshold))
        left.append(np.full(hits.shape[0], i, dtype=np.int64))
        right.append((hits + i + 1).astype(np.int64))
        found.append(row_scores[hits])
    index = np.stack([np.concatenate(side or [np.empty(0, np.int64)]) for side in (left, right)], axis=1)
    score = np.concatenate(found or [np.empty(0, np.float32)])
    best = np.lexsort([index[:, 1], index[:, 0], -score.astype(np.float64)])[:max_pairs]
    return np.ascontiguousarray(index[best]), score[best], score.shape[0] > max_pairs


# --- identifiers -------------------------------------------------------------------------------


def uuid7_fill(state: npt.NDArray[Any], unix_ms: int, entropy: bytes, count: int) -> bytes:
    """``count`` UUIDv7 of 16 bytes; ``state`` holds the last timestamp and counter and is updated.

    Units:   entropy: 10 bytes an id
    Raises:  OverflowError when the 48-bit timestamp is used up
    """
    out = bytearray()
    for number in range(count):
        random = entropy[10 * number : 10 * number + 10]
        last_ms, counter = int(state["unix_ms"]), int(state["counter"])
        seed = int.from_bytes(random[8:10], "big") & 0x7FF
        if unix_ms > last_ms:
            last_ms, counter = unix_ms, seed
        elif counter < 0xFFF:
            counter += 1
        else:
            last_ms, counter = last_ms + 1, seed
            if last_ms >= 1 << 48:
                raise OverflowError("UUIDv7 timestamp")
        state["unix_ms"], state["counter"] = last_ms, counter
        out += last_ms.to_bytes(6, "big") + (0x7000 | counter).to_bytes(2, "big")
        out += bytes([0x80 | (random[0] & 0x3F)]) + random[1:8]
    return bytes(out)


# --- digests -----------------------------------------------------------------------------------


def sha256_batch(items: Sequence[bytes]) -> U8s:
    """SHA-256 of each item.

    Shapes:  -> uint8[n, 32]
    """
    joined = b"".join(hashlib.sha256(item).digest() for item in items)
    return np.frombuffer(bytearray(joined), dtype=np.uint8).reshape(len(items), 32)


def sha256_spans(data: U8s, offsets: npt.NDArray[Any]) -> U8s:
    """SHA-256 of each span of ``data``.

    Shapes:  data uint8[s]; offsets int32 or int64[n + 1] -> uint8[n, 32]
    """
    edges = offsets.tolist()
    return sha256_batch([data[a:b].tobytes() for a, b in pairwise(edges)])


# --- tokens ------------------------------------------------------------------------------------


def tokens_of_lengths(lengths: Sequence[int], numerator: int, denominator: int) -> list[int]:
    """ceil(length / (numerator / denominator)) in exact integers."""
    return [-(-length * denominator // numerator) for length in lengths]


def _run_lengths(member: npt.NDArray[np.bool_]) -> I64s:
    """How many bytes of a run end at each place; 0 where there is none."""
    place = np.arange(member.shape[0])
    outside = np.maximum.accumulate(np.where(member, -1, place)) if len(place) else place
    return np.asarray(np.where(member, place - outside, 0), dtype=np.int64)


def _before(values: npt.NDArray[Any], distance: int = 1) -> npt.NDArray[Any]:
    """The value so many places earlier; 0 where nothing stands."""
    return np.concatenate((np.zeros(distance, values.dtype), values))[: values.shape[0]]


def token_keys(text: U8s) -> I64s:
    """Where each byte of a text finds its cost; the rules are those of ``caliber.kernels.token_classes``.

    Shapes:  text uint8[s] -> int64[s]
    """
    tables = {
        name: np.frombuffer(getattr(machine, name), np.uint8).astype(np.int64)
        for name in ("CLASSES", "NEXT", "GROUP", "AGAIN", "REPEATS", "LETTER", "LOWER", "NEXT_HIGH")
    }
    high = text >= 0x80
    kind = tables["CLASSES"][text]
    ascii_class = np.where(high, machine.HIGH, kind)

    group = tables["GROUP"][ascii_class]
    context = tables["NEXT"][ascii_class] + np.where(group == _before(group), tables["AGAIN"][ascii_class], 0)
    letters = _run_lengths(tables["LETTER"][ascii_class] == 1)
    for length in machine.LETTER_RUNS:
        context += (tables["LOWER"][ascii_class] == 1) & (letters >= length)
    repeats = (tables["REPEATS"][ascii_class] == 1) & (text == _before(text))
    current = np.where(repeats, machine.REPEAT, ascii_class)

    high_context = tables["NEXT_HIGH"][ascii_class]
    highs = _run_lengths(high)
    for length in machine.HIGH_RUNS:
        high_context = high_context + (highs >= length)

    lead = text >= machine.LEAD_FROM
    third = np.where(_before(text, 2) >= machine.FOUR_FROM, machine.FOURTH, machine.THIRD)
    inside = np.where(_before(lead), _before(kind), third)
    return np.where(
        lead,
        machine.LEAD_AT + 16 * _before(high_context) + kind,
        np.where(high, machine.CONTINUATION_AT + 16 * inside + kind, 16 * _before(context) + current),
    )


def token_units(text: U8s, costs: U8s) -> int:
    """What a text costs, in units of ``token_classes.UNITS_PER_TOKEN``.

    Shapes:  text uint8[s]; costs uint8[COSTS]
    """
    return int(costs[token_keys(text)].sum(dtype=np.int64))


def token_prefix(text: U8s, costs: U8s, limit: int) -> int:
    """How many bytes of a text cost at most ``limit`` units.

    Shapes:  text uint8[s]; costs uint8[COSTS]
    """
    return int(np.searchsorted(np.cumsum(costs[token_keys(text)], dtype=np.int64), limit, side="right"))


# --- ranking -----------------------------------------------------------------------------------

INCLUDED, EXCLUDED_RELEVANCE, EXCLUDED_SECTION_BUDGET, EXCLUDED_BUDGET, EXCLUDED_GROUP = 1, 2, 3, 4, 5


def rank_and_fill(
    columns: Any,
    *,
    budget: int,
    section_budget: npt.NDArray[np.int32],
    section_overhead: npt.NDArray[np.int32],
    separator_tokens: int,
    min_relevance: float,
) -> tuple[I64s, U8s]:
    """Rank all candidates and decide which fit; the rules are those of ``caliber.kernels.rank``.

    Shapes:  -> order int64[n], decision uint8[n]
    """
    count = columns.priority.shape[0]
    relevance = columns.relevance.astype(np.float64)
    ranking = np.lexsort(
        [columns.tie[:, 1], columns.tie[:, 0], columns.age_us, -relevance, -columns.priority.astype(np.int64)]
    ).tolist()
    group, section, tokens = columns.group.tolist(), columns.section.tolist(), columns.tokens.tolist()
    members: dict[int, list[int]] = {}
    for i in ranking:
        if group[i] >= 0:
            members.setdefault(group[i], []).append(i)

    floor = float(np.float32(min_relevance))
    order: list[int] = []
    decision = np.zeros(count, dtype=np.uint8)
    used = 0
    section_used: dict[int, int] = {}
    for first in ranking:
        unit = [first] if group[first] < 0 else members[group[first]]
        if unit[0] != first:
            continue
        order += unit
        s = section[first]
        cost = sum(tokens[i] for i in unit) + separator_tokens * (len(unit) - 1)
        cost += separator_tokens if s in section_used else int(section_overhead[s])
        in_section = section_used.get(s, 0)
        if max(relevance[i] for i in unit) < floor:
            code = others = EXCLUDED_RELEVANCE
        elif section_budget[s] >= 0 and in_section + cost > section_budget[s]:
            code, others = EXCLUDED_SECTION_BUDGET, EXCLUDED_GROUP
        elif used + cost > budget:
            code, others = EXCLUDED_BUDGET, EXCLUDED_GROUP
        else:
            code = others = INCLUDED
            used += cost
            section_used[s] = in_section + cost
        decision[unit] = others
        decision[first] = code
    return np.array(order, dtype=np.int64), decision
