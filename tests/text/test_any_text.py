"""Text processing of any text: splitters lose nothing, rules and summaries hold their promises and end in time.

Hostile texts in each reader of text: twice the text takes about twice the calls of functions, and ends soon.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.evidence import examples, scale

from caliber.dsl import parse
from caliber.learning.reading import MessageReader
from caliber.llm.local import static
from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.local.static import StaticEmbeddingProvider
from caliber.model.errors import CaliberError, SummarizationFailed
from caliber.model.knowledge import NoteType
from caliber.model.providers import (
    ConsolidationAction,
    ConsolidationMember,
    ExtractionTurn,
    GeneratedNote,
    TrajectoryDigest,
)
from caliber.model.trajectory import ArtifactType, TurnRole
from caliber.text.dates import DateReader, Moment
from caliber.text.key_sentences import key_sentences
from caliber.text.naming import MAX_ENTITY_CHARS, name_entity
from caliber.text.note_rules import (
    decide_consolidation,
    extract_artifacts,
    fold_statement,
    generate_notes,
    merge_notes,
    verify_contradiction,
)
from caliber.text.sections import parts, title_of
from caliber.text.sentences import lines, prefix_end, split_sentences
from caliber.text.textrank import summarize

# Pieces that mean something to one of the parsers; texts are made of them and of anything else.
FRAGMENTS = [
    ". ", "! ", "? ", "... ", "。", "e.g. ", "Dr. ", "No. 5 ", "\n", "\r\n", "\n\n", "- ", "1. ", "# ", "| a |", "  ",
    "```", "```python\n", "~~~~\n", "````\n", "\t", " I prefer ", "we decided ", "Decision: ", "must not ", "Fact: ",
    "**Fact:** ", "if ", "not ", "never ", "always ", "let's go with ", "Traceback (most recent call last):\n",
    '  File "a.py", line 1\n', "KeyError: x\n", "During handling of the above exception", "\tat a.b(C.java:1)\n",
    "a.b.CException: x\n", "ERROR x\n", "--- a\n", "+++ b\n", "@@ -1,2 +1,2 @@\n", "diff --git a b\n", "+x\n", "-x\n",
    "panic: \n", "goroutine 1 ", "`", '"', "“", "a_b", "aB", "A", "x.py", "(", ")", "'", "é", "日本", "🙂", "\u2028",
    "’", "𐀀", "42", "3.5", "word ", "\ud800", "\x00", "n't ", "enabled ", "disabled ",
]  # fmt: skip
TEXT = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=12), max_size=60).map("".join)
ROLES = st.sampled_from(list(TurnRole))
EMBEDDER = HashEmbeddingProvider(64, "property")


def by_bytes(text: str) -> int:
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / 3.5)


def by_words(text: str) -> int:
    return len(text.split()) + text.count("\n")


COUNTERS: list[Callable[[str], int]] = [by_bytes, by_words, len]


@given(TEXT)
def test_only_white_space_falls_between_sentences(text: str) -> None:
    place = 0
    for unit in split_sentences(text):
        assert text[place : unit.start].strip() == ""
        assert unit.text == text[unit.start : unit.end]
        assert unit.text == unit.text.strip() != ""
        place = unit.end
    assert text[place:].strip() == ""


@given(st.text(alphabet="ab\r\n", max_size=40))
def test_lines_are_those_of_the_text(text: str) -> None:
    expected = [line.removesuffix("\r") for line in text.split("\n")]
    got = [text[start:end] for start, end in lines(text)]
    assert got == (expected[:-1] if text.endswith("\n") or not text else expected)


@given(TEXT.filter(bool), st.integers(1, 50), st.sampled_from(COUNTERS), st.floats(0.01, 20))
def test_pieces_fit_and_make_up_the_text(text: str, limit: int, count: Callable[[str], int], per_token: float) -> None:
    # M-015
    assume(max(count(char) for char in text) <= limit)
    pieces, start = [], 0
    while start < len(text):
        end = prefix_end(text, start, limit, count, per_token)
        assert end > start
        pieces.append(text[start:end])
        start = end
    assert "".join(pieces) == text
    assert all(count(piece) <= limit for piece in pieces)


@given(TEXT, st.integers(1, 80), st.sampled_from(COUNTERS))
def test_a_summary_never_exceeds_its_budget(text: str, max_tokens: int, count: Callable[[str], int]) -> None:
    # C-497
    try:
        summary = summarize(text, max_tokens, count, EMBEDDER)
    except SummarizationFailed:
        assert not text.strip() or max(count(char) for char in text) > max_tokens
        return
    assert 0 < count(summary) <= max_tokens
    assert summary == summarize(text, max_tokens, count, EMBEDDER)
    # Extractive: no word that the text does not have, but for one that was cut.
    assert all(word in text for word in summary.removesuffix("…").split())


@given(st.lists(st.tuples(ROLES, TEXT), max_size=4))
def test_artifacts_come_from_their_turns_once_each(turns: list[tuple[TurnRole, str]]) -> None:
    numbered = [ExtractionTurn(number, role, content) for number, (role, content) in enumerate(turns)]
    artifacts = extract_artifacts(numbered)
    assert artifacts == extract_artifacts(numbered)
    assert [item.source_turn for item in artifacts] == sorted(item.source_turn or 0 for item in artifacts)
    seen = set()
    for item in artifacts:
        assert item.source_turn is not None
        role, content = turns[item.source_turn]
        assert 0.0 < item.confidence <= 1.0
        assert item.content.strip()
        assert " ".join(item.content.split()) in " ".join(content.split())
        assert (item.artifact_type is ArtifactType.TOOL_RESULT) <= (role is TurnRole.TOOL)
        assert (item.artifact_type is ArtifactType.USER_PREFERENCE) <= (role is TurnRole.USER)
        seen.add((item.artifact_type, " ".join(item.content.split()).casefold()))
    assert len(seen) == len(artifacts)
    notes = generate_notes(TrajectoryDigest("Fix `x.py`", None), [content for _, content in turns], artifacts)
    keys = {(item.entity.casefold(), item.entity_type, item.note_type) for item in notes}
    assert len(keys) == len(notes)
    assert all(item.entity and item.content.strip() and 0.0 < item.confidence <= 1.0 for item in notes)


@given(TEXT)
def test_names_are_short_and_not_blank(text: str) -> None:
    found = name_entity(text)
    assert found is None or (found[0].strip() and len(found[0]) <= MAX_ENTITY_CHARS)


NOTES = st.builds(GeneratedNote, st.just("E"), st.just("name"), st.just(NoteType.FACT), TEXT, st.floats(0, 1))


def statements(text: str) -> set[str]:
    return {fold_statement(unit.text) for unit in split_sentences(text)} - {""}


@given(NOTES, NOTES)
def test_merging_loses_no_statement_and_invents_none(a: GeneratedNote, b: GeneratedNote) -> None:
    # K-111, C-234
    merged = merge_notes(a, b)
    flat = " ".join(merged.content.split()).casefold()
    for statement in statements(a.content) | statements(b.content):
        assert statement in flat
    assert merged.confidence == max(a.confidence, b.confidence)
    assert merge_notes(a, a).content == a.content
    both = (a.content + " " + b.content).casefold()
    assert all(word in both for word in flat.split())


@given(TEXT, TEXT)
def test_contradiction_is_mutual_and_never_with_oneself(a: str, b: str) -> None:
    assert verify_contradiction(a, b) == verify_contradiction(b, a)
    assert not verify_contradiction(a, a)


@given(st.lists(st.lists(TEXT, max_size=4), max_size=3))
def test_each_cluster_gets_one_decision_about_its_own(clusters: list[list[str]]) -> None:
    # M-108
    members = [[ConsolidationMember(str(i), text, i) for i, text in enumerate(texts)] for texts in clusters]
    decisions = decide_consolidation(members)
    assert len(decisions) == len(clusters)
    for decision, cluster in zip(decisions, members, strict=True):
        assert decision.keys == tuple(member.key for member in cluster)
        if decision.action is ConsolidationAction.SUPERSEDE:
            assert decision.survivor in decision.keys
        if len({member.content for member in cluster}) == 1 < len(cluster):
            assert decision.survivor == cluster[-1].key


WORDS = st.sampled_from(["word", "1", "22", "日本", "<s>", "</s>", "a<b", "c>", "\u2581", "x\n", "Éa", "", "."])


@pytest.fixture(scope="module")
def provider() -> StaticEmbeddingProvider:
    return StaticEmbeddingProvider()


@settings(max_examples=examples(300))
@given(words=st.lists(WORDS, min_size=10, max_size=60), size=st.integers(12, 60))
def test_tokens_of_the_blocks_are_those_of_the_text(
    provider: StaticEmbeddingProvider, words: list[str], size: int
) -> None:
    # C-246: long texts are cut where the tokenizer does not notice
    text = " ".join(words)
    whole = static.BLOCK_CHARS
    try:
        static.BLOCK_CHARS = size
        blocks = list(static.blocks(text))
    finally:
        static.BLOCK_CHARS = whole
    assert all(len(block) <= size for block in blocks)
    assume(" ".join(blocks) == text)  # else a word longer than a block was cut inside
    encode = static.load_static_model(static.static_model_folder()).tokenizer.encode
    ids = [token for block in blocks for token in encode(block, add_special_tokens=False).ids]
    assert ids == encode(text, add_special_tokens=False).ids


SPAN = scale(50_000, 200_000)
SLOWEST_CPU_S = 5.0
EVIL = [
    ".", "?!x", "…", "'", '"', "`", "~", "```", "*", "_", "[", "-", "- ", "|", "#", "x", " ", "\n", "\n ", "a.", "a. ",
    "A.", "I ", "we ", "must ", "never ", "a_", "aB", "Aa ", "://", "at ", "\tat x\n", "error: ", "0:", "1.", "1 ",
    "@@", "--- a\n", "Error", "x.Error\n", "Traceback (most recent call last):\n", 'File "', "panic: \n",
    "diff --git \n", "。", "\ud800",
]  # fmt: skip


def busy_seconds(text: str, role: TurnRole) -> float:
    """Return the processor time that all parsers together take for a text."""
    began = time.process_time()
    artifacts = extract_artifacts([ExtractionTurn(1, role, text)])
    generate_notes(TrajectoryDigest(text, text), [text], artifacts)
    if text.strip():
        summarize(text, 50, by_bytes, EMBEDDER)
    verify_contradiction(text, text + " not")
    decide_consolidation([[ConsolidationMember("a", text, 1), ConsolidationMember("b", text + " x", 2)]])
    return time.process_time() - began


# Linear work is a fraction of a second for this much text; backtracking or rescanning would take a minute or more.


@pytest.mark.parametrize("fragment", EVIL)
def test_known_traps_do_not_make_a_parser_slow(fragment: str) -> None:
    text = fragment * (SPAN // len(fragment))
    assert busy_seconds(text, TurnRole.USER) < SLOWEST_CPU_S
    assert busy_seconds(text + "x", TurnRole.TOOL) < SLOWEST_CPU_S


@settings(max_examples=examples(20))
@given(st.lists(st.sampled_from(FRAGMENTS + EVIL), min_size=2, max_size=4).map("".join), ROLES)
def test_no_repetition_makes_a_parser_slow(fragment: str, role: TurnRole) -> None:
    assert busy_seconds(fragment * (SPAN // 2 // len(fragment)), role) < SLOWEST_CPU_S


PARTS = (
    "I quit a. ", "I live in Rome. ", "My sister Anna is 5. ", "well ", "((((", '"', "'", "“", "a, ", "and and ",
    "12345 ", "e\u0301", "x", "\n", " ", "<!--", "![", "for now ", "no, it's Porto. ", "- a\n",
    "> b\n", "# \t", "`", "```\n",
)  # fmt: skip
READERS: dict[str, Callable[[str], Any]] = {
    "rules": lambda text: list(MessageReader().read(text, Moment(0))),
    "sentences": split_sentences,
    "key sentences": lambda text: key_sentences(text, "quit", lambda spans: len(spans) < 9),
    "contradiction": lambda text: verify_contradiction(text, f"{text} not"),
    "names": name_entity,
    "dates": lambda text: DateReader().find(text, date(2026, 1, 1)),
    "markdown": lambda text: title_of("a.md", text),
    "parts": parts,
    "language": parse,
}
SMALL = 2_000
FEW = 10_000
"""Calls below which growth is no matter."""


def calls(read: Callable[[str], Any], text: str) -> int:
    count = 0

    def counted(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        read(text)
    except CaliberError:
        pass  # the language refuses most of them
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", READERS)
def test_twice_the_text_takes_about_twice_the_work(name: str) -> None:
    read, wrong = READERS[name], []
    for part in PARTS:
        small, large = (calls(read, (part * size)[:size]) for size in (SMALL, 2 * SMALL))
        if large > FEW and large > 2.6 * small:
            wrong.append(f"{part!r}: {small} calls for {SMALL} characters, {large} for twice as many")
    assert wrong == []
