"""Clauses of a message, and the reasons for which one states nothing: questions, hypotheses, quotes, jokes, plans.

Rules prefer nothing to junk: whatever may be asked, imagined, quoted or joked is refused.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from caliber.learning.lexicon.people import OTHERS, RELATIVES, SIZE
from caliber.learning.rules.candidates import NOT_READ
from caliber.model.lazy_dataclass import dataclass
from caliber.text.sentences import UnitKind, iter_sentences

MAX_CHARS_READ: Final = 20_000
"""The beginning of a longer message is read: the rest is a document, not talk."""
_MAX_SENTENCE: Final = 600
"""The characters of the longest sentence that is read."""
_MAX_CLAUSE: Final = 300
"""The characters of the longest clause: the time of many patterns grows with the square of their text."""

QUESTION: Final = "a question"
HYPOTHESIS: Final = "a hypothesis"
QUOTE: Final = "quoted or reported"
JOKE: Final = "a joke"
LAUGH: Final = "said with laughter"
PLAN: Final = "a plan or a wish"
DOUBT: Final = "uncertain"
FICTION: Final = "text to work on, not about the user"
TASK: Final = "an order for a text"

_I = re.IGNORECASE
_FICTION = re.compile(
    r"\b(?:translate|rewrite|rephrase|paraphrase|proofread|summari[sz]e|role-?play|pretend|lyrics|screenplay|"
    r"(?:an?|short|bedtime|my|this|that|our|the|children's|\d+) stor(?:y|ies)|stor(?:y|ies) (?:about|of|where|in)|"
    r"novel|poem|haiku|limerick|fictional|character|protagonist|dialogue|monologue|"
    r"(?:fix|check|correct) (?:the |my |this )?(?:grammar|spelling|text|sentence|paragraph|essay)|"
    r"example (?:sentence|text)|in (?:the|a|this|that|my) (?:movie|"
    r"film|book|game(?! (?:company|studio|developer|designer|industry))|dream|song|show|series|play)|dreamt|dreamed|"
    r"acting as|act as|"
    r"dear (?:sir|madam|hiring manager)|to whom it may concern)\b",
    _I,
)
_TASK = re.compile(r"\b(?:draft|write|compose) (?:me )?(?:a|an|the|some)\b", _I)
_JOKE = re.compile(r"(?<!not )(?<!no )\b(?:just kidding|kidding|jk|joking|joke|/s|yeah,? right|as if)\b|[😜😉😏]", _I)
_LAUGHS = re.compile(r"\b(?:lol|lmao|rofl|ha(?:ha)+)\b|[😂🤣🙃]", _I)
"""Laughter: what a clause with it states is no fact, but the clauses beside it may be."""
_SARCASM = re.compile(r"\b(?:LOVE|LOVES|LOVING|SO much fun|oh joy|how lovely|best \w+ (?:i|we) ever)\b")
_JUST_KIDDING = re.compile(r"^\W*(?:(?:jk|just kidding|kidding|i was joking)\b\W*)+", _I)
_KIDDING = re.compile(r"(?<!not )(?<!no )\b(?:kidding|jk|joking|joke|as if)\b|/s\b", _I)
_HYPOTHESIS = re.compile(
    r"\b(?:if(?! (?:that|it|this) (?:helps|matters|makes)| you(?:'re)? (?:wonder|curious|must|need to know))|unless|"
    r"imagine|suppose|supposing|assume|assuming|hypothetically|what if|let's say|say i|"
    r"in another life|"
    r"would have|could have|should have|were i|had i|wish|as though)\b",
    _I,
)
_PLAN = re.compile(
    r"\b(?:i|we)(?:'ll| will| shall|'m going to|'re going to| am going to| are going to| want| wanna|"
    r"'d| would| could|"
    r" plan| hope| intend| might| may| should| need| can't wait|'m gonna| am gonna)\b"
    r"|\b(?:i'm|i am|we're|we are) (?:\w+ly )?(?:thinking|considering|planning|hoping|looking|trying|"
    r"dreaming|about to|"
    r"moving|relocating|switching|getting married|getting a|becoming|starting(?! (?:at|with) (?-i:[A-Z]))|tempted|"
    r"considering)\b",
    _I,
)
_PREFACE = re.compile(r"\bi should (?:probably |also |just |maybe )*(?:mention|add|say|note|tell you)\b", _I)
"""Words that announce a statement, and put it in no doubt."""
_DOUBT = re.compile(
    r"\b(?:maybe|perhaps|probably|possibly|i guess|i think|i suppose|i believe|not sure|i doubt|i wonder|"
    r"apparently|kind of|sort of|seems?|feels? like)\b",
    _I,
)
_REPORT = re.compile(
    r"\b(?:he|she|they|you|people|everyone|someone|somebody|who|it|(?:my|his|her|our|their|the) (?!(?:doctor|doc|gp|"
    r"physio|vet|dentist|specialist|consultant|midwife)\b)[a-z]{2,15}|"
    r"[A-Z][a-z]+)"
    r" (?:always |just |once |often |usually |used to )?(?:says?|said|tells?|told|claims?|claimed|"
    r"thinks?|thought|wrote|"
    r"writes|insists?|replied|joked|jokes)\b"
    r"|\baccording to\b|\b(?:i (?:read|heard|saw)|rumou?r has it)\b"
)
_FICTION_AFTER = re.compile(r":(?:\s|$)")
_QUOTED = re.compile(
    r"\"[^\"]{2,2000}\"|“[^”]{2,2000}”|«[^»]{2,2000}»|(?<!\w)'(?:[^'\n]|(?<=\w)'(?=\w)){12,400}'(?!\w)"
)
_SPLIT = re.compile(
    r"(?<!\s)\s*(?:[;•]|\s[-–—]+\s|[–—]|\.{3}|…)\s*"
    r"|,?\s+(?:but|though|although|however|yet|whereas|while|so(?! (?:bad|good|much|many|far|well|hard|fun|great|"
    r"easy|sick|tired|happy|long|keen)\b)|because|cause|cuz|cos|coz|which is why|except)\s+"
    r"|,?\s+(?:and|&)\s+(?!(?:i|me) (?:\w+ )?(?:broke|split|divorced|separated)\b)(?=(?:also\s+|now\s+|so\s+|"
    r"then\s+)?(?:i|i'm|i've|i'd|i'll|im|my|we|we're|our|he|she|they(?!/)|it|this|that|turns out|it turns out|"
    r"you|please|can|could|what|how|do|don't)\b)"
    r"|,\s+(?=(?:and\s+|so\s+|now\s+|then\s+)?(?:i|i'm|i've|i'd|i'll|im|my|we|we're|our|he(?!/)|she(?!/)|they(?!/)|"
    r"it's|you|"
    r"please|can|could|what|only my|it was|the [\w-]+ (?:is|are)|"
    r"not (?:allergic|vegan|vegetarian|lactose|gluten|diabetic|pregnant|coeliac|celiac)|no longer|no more|"
    r"where|when|how|do|does|should|which|who|is|are)\b)"
    r"|,\s+(?=(?:his|her|its) name(?:'s| is)\b)|(?<=\d),\s+(?=(?:called|named)\b)|:\s+(?=(?:i|i'm|my|we|he|she)\b)|"
    r",\s+(?=(?:now )?(?:with|at) (?-i:[A-Z]))"
    r"|(?<=[.!])\s+(?=(?:i|i'm|im|i've|my|we|he|she|it|but|and|so|no)\b)"
    r"|(?<=[a-z]{2}[.!])(?<!\b(?:mr|ms|dr|st|vs|jr|sr|no)\.)(?<!\bmrs\.)\s+(?=(?-i:[a-z]))"
    r"|,\s+(?=(?:ok|okay|right|any|anything|is|are|good|safe|possible|thoughts|ideas|suggestions|recipes|tips|why|"
    r"does|did|would|will)\b[^,]*\?$)"
    r"|(?<!\bif)(?<!\bthat)(?<!\bwhen)(?<!\bsince)(?<!\blike)(?<!\bsay)(?<!\bsays)(?<!\bthink)(?<!\band)(?<!\bbut)"
    r"(?<!\bor)(?<!\bso)(?<!\bas)(?<!\bwhat)(?<!\bwhy)(?<!\bbecause)(?<!\bcause)(?<!\bguess)(?<!\bpretend)"
    r"(?<!\bassume)(?<!\bimagine)(?<!\bthough)(?<!\bsaid)(?<!\bwish)(?<![,;:])\s+(?=i'm (?:now )?(?:vegan|vegetarian|"
    r"pescatarian|coeliac|celiac|diabetic|allergic to)\b)"
    r"|(?<=\?)\s+|,?\s+and\s+(?=still\b)",
    _I,
)
_ELLIPSIS = re.compile(
    r"(?:,?\s+(?:and|but)|,)\s+(?=(?:also\s+|now\s+|just\s+|recently\s+|really\s+|"
    r"currently\s+)?(?:work|live|have|love|"
    r"like|hate|"
    r"works|lives|loves|likes|hates|has|speaks|plays|enjoys|prefers|teaches|studies|eats|drinks|dislikes|"
    r"dislike|enjoy|speak|am|prefer|don't|do not|can't|moved|play|own|study|teach|drink|eat|started|joined|grew|got|"
    r"married|adopted|became|was born|allergic|vegetarian|vegan)\b)",
    _I,
)
_SUBJECT = re.compile(r"^\W*(?:\w+[,:]?\s+){0,4}?(i'm|i am|i've|i|we|we're|we are)\b", _I)
_OTHER = re.compile(r"^\W*(?:\w+[,:]?\s+){0,2}?((?:my|our) [\w-]+(?: (?-i:[A-Z])\w+)?|he|she|(?-i:[A-Z])\w+)\b", _I)
_CALLED = re.compile(r"^(?:called|named) (?-i:[A-Z])", _I)
_PAST = re.compile(
    r"^(?:\w+ly )?(?:moved|started|joined|grew|got|married|adopted|became|was born|am|allergic|vegetarian|"
    r"vegan)\b",
    _I,
)
"""Verbs whose form does not tell whether "I" or "my sister" is left out before them."""
_THIRD = re.compile(
    r"^(?:\w+ly )?(?:works|lives|loves|likes|hates|has|speaks|plays|enjoys|prefers|teaches|studies|eats|"
    r"drinks|dislikes)\b",
    _I,
)
_BARE_VERB = re.compile(
    r"^(?:(?:now|also|just|currently|really)\s+)?(?:work|live|love|like|hate|dislike|enjoy|speak|prefer|play|own|"
    r"study|"
    r"teach|eat|drink|works|lives|loves|likes|hates|speaks|plays|prefers|teaches|studies|eats|drinks)\b",
    _I,
)
_PARTICIPLES = re.compile(r"^(?:allergic|vegetarian|vegan|married)\b", _I)
_UNMARKED = re.compile(
    r"\b(?:i(?=m\b|ve\b)|(?:you|we|they)(?=ve\b)|s?he(?=s\b)|(?:that|what|who|there)(?=s\b)|"
    r"\b(?:wife|husband|daughter|son|sister|brother|dog|cat|boyfriend|girlfriend)(?=s (?:called|named|name)\b)|"
    r"they(?=re\b)|"
    r"(?:do|ca|wo|did|does|is|are|was|have|has|had|could|should|would)n(?=t\b))(?!')",
    _I,
)
"""The place of an apostrophe that was left out: "im", "dont", "shes"."""
AND: Final = "+++"
"""The "and" of a couple, which ends no clause: as long as the word."""
_COUPLE: Final = re.compile(
    rf"(?<![^.!?,;] )(?<!\w)((?:my|our) {SIZE}(?:{RELATIVES})(?: (?-i:[A-Z])[\w-]+)?) and "
    r"(?=i\b)(?!i (?:\w+ )?(?:broke|split|divorced|separated|called|are (?:over|done|no|finished)))",
    _I,
)
_WHOSE = re.compile(rf"\b(?:my|our|an?|one) (?P<person>{SIZE}(?:{RELATIVES}|{OTHERS})(?: (?-i:[A-Z])[\w-]+)?)$", _I)
_WHO = re.compile(r"^who(?P<first>(?: |'s )[^,]+)(?:,(?P<rest> .+))?$", _I)


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of a sentence that may state something, with its place in the message.

    ``text`` has plain apostrophes, and the subject that an ellipsis left out. ``refusal`` is why it states nothing.
    ``sentence`` is the number of its sentence, ``opens`` whether it begins one.
    """

    text: str
    start: int
    end: int
    refusal: str | None = None
    sentence: int = 0
    opens: bool = False


