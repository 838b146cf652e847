"""Pre-scan of ``.caliber`` text: tokens, comments, brackets, points to resume at after an error, and limits.

The grammar stops at the first error. To find all of them in one run, a text that does not parse is cut at its
definitions, and a definition that does not parse at its entries; each piece is then parsed alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from caliber.dsl.source import Source, SourceSpan
from caliber.model.errors import ProgramFault

MAX_CHARS: Final = 4 << 20
MAX_TOKENS: Final = 250_000
"""Most tokens (words, texts, numbers, signs, comments) of one file: a token takes many times its characters."""
MAX_DEPTH: Final = 32
FAULTS_MAX: Final = 100
"""A file that is something else altogether is not reported line by line."""
KINDS: Final = ("memory", "policy", "adapter", "provider")
HEADS: Final = (*KINDS, "inject", "config", "include")
"""Keywords that begin a definition or an include."""

TOKEN: Final = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/|\(\*.*?\*\))
    |(?P<open_comment>/\*|\(\*)
    |(?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+")
    |(?P<open_text>")
    |(?P<word>[^\W\d]\w*)
    |(?P<opening>[{(\[])
    |(?P<closing>[})\]])
    |(?P<colon>:)
    |(?P<joint>[!<>]?=|[.,<>~])
    |(?P<number>[+-]?\d[\w.]*(?:(?<=[eE])[+-]\d+)?)
    |(?P<space>\s+)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_CLOSES: Final = {"{": "}", "(": ")", "[": "]"}


class Token(NamedTuple):
    """A piece of the text and how many brackets are open before it."""

    kind: str
    text: str
    span: SourceSpan
    depth: int


class Scanned(NamedTuple):
    """The tokens of a text without its comments, the comments, and faults of its brackets and quotes."""

    tokens: list[Token]
    comments: list[Token]
    faults: list[ProgramFault]
    too_long: bool = False


def scan(source: Source) -> Scanned:
    """Cut a text into tokens; it never fails."""
    tokens: list[Token] = []
    comments: list[Token] = []
    faults: list[ProgramFault] = []
    open_brackets: list[Token] = []
    for match in TOKEN.finditer(source.text):
        kind = match.lastgroup or "other"
        if kind == "space":
            continue
        token = Token(kind, match[0], SourceSpan(*match.span()), len(open_brackets))
        if len(tokens) + len(comments) == MAX_TOKENS:
            reason = f"a program is at most {MAX_TOKENS} words, texts, numbers, signs and comments"
            return Scanned(tokens, comments, [source.fault(token.span, reason)], too_long=True)
        if len(faults) == FAULTS_MAX:
            break
        if kind == "comment":
            comments.append(token)
            continue
        if kind in ("open_comment", "open_text"):
            what = "comment" if kind == "open_comment" else "text"
            faults.append(source.fault(token.span, f"this {what} is not closed"))
            break
        if kind == "opening":
            if len(open_brackets) == MAX_DEPTH:
                faults.append(source.fault(token.span, f"brackets are nested more than {MAX_DEPTH} deep"))
                break
            open_brackets.append(token)
        elif kind == "closing":
            if open_brackets and _CLOSES[open_brackets[-1].text] == token.text:
                open_brackets.pop()
                token = token._replace(depth=len(open_brackets))
            elif not open_brackets:
                faults.append(source.fault(token.span, f"this {token.text} has no opening bracket"))
            else:
                opened = source.place(open_brackets[-1].span.start)
                bracket = open_brackets[-1].text
                where = f"line {opened.line}, column {opened.column}"
                reason = f"expected {_CLOSES[bracket]} for the {bracket} of {where}"
                faults.append(source.fault(token.span, reason))
                if any(_CLOSES[item.text] == token.text for item in open_brackets):
                    while _CLOSES[open_brackets.pop().text] != token.text:
                        pass
                    token = token._replace(depth=len(open_brackets))
        tokens.append(token)
    else:
        faults.extend(source.fault(item.span, f"this {item.text} is not closed") for item in open_brackets[-1:])
    return Scanned(tokens, comments, faults)


def heads(tokens: Sequence[Token]) -> Iterator[int]:
    """Yield the indexes of the tokens that begin a definition or an include, wherever brackets went astray."""
    for at, token in enumerate(tokens):
        if token.kind != "word":
            continue
        after = tokens[at + 1 : at + 3]
        if token.text in KINDS:
            if len(after) == 2 and after[0].kind == "word" and after[1].text == "{":
                yield at
        elif token.text == "inject":
            misspelt = token.depth == 1 and len(after) == 2 and after[1].kind == "word"
            if len(after) == 2 and after[0].kind == "word" and (after[1].text == "into" or misspelt):
                yield at
        elif token.text == "config":
            if after and after[0].text == "{" and token.depth == 1:
                yield at
        elif token.text == "include" and after and after[0].kind == "text":
            yield at
        elif token.depth == 1 and tokens[at - 1].text in ("{", "}") and _like_a_head(after):
            yield at  # perhaps a keyword that was misspelt


def _like_a_head(after: Sequence[Token]) -> bool:
    return bool(after) and (after[0].text == "{" or (len(after) == 2 and after[0].kind == "word"))


def entries(tokens: Sequence[Token]) -> list[SourceSpan]:
    """Return the spans of a definition's entries, given its tokens from head to closing brace."""
    opening = next((at for at, token in enumerate(tokens) if token.text == "{"), None)
    if opening is None:
        return []
    depth = tokens[opening].depth + 1
    body = tokens[opening + 1 :]
    starts = [at for at, token in enumerate(body) if token.depth == depth and _begins(body, at)]
    out = []
    for number, at in enumerate(starts):
        stop = starts[number + 1] if number + 1 < len(starts) else len(body)
        inside = [token for token in body[at:stop] if token.depth >= depth]
        out.append(SourceSpan(inside[0].span.start, inside[-1].span.end))
    return out


def _begins(body: Sequence[Token], at: int) -> bool:
    token = body[at]
    before = body[at - 1] if at else None
    if token.kind != "word" or (before is not None and before.kind in ("colon", "joint")):
        return False
    if token.text == "on":
        return at + 1 < len(body) and body[at + 1].kind == "word"
    end = at + 1
    while end + 1 < len(body) and body[end].text == "." and body[end + 1].kind == "word":
        end += 2
    if before is not None and before.text == "on":
        return False
    return end < len(body) and (body[end].kind == "colon" or body[end].text == "{")
