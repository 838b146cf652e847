"""The vectors of texts as one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caliber.llm.cache import EmbeddingCache
from caliber.llm.embedding import embed_records, whole_batch
from caliber.llm.protocols import EmbeddingProvider, FloatMatrix
from caliber.model.errors import CaliberError


def embed_texts(
    provider: EmbeddingProvider, cache: EmbeddingCache | None, texts: Sequence[str], **options: Any
) -> FloatMatrix:
    """Return one vector per text; a text of several chunks has their mean. Raises: the error of any text."""
    results = embed_records(provider, cache, texts, apart=False, **options)
    found = [result if isinstance(result, CaliberError) else result.rows[0] for result in results]
    return whole_batch(found, provider.dimensions)
