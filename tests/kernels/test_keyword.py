"""The keyword kernels against their twins: the same words, postings, scores and phrases. # M-037, K-119, K-171"""

from __future__ import annotations

import threading
import unicodedata

import numpy as np
import pytest
from gen_words import class_of
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernels.instruction_sets import MACHINES, running_on, searched
from support.kernels.twins import keyword as twins
from support.threads import begin

from caliber.kernels import best_scores
from caliber.kernels.keyword.index import (
    Analysis,
    KeywordIndex,
    KeywordRule,
    KeywordSnapshot,
    NeighbourBoost,
    QueryWord,
    Vocabulary,
    WordScores,
)
from caliber.model.errors import DTypeError, InvalidValue, ShapeError

ALPHABET = "abAB01 _'’.,-/\\:@+#&  \n\tßéÅ日本語カナกา한글🎉\u0301\u200d٣"
PIECES = [
    "snake_case", "HTTPServer2", "C++", "C#", "a::b", "x:::y", "1,000", "don't", "path/to/file.py", "a'", "+a", "##",
]  # fmt: skip
texts = st.one_of(
    st.text(alphabet=ALPHABET, max_size=60),
    st.lists(st.sampled_from([*PIECES, *"abc", "日本", " "]), max_size=30).map(" ".join),
    st.text(max_size=40),
).map(lambda text: text.encode("utf-8", "surrogatepass"))
noise = st.one_of(texts, st.binary(max_size=40), st.integers(250, 260).map(lambda size: b"ab" * size))


def split(word: str) -> Analysis:
    """Cut a word at signs: the parts, and the whole beside them."""
    parts = tuple("".join(char if char.isalnum() else " " for char in word.casefold()).split()) or (word,)
    return Analysis(parts, parts if len(parts) == 1 else (*parts, word), len(word) % 8)


