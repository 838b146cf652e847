"""Column loops (validity, ranking, graph walk) as plain Python that Numba compiles.

Each gives the bits of the function of the same name in ``caliber.kernels.loops``. Every index that comes from outside
is checked, because compiled code does not check it; an index out of range yields ``BAD_INDEX``. Sums and products are
f64, in the order written and each rounded: without fast-math nothing is reordered or contracted.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

BAD_INDEX: Final = -1
"""Answered instead of a count when an index points outside its column."""

FEW: Final = 16
"""Up to this many values a linear comparison is faster than a lookup."""


def valid_rows(
    live: Any, ended: Any, first: Any, second: Any, third: Any, bounds: Any, codes: Any, allowed: Any, out: Any
) -> Any:
    """Mark the live rows that have not ended, whose instants lie within bounds, and whose code is allowed."""
    rows, verdicts = live.shape[0], allowed.shape[0]
    low_1, high_1, low_2, high_2, low_3, high_3 = bounds[0], bounds[1], bounds[2], bounds[3], bounds[4], bounds[5]
    for row in range(rows):
        held = live[row] & (ended[row] == 0)
        held &= (first[row] >= low_1) & (first[row] <= high_1)
        held &= (second[row] >= low_2) & (second[row] <= high_2)
        held &= (third[row] >= low_3) & (third[row] <= high_3)
        out[row] = held
    if codes.shape[0] == 0:
        return rows
    lowest, highest = codes[0], codes[0]
    for row in range(rows):
        lowest, highest = min(lowest, codes[row]), max(highest, codes[row])
    if lowest < 0 or highest >= verdicts:
        return BAD_INDEX
    for row in range(rows):
        out[row] = out[row] & allowed[codes[row]]
    return rows


def keep_members(mask: Any, column: Any, values: Any) -> Any:
    """Unmark the rows whose value is not one of ``values``, which are sorted."""
    rows, count = mask.shape[0], values.shape[0]
    if count > FEW:
        for row in range(rows):
            if mask[row]:
                low, high = 0, count
                while low < high:
                    middle = (low + high) // 2
                    if values[middle] < column[row]:
                        low = middle + 1
                    else:
                        high = middle
                mask[row] = low < count and values[low] == column[row]
        return rows
    found = np.zeros(rows, np.bool_)
    for at in range(count):
        value = values[at]
        for row in range(rows):
            found[row] |= column[row] == value
    for row in range(rows):
        mask[row] &= found[row]
    return rows


def carry(numbers: Any, rows: Any, allowed: Any, out: Any) -> Any:
    """Mark each number whose row is allowed; ``out`` starts unmarked."""
    length, owners = out.shape[0], allowed.shape[0]
    for place in range(numbers.shape[0]):
        number, row = numbers[place], rows[place]
        if number < 0 or number >= length or row < 0 or row >= owners:
            return BAD_INDEX
        out[number] = allowed[row]
    return length


def newest(mask: Any, created: Any, limit: int, out: Any) -> Any:
    """Write the marked rows at least as new as the ``limit``-th newest, in order of row; return how many."""
    rows, held = mask.shape[0], 0
    heap = np.empty(limit, np.int64)  # the newest instants so far, their oldest on top
    # From the end: rows come in the order they were written, so most of the older ones are turned away at once.
    for row in range(rows - 1, -1, -1):
        if not mask[row]:
            continue
        instant = created[row]
        if held < limit:
            at = held
            held += 1
            while at > 0 and heap[(at - 1) // 2] > instant:
                heap[at] = heap[(at - 1) // 2]
                at = (at - 1) // 2
            heap[at] = instant
        elif instant > heap[0]:
            at = 0
            while True:
                child = 2 * at + 1
                if child >= limit:
                    break
                if child + 1 < limit and heap[child + 1] < heap[child]:
                    child += 1
                if heap[child] >= instant:
                    break
                heap[at] = heap[child]
                at = child
            heap[at] = instant
    found = 0
    if held == 0:
        return found
    least = heap[0]
    for row in range(rows):
        if mask[row] and (created[row] >= least or held < limit):
            out[found] = row
            found += 1
    return found


def relevance(similarity: Any, present: Any, neutral: Any, out: Any) -> Any:
    """Write the similarity within [0, 1] where there is one, else the neutral value."""
    rows = similarity.shape[0]
    for row in range(rows):
        value = similarity[row]
        if not value > np.float32(0):
            value = np.float32(0)
        if value > np.float32(1):
            value = np.float32(1)
        out[row] = value if present[row] else neutral
    return rows


def adjacency(sources: Any, targets: Any, nodes: int, indptr: Any, order: Any) -> Any:
    """Write the edges in order of source, target and place (two counting sorts), and where each source begins."""
    edges = sources.shape[0]
    by_target = np.zeros(nodes + 1, np.int64)
    for edge in range(edges):
        source, target = sources[edge], targets[edge]
        if source < 0 or source >= nodes or target < 0 or target >= nodes:
            return BAD_INDEX
        by_target[target + 1] += 1
        indptr[source + 1] += 1
    for node in range(nodes):
        by_target[node + 1] += by_target[node]
        indptr[node + 1] += indptr[node]
    sorted_edges = np.empty(edges, np.int64)
    for edge in range(edges):
        target = targets[edge]
        sorted_edges[by_target[target]] = edge
        by_target[target] += 1
    places = indptr[:nodes].copy()
    for place in range(edges):
        edge = sorted_edges[place]
        source = sources[edge]
        order[places[source]] = edge
        places[source] += 1
    return edges


def walk(
    indptr: Any, indices: Any, weights: Any, seeds: Any, scores: Any, decay: float, max_hops: int, mask: Any,
    score: Any, hop: Any, via: Any,
) -> Any:  # fmt: skip
    """Spread scores from the seeds, one hop at a time; ``score``, ``hop`` and ``via`` start at 0, -1 and -1."""
    nodes, masked = score.shape[0], mask.shape[0] > 0
    frontier, following = np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    values = np.empty(nodes, np.float32)
    count = 0
    for place in range(seeds.shape[0]):
        node = seeds[place]
        if node < 0 or node >= nodes:
            return BAD_INDEX
        if masked and not mask[node]:
            continue
        if scores[place] > score[node]:
            if hop[node] < 0:
                hop[node] = 0
                frontier[count] = node
                count += 1
            score[node] = scores[place]
    for step in range(1, max_hops + 1):
        # The scores of the previous hop: nodes improved in this hop continue with the next.
        for place in range(count):
            values[place] = score[frontier[place]]
        reached = 0
        for place in range(count):
            node = frontier[place]
            value = np.float64(values[place])
            for edge in range(indptr[node], indptr[node + 1]):
                target = indices[edge]
                if masked and not mask[target]:
                    continue
                got = np.float32(value * np.float64(weights[edge]) * decay)
                if got > score[target]:
                    if hop[target] != step:
                        hop[target] = step
                        following[reached] = target
                        reached += 1
                    score[target] = got
                    via[target] = node
                elif got == score[target] and hop[target] == step and node < via[target]:
                    via[target] = node
        if reached == 0:
            break
        frontier, following = following, frontier
        count = reached
    return nodes
