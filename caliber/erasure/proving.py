"""Proof of an erasure: scans every record, table and file for the subject, and reports what remains.

Records are read first and decoded, packed content included; then the values of every table and the files byte by byte,
by code that shares nothing with the erasure itself. A name that is part of a longer word is no match: such words are
collected while records are read, and excused only there when bytes are read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.erasure.redaction import digests_of, principals_in, said
from caliber.erasure.subject import JOINED_AFTER, JOINED_BEFORE, Subject, folded
from caliber.model.erasure import NOT_OURS, Searched
from caliber.resident.documents import shown
from caliber.resident.memory import ResidentMemory
from caliber.schema.erase import OF_PRINCIPALS, Packed, Redaction
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.paging import pages
from caliber.storage.protocol import Place, Store

Heads = NDArray[np.bool_]

_PAGE: Final = 500
_DIGEST_BYTES: Final = 32
_PIECE_BYTES: Final = 1 << 20
_WORD_BEFORE: Final = re.compile(rf".?[^\W_]\Z|{JOINED_BEFORE}\Z", re.DOTALL)
_WORD_AFTER: Final = re.compile(rf"[^\W_]|{JOINED_AFTER}")
"""The next character of a longer word or address that holds a name."""
_BETWEEN: Final = b"\0\xff\xfe\0"


class Proof:
    """One reading of a store. ``hashes`` are digests of contents that went."""

    def __init__(self, subject: Subject, hashes: Iterable[bytes]) -> None:
        self._subject = subject
        self.hashes = {digest for digest in hashes if len(digest) == _DIGEST_BYTES}
        for text in subject.texts:
            variants = {text, text.lower(), text.upper(), text.casefold(), folded(text)}
            self.hashes |= {hashlib.sha256(variant.encode()).digest() for variant in variants}
        forms = {form for encoded in subject.byte_forms.values() for form in encoded}
        self._forms = tuple(sorted(forms, key=len, reverse=True))
        self._heads = heads_of(self._forms)
        self._longer: set[bytes] = set()
        self._others: set[bytes] = set()
        """Names and labels of others that are like the subject's, in the case that tells them apart."""
        self._held: set[str] = set()
        """Values with such names."""
        self.inside_words = 0
        self.places: list[Searched] = []
        self.doubtful: Counter[str] = Counter()
        """By relation: the records that have a name which may be somebody else's."""

    def read(self, store: Store, memory: ResidentMemory) -> None:
        """Read records, memory, tables and files."""
        for relation in store.catalog.relations:
            self._note(f"relation {relation.name}", "column", self._values(store, relation), self._in_value)
        counted = self.inside_words
        self._note("resident memory", "memory", memory.held(), self._in_value)
        self.inside_words = counted  # the same words again
        digests = heads_of(self.hashes)
        for place in store.eraser.places():
            found, size = self.in_parts(place, digests)
            self.places.append(Searched(place.name, place.kind, size, found))

    @property
    def findings(self) -> int:
        """The number of findings in places that are this store's alone."""
        return sum(place.findings for place in self.places if place.kind not in NOT_OURS)

    # --- records ---------------------------------------------------------------------------------

    def _note(self, name: str, kind: str, values: Iterator[Any], look: Any) -> None:
        found = size = 0
        for value in values:
            size += len(value)
            found += look(value)
        self.places.append(Searched(name, kind, size, found))

    def _values(self, store: Store, relation: Relation) -> Iterator[str | bytes]:
        """Yield the texts of a relation's records, and record the digests that legitimately remain."""
        codec = codec_of(relation)
        packed = {
            codec.index(each.name): each.redaction for each in relation.columns if isinstance(each.redaction, Packed)
        }
        # Vectors, digests and ids are no texts: they are read with the tables, byte by byte.
        words = (Redaction.WORDS, Redaction.ENTRIES)
        texts = {codec.index(each.name) for each in relation.columns if each.redaction in words}
        principals = {codec.index(each.name): each for each in relation.columns if each.redaction in OF_PRINCIPALS}
        doubtful = self._subject.doubtful
        with store.read() as session:
            for row in chain.from_iterable(pages(session, store.plans[relation.name], _PAGE)):
                self.hashes -= digests_of(relation, codec.decode(row))
                worded: list[str | bytes] = []
                for place, value in enumerate(row):
                    how = packed.get(place)
                    if how is not None and value is not None:
                        worded += said(how.layout, value)
                    elif isinstance(value, str) and place in principals:
                        yield from self._principals(principals[place], value)
                    elif isinstance(value, str | bytes) and place in texts:
                        worded.append(value)
                    elif isinstance(value, str):
                        yield value
                yield from worded
                if doubtful is not None and any(doubtful.mentioned(shown(each)) for each in worded):
                    self.doubtful[relation.plural] += 1

    def _principals(self, column: Column, value: str) -> Iterator[str]:
        """Yield the names and labels of a value that are the subject's; the others are longer words, or like it."""
        for name in principals_in(column, json.loads(value) if column.type is ColumnType.TEXT_ARRAY else value):
            if self._subject.is_principal(name):
                yield name
                self._held.discard(value)
                return
            if (plain := folded(name)) and any(spelling in plain for spelling in self._subject.spellings):
                self._others |= {name.encode("utf-8", "surrogatepass"), json.dumps(name)[1:-1].encode()}
                self._held.add(value)
                self.inside_words += 1

    def _in_value(self, value: str | bytes) -> int:
        subject = self._subject
        if isinstance(value, bytes):
            try:
                value = value.decode("utf-8")
            except UnicodeDecodeError:
                return subject.mentioned_in(value)  # type: ignore[arg-type]
        found = value not in self._held and subject.mentioned(value)
        if not found:
            self._take_longer(value)
        return found

    def _take_longer(self, text: str) -> None:
        """Take note of longer words that hold a name."""
        plain = text.lower() if text.isascii() else folded(text)
        for spelling in self._subject.spellings:
            at = plain.find(spelling)
            while at >= 0:
                start, end = at, at + len(spelling)
                while _WORD_BEFORE.match(plain[max(0, start - 2) : start]):
                    start -= 1
                while _WORD_AFTER.match(plain, end):
                    end += 1
                self._longer.add(plain[start:end].encode("utf-8", "surrogatepass").lower())
                self.inside_words += 1
                at = plain.find(spelling, end)

    # --- bytes -----------------------------------------------------------------------------------

    def in_parts(self, place: Place, digests: Heads | None) -> tuple[int, int]:
        longest = max((len(form) for form in (*self._forms, *self._longer, *self._others)), default=0)
        reach = 2 * max(longest, _DIGEST_BYTES)
        found = size = 0
        tail = b""
        for part in _together(place.parts) if place.apart else place.parts:
            size += len(part)
            piece = part if place.apart else tail + part
            found += self._in_piece(piece, len(tail), digests)
            tail = b"" if place.apart else piece[-reach:]
        return found, size

    def _in_piece(self, piece: bytes, overlap: int, digests: Heads | None) -> int:
        """Count the matches that end after the first ``overlap`` bytes, which were read before."""
        plain = piece.lower()
        ends: set[int] = set()
        for at in _starts(plain, self._heads):
            for form in self._forms:
                end = at + len(form)
                if end > overlap and plain.startswith(form, at) and not self._is_longer(piece, plain, at, form):
                    ends.add(end)
        return len(ends) + self._digests_in(piece, overlap, digests)

    def _is_longer(self, piece: bytes, plain: bytes, at: int, form: bytes) -> bool:
        for words, held in ((self._longer, plain), (self._others, piece)):
            for word in words:
                inside = word.lower().find(form)
                if inside >= 0 and held[max(0, at - inside) : at - inside + len(word)] == word:
                    return True
        return False

    def _digests_in(self, piece: bytes, overlap: int, digests: Heads | None) -> int:
        if digests is None or len(piece) < _DIGEST_BYTES:
            return 0
        return sum(
            at + _DIGEST_BYTES > overlap and piece[at : at + _DIGEST_BYTES] in self.hashes
            for at in _starts(piece, digests)
        )


def heads_of(needles: Iterable[bytes]) -> Heads | None:
    """Return the first two bytes of each needle, or None when there are no needles."""
    heads = {needle[0] << 8 | needle[1] for needle in needles if len(needle) > 1}
    if not heads:
        return None
    table = np.zeros(1 << 16, np.bool_)
    table[list(heads)] = True
    return table


def _together(values: Iterable[bytes]) -> Iterator[bytes]:
    """Yield many small values as fewer large pieces, separated by bytes that no name contains."""
    waiting: list[bytes] = []
    size = 0
    for value in values:
        waiting.append(value)
        size += len(value)
        if size >= _PIECE_BYTES:
            yield _BETWEEN.join(waiting)
            waiting, size = [], 0
    yield _BETWEEN.join(waiting)


def _starts(piece: bytes, heads: Heads | None) -> list[int]:
    """Return the places where a needle may begin, by its first bytes: files are long, and needles many."""
    if heads is None or len(piece) < 2:
        return []
    raw = np.frombuffer(piece, np.uint8).astype(np.uint16)
    return np.flatnonzero(heads[raw[:-1] << np.uint16(8) | raw[1:]]).tolist()
