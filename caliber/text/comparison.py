"""Rules for contradiction between two texts, and for near-identical memories that yield to the newest one.

In doubt, texts do not contradict each other, and memories are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from caliber.model.providers import ConsolidationAction, ConsolidationDecision, ConsolidationMember
from caliber.text.contradictions import NEGATIONS, OPPOSITES, contradicts
from caliber.text.note_rules import fold_statement
from caliber.text.sentences import iter_sentences

_MAX_CHARS = 20_000
_NEARLY_IDENTICAL = 0.95

_WORD = re.compile(r"\d{1,20}(?:[.,:]\d{1,20}){0,4}%?|[^\W\d_][\w'’-]{0,63}")
_SIDES = {
    word: (place, side) for place, row in enumerate(OPPOSITES) for side, words in enumerate(row) for word in words
}


def verify_contradiction(a: str, b: str) -> bool:
    """Return whether two texts contradict each other, as far as careful rules can tell."""
    return contradicts(a, b) is not None


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
    sides = {side for word in different if (side := _SIDES.get(word)) is not None}
    reversed_ = any((place, 1 - side) in sides for place, side in sides)
    if reversed_ or any(word[0].isdigit() or _is_negation(word) for word in different):
        return False
    union = (a | b).total()
    return union > 0 and (a & b).total() / union >= _NEARLY_IDENTICAL


def _is_negation(word: str) -> bool:
    return word in NEGATIONS or word == "without" or word.endswith("n't")
