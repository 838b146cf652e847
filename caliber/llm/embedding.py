"""Embedding texts: the one path from texts to validated vectors, through the cache and the long-text rule.

Source: C-247, C-487, K-113, K-116, M-011, M-012, M-014, M-015.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np

from caliber.llm.cache import EmbeddingCache, EmbeddingKey, content_hash
from caliber.llm.protocols import EmbeddingProvider, FloatMatrix, FloatVector
from caliber.llm.texts import TokenCounter, prefix_end, require_text
from caliber.model.errors import (
    CaliberError,
    DimensionMismatch,
    EmbeddingFailed,
    InvalidResponse,
    InvalidValue,
    InvalidVector,
)

Item = TypeVar("Item")
Result = TypeVar("Result")


class LongTextMode(StrEnum):
    """What happens to a text above the limit: mean over its chunks, only its beginning, or an error."""

    CHUNK_MEAN = "chunk_mean"
    TRUNCATE = "truncate"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class LongText:
    """The rule for long texts. Units: ``max_tokens`` under ``count_tokens``. Source: M-015.

    Raises: InvalidValue unless ``max_tokens`` >= 1.
    """

    mode: LongTextMode
    max_tokens: int
    count_tokens: TokenCounter

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidValue(field="long_text_tokens", reason="must be at least 1")


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    weight: float


def embed_texts(
    provider: EmbeddingProvider,
    cache: EmbeddingCache | None,
    texts: Sequence[str],
    *,
    long_text: LongText,
    batch_size: int | None = None,
) -> FloatMatrix:
    """Return one vector per text, in order; texts already known to the cache are not sent to the provider.

    Long texts are cut first and their pieces cached, so a cached vector never depends on the rule for long texts.
    ``batch_size`` bounds the texts of one call to the provider; without it there is one call (C-247). What earlier
    calls gave stays in the cache when a later one fails.

    Shapes: f32[len(texts), dimensions], the caller's own.
    Raises: EmbeddingFailed (empty or refused text), InvalidResponse (wrong number or type of vectors),
        DimensionMismatch, InvalidVector, and what the provider raises.
    """
    plans = [_pieces(text, index, long_text) for index, text in enumerate(texts)]
    pieces = [piece.text for plan in plans for piece in plan]
    step = len(pieces) or 1 if batch_size is None else batch_size
    vectors: list[FloatVector] = []
    for first in range(0, len(pieces), step):
        vectors += _vectors(provider, cache, pieces[first : first + step])
    out = np.empty((len(texts), provider.dimensions), dtype=np.float32)
    start = 0
    for index, plan in enumerate(plans):
        parts = vectors[start : start + len(plan)]
        out[index] = parts[0] if len(plan) == 1 else _weighted_mean(parts, [piece.weight for piece in plan])
        start += len(plan)
    return out


def embed_text(
    provider: EmbeddingProvider, cache: EmbeddingCache | None, text: str, *, long_text: LongText
) -> FloatVector:
    """Return the vector of one text, such as a query. Shapes: f32[dimensions]. Raises: as ``embed_texts``."""
    vector: FloatVector = embed_texts(provider, cache, [text], long_text=long_text)[0]
    return vector


def embed_each(
    provider: EmbeddingProvider,
    cache: EmbeddingCache | None,
    texts: Sequence[str],
    *,
    long_text: LongText,
    batch_size: int | None = None,
) -> list[FloatVector | CaliberError]:
    """Return a vector or an error per text: one text that cannot be embedded does not cost the others theirs.

    The batch is tried as a whole; if that fails for a reason that asking again would not mend, text by text.
    A retryable failure (an outage, a rate limit) is the answer for all of them at once.
    """
    try:
        return list(embed_texts(provider, cache, texts, long_text=long_text, batch_size=batch_size))
    except CaliberError as error:
        if error.retryable:
            return [error] * len(texts)
    results: list[FloatVector | CaliberError] = []
    for text in texts:
        try:
            results.append(embed_text(provider, cache, text, long_text=long_text))
        except CaliberError as error:
            results.append(error)
    return results


def handle_embedding_batch_failure(
    items: Sequence[Item], results: Sequence[Result | BaseException]
) -> tuple[list[tuple[Item, Result]], list[Item]]:
    """Split a batch into (item, vector) pairs and the items that failed, both in order.

    Raises: InvalidValue for unequal lengths: pairing what is there would drop items silently (K-113).
    Source: C-487.
    """
    if len(items) != len(results):
        raise InvalidValue(field="results", reason=f"{len(results)} results for {len(items)} items")
    succeeded: list[tuple[Item, Result]] = []
    failed: list[Item] = []
    for item, result in zip(items, results, strict=True):
        if isinstance(result, BaseException):
            failed.append(item)
        else:
            succeeded.append((item, result))
    return succeeded, failed


def _pieces(text: str, index: int, rule: LongText) -> list[_Piece]:
    require_text(text, index)
    total = rule.count_tokens(text)
    if total <= rule.max_tokens:
        return [_Piece(text, 1.0)]
    if rule.mode is LongTextMode.ERROR:
        raise EmbeddingFailed(
            reason=f"item {index} has {total} tokens, more than long_text_tokens = {rule.max_tokens}",
            index=index,
            tokens=total,
        )
    pieces: list[_Piece] = []
    start = 0
    while start < len(text):
        end = prefix_end(text, start, rule.max_tokens, rule.count_tokens, len(text) / total)
        piece = text[start:end]
        start = end
        if piece.isspace():
            continue
        pieces.append(_Piece(piece, float(rule.count_tokens(piece))))
        if rule.mode is LongTextMode.TRUNCATE:
            break
    return pieces


def _vectors(provider: EmbeddingProvider, cache: EmbeddingCache | None, texts: list[str]) -> Sequence[FloatVector]:
    if cache is None:
        return _asked(provider, texts)
    model_id, dimensions = provider.model_id, provider.dimensions
    keys = [EmbeddingKey(content_hash(text), model_id, dimensions) for text in texts]
    return cache.get_or_compute(keys, lambda places: _asked(provider, [texts[place] for place in places]))


def _asked(provider: EmbeddingProvider, texts: list[str]) -> Sequence[FloatVector]:
    answer: object = provider.embed_batch(texts)  # what it is shows only now
    name = provider.model_id
    if not isinstance(answer, np.ndarray) or answer.ndim != 2 or answer.dtype.kind != "f":
        raise InvalidResponse(provider=name, reason="expected one matrix of floating-point numbers")
    if len(answer) != len(texts):
        raise InvalidResponse(provider=name, reason=f"{len(answer)} vectors for {len(texts)} texts")
    if answer.shape[1] != provider.dimensions:
        raise DimensionMismatch(expected=provider.dimensions, got=answer.shape[1])
    matrix = np.ascontiguousarray(answer, dtype=np.float32)
    if not np.isfinite(matrix).all():
        raise InvalidVector(reason=f"{name} sent NaN or infinity")
    if not matrix.any(axis=1).all():
        raise InvalidVector(reason=f"{name} sent a zero vector, which has no direction")
    return list(matrix)


def _weighted_mean(vectors: Sequence[FloatVector], weights: Sequence[float]) -> FloatVector:
    total = np.zeros(len(vectors[0]), dtype=np.float64)
    for vector, weight in zip(vectors, weights, strict=True):
        total += vector.astype(np.float64) * weight
    norm = float(np.sqrt((total * total).sum()))
    if norm == 0.0:
        raise EmbeddingFailed(reason="the chunks of this text cancel each other")
    return (total / norm).astype(np.float32)
