"""Embedding pipeline: splits long texts, consults the cache, calls the provider in batches, checks the vectors.

Source: C-247, C-487, K-113, K-116, M-011, M-012, M-014, M-015.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from caliber.llm.cache import EmbeddingCache, EmbeddingKey, content_hash
from caliber.llm.protocols import EmbeddingProvider, FloatMatrix, FloatVector
from caliber.llm.texts import Chunks, LongText, LongTextMode, chunk_text
from caliber.model.errors import (
    CaliberError,
    DimensionMismatch,
    EmbeddingFailed,
    InvalidResponse,
    InvalidVector,
)
from caliber.model.lazy_dataclass import dataclass

_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of a text. Shapes: rows f32[c, dimensions]; c is 1 unless long texts have a vector for each chunk.

    Units: ``tokens`` of the whole text. ``truncated``: its end was not embedded.
    """

    rows: FloatMatrix
    tokens: int
    truncated: bool


def embed_records(
    provider: EmbeddingProvider,
    cache: EmbeddingCache | None,
    texts: Sequence[str],
    *,
    long_text: LongText,
    batch_size: int | None = None,
    apart: bool = True,
) -> list[Embedded | CaliberError]:
    """Return vectors or an error per text: one text that cannot be embedded does not cost the others theirs.

    A batch is asked as a whole; where the provider cannot tell which text was at fault and asking again would not mend
    it, text by text if ``apart``. An outage or a rate limit ends it: what was not asked yet has that error too.

    Raises: without ``apart``, what the provider raises.
    """
    plans: list[Chunks | CaliberError] = []
    for index, text in enumerate(texts):
        try:
            plans.append(chunk_text(text, long_text, index))
        except CaliberError as error:
            plans.append(error)
    pieces = [piece for plan in plans if isinstance(plan, Chunks) for piece in plan.texts]
    step = len(pieces) or 1 if batch_size is None else batch_size
    vectors: list[FloatVector | CaliberError] = []
    mark = 0 if cache is None else cache.mark()
    for first in range(0, len(pieces), step):
        ask = _told_apart if apart else _vectors
        vectors += ask(provider, cache, pieces[first : first + step], mark)
        last = vectors[-1]
        if isinstance(last, CaliberError) and last.retryable:
            vectors += [last] * (len(pieces) - len(vectors))
            break
    return _gathered(plans, vectors, keep_chunks=long_text.mode is LongTextMode.CHUNKS)


def checked_vector(value: object, dimensions: int, provider: str) -> FloatVector | CaliberError:
    """Return a provider's result for one text as a vector, or as an error; errors pass through.

    Shapes: f32[dimensions], finite and longer than zero.
    """
    if isinstance(value, CaliberError):
        return value
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind != "f":
        return InvalidResponse(provider=provider, reason="expected a vector of floating-point numbers")
    if len(value) != dimensions:
        return DimensionMismatch(expected=dimensions, got=len(value))
    with np.errstate(over="ignore"):  # a value beyond single precision becomes infinite, and is refused
        vector = np.ascontiguousarray(value, dtype=np.float32)
    if not np.isfinite(vector).all():
        return InvalidVector(reason=f"{provider} sent NaN or infinity")
    if not vector.any():
        return InvalidVector(reason=f"{provider} sent a zero vector, which has no direction")
    return vector


def whole_batch(results: Sequence[FloatVector | CaliberError], dimensions: int) -> FloatMatrix:
    """Return the vectors of a batch as one matrix. Raises: as ``batch_error``, unless every text has a vector."""
    failed = {at: result for at, result in enumerate(results) if isinstance(result, CaliberError)}
    if failed:
        raise batch_error(failed, len(results))
    out = np.empty((len(results), dimensions), dtype=np.float32)
    for at, vector in enumerate(results):
        out[at] = vector
    return out


def batch_error(failed: Mapping[int, CaliberError], count: int) -> CaliberError:
    """Return the one error of a batch of ``count`` texts: the first itself when all failed, else one that names which.

    It is retryable when asking again could mend any of them.
    """
    first = next(iter(failed.values()))
    if len(failed) == count:
        return first
    places = ", ".join(str(index) for index in list(failed)[:_SHOWN]) + (", …" if len(failed) > _SHOWN else "")
    error = EmbeddingFailed(
        reason=f"{len(failed)} of {count} texts failed ({places}); the first: {first}",
        indexes=tuple(failed),
        retryable=any(each.retryable for each in failed.values()),
    )
    error.__cause__ = first
    return error


