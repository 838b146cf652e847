"""Embedding and summary providers of one open tenant: passed by the caller or built from the configuration.

The engine closes the providers that it built; a provider that the caller passed stays the caller's.

Source: design section 4, C-245, C-291, C-497, K-101.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from caliber.config import CaliberConfig
from caliber.config.providers import ProviderConfig
from caliber.engine.refusals import PREVIOUS
from caliber.llm.protocols import Closable, EmbeddingProvider, SummarizationProvider
from caliber.llm.registry import build_embedding_provider, build_summarization_provider, is_costly
from caliber.llm.retry import Retry, retrying_summarization
from caliber.model.errors import DTypeError, IncompatibleOptions, MultipleErrors
from caliber.storage.waiting import Flag

Provider = TypeVar("Provider")


def check_dimensions(config: CaliberConfig, provider: EmbeddingProvider) -> None:
    """Raise MultipleErrors when a provider's vectors do not fit the configured space."""
    if config.vector is not None and provider.dimensions != config.vector.dimensions:
        reason = f"the provider gives {provider.dimensions}, the space has {config.vector.dimensions}"
        clash = IncompatibleOptions(option_a="vector.dimensions", option_b="embedding_provider", reason=reason)
        raise MultipleErrors(errors=[clash])


class Providers:
    """The providers that embed and sum up a tenant's texts; ``embedding`` and the others are those of the caller."""

    def __init__(
        self,
        config: CaliberConfig,
        stopped: Flag,
        *,
        count_text: Callable[[str], int],
        embedding: EmbeddingProvider | None,
        previous: EmbeddingProvider | None,
        summarization: SummarizationProvider | None,
    ) -> None:
        self._config = config
        self._count_text = count_text
        self._given = embedding
        self._given_previous = previous
        self._given_summarization = summarization
        self.retry = Retry(config.llm_retry_config, stopped)
        self._owned: list[Closable] = []
        self._embedding: EmbeddingProvider | None = None

    def embedding(self) -> tuple[EmbeddingProvider | None, bool]:
        """Return the embedding provider, if there is one, and whether its vectors are worth caching in the store.

        Raises: DTypeError for what is none, MultipleErrors for one of other dimensions.
        """
        found, durable = self._embedder(self._given, self._config.embedding_provider, "embedding_provider")
        if found is not None:
            check_dimensions(self._config, found)
        self._embedding = found
        return found, durable

    def previous(self) -> tuple[EmbeddingProvider | None, bool]:
        """As ``embedding``, for the previous provider. Raises: DTypeError for an object that is no provider."""
        return self._embedder(self._given_previous, self._config.previous_embedding_provider, PREVIOUS)

    def _embedder(
        self, given: EmbeddingProvider | None, settings: ProviderConfig | None, field: str
    ) -> tuple[EmbeddingProvider | None, bool]:
        # A small model on this machine is quicker than a look into the store.
        durable = given is not None or (settings is not None and is_costly(settings))
        if given is not None:
            if not isinstance(given, EmbeddingProvider):
                raise DTypeError(field=field, expected="an EmbeddingProvider", got=type(given).__name__)
        elif settings is not None:
            given = self._own(build_embedding_provider(settings, self._count_text, field=field))
        return given, durable

    def summarization(self) -> SummarizationProvider | None:
        """Return the summarization provider, if there is one; it may use the embedding provider to compare sentences.

        Raises: DTypeError for what is none.
        """
        given, settings = self._given_summarization, self._config.summarization_provider
        if given is None:
            if settings is None:
                return None
            given = self._own(build_summarization_provider(settings, self._embedding, self._count_text))
        elif not isinstance(given, SummarizationProvider):
            raise DTypeError(
                field="summarization_provider", expected="a SummarizationProvider", got=type(given).__name__
            )
        return retrying_summarization(given, self.retry)

    def _own(self, provider: Provider) -> Provider:
        """Remember to close a provider that was made here; one that was passed in is its maker's."""
        if isinstance(provider, Closable):
            self._owned.append(provider)
        return provider

    def close(self) -> None:
        """Close the providers that were built here."""
        for provider in self._owned:
            provider.close()
