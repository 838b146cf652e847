"""Classification of sentences by cue words: decisions, preferences, requirements, facts.

Every pattern is tried on one sentence of bounded length and holds no nested repetition. English only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from caliber.model.lazy_dataclass import dataclass
from caliber.model.trajectory import ArtifactType, TurnRole
from caliber.text.sentences import UnitKind, iter_sentences

# A longer sentence is data, not a statement; a shorter one has no content by itself.
MAX_STATEMENT_CHARS = 1_000
MIN_STATEMENT_CHARS = 6

_USER = frozenset({TurnRole.USER})
_TALK = frozenset({TurnRole.USER, TurnRole.ASSISTANT})
_RULERS = frozenset({TurnRole.USER, TurnRole.SYSTEM})
_ALL = frozenset({TurnRole.USER, TurnRole.ASSISTANT, TurnRole.SYSTEM})


@dataclass(frozen=True, slots=True)
class TextStatement:
    """One statement, and the place of its sentence in the text."""

    artifact_type: ArtifactType
    content: str
    confidence: float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Cue:
    artifact_type: ArtifactType
    roles: frozenset[TurnRole]
    confidence: float
    pattern: re.Pattern[str]


def _cue(kind: ArtifactType, roles: frozenset[TurnRole], confidence: float, pattern: str) -> _Cue:
    return _Cue(kind, roles, confidence, re.compile(pattern, re.IGNORECASE))


_MARKER = re.compile(r"\s{0,40}(?:[-*+•]|\d{1,9}[.)]|[A-Za-z][)])[ \t]{1,8}(?:\[[ xX]\] )?")
_LABEL = re.compile(
    r"(?:\*\*|__)?(decision|decided|constraint|requirement|fact|preference|note|important|remember|fyi)"
    r"(?:\*\*|__)?[ \t]{0,4}[:：](?:\*\*|__)?[ \t]{0,8}",
    re.IGNORECASE,
)
_LABELS = {
    "decision": (ArtifactType.DESIGN_DECISION, 0.95),
    "decided": (ArtifactType.DESIGN_DECISION, 0.95),
    "constraint": (ArtifactType.CONSTRAINT, 0.95),
    "requirement": (ArtifactType.CONSTRAINT, 0.9),
    "fact": (ArtifactType.FACT, 0.95),
    "preference": (ArtifactType.USER_PREFERENCE, 0.95),
    "note": (ArtifactType.FACT, 0.7),
    "important": (ArtifactType.FACT, 0.7),
    "remember": (ArtifactType.FACT, 0.8),
    "fyi": (ArtifactType.FACT, 0.75),
}
_ADVERB = r"(?: \w{1,12}ly| just| all| both| now| already| always| do| much)?"

# The first matching cue classifies the statement: preferences, then decisions, then requirements.
_CUES = (
    _cue(ArtifactType.USER_PREFERENCE, _USER, 0.9, rf"\bi(?:'d| would)?{_ADVERB} prefer\b"),
    _cue(ArtifactType.USER_PREFERENCE, _USER, 0.85, r"\bmy (?:preference|favou?rite|preferred)\b"),
    _cue(ArtifactType.USER_PREFERENCE, _USER, 0.8, rf"\bi(?:'d| would){_ADVERB} rather\b"),
    _cue(ArtifactType.USER_PREFERENCE, _USER, 0.8, r"\bfrom now on\b"),
    _cue(
        ArtifactType.USER_PREFERENCE,
        _USER,
        0.85,
        r"\b(?:please|you should|i want you to|i'd like you to|make sure (?:you|to))(?: \w{1,12})? (?:always|never)\b",
    ),
    _cue(ArtifactType.USER_PREFERENCE, _USER, 0.75, r"^(?:always|never) (?!mind\b)\w"),
    _cue(
        ArtifactType.USER_PREFERENCE,
        _USER,
        0.7,
        rf"\bi{_ADVERB} (?:like|love|enjoy|hate|dislike|can't stand|don't like|do not like|don't want)\b",
    ),
    _cue(
        ArtifactType.DESIGN_DECISION,
        _TALK,
        0.85,
        rf"\b(?:we|i|they|team)(?:'ve| have| has)?{_ADVERB} (?:decided|agreed|settled on|chosen|chose|opted)\b",
    ),
    _cue(ArtifactType.DESIGN_DECISION, _TALK, 0.85, r"\b(?:it (?:was|is) decided|the decision (?:is|was))\b"),
    _cue(
        ArtifactType.DESIGN_DECISION,
        _TALK,
        0.8,
        r"\b(?:let's|let us|we'll|we will|we're going to|i'll|we are going to) (?:go|stick) with\b",
    ),
    _cue(ArtifactType.DESIGN_DECISION, _TALK, 0.8, r"\bwe(?:'re| are) going with\b"),
    _cue(
        ArtifactType.DESIGN_DECISION, _TALK, 0.7, r"\b(?:let's|let us) (?:use|adopt|switch to|standardi[sz]e on|keep)\b"
    ),
    _cue(
        ArtifactType.CONSTRAINT,
        _ALL,
        0.85,
        r"\b(?:must not|mustn't|must never|shall not|may not|should never|(?:is|are) not (?:allowed|permitted)"
        r"|(?:is|are) (?:forbidden|prohibited))\b",
    ),
    _cue(
        ArtifactType.CONSTRAINT,
        _ALL,
        0.8,
        r"\b(?:(?:cannot|can't|not|never) exceed|no more than|at most \d|(?:limit|limited) (?:of|to) "
        r"|maximum of |hard limit\b)",
    ),
    _cue(ArtifactType.CONSTRAINT, _RULERS, 0.8, r"^(?:always|never) (?!mind\b)\w"),
    _cue(
        ArtifactType.CONSTRAINT, _ALL, 0.7, r"\bmust (?!have\b|say\b|admit\b|confess\b|be (?:fun|nice|hard|great)\b)\w"
    ),
    _cue(
        ArtifactType.CONSTRAINT,
        _RULERS,
        0.65,
        r"^(?:please )?(?:do not|don't) (?!worry\b|mind\b|know\b|think\b|forget\b|hesitate\b)\w",
    ),
    _cue(ArtifactType.CONSTRAINT, _RULERS, 0.6, r"(?<!\bhe)(?<!\bshe) (?:has to|(?:is|are) required to|needs to be)\b"),
    _cue(ArtifactType.CONSTRAINT, _RULERS, 0.55, r"\b(?:we|you) have to\b"),
    _cue(ArtifactType.FACT, _ALL, 0.8, r"\b(?:note|remember|be aware|keep in mind|bear in mind) that\b"),
    _cue(ArtifactType.FACT, _ALL, 0.75, r"\b(?:for the record|just so you know|for your information|fyi)\b"),
)
# "if we decided …", "should we go with …": the clause is considered, not decided.
_OPEN = re.compile(
    r"\b(?:if|whether|unless|should|could|shall|once|until|when|before|suppose|why)\s{1,4}$", re.IGNORECASE
)
_SPOKEN_KINDS = frozenset({UnitKind.PROSE, UnitKind.ITEM})


def find_statements(text: str, roles: frozenset[TurnRole]) -> Iterator[TextStatement]:
    """Yield the statements of a text in order, with the cues that hold for any of these roles."""
    cues = [cue for cue in _CUES if cue.roles & roles]
    for sentence in iter_sentences(text):
        size = sentence.end - sentence.start
        if sentence.kind not in _SPOKEN_KINDS or not MIN_STATEMENT_CHARS <= size <= MAX_STATEMENT_CHARS:
            continue
        folded = " ".join(sentence.text.split())
        folded = folded[marker.end() :] if (marker := _MARKER.match(folded)) else folded
        # The cues have one form of the apostrophe; the stored text keeps its own.
        found = _labelled(folded, roles) or _cued(folded.replace("’", "'"), cues)
        if found is not None:
            kind, start, confidence = found
            yield TextStatement(kind, folded[start:], confidence, sentence.start, sentence.end)


def wordings(sentence: str) -> Iterator[str]:
    """Yield how a sentence may be repeated: as it stands, without its bullet, and without its label."""
    folded = " ".join(sentence.split())
    yield folded
    if marker := _MARKER.match(folded):
        folded = folded[marker.end() :]
        yield folded
    if label := _LABEL.match(folded):
        yield folded[label.end() :]


def _labelled(plain: str, roles: frozenset[TurnRole]) -> tuple[ArtifactType, int, float] | None:
    """Return the label that a line begins with, and the place where its content starts."""
    label = _LABEL.match(plain)
    if label is None:
        return None
    kind, confidence = _LABELS[label[1].lower()]
    if len(plain) - label.end() < MIN_STATEMENT_CHARS or (
        kind is ArtifactType.USER_PREFERENCE and TurnRole.USER not in roles
    ):
        return None
    return kind, label.end(), confidence


def _cued(plain: str, cues: list[_Cue]) -> tuple[ArtifactType, int, float] | None:
    if plain.endswith("?"):
        return None
    for cue in cues:
        found = cue.pattern.search(plain)
        if found is not None and _OPEN.search(plain, max(0, found.start() - 16), found.start()) is None:
            return cue.artifact_type, 0, cue.confidence
    return None
