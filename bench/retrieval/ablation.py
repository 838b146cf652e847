"""Ablation of search: parts switched on one by one, and taken away one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Overrides = Mapping[str, Any]
"""Dotted paths of knobs, and their values."""

# Nothing links the records of this data: weight given to the graph is weight that nobody gets, so that words and
# boosts keep their shares when vectors are off.
_WITHOUT_VECTORS: Overrides = {"search.weights.vector": 0.0, "search.weights.graph": 0.3}

OFF: Overrides = {
    "search.keyword.saturate": 0.0,
    "search.keyword.neighbour_boost": 0.0,
    "search.keyword.similar_words": "none",
    **_WITHOUT_VECTORS,
    "search.boosts.mentioned": 0.0,
    "search.boosts.date": 0.0,
    "search.boosts.time": 0.0,
    "search.boosts.exact": 0.0,
    "search.boosts.question": 0.0,
}
"""What leaves BM25 alone."""

STEPS: Sequence[tuple[str, Sequence[str]]] = (
    ("BM25, stemmed, words that say nothing left out", ()),
    ("+ neighbouring turns lend, word by word", ("search.keyword.neighbour_boost", "search.keyword.saturate")),
    ("+ similar words", ("search.keyword.similar_words",)),
    ("+ who is named", ("search.boosts.mentioned",)),
    ("+ which days are named", ("search.boosts.date",)),
    ("+ a time is asked for", ("search.boosts.time",)),
    ("+ phrases stand as they are", ("search.boosts.exact",)),
    ("+ what asks counts less", ("search.boosts.question",)),
    ("+ vectors: the profile", tuple(_WITHOUT_VECTORS)),
)
"""Each step gives knobs back the value they have in the profile."""


def switched_on() -> Iterator[tuple[str, Overrides]]:
    """Yield each step's label and what is still off at it."""
    off = dict(OFF)
    for label, names in STEPS:
        for name in names:
            off.pop(name, None)
        yield label, dict(off)


def taken_away() -> Iterator[tuple[str, Overrides]]:
    """Yield each part's label and what switches it off alone."""
    for label, names in STEPS[1:]:
        yield label.replace("+", "−", 1).split(":")[0], {name: OFF[name] for name in names}
