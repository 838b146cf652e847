"""Providers of embeddings, summaries and extraction: local ones, and clients of remote services."""

from caliber.llm.cache import CacheStats, EmbeddingCache, EmbeddingKey, VectorStore, content_hash
from caliber.llm.embedding import (
    Embedded,
    embed_records,
    embed_texts,
    handle_embedding_batch_failure,
)
from caliber.llm.protocols import (
    BatchedEmbedding,
    Closable,
    CountingEmbedding,
    EmbeddingProvider,
    SummarizationProvider,
)
from caliber.llm.registry import (
    ProviderSettings,
    build_embedding_provider,
    build_summarization_provider,
    embedding_provider_types,
    summarization_provider_types,
)
from caliber.llm.texts import Chunks, LongText, LongTextMode, chunk_text
from caliber.model.providers import (
    ConsolidationAction,
    ConsolidationDecision,
    ConsolidationMember,
    ExtractedArtifact,
    ExtractionTurn,
    GeneratedNote,
    MergedNote,
    TrajectoryDigest,
)

__all__ = [
    "BatchedEmbedding",
    "CacheStats",
    "Chunks",
    "Closable",
    "ConsolidationAction",
    "ConsolidationDecision",
    "ConsolidationMember",
    "CountingEmbedding",
    "Embedded",
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
    "chunk_text",
    "content_hash",
    "embed_records",
    "embed_texts",
    "embedding_provider_types",
    "handle_embedding_batch_failure",
    "summarization_provider_types",
]