def clauses_of(message: str) -> Iterator[Clause]:
    """Yield the clauses of a message in order; code, tables, headings and quoted lines are none.

    A sentence or clause that is too long comes without its text.
    """
    # A saint's full stop ends no sentence.
    text = _QUOTED.sub(_masked, _blanked(message[:MAX_CHARS_READ].replace("St. ", "St\u2024 ")))
    sentences = [
        each
        for each in iter_sentences(text)
        if each.kind in (UnitKind.PROSE, UnitKind.ITEM) and not each.text.lstrip().startswith((">", "|"))
    ]
    fiction = False
    for place, sentence in enumerate(sentences):
        plain = _plain(sentence.text)
        if len(plain) > _MAX_SENTENCE:
            yield Clause("", sentence.start, sentence.end, NOT_READ, place)
            continue
        following = _plain(sentences[place + 1].text) if place + 1 < len(sentences) else ""
        refusal = _refusal(plain, following)
        if fiction:
            refusal = FICTION
        # Whatever stands behind "Translate this:" is no word of the user's own.
        fiction = fiction or (refusal == FICTION and bool(_FICTION_AFTER.search(plain)))
        added = [found.end() + number for number, found in enumerate(_UNMARKED.finditer(_even(sentence.text)))]
        for clause in _clauses(plain, refusal):
            start, end = (sentence.start + at - bisect.bisect_left(added, at) for at in (clause.start, clause.end))
            if len(clause.text) > _MAX_CLAUSE:
                yield Clause("", start, end, NOT_READ, place)
                continue
            yield dataclasses.replace(clause, start=start, end=end, sentence=place)


