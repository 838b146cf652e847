"""Classes that declare a relation's erasure: columns that identify a subject, and redaction of each column.

``caliber.erasure`` executes them and knows no relation by name.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from caliber.model.lazy_dataclass import dataclass


class Redaction(StrEnum):
    """The way in which a column is redacted.

    WORDS lose its names: texts, lists, JSON with its keys, bytes in the encoding that a name stands in. ENTRIES are
    WORDS of JSON whose lists also lose the objects that hold a name, or the id of a record that went. PRINCIPALS name
    users and agents: a text, or an entry of a list, is replaced if the whole of it is the subject. AUTHOR is one of
    these with ``@`` and its role behind it. IDS become empty, or leave their list. NEW_KEY is replaced: no two keys may
    become equal. EMPTIED is NULL as soon as another column changes. ROW takes the whole record with it. DIGEST is that
    of some content, which is known again by it. QUOTES are WORDS that a program reported: they go whole where they
    repeat words of a record that went. NOTHING is there to lose: numbers, vectors, words of the program.
    """

    WORDS = "words"
    ENTRIES = "entries"
    PRINCIPALS = "principals"
    AUTHOR = "author"
    IDS = "ids"
    NEW_KEY = "new key"
    EMPTIED = "emptied"
    ROW = "row"
    DIGEST = "digest"
    QUOTES = "quotes"
    NOTHING = "nothing"


OF_PRINCIPALS = frozenset({Redaction.PRINCIPALS, Redaction.AUTHOR})


class Layout(StrEnum):
    """The packing of contents; ``caliber.erasure.proving`` unpacks each.

    JSON is as it is or compressed with zlib. VERSION is the JSON of columns that a record had, CHECKPOINT the JSON of
    a state with a window's sections, WINDOW a window's record. RAW is a program's own form of a record, of no use in
    part: it is emptied where it names the subject, or another column changes.
    """

    JSON = "json"
    RAW = "raw"
    VERSION = "version"
    CHECKPOINT = "checkpoint"
    WINDOW = "window"


CHECKPOINT_HEAD = b"CKP\x01"
"""The beginning of a checkpoint's state; its SHA-256 and the JSON follow, compressed with zlib or not."""

COPIES = frozenset({Layout.CHECKPOINT, Layout.WINDOW})
"""Layouts that quote other records: they are redacted after those."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A column of packed content: unpacked, redacted and packed again; or its ``row`` goes when it names the subject.

    ``digest`` is a column with the digest of what was packed: it is zeroed when content went that cannot be replayed.
    """

    layout: Layout
    row: bool = False
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class MadeFrom:
    """A record was made from those of ``relation`` whose ``target`` columns equal its ``columns``.

    It goes when one of them went; with ``empties`` only that column does.
    """

    columns: tuple[str, ...]
    relation: str
    target: tuple[str, ...]
    empties: str | None = None


@dataclass(frozen=True, slots=True)
class Stub:
    """Records whose ``column`` holds ``value`` stay, with the values ``left``: that something happened is kept."""

    column: str
    value: str
    left: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Erase:
    """The columns that find a subject. A record goes with the subject that owns its key, one of its required ids, or
    one of its optional ids ``owned``.

    Also those whose column of ``names`` is a name of the subject and nothing else; whose ``sources`` all went; which
    were ``made_from`` a record that went; which ``hangs_on`` an id that is the subject's or went, or of a record that
    it ``quotes`` and that was redacted; whose column ``digest`` is that of content that went. Names of more than one
    ``kind`` are ambiguous. A name that may be somebody else's finds a record only if its kind is one of ``people``, and
    if no other person alone may read it.

    ``version_of`` names the columns of relation and ordinal: what is kept of a record goes when that is touched.
    ``cache`` is a statement that empties the relation whenever anything is erased. ``refused`` says why what names the
    subject here can be neither erased nor redacted.
    """

    names: tuple[str, ...] = ()
    owned: tuple[str, ...] = ()
    kind: str | None = None
    people: tuple[str, ...] = ()
    sources: str | None = None
    made_from: tuple[MadeFrom, ...] = ()
    hangs_on: tuple[str, ...] = ()
    quotes: bool = False
    digest: str | None = None
    version_of: tuple[str, str] | None = None
    stub: Stub | None = None
    cache: str | None = None
    refused: str | None = None
