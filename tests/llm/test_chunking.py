"""Long texts: cut at the ends of sentences, in pieces the model reads whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caliber.llm.texts import LongText, LongTextMode, chunk_text
from caliber.model.errors import EmbeddingFailed, InvalidValue

TEXT = st.text(st.sampled_from("ab .!?\n\té😀"), min_size=1, max_size=400)


def words(text: str) -> int:
    return len(text.split())


def rule(mode: LongTextMode, most: int) -> LongText:
    return LongText(mode, most, len)


@pytest.mark.parametrize("mode", LongTextMode)
def test_a_text_that_fits_is_one_piece(mode: LongTextMode) -> None:
    # M-015
    chunks = chunk_text(" It fits. ", rule(mode, 10))
    assert (chunks.texts, chunks.tokens, chunks.truncated) == ((" It fits. ",), 10, False)


def test_chunks_end_where_sentences_end() -> None:
    text = "Dr. Who came at 3.5 p.m. yesterday. She left. Nobody knows where to, or why! It rained. " * 5
    chunks = chunk_text(text, LongText(LongTextMode.CHUNKS, 20, words))
    assert "".join(chunks.texts) == text
    assert len(chunks.texts) > 3
    assert all(piece.rstrip()[-1] in ".!" for piece in chunks.texts)
    assert all(words(piece) <= 20 for piece in chunks.texts)
    assert not any(piece.rstrip().endswith("Dr.") for piece in chunks.texts)


def test_a_sentence_longer_than_a_piece_is_cut_between_words() -> None:
    text = "Short one. " + "word " * 100
    chunks = chunk_text(text, rule(LongTextMode.CHUNK_MEAN, 60))
    assert "".join(chunks.texts) == text
    assert all(piece.endswith(" ") for piece in chunks.texts[:-1])
    assert min(len(piece) for piece in chunks.texts[:-1]) > 30  # a border near the start of a piece is not taken


def test_truncation_is_at_a_word_and_told() -> None:
    chunks = chunk_text("  some words that are cut off", rule(LongTextMode.TRUNCATE, 12))
    assert chunks.texts == ("some words ",)
    assert chunks.truncated
    assert chunks.tokens == 29


def test_too_long_can_be_an_error() -> None:
    with pytest.raises(EmbeddingFailed, match="item 3 has 30 tokens, more than long_text_tokens = 12") as caught:
        chunk_text("x" * 30, rule(LongTextMode.ERROR, 12), 3)
    assert (caught.value.index, caught.value.tokens) == (3, 30)


@given(TEXT, st.integers(1, 60), st.sampled_from([LongTextMode.CHUNK_MEAN, LongTextMode.CHUNKS]))
def test_nothing_is_lost_and_no_piece_is_too_long(text: str, most: int, mode: LongTextMode) -> None:
    # M-014, M-015, K-116
    if text.isspace():
        with pytest.raises(EmbeddingFailed):
            chunk_text(text, rule(mode, most))
        return
    chunks = chunk_text(text, rule(mode, most))
    assert all(0 < len(piece) <= most and not piece.isspace() for piece in chunks.texts)
    assert "".join("".join(chunks.texts).split()) == "".join(text.split())
    assert len(chunks.weights) == len(chunks.texts)
    assert not chunks.truncated


@given(TEXT, st.integers(1, 60))
def test_a_truncated_text_begins_as_the_whole(text: str, most: int) -> None:
    if text.isspace():
        return
    chunks = chunk_text(text, rule(LongTextMode.TRUNCATE, most))
    (piece,) = chunks.texts
    assert text.lstrip().startswith(piece.lstrip())
    assert not piece.isspace()
    assert len(piece) <= most or not chunks.truncated
    assert chunks.truncated == (len(text) > most)


def test_a_limit_that_holds_no_character_is_refused() -> None:
    with pytest.raises(InvalidValue, match="single character"):
        chunk_text("abc", LongText(LongTextMode.CHUNKS, 1, lambda text: 2 * len(text)))
