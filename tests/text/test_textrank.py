"""Extractive summaries: central sentences, in order, never above the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from support.evidence import scale, share

from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.local.static import StaticEmbeddingProvider
from caliber.llm.protocols import EmbeddingProvider, FloatMatrix
from caliber.model.errors import InvalidValue, SummarizationFailed
from caliber.text import textrank
from caliber.text.textrank import page_rank, summarize

TEXT = """# Release notes

The storage engine now writes every commit to a log before it answers. A crash therefore loses no commit that was
acknowledged. Lunch was good. The log is read again when the storage engine opens after a crash. Commits that are in the
log but not in the tables are applied then.

```python
engine.replay(log)
```

Somebody painted the door green. Replaying the log of the storage engine takes less than a second for most crashes.
| column | value |
"""


def count(text: str) -> int:
    return math.ceil(len(text.encode()) / 3.5)


@pytest.fixture(params=["hash", "static"])
def embedder(request: pytest.FixtureRequest) -> EmbeddingProvider:
    return HashEmbeddingProvider(256, "tests") if request.param == "hash" else StaticEmbeddingProvider()


def test_a_summary_holds_the_central_sentences_in_their_order(embedder: EmbeddingProvider) -> None:
    # C-497, issue 2: TextRank over the embeddings
    summary = summarize(TEXT, 75, count, embedder)
    flat = " ".join(TEXT.split())
    assert "storage engine" in summary
    assert "door" not in summary
    assert "Lunch" not in summary
    assert "engine.replay" not in summary
    assert "# Release" not in summary
    places = [flat.index(sentence.strip()) for sentence in summary.replace(". ", ".\n").split("\n")]
    assert len(places) >= 2
    assert places == sorted(places)


def test_a_counter_that_charges_for_joining_is_obeyed(embedder: EmbeddingProvider) -> None:
    def dear(text: str) -> int:
        return len(text.split()) + 2 * text.count("\n") + 9 * text.count(". ")

    for max_tokens in range(1, 60):
        assert dear(summarize(TEXT, max_tokens, dear, embedder)) <= max_tokens


def test_the_same_text_gives_the_same_summary() -> None:
    first = summarize(TEXT, 60, count, StaticEmbeddingProvider())
    assert all(summarize(TEXT, 60, count, StaticEmbeddingProvider()) == first for _ in range(3))


def test_a_text_that_fits_comes_back_whole(embedder: EmbeddingProvider) -> None:
    assert summarize(f"\n{TEXT}\n\n", 1_000, count, embedder) == TEXT.strip()


def test_repetitions_are_said_once(embedder: EmbeddingProvider) -> None:
    text = "The engine writes a log. " * 30 + "A crash loses nothing at all."
    summary = summarize(text, 40, count, embedder)
    assert summary.count("The engine writes a log.") == 1
    assert "A crash loses nothing at all." in summary


def test_near_repetitions_are_said_once() -> None:
    text = (
        "The engine writes a log!\n\nThe engine writes a log.\n\nThe engine writes the log.\n\nA crash loses nothing."
    )
    assert summarize(text, 25, count, StaticEmbeddingProvider()).count("The engine writes") == 1


def test_a_mark_too_dear_for_the_budget_is_left_out(embedder: EmbeddingProvider) -> None:
    assert summarize("𐀀𐀀", 2, count, embedder) == "𐀀"


def test_code_alone_is_cut_and_not_lost(embedder: EmbeddingProvider) -> None:
    summary = summarize("```python\n" + "value = compute(value)\n" * 50 + "```", 20, count, embedder)
    assert "value = compute(value)" in summary
    assert summary.endswith("…")
    assert count(summary) <= 20


def test_one_endless_sentence_is_cut_at_a_word(embedder: EmbeddingProvider) -> None:
    summary = summarize("word " * 10_000, 20, count, embedder)
    assert set(summary.removesuffix("…").split()) == {"word"}
    assert count(summary) <= 20


@pytest.mark.parametrize("text", ["", " \n "])
def test_an_empty_text_fails(embedder: EmbeddingProvider, text: str) -> None:
    with pytest.raises(SummarizationFailed, match="empty text"):
        summarize(text, 10, count, embedder)


def test_a_budget_for_nothing_is_refused(embedder: EmbeddingProvider) -> None:
    with pytest.raises(InvalidValue):
        summarize("text", 0, count, embedder)
    with pytest.raises(SummarizationFailed, match="single character"):
        summarize("text here", 1, lambda text: 2 * len(text), embedder)


def test_a_provider_of_vectors_that_are_not_normalised_is_fine() -> None:
    class Scaled(HashEmbeddingProvider):
        def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
            return super().embed_batch(texts) * np.float32(1000)

    plain = summarize(TEXT, 60, count, HashEmbeddingProvider(256, "t"))
    assert summarize(TEXT, 60, count, Scaled(256, "t")) == plain


class Counting(HashEmbeddingProvider):
    """Knows how much it was asked to embed."""

    texts = 0
    chars = 0

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        self.texts += len(texts)
        self.chars += sum(map(len, texts))
        return super().embed_batch(texts)


PIECES = ["The cat number {} sat on the mat. ", "x", "\n", ". ", "- item {}\n", "```\n"]


@pytest.mark.parametrize("piece", share(PIECES, 1, daily=3))
def test_work_on_huge_texts_is_bounded(piece: str) -> None:
    # Issue 2, "Bad input": 50 MB content; a twentieth of it is more than is read of any text
    text = "".join(piece.format(number) for number in range(2_000)) * (
        scale(2_500_000, 50_000_000) // (len(piece.format(1000)) * 2_000)
    )
    text += "The end of all this."
    embedder = Counting(64, "t")
    summary = summarize(text, 50, lambda part: -(-len(part) // 4), embedder)
    assert 0 < len(summary) <= 200
    assert embedder.texts <= textrank.MAX_SENTENCES
    assert embedder.chars <= textrank.MAX_SENTENCES * 1_000


def test_no_more_than_the_stated_part_of_a_long_text_is_read() -> None:
    text = "".join(f"line {number}\n" for number in range(500_000))
    stretches = textrank.stretches(text)
    assert len(stretches) == textrank.STRETCHES
    assert sum(map(len, stretches)) <= textrank.MAX_CHARS_READ
    assert text.startswith(stretches[0])
    assert text.endswith(stretches[-1])
    assert all(stretch.startswith("line ") for stretch in stretches)
    assert textrank.stretches(text[: textrank.MAX_CHARS_READ]) == [text[: textrank.MAX_CHARS_READ]]


def test_both_ends_and_the_middle_of_a_long_text_are_read() -> None:
    text = "\n\n".join(f"Chapter {number} is about the subject of number {number}." for number in range(100_000))
    seen: list[str] = []

    class Spy(HashEmbeddingProvider):
        def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
            seen.extend(texts)
            return super().embed_batch(texts)

    summarize(text, 50, count, Spy(64, "t"))
    chapters = [int(sentence.split()[1]) for sentence in seen]
    assert chapters == sorted(chapters)
    assert len(seen) == textrank.MAX_SENTENCES
    assert chapters[0] < 500
    assert chapters[-1] > 99_500
    assert max(later - earlier for earlier, later in pairwise(chapters)) < 3_000


def test_page_rank_agrees_with_the_eigenvector() -> None:
    rng = np.random.default_rng(7)
    similar = rng.random((12, 12))
    similar = (similar + similar.T) * (rng.random((12, 12)) > 0.4)
    similar = similar + similar.T
    np.fill_diagonal(similar, 0.0)
    similar[3, :] = similar[:, 3] = 0.0  # resembles nothing
    prior = rng.random(12) + 0.1
    prior /= prior.sum()
    chances = np.divide(
        similar,
        similar.sum(axis=1, keepdims=True),
        out=np.tile(prior, (12, 1)),
        where=similar.sum(axis=1, keepdims=True) > 0,
    )
    matrix = 0.85 * chances + 0.15 * np.tile(prior, (12, 1))
    values, vectors = np.linalg.eig(matrix.T)
    expected = np.real(vectors[:, np.argmax(np.real(values))])
    np.testing.assert_allclose(page_rank(similar, prior), expected / expected.sum(), atol=1e-6)


# --- conversations ----------------------------------------------------------------------------------

TRIP = """user: Hi there!

