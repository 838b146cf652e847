"""Searchable text of a record, heading before content: for keyword indexes, embeddings, duplicate checks.

A text is never truncated.

Source: K-171, P-039.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from caliber.schema.relation import Relation
from caliber.storage.compile.codec import Row, codec_of

INDENT: Final = "\n    "


def headed(head: str | None, text: str) -> str:
    """Return a text prefixed with its subject or speaker."""
    return f"{head}: {text}" if head else text


def document_of(relation: Relation, row: Row, text: Any) -> bytes:
    """Return a text of a row with its head; ``text`` is kept apart from the row by mirrors."""
    head = None if relation.text is None else relation.text.head
    return document(None if head is None else row[codec_of(relation).index(head)], text)


def said_by(relation: Relation, row: Row) -> bytes | None:
    """Return the searched text of a stored row; None for one without text."""
    assert relation.text is not None  # only searched relations have documents
    codec, text = codec_of(relation), relation.text
    if len(text.searched) > 1:
        return documents_joined([row[codec.index(name)] for name in text.searched])
    text_value = row[codec.index(text.searched[0])]
    return None if text_value is None and text.tokens is not None else document_of(relation, row, text_value)


def document(head: str | None, text: Any) -> bytes:
    """Return the text of a record for search: its head, then its text."""
    if text is None:
        return b""
    raw: bytes = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return raw if not head else b"%b: %b" % (head.encode("utf-8", "surrogatepass"), raw)


def documents_joined(parts: Sequence[str | None]) -> bytes:
    """Return the texts of several fields of a record, each on a line."""
    return b"\n".join(document(None, part) for part in parts if part)


def shown(content: bytes | str | None) -> str:
    """Return content as text."""
    if isinstance(content, str):
        return content
    return "" if content is None else content.decode("utf-8", "replace")


def flat(text: str) -> str:
    """Return a text as one line."""
    return text if text.isprintable() else " ".join(text.splitlines())


def indented(text: str) -> str:
    """Return a text of which every further line is indented: none can begin a record, a passage or a section."""
    if text.isprintable():
        return text
    first, *others = text.splitlines() or [""]
    return first + "".join([INDENT + line if line.strip() else "\n" for line in others])
