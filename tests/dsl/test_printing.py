"""The language: what is printed is read back, comments stay, and whatever is broken is reported where it is."""

from __future__ import annotations

import contextlib
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.evidence import examples

from caliber.dsl import ast, format_text, parse, read, render
from caliber.dsl.scan import scan
from caliber.dsl.source import Source
from caliber.model.errors import ConfigError, MultipleErrors, ProgramFault

_KEYWORDS_TOO = ("scope", "note", "type", "index", "inject", "into", "memory", "config", "on", "include", "caliber")
names = st.one_of(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), st.sampled_from(_KEYWORDS_TOO))
# "and", "or", "contains" and "starts" follow wherever a condition may, "on" begins a rule: there they are no names.
_settings = names.filter(lambda name: name not in ("and", "or", "contains", "starts", "on"))
words = st.lists(_settings, min_size=1, max_size=3).map(".".join).map(ast.Word)
_text_chars = st.characters(blacklist_categories=("Cs",), blacklist_characters="\0")
texts = st.text(_text_chars, max_size=12).map(ast.Text)
numbers = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr).filter(lambda text: "." in text or "e" in text),
).map(ast.Number)
durations = st.tuples(st.integers(0, 10**6), st.sampled_from("smhdw")).map(
    lambda parts: ast.Duration(f"{parts[0]}{parts[1]}", 0)
)
simple = st.one_of(words, texts, numbers, durations)
operators = st.sampled_from(["=", "!=", "<", ">", "<=", ">=", "~", "contains", "starts"])


def _joined(operator: str, inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    # Conditions joined by the same word are one list in the tree, as the parser has them.
    usable = inner.filter(lambda item: not (isinstance(item, ast.Joined) and item.operator == operator))
    return st.lists(usable, min_size=2, max_size=3).map(lambda items: ast.Joined(operator, tuple(items)))


def _values(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.builds(ast.Pair, st.one_of(names.map(ast.Word), texts), inner)
    return st.one_of(
        st.builds(ast.Call, names.map(ast.Word), st.lists(inner, max_size=3).map(tuple)),
        st.builds(ast.Items, st.lists(inner, max_size=3).map(tuple)),
        st.builds(ast.NamedValues, st.lists(pairs, max_size=3).map(tuple)),
        st.builds(ast.Compared, inner, operators, inner),
        _joined("and", inner),
        _joined("or", inner),
    )


values = st.recursive(simple, _values, max_leaves=8)
_called = st.builds(ast.Call, names.map(ast.Word), st.lists(simple, max_size=2).map(tuple))
triggers = st.one_of(_settings.map(ast.Word), _called)
_settings_of = st.builds(
    ast.Setting, words, st.one_of(values, st.builds(ast.Followed, _settings.map(ast.Word), triggers))
)
_rules = st.builds(ast.Rule, triggers, st.lists(values, max_size=3).map(tuple).map(ast.Items))
entries = st.recursive(
    st.one_of(_settings_of, _rules),
    lambda inner: st.builds(ast.Section, words, st.lists(inner, max_size=3).map(tuple)),
    max_leaves=4,
)
_bodies = st.lists(entries, max_size=4).map(tuple)
items = st.one_of(
    st.builds(ast.Include, texts),
    st.builds(
        ast.Definition, st.sampled_from(["memory", "policy", "adapter", "provider"]), names.map(ast.Word), _bodies
    ),
    st.builds(ast.Definition, st.just("config"), st.none(), _bodies),
    st.builds(ast.Definition, st.just("inject"), names.map(ast.Word), _bodies, into=names.map(ast.Word)),
)
programs = st.builds(ast.Program, texts, st.lists(items, max_size=5).map(tuple))


def _without(text: str, closing: str) -> bool:
    return closing not in text and not text.endswith("*")


_inside = st.text(_text_chars, max_size=8)
comments = st.one_of(
    _inside.map(lambda text: "//" + text.replace("\n", " ").replace("\r", " ") + "\n"),
    _inside.filter(lambda text: _without(text, "*/")).map("/*{}*/".format),
    _inside.filter(lambda text: _without(text, "*)")).map("(*{}*)".format),
)


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
