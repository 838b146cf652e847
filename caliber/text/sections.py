"""Splitter of Markdown, reStructuredText and AsciiDoc documents into sections by heading."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from caliber.model.lazy_dataclass import dataclass

PART_CHARS: Final = 1_600
"""Longest text of one note: a few paragraphs, so that a window can hold several sources."""
_LEAST_LETTERS: Final = 6
"""A shorter section has no content: badges, rules, a lone link."""

_ATX: Final = re.compile(r" {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
_FENCE: Final = re.compile(r" {0,3}(```+|~~~+)")
_SETEXT: Final = re.compile(r" {0,3}(=+|-+)\s*$")
_RST_LINE: Final = re.compile(r"([=\-`:'\"~^_*+#<>.])\1{2,}\s*$")
_IMAGE: Final = re.compile(r"\[?!\[[^\]]{0,300}\]\([^)]{0,2000}\)(?:\]\([^)]{0,2000}\))?")
_MARKS: Final = re.compile(r"[`*_]+")
DOCUMENT_SUFFIXES: Final = frozenset((".md", ".markdown", ".rst", ".txt", ".adoc", ""))


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of a document. ``headings`` leads from the top to here; ``line`` counts from 1."""

    headings: tuple[str, ...]
    text: str
    line: int

    @property
    def title(self) -> str:
        """The headings as one line, without the document's own title when there are more below it."""
        below = self.headings[1:] if len(self.headings) > 1 else self.headings
        return " › ".join(below)


def split(path: str, text: str) -> list[Section]:
    """Return the sections of a document that have content, long ones in parts."""
    out: list[Section] = []
    for section in _found(path, text):
        body = _IMAGE.sub("", section.text).strip()
        if sum(char.isalnum() for char in body) >= _LEAST_LETTERS:
            out.extend(Section(section.headings, part, section.line) for part in parts(body))
    return out


def _found(path: str, text: str) -> Iterator[Section]:
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in (".md", ".markdown"):
        return _markdown(_without_comments(text))
    if suffix == ".rst":
        return _restructured(text)
    return _asciidoc(text) if suffix == ".adoc" else iter([Section((), text, 1)])


def _without_comments(text: str) -> str:
    """Return a text without its comments; one that does not end stays."""
    kept, at = [], 0
    while (start := text.find("<!--", at)) >= 0 and (end := text.find("-->", start + 4)) >= 0:
        kept.append(text[at:start])
        at = end + 3
    return "".join([*kept, text[at:]])


def title_of(path: str, text: str) -> str:
    """Return a document's title: its first heading, or its name."""
    titles = (section.headings[0] for section in _found(path, text) if section.headings)
    return next(titles, PurePosixPath(path).stem)


def parts(text: str, limit: int = PART_CHARS) -> list[str]:
    """Return a text in pieces of at most ``limit`` characters, cut between paragraphs where that is possible."""
    if len(text) <= limit:
        return [text]
    out: list[str] = []
    current = ""
    for paragraph in re.split(r"\n\s*\n", text):
        for piece in _pieces(paragraph.rstrip(), limit):
            if current and len(current) + len(piece) + 2 > limit:
                out.append(current)
                current = piece
            else:
                current = f"{current}\n\n{piece}" if current else piece
    if current.strip():
        out.append(current)
    return out


def _pieces(paragraph: str, limit: int) -> Iterator[str]:
    while len(paragraph) > limit:
        cut = max(paragraph.rfind("\n", 1, limit), paragraph.rfind(". ", 1, limit - 1) + 1)
        cut = cut if cut > limit // 4 else max(paragraph.rfind(" ", 1, limit), limit // 2)
        yield paragraph[:cut].rstrip()
        paragraph = paragraph[cut:].lstrip("\n ")
    if paragraph:
        yield paragraph


class _Builder:
    """Collects lines under the headings above them."""

    def __init__(self) -> None:
        self._stack: list[tuple[int, str]] = []
        self._lines: list[str] = []
        self._line = 1

    def line(self, text: str) -> None:
        self._lines.append(text)

    def drop_last(self) -> None:
        self._lines.pop()

    def heading(self, level: int, title: str, number: int) -> Iterator[Section]:
        yield from self.end()
        while self._stack and self._stack[-1][0] >= level:
            self._stack.pop()
        self._stack.append((level, " ".join(_MARKS.sub("", title).split())))
        self._line = number

    def end(self) -> Iterator[Section]:
        if self._lines:
            yield Section(tuple(title for _, title in self._stack if title), "\n".join(self._lines), self._line)
        self._lines = []


def _markdown(text: str) -> Iterator[Section]:
    builder = _Builder()
    fence = ""
    before = ""
    lines = text.splitlines()
    if lines and lines[0].strip() == "---" and "---" in (line.strip() for line in lines[1:60]):
        # Front matter of a site generator.
        lines = lines[next(at for at in range(1, len(lines)) if lines[at].strip() == "---") + 1 :]
    for number, line in enumerate(lines, 1):
        mark = _FENCE.match(line)
        if mark:
            if not fence:
                fence = mark[1]
            elif line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            builder.line(line)
            before = ""
            continue
        if not fence:
            heading = _ATX.match(line)
            if heading:
                yield from builder.heading(len(heading[1]), heading[2], number)
                before = ""
                continue
            if before.strip() and _SETEXT.match(line) and not before.lstrip().startswith(("-", "*", ">", "|")):
                builder.drop_last()
                yield from builder.heading(1 if line.strip()[0] == "=" else 2, before.strip(), number - 1)
                before = ""
                continue
        builder.line(line)
        before = "" if fence else line
    yield from builder.end()


def _restructured(text: str) -> Iterator[Section]:
    builder = _Builder()
    levels: list[str] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        under = lines[at + 1] if at + 1 < len(lines) else ""
        over = _RST_LINE.match(line) and at + 2 < len(lines) and lines[at + 2].strip() == line.strip() and under.strip()
        underlined = _RST_LINE.match(under) and len(under.strip()) >= len(line.strip()) and line[:1] not in (" ", "\t")
        if over or (line.strip() and not _RST_LINE.match(line) and underlined):
            title, mark = (under, "^" + line[0]) if over else (line, under[0])
            if mark not in levels:
                levels.append(mark)
            yield from builder.heading(levels.index(mark) + 1, title.strip(), at + 1)
            at += 3 if over else 2
            continue
        builder.line(line)
        at += 1
    yield from builder.end()


def _asciidoc(text: str) -> Iterator[Section]:
    builder = _Builder()
    for number, line in enumerate(text.splitlines(), 1):
        heading = re.match(r"(={1,6})\s+(.+)$", line)
        if heading:
            yield from builder.heading(len(heading[1]), heading[2], number)
        else:
            builder.line(line)
    yield from builder.end()
