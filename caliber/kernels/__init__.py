"""Python bindings of the C kernels (search, ranking, tokens, hashing): NumPy arrays in, arrays out.

The implementation is chosen once, at the first call: the best one for this machine, or the one that the environment
variable ``CALIBER_NATIVE`` names (``scalar``, ``avx2``, ``neon``, ``dotprod``). All give the same bits. Names are
loaded when first used, so importing this package is cheap.

Source: design sections 5 and 6; O-5, O-7; csrc/include/caliber.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caliber.kernels.digest import sha256_batch, sha256_spans
    from caliber.kernels.dispatch import active_path, available_paths, forced_path
    from caliber.kernels.evaluator import Evaluator, open_evaluator
    from caliber.kernels.graph import Csr, Edges, Walk, csr, walk
    from caliber.kernels.identifiers import uuid7, uuid7_batch
    from caliber.kernels.joining.join import best_scores
    from caliber.kernels.keyword.index import (
        PHRASE_MAX,
        Analysis,
        KeywordIndex,
        KeywordRule,
        KeywordSnapshot,
        NeighbourBoost,
        QueryWord,
        Vocabulary,
        words_of,
    )
    from caliber.kernels.rank import FillDecision, RankColumns, rank_and_fill
    from caliber.kernels.tokens.counting import (
        estimate_tokens,
        estimate_tokens_batch,
        estimate_tokens_spans,
        truncate_to_tokens,
    )
    from caliber.kernels.tokens.estimators import (
        BytesEstimator,
        CalibratedEstimator,
        Estimator,
        ExactEstimator,
        open_estimator,
    )
    from caliber.kernels.vectors.matrix import Metric, Snapshot, VectorMatrix
    from caliber.kernels.vectors.similarity import Pairs, cosine_batch, cosine_topk, near_groups, pairs_above

__all__ = [
    "PHRASE_MAX",
    "Analysis",
    "BytesEstimator",
    "CalibratedEstimator",
    "Csr",
    "Edges",
    "Estimator",
    "Evaluator",
    "ExactEstimator",
    "FillDecision",
    "KeywordIndex",
    "KeywordRule",
    "KeywordSnapshot",
    "Metric",
    "NeighbourBoost",
    "Pairs",
    "QueryWord",
    "RankColumns",
    "Snapshot",
    "VectorMatrix",
    "Vocabulary",
    "Walk",
    "active_path",
    "available_paths",
    "best_scores",
    "cosine_batch",
    "cosine_topk",
    "csr",
    "estimate_tokens",
    "estimate_tokens_batch",
    "estimate_tokens_spans",
    "forced_path",
    "near_groups",
    "open_estimator",
    "open_evaluator",
    "pairs_above",
    "rank_and_fill",
    "sha256_batch",
    "sha256_spans",
    "truncate_to_tokens",
    "uuid7",
    "uuid7_batch",
    "walk",
    "words_of",
]

_HOME = {
    "digest": ("sha256_batch", "sha256_spans"),
    "dispatch": ("active_path", "available_paths", "forced_path"),
    "tokens.estimators": ("BytesEstimator", "CalibratedEstimator", "Estimator", "ExactEstimator", "open_estimator"),
    "evaluator": ("Evaluator", "open_evaluator"),
    "graph": ("Csr", "Edges", "Walk", "csr", "walk"),
    "identifiers": ("uuid7", "uuid7_batch"),
    "joining.join": ("best_scores",),
    "keyword.index": (
        "Analysis",
        "KeywordIndex",
        "KeywordRule",
        "KeywordSnapshot",
        "NeighbourBoost",
        "QueryWord",
        "PHRASE_MAX",
        "Vocabulary",
        "words_of",
    ),
    "rank": ("FillDecision", "RankColumns", "rank_and_fill"),
    "vectors.similarity": ("Pairs", "cosine_batch", "cosine_topk", "near_groups", "pairs_above"),
    "tokens.counting": (
        "estimate_tokens",
        "estimate_tokens_batch",
        "estimate_tokens_spans",
        "truncate_to_tokens",
    ),
    "vectors.matrix": ("Metric", "Snapshot", "VectorMatrix"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
