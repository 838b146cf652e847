"""Parse tables of the LALR parser: loads those shipped with the package, or builds them from the grammar.

Tables are data: names, numbers and patterns in lark's own format (``tools/gen_tables.py`` creates them). Another
version of lark may read them differently, so they are used only with the version that made them and with this grammar.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import lark
from lark import Lark, Token, Transformer

from caliber.dsl.lexing import Lexing
from caliber.model.process.interrupts import let_through

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
