"""The providers of one open tenant: those a caller brought or the configuration names, asked again when they fail.

What is made here is closed here; what a caller brought is his.

Source: design section 4, C-245, C-291, C-497, K-101.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from caliber.config import CaliberConfig
from caliber.llm.protocols import Closable, EmbeddingProvider, SummarizationProvider
from caliber.llm.registry import build_embedding_provider, build_summarization_provider, is_costly
from caliber.llm.retry import Retry, retrying, retrying_summarization
from caliber.model.entities import EmbeddingSpace
from caliber.model.errors import DTypeError
from caliber.runtime.embedding.space_provider import (
    SpaceProvider,
    StoreVectorCache,
    check_dimensions,
    check_provider,
    is_of,
)
from caliber.runtime.support import PREVIOUS, long_text_rule
from caliber.storage.protocol import Store
from caliber.storage.waiting import Event

Provider = TypeVar("Provider")


class Providers:
    """What a tenant's texts are embedded and summed up by. ``truncated`` hears of texts that were embedded cut."""

    def __init__(
        self,
        config: CaliberConfig,
        store: Store,
        stopped: Event,
        *,
        clock_us: Callable[[], int],
        count_text: Callable[[str], int],
        truncated: Callable[[str, int, int], None],
    ) -> None:
        self._config = config
        self._store = store
        self._clock_us = clock_us
        self._count_text = count_text
        self._truncated = truncated
        self._retry = Retry(config.llm_retry_config, stopped)
        self._owned: list[Closable] = []

    def embedding(self, given: EmbeddingProvider | None) -> tuple[EmbeddingProvider | None, bool]:
        """Return the embedding provider, if there is one, and whether its vectors are worth keeping in the store.

        Raises: DTypeError for what is none, MultipleErrors for one of other dimensions.
        """
        settings = self._config.embedding_provider
        # A small model on this machine is quicker than a look into the store.
        durable = given is not None or (settings is not None and is_costly(settings))
        if given is None and settings is not None:
            given = self._own(build_embedding_provider(settings, self._count_text))
        if given is not None:
            check_provider(given, "embedding_provider")
            check_dimensions(self._config, given)
        return given, durable

    def summarization(
        self, given: SummarizationProvider | None, embedding: EmbeddingProvider | None
    ) -> SummarizationProvider | None:
        """Return the summarization provider, if there is one. Raises: DTypeError for what is none."""
        if given is None and self._config.summarization_provider is not None:
            given = self._own(
                build_summarization_provider(self._config.summarization_provider, embedding, self._count_text)
            )
        if given is None:
            return None
        if not isinstance(given, SummarizationProvider):
            raise DTypeError(
                field="summarization_provider", expected="a SummarizationProvider", got=type(given).__name__
            )
        return retrying_summarization(given, self._retry)

    def lane(self, provider: EmbeddingProvider, space: EmbeddingSpace, *, durable: bool) -> SpaceProvider:
        """Return a provider beside the space that its vectors live in."""
        settings = self._config.embedding
        return SpaceProvider(
            retrying(provider, self._retry),
            space,
            long_text=long_text_rule(self._config, provider, self._count_text),
            batch_size=settings.batch_size,
            cache_entries=settings.cache_entries,
            backing=StoreVectorCache(self._store, self._clock_us) if durable else None,
            truncated=self._truncated,
        )

    def earlier_lane(
        self, given: EmbeddingProvider | None, in_use: EmbeddingSpace | None, space: EmbeddingSpace
    ) -> SpaceProvider | None:
        """Return the provider before this one beside the space that is searched, as long as that is its own.

        Raises: DTypeError for what is none.
        """
        settings = self._config.previous_embedding_provider
        costly = given is not None or (settings is not None and is_costly(settings))
        if given is None and settings is not None:
            given = self._own(build_embedding_provider(settings, self._count_text, field=PREVIOUS))
        if given is None:
            return None
        check_provider(given, PREVIOUS)
        if in_use is None or in_use.space_id == space.space_id or not is_of(in_use, given):
            return None
        return self.lane(given, in_use, durable=costly)

    def _own(self, provider: Provider) -> Provider:
        """Remember to close a provider that was made here; one that was passed in is its maker's."""
        if isinstance(provider, Closable):
            self._owned.append(provider)
        return provider

    def close(self) -> None:
        """Release what was made here."""
        for provider in self._owned:
            provider.close()
