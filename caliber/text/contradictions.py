"""Contradiction between two statements by rule: the same subject, and another number, day, polarity or value.

Two clauses contradict each other if they share their words but for one place. A word too many, a condition, another
time or bound is a doubt, and in doubt there is none: a language model judges the rest (docs/pcp.md). English only.

Source: C-260, K-085.
"""

from __future__ import annotations

import functools
import re
from datetime import date
from typing import Final, NamedTuple

import Stemmer

from caliber.model.guard.validation import Verdict, VerdictKind
from caliber.text.dates import COUNTS, DAYS, MONTHS, Moment, all_days_said
from caliber.text.words import ENGLISH


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _rows(text: str) -> list[list[list[str]]]:
    return [[side.split() for side in row.split("|")] for row in text.replace("\n", " ").split(";")]


NEGATIONS: Final = _set("not no never nobody nothing none neither nor cannot without")
OPPOSITES: Final = _rows("""
enabled enable active on activated|disabled disable inactive off deactivated; allow allows allowed permit permits
permitted|forbid forbids forbidden prohibit prohibited ban banned; accepted approved accepts|rejected declined refused
rejects; open opens opened|closed closes shut; like likes love loves enjoys adores loved liked|dislike dislikes hate
hates detests loathes hated disliked; true correct right|false wrong incorrect; online up reachable available|offline
down unreachable unavailable; public|private; required mandatory compulsory|optional voluntary; include includes
included contains|exclude excludes excluded omits; pass passes passed succeed succeeds succeeded|fail fails failed;
increased rose grew|decreased fell dropped shrank; big large|small; long|short brief; fast quick faster|slow slower;
cheap|expensive; full|empty; easy simple|hard difficult; safe|unsafe dangerous; light bright|dark; high higher
highest|low lower lowest; formal|informal; married|single divorced; synchronous sync|asynchronous async; manual
manually|automatic automatically; internal|external; local locally|remote remotely; temporary|permanent; finished
complete completed done|unfinished incomplete pending; strong|weak; indoor indoors|outdoor outdoors; stable|unstable;
positive|negative; visible|hidden; mutable writable|immutable read-only
""")  # words of one meaning, and words of its opposite
_SAME: Final = _rows("""
home lives living live resides; lead leader leads led; licence license licensed; maintain maintainer maintains
maintained; weigh weighs weight; birthday born; cost costs price priced charges; start starts started begin begins
began; end ends ended expires finishes; favourite favorite; staff employees people; child children kids; write writes
wrote written; runs run ran; spouse wife husband
""")
_PLACES: Final = _set("""
germany france italy spain portugal poland austria switzerland belgium netherlands denmark sweden norway finland ireland
england scotland britain uk europe asia africa usa canada mexico brazil japan china india australia greece turkey
""")  # places that hold towns: one of these and a town do not exclude each other
_SINGLE: Final = _set("""
lives home employer job works role nationality citizenship surname birthplace hometown capital currency timezone
headquarters host owner maintainer default primary main status mode theme email address branch framework editor shell
browser os language spouse husband wife partner diet size height weight school university landlord dentist doctor
captain lead leader president founder author director venue location seat gate platform provider supplier vendor
backend engine database broker plan tier manufacturer brand model phone bank airline assignee favourite name boss
manager region version licence license colour password protocol format encoding
""")  # attributes that have one value at a time
_UNSURE: Final = _set("""
if whether would could might may can maybe perhaps possibly considering asked asks wonders plans plan planned suppose
hopes hope wishes wish thinks thinking thought believe believes believed doubts intends unless except some several many
most usually often sometimes rarely another also too used formerly previously once originally former will soon next
going
""")  # words by which a clause is not stated, or for some cases or another time
_BOUNDS: Final = _set("over under least most more less than up about around roughly nearly within each per")
_STATES: Final = _set("on off up down")  # opposites behind a word of being or becoming alone
_LIGHT: Final = (ENGLISH.stop_words | _set("get set sets always every currently really per please mr ms dr")) - _STATES
_PREPOSITIONS: Final = _set("in on at by for from with to of under as into")
_UNITS: Final = {
    name: (row[0], float(size))
    for (row,) in _rows("""
time ms=.001 s=1 sec=1 second=1 min=60 minute=60 h=3600 hour=3600 day=86400 week=604800 month=2629800 year=31557600;
length mm=.001 cm=.01 m=1 metre=1 meter=1 km=1000 kilometre=1000 mile=1609.3; mass g=1 gram=1 kg=1000 kilo=1000
kilogram=1000 tonne=1000000; bytes kb=1e3 mb=1e6 gb=1e9 tb=1e12; share %=1 percent=1; euro €=1 euro=1 eur=1;
dollar $=1 dollar=1 usd=1; pound £=1 pound=1 gbp=1
""")
    for name, _, size in (unit.partition("=") for unit in row[1:])
}
_TOKEN: Final = re.compile(
    r"(?P<clock>\d{1,2}:\d\d(?!\w)|\d{1,2} ?[ap]\.?m\b)|(?P<number>\d{1,15}(?:[.,]\d{1,9}){0,4})(?![\d:])"
    r"|(?P<word>[^\W\d_][\w-]{0,63}(?:['’]\w{1,9})?)|(?P<sign>[%€$£])|(?P<end>[.;:!?,()–—])",
    re.IGNORECASE,
)
_ASIDE: Final = re.compile(r"\([^()]{0,200}\)")
_LABEL: Final = re.compile(r"(?<=\w) ?[:=] (?=[^.!?:]{1,40}\Z)")
_DATED: Final = re.compile(rf"\d[-/.]\d|[12]\d\d\d|\b(?:{'|'.join(MONTHS)})\b", re.IGNORECASE)
_JOINS: Final = _set("and but because which who while although though whereas so where that")
_MOST_CHARS, _MOST_CLAUSES, _SHOWN = 2_000, 12, 80
_MOMENT: Final = Moment(1_750_000_000_000_000)  # days without a year are those before it, in both statements
_CLOSE: Final = 0.03  # the part by which a number may differ that was rounded


