"""Parser of ``.caliber`` text to a syntax tree; reports every syntax error of the text in one run.

Source: C-127 to C-172.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from lark import Lark, Token, Transformer, UnexpectedInput
from lark.exceptions import UnexpectedToken
from lark.utils import TextSlice

from caliber.dsl import ast, tables
from caliber.dsl.scan import FAULTS_MAX, HEADS, KINDS, MAX_CHARS, Scanned, entries, heads, scan
from caliber.dsl.scan import Token as Piece
from caliber.dsl.source import Source, SourceSpan
from caliber.model.arguments import check_type
from caliber.model.errors import InvalidConfigValue, MultipleErrors, ProgramFault

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_INT64_MAX: Final = 2**63 - 1
_ESCAPES: Final = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_STRAY: Final = re.compile("[\ud800-\udfff]")
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*\Z")
_SHOWN: Final = {
    "WORD": "a name",
    "TEXT": "a text in quotes",
    "INTEGER": "a number",
    "FLOAT": "a number",
    "DURATION": "a duration such as 30m",
    "COMPARATOR": "a comparison",
    "CONTAINS": "a comparison",
    "STARTS": "a comparison",
    "$END": "the end of the file",
}


class Parsed(NamedTuple):
    """The statements of a text as far as it parses, and the faults of the rest."""

    program: ast.Program
    source: Source
    comments: tuple[Piece, ...]
    faults: tuple[ProgramFault, ...]


def parse(text: str, *, name: str = "<text>") -> ast.Program:
    """Return the syntax tree of a program; ``name`` is the file's name in faults.

    Raises: MultipleErrors with a ProgramFault for everything that does not parse.
    """
    parsed = read(text, name=name)
    if parsed.faults:
        raise MultipleErrors(errors=list(parsed.faults))
    return parsed.program


def read(text: str, *, name: str = "<text>") -> Parsed:
    """Return the parsed program of a text, and all syntax faults.

    Raises: MultipleErrors for a text that cannot be a program at all.
    """
    check_text(text, name)
    source = Source(text, name)
    scanned = scan(source)
    if scanned.too_long:
        raise MultipleErrors(errors=list(scanned.faults))
    if not scanned.faults:
        try:
            tree = _whole(source)
        except UnexpectedInput:
            pass
        else:
            return Parsed(tree, source, tuple(scanned.comments), tuple(islice(_spelling(source, tree), FAULTS_MAX)))
    return _pieces(source, scanned)


def read_condition(source: Source) -> ast.Value:
    """Return the condition that a text is, such as that of a filter. Raises: MultipleErrors."""
    check_text(source.text, source.name)
    faults = list(scan(source).faults)
    if not faults:
        try:
            condition: ast.Value = lark_parser("condition").parse(source.text, start="condition")  # type: ignore[assignment]
        except UnexpectedInput as error:
            faults.append(_fault(source, error, SourceSpan(0, len(source.text))))
        else:
            faults.extend(islice(_spelling(source, condition), FAULTS_MAX))
            if not faults:
                return condition
    raise MultipleErrors(errors=list(faults))


def check_text(text: object, name: str) -> None:
    """Refuse an object that is no text, too long, or with invalid characters. Raises: MultipleErrors, DTypeError."""
    check_type(name, str, "name")
    if not isinstance(text, str):
        reason = f"expected text, got {type(text).__name__}"
    elif len(text) > MAX_CHARS:
        reason = f"it is longer than {MAX_CHARS} characters"
    elif "\0" in text:
        raise MultipleErrors(errors=[_at(text, text.index("\0"), name, "a program cannot contain a zero character")])
    elif (stray := _STRAY.search(text)) is not None:
        raise MultipleErrors(errors=[_at(text, stray.start(), name, "this is not valid Unicode text")])
    else:
        return
    raise MultipleErrors(
        errors=[InvalidConfigValue(f"{name} is not a program: {reason}", field="text", value=name, reason=reason)]
    )


def _at(text: str, offset: int, name: str, reason: str) -> ProgramFault:
    return Source(text, name).fault(SourceSpan(offset, offset + 1), reason)


# --- the grammar ---------------------------------------------------------------------------------


class Builder(Transformer[Token, Any]):
    """Makes the tree while the parser reduces: no recursion, so nesting costs no stack."""

    def program(self, parts: list[Any]) -> ast.Program:
        return ast.Program(parts[2], tuple(parts[4:-1]), _from(parts))

    def include(self, parts: list[Any]) -> ast.Include:
        return ast.Include(parts[1], _from(parts))

    def definition(self, parts: list[Any]) -> ast.Definition:
        return ast.Definition(str(parts[0]), _word(parts[1]), tuple(parts[3:-1]), span=_from(parts))

    def injection(self, parts: list[Any]) -> ast.Definition:
        name, into = _word(parts[1]), _word(parts[3])
        return ast.Definition("inject", name, tuple(parts[5:-1]), into=into, span=_from(parts))

    def config(self, parts: list[Any]) -> ast.Definition:
        return ast.Definition("config", None, tuple(parts[2:-1]), span=_from(parts))

    def setting(self, parts: list[Any]) -> ast.Setting:
        return ast.Setting(parts[0], parts[2], _from(parts))

    def section(self, parts: list[Any]) -> ast.Section:
        return ast.Section(parts[0], tuple(parts[2:-1]), _from(parts))

    def rule(self, parts: list[Any]) -> ast.Rule:
        return ast.Rule(parts[1], parts[3], _from(parts))

    def word(self, parts: list[Token]) -> ast.Word:
        return _word(parts[0])

    def reference(self, parts: list[Token]) -> ast.Word:
        return ast.Word("".join(parts), _from(parts))

    key = reference

    def call(self, parts: list[Any]) -> ast.Call:
        return ast.Call(_word(parts[0]), tuple(parts[2:-1:2]), _from(parts))

    def followed(self, parts: list[Any]) -> ast.Followed:
        return ast.Followed(_word(parts[0]), parts[2], _from(parts))

    def items(self, parts: list[Any]) -> ast.Items:
        return ast.Items(tuple(parts[1:-1:2]), _from(parts))

    def table(self, parts: list[Any]) -> ast.NamedValues:
        return ast.NamedValues(tuple(parts[1:-1:2]), _from(parts))

    def pair(self, parts: list[Any]) -> ast.Pair:
        return ast.Pair(parts[0], parts[2], _from(parts))

    def compared(self, parts: list[Any]) -> ast.Compared:
        return ast.Compared(parts[0], str(parts[1]), parts[2], _from(parts))

    def both(self, parts: list[Any]) -> ast.Joined:
        return _joined("and", parts)

    def either(self, parts: list[Any]) -> ast.Joined:
        return _joined("or", parts)

    def inner(self, parts: list[Any]) -> Any:
        return parts[1]

    def text(self, parts: list[Token]) -> ast.Text:
        return ast.Text(_ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[0]), parts[0][1:-1]), _from(parts))

    path = text

    def number(self, parts: list[Token]) -> ast.Number:
        return ast.Number(str(parts[0]), _from(parts))

    def duration(self, parts: list[Token]) -> ast.Duration:
        text = str(parts[0])
        # A number with thousands of digits is too long to convert, and too long a time anyway.
        count = text.rstrip("smhdw")
        ms = int(count) * _UNITS_MS[text[len(count) :]] if len(count) < 20 else _INT64_MAX + 1
        return ast.Duration(text, ms, _from(parts))


def _joined(operator: str, parts: list[Any]) -> ast.Joined:
    conditions: list[ast.Value] = []
    for part in parts[::2]:
        # "a and (b and c)" means the same as without the brackets, and becomes one list of conditions.
        if isinstance(part, ast.Joined) and part.operator == operator:
            conditions.extend(part.conditions)
        else:
            conditions.append(part)
    return ast.Joined(operator, tuple(conditions), _from(parts))


def _word(token: Token) -> ast.Word:
    return ast.Word(str(token), _from([token]))


def _from(parts: Sequence[Any]) -> SourceSpan:
    first, last = parts[0], parts[-1]
    start = first.start_pos if isinstance(first, Token) else first.span.start
    end = last.end_pos if isinstance(last, Token) else last.span.end
    return SourceSpan(start or 0, end or 0)


@functools.cache
def lark_parser(name: str) -> Lark:
    return tables.parser(name, Builder())


def _whole(source: Source) -> ast.Program:
    tree: ast.Program = lark_parser("program").parse(source.text, start="program")  # type: ignore[assignment]
    return tree


# --- broken texts -------------------------------------------------------------------------------


def _pieces(source: Source, scanned: Scanned) -> Parsed:
    """Parse the valid parts of a broken text, piece by piece."""
    faults = list(scanned.faults)
    tokens = scanned.tokens
    version, found = _head(source, tokens)
    faults.extend(found)
    starts = list(heads(tokens))
    items: list[ast.Item] = []
    for number, at in enumerate(starts):
        if len(faults) >= FAULTS_MAX:
            break
        stop = starts[number + 1] if number + 1 < len(starts) else len(tokens)
        item, found = _item(source, _closed(tokens[at:stop]))
        faults.extend(found)
        if item is not None:
            items.append(item)
    if not faults:
        # Every piece parses: the fault lies between them.
        faults.append(_first_fault(source))
    program = ast.Program(version, tuple(items), SourceSpan(0, len(source.text)))
    faults.extend(islice(_spelling(source, program), FAULTS_MAX))
    return Parsed(program, source, tuple(scanned.comments), tuple(_in_order(faults)[:FAULTS_MAX]))


def _in_order(faults: Iterable[ProgramFault]) -> list[ProgramFault]:
    seen: dict[tuple[int, int], ProgramFault] = {}
    for fault in faults:
        seen.setdefault((fault.line, fault.column), fault)
    return [seen[key] for key in sorted(seen)]


def _head(source: Source, tokens: Sequence[Piece]) -> tuple[ast.Text, list[ProgramFault]]:
    shape = [token.text if token.kind != "text" else '""' for token in tokens[:4]]
    if shape == ["caliber", ":", '""', "{"]:
        return ast.Text(tokens[2].text[1:-1], tokens[2].span), []
    span = tokens[0].span if tokens else SourceSpan(0, 0)
    return ast.Text("", span), [source.fault(span, 'a program begins with caliber: "0.1.0" {')]


def _closed(tokens: Sequence[Piece]) -> Sequence[Piece]:
    """Return the tokens of one definition: up to the brace that closes it, if there is one."""
    depth = tokens[0].depth
    for at, token in enumerate(tokens):
        if token.text == "}" and token.kind == "closing" and token.depth <= depth:
            return tokens[: at + 1] if token.depth == depth else tokens[:at]
    return tokens


def _item(source: Source, tokens: Sequence[Piece]) -> tuple[ast.Item | None, list[ProgramFault]]:
    kind = tokens[0].text
    if kind not in HEADS:
        head = tokens[0].span
        return None, [source.fault(head, _unexpected(source, head, kind), got=kind, expected=HEADS)]
    span = SourceSpan(tokens[0].span.start, tokens[-1].span.end)
    start = {"include": "include", "inject": "injection", "config": "config"}.get(kind, "definition")
    try:
        return lark_parser("pieces").parse(TextSlice(source.text, *span), start=start), []  # type: ignore[return-value]
    except UnexpectedInput as error:
        whole = _fault(source, error, span)
    if start == "include" or len(tokens) < 3:
        return None, [whole]
    good: list[ast.Entry] = []
    faults: list[ProgramFault] = []
    pieces = entries(tokens)
    for piece in pieces:
        try:
            good.append(_entry(source, piece))
        except UnexpectedInput as error:
            faults.append(_fault(source, error, piece))
            if len(faults) >= FAULTS_MAX:
                break
    # Where no entry is at fault, or the fault comes before all of them, it is the head or lies between entries.
    first = pieces[0].start if pieces else span.end
    before = (whole.line, whole.column) < (source.place(first).line, source.place(first).column)
    if not faults or before:
        faults.append(whole)
    return _headed(tokens, tuple(good), span), faults


def _headed(tokens: Sequence[Piece], entries_: tuple[ast.Entry, ...], span: SourceSpan) -> ast.Definition | None:
    words = [ast.Word(token.text, token.span) for token in tokens[:4]]
    kind = words[0].text
    if kind == "config":
        return ast.Definition(kind, None, entries_, span=span, whole=False)
    if kind == "inject":
        into = words[3] if len(words) > 3 else None
        return ast.Definition(kind, words[1], entries_, into=into, span=span, whole=False)
    if kind not in KINDS or tokens[1].kind != "word":
        return None
    return ast.Definition(kind, words[1], entries_, span=span, whole=False)


def _entry(source: Source, span: SourceSpan) -> ast.Entry:
    error: UnexpectedInput | None = None
    for start in ("rule",) if source.text[span.start : span.end].split(None, 1)[0] == "on" else ("setting", "section"):
        try:
            return lark_parser("pieces").parse(TextSlice(source.text, *span), start=start)  # type: ignore[return-value]
        except UnexpectedInput as found:
            if error is None or _offset(found) > _offset(error):
                error = found
    assert error is not None
    raise error


def _offset(error: UnexpectedInput) -> int:
    return cast("int | None", error.pos_in_stream) or 0  # lark declares it as None, and sets it


def _first_fault(source: Source) -> ProgramFault:
    try:
        _whole(source)
    except UnexpectedInput as error:
        return _fault(source, error, SourceSpan(0, len(source.text)))
    return source.fault(SourceSpan(0, 0), "a definition stands outside the braces of the program")


def _fault(source: Source, error: UnexpectedInput, piece: SourceSpan) -> ProgramFault:
    expected: Iterable[str] = ()
    end = False
    if isinstance(error, UnexpectedToken):
        expected = error.accepts
        token: Token = error.token
        end = token.type == "$END"
        # At the end of a piece, lark repeats the last token: the fault is behind it.
        span = SourceSpan(piece.end, piece.end + 1) if end else SourceSpan(token.start_pos or 0, token.end_pos or 0)
    else:
        span = SourceSpan(piece.end, piece.end + 1)
        end = True
    got = "" if end else source.shown(span)
    # "$END" and lark's other word for it mean that the file could end here, which does not help a reader.
    names = sorted(
        {_shown(name) for name in expected if name.isidentifier()}, key=lambda name: (not name[0].isalpha(), name)
    )
    reason = _unexpected(source, span, got)
    if got and not names and piece == SourceSpan(0, len(source.text)):
        reason += ": the program ends before it, and what it says stands within its braces"
    return source.fault(span, reason, got=got, expected=names)


def _unexpected(source: Source, span: SourceSpan, got: str) -> str:
    if not got:
        return "something is missing here" if span.start < len(source.text) else "the text ends too early"
    first = got[0]
    if first.isdigit() or (first in "+-" and got[1:2].isdigit()):
        return f"{got} is no number and no duration (units are {', '.join(_UNITS_MS)} and touch the number)"
    if first == "'":
        return "texts stand in double quotes"
    return "this text is not expected here" if first == '"' else f"{got} is not expected here"


def _shown(terminal: str) -> str:
    if terminal in _SHOWN:
        return _SHOWN[terminal]
    pattern = next(item.pattern for item in lark_parser("pieces").terminals if item.name == terminal)
    return str(pattern.value)


# --- valid syntax without a meaning ---------------------------------------------------------------


def _spelling(source: Source, program: Any) -> Iterable[ProgramFault]:
    """Yield names, escapes and durations that have the right shape and no meaning."""
    for node in walk(program):
        match node:
            case ast.Word(text=text, span=span) if not all(map(_NAME.match, text.split("."))):
                yield source.fault(
                    span, f"{source.shown(span)} is not a name: names are lower-case letters, digits and _"
                )
            case ast.Duration(ms=ms, span=span) if ms > _INT64_MAX:
                yield source.fault(span, "this duration is longer than 2^63 - 1 ms")
            case ast.Text(span=span) if span.end:
                yield from _escapes(source, span)
            case _:
                pass


def _escapes(source: Source, span: SourceSpan) -> Iterable[ProgramFault]:
    for match in _ESCAPE.finditer(source.text, span.start + 1, span.end - 1):
        if match[1] not in _ESCAPES:
            escapes = tuple("\\" + name for name in _ESCAPES)
            yield source.fault(SourceSpan(*match.span()), f"\\{match[1]} is not an escape", expected=escapes)


def walk(node: Any) -> Iterable[Any]:
    """Yield a node and all below it, in the order of the text, without recursion."""
    waiting = [node]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple) and not isinstance(item, SourceSpan):
            waiting.extend(reversed(item))
        elif hasattr(type(item), "__dataclass_fields__"):
            yield item
            parts = [getattr(item, name) for name in type(item).__dataclass_fields__]
            waiting.extend(part for part in reversed(parts) if not isinstance(part, (str, int, SourceSpan, type(None))))
