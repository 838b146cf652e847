"""What a record says, as one text: what is indexed by word, whole and never a preview. Source: K-171, P-039."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caliber.schema.relations import BY_NAME
from caliber.storage.compile.codec import Row, codec_of

SEARCHED = ("note", "artifact", "turn", "scope")
"""The kinds of records that have a text to search."""

HEADED_BY = {"note": "entity", "turn": "name"}
"""What stands before the text: what a note is about, who said a turn."""

_HEAD_PLACES = {kind: codec_of(BY_NAME[kind]).index(column) for kind, column in HEADED_BY.items()}


def headed(head: str | None, text: str) -> str:
    """Return a text with what it is about, or who says it, before it."""
    return f"{head}: {text}" if head else text


def document_of(kind: str, row: Row, text: Any) -> bytes:
    """Return what a row says; ``text`` is its text, which mirrors keep apart from it."""
    place = _HEAD_PLACES.get(kind)
    return document(None if place is None else row[place], text)


def document(head: str | None, text: Any) -> bytes:
    """Return what a record of this head and text says."""
    if text is None:
        return b""
    raw: bytes = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return raw if not head else b"%b: %b" % (head.encode("utf-8", "surrogatepass"), raw)


def documents_joined(parts: Sequence[str | None]) -> bytes:
    """Return what a record says in several fields, each on a line."""
    return b"\n".join(document(None, part) for part in parts if part)