@functools.lru_cache(maxsize=8_192)
def _stem(word: str) -> str:
    return word if len(word) < 4 else str(Stemmer.Stemmer("english", 0).stemWord(word))


_TABLE: Final = {word: (_stem(row[0]), 1) for (row,) in _SAME for word in row} | {
    word: (_stem(same[0]), sign)
    for same, opposite in OPPOSITES
    for sign, words in ((1, same), (-1, opposite))
    for word in words
}
_SINGLE_KEYS: Final = frozenset(_TABLE.get(word, (_stem(word), 1))[0] for word in _SINGLE)
_BECOMING: Final = _set("is are was were went goes switched turned stays")
_TIMES: Final = _set("before after until since")
_FLAGS: Final = _set("is was were had than did") | _TIMES
_RATHER: Final = _set("prefer prefers preferred rather choose chooses")
_LESS: Final = frozenset(("to", "over", "than", "instead"))


class _Number(NamedTuple):
    """A number of units of a dimension, or of what the word after it or before it names."""

    value: float
    of: str
    bounds: frozenset[str]


class Clause(NamedTuple):
    """A part of a statement: its content words, each with its side of a pair of opposites; the word before each."""

    text: str
    words: dict[str, int]
    before: dict[str, str]
    negated: bool
    stated: bool
    numbers: tuple[_Number, ...]
    days: tuple[tuple[date, date], ...]
    weekdays: frozenset[str]
    clocks: tuple[str, ...]
    flags: frozenset[str]
    choice: tuple[frozenset[str], frozenset[str]] | None
    measures: tuple[object, ...]


class Reading(NamedTuple):
    """A statement as it is compared."""

    folded: str
    clauses: tuple[Clause, ...]


def contradicts(first: str, second: str, subject: str | None = None) -> Verdict | None:
    """Return how two statements contradict each other, or None. ``subject`` is what both are stored under."""
    return compare(read_statement(first), read_statement(second), keys_of(subject) if subject else None)


def keys_of(subject: str) -> tuple[str, ...]:
    """Return the keys of the words of a subject."""
    return tuple(key for clause in read_statement(subject).clauses for key in clause.words)


def read_statement(text: str) -> Reading:
    """Return a statement as it is compared."""
    text = _LABEL.sub(" is ", _ASIDE.sub(" ", text[:_MOST_CHARS].replace("’", "'")))
    plain, days = text, []
    for each in all_days_said(text, _MOMENT) if _DATED.search(text) else ():
        if not each.relative and text[each.start : each.end].casefold() not in DAYS:
            plain = plain[: each.start] + "\0" * (each.end - each.start) + plain[each.end :]
            days.append(each)
    clauses: list[Clause] = []
    tokens: list[re.Match[str]] = []
    begin, reported = 0, False
    for token in (*_TOKEN.finditer(plain), None):
        word = "" if token is None else token[0].casefold()
        if token is not None and token.lastgroup != "end" and word not in _JOINS:
            tokens.append(token)
            continue
        end = len(text) if token is None else token.end()
        inside = tuple([(each.first, each.last) for each in days if begin <= each.start < end])
        if tokens or inside:
            doubted = reported and bool(clauses) and (clauses[-1].negated or not clauses[-1].stated)
            said = text[begin:end].strip(" .,;:!?\n")[:_SHOWN]
            clauses.append(_clause(said, tokens, inside, stated=word != "?" and not doubted))
        tokens, begin, reported = [], end, word == "that"
    return Reading(" ".join(re.findall(r"\w+", text.casefold())), tuple(clauses[:_MOST_CLAUSES]))


