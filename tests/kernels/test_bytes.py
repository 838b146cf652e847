"""Digests, token estimates, truncation and identifiers against twins and rules, on every path."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from uuid import RFC_4122, UUID

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.kernels.instruction_sets import COMPILED, EMULATED, LOCAL, PORTABLE, running_on, searched
from support.kernels.twins.identifiers import fill
from support.threads import at_once

from caliber import kernels
from caliber.kernels import dispatch, identifiers
from caliber.kernels.tokens import counting
from caliber.model.errors import InternalError, InvalidValue

DIVISORS = st.sampled_from([1, 2, 3.5, 4, 3.3, 0.5, 0.001, 7.25, 1000, 3.827163])


@st.composite
def spans(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Data at any alignment, and offsets that may start late and end early, as in a sliced Arrow array."""
    data = draw(st.binary(max_size=300))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), min_size=1, max_size=12)))
    start = draw(st.integers(0, 31))
    buffer = np.frombuffer(bytes(start) + data, np.uint8)[start:]
    return buffer, np.array(cuts, dtype=draw(st.sampled_from([np.int32, np.int64])))


@pytest.mark.parametrize("path", COMPILED)
@searched(items=st.lists(st.binary(max_size=200), max_size=8))
def test_sha256_batch_equals_hashlib(path: str, items: list[bytes]) -> None:  # C-306
    with running_on(path):
        found = kernels.sha256_batch(items)
    assert found.shape == (len(items), 32)
    assert [row.tobytes() for row in found] == [hashlib.sha256(item).digest() for item in items]


@pytest.mark.parametrize("path", COMPILED)
@searched(problem=spans())
def test_sha256_spans_equals_hashlib(path: str, problem: tuple[np.ndarray, np.ndarray]) -> None:
    data, offsets = problem
    with running_on(path):
        found = kernels.sha256_spans(data, offsets)
    assert found.shape == (len(offsets) - 1, 32)
    expected = [hashlib.sha256(data[a:b]).digest() for a, b in pairwise(offsets.tolist())]
    assert [row.tobytes() for row in found] == expected


