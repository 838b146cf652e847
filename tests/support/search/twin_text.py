"""Analysis of texts and questions in plain Python: the text side of the twin of search.

Written from docs/search.md and csrc/include/caliber.h; nothing of ``caliber.search`` is used. Given from outside:
the table of letters, the stemmer, a language's stop words and words of time, and the reader of days.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field

from support.kernels.twins.keyword import kind_of

from caliber.text.dates import DateReader, Moment, all_days_said

WORD_BYTES = 256
PHRASE_PARTS = 32
STEMMED_CHARS = 64
NAME_PARTS = 6
_JOINERS = "'.-/\\:@+#&’"
_QUOTES = {'"': '"', "“": "”", "«": "»", "„": "“”"}


# --- words of a text ------------------------------------------------------------------------------


def words_of(text: bytes) -> list[str]:
    """Return the words of UTF-8 text, bytes that are none apart."""
    chars = text.decode("utf-8", "surrogateescape")
    kinds = [0 if "\ud800" <= char <= "\udfff" else kind_of(ord(char)) for char in chars]
    out: list[str] = []
    at = 0
    while at < len(chars):
        if kinds[at] == 1:
            end = _word_end(chars, kinds, at)
            out.append(chars[at:end])
        elif kinds[at] == 2:  # a script without spaces: pairs
            end = at
            while end < len(chars) and kinds[end] == 2:
                end += 1
            run = chars[at:end]
            out.extend([run] if len(run) == 1 else [run[i : i + 2] for i in range(len(run) - 1)])
        else:
            end = at + 1
        at = end
    return out


def _word_end(chars: str, kinds: list[int], start: int) -> int:
    """Return where a word ends: letters, what joins letters, and the signs of ``C++`` and ``C#``."""

    def char(at: int) -> str:
        return chars[at] if 0 <= at < len(chars) and not "\ud800" <= chars[at] <= "\udfff" else ""

    def is_word(at: int) -> bool:
        return at < len(chars) and kinds[at] == 1

    def size(begin: int, end: int) -> int:
        return len(chars[begin:end].encode("utf-8"))

    at = start
    while at < len(chars):
        step = 0
        if is_word(at):
            step = 1
        elif char(at) == ",":
            step = int(char(at - 1) in "0123456789" and char(at + 1) != "" and char(at + 1) in "0123456789")
        elif char(at) == ":" and char(at + 1) == ":":
            step = 2 if is_word(at + 2) else 0
        elif char(at) and char(at) in _JOINERS:
            step = 1 if is_word(at + 1) else 0
        if not step or size(start, at + step) > WORD_BYTES:
            break
        at += step
    for count in (2, 1):
        sign = char(at)
        if sign and sign in "+#" and chars[at : at + count] == sign * count:
            closed = at + count
            outside = char(at - 1) != sign and char(closed) != sign
            if outside and size(start, closed) <= WORD_BYTES and (closed == len(chars) or kinds[closed] == 0):
                return closed
            return at
    return at


# --- what a word stands for -----------------------------------------------------------------------


@dataclass(frozen=True)
class Meaning:
    """A word's parts, the terms it is found by, and whether it names a time."""

    parts: tuple[str, ...]
    terms: tuple[str, ...]
    dated: bool


@dataclass
class Language:
    """The words and rules of a language, as given."""

    stem_word: Callable[[str], str]
    stop_words: frozenset[str] = frozenset()
    fillers: frozenset[str] = frozenset()
    time_words: frozenset[str] = frozenset()
    reads_dates: bool = False
    _known: dict[str, Meaning] = field(default_factory=dict)

    def meaning(self, word: str) -> Meaning:
        known = self._known.get(word)
        if known is None:
            known = self._known[word] = self._meaning(word)
        return known

    def _meaning(self, word: str) -> Meaning:
        text = unicodedata.normalize("NFKC", word)
        parts = tuple(piece.casefold().replace("i̇", "i") for piece in pieces(text))
        whole = text.casefold().replace("i̇", "i")
        dated = any(self._dated(part) for part in parts)
        if len(parts) == 1 and (whole == parts[0] or "'" in text or "’" in text):
            return Meaning(parts, (self.stem(parts[0]),), dated)
        terms = [self.stem(part) for part in parts if len(part) > 1 or not part.isascii() or part.isdigit()]
        terms.append(self.stem(whole) if whole.isalnum() else whole)
        return Meaning(parts, tuple(terms), dated)

    def _dated(self, part: str) -> bool:
        if part in self.time_words:
            return True
        return self.reads_dates and re.fullmatch(r"(19|20)\d\d", part) is not None

    def stem(self, folded: str) -> str:
        stem = self.stem_word(folded) if len(folded) <= STEMMED_CHARS else folded
        return "".join(_without_accent(char) for char in stem)


