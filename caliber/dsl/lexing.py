"""Lexer for Lark: names the tokens that ``dsl.scan`` cuts; keywords depend on the parser's state. Source: K-061.

The parser's own lexer would compile a pattern for each of its states, which takes longer than parsing a whole
configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from lark import Token
from lark.common import LexerConf
from lark.lexer import Lexer, LexerState, PatternStr

from caliber.dsl.scan import TOKEN

_SKIPPED: Final = ("space", "comment")
_NUMBERS: Final = ("FLOAT", "DURATION", "INTEGER")
_OTHER: Final = "OTHER"
"""The type of a token that no grammar position expects."""


class Lexing(Lexer):
    """The tokens of the language, as the parser consumes them."""

    __future_interface__ = 2  # lark: tokens may depend on the parser's state, and a text may be a slice

    def __init__(self, conf: LexerConf) -> None:
        patterns = {terminal.name: terminal.pattern for terminal in conf.terminals}
        self._fixed = {str(item.value): name for name, item in patterns.items() if isinstance(item, PatternStr)}
        self._numbers = tuple((name, re.compile(patterns[name].to_regexp())) for name in _NUMBERS)
        self._comparator = re.compile(patterns["COMPARATOR"].to_regexp())

    def lex(self, lexer_state: LexerState, parser_state: Any) -> Iterator[Token]:
        """Yield the tokens of a text, each once the parser has taken those before."""
        text = lexer_state.text
        states = parser_state.parse_conf.parse_table.states
        for match in TOKEN.finditer(text.text, text.start, text.end):
            kind = match.lastgroup or ""
            if kind in _SKIPPED:
                continue
            value = match[0]
            name = self._fixed.get(value)
            if kind == "word" and (name is None or name not in states[parser_state.position]):
                name = "WORD"
            elif kind == "text":
                name = "TEXT"
            elif name is None:
                name = self._named(value)
            token = Token(name, value, start_pos=match.start(), end_pos=match.end())
            lexer_state.last_token = token
            yield token

    def _named(self, value: str) -> str:
        if self._comparator.fullmatch(value):
            return "COMPARATOR"
        return next((name for name, pattern in self._numbers if pattern.fullmatch(value)), _OTHER)
