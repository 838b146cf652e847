"""Tokens of a statement, and its clauses as lists of them: between marks, and before words that join clauses."""

from __future__ import annotations

from typing import Final, NamedTuple

from caliber.text.contradiction import opposites as words
from caliber.text.contradiction.phrases import PHRASES
from caliber.text.contradiction.qualifiers import ATTITUDES
from caliber.text.contradiction.quantities import TOKEN, Clock, Day, Quantity, unit_of
from caliber.text.dates import MONTHS

LESS: Final = "less"
"""Flag of a clause that names what is liked less than the thing before it."""
_LABELLED: Final = 4
"""Words of the longest value after a colon."""
_BREAKS: Final = frozenset((";", ":", ".", "!", "?", "(", ")", ",", "–", "—"))
_JOINS: Final = frozenset(
    ("and", "but", "because", "which", "who", "that", "while", "although", "though", "whereas", "so", "since", "where")
)
_THAN: Final = frozenset(("instead", "than", "over", "to"))
_BETWEEN: Final = _JOINS | _THAN | {"without"}
_CONTRACTED: Final = {"can't": "can", "won't": "will", "shan't": "shall", "cannot": "can", "isn't": "is", "ain't": "is"}
_SECONDS: Final = frozenset(second for _, second in PHRASES)


class Term(NamedTuple):
    """A content word: the key that it is compared by, its side of a pair of opposites, and whether it is a name."""

    key: str
    sign: int
    is_name: bool
    folded: str
    is_placed: bool = False
    """Whether a preposition stands before it."""


class Clause(NamedTuple):
    """A piece of a statement that has one polarity. ``head`` is its first content word."""

    terms: tuple[Term, ...]
    negated: bool
    quantities: tuple[Quantity, ...]
    days: tuple[Day, ...]
    weekdays: frozenset[int]
    clocks: tuple[Clock, ...]
    flags: frozenset[str]
    by_key: dict[str, Term]
    before_is: int
    """The number of terms before "is", or 0."""
    negatable: dict[str, str]
    """What words with an affix that can negate would be compared by without it, each with the key of the word."""


class Token(NamedTuple):
    kind: str
    text: str
    folded: str
    owns: bool = False
    """Whether it is a possessive: ``Sara's``."""


_LIGHT: Final = {
    word: Token("word", word, word) for word in words.LIGHT - _SECONDS if word.isalpha() and word != "cannot"
}
"""The tokens of light words as they are mostly written; they are every second word."""


def tokens_of(text: str) -> list[Token]:
    out: list[Token] = []
    for match in TOKEN.finditer(text.replace("’", "'")):
        kind, raw = match.lastgroup or "", match.group()
        if kind == "word" and (light := _LIGHT.get(raw)) is not None:
            out.append(light)
            continue
        folded = raw.casefold()
        if kind != "word":
            pass
        elif "'" in folded:
            if folded.endswith("n't"):
                out.append(Token(kind, raw, _CONTRACTED.get(folded, folded[:-3])))
                out.append(Token(kind, "not", "not"))
                continue
            if folded == "o'clock":
                out.append(Token(kind, raw, folded))
                continue
            folded, _, ending = folded.partition("'")
            raw = raw.partition("'")[0]
            if ending == "s":
                out.append(Token(kind, raw, folded, owns=True))
                continue
        elif folded == "cannot":
            out.append(Token(kind, "can", "can"))
            raw = folded = "not"
        elif folded.startswith("mid-") and folded[4:] in MONTHS:
            out.append(Token(kind, "mid", "mid"))
            raw, folded = raw[4:], folded[4:]
        if folded in _SECONDS and out and (joined := PHRASES.get((out[-1].folded, folded))) is not None:
            out[-1] = Token(kind, joined, joined)
            continue
        out.append(Token(kind, raw, folded))
    return out


def pieces_of(tokens: list[Token]) -> list[list[Token]]:
    """Return the tokens of each clause: between marks, and before words that join clauses."""
    pieces: list[list[Token]] = [[]]
    outer: list[Token] | None = None
    interrupted = False
    for at, token in enumerate(tokens):
        if token.kind != "sign" and token.folded not in _BETWEEN:
            pieces[-1].append(token)
        elif token.text == ":" and _is_label(tokens, at):
            pieces[-1].append(Token("sign", "=", "="))
        elif token.text == "(" and outer is None:
            outer = pieces[-1]
            pieces.append([])
        elif token.text == ")" and outer is not None:
            interrupted = True
            pieces.append(outer)  # what follows an aside goes on with what it interrupted
            outer = None
        elif token.kind == "sign" and token.text in _BREAKS:
            if token.text == "?":
                pieces[-1].append(Token("word", "if", "if"))
            pieces.append([])
        elif token.folded in _JOINS and pieces[-1] and not _is_half(tokens, at):
            denied = token.folded == "that" and _denies(pieces[-1])
            if denied:
                pieces[-1] = []
            doubted = token.folded == "that" and any(each.folded in ATTITUDES for each in pieces[-1])
            opening = ["not"] if denied else ["if"] if doubted else []
            pieces.append([Token("word", word, word) for word in opening])
        elif token.folded == "without" and pieces[-1]:
            pieces[-1].append(Token("mark", "without", "without"))
            pieces.append([Token("word", "not", "not")])
        elif token.folded in _THAN and _is_preferred(token.folded, pieces[-1]):
            pieces.append([Token("mark", LESS, LESS), Token("word", "not", "not"), Token("word", "if", "if")])
        else:
            pieces[-1].append(token)
    if not interrupted:
        return [piece for piece in pieces if piece]
    return [piece for at, piece in enumerate(pieces) if piece and all(piece is not later for later in pieces[at + 1 :])]


def _is_half(tokens: list[Token], at: int) -> bool:
    """Return whether "and a half" or "and 20 minutes" begins at a place, after a unit."""
    following = [token.folded for token in tokens[at : at + 3]]
    if following == ["and", "a", "half"]:
        return True
    units = unit_of(tokens[at - 1].folded), unit_of(following[-1])
    return following[0] == "and" and units[0] is not None and units[1] is not None and units[0][0] == units[1][0]


def _denies(piece: list[Token]) -> bool:
    """Return whether a clause denies what follows: "it is not true that"."""
    said = [token.folded for token in piece]
    return len(said) <= 5 and (
        (("not" in said) and ("true" in said or "case" in said)) or "false" in said or "untrue" in said
    )


def _is_preferred(word: str, before: list[Token]) -> bool:
    """Return whether a word separates what is preferred from what is not."""
    at = next((at for at, each in enumerate(before) if each.folded in words.PREFERENCE), None)
    if at is None or at == len(before) - 1:
        return False
    return word not in ("to", "over") or before[at].folded in ("prefer", "prefers", "preferred", "choose", "chooses")


def _is_label(tokens: list[Token], at: int) -> bool:
    """Return whether a colon stands between an attribute and its value."""
    following = 0
    for token in tokens[at + 1 :]:
        if token.kind == "sign" and token.text in _BREAKS and token.text != ",":
            break
        following += token.kind != "sign"
    return at > 0 and 0 < following <= _LABELLED