def _without_accent(char: str) -> str:
    base = unicodedata.normalize("NFKD", char)[0]
    if base.isascii():
        return base
    if unicodedata.category(char) == "Nd":
        return str(unicodedata.digit(char))
    return {"ı": "i", "ł": "l", "ø": "o", "đ": "d", "ħ": "h", "ŧ": "t"}.get(char, char)


def pieces(text: str) -> list[str]:
    """Return the parts of a word: between signs, and where its case or kind changes."""
    out: list[str] = []
    for bare in _between_signs(text):
        piece = _without_article(bare)
        if not piece:
            continue
        if "'" in piece or "’" in piece:
            out.append(piece.replace("’", "'"))
        elif not piece.isascii() or piece.islower() or piece.isupper() or piece[1:].islower():
            out.append(piece)
        else:
            out.extend(_humps(piece))
    emoji = [char for char in text if 0x2600 <= ord(char) < 0x27C0 or 0x1F000 <= ord(char) < 0x1FB00]
    return out + emoji or [text]


def _between_signs(text: str) -> list[str]:
    spaced = "".join(
        char if char in "'’" or (char != "_" and re.match(r"\w", char)) else " " for char in text
    )  # fmt: skip
    return spaced.split(" ")


def _without_article(piece: str) -> str:
    for size in (1, 2, 3):
        article, sign, rest = piece[:size], piece[size : size + 1], piece[size + 1 :]
        if "'" not in article and "’" not in article and sign in ("'", "’"):
            if re.match(r"\w{3,}", rest) and "_" not in rest[:3]:
                piece = rest
            break
    return piece.rstrip("'’")


def _humps(piece: str) -> list[str]:
    """Return the parts of ``HTTPServer2``: HTTP, Server, 2."""
    out: list[str] = []
    for char in piece:
        kind = "u" if char.isupper() else "l" if char.islower() else "d"
        if out:
            before = out[-1]
            last = "u" if before[-1].isupper() else "l" if before[-1].islower() else "d"
            if kind == last:
                out[-1] += char
                continue
            if (last, kind) == ("u", "l"):
                out[-1] = before[:-1]
                out.append(before[-1] + char)
                continue
        out.append(char)
    return [hump for hump in out if hump]


# --- what a question asks for ---------------------------------------------------------------------


@dataclass
class Question:
    """A question, understood."""

    terms: list[str]
    stop_words: list[str]
    around: tuple[str, ...]
    phrases: list[tuple[str, ...]]
    prefixes: list[str]
    parts: list[str]
    days: tuple[datetime.date, datetime.date] | None
    of_days: bool
    asks_time: bool
    cut: bool
    fillers: set[str] = field(default_factory=set)
    idle: bool = False
    saying: tuple[str, ...] = ()
    day_terms: list[str] = field(default_factory=list)


def beginning(text: str, size: int) -> str:
    """Return as much of a text as is read: what fits of it, without a last word of which only a part fits."""
    if len(text) <= size:
        return text
    text = text.lstrip()
    if len(text) > size and not (text[size].isspace() or text[size - 1].isspace()):
        words = text[:size].split()
        if len(words) > 1:
            return text[: size - len(words[-1])].rstrip()
    return text[:size]


def understand(
    text: str,
    language: Language,
    today: Callable[[], tuple[datetime.date, datetime.tzinfo, datetime.date]],
    *,
    max_words: int,
) -> Question:
    """Return the parsed question."""
    whole, text = text, beginning(text, 64 * max_words)
    named = DateReader(words=language.reads_dates).find(text, *today())
    rest = text if named is None else text[: named.start] + " " + text[named.end :]
    words = words_of(rest.encode("utf-8", "replace"))
    named_words = capitalised(rest, words[:max_words])
    silent: dict[str, bool] = {}
    telling: set[str] = set()
    parts: list[str] = []
    phrases: list[tuple[str, ...]] = []
    for word in words[:max_words]:
        meaning = language.meaning(word)
        parts += [_owner(part) for part in meaning.parts]
        for term in meaning.terms:
            is_silent = len(meaning.parts) == 1 and meaning.parts[0] in language.stop_words and word not in named_words
            silent[term] = is_silent and silent.get(term, True)
            told = word in named_words and meaning.parts[0] not in language.fillers
            if told or len(meaning.parts) > 1 or meaning.parts[0] not in language.stop_words | language.fillers:
                telling.add(term)
        if len(meaning.parts) > 1:
            phrases.append(meaning.parts[:PHRASE_PARTS])
    quoted, begun = quotes(rest), prefixes(rest)
    phrases += [inside[:PHRASE_PARTS] for said in quoted[:max_words] if (inside := parts_of(said, language))]
    said = [term for term, nothing in silent.items() if not nothing]
    everything = not said and named is None
    spoken = unique(part for part in parts if part not in language.stop_words)
    return Question(
        terms=list(silent) if everything else said,
        stop_words=[] if everything else [term for term, nothing in silent.items() if nothing],
        around=tuple(spoken or parts),
        phrases=unique(phrases),
        prefixes=unique(begun[:max_words]),
        parts=parts,
        days=None if named is None else (named.first, named.last),
        of_days=named is not None and asks_of_days(text, named.start, named.end, named.last >= today()[0]),
        asks_time=language.reads_dates and asks_time(text),
        cut=max(len(words), len(quoted), len(begun)) > max_words or text != whole,
        fillers=set(silent) - telling,
        idle=bool(silent) and not telling and not begun and named is None,
        saying=tuple(parts[:PHRASE_PARTS]) if everything and not begun else (),
        day_terms=[] if named is None or not named.relative else terms_of_days(text[named.start : named.end], language),
    )


