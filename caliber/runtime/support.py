"""What public calls share: one deadline for all of a call, and what is refused although the configuration is sound.

``caliber check`` asks for the latter: nothing is imported here that only an open store needs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from caliber.config import CaliberConfig, ProviderConfig
from caliber.context import estimator_of
from caliber.kernels.evaluator import refusal
from caliber.llm.protocols import CountingEmbedding, EmbeddingProvider
from caliber.llm.registry import build_embedding_provider, build_summarization_provider
from caliber.llm.texts import LongText, LongTextMode
from caliber.llm.word_vectors import word_model_folder
from caliber.model.errors import (
    CaliberError,
    IncompatibleOptions,
    MissingRequired,
    MultipleErrors,
)
from caliber.model.providers import TokenCounter

PREVIOUS: Final = "previous_embedding_provider"

P = ParamSpec("P")
T = TypeVar("T")


def bounded(method: Callable[P, T]) -> Callable[P, T]:
    """Return a method whose ``deadline_ms`` bounds all of the call: what is asked of providers, and what is written."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        deadline_ms: Any = kwargs.get("deadline_ms")
        if deadline_ms is None:
            return method(*args, **kwargs)
        owner: Any = args[0]
        with owner._engine.within(deadline_ms):
            return method(*args, **kwargs)

    return call


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


def _providers(config: CaliberConfig) -> list[tuple[str, ProviderConfig]]:
    named = (
        ("embedding_provider", config.embedding_provider),
        (PREVIOUS, config.previous_embedding_provider),
        ("summarization_provider", config.summarization_provider),
    )
    return [(name, provider) for name, provider in named if provider is not None]


def faults_in(error: CaliberError) -> list[CaliberError]:
    """Return the single faults of an error that may hold several."""
    return list(error.context["errors"]) if isinstance(error, MultipleErrors) else [error]
