"""Answers to questions of the assistant: "Minnesota" after "Which state do you live in?" is "I live in Minnesota".

The question says only which statement the words of the user make; the rules and their checks judge it like any other.
"""

from __future__ import annotations

import re
from typing import Final

from caliber.learning.lexicon import words
from caliber.learning.matters.patterns import Check

_I = re.IGNORECASE
_YOU = r"(?:do|are|would) you (?:currently |usually )?"
_QUESTIONS: Final[tuple[tuple[re.Pattern[str], str, Check], ...]] = tuple(
    (re.compile(question, _I), statement, check)
    for question, statement, check in (
        (
            (
                rf"\bwhere {_YOU}(?:live|living|based|located)\b|\bwhere(?:'s| is) home\b|"
                r"\b(?:which|what) (?:city|town|state|country)\b.* (?:do you live|are you)"
            ),
            "I live in {}",
            words.is_town,
        ),
        (
            (
                r"\b(?:what(?:'s| is) your (?:first |full )?name|what (?:should|can|may) i call you|who am i "
                r"(?:talking|speaking))"
            ),
            "my name is {}",
            words.is_given_name,
        ),
        (r"\bhow old are you\b|\bwhat(?:'s| is) your age\b", "I'm {}", words.is_age),
        (r"\bwhen(?:'s| is) your birthday\b|\bwhen were you born\b", "my birthday is {}", words.is_date),
        (
            (
                r"\bwhat do you do(?: for (?:a living|work))?\?|\bwhat(?:'s| is) your (?:job|profession|occupation|"
                r"line of work)"
            ),
            "I work as a {}",
            words.is_profession,
        ),
        (
            r"\bwhere do you work\b|\bwho do you work for\b|\b(?:which|what) company\b.* (?:you|your)\b",
            "I work at {}",
            words.is_firm,
        ),
        (
            r"\ballerg(?:y|ies|ic)\b|\bintolerances?\b",
            "I'm allergic to {}",
            words.is_thing,
        ),
        (
            (
                r"\b(?:anything|foods?|ingredients?|something)\b.* (?:you (?:don't|won't|can't|do not|cannot) (?:eat|"
                r"like|want)|(?:to|should i|you) (?:avoid|leave out|skip|dislike|hate))"
            ),
            "I don't eat {}",
            words.is_thing,
        ),
        (r"\b(?:which|what) languages? (?:do|can) you speak\b", "I speak {}", words.is_language),
        (
            r"\bwhat(?:'s| is) (?:his|her|its) name\b|\bwhat(?:'s| is) (?:he|she|it) called\b",
            "its name is {}",
            words.is_given_name,
        ),
        (r"\bhow old is he\b", "he is {}", words.is_age),
        (r"\bhow old is she\b", "she is {}", words.is_age),
    )
)
_ASKED: Final = re.compile(r"([^.!?\n]*\?)\s*\W*$")
_ANSWER: Final = re.compile(
    r"^\W{0,20}(?:(?:oh|well|just|mostly|um|uh|hm+|it's|its|i'm in|in|at|from|only|yes|yeah|yep),? "
    r")*(?P<v>[^.,!?;:()\n]{2,40}?)(?: please| here| mostly| usually| now)?(?=\s*(?:[.,!;)]|$))"
)


def question_of(text: str) -> str:
    """Return the question that a message of the assistant ends with, or nothing."""
    found = _ASKED.search(text[-400:])
    return "" if found is None else found[1]


def stated(question: str, answer: str) -> tuple[str, int, int] | None:
    """Return the statement that an answer makes in the light of a question, and its place; None if none for certain."""
    matching = [(statement, check) for pattern, statement, check in _QUESTIONS if pattern.search(question)]
    found = _ANSWER.match(answer)
    if len(matching) != 1 or found is None:
        return None
    statement, check = matching[0]
    value = found["v"].strip()
    return (statement.format(value), found.start("v"), found.end("v")) if check(value) else None
