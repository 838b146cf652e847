"""Formatter of ``.caliber`` files (``caliber fmt``): prints a syntax tree in one layout, with its comments.

Formatting is idempotent and does not change the meaning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from caliber.dsl import ast
from caliber.dsl.parser import Parsed, read
from caliber.dsl.scan import Token
from caliber.dsl.source import Source, SourceSpan
from caliber.model.arguments import check_type
from caliber.model.errors import MultipleErrors

LINE_CHARS: Final = 100
_INDENT: Final = "  "
_ESCAPED: Final = str.maketrans({'"': '\\"', "\\": "\\\\", "\t": "\\t"})


def format_text(text: str, *, name: str = "<text>") -> str:
    """Return a program in the one layout, its comments kept.

    Raises: MultipleErrors with a ProgramFault for everything that does not parse.
    """
    parsed = read(text, name=name)
    if parsed.faults:
        raise MultipleErrors(errors=list(parsed.faults))
    return _Printer(parsed).run()


def render(program: ast.Program) -> str:
    """Return a program that was not read from a text, in the same layout. Raises: DTypeError."""
    check_type(program, ast.Program, "program")
    return _Printer(Parsed(program, Source("", "<program>"), (), ())).run()


def value_text(value: ast.Value) -> str:
    """Return a value on one line."""
    match value:
        case ast.Word(text=text) | ast.Number(text=text) | ast.Duration(text=text):
            return text
        case ast.Text(value=content):
            return quoted(content)
        case ast.Call(name=name, arguments=arguments):
            return f"{name.text}({', '.join(map(value_text, arguments))})"
        case ast.Followed(name=name, value=inner):
            return f"{name.text}: {value_text(inner)}"
        case ast.Items(items=items):
            return f"[{', '.join(map(value_text, items))}]"
        case ast.NamedValues(pairs=pairs):
            inside = ", ".join(f"{value_text(pair.key)}: {value_text(pair.value)}" for pair in pairs)
            return f"{{ {inside} }}" if inside else "{}"
        case ast.Compared(left=left, operator=operator, right=right):
            return f"{_operand(left)} {operator} {_operand(right)}"
        case ast.Joined(operator=operator, conditions=conditions):
            return f" {operator} ".join(_condition(item, operator) for item in conditions)


def quoted(text: str) -> str:
    """Return a text as a program holds it: line breaks as they are, quotes and backslashes escaped."""
    return f'"{text.translate(_ESCAPED)}"'


def _operand(value: ast.Value) -> str:
    text = value_text(value)
    return f"({text})" if isinstance(value, (ast.Compared, ast.Joined)) else text


def _condition(value: ast.Value, within: str) -> str:
    # "and" binds tighter than "or", so only an "or" inside an "and" needs brackets.
    text = value_text(value)
    return f"({text})" if isinstance(value, ast.Joined) and within == "and" else text


class _Printer:
    """Writes lines and, before each thing, the comments that stood before it."""

    def __init__(self, parsed: Parsed) -> None:
        self._program = parsed.program
        self._source = parsed.source
        self._comments: Sequence[Token] = parsed.comments
        self._next = 0
        self._lines: list[list[str]] = []  # each in pieces: its text, and its comments
        self._last = SourceSpan(0, 0)  # the node of the last line

    def run(self) -> str:
        program = self._program
        self._comments_before(program.span.start, 0)
        self._line(0, f"caliber: {value_text(program.version)} {{", program.version.span)
        for number, item in enumerate(program.items):
            self._comments_before(item.span.start, 1, apart=number > 0)
            self._item(item)
        self._comments_before(program.span.end, 1)
        self._line(0, "}", SourceSpan(program.span.end - 1, program.span.end))
        self._comments_before(len(self._source.text) + 1, 0)
        return "\n".join(map("".join, self._lines)) + "\n"

    # --- lines and comments ----------------------------------------------------------------------

    def _line(self, depth: int, text: str, stands_for: SourceSpan) -> None:
        self._lines.append([_INDENT * depth + text if text else ""])
        self._last = stands_for

    def _comments_before(self, offset: int, depth: int, *, apart: bool = False) -> None:
        """Write the comments up to an offset; ``apart`` puts an empty line before the next item."""
        while self._next < len(self._comments) and self._comments[self._next].span.start < offset:
            comment = self._comments[self._next]
            line = self._source.line_of(comment.span.start)
            beside = bool(self._lines) and self._last.end > 0 and self._source.line_of(self._last.end - 1) == line
            if beside:
                self._lines[-1].append(f" {comment.text.rstrip()}")
            else:
                self._blank(comment.span.start, apart=apart)
                self._line(depth, comment.text.rstrip(), comment.span)
                apart = False
            self._last = comment.span
            self._next += 1
        if offset <= len(self._source.text) or not self._source.text:
            self._blank(offset, apart=apart)

    def _blank(self, offset: int, *, apart: bool) -> None:
        """Keep one empty line where there were some, but none behind an opening or before a closing brace."""
        if not self._lines or self._lines[-1] == [""] or (self._lines[-1][-1].endswith(("{", "[")) and not apart):
            return
        between = self._source.text[self._last.end : offset]
        if apart or (between.count("\n") > 1 and self._source.text[offset : offset + 1] not in ("}", "")):
            self._lines.append([""])

    # --- definitions -----------------------------------------------------------------------------

    def _item(self, item: ast.Item) -> None:
        if isinstance(item, ast.Include):
            self._line(1, f"include {value_text(item.path)}", item.span)
            return
        name = f" {item.name.text}" if item.name is not None else ""
        into = f" into {item.into.text}" if item.into is not None else ""
        self._block(1, f"{item.kind}{name}{into}", item.entries, item.span)

    def _block(self, depth: int, head: str, entries: Sequence[ast.Entry], span: SourceSpan) -> None:
        opened = self._source.text.find("{", span.start)
        self._line(depth, f"{head} {{", SourceSpan(span.start, opened + 1 if opened >= 0 else span.start))
        for entry in entries:
            self._comments_before(entry.span.start, depth + 1)
            self._entry(depth + 1, entry)
        self._comments_before(span.end - 1, depth + 1)
        self._line(depth, "}", SourceSpan(span.end - 1, span.end))

    def _entry(self, depth: int, entry: ast.Entry) -> None:
        match entry:
            case ast.Section(key=key, entries=entries, span=span):
                self._block(depth, key.text, entries, span)
            case ast.Rule(trigger=trigger, actions=actions, span=span):
                self._value(depth, f"on {value_text(trigger)}: ", actions, "", span)
            case ast.Setting(key=key, value=value, span=span):
                self._value(depth, f"{key.text}: ", value, "", span)

    def _value(self, depth: int, before: str, value: ast.Value, after: str, span: SourceSpan) -> None:
        text = value_text(value)
        parts: Sequence[ast.Value | ast.Pair] = ()
        if isinstance(value, ast.Items):
            parts = value.items
        elif isinstance(value, ast.NamedValues):
            parts = value.pairs
        short = len(_INDENT) * depth + len(before + text + after) <= LINE_CHARS
        several = isinstance(value, ast.NamedValues) and len(parts) > 1
        tables = any(isinstance(part, ast.NamedValues) and len(part.pairs) > 1 for part in parts)
        if parts and (not short or several or tables or self._commented(value.span)):
            self._broken(depth, before, value, after, parts, span)
        elif isinstance(value, ast.Joined) and not short:
            self._conditions(depth, before, value, after, span)
        else:
            self._line(depth, before + text + after, span)

    def _broken(
        self,
        depth: int,
        before: str,
        value: ast.Value,
        after: str,
        parts: Sequence[ast.Value | ast.Pair],
        span: SourceSpan,
    ) -> None:
        opening, closing = ("[", "]") if isinstance(value, ast.Items) else ("{", "}")
        self._line(depth, before + opening, SourceSpan(value.span.start, value.span.start + 1))
        for number, part in enumerate(parts):
            self._comments_before(part.span.start, depth + 1)
            comma = "," if number + 1 < len(parts) else ""
            if isinstance(part, ast.Pair):
                self._value(depth + 1, f"{value_text(part.key)}: ", part.value, comma, part.span)
            else:
                self._value(depth + 1, "", part, comma, part.span)
        self._comments_before(value.span.end - 1, depth + 1)
        self._line(depth, closing + after, SourceSpan(value.span.end - 1, span.end))

    def _conditions(self, depth: int, before: str, value: ast.Joined, after: str, span: SourceSpan) -> None:
        texts = [_condition(item, value.operator) for item in value.conditions]
        self._line(depth, before + texts[0], span)
        for number, text in enumerate(texts[1:], 2):
            self._line(depth + 1, f"{value.operator} {text}{after if number == len(texts) else ''}", span)

    def _commented(self, span: SourceSpan) -> bool:
        after = bisect_right(self._comments, span.start, lo=self._next, key=lambda item: item.span.start)
        return after < len(self._comments) and self._comments[after].span.start < span.end
