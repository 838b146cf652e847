"""The language: what is printed is read back, comments stay, and whatever is broken is reported where it is."""

from __future__ import annotations

import contextlib
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.dsl.programs import comments, programs
from support.evidence import examples

from caliber.dsl import ast, format_text, parse, read, render
from caliber.dsl.scan import scan
from caliber.dsl.source import Source
from caliber.model.errors import ConfigError, MultipleErrors, ProgramFault

EXAMPLES = examples(30, 500)
seeds = st.integers(0, 2**32)


@given(programs)
@settings(max_examples=EXAMPLES)
def test_what_is_printed_is_read_back_and_printed_the_same(program: ast.Program) -> None:
    # C-186, C-127 to C-171
    text = render(program)
    assert parse(text) == program
    assert format_text(text) == text


@given(programs, st.lists(comments, min_size=1, max_size=6), seeds)
@settings(max_examples=EXAMPLES)
def test_comments_stay_and_change_nothing(program: ast.Program, added: list[str], seed: int) -> None:
    # C-171
    chance = random.Random(seed)
    text = render(program)
    starts = [token.span.start for token in scan(Source(text, "t")).tokens]
    places = sorted((chance.choice([*starts, len(text)]) for _ in added), reverse=True)
    for place, comment in zip(places, added, strict=True):
        text = f"{text[:place]} {comment} {text[place:]}"
    assert parse(text) == program
    laid_out = format_text(text)
    assert parse(laid_out) == program
    assert format_text(laid_out) == laid_out

    def of(source: str) -> list[str]:
        return [token.text.strip() for token in scan(Source(source, "t")).comments]

    assert of(laid_out) == of(text)


@given(programs, seeds, st.sampled_from(["cut", "double", "swap", "letter", "bracket"]))
@settings(max_examples=EXAMPLES)
def test_what_is_broken_is_reported_where_it_is(program: ast.Program, seed: int, way: str) -> None:
    # C-172: only MultipleErrors of ProgramFaults, each inside the text
    text = broken(render(program), random.Random(seed), way)
    lines = text.split("\n")
    for fault in faults_of(text):
        assert isinstance(fault, ProgramFault)
        assert fault.file == "broken.caliber"
        assert 1 <= fault.line <= len(lines)
        assert 1 <= fault.column <= len(lines[fault.line - 1]) + 1
        assert str(fault).startswith(f"broken.caliber:{fault.line}:{fault.column}: error: ")


def faults_of(text: str) -> list[ConfigError]:
    try:
        format_text(text, name="broken.caliber")
    except MultipleErrors as error:
        return error.errors or [ConfigError("an error without faults")]
    return []


def broken(text: str, chance: random.Random, way: str) -> str:
    tokens = scan(Source(text, "t")).tokens
    token = chance.choice(tokens)
    start, end = token.span
    if way == "cut":
        return text[:start] + text[end:]
    if way == "double":
        return text[:end] + " " + text[start:]
    if way == "swap":
        other = chance.choice(tokens)
        return text[:start] + other.text + text[end:]
    if way == "letter":
        at = chance.randrange(len(text))
        return text[:at] + chance.choice("{}()[]\":,.=~|'\\x9 \n") + text[at:]
    return text[:start] + chance.choice("{}()[]") + text[start:]


@given(st.text(max_size=200))
@settings(max_examples=EXAMPLES)
def test_any_text_at_all_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(MultipleErrors):
        read(text)
