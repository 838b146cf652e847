"""Splitting text into sentences."""

from __future__ import annotations

import pytest

from caliber.text.sentences import UnitKind, split_sentences


def texts(source: str) -> list[str]:
    return [sentence.text for sentence in split_sentences(source)]


@pytest.mark.parametrize(("source", "expected"), [
    ("", []),
    (" \n\t\n", []),
    ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
    ("Dr. Smith met J. R. Tolkien at 3 p.m. yesterday. Fine.",
     ["Dr. Smith met J. R. Tolkien at 3 p.m. yesterday.", "Fine."]),
    ("It costs 3.50 dollars, e.g. for two. See Fig. 3 for more.",
     ["It costs 3.50 dollars, e.g. for two.", "See Fig. 3 for more."]),
    ("We use apples, pears, etc. Then we cook.", ["We use apples, pears, etc.", "Then we cook."]),
    ('He said "stop." Then he left.', ['He said "stop."', "Then he left."]),
    ("Wait... no. Really?! Yes.", ["Wait... no.", "Really?!", "Yes."]),
    ("i like tabs. please always use them.", ["i like tabs.", "please always use them."]),
    ("Edit foo.py and v1.2.3 of it. Done.", ["Edit foo.py and v1.2.3 of it.", "Done."]),
    ("彼は来た。そして去った。", ["彼は来た。", "そして去った。"]),
    ("So am I. Then stop.", ["So am I.", "Then stop."]),
    ("i prefer tabs\nAlso note that Bob is out\nand away", ["i prefer tabs", "Also note that Bob is out\nand away"]),
    ("A line\nthat wraps. Another\r\n\r\nNew paragraph", ["A line\nthat wraps.", "Another", "New paragraph"]),
])  # fmt: skip
def test_prose_is_split_where_sentences_end(source: str, expected: list[str]) -> None:
    assert texts(source) == expected


def test_lists_headings_and_tables_are_units_of_their_own() -> None:
    source = "# Head\nIntro\n- one. Two\n  goes on\n* three\n1. four. Five\n| a | b. c |\nAfter."
    assert [(unit.kind.value, unit.text) for unit in split_sentences(source)] == [
        ("heading", "# Head"), ("prose", "Intro"), ("item", "- one."), ("item", "Two\n  goes on"), ("item", "* three"),
        ("item", "1. four."), ("item", "Five"), ("table", "| a | b. c |"), ("prose", "After."),
    ]  # fmt: skip


@pytest.mark.parametrize("block", [
    "```python\nx = 1. Y. Z\n\n# not a heading\n```",
    "~~~\na. B\n```\nc. D\n~~~",
    "````md\n```\ninner. Block\n```\n````",
    "```\nnever closed. So\nall of it",
])  # fmt: skip
def test_a_fenced_block_is_one_unit(block: str) -> None:
    units = split_sentences(f"Before. This:\n{block}")
    assert [unit.text for unit in units] == ["Before.", "This:", block]
    assert units[-1].kind is UnitKind.CODE


def test_backticks_inside_a_line_open_no_block() -> None:
    assert texts("```x``` is code. So is `y`.\nMore. Text") == ["```x``` is code.", "So is `y`.", "More.", "Text"]


def test_sentences_know_their_place_and_paragraph() -> None:
    source = "  One. Two.\n\nThree."
    units = split_sentences(source)
    assert [source[unit.start : unit.end] for unit in units] == ["One.", "Two.", "Three."]
    assert units[0].paragraph == units[1].paragraph != units[2].paragraph
