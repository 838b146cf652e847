"""Named presets of section ``search``: weights of the source documents, and the settings measured best.

Source: M-032, B-092, K-202; figures: docs/search.md.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from caliber.model.errors import InvalidConfigValue

_DAY_MS: Final = 24 * 60 * 60 * 1_000

CONVERSATION: Final = "conversation"
MEASURED_SPACES: Final = {
    "all-MiniLM-L6-v2-onnx-int8@384": 0.32,
    "wordllama-l2-supercat@128": 0.33,
    "wordllama-l2-supercat@256": 0.3,
    "wordllama-l2-supercat@64": 0.4,
}
"""Similarity above which texts have something in common, by embedding space: measured, docs/search.md."""

_SIMPLE: Final[dict[str, Any]] = {
    "mode": "resident",
    "candidate_factor": 2,
    "vector_candidates": 20,
    "min_similarity": 0.1,
    "normalisation": "saturation",
    "fusion": "weighted",
    "diversity": 0.0,
    "floor": {
        "words": 0.35,
        "similarity": MEASURED_SPACES,
    },
    "weights": {"vector": 0.4, "keyword": 0.3, "graph": 0.2, "importance": 0.1},
    "keyword": {
        "language": "english",
        "k1": 1.2,
        "b": 0.75,
        "saturate": 0.0,
        "neighbour_boost": 0.0,
        "similar_words": "none",
    },
    "boosts": {
        "mentioned": 0.0,
        "date": 0.0,
        "date_slack_ms": 14 * _DAY_MS,
        "time": 0.0,
        "exact": 0.5,
        "question": 0.0,
        "recency": 0.0,
        "recency_half_life_ms": 30 * _DAY_MS,
    },
    "graph": {"conversation": True},
}
_MEASURED: Final[dict[str, Any]] = {
    **_SIMPLE,
    "vector_candidates": 200,
    "normalisation": "peak",
    "weights": {"vector": 0.21, "keyword": 0.7, "graph": 0.09, "importance": 0.0},
    "keyword": {
        **_SIMPLE["keyword"],
        "k1": 0.9,
        "b": 0.4,
        "saturate": 1.0,
        "neighbour_boost": 0.4,
        "similar_words": "wordllama-l2-supercat",
    },
    "boosts": {**_SIMPLE["boosts"], "mentioned": 0.175, "date": 0.28, "time": 0.175, "question": -0.07},
    # Neighbours boost each word already; only explicit edges are followed.
    "graph": {**_SIMPLE["graph"], "conversation": False},
}
SEARCH_PROFILES: Final[dict[str, dict[str, Any]]] = {
    "sources": _SIMPLE,
    "semantic": {**_SIMPLE, "weights": {"vector": 0.7, "keyword": 0.3, "graph": 0.0, "importance": 0.0}},
    CONVERSATION: _MEASURED,
}


def search_settings(name: str, *, vectors: bool = True) -> dict[str, Any]:
    """Return the section ``search`` of a named profile; without ``vectors`` their weight goes to the other legs.

    ``sources`` has the four weights of the source documents, ``semantic`` their mix of two, ``conversation`` what was
    measured best on long conversations (docs/search.md).

    Raises: InvalidConfigValue for an unknown name.
    """
    if name not in SEARCH_PROFILES:
        raise InvalidConfigValue(field="search", value=name, reason=f"there are {', '.join(SEARCH_PROFILES)}")
    settings = copy.deepcopy(SEARCH_PROFILES[name])
    if not vectors:
        weights = settings["weights"]
        rest = sum(weights.values()) - weights["vector"]
        settings["weights"] = {leg: 0.0 if leg == "vector" else value / rest for leg, value in weights.items()}
        settings["keyword"]["similar_words"] = "none"
    return settings