assistant: Hello! How can I help you today?

user: How long is the train from Lisbon to Lagos?

assistant: Good question. About four hours, with a change in Tunes.

user: Great, thanks! Let's take the one at nine on Friday then.

assistant: Good idea. I have booked two seats for 48 euros.

user: You're welcome. Talk to you later!"""


def test_a_conversation_tells_what_came_of_it_and_by_whom(embedder: EmbeddingProvider) -> None:
    for limit in (30, 45, 60, 75):
        lines = summarize(TRIP, limit, count, embedder).split("\n")
        assert all(line.startswith(("user: ", "assistant: ")) for line in lines), limit
        assert not any(word in " ".join(lines) for word in ("Hi there", "welcome", "Good idea", "How can I")), limit
        assert any("48 euros" in line or "Friday" in line for line in lines), limit
    assert "assistant: I have booked two seats for 48 euros." in lines
    assert "user: Let's take the one at nine on Friday then." in lines


def test_a_question_stands_with_its_answer_or_not_at_all(embedder: EmbeddingProvider) -> None:
    for limit in range(10, 90, 5):
        summary = summarize(TRIP, limit, count, embedder)
        assert count(summary) <= limit
        if "How long" in summary:
            assert "user: How long is the train from Lisbon to Lagos?\nassistant: About four hours" in summary


def test_a_conversation_of_courtesies_has_no_summary(embedder: EmbeddingProvider) -> None:
    for text in (
        "user: Hi!\n\nassistant: Hello, how are you?\n\nuser: Good idea.",
        "Ann: Thanks so much!\n\nBob: You're welcome, Ann. Take care!\n\nAnn: See you soon, bye!",
    ):
        for limit in (5, 20, 1_000):
            assert summarize(text, limit, count, embedder) == ""


def test_a_short_conversation_comes_back_whole(embedder: EmbeddingProvider) -> None:
    assert summarize(TRIP, 1_000, count, embedder) == TRIP


def test_names_of_the_speakers_are_no_news(embedder: EmbeddingProvider) -> None:
    text = "Ann: Hey Bob!\n\nBob: Hey Ann! I lost my job at the bank yesterday.\n\nAnn: Wow Bob, same here!"
    assert summarize(text, 22, count, embedder) == "Bob: I lost my job at the bank yesterday."


def test_a_text_with_labels_is_no_conversation(embedder: EmbeddingProvider) -> None:
    text = "Note: the log is written first.\n\nWarning: the disk is full.\n\n" + TEXT
    assert "storage engine" in summarize(text, 75, count, embedder)
