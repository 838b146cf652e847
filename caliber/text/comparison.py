"""Rules for contradiction between two texts, and for near-identical memories that yield to the newest one.

In doubt, texts do not contradict each other, and memories are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from caliber.model.lazy_dataclass import dataclass
from caliber.model.providers import ConsolidationAction, ConsolidationDecision, ConsolidationMember
from caliber.text.naming import STOP_WORDS
from caliber.text.note_rules import fold_statement
from caliber.text.sentences import iter_sentences

# Of longer texts the first sentences are compared, each with each.
_MAX_SENTENCES = 16
_MAX_CHARS = 20_000
# Two statements are about the same thing when they share this part, and this number, of their content words.
_SAME_TOPIC = 0.6
_SAME_WORDING = 0.8
_LEAST_SHARED = 2
_NEARLY_IDENTICAL = 0.95

_WORD = re.compile(r"\d{1,20}(?:[.,:]\d{1,20}){0,4}%?|[^\W\d_][\w'’-]{0,63}")
_NEGATIONS = frozenset(("not", "no", "never", "cannot", "without", "none", "nobody", "nothing", "neither", "nor"))
_OPPOSITES = [
    ("enabled", "disabled"),
    ("enable", "disable"),
    ("true", "false"),
    ("allowed", "forbidden"),
    ("allow", "deny"),
    ("always", "never"),
    ("on", "off"),
    ("open", "closed"),
    ("increase", "decrease"),
    ("likes", "dislikes"),
    ("like", "dislike"),
    ("loves", "hates"),
    ("love", "hate"),
    ("required", "optional"),
    ("synchronous", "asynchronous"),
    ("mutable", "immutable"),
    ("public", "private"),
    ("valid", "invalid"),
    ("possible", "impossible"),
    ("before", "after"),
    ("accept", "reject"),
    ("accepted", "rejected"),
    ("passed", "failed"),
    ("passes", "fails"),
    ("online", "offline"),
    ("supported", "unsupported"),
]


@dataclass(frozen=True, slots=True)
class _Reading:
    content: frozenset[str]
    negated: bool
    numbers: Counter[str]
    names: frozenset[str]
    question: bool


def verify_contradiction(a: str, b: str) -> bool:
    """Return whether two texts contradict each other: one negates, reverses or counts differently than the other.

    Only statements in nearly the same words are judged, and none that name different things.
    """
    if fold_statement(a) == fold_statement(b):
        return False
    readings_a, readings_b = _readings(a), _readings(b)
    return any(_contradict(left, right) for left in readings_a for right in readings_b)


def decide_consolidation(clusters: Sequence[Sequence[ConsolidationMember]]) -> list[ConsolidationDecision]:
    """Return one decision per cluster: near-identical memories yield to the newest one that covers all; else keep."""
    return [_decide(cluster) for cluster in clusters]


def _decide(cluster: Sequence[ConsolidationMember]) -> ConsolidationDecision:
    keys = tuple(member.key for member in cluster)
    statements = [
        frozenset(fold_statement(sentence.text) for sentence in iter_sentences(member.content)) - {""}
        for member in cluster
    ]
    words = [Counter(_WORD.findall(member.content[:_MAX_CHARS].casefold())) for member in cluster]
    newest_first = sorted(range(len(cluster)), key=lambda index: (-cluster[index].created_us, cluster[index].key))
    for survivor in newest_first if len(cluster) > 1 else []:
        if all(
            statements[other] <= statements[survivor] or _nearly_identical(words[other], words[survivor])
            for other in range(len(cluster))
        ):
            return ConsolidationDecision(ConsolidationAction.SUPERSEDE, keys, survivor=cluster[survivor].key)
    return ConsolidationDecision(ConsolidationAction.KEEP, keys)


def _nearly_identical(a: Counter[str], b: Counter[str]) -> bool:
    different = (a - b) + (b - a)
    # A number or a "not" more or less is no small difference.
    if any(word[0].isdigit() or _is_negation(word) or _stem(word) in _OPPOSITE for word in different):
        return False
    union = (a | b).total()
    return union > 0 and (a & b).total() / union >= _NEARLY_IDENTICAL


def _readings(text: str) -> list[_Reading]:
    out: list[_Reading] = []
    for sentence in iter_sentences(text[:_MAX_CHARS]):
        out.append(_reading(sentence.text))
        if len(out) == _MAX_SENTENCES:
            break
    return out


def _reading(sentence: str) -> _Reading:
    words = _WORD.findall(sentence.replace("’", "'"))
    numbers = Counter(word for word in words if word[0].isdigit())
    spoken = [word for word in words if not word[0].isdigit()]
    negations = sum(_is_negation(word.lower()) for word in spoken)
    content = frozenset(
        _stem(word.lower())
        for word in spoken
        if not _is_negation(word.lower()) and (word.lower() not in STOP_WORDS or _stem(word.lower()) in _OPPOSITE)
    )
    names = frozenset(
        word.lower()
        for place, word in enumerate(spoken)
        if (place > 0 and word[0].isupper() and word != "I") or any(char.isupper() for char in word[1:])
    )
    return _Reading(content, negations % 2 == 1, numbers, names, sentence.rstrip().endswith("?"))


def _contradict(a: _Reading, b: _Reading) -> bool:
    if a.question or b.question or a.names != b.names:
        return False
    only_a, only_b = a.content - b.content, b.content - a.content
    shared = a.content & b.content
    if len(only_a) == len(only_b) == 1 and only_b <= _OPPOSITE.get(next(iter(only_a)), frozenset()):
        # Reversed and negated besides, it means the same again.
        return bool(shared) and a.negated == b.negated and a.numbers == b.numbers
    union = len(a.content | b.content)
    alike = len(shared) / union if union else 0.0
    if len(shared) < _LEAST_SHARED or alike < _SAME_TOPIC:
        return False
    if a.negated != b.negated:
        return a.numbers == b.numbers
    return alike >= _SAME_WORDING and bool(a.numbers) and bool(b.numbers) and a.numbers != b.numbers


def _opposites() -> dict[str, frozenset[str]]:
    out: dict[str, frozenset[str]] = {}
    for left, right in _OPPOSITES:
        for word, other in ((_stem(left), _stem(right)), (_stem(right), _stem(left))):
            out[word] = out.get(word, frozenset()) | {other}
    return out


def _is_negation(word: str) -> bool:
    return word in _NEGATIONS or word.endswith("n't")


def _stem(word: str) -> str:
    """Return the word without the plural or third person, roughly: enough to see that two words are the same."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


_OPPOSITE = _opposites()