def _clause(said: str, tokens: list[re.Match[str]], days: tuple[tuple[date, date], ...], *, stated: bool) -> Clause:
    words: dict[str, int] = {}
    before: dict[str, str] = {}
    numbers, clocks, flags, weekdays = [], [], set(), set()
    negated, lead, skip, cuts = False, "", -1, [0]
    for at, token in enumerate(tokens):
        kind, word = token.lastgroup, token[0].casefold()
        if kind == "clock":
            clocks.append(word)
        elif at <= skip:
            continue
        elif kind in ("number", "sign") or (word in COUNTS and word != "one"):
            number, skip = _number(tokens, at)
            if isinstance(number, str):
                words[number] = 1
            elif number is not None:
                numbers.append(number)
        else:
            word, _, ending = word.partition("'")
            following = tokens[at + 1][0].casefold() if at + 1 < len(tokens) else ""
            flags |= {word, word[:-1] if ending == "t" else word} & _FLAGS
            word = "not" if ending == "t" else word
            negated ^= word in NEGATIONS and following != "only"
            stated = stated and (word not in _UNSURE or following == "rather")
            if word in _RATHER or (len(cuts) == 2 and word in _LESS):
                cuts = [*cuts[:2], len(words)]
            state = word in _STATES and (at == 0 or tokens[at - 1][0].casefold() not in _BECOMING)
            key, sign = _TABLE.get(word) or (_stem(word), 1)
            if word in DAYS or (word in MONTHS and token[0][0].isupper()):
                weekdays.add(word)
            elif not state and not (word in NEGATIONS or (word in _LIGHT and word not in _TABLE)):
                words[key], before[key] = sign, lead
            lead = word if word in _PREPOSITIONS else "" if word not in _LIGHT else lead
    keys = list(words)
    cuts = [*cuts, len(keys)][:3]
    choice = None if len(cuts) < 3 else (frozenset(keys[cuts[1] : cuts[2]]), frozenset(keys[cuts[2] :]))
    measures = tuple(numbers), days, frozenset(weekdays), tuple(clocks)
    plain = tuple([(each.value, each.of) for each in numbers])
    return Clause(said, words, before, negated, stated, *measures, frozenset(flags), choice, (plain, *measures[1:]))


def _number(tokens: list[re.Match[str]], at: int) -> tuple[_Number | str | None, int]:
    """Return a number, or the word that it is a part of ("run 14 failed"), and the last token that was read."""
    sign = tokens[at][0] if tokens[at].lastgroup == "sign" else ""
    if sign and (at + 1 == len(tokens) or tokens[at + 1].lastgroup != "number"):
        return None, at
    at += bool(sign)
    said = tokens[at][0].casefold()
    bare = re.sub(r",(?=\d{3}\b)", "", said).replace(",", ".")
    parts = [bare] if bare.count(".") < 2 else bare.split(".")  # a version counts as one number
    value = sum([COUNTS.get(part, 0) or float(part) / 1000**place for place, part in enumerate(parts)])
    after = tokens[at + 1][0].casefold() if at + 1 < len(tokens) else ""
    prior = tokens[at - 1][0].casefold() if at else ""
    bounds = _BOUNDS.intersection([each[0].casefold() for each in tokens[max(0, at - 3) : at + 3]])
    unit = _UNITS.get(sign or after) or _UNITS.get(after.removesuffix("s"))
    if unit is not None:
        return _Number(value * unit[1], unit[0], bounds), at + (not sign)
    if after and prior and prior not in _LIGHT and tokens[at - 1].lastgroup == "word":
        return f"{_stem(prior)} {said}", at  # "run 14 took": a name
    return _Number(value, _stem(after if after and after not in _LIGHT else prior), bounds), at


def compare(first: Reading, second: Reading, subject: tuple[str, ...] | None = None) -> Verdict | None:
    """Return how two statements contradict each other, as they were read, or None. ``subject`` are its keys."""
    if first.folded == second.folded:
        return None
    about = frozenset(subject or ())
    for one in first.clauses:
        for other in second.clauses:
            if one.words.keys().isdisjoint(other.words):
                continue
            kind = _judged(one, other, about, stored=subject is not None)
            if kind is not None:
                return Verdict(kind, f"{one.text} / {other.text}")
    return None


