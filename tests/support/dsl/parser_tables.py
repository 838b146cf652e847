"""Texts read by the parser of the shipped tables and by one with tables made anew: both must say the same of each."""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

from lark import Lark

from caliber.dsl import parser, tables
from caliber.dsl.source import Source
from caliber.model.errors import MultipleErrors, ProgramFault


@functools.cache
def anew(name: str) -> Lark:
    """Return a parser with tables that were made from the grammar here."""
    return tables.build(name, tables.GRAMMAR.read_text(encoding="utf-8"), parser.Builder())


def said(text: str) -> tuple[Any, ...]:
    """Return a text as a program and as a condition, with the place of each part, and all faults with places."""
    return (*_said(lambda: parser.read(text)), *_said(lambda: parser.read_condition(Source(text, "<filter>"))))


def assert_said_alike(text: str) -> bool:
    """Assert that both parsers take a text for the same, and return whether it is a program."""
    shipped = said(text)
    with mock.patch.object(parser, "lark_parser", anew):
        made = said(text)
    assert shipped == made, text
    return not shipped[2]


def _said(read: Any) -> tuple[Any, ...]:
    try:
        found = read()
    except MultipleErrors as error:
        return None, (), [_fault(fault) for fault in error.errors]
    tree, faults = (found.program, found.faults) if isinstance(found, parser.Parsed) else (found, ())
    places = [(type(node).__name__, node.span) for node in parser.walk(tree)]
    return tree, places, [_fault(fault) for fault in faults]


def _fault(fault: Any) -> tuple[Any, ...]:
    assert not isinstance(fault, ProgramFault) or fault.line
    return str(fault), fault.context
