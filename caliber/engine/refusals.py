"""Reasons why this machine cannot run a configuration; also the configured token estimator and long-text rule.

The reasons are missing packages, extras, model files or API keys. ``caliber check`` looks for them, so this
module imports nothing that only an open store needs.
"""

from __future__ import annotations

from typing import Final

from caliber.config import CaliberConfig
from caliber.config.providers import ServiceConfig
from caliber.kernels import Estimator, open_estimator
from caliber.kernels.evaluator import refusal
from caliber.llm.local.word_vectors import word_model_folder
from caliber.llm.protocols import CountingEmbedding, EmbeddingProvider
from caliber.llm.registry import build_embedding_provider, build_summarization_provider
from caliber.llm.texts import LongText, LongTextMode
from caliber.model.errors import (
    CaliberError,
    IncompatibleOptions,
    MissingRequired,
    MultipleErrors,
)
from caliber.model.providers import TokenCounter

PREVIOUS: Final = "previous_embedding_provider"


def estimator_of(config: CaliberConfig) -> Estimator:
    """Return the estimator that a configuration names.

    Raises: ExtraNotInstalled when it needs what is not here.
    """
    tokens = config.tokens
    return open_estimator(tokens.estimator, bytes_per_token=tokens.bytes_per_token, vocabulary=tokens.vocabulary)


def long_text_rule(config: CaliberConfig, provider: EmbeddingProvider, count_tokens: TokenCounter) -> LongText:
    """Return the rule for long texts, counted by the provider's own tokenizer where it has one.

    Raises: IncompatibleOptions when the model would not read all of a piece.
    """
    settings = config.embedding
    if isinstance(provider, CountingEmbedding):
        count_tokens = provider.count_tokens
        if settings.long_text_tokens > provider.max_tokens:
            raise IncompatibleOptions(
                option_a="embedding.long_text_tokens",
                option_b="embedding_provider",
                reason=f"of {settings.long_text_tokens} tokens a piece the model would read {provider.max_tokens}",
            )
    return LongText(LongTextMode(settings.long_text), settings.long_text_tokens, count_tokens)


def refusals(config: CaliberConfig) -> list[CaliberError]:
    """Return why no program could open a store with this configuration; empty when one can."""
    found: list[CaliberError] = []
    evaluator = refusal(config.resident.evaluator)
    if evaluator is not None:
        found.append(evaluator)
    try:
        estimator_of(config)
    except CaliberError as error:
        found.append(error)
    try:
        if config.search.keyword.similar_words != "none":
            word_model_folder()
    except CaliberError as error:
        found.append(error)
    return found


def provider_refusals(config: CaliberConfig) -> list[CaliberError]:
    """Return why the providers that the configuration names cannot be built here; nothing is loaded."""
    found: list[CaliberError] = []
    embedding = None
    try:
        if config.embedding_provider is not None:
            embedding = build_embedding_provider(config.embedding_provider, len)
            long_text_rule(config, embedding, len)
    except CaliberError as error:
        found += faults_in(error)
    try:
        if config.previous_embedding_provider is not None:
            build_embedding_provider(config.previous_embedding_provider, len, field=PREVIOUS)
    except CaliberError as error:
        found += faults_in(error)
    try:
        if config.summarization_provider is not None:
            build_summarization_provider(config.summarization_provider, embedding, len)
    except CaliberError as error:
        found += faults_in(error)
    for name, provider in _providers(config):
        if provider.api_key is not None and not provider.api_key.is_set:
            found.append(
                MissingRequired(
                    f"{name}.api_key = {provider.api_key}: the environment variable {provider.api_key.name} is not set",
                    field=f"{name}.api_key",
                )
            )
    return found


def _providers(config: CaliberConfig) -> list[tuple[str, ServiceConfig]]:
    named = (
        ("embedding_provider", config.embedding_provider),
        (PREVIOUS, config.previous_embedding_provider),
        ("summarization_provider", config.summarization_provider),
    )
    return [(name, provider) for name, provider in named if provider is not None]


def faults_in(error: CaliberError) -> list[CaliberError]:
    """Return the single faults of an error that may hold several."""
    return list(error.context["errors"]) if isinstance(error, MultipleErrors) else [error]
