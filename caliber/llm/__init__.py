"""Providers of embeddings, summaries and extraction: local ones, and clients of remote services."""

from caliber.llm.protocols import EmbeddingProvider, SummarizationProvider
from caliber.llm.registry import build_embedding_provider, build_summarization_provider

__all__ = ["EmbeddingProvider", "SummarizationProvider", "build_embedding_provider", "build_summarization_provider"]
