"""VectorMatrix and its snapshots: ids, retirement, compaction, threads. Design sections 5 and 6, C-190."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest
from support.threads import begin

from caliber import kernels
from caliber.kernels.vectors.matrix import SEGMENT_ROWS


def rows(n: int, dimensions: int = 8, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, dimensions), dtype=np.float32)


def test_row_ids_are_consecutive_over_segments() -> None:
    matrix = kernels.VectorMatrix(8)
    first = matrix.append(rows(SEGMENT_ROWS - 1))
    second = matrix.append(rows(2 * SEGMENT_ROWS + 3, seed=2))
    assert np.concatenate([first, second]).tolist() == list(range(3 * SEGMENT_ROWS + 2))
    np.testing.assert_array_equal(matrix.snapshot().rows(second), rows(2 * SEGMENT_ROWS + 3, seed=2))


def test_segments_never_move() -> None:
    matrix = kernels.VectorMatrix(8)
    matrix.append(rows(10))
    before = matrix.snapshot()
    matrix.append(rows(SEGMENT_ROWS, seed=2))
    matrix.retire(np.array([3]))
    after = matrix.snapshot()
    assert after.segments[0][0].ctypes.data == before.segments[0][0].ctypes.data


def test_a_snapshot_keeps_what_it_saw() -> None:
    matrix = kernels.VectorMatrix(8)
    matrix.append(rows(100))
    query = rows(1, seed=3)[0]
    before = matrix.snapshot()
    seen = before.topk(query, 100)
    matrix.retire(seen[0][:5])
    matrix.append(rows(SEGMENT_ROWS, seed=4))
    matrix.compact()
    again = before.topk(query, 100)
    np.testing.assert_array_equal(seen[0], again[0])
    np.testing.assert_array_equal(seen[1], again[1])
    assert (len(before), before.size, int(before.live.sum())) == (100, 100, 100)


def test_an_unchanged_matrix_gives_the_same_snapshot() -> None:
    matrix = kernels.VectorMatrix(8)
    matrix.append(rows(3))
    assert matrix.snapshot() is matrix.snapshot()
    assert matrix.retire(np.array([], np.int64)) == 0
    before = matrix.snapshot()
    assert matrix.retire(np.array([1, 1])) == 1
    assert matrix.snapshot() is not before
    assert matrix.retire(np.array([1])) == 0


def test_retired_rows_are_not_found_but_keep_their_scores() -> None:
    matrix = kernels.VectorMatrix(8)
    data = rows(SEGMENT_ROWS + 50)
    ids = matrix.append(data)
    query = data[7]
    best = matrix.topk(query, 1)[0][0]
    assert best == 7
    matrix.retire(np.array([7, SEGMENT_ROWS + 1]))
    found, scores = matrix.topk(query, ids.shape[0])
    assert found.shape[0] == len(matrix) == SEGMENT_ROWS + 48
    assert not np.isin([7, SEGMENT_ROWS + 1], found).any()
    snapshot = matrix.snapshot()
    assert snapshot.scores(query, np.array([7]))[0] == 1.0
    np.testing.assert_array_equal(snapshot.scores(query, found), scores)
    assert not snapshot.live[7]
    with pytest.raises(ValueError, match="read-only"):
        snapshot.live[7] = True


def test_compact_maps_old_ids_to_new() -> None:
    matrix = kernels.VectorMatrix(8)
    data = rows(2 * SEGMENT_ROWS + 9)
    matrix.append(data)
    gone = np.arange(0, data.shape[0], 3)
    matrix.retire(gone)
    query = rows(1, seed=9)[0]
    before_ids, before_scores = matrix.topk(query, 50)
    bytes_before = matrix.nbytes
    mapping = matrix.compact()
    assert (mapping[gone] == -1).all()
    kept = np.flatnonzero(mapping >= 0)
    assert mapping[kept].tolist() == list(range(kept.shape[0]))
    np.testing.assert_array_equal(matrix.snapshot().rows(mapping[kept]), data[kept])
    after_ids, after_scores = matrix.topk(query, 50)
    np.testing.assert_array_equal(mapping[before_ids], after_ids)
    np.testing.assert_array_equal(before_scores, after_scores)
    assert matrix.size == len(matrix) == kept.shape[0]
    assert matrix.nbytes < bytes_before
    assert matrix.append(rows(1))[0] == kept.shape[0]


def test_compact_without_retired_rows_changes_nothing() -> None:
    matrix = kernels.VectorMatrix(8)
    matrix.append(rows(5))
    before = matrix.snapshot()
    assert matrix.compact().tolist() == [0, 1, 2, 3, 4]
    assert matrix.snapshot() is before


def test_metrics_are_similarities() -> None:  # C-190
    query = np.array([3.0, 4.0], np.float32)
    data = np.array([[6.0, 8.0], [0.0, 0.0], [-3.0, -4.0], [3.0, 4.0]], np.float32)
    expected = {
        "cosine": [1.0, 0.0, -1.0, 1.0],
        "l2": [1 / 6, 1 / 6, 1 / 11, 1.0],
        "inner_product": [50.0, 0.0, -25.0, 25.0],
    }
    for metric, wanted in expected.items():
        matrix = kernels.VectorMatrix(2, metric)
        ids = matrix.append(data)
        np.testing.assert_allclose(matrix.snapshot().scores(query, ids), wanted, rtol=1e-7)


def test_equal_scores_order_by_tie_then_row() -> None:
    matrix = kernels.VectorMatrix(2)
    matrix.append(np.ones((5, 2), np.float32))
    query = np.ones(2, np.float32)
    assert matrix.topk(query, 5)[0].tolist() == [0, 1, 2, 3, 4]
    tie = np.array([[2, 0], [1, 9], [2**63, 0], [1, 8], [2, 0]], np.uint64)
    assert matrix.topk(query, 5, tie=tie)[0].tolist() == [3, 1, 0, 4, 2]
    assert matrix.topk(query, 2, tie=tie)[0].tolist() == [3, 1]


def test_min_similarity_is_inclusive_in_f32() -> None:
    matrix = kernels.VectorMatrix(2, "inner_product")
    matrix.append(np.array([[0.7, 0], [0.69999, 0]], np.float32))
    query = np.array([1, 0], np.float32)
    # 0.7 as f32 is a little less than 0.7 as f64: a user who says 0.7 means the row too.
    assert matrix.topk(query, 5, min_similarity=0.7)[0].tolist() == [0]
    assert matrix.topk(query, 5, min_similarity=math.inf)[0].tolist() == []
    assert matrix.topk(query, 5, min_similarity=-math.inf)[0].tolist() == [0, 1]


def test_masks_of_both_types_select_rows() -> None:
    matrix = kernels.VectorMatrix(8)
    matrix.append(rows(20))
    chosen = np.zeros(20, np.bool_)
    chosen[[2, 5, 19]] = True
    query = rows(1, seed=2)[0]
    found = matrix.topk(query, 20, mask=chosen)[0]
    assert sorted(found.tolist()) == [2, 5, 19]
    np.testing.assert_array_equal(found, matrix.topk(query, 20, mask=chosen.astype(np.uint8) * 7)[0])


def test_results_are_the_callers_own() -> None:
    matrix = kernels.VectorMatrix(8)
    matrix.append(rows(3))
    ids, scores = matrix.topk(rows(1)[0], 10)
    assert ids.flags.owndata
    assert scores.flags.owndata
    got = matrix.snapshot().rows(ids)
    got[:] = 0
    assert matrix.snapshot().rows(ids).any()


def test_snapshots_stay_stable_while_another_thread_writes() -> None:
    dimensions = 16
    matrix = kernels.VectorMatrix(dimensions)
    matrix.append(rows(500, dimensions))
    stop = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        generator = np.random.default_rng(7)
        try:
            while not stop.is_set():
                ids = matrix.append(generator.standard_normal((257, dimensions), dtype=np.float32))
                matrix.retire(ids[::2])
                if matrix.size > 40_000:
                    matrix.compact()
                    matrix.retire(np.arange(500, matrix.size))
                    matrix.compact()
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    query = rows(1, dimensions, seed=8)[0]
    try:
        sizes = set()
        rounds, until = 0, time.monotonic() + 60
        # On a busy machine the writer gets its turns late: go on until it had some.
        while rounds < 150 or (len(sizes) <= 10 and time.monotonic() < until):
            rounds += 1
            snapshot = matrix.snapshot()
            sizes.add(snapshot.size)
            first = snapshot.topk(query, 64)
            everything = snapshot.topk(query, snapshot.size)
            second = snapshot.topk(query, 64)
            assert everything[0].shape[0] == len(snapshot) == int(snapshot.live.sum())
            assert snapshot.live[everything[0]].all()
            for before, after in zip(first, second, strict=True):
                np.testing.assert_array_equal(before, after)
            np.testing.assert_array_equal(first[1], everything[1][:64])
            np.testing.assert_array_equal(snapshot.scores(query, first[0]), first[1])
    finally:
        stop.set()
        writer.join()
    assert not failures
    assert len(sizes) > 10  # the writer really ran meanwhile


def test_kernels_release_the_gil() -> None:
    matrix = kernels.VectorMatrix(256)
    matrix.append(rows(60_000, 256))
    snapshot, query = matrix.snapshot(), rows(1, 256, seed=2)[0]
    started, stop = threading.Event(), threading.Event()
    ticks = [0]

    def count() -> None:
        started.set()
        while not stop.is_set():
            ticks[0] += 1

    with kernels.forced_path("scalar"):
        snapshot.topk(query, 30_000)  # so many that every row is scored
        counter = begin(count)
        started.wait()
        before = ticks[0]
        snapshot.topk(query, 30_000)  # so many that every row is scored
        during = ticks[0] - before
        stop.set()
        counter.result()
    assert during > 1000  # Python code ran while C searched
