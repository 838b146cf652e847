"""Tokens and parse tables of the LALR parser: those shipped with the package, or built from the grammar.

Tables are data: names, numbers and patterns in lark's own format (``tools/gen_tables.py`` creates them). Another
version of lark may read them differently, so they are used only with the version that made them and with this grammar.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import lark
from lark import Lark, Token, Transformer
from lark.common import LexerConf
from lark.lexer import Lexer, LexerState, PatternStr

from caliber.dsl.scan import TOKEN
from caliber.model.process.interrupts import let_through

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


GRAMMAR: Final = Path(__file__).with_name("grammar.lark")
STARTS: Final = {
    "program": ("program",),
    "pieces": ("program", "include", "definition", "injection", "config", "setting", "section", "rule", "condition"),
    "condition": ("condition",),
}
"""The start rule of each parser: a whole program, a piece of a broken one, a filter. More take longer to build."""


def parser(name: str, made: Transformer[Token, Any]) -> Lark:
    """Return the parser of a text that is one of ``STARTS[name]``; ``made`` makes the tree."""
    grammar = GRAMMAR.read_text(encoding="utf-8")
    data = shipped(name, grammar)
    if data is None:
        return build(name, grammar, made)
    data["data"]["options"].update(lexer=Lexing, transformer=made)
    data["data"]["parser"]["lexer_conf"]["lexer_type"] = Lexing
    return Lark.load(data)


def build(name: str, grammar: str, made: Transformer[Token, Any] | None) -> Lark:
    """Return the same parser, with tables that lark makes from the grammar now."""
    starts = list(STARTS[name])
    return Lark(grammar, parser="lalr", lexer=Lexing, start=starts, transformer=made, maybe_placeholders=False)


def file(name: str) -> Path:
    """Return the path of the shipped tables of a parser."""
    return GRAMMAR.with_name(f"grammar.{name}.json")


def origin(grammar: str) -> dict[str, str]:
    """Return the origin of tables made here and now: versions and inputs."""
    return {"lark": lark.__version__, "grammar": hashlib.sha256(grammar.encode()).hexdigest()}


def shipped(name: str, grammar: str) -> dict[str, Any] | None:
    """Return the tables of a parser in lark's format; None if this lark and grammar have none.

    JSON has texts as keys only: keys that are numbers in lark are converted back.
    """
    try:
        found = json.loads(file(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        let_through(error)
        return None
    if not isinstance(found, dict) or found.get("origin") != origin(grammar):
        return None
    table = found["data"]["parser"]["parser"]
    table["tokens"] = _numbered(table["tokens"])
    table["states"] = {state: _numbered(actions) for state, actions in _numbered(table["states"]).items()}
    return {"data": found["data"], "memo": _numbered(found["memo"])}


def _numbered(items: dict[str, Any]) -> dict[int, Any]:
    return {int(key): value for key, value in items.items()}
