"""Decoding of HTML, JSON and URL escapes in a text, repeated until nothing changes, to find hidden names.

A name may stand in a web page, in the arguments of a tool inside JSON, or in an address that was encoded twice. Each
round undoes one layer of every notation; every intermediate text is searched, since the depth of encoding is unknown.
HTML tags count as white space. Not undone: base64, compression, encryption, quoted-printable, a name that is split by a
tag inside a word, and more layers than ``ROUNDS``.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import Final

from caliber.model.lazy_dataclass import dataclass

ROUNDS: Final = 6
"""Layers that are undone; nothing that people or programs write has more."""

_HEX: Final = "[0-9a-fA-F]"
_MORE: Final = f"%[89abAB]{_HEX}"
_OCTETS: Final = "|".join(
    (
        f"%[0-7]{_HEX}",
        f"%[cdCD]{_HEX}{_MORE}",
        f"%[eE]{_HEX}(?:{_MORE}){{2}}",
        f"%[fF][0-7](?:{_MORE}){{3}}",
        f"%{_HEX}{{2}}",
    )
)
"""A character of UTF-8 in a URL, or a byte of another encoding."""
_TAG: Final = r"(?P<tag></?[A-Za-z][^<>]{0,300}>)"
_ESCAPE: Final = re.compile(
    "|".join(
        (
            r"(?P<entity>&(?:\#[0-9]{1,7}|\#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});?)",
            _TAG,
            rf"(?P<pair>\\u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}})",
            rf"\\(?:u(?P<four>{_HEX}{{4}})|U(?P<eight>{_HEX}{{8}})|x(?P<two>{_HEX}{{2}}))",
            r"\\(?P<letter>[nrtbfv0\"'/\\])",
            rf"(?P<percent>{_OCTETS})",
        )
    )
)
_INSIDE: Final = re.compile(_ESCAPE.pattern.replace(_TAG + "|", "", 1))
"""Everything that may stand inside a tag."""
_SIGNS: Final = ("&", "<", "\\", "%")
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}


@dataclass(frozen=True, slots=True)
class Reading:
    """One decoded form of a text. ``starts`` and ``ends`` map its characters to positions in the original text."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]


def readings(text: str) -> Iterator[Reading]:
    """Yield a text as it is, then with one layer of escapes after the other removed, until none is left."""
    reading = Reading(text, range(len(text)), range(1, len(text) + 1))
    yield reading
    for _ in range(ROUNDS):
        if not any(sign in reading.text for sign in _SIGNS):
            return
        undone = _undone(reading)
        if undone.text == reading.text:
            return
        reading = undone
        yield reading


def _undone(reading: Reading) -> Reading:
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    last = 0
    for found in _ESCAPE.finditer(reading.text):
        at, after = found.span()
        decoded = _unescaped(found)
        pieces += [reading.text[last:at], decoded]
        starts += [*reading.starts[last:at], *[reading.starts[at]] * len(decoded)]
        ends += [*reading.ends[last:at], *[reading.ends[after - 1]] * len(decoded)]
        last = after
    pieces.append(reading.text[last:])
    return Reading("".join(pieces), [*starts, *reading.starts[last:]], [*ends, *reading.ends[last:]])


def _unescaped(found: re.Match[str]) -> str:
    """Return the character of an escape; the escape itself where it has none."""
    kind = found.lastgroup
    raw = found[0]
    if kind == "entity":
        return html.unescape(raw)
    if kind == "tag":  # it may be none, or hold a name in an address: its content is decoded first
        inner = _INSIDE.sub(_unescaped, raw[1:-1])
        return " " if inner == raw[1:-1] else f"<{inner}>"
    if kind == "letter":
        return _LETTERS.get(found["letter"], found["letter"])
    if kind == "pair":
        units = bytes.fromhex(raw[2:6] + raw[8:12])
        return units.decode("utf-16-be", "replace")
    if kind == "percent":
        octets = bytes.fromhex(raw.replace("%", ""))
        try:
            return octets.decode("utf-8")
        except UnicodeDecodeError:
            return octets.decode("latin-1")
    code = int(found["four"] or found["eight"] or found["two"], 16)
    lone = 0xD800 <= code < 0xE000
    return raw if lone or code > 0x10FFFF else chr(code)