def terms_of_days(text: str, language: Language) -> list[str]:
    """Return the terms of the words of days that are no stop words."""
    meanings = [language.meaning(word) for word in words_of(text.encode())]
    spoken = [meaning for meaning in meanings if any(part not in language.stop_words for part in meaning.parts)]
    return [term for meaning in spoken for term in meaning.terms]


def days_meant(text: bytes, day: datetime.date) -> list[tuple[datetime.date, datetime.date]]:
    """Return the days that the words of a text mean, said on a day (UTC): each the last of its name, and the next."""
    moment = Moment((day - datetime.date(1970, 1, 1)).days * 86_400_000_000)
    spoken = " ".join(words_of(text))
    found = [all_days_said(spoken, moment, ahead=ahead) for ahead in (False, True)]
    return [(days.first, days.last) for each in found for days in each]


def capitalised(text: str, words: list[str]) -> set[str]:
    """Return the words written as names: a capital inside a sentence, capitals alone, or the only word."""
    if len(words) >= 3 and all(not word[0].islower() for word in words):
        return set()
    found = {word for word in words if len(word) >= 2 and word == word.upper() != word.lower()}
    for run in re.finditer(r"\w+", text):
        before = text[max(0, run.start() - 2) : run.start()]
        inside = len(before) == 2 and before[1] == " " and re.match(r"[\w,;'’]", before[0])
        if inside and len(run[0]) >= 2 and run[0][0].isupper():
            found.add(run[0])
    return found | {word for word in words[:1] if len(words) == 1 and word[0].isupper()}


def unique(items):  # type: ignore[no-untyped-def]
    """Return items once each, in the order they first came."""
    return list(dict.fromkeys(items))


def _owner(part: str) -> str:
    for ending in ("'s", "’s", "'", "’"):
        if part.endswith(ending) and len(part) > len(ending) and re.match(r"\w", part[-len(ending) - 1]):
            return part[: -len(ending)]
    return part


def parts_of(text: str, language: Language) -> tuple[str, ...]:
    return tuple(part for word in words_of(text.encode("utf-8", "replace")) for part in language.meaning(word).parts)


def quotes(text: str) -> list[str]:
    """Return the texts in quotes; an opening sign without its closing one quotes nothing."""
    out: list[str] = []
    at = 0
    while at < len(text):
        closing = _QUOTES.get(text[at])
        if closing is not None:
            ends = [end for end in (text.find(sign, at + 1) for sign in closing) if end >= 0]
            if ends and min(ends) > at + 1:
                out.append(text[at + 1 : min(ends)])
                at = min(ends)
        at += 1
    return out


def prefixes(text: str) -> list[str]:
    """Return the text before each ``*`` of the form ``back*``."""
    out: list[str] = []
    for run in re.finditer(r"[\w.*-]+", text):
        chars = run.group()
        at = 0
        while at < len(chars):
            if re.match(r"\w", chars[at]) and (at == 0 or not re.match(r"[\w*]", chars[at - 1])):
                end = at + 1
                while end < len(chars) and chars[end] != "*":
                    end += 1
                if end < len(chars) and end - at > 1:
                    out.append(chars[at:end].casefold())
                    at = end
            at += 1
    return out


def asks_of_days(text: str, start: int, end: int, lasts: bool) -> bool:
    """Return whether the sentence with the days asks what was on them; ``lasts``: they are not over."""
    before, after = re.split(r"[.?!\n]", text[:start])[-1], re.match(r"[^.?!\n]*[.?!\n]?", text[end:])
    sentence = before + text[start:end] + after[0]

    def says(pattern: str) -> bool:
        return re.search(rf"\b(?:{pattern})\b", sentence, re.IGNORECASE) is not None

    if lasts and not says(r"did|was|were|\w{3,}ed"):
        return False
    asks = sentence.endswith("?") or says("what|which|who|whom|whose|when|where|how|why")
    return asks or not says("i|we|you|he|she|they|it|my|our|your|his|her|their")


def asks_time(text: str) -> bool:
    asked = r"\b(when|how long|(what|which) (date|day|week|month|year|time))\b"
    return re.search(asked, text, re.IGNORECASE) is not None
