"""Extractive shortening of one record: its first sentences up to a token limit, deterministic, without a provider.

Source: C-220, docs/decisions/0166.
"""

from __future__ import annotations

from caliber.kernels import Estimator
from caliber.kernels.tokens.counting import ELLIPSIS, truncate_to_tokens
from caliber.text.sentences import iter_sentences


def abridge(text: str, limit: int, estimator: Estimator) -> tuple[int, bool] | None:
    """Return the characters that abridge a text to ``limit`` tokens, or None where it is short already.

    A first sentence that is too long is cut itself, and ends in dots.
    """

    def tokens(end: int) -> int:
        length = int(estimator.lengths_of([text[:end]])[0])
        return -(-length * estimator.denominator // estimator.numerator)

    if tokens(len(text)) <= limit:
        return None
    end = 0
    for sentence in iter_sentences(text):
        if tokens(sentence.end) > limit:
            break
        end = sentence.end
    if end:
        return end, False
    cut = truncate_to_tokens(text, limit, estimator=estimator)
    dots = not text.startswith(cut)
    return len(cut) - len(ELLIPSIS) * dots, dots