def _gathered(
    plans: Sequence[Chunks | CaliberError], vectors: Sequence[FloatVector | CaliberError], *, keep_chunks: bool
) -> list[Embedded | CaliberError]:
    """Return the result of each text from its pieces; a text with a failed piece has failed."""
    out: list[Embedded | CaliberError] = []
    start = 0
    for plan in plans:
        if isinstance(plan, CaliberError):
            out.append(plan)
            continue
        rows: list[FloatVector] = []
        result: Embedded | CaliberError | None = None
        for vector in vectors[start : start + len(plan.texts)]:
            if isinstance(vector, CaliberError):
                result = vector
                break
            rows.append(vector)
        start += len(plan.texts)
        if result is None:
            result = _embedded(plan, rows, keep_chunks=keep_chunks)
        out.append(result)
    return out


def _embedded(plan: Chunks, rows: Sequence[FloatVector], *, keep_chunks: bool) -> Embedded | CaliberError:
    if keep_chunks or len(rows) == 1:
        return Embedded(np.stack(rows), plan.tokens, plan.truncated)
    try:
        mean = _weighted_mean(rows, plan.weights)
    except EmbeddingFailed as error:
        return error
    return Embedded(mean.reshape(1, -1), plan.tokens, plan.truncated)


def _told_apart(
    provider: EmbeddingProvider, cache: EmbeddingCache | None, texts: list[str], mark: int
) -> list[FloatVector | CaliberError]:
    try:
        return _vectors(provider, cache, texts, mark)
    except CaliberError as error:
        if error.retryable or len(texts) == 1:
            return [error] * len(texts)
    out: list[FloatVector | CaliberError] = []
    for text in texts:
        try:
            out += _vectors(provider, cache, [text], mark)
        except CaliberError as error:
            out.append(error)
    return out


def _vectors(
    provider: EmbeddingProvider, cache: EmbeddingCache | None, texts: list[str], mark: int
) -> list[FloatVector | CaliberError]:
    if cache is None:
        return _asked(provider, texts)
    model_id, dimensions = provider.model_id, provider.dimensions
    keys = [EmbeddingKey(content_hash(text), model_id, dimensions) for text in texts]
    return cache.get_or_compute(keys, lambda places: _asked(provider, [texts[place] for place in places]), mark)


def _asked(provider: EmbeddingProvider, texts: list[str]) -> list[FloatVector | CaliberError]:
    name = provider.model_id
    embed_some = getattr(provider, "embed_some", None)  # isinstance() with a protocol takes a tenth of a new query
    if embed_some is not None:
        some = embed_some(texts)
        if len(some) != len(texts):
            raise InvalidResponse(provider=name, reason=f"{len(some)} vectors for {len(texts)} texts")
        return [checked_vector(result, provider.dimensions, name) for result in some]
    answer: object = provider.embed_batch(texts)  # its type is known only now
    if not isinstance(answer, np.ndarray) or answer.ndim != 2 or answer.dtype.kind != "f":
        raise InvalidResponse(provider=name, reason="expected one matrix of floating-point numbers")
    if len(answer) != len(texts):
        raise InvalidResponse(provider=name, reason=f"{len(answer)} vectors for {len(texts)} texts")
    if answer.shape[1] != provider.dimensions:
        raise DimensionMismatch(expected=provider.dimensions, got=answer.shape[1])
    checked: list[FloatVector | CaliberError] = []
    for row in answer:
        vector = checked_vector(row, provider.dimensions, name)
        if isinstance(vector, CaliberError):
            raise vector  # a provider that sends such a thing is not believed in the rest
        checked.append(vector)
    return checked


def _weighted_mean(vectors: Sequence[FloatVector], weights: Sequence[float]) -> FloatVector:
    """Return the mean of directions: a provider whose vectors differ in length must not weigh chunks by it."""
    total = np.zeros(len(vectors[0]), dtype=np.float64)
    for vector, weight in zip(vectors, weights, strict=True):
        wide = vector.astype(np.float64)
        total += wide * (weight / float(np.sqrt((wide * wide).sum())))
    norm = float(np.sqrt((total * total).sum()))
    if norm == 0.0:
        raise EmbeddingFailed(reason="the chunks of this text cancel each other")
    return (total / norm).astype(np.float32)