@pytest.mark.parametrize("path", COMPILED)
@pytest.mark.parametrize("size", [0, 1, 54, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 129, 1000, 4096, 100_003])
def test_sha256_at_block_edges(path: str, size: int) -> None:
    item = bytes(range(256)) * (size // 256 + 1)
    with running_on(path):
        found = kernels.sha256_batch([item[:size], bytearray(item[:size])])  # type: ignore[list-item]
    assert {row.tobytes() for row in found} == {hashlib.sha256(item[:size]).digest()}


# Each compression there is: plain C, eight spans at once where SHA-NI is missing, SHA-NI, ARM's.
COMPRESSIONS = [
    pytest.param(path, feature, id=f"{path}-{feature}")
    for path, feature in (
        ("scalar", ""), ("avx2", "CAL_CPU_AVX2"), ("avx2", "CAL_CPU_SHANI"), ("neon", "CAL_CPU_SHA2"),
        ("arm64-scalar", ""), ("arm64-neon", "CAL_CPU_SHA2"),
    )
    if path in (*LOCAL, *EMULATED)
]  # fmt: skip


def hashed(path: str, feature: str, data: bytes, offsets: np.ndarray) -> tuple[int, list[bytes]]:
    """Status and digests."""
    with running_on(path):
        native = dispatch.native()
    features = getattr(native.lib, feature) if feature else 0
    if features & ~native.features:
        pytest.skip("this CPU lacks the instructions")
    out = bytearray(32 * (len(offsets) - 1))
    buffer = native.ffi.from_buffer
    status = native.lib.cal_sha256_spans_i64(
        features, buffer("uint8_t[]", data), len(data), buffer("int64_t[]", offsets), len(offsets) - 1,
        buffer("uint8_t[]", out),
    )  # fmt: skip
    return status, [bytes(out[at : at + 32]) for at in range(0, len(out), 32)]


@pytest.mark.parametrize(("path", "feature"), COMPRESSIONS)
@searched(lengths=st.lists(st.integers(0, 260) | st.sampled_from([55, 56, 63, 64, 119, 120, 128, 1000]), max_size=40))
def test_sha256_lanes_equal_hashlib(path: str, feature: str, lengths: list[int]) -> None:
    """Lengths that differ, so that lanes begin and end at different times, and every number of spans."""
    offsets = np.cumsum([0, *lengths])
    data = np.random.default_rng(len(lengths)).bytes(int(offsets[-1]))
    expected = [hashlib.sha256(data[a:b]).digest() for a, b in pairwise(offsets.tolist())]
    assert hashed(path, feature, data, offsets) == (0, expected)


@pytest.mark.parametrize(("path", "feature"), COMPRESSIONS)
@pytest.mark.parametrize("at", range(12))
def test_sha256_refuses_wrong_offsets_wherever_they_are(path: str, feature: str, at: int) -> None:
    from caliber._native import lib

    for wrong in (-1, 1201, 2**62):
        offsets = np.arange(0, 1300, 100)
        offsets[at] = wrong
        assert hashed(path, feature, bytes(1200), offsets)[0] == lib.CAL_E_OFFSETS


@pytest.mark.parametrize("path", COMPILED)
@searched(problem=spans(), divisor=DIVISORS)
def test_token_spans_equal_single_estimates(
    path: str, problem: tuple[np.ndarray, np.ndarray], divisor: float
) -> None:  # C-308
    data, offsets = problem
    estimator = kernels.BytesEstimator(divisor)
    with running_on(path):
        found = kernels.estimate_tokens_spans(data, offsets, estimator=estimator)
    assert found.dtype == np.int64
    assert found.tolist() == [estimator.tokens_of_length(int(n)) for n in np.diff(offsets)]


@pytest.mark.parametrize("path", COMPILED)
@searched(length=st.integers(0, 2**62), divisor=DIVISORS)
@example(length=2**62, divisor=1000)
@example(length=2**53 + 1, divisor=1)
def test_estimates_of_any_length_are_exact_or_refused(path: str, length: int, divisor: float) -> None:
    from caliber._native import ffi, lib

    estimator = kernels.BytesEstimator(divisor)
    exact = estimator.tokens_of_length(length)
    offsets, out = np.array([0, length]), np.empty(1, np.int64)
    with running_on(path):
        status = lib.cal_tokens_bytes_spans_i64(
            length,
            ffi.from_buffer("int64_t[]", offsets),
            1,
            estimator.numerator,
            estimator.denominator,
            ffi.from_buffer("int64_t[]", out),
        )
    if exact < 2**63:
        assert (status, int(out[0])) == (lib.CAL_OK, exact)
    else:
        assert status == lib.CAL_E_OVERFLOW


EMOJI = st.sampled_from(
    ["\U0001f468", "\u200d", "\U0001f3fd", "\ufe0f", "\u20e3", "\U0001f1e9", "\U0001f1ea", "\u0301", "\r", "\n", " "]
)
TEXTS = st.lists(EMOJI | st.characters(), max_size=40).map("".join)


@given(text=TEXTS)
def test_boundaries_are_found_backwards(text: str) -> None:
    for at in range(len(text) + 1):
        found = counting.boundary_at_or_before(text, at)
        assert 0 <= found <= at
        assert counting.is_boundary(text, found)
        assert not any(counting.is_boundary(text, between) for between in range(found + 1, at + 1))


# --- UUIDv7 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PORTABLE)
@searched(
    clock=st.lists(st.integers(0, 5) | st.integers(0, 2**48 - 1), min_size=1, max_size=8),
    count=st.integers(0, 6),
    counter=st.sampled_from([0, 0x7FF, 0xFFE, 0xFFF]),
    data=st.data(),
)
def test_uuid7_equals_the_twin(path: str, clock: list[int], count: int, counter: int, data: st.DataObject) -> None:
    states = [np.array((0, counter), dtype=identifiers.STATE) for _ in range(2)]
    for now in clock:
        entropy = data.draw(st.binary(min_size=10 * count, max_size=10 * count))
        expected = fill(states[0], now, entropy, count)
        with running_on(path):
            assert identifiers.fill(states[1], now, entropy, count) == expected
        assert states[0] == states[1]


@pytest.mark.parametrize("path", PORTABLE)
@searched(clock=st.lists(st.integers(0, 2**48 - 2), min_size=1, max_size=10), data=st.data())
def test_uuid7_increases_whatever_the_clock_does(path: str, clock: list[int], data: st.DataObject) -> None:  # C-305
    state = np.zeros((), dtype=identifiers.STATE)
    made: list[bytes] = []
    with running_on(path):
        for now in clock:
            raw = identifiers.fill(state, now, data.draw(st.binary(min_size=30, max_size=30)), 3)
            made += [raw[at : at + 16] for at in (0, 16, 32)]
    assert made == sorted(set(made))
    for raw in made:
        made_id = UUID(bytes=raw)
        assert (made_id.version, made_id.variant) == (7, RFC_4122)


@pytest.mark.parametrize("path", PORTABLE)
def test_uuid7_counter_overflows_into_the_next_millisecond(path: str) -> None:
    state = np.array((1000, 0xFFF), dtype=identifiers.STATE)
    with running_on(path):
        raw = identifiers.fill(state, 1000, b"\xff" * 10, 1)
    assert int.from_bytes(raw[:6], "big") == 1001
    assert int.from_bytes(raw[6:8], "big") == 0x77FF  # a fresh counter has its top bit clear


@pytest.mark.parametrize("path", PORTABLE)
def test_uuid7_refuses_a_clock_or_entropy_out_of_range(path: str) -> None:
    state = np.zeros((), dtype=identifiers.STATE)
    with running_on(path):
        for now, entropy in ((2**48, bytes(10)), (1, bytes(9)), (1, bytes(11))):
            with pytest.raises(InvalidValue):
                identifiers.fill(state, now, entropy, 1)


@pytest.mark.parametrize("path", PORTABLE)
def test_uuid7_calls_increase_and_tell_the_time(path: str) -> None:  # C-304
    with running_on(path):
        before = time.time_ns() // 1_000_000
        ids = [kernels.uuid7() for _ in range(3000)]
        batch = kernels.uuid7_batch(3000)
        last = kernels.uuid7()
    made = [made_id.bytes for made_id in ids] + [row.tobytes() for row in batch] + [last.bytes]
    assert made == sorted(set(made))
    assert all(type(made_id) is UUID and made_id.version == 7 and made_id.variant == RFC_4122 for made_id in ids)
    assert ids[0] == UUID(str(ids[0]))
    assert hash(ids[0]) == hash(UUID(str(ids[0])))
    assert ids[0].is_safe.name == "unknown"
    assert before - 1000 <= int.from_bytes(made[0][:6], "big") <= before + 5000


def test_uuid7_random_bits_look_random() -> None:
    batch = np.unpackbits(kernels.uuid7_batch(20_000)[:, 8:], axis=1)[:, 2:]
    share = batch.mean(axis=0)
    assert ((share > 0.47) & (share < 0.53)).all()  # 8 standard deviations


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("at", range(3))
def test_uuid7_that_a_fork_interrupts_shares_no_randomness(
    batch: int, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork comes when entropy was just read, for one id or for those that are made ahead."""
    now = time.time_ns()
    monkeypatch.setattr(identifiers, "_time_ns", lambda: now)
    monkeypatch.setattr(identifiers.time, "time_ns", lambda: now)
    identifiers._generator.numbers.clear()
    monkeypatch.setattr(identifiers._generator, "_ahead", 4)
    urandom = os.urandom
    reads, made_before, made = 0, 0, []
    child = -1
    read, write = os.pipe()

    def forking(size: int) -> bytes:
        nonlocal reads, made_before, child
        entropy = urandom(size)
        reads += 1  # before the fork, as its hooks may read too
        if reads == at + 1:
            made_before = len(made)
            child = os.fork()
        return entropy

    monkeypatch.setattr(os, "urandom", forking)
    try:
        for _ in range(40):
            made += uuids(kernels.uuid7_batch(batch)) if batch else [kernels.uuid7()]
        random = [one.bytes[8:] for one in made[made_before:]]
        if child == 0:
            os.write(write, b"".join(random))
    finally:
        if child == 0:
            os._exit(0)
    os.close(write)
    theirs = b""
    while chunk := os.read(read, 65_536):
        theirs += chunk
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0
    assert len(theirs) == 8 * len(random) > 0
    assert not {*random} & {theirs[at : at + 8] for at in range(0, len(theirs), 8)}


class Clock:
    """A clock that says what a test wants, in milliseconds."""

    def __init__(self, *readings: int) -> None:
        self.readings = list(readings)

    def __call__(self) -> int:
        return (self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]) * 1_000_000 + 123_456


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A generator of its own, started at millisecond 0, on a given clock."""

    def use(reading: Callable[[], int]) -> None:
        monkeypatch.setattr(identifiers, "_generator", identifiers._Generator())
        monkeypatch.setattr(identifiers, "_time_ns", reading)
        monkeypatch.setattr(identifiers.time, "time_ns", reading)

    return use


def fields(made: UUID) -> tuple[int, int]:
    """Timestamp and counter."""
    return made.int >> 80, made.int >> 64 & 0xFFF


@given(steps=st.lists(st.integers(-3, 3), max_size=80), calls=st.integers(1, 40), data=st.data())
def test_uuid7_follows_the_rules_of_the_twin_on_any_clock(steps: list[int], calls: int, data: st.DataObject) -> None:
    """Timestamp and counter against the rules; seeds of the counter are random and are taken from what came out."""
    now, last_ms, counter, previous = 1000, 0, 0, 0
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(identifiers, "_generator", identifiers._Generator())
        for name, owner in (("_time_ns", identifiers), ("time_ns", identifiers.time)):
            patched.setattr(owner, name, lambda: now * 1_000_000 + 999_999)
        for step in [0, *steps]:
            now += step
            for _ in range(calls):
                if data.draw(st.integers(0, 9)) == 0:
                    made = [UUID(bytes=row.tobytes()) for row in kernels.uuid7_batch(3)]
                else:
                    made = [kernels.uuid7()]
                for one in made:
                    ms, count = fields(one)
                    if now > last_ms:
                        assert (ms, count < 0x800) == (now, True)
                    else:  # a batch may pass over what was made ahead of it
                        assert ms == last_ms + (count <= counter)
                        assert ms == last_ms or counter > 0xFFF - identifiers._MOST_AHEAD
                    assert one.int > previous
                    assert (one.version, one.variant) == (7, RFC_4122)
                    last_ms, counter, previous = ms, count, one.int


def test_uuid7_runs_ahead_of_a_clock_that_stands_still(clock: Callable[..., None]) -> None:
    clock(Clock(5))
    made = [kernels.uuid7() for _ in range(10_000)]
    seen = [fields(one) for one in made]
    assert seen == sorted(set(seen))
    assert seen[0][0] == 5
    assert 5 + 10_000 // 4096 <= seen[-1][0] <= 5 + 10_000 // 2048
    for before, after in pairwise(seen):
        assert after[0] == before[0] or before[1] == 0xFFF  # no millisecond is left before its counter is full
    assert len({one.int & (1 << 62) - 1 for one in made}) == 10_000


def test_uuid7_after_the_last_millisecond(clock: Callable[..., None]) -> None:
    clock(Clock(2**48 - 1))
    assert fields(kernels.uuid7())[0] == 2**48 - 1
    clock(Clock(2**48))
    with pytest.raises(InvalidValue):
        kernels.uuid7()
    clock(Clock(2**48 - 1))
    with pytest.raises(InternalError):
        deque(iter(kernels.uuid7, None), 0)


def test_uuid7_is_greater_than_what_any_thread_returned_before() -> None:
    """Each call is compared with the greatest id that was out when it began, whichever thread had it."""
    returned = [0]
    lock = threading.Lock()
    failures: list[str] = []

    def make() -> None:
        for number in range(4000):
            with lock:
                before = returned[0]
            made = (
                int.from_bytes(kernels.uuid7_batch(2)[0].tobytes(), "big") if number % 50 == 0 else kernels.uuid7().int
            )
            with lock:
                if made <= before:
                    failures.append(f"{made:032x} after {before:032x}")
                returned[0] = max(returned[0], made)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        at_once([make] * 4)
    finally:
        sys.setswitchinterval(interval)
    assert not failures


# --- uuid7 within uuid7 -------------------------------------------------------------------------------


class Calls:
    """Makes ids in calls that may be within one another, and checks what each may expect."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self._greatest = 0
        self.depth = 0
        self.deepest = 0

    def start_anew(self) -> None:
        """Expect nothing of an order after what was made before: the generator is another one."""
        self._greatest = 0

    def make(self, batch: int = 0) -> None:
        """Make an id, or a batch: each greater than all that were returned before this call."""
        before = self._greatest
        self.depth += 1
        self.deepest = max(self.depth, self.deepest)
        made = [one.int for one in uuids(kernels.uuid7_batch(batch))] if batch else [kernels.uuid7().int]
        self.depth -= 1
        assert made == sorted(made)
        assert made[0] > before
        self._greatest = max(made[-1], self._greatest)
        self.made += made


def uuids(batch: Any) -> list[UUID]:
    return [UUID(bytes=row.tobytes()) for row in batch]


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls()
    yield made
    assert len(set(made.made)) == len(made.made) > 0
    assert {UUID(int=one).version for one in made.made} == {7}
    assert {UUID(int=one).variant for one in made.made} == {RFC_4122}
    assert len({one & (1 << 62) - 1 for one in made.made}) == len(made.made)


def test_uuid7_whose_refill_is_interrupted_every_time_is_bounded(
    calls: Calls, clock: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer that is faster than reading much entropy: a handler that does the same is interrupted, too, and so on."""
    clock(Clock(5))
    urandom = os.urandom

    def interrupted(size: int) -> bytes:
        if size > 64:
            assert calls.depth < 5, "each handler is interrupted within another one"
            calls.make()
        return urandom(size)

    monkeypatch.setattr(os, "urandom", interrupted)
    for _ in range(3000):
        calls.make()
    assert calls.deepest == 2


@pytest.mark.parametrize("batch", [0, 10])
def test_uuid7_that_is_interrupted_every_time_does_not_try_again(
    batch: int, calls: Calls, clock: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler in the middle of every call: whoever starts anew after each would never end."""
    interruptions = 0

    def interrupt() -> None:
        nonlocal interruptions
        if calls.depth == 1:
            interruptions += 1
            assert interruptions <= 4 * 100, "it starts anew after each handler"
            calls.make(1)

    def now() -> int:
        interrupt()
        return 5_123_456

    fill = identifiers.fill

    def filled(*arguments: Any) -> bytes:
        raw = fill(*arguments)
        interrupt()
        return raw

    clock(now)
    monkeypatch.setattr(identifiers, "fill", filled)
    for _ in range(100):
        calls.make(batch)
    assert interruptions >= 100


def test_uuid7_interrupted_at_each_of_its_calls(calls: Calls, clock: Callable[..., None]) -> None:
    """Handlers run where the interpreter calls and returns; a profiler sees every such place."""

    def run(interrupted_at: int, batch: int) -> int:
        places = 0

        def profile(*_: Any) -> None:
            nonlocal places
            if calls.depth:
                places += 1
                if places == interrupted_at:
                    calls.make(batch)

        now = Clock(5)
        clock(now)
        calls.start_anew()
        sys.setprofile(profile)
        try:
            for reading, own in ((5, 0), (5, 0), (5, 0), (6, 0), (6, 3), (6, 0), (6, 0), (4, 0), (7, 0)):
                now.readings[0] = reading
                calls.make(own)
        finally:
            sys.setprofile(None)
        return places

    for batch in (0, 3):
        places = run(0, batch)
        assert places > 100
        for place in range(1, places + 1):
            run(place, batch)


@given(data=st.data(), often=st.sampled_from([2, 5, 20]))
def test_uuid7_interrupted_within_interruptions(data: st.DataObject, often: int) -> None:
    """Handlers that are interrupted by handlers, on a clock that goes on and back."""
    drawn = data.draw(st.randoms(use_true_random=False))
    calls = Calls()
    interruptions = 0
    now = 1000
    urandom, fill = os.urandom, identifiers.fill

    def interrupt() -> None:
        nonlocal interruptions, now
        if calls.depth and calls.depth < 8 and interruptions < 60 and drawn.randrange(often) == 0:
            interruptions += 1
            now += drawn.choice((0, 0, 1, -1))
            calls.make(drawn.choice((0, 0, 0, 5)))

    def between(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            interrupt()
            result = function(*arguments)
            interrupt()
            return result

        return called

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(identifiers, "_generator", identifiers._Generator())
        patched.setattr(os, "urandom", between(urandom))
        patched.setattr(identifiers, "fill", between(fill))
        for name, owner in (("_time_ns", identifiers), ("time_ns", identifiers.time)):
            patched.setattr(owner, name, between(lambda: now * 1_000_000 + 999_999))
        for _ in range(25):
            calls.make(drawn.choice((0, 0, 0, 0, 3)))
    assert len(set(calls.made)) == len(calls.made)
    assert len({one & (1 << 62) - 1 for one in calls.made}) == len(calls.made)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_uuid7_in_a_signal_handler_that_interrupts_uuid7() -> None:
    made: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: made.append(kernels.uuid7().int))
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        handled = 0
        end = time.monotonic() + 1
        while time.monotonic() < end:
            for _ in range(100):
                greatest = made[-1] if made else 0
                one = kernels.uuid7().int
                assert one > greatest  # what handlers returned before the call began
                made.append(one)
                handled += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(set(made)) == len(made) > handled
