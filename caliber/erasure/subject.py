"""Subject of an erasure: its names and ids, and the pattern that finds them in texts and bytes.

Texts are compared as people read them: regardless of case, Unicode form, white space between words and invisible
characters inside; also under escapes of JSON, HTML and URLs (``notations``). A name counts only as a whole word:
forgetting Ann leaves Annual alone. Scripts that put no space between words have no such boundaries.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
import urllib.parse
import uuid
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Final

from caliber import model
from caliber.erasure.notations import Reading, readings
from caliber.model import arguments
from caliber.model.errors import AmbiguousSubject, DTypeError, RequiredFieldMissing
from caliber.model.references import EntityRef

MARK: Final = "[forgotten]"
"""The mark where something was taken out."""

_LEAST_LETTERS: Final = 3
_LEAST_DIGITS: Final = 6
_TEXTS_MAX: Final = 200
_ALIKE: Final = str.maketrans(dict.fromkeys("‘’ʼ‛′", "'") | dict.fromkeys("‐‑‒–—−", "-"))
_MARKS: Final = "\u0300-\u036f"
_MARKS_MOST: Final = 30
"""Marks that one character has at most: ordering takes time by their square (Unicode's Stream-Safe Text Format)."""
_UNSPACED: Final = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x30FF),
    (0x3400, 0x9FFF),
    (0xAC00, 0xD7AF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
"""Scripts that put no space between words: Thai, Burmese, Khmer, Japanese, Chinese, Korean particles."""
_INVISIBLE: Final = frozenset(
    chr(number)
    for first, last in (
        (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
        (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
        (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
    )
    for number in range(first, last + 1)
)  # fmt: skip
"""Code points that Unicode lists as Default_Ignorable_Code_Point. Control characters are none: they part words."""
_WORD: Final = r"[^\W_" + "".join(f"{chr(low)}-{chr(high)}" for low, high in _UNSPACED) + "]"
JOINED_BEFORE: Final = r"[^\W_][@.+-]"
_FILES: Final = (
    "avi|csv|docx?|eml|gif|heic|html?|ics|jpe?g|json|m4a|mp[34]|msg|od[pst]|pdf|png|pptx?|rtf|svg|tiff?|txt|vcf|wav|webp|"
    "xlsx?|xml"
)
"""Endings of names of files, none of which ends an address: a file may have the name of its person."""
JOINED_AFTER: Final = rf"(?!\.(?:{_FILES})(?![^\W_]))[@.+-][^\W_]"
"""The ends of a word to which a sign joins another one, as in names and addresses."""
_PLAIN: Final = re.compile(r"[^\W\d_]+(['-][^\W\d_]+)*\d{0,3}|\d[\d.-]*")
"""A first name or another word, also of two parts, or with a number of up to three digits; and a number alone."""
_ENCODINGS: Final = ("utf-8", "utf-16-le", "utf-16-be", "latin-1")
_OWN_WORDS: Final = frozenset(
    member.value
    for kind in (getattr(model, name) for name in model.__all__)
    if isinstance(kind, type) and issubclass(kind, StrEnum)
    for member in kind
)
"""Words of the model itself, which occur in every store."""


def folded(text: str) -> str:
    """Return a text as it is compared."""
    return "".join(piece for piece, _, _ in _pieces(text))


def _pieces(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the normalized form of each character, with its combining marks, and its position."""
    at, size = 0, len(text)
    while at < size:
        end = at + 1
        last = min(size, end + _MARKS_MOST)
        while end < last and (unicodedata.combining(text[end]) or 0x1160 <= ord(text[end]) <= 0x11FF):
            end += 1
        unit = text[at:end]
        if not _INVISIBLE.isdisjoint(unit):
            unit = "".join(character for character in unit if character not in _INVISIBLE)
        if not unit:
            pass
        elif unit.isascii():
            yield unit.lower(), at, end
        elif unicodedata.category(unit[0]) != "Cf":
            plain = unicodedata.normalize("NFKC", unit).casefold().translate(_ALIKE)
            yield unicodedata.normalize("NFKC", plain), at, end
        at = end


def folded_words(text: str) -> str:
    """Return a text folded, with single spaces between its words."""
    return " ".join(folded(text).split())


def _unspaced(character: str) -> bool:
    return any(low <= ord(character) <= high for low, high in _UNSPACED)


def _pattern(text: str, *, whole: bool) -> str:
    """Return the pattern that finds a folded text as whole words, across any white space.

    ``whole``: not in a longer name or address either, as ``ana`` in ``ana@example.com``, ``ana.b`` and ``lou-ana``.
    """
    body = r"\s+".join(re.escape(word) for word in text.split())
    before = rf"(?<!{_WORD})" if text[0].isalnum() and not _unspaced(text[0]) else ""
    after = rf"(?!{_WORD}|[{_MARKS}])" if text[-1].isalnum() and not _unspaced(text[-1]) else ""
    if whole:
        before = rf"(?<!{JOINED_BEFORE}){before}"
        # A name of several words is no beginning of an address.
        after = rf"{after}(?!{JOINED_AFTER.replace('@', '') if ' ' in text else JOINED_AFTER})"
    return before + body + after


def _spellings(text: str) -> set[str]:
    """Return a text as other notations spell it, without the text itself."""
    escaped = json.dumps(text)[1:-1]
    out = {text, escaped, json.dumps(escaped)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], html.escape(text)}
    out.add("+".join(text.split()))
    for form in ("NFC", "NFD"):
        out |= {urllib.parse.quote(unicodedata.normalize(form, text), safe=""),
                urllib.parse.quote_plus(unicodedata.normalize(form, text)),
                urllib.parse.quote(unicodedata.normalize(form, text), safe="@/:")}  # fmt: skip
        out.add(json.dumps(unicodedata.normalize(form, text))[1:-1])
    return out


class Subject:
    """The subject to forget. ``ids`` are searched in columns and texts, ``texts`` in all content.

    ``own`` are the user's own names and labels, which other users and agents may have in another case. ``words`` are
    those that may be somebody else's: plain words, or too short. Content that has them is left as it is.

    Raises: RequiredFieldMissing for an empty subject; AmbiguousSubject for texts that are too general; DTypeError.
    """

    def __init__(
        self,
        ids: Sequence[uuid.UUID] = (),
        texts: Sequence[str] = (),
        words: Sequence[str] = (),
        *,
        own: Iterable[str] = (),
        check: bool = True,
    ) -> None:
        self.ids = frozenset(item.bytes for item in ids)
        self.texts = tuple(dict.fromkeys(_checked(text) if check else text for text in texts))
        self._own = frozenset(unicodedata.normalize("NFC", name) for name in own) | {f"user:{item}" for item in ids}
        sure = {folded(text) for text in self.texts}
        words = [word for word in words if folded(word).strip() and folded(word) not in sure]
        self.doubtful = Subject((), words, check=False) if words else None
        if not self.ids and not self.texts:
            raise RequiredFieldMissing(field="entity or texts")
        forms = frozenset(form for item in ids for form in (str(item), item.hex))
        own = set(map(folded_words, self._own))
        self._given = frozenset(plain for plain in map(folded_words, self.texts) if plain not in own) | forms
        self.names = frozenset(map(folded_words, self.texts)) | forms
        found = {folded_words(spelling) for text in self.texts for spelling in _spellings(text)} | forms
        self.spellings = tuple(sorted(found, key=lambda text: (-len(text), text)))
        self._pattern = re.compile("|".join(_pattern(text, whole=text not in forms) for text in self.spellings))
        self._first_words = tuple(dict.fromkeys(text.split()[0] for text in self.spellings))
        self._none_is_ascii = not any(text.isascii() for text in self.spellings)

    @classmethod
    def of(
        cls,
        entity: EntityRef | None,
        texts: Sequence[str],
        merged: Sequence[uuid.UUID] = (),
        names: Iterable[str] = (),
    ) -> Subject:
        """Return the subject that a caller names; ``merged`` are ids that an entity had before, ``names`` its own."""
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise DTypeError(field="texts", expected="a sequence of str", got=type(texts).__name__)
        unmistakable = {name: _is_unmistakable(name) for name in sorted(names)}
        texts = (*texts, *(name for name, is_sure in unmistakable.items() if is_sure))
        words = [name for name, is_sure in unmistakable.items() if not is_sure]
        return cls(merged if entity is None else (entity.id, *merged), texts, words, own=unmistakable)

    # --- texts -----------------------------------------------------------------------------------

    def mentioned(self, text: str) -> bool:
        """Return whether a text names the subject, in any of its ``readings``."""
        return any(self._found(reading.text) for reading in readings(text))

    def _found(self, text: str) -> bool:
        if text.isascii():
            if self._none_is_ascii:
                return False
            plain = text.lower()
        else:
            plain = folded(text)
        # Most texts contain no name, and searching for a plain word is ten times as fast.
        return any(word in plain for word in self._first_words) and self._pattern.search(plain) is not None

    def named(self, text: str) -> bool:
        """Return whether a text is a name or the id of the subject, and nothing else."""
        return folded_words(text) in self.names

    def is_principal(self, name: str) -> bool:
        """Return whether a name or label is the subject's: a user's own one differs from others by case already."""
        if unicodedata.normalize("NFC", name) in self._own:
            return True
        return folded_words(name) in self._given or folded_words(name.partition(":")[2]) in self._given

    def without(self, text: str) -> str:
        """Return a text with ``MARK`` in the place of each name."""
        spans = sorted(span for reading in readings(text) if self._found(reading.text) for span in self._spans(reading))
        out: list[str] = []
        last = 0
        for start, end in spans:
            if end <= last:
                continue  # two readings have the same name, or the one has more of it
            if start >= last:
                out += [text[last:start], MARK]
            last = end
        return "".join([*out, text[last:]])

    def _spans(self, reading: Reading) -> Iterator[tuple[int, int]]:
        """Yield the positions, in the text itself, of names found in a decoded form."""
        starts: list[int] = []
        ends: list[int] = []
        plain: list[str] = []
        for piece, start, end in _pieces(reading.text):
            plain.append(piece)
            starts.extend([reading.starts[start]] * len(piece))
            ends.extend([reading.ends[end - 1]] * len(piece))
        for match in self._pattern.finditer("".join(plain)):
            yield starts[match.start()], ends[match.end() - 1]

    # --- bytes -----------------------------------------------------------------------------------

    @cached_property
    def byte_forms(self) -> dict[str, tuple[bytes, ...]]:
        """The subject as bytes by encoding, lower-case in ASCII: the compared bytes must be lowered too."""
        texts = {*self.texts, *self.spellings}
        for text in self.texts:
            texts |= {text.lower(), text.upper(), text.title(), text.casefold(), text.swapcase()}
        texts |= {unicodedata.normalize(form, text) for text in tuple(texts) for form in ("NFC", "NFD", "NFKC")}
        out = {}
        for encoding in _ENCODINGS:
            forms = {text.encode(encoding, "ignore").lower() for text in texts if _encodable(text, encoding)}
            out[encoding] = tuple(sorted(form for form in forms if form))
        out["utf-8"] = (*out["utf-8"], *(raw.lower() for raw in self.ids))
        return out

    @cached_property
    def _bytes_patterns(self) -> dict[str, re.Pattern[bytes]]:
        return {
            encoding: re.compile(b"|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)), re.I)
            for encoding, forms in self.byte_forms.items()
            if forms
        }

    def mentioned_in(self, raw: bytes) -> bool:
        """Return whether content that may be no text names the subject."""
        return self.without_in(raw) != raw

    def without_in(self, raw: bytes) -> bytes:
        """Return content with ``MARK`` in place of each name, in the encoding of the name."""
        patterns = self._bytes_patterns
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            pass
        else:
            raw = self.without(text).encode("utf-8")
            if "\0" not in text:
                return raw
            # Bytes of UTF-16 may look like this, but then they are between zeros.
            patterns = {encoding: pattern for encoding, pattern in patterns.items() if encoding.startswith("utf-16")}
        for encoding, pattern in patterns.items():
            raw = pattern.sub(MARK.encode(encoding), raw)
        return raw


def _is_unmistakable(name: str) -> bool:
    """Return whether a name names one user alone: no plain word, also with a short number behind it, and not short."""
    try:
        plain = folded(_checked(name))
    except AmbiguousSubject:
        return False
    unmarked = "".join(sign for sign in plain if not unicodedata.category(sign).startswith("M"))
    return _PLAIN.fullmatch(unmarked) is None


def _encodable(text: str, encoding: str) -> bool:
    if encoding == "latin-1" and text.isascii():
        return False  # it is that of UTF-8
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _checked(stated: object) -> str:
    """Return a text that is specific enough to search for."""
    text = arguments.as_text(stated, "texts", allow_empty=True)
    if len(text) > _TEXTS_MAX:
        raise AmbiguousSubject(reason=f"a text of more than {_TEXTS_MAX} characters is no name")
    # A combining mark at the beginning would belong to the character before the name.
    while text and (text[0].isspace() or unicodedata.combining(text[0])):
        text = text[1:]
    plain = folded_words(text)
    letters = [character for character in plain if character.isalnum()]
    least = 2 if any(_unspaced(character) for character in letters) else _LEAST_LETTERS
    if len(letters) < least:
        raise AmbiguousSubject(reason=f"a text of fewer than {least} letters occurs in too many words")
    if all(character.isdigit() for character in letters) and len(letters) < _LEAST_DIGITS:
        raise AmbiguousSubject(
            reason=f"a number of fewer than {_LEAST_DIGITS} digits matches too much; give more digits"
        )
    if plain in _OWN_WORDS or plain in folded(MARK):
        raise AmbiguousSubject(reason="a text is a reserved word of the store, in the records of everybody")
    return text.strip()
