"""The embedding cache: bounded, shared, single-flight, and honest about its durable backing."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.evidence import examples
from support.inspection import replaced
from support.interrupted import every_line, in_files
from support.llm.embedding import embed_texts
from support.threads import at_once, begin

from caliber.llm import cache as llm_cache
from caliber.llm.cache import EmbeddingCache, EmbeddingKey, content_hash
from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.protocols import FloatMatrix, FloatVector
from caliber.llm.texts import LongText, LongTextMode
from caliber.model.errors import EmbeddingFailed, InvalidValue, Unavailable


def key(text: str, model: str = "m", dimensions: int = 4) -> EmbeddingKey:
    return EmbeddingKey(content_hash(text), model, dimensions)


def vector(value: float) -> FloatVector:
    return np.full(4, value, dtype=np.float32)


class Store:
    """A durable store in memory that can be made to fail."""

    def __init__(self) -> None:
        self.rows: dict[EmbeddingKey, FloatVector] = {}
        self.broken = False
        self.asked: list[list[EmbeddingKey]] = []

    def get_many(self, keys: Sequence[EmbeddingKey]) -> Mapping[EmbeddingKey, FloatVector]:
        self.asked.append(list(keys))
        if self.broken:
            raise Unavailable(reason="disk full")
        return {key: self.rows[key] for key in keys if key in self.rows}

    def mark(self) -> int:
        return 0

    def put_many(self, items: Sequence[tuple[EmbeddingKey, FloatVector]], mark: int) -> None:
        if self.broken:
            raise Unavailable(reason="disk full")
        self.rows.update(items)


def never(places: list[int]) -> list[FloatVector]:
    raise AssertionError(f"computed {places}")


def test_the_key_is_the_sha256_of_the_text() -> None:
    # C-359
    assert content_hash("größe") == hashlib.sha256("größe".encode()).digest()


def test_a_vector_is_computed_once_and_read_only() -> None:
    cache = EmbeddingCache(max_entries=8)
    calls: list[list[int]] = []

    def compute(places: list[int]) -> list[FloatVector]:
        calls.append(places)
        return [vector(place) for place in places]

    first = cache.get_or_compute([key("a"), key("b"), key("a")], compute)
    assert calls == [[0, 1]]
    assert first[0] is first[2]
    assert cache.get_or_compute([key("b")], never)[0] is first[1]
    with pytest.raises(ValueError, match="read-only"):
        first[0][0] = 5.0
    assert cache.peek(key("a")) is first[0]
    assert cache.peek(key("c")) is None


def test_model_and_dimensions_are_part_of_the_key() -> None:
    # C-396
    cache = EmbeddingCache(max_entries=8)
    cache.get_or_compute([key("a")], lambda places: [vector(1)])
    other = cache.get_or_compute([key("a", model="n")], lambda places: [vector(2)])[0]
    assert other[0] == 2
    assert cache.peek(key("a", dimensions=8)) is None


def test_the_least_recently_used_leaves_first() -> None:
    cache = EmbeddingCache(max_entries=2)
    for name in ("a", "b"):
        cache.get_or_compute([key(name)], lambda places: [vector(1)])
    assert cache.peek(key("a")) is not None
    cache.get_or_compute([key("c")], lambda places: [vector(1)])
    assert [cache.peek(key(name)) is not None for name in "abc"] == [True, False, True]
    assert len(cache) == 2


def test_zero_entries_keep_nothing_and_a_negative_number_is_refused() -> None:
    cache = EmbeddingCache(max_entries=0)
    assert cache.get_or_compute([key("a")], lambda places: [vector(3)])[0][0] == 3
    assert len(cache) == 0
    with pytest.raises(InvalidValue):
        EmbeddingCache(max_entries=-1)


def test_the_store_is_asked_once_and_given_only_what_it_lacks() -> None:
    # C-359, C-360
    store = Store()
    store.rows[key("a")] = vector(7)
    cache = EmbeddingCache(max_entries=8, store=store)
    found = cache.get_or_compute([key("a"), key("b")], lambda places: [vector(place) for place in places])
    assert [row[0] for row in found] == [7, 1]
    assert store.asked == [[key("a"), key("b")]]
    assert store.rows[key("b")][0] == 1
    again = EmbeddingCache(max_entries=8, store=store)
    assert [row[0] for row in again.get_or_compute([key("b"), key("a")], never)] == [1, 7]


def test_a_failing_store_costs_the_keeping_and_not_the_vector() -> None:
    store = Store()
    store.broken = True
    cache = EmbeddingCache(max_entries=8, store=store)
    assert cache.get_or_compute([key("a")], lambda places: [vector(2)])[0][0] == 2


@pytest.mark.parametrize("bad", [
    np.zeros(4, dtype=np.float32),
    np.full(4, np.nan, dtype=np.float32),
    np.ones(3, dtype=np.float32),
    np.ones(4, dtype=np.float64),
])  # fmt: skip
def test_a_damaged_stored_vector_is_computed_anew(bad: np.ndarray) -> None:
    store = Store()
    store.rows[key("a")] = bad
    cache = EmbeddingCache(max_entries=8, store=store)
    assert cache.get_or_compute([key("a")], lambda places: [vector(9)])[0][0] == 9
    assert store.rows[key("a")][0] == 9


def test_own_keys_are_computed_before_waiting_for_those_of_others() -> None:
    cache = EmbeddingCache(max_entries=8)
    started = {"a": threading.Event(), "b": threading.Event()}
    results: dict[str, list[float]] = {}

    def first() -> None:
        def compute(places: list[int]) -> list[FloatVector]:
            started["a"].set()
            assert started["b"].wait(10)  # the other is at work on b, and will want a
            return [vector(1)]

        results["first"] = [float(row[0]) for row in cache.get_or_compute([key("a")], compute)]

    def second() -> None:
        assert started["a"].wait(10)

        def compute(places: list[int]) -> list[FloatVector]:
            started["b"].set()
            return [vector(2)]

        results["second"] = [float(row[0]) for row in cache.get_or_compute([key("a"), key("b")], compute)]

    at_once([first, second])
    # If b were only computed after a had arrived, a would never arrive.
    assert results == {"first": [1.0], "second": [1.0, 2.0]}


def test_a_failure_is_its_callers_own_and_waiters_try_for_themselves() -> None:
    cache = EmbeddingCache(max_entries=8)
    started, release, waiting = threading.Event(), threading.Event(), threading.Event()
    outcome: list[object] = []

    class Watched(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waiting.set()
            return super().wait(timeout)

    def fail(places: list[int]) -> list[FloatVector]:
        started.set()
        assert release.wait(10)
        raise EmbeddingFailed(reason="no")

    def owner() -> None:
        try:
            with replaced(llm_cache, "Flight", lambda: flight(Watched())) as flight:
                cache.get_or_compute([key("a"), key("poison")], fail)
        except EmbeddingFailed as error:
            outcome.append(error)

    def waiter() -> None:
        outcome.append(float(cache.get_or_compute([key("a")], lambda places: [vector(4)])[0][0]))

    one = begin(owner)
    assert started.wait(10)
    two = begin(waiter)
    assert waiting.wait(10)
    release.set()
    one.result(10)
    two.result(10)
    assert {type(item) for item in outcome} == {EmbeddingFailed, float}
    assert cache.peek(key("poison")) is None


def test_a_short_answer_of_compute_is_an_error_and_keeps_nothing() -> None:
    # K-113
    cache = EmbeddingCache(max_entries=8)
    with pytest.raises(ValueError, match="shorter"):
        cache.get_or_compute([key("a"), key("b")], lambda places: [vector(1)])
    assert len(cache) == 0
    assert len(cache.get_or_compute([key("a")], lambda places: [vector(1)])) == 1


def test_forgetting_contents_removes_them_under_every_model() -> None:
    cache = EmbeddingCache(max_entries=8)
    cache.get_or_compute([key("a"), key("a", model="n"), key("b")], lambda places: [vector(1) for _ in places])
    assert cache.discard([content_hash("a"), content_hash("z")]) == 2
    assert cache.peek(key("b")) is not None
    cache.clear()
    assert len(cache) == 0


def test_a_child_does_not_wait_for_threads_of_its_parent() -> None:
    cache = EmbeddingCache(max_entries=8)
    cache.get_or_compute([key("known")], lambda places: [vector(1)])

    def compute(places: list[int]) -> list[FloatVector]:
        # As if forked off while this thread is computing and another holds the lock.
        held = threading.Lock()
        with held, replaced(cache, "pid", -1), replaced(cache, "lock", held):
            assert cache.get_or_compute([key("slow"), key("known")], lambda places: [vector(2)])[1][0] == 1
        return [vector(3)]

    assert cache.get_or_compute([key("slow")], compute)[0][0] == 3


def test_whoever_is_interrupted_keeps_nobody_waiting() -> None:
    for lines in every_line(in_files("llm/cache.py")):
        cache = EmbeddingCache(max_entries=8, store=Store())
        keys = [key("a"), key("b")]
        with lines.counted():
            cache.get_or_compute(keys, lambda places: [vector(1.0) for _ in places])
        found: list[FloatVector] = []
        other = threading.Thread(
            target=lambda cache=cache, keys=keys, found=found: found.extend(
                cache.get_or_compute(keys, lambda places: [vector(1.0) for _ in places])
            ),
            daemon=True,
        )
        other.start()
        other.join(30)
        assert len(found) == 2, "it waits for a thread that was interrupted"


# --- any texts -------------------------------------------------------------------------------------


RULE = LongText(LongTextMode.CHUNK_MEAN, 30, len)
NAMES = st.sampled_from([f"text number {number}" for number in range(12)] + ["long " * 20, "longer text " * 30])


class Counting(HashEmbeddingProvider):
    """Counts how often each text is embedded, from any thread."""

    def __init__(self) -> None:
        super().__init__(32, "counting")
        self.asked: list[str] = []

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        self.asked.extend(texts)
        return super().embed_batch(texts)


@given(st.lists(st.lists(NAMES, max_size=6), max_size=12), st.integers(0, 40), st.sampled_from([None, 1, 3]))
def test_the_cache_changes_no_answer(calls: list[list[str]], capacity: int, batch_size: int | None) -> None:
    provider = Counting()
    cache = EmbeddingCache(max_entries=capacity)
    plain = HashEmbeddingProvider(32, "counting")
    for texts in calls:
        got = embed_texts(provider, cache, texts, long_text=RULE, batch_size=batch_size)
        np.testing.assert_array_equal(got, embed_texts(plain, None, texts, long_text=RULE))
        assert len(cache) <= capacity
    if capacity == 40:
        assert len(provider.asked) == len(set(provider.asked))


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.lists(NAMES, min_size=1, max_size=8), min_size=2, max_size=6))
def test_threads_never_embed_the_same_text_twice(work: list[list[str]]) -> None:
    provider = Counting()
    cache = EmbeddingCache(max_entries=1_000)
    results: dict[int, FloatMatrix] = {}

    def run(number: int, texts: list[str]) -> None:
        results[number] = embed_texts(provider, cache, texts, long_text=RULE)

    at_once([partial(run, *pair) for pair in enumerate(work)])
    plain = HashEmbeddingProvider(32, "counting")
    for number, texts in enumerate(work):
        np.testing.assert_array_equal(results[number], embed_texts(plain, None, texts, long_text=RULE))
    assert len(provider.asked) == len(set(provider.asked))