def links(stretches: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the predecessor and successor of each row among equal numbers."""
    before, after = (np.full(len(stretches), -1, np.int64) for _ in range(2))
    last: dict[int, int] = {}
    for at, stretch in enumerate(stretches):
        if stretch in last:
            before[at], after[last[stretch]] = last[stretch], at
        last[stretch] = at
    return before, after


def by_document(found: WordScores) -> list[tuple[int, float, float]]:
    """Return documents in order with both scores, to the bit."""
    return sorted(zip(*(column.tolist() for column in found), strict=True))


def built(path: str, documents: list[bytes], batch: int = 7) -> tuple[KeywordSnapshot, Vocabulary]:
    with running_on(path):
        vocabulary = Vocabulary(split)
        index = KeywordIndex(vocabulary)
        for start in range(0, len(documents), batch):
            index.append(documents[start : start + batch])
        return index.snapshot(), vocabulary


@pytest.mark.parametrize("path", MACHINES)
@searched(documents=st.lists(noise, max_size=12))
def test_words_are_found_alike(path: str, documents: list[bytes]) -> None:
    with running_on(path):
        native = Vocabulary(split)
        words, offsets = native.intern(documents)
    assert offsets[0] == 0
    for document, start, end in zip(documents, offsets, offsets[1:], strict=False):
        numbers = words[start:end].tolist()
        assert [native._words.word(number) for number in numbers] == twins.words_of(document)
    # New words are numbered as they come.
    assert list(dict.fromkeys(words.tolist())) == list(range(len(native)))


def test_words_are_what_they_are_said_to_be() -> None:
    def words(text: str) -> list[str]:
        return [word.decode() for word in twins.words_of(text.encode())]

    assert words("The snake_case, a path/to/file.py; don’t!") == ["The", "snake_case", "a", "path/to/file.py", "don’t"]
    assert words("C++ and C#, 1,000 a,b std::vector") == ["C++", "and", "C#", "1,000", "a", "b", "std::vector"]
    assert words("日本語 x 語") == ["日本", "本語", "x", "語"]
    assert words("+++ :: ' .") == []
    assert [len(word) for word in words("a" * 600)] == [256, 256, 88]


def test_the_table_of_c_is_what_unicode_says() -> None:
    if f'"{unicodedata.unidata_version}"' not in twins.TABLE.read_text(encoding="utf-8"):
        pytest.skip("this Python has another version of Unicode")
    for code in (*range(0x32000), *range(0xE0000, 0xE0200), 0x10FFFF):
        assert twins.kind_of(code) == class_of(code), hex(code)


@pytest.mark.parametrize("path", MACHINES)
@searched(
    documents=st.lists(noise, min_size=1, max_size=40),
    wanted=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    data=st.data(),
)
def test_postings_scores_and_phrases_are_alike(
    path: str, documents: list[bytes], wanted: list[int], data: st.DataObject
) -> None:
    snapshot, vocabulary = built(path, documents)
    twin = twins.TwinIndex(documents, split, vocabulary)
    known = dict.fromkeys(word for document in documents for word in twins.words_of(document))
    assert [vocabulary.word(number).encode() for number in range(len(vocabulary))] == list(known)
    assert snapshot.lengths.tolist() == twin.lengths
    length = data.draw(st.integers(0, len(documents)))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=length, max_size=length)), np.bool_)
    counts = snapshot.counts(wanted, mask)
    for term, count in zip(wanted, counts.tolist(), strict=True):
        found = snapshot.documents(term, mask)
        assert found.tolist() == twin.documents(term, mask)
        assert len(found) == count
    words = [QueryWord((term, term + 1), (1.0 + term / 7, 0.3), 2.0 + term / 5) for term in wanted]
    rule = KeywordRule(0.9, 0.4, 3.7, data.draw(st.sampled_from([0.0, 1.0, 0.5])))
    lending = None
    if data.draw(st.booleans()):
        stretches = data.draw(st.lists(st.integers(0, 3), min_size=len(documents), max_size=len(documents)))
        before, after = links(stretches)
        asks = np.array(data.draw(st.lists(st.integers(0, 1), min_size=length, max_size=length)), np.uint8)
        lending = NeighbourBoost(before, after, asks, 0.4, 0.25, 0.4)
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=length, max_size=length)), np.bool_)
    given = np.array(data.draw(st.lists(st.integers(0, max(length - 1, 0)), unique=True, max_size=length)), np.int64)
    for _ in range(2):  # the second time on what the first left of its scratch
        with running_on(path):
            found = snapshot.scores(words, mask, rule, lending, kept=kept, given=given)
        of_twin = twin.scores(words, mask, rule, lending, kept=kept, given=given.tolist())
        assert found.documents[: len(given)].tolist() == given.tolist()
        assert by_document(found) == by_document(of_twin)
    every = twin.scores(words, mask, rule, lending)
    assert {at for at, _, _ in by_document(every) if kept[at]} <= {at for at, _, _ in by_document(found)}
    assert snapshot.flags.tolist() == twin.flags
    if vocabulary.parts:
        size = st.integers(0, len(vocabulary.parts) - 1)
        phrase = data.draw(st.lists(size, min_size=1, max_size=3))
        found = snapshot.phrase(phrase, np.arange(len(documents)))
        assert found.tolist() == [twin.phrase(phrase, document) for document in range(len(documents))]


@pytest.mark.parametrize("path", MACHINES)
@searched(
    values=st.lists(st.sampled_from([0.0, -1.0, 0.5, 0.5 + 1e-12, 1.0, 2.0, 1e-50]), max_size=50),
    k=st.integers(0, 60),
    tied=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_best_scores_are_alike(path: str, values: list[float], k: int, tied: bool, random) -> None:
    scores = np.array(values, np.float64)
    tie = np.array([[random.randrange(2), random.randrange(3)] for _ in values], np.uint64).reshape(-1, 2)
    rows = np.array(random.sample(range(len(values)), len(values)), np.int64)
    rounded = scores.astype(np.float32)
    with_ties = [({"tie": tie}, tie.tolist()), ({"tie": tie, "rows": rows}, tie[rows].tolist())]
    for options, ties in with_ties if tied else [({}, [()] * len(values))]:
        with running_on(path):
            ids, best = best_scores(scores, k, **options)
        expected = sorted(np.flatnonzero(rounded > 0).tolist(), key=lambda at: (-rounded[at], *ties[at], at))[:k]
        assert ids.tolist() == expected
        assert best.tolist() == rounded[expected].tolist()


@pytest.mark.parametrize("path", MACHINES)
@searched(runs=st.lists(st.integers(1, 1200), min_size=1, max_size=2), seed=st.integers(0, 1000), examples=5)
def test_long_lists_cross_slices_and_segments(path: str, runs: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    documents = [b"x " * int(rng.integers(1, 100)) + b"word%d" % (at % 50) for at in range(sum(runs))]
    snapshot, vocabulary = built(path, documents, batch=max(runs))
    twin = twins.TwinIndex(documents, split, vocabulary)
    mask = np.ones(len(documents), np.bool_)
    terms = [vocabulary.terms["x"], vocabulary.terms["word0"]]
    rule = KeywordRule(1.2, 0.75, 100.0, 0.0)
    words = [QueryWord((term,), (2.0,), 2.0) for term in terms]
    assert snapshot.documents(terms[0], mask).tolist() == list(range(len(documents)))
    assert by_document(snapshot.scores(words, mask, rule)) == by_document(twin.scores(words, mask, rule))


def test_a_segment_that_fills_up_is_followed_by_another() -> None:
    documents = [b" ".join(b"w%d" % ((at * 7 + word) % 400) for word in range(90)) for at in range(1500)]
    snapshot, vocabulary = built("scalar", documents, batch=500)
    twin = twins.TwinIndex(documents, split, vocabulary)
    mask = np.ones(len(documents), np.bool_)
    every = list(range(len(vocabulary.terms)))
    assert snapshot.counts(every, mask).tolist() == [len(twin.documents(term, mask)) for term in every]
    assert len(snapshot._index._postings._segments) > 2


def test_a_snapshot_stays_while_another_thread_adds() -> None:
    vocabulary = Vocabulary(split)
    index = KeywordIndex(vocabulary)
    index.append([b"alpha beta %d" % at for at in range(500)])
    snapshot = index.snapshot()
    mask = np.ones(snapshot.length, np.bool_)
    terms = [vocabulary.terms["alpha"], vocabulary.terms["beta"]]
    words = [QueryWord((term,), (1.0,), 1.0) for term in terms]
    rule = KeywordRule(1.2, 0.75, 3.0, 1.0)
    before = snapshot.scores(words, mask, rule).scores.tolist()
    stop = threading.Event()

    def add() -> None:
        at = 0
        while not stop.is_set():
            index.append([b"alpha beta gamma %d" % (at + more) for more in range(50)])
            at += 50

    thread = begin(add)
    try:
        for _ in range(300):
            assert snapshot.counts(terms, mask).tolist() == [500, 500]
            assert snapshot.scores(words, mask, rule).scores.tolist() == before
    finally:
        stop.set()
        thread.result()
    assert len(index) > 500


@given(st.lists(noise, min_size=1, max_size=8), st.integers(0, 40))
def test_words_whose_learning_was_interrupted_are_learned_by_the_next_call(documents: list[bytes], after: int) -> None:
    left = [after]

    def interrupted(word: str) -> Analysis:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return split(word)

    vocabulary, plain = Vocabulary(interrupted), Vocabulary(split)
    for batch in ([document] for document in documents):
        try:
            vocabulary.intern(batch)
        except KeyboardInterrupt:
            vocabulary.intern(batch)
        plain.intern(batch)
    assert len(vocabulary) == vocabulary.word_flags.length == len(plain)
    for name in ("term_starts", "term_ids", "part_starts", "part_ids", "word_flags"):
        mine, other = getattr(vocabulary, name), getattr(plain, name)
        assert mine.array[: mine.length].tolist() == other.array[: other.length].tolist()
    assert vocabulary.terms == plain.terms


def test_wrong_calls_are_refused() -> None:
    snapshot, _ = built("scalar", [b"one two"])
    mask = np.ones(1, np.bool_)
    with pytest.raises(InvalidValue):
        snapshot.counts([0], np.ones(2, np.bool_))
    with pytest.raises(InvalidValue):
        snapshot.scores([QueryWord((0,), (), 1.0)], mask, KeywordRule(1, 0.5, 1.0, 0))
    with pytest.raises(InvalidValue):
        snapshot.scores([QueryWord((0,), (1.0,), 1.0)], mask, KeywordRule(1, 0.5, 0.0, 0))
    nobody = np.zeros(0, np.int64)
    with pytest.raises(ShapeError):
        snapshot.scores(
            [], mask, KeywordRule(1, 0.5, 1.0, 0), NeighbourBoost(nobody, nobody, np.zeros(1, np.uint8), 0, 0, 0)
        )
    for nonsense in ([-1], [2**32]):
        with pytest.raises(InvalidValue):
            snapshot.counts(nonsense, mask)
        with pytest.raises(InvalidValue):
            snapshot.phrase(nonsense, np.zeros(1, np.int64))
    with pytest.raises(InvalidValue):
        snapshot.documents(-1, mask)
    with pytest.raises(InvalidValue):
        snapshot.scores([], mask, KeywordRule(float("nan"), 0.5, 1.0, 0))
    with pytest.raises(InvalidValue):
        KeywordIndex(Vocabulary(split)).append([b"a", b"b"], [1])
    index, _ = built("scalar", [b"one two", b"one"])
    both, words = np.ones(2, np.bool_), [QueryWord((0,), (1.0,), 1.0)]
    for wrong in ([-1], [2], [0, 0], [0, 1, 1]):
        with pytest.raises(InvalidValue):
            index.scores(words, both, KeywordRule(1, 0.5, 1.0, 0), given=np.array(wrong, np.int64))
    assert by_document(index.scores(words, both, KeywordRule(1, 0.5, 1.0, 0)))[0][0] == 0  # nothing is left behind
    with pytest.raises(InvalidValue):
        best_scores(np.ones(2), 1, tie=np.zeros((2, 2), np.uint64), rows=np.array([0, 2]))
    with pytest.raises(InvalidValue):
        best_scores(np.ones(2), 1, tie=np.zeros((2, 2), np.uint64), rows=np.array([0]))
    with pytest.raises(InvalidValue):
        snapshot.phrase([], np.zeros(1, np.int64))
    with pytest.raises(InvalidValue):
        snapshot.phrase([0], np.ones(1, np.int64))
    with pytest.raises(DTypeError):
        KeywordIndex(Vocabulary(split)).append(["text"])  # type: ignore[list-item]
    assert snapshot.counts([99], mask).tolist() == [0]


@settings(max_examples=8)
@given(st.lists(noise, max_size=30), st.data())
def test_a_selection_is_the_index_of_its_documents(documents: list[bytes], data: st.DataObject) -> None:
    vocabulary = Vocabulary(split)
    index = KeywordIndex(vocabulary)
    index.append([b" ".join(b"filler%d" % at for at in range(20_000))])  # numbers of one to three bytes
    index.append(documents)
    chosen = data.draw(st.lists(st.integers(0, len(documents)), unique=True).map(sorted))
    expected = KeywordIndex(vocabulary)
    texts = [b" ".join(b"filler%d" % at for at in range(20_000)), *documents]
    expected.append([texts[at] for at in chosen])
    made = index.selected(chosen)
    assert list(made._packed) == list(expected._packed)
    assert made.lengths().tolist() == expected.lengths().tolist()
    mask = np.ones(len(chosen), np.bool_)
    terms = list(range(0, len(vocabulary.terms), 97))
    assert made.snapshot().counts(terms, mask).tolist() == expected.snapshot().counts(terms, mask).tolist()