def _plain(text: str) -> str:
    """Return a text with plain apostrophes, also where they are left out, and quotations masked by as many signs."""
    plain = _QUOTED.sub(_masked, _UNMARKED.sub(lambda found: f"{found[0]}'", _even(text)))
    return _COUPLE.sub(lambda found: f"{found[1]} {AND} ", plain)


def _blanked(message: str) -> str:
    """Return a message without the words that take back the one before it: "jk, I'm on VS Code"."""
    return _JUST_KIDDING.sub(lambda found: " " * len(found[0]), message)


def _masked(quoted: re.Match[str]) -> str:
    return "\u0001" * len(quoted[0])


def _even(text: str) -> str:
    return text.replace("’", "'").replace("`", "'").replace("\n", " ")


def _refusal(sentence: str, following: str) -> str | None:
    """Return why a whole sentence states nothing, or None."""
    if _FICTION.search(sentence):
        return FICTION
    if _TASK.search(sentence):
        return FICTION if _FICTION_AFTER.search(sentence) else TASK
    if _JOKE.search(sentence) or _SARCASM.search(sentence) or (len(following) < 60 and _KIDDING.search(following)):
        return JOKE
    return None


def _clauses(sentence: str, refusal: str | None) -> Iterator[Clause]:
    spans = list(_spans(sentence))
    asks = sentence.rstrip().endswith("?")
    hypothesis = reported = False
    subject = third = latest = ""
    for place, (start, end) in enumerate(spans):
        text = sentence[start:end]
        found, other = _SUBJECT.match(text), _OTHER.match(text)
        if found is not None:
            subject = latest = found[1]
        elif other is not None and not _CALLED.match(text):
            third = latest = other[1]
        hypothesis = hypothesis or _HYPOTHESIS.search(text) is not None
        reported = reported or _REPORT.search(text) is not None
        reason = refusal
        if reason is None and (text.rstrip().endswith("?") or (asks and place == len(spans) - 1)):
            reason = QUESTION
        if reason is None and reported:
            reason = QUOTE
        if reason is None and hypothesis:
            reason = HYPOTHESIS
        if reason is None and _LAUGHS.search(text):
            reason = LAUGH
        plain = _PREFACE.sub("", text)
        if reason is None and _PLAN.search(plain):
            reason = PLAN
        if reason is None and _DOUBT.search(plain):
            reason = DOUBT
        whose, who = _WHOSE.search(sentence[: spans[place - 1][1]]) if place else None, _WHO.match(text)
        if whose is not None and who is not None:  # "my aunt, who is 90, lives in Rome"
            for group in ("first", "rest"):
                if who[group]:
                    yield Clause(
                        f"my {whose['person']}{who[group]}", start + who.start(group), start + who.end(group), reason
                    )
            continue
        parts = list(_parts(text))
        for at, (first, last) in enumerate(parts):
            said = text[first:last]
            if third and _CALLED.match(said):
                said = f"{third} is {said}"
            elif at or (place and _BARE_VERB.match(said)):
                of_third = _THIRD.match(said) or (_PAST.match(said) and latest == third)
                said = f"{third if of_third else _continued(subject, said)} {said}".strip()
            yield Clause(said, start + first, start + last, reason, opens=not (at or place))


def _continued(subject: str, rest: str) -> str:
    """Return the subject that an ellipsis left out, such as "I" of "I live here and work there"."""
    if not subject:
        return ""
    whole = "we" if subject.lower().startswith("we") else "I"
    return f"{whole}'m" if whole == "I" and _PARTICIPLES.match(rest) else whole


def _spans(sentence: str) -> Iterator[tuple[int, int]]:
    start = 0
    for found in _SPLIT.finditer(sentence):
        if found.start() > start:
            yield start, found.start()
        start = found.end()
    if start < len(sentence):
        yield start, len(sentence)


def _parts(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for found in _ELLIPSIS.finditer(text):
        if found.start() > start:
            yield start, found.start()
            start = found.end()
    yield start, len(text)
