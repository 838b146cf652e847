"""Providers of embeddings, summaries and extracted knowledge; the local ones need no network and no LLM."""

from caliber.llm.cache import CacheStats, EmbeddingCache, EmbeddingKey, VectorStore, content_hash
from caliber.llm.embedding import (
    LongText,
    LongTextMode,
    embed_each,
    embed_text,
    embed_texts,
    handle_embedding_batch_failure,
)
from caliber.llm.protocols import (
    ConsolidationAction,
    ConsolidationDecision,
    ConsolidationMember,
    EmbeddingProvider,
    ExtractedArtifact,
    ExtractionTurn,
    GeneratedNote,
    MergedNote,
    SummarizationProvider,
    TrajectoryDigest,
)
from caliber.llm.registry import (
    ProviderSettings,
    build_embedding_provider,
    build_summarization_provider,
    embedding_provider_types,
    summarization_provider_types,
)

__all__ = [
    "CacheStats",
    "ConsolidationAction",
    "ConsolidationDecision",
    "ConsolidationMember",
    "EmbeddingCache",
    "EmbeddingKey",
    "EmbeddingProvider",
    "ExtractedArtifact",
    "ExtractionTurn",
    "GeneratedNote",
    "LongText",
    "LongTextMode",
    "MergedNote",
    "ProviderSettings",
    "SummarizationProvider",
    "TrajectoryDigest",
    "VectorStore",
    "build_embedding_provider",
    "build_summarization_provider",
    "content_hash",
    "embed_each",
    "embed_text",
    "embed_texts",
    "embedding_provider_types",
    "handle_embedding_batch_failure",
    "summarization_provider_types",
]