def _judged(one: Clause, other: Clause, subject: frozenset[str], *, stored: bool) -> VerdictKind | None:
    if not (one.stated and other.stated):
        return None
    if one.choice and other.choice and (one.choice[1] or other.choice[1]):
        (more, less), (rather, than) = one.choice, other.choice
        crossed = ((more - less) & than or not than) and ((rather - than) & less or not less)
        return VerdictKind.PREFERENCE if crossed else None
    if (flags := one.flags ^ other.flags) & _TIMES or (flags - {"is"} and not (one.days and other.days)):
        return None
    left = [key for key in one.words if key not in subject]
    right = [key for key in other.words if key not in subject]
    shared = [key for key in left if key in other.words]
    only = [key for key in left if key not in other.words], [key for key in right if key not in one.words]
    turned = {key for key in shared if one.words[key] != other.words[key]}
    for mine, others in (only, only[::-1]):
        for key, whole in [
            (a, b) for a in mine for b in others if a.endswith(b[-3:]) and len(a) > len(b) > 3 and _negates(a, b)
        ]:
            mine.remove(key)
            others.remove(whole)
            shared += (whole, key)
            turned.add(whole)
    count = len({*shared} & {*right}) + (stored or not subject.isdisjoint(one.words.keys() & other.words.keys()))
    measured = any(one.measures) and any(other.measures)
    if not shared or count + measured < 2:
        return None
    least, most = sorted(map(len, only))
    alike = {left[0], right[0]} <= {*shared}  # in doubt they have two subjects
    certain = not (one.negated or other.negated or turned or "than" in one.flags)
    if certain and one.measures == other.measures:
        return _value(one, other, (left, right), only, shared)
    if not alike and most:
        return None
    if (one.negated != other.negated) ^ (len(turned) % 2 == 1):
        if least or most > count or one.measures != other.measures or "than" in one.flags:
            return None
        own = [(clause, key) for clause, keys in zip((one, other), only, strict=True) for key in keys]
        if any(clause.negated or clause.words.get(key, 1) < 0 for clause, key in own):
            return None  # it denies a part, or denies in other words: "never push" and "pushing is forbidden"
        kind = VerdictKind.ANTONYM if turned else VerdictKind.NEGATION
        return VerdictKind.PREFERENCE if "like" in shared else kind
    return _measure(one, other) if certain and least <= (count > 2) and most <= count else None


def _negates(word: str, whole: str) -> bool:
    """Return whether a word is another one with a prefix that negates it: "irreversible", "case-insensitive"."""
    lead, _, end = whole.rpartition("-")
    return any(
        word == (f"{lead}-" if lead else "") + prefix + end for prefix in ("un", "in", "im", "ir", "il", "non-", "dis")
    )


def _measure(one: Clause, other: Clause) -> VerdictKind | None:
    """Return a verdict if one number, day or time of day differs, and nothing else is measured otherwise."""
    numbers = one.numbers == other.numbers
    if one.days != other.days:
        if not (numbers and len(one.days) == len(other.days) == 1 and one.weekdays == other.weekdays):
            return None
        (first, last), (begins, ends) = one.days[0], other.days[0]
        return VerdictKind.DATE if last < begins or ends < first else None
    if one.weekdays != other.weekdays:
        once = "is" in one.flags & other.flags and len(one.weekdays) == len(other.weekdays) == 1
        return VerdictKind.DATE if once and numbers else None
    if one.clocks != other.clocks:
        once = numbers and len(one.clocks) == len(other.clocks) == 1
        return VerdictKind.DATE if once else None
    if len(one.numbers) != 1 or len(other.numbers) != 1 or one.numbers[0][1:] != other.numbers[0][1:]:
        return None
    values = one.numbers[0].value, other.numbers[0].value
    close = _CLOSE if one.numbers[0].of in ("time", "length", "mass", "bytes") else 0
    if max(values) * (1 - close) <= min(values):
        return None
    return VerdictKind.NUMBER


def _value(
    one: Clause, other: Clause, words: tuple[list[str], ...], only: tuple[list[str], list[str]], shared: list[str]
) -> VerdictKind | None:
    """Return a verdict if an attribute with one value has two."""
    for all_words, own in zip(words, only, strict=True):
        first = all_words.index(own[0]) if own else 0
        if not own or len(own) > 3 or all_words[first : first + len(own)] != own:
            return None
    mine, others = only
    if _SINGLE_KEYS.isdisjoint(shared) or one.before.get(mine[0], "") != other.before.get(others[0], ""):
        return None
    if len({_stem(word) for word in _PLACES} & {*mine, *others}) == 1:
        return None
    return VerdictKind.VALUE
