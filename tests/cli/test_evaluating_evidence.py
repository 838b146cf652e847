"""Evidence held by a window."""

from __future__ import annotations

import pytest

from caliber.cli.evaluating.windows import Wanted

TEXT = (
    "# Notes\n- dog (fact): Pixel is a collie.\n\n# Recall\n[Ines, 8 May 2023] I adopted   a greyhound\n"
    "from the shelter.\nTomas: No. I never said that I ran.\n[call 1] Yes, of course, the whole marat..."
)


@pytest.mark.parametrize(("content", "held"), [
    ("Pixel is a collie.", True),
    ("I adopted a greyhound from the shelter.", True),
    ("I  adopted\na greyhound from\tthe shelter.", True),
    ("No. I never said that I ran.", True),
    ("I never said that I ran.", False),  # the end of another message
    ("No.", False),  # the beginning of one
    ("a collie", False),
    ("pixel is a collie.", False),
    ("Yes, of course, the whole marathon.", False),  # cut
    ("", False),
    (" \n", False),
])  # fmt: skip
def test_a_record_is_held_when_its_whole_content_is_one_message(content: str, held: bool) -> None:
    assert Wanted("x", content).held_in(TEXT) is held


def test_an_expected_text_is_held_where_it_is_contained() -> None:
    assert Wanted("x", "PIXEL is a", whole=False).held_in(TEXT)
    assert Wanted("x", "greyhound from the", whole=False).held_in(TEXT)
    assert not Wanted("x", "the whole marathon", whole=False).held_in(TEXT)


def test_patterns_in_a_record_are_plain_text() -> None:
    assert Wanted("x", "cost is (5$)? [a-z]+ \\d").held_in("user: cost is (5$)? [a-z]+ \\d\n")
    assert not Wanted("x", "cost is .*").held_in("user: cost is low\n")
