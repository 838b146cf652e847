"""Retries of provider calls: backoff, wrappers of embedding and summary providers, and detection of outages.

Source: C-106 to C-111, C-215.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast, runtime_checkable

from caliber.llm.embedding import whole_batch
from caliber.llm.prompts import CALLS
from caliber.llm.protocols import (
    BatchedEmbedding,
    EmbeddingProvider,
    FloatMatrix,
    FloatVector,
    SummarizationProvider,
)
from caliber.model.deadline import remaining_s
from caliber.model.errors import AuthenticationFailed, CaliberError, ConfigError, Conflict, DimensionMismatch, LlmError
from caliber.model.process.interpreter import log

if TYPE_CHECKING:
    from caliber.config.providers import RetryConfig
    from caliber.storage.waiting import Flag

MAX_RETRY_AFTER_MS: Final = 60_000
"""Longest wait that a provider may ask for; if it asks for more, the call fails at once."""

T = TypeVar("T")


def is_outage(error: Exception) -> bool:
    """Return whether no text is at fault for a failure: the provider or its key, the store, or who wrote first."""
    if isinstance(error, CaliberError):
        return error.retryable or isinstance(error, AuthenticationFailed | ConfigError | Conflict | DimensionMismatch)
    return True


def backoff_ms(settings: RetryConfig, attempt: int, error: LlmError, chance: float) -> float:
    """Return the wait before retry ``attempt``, counted from 0; ``chance`` is in [0, 1).

    A longer wait requested by the provider (``retry_after_ms``) takes precedence. Source: C-111.
    """
    try:
        grown = settings.initial_backoff * settings.backoff_multiplier**attempt
    except OverflowError:
        grown = float(settings.max_backoff)
    wait = min(float(settings.max_backoff), grown)
    wait *= 1.0 - settings.jitter * chance
    asked = _asked_ms(error)
    return wait if asked is None else max(wait, asked)


class Retry:
    """Calls a provider, and retries while its error may pass."""

    def __init__(self, settings: RetryConfig, stopped: Flag) -> None:
        self._settings = settings
        self._stopped = stopped

    def __call__(self, call: Callable[[], T]) -> T:
        """Return the result of ``call``. Raises: its last error; at once when closing, or when time would be up."""
        for attempt in range(self._settings.max_retries):
            try:
                return call()
            except LlmError as error:
                if not error.retryable or not self._waited(attempt, error):
                    raise
        return call()

    def each(self, ask: Callable[[Sequence[int]], Sequence[T | CaliberError]], count: int) -> list[T | CaliberError]:
        """Return an answer or the last error for each of ``count`` items; only failed items are retried.

        ``ask`` takes positions and answers each of them, in order.
        """
        results: dict[int, T | CaliberError] = {}
        pending: Sequence[int] = range(count)
        for attempt in range(self._settings.max_retries + 1):
            results.update(zip(pending, ask(pending), strict=True))
            failed = {at: error for at in pending if isinstance(error := results[at], LlmError) and error.retryable}
            if not failed or attempt == self._settings.max_retries:
                break
            # The longest wait that any of them requests: they are retried together.
            slowest = max(failed.values(), key=lambda error: _asked_ms(error) or 0.0)
            if not self._waited(attempt, slowest):
                break
            pending = list(failed)
        return [results[at] for at in range(count)]

    def _waited(self, attempt: int, error: LlmError) -> bool:
        """Wait before a further attempt; return False at once where the wait would be too long, or when closing."""
        asked = _asked_ms(error)
        if asked is not None and asked > MAX_RETRY_AFTER_MS:
            error.add_note(f"a provider may ask for {MAX_RETRY_AFTER_MS} ms at most: not waited for")
            return False
        wait = backoff_ms(self._settings, attempt, error, random.random()) / 1_000  # noqa: S311  (no secret)
        remaining = remaining_s()
        if remaining is not None and remaining <= wait:
            error.add_note("the deadline leaves no time for another attempt")
            return False
        log("llm", "info", "attempt %d failed: %s; the next follows in %.1f s", attempt + 1, error.kind, wait)
        return not self._stopped.wait(wait)


def _asked_ms(error: LlmError) -> float | None:
    asked = error.context.get("retry_after_ms")
    return float(asked) if isinstance(asked, int | float) else None


class RetryingEmbedding:
    """An embedding provider behind ``Retry``."""

    def __init__(self, provider: EmbeddingProvider, retry: Retry) -> None:
        self.inner = provider
        self._retry = retry

    @property
    def model_id(self) -> str:
        """As the provider's."""
        return self.inner.model_id

    @property
    def dimensions(self) -> int:
        """As the provider's."""
        return self.inner.dimensions

    def embed(self, text: str) -> FloatVector:
        """As the provider's."""
        return self._retry(lambda: self.inner.embed(text))

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        """As the provider's."""
        return self._retry(lambda: self.inner.embed_batch(texts))


class RetryingBatches(RetryingEmbedding):
    """An embedding provider whose batches can fail in part, behind ``Retry``: only failed texts are retried."""

    inner: BatchedEmbedding

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        """As the provider's. Raises: as ``batch_error``."""
        return whole_batch(self.embed_some(texts), self.dimensions)

    def embed_some(self, texts: Sequence[str]) -> list[FloatVector | CaliberError]:
        """As the provider's, after retries."""
        return self._retry.each(lambda places: self.inner.embed_some([texts[at] for at in places]), len(texts))


def retrying(provider: EmbeddingProvider, retry: Retry) -> RetryingEmbedding:
    """Return an embedding provider behind ``retry``, which keeps partial batches where it can."""
    kind = RetryingBatches if isinstance(provider, BatchedEmbedding) else RetryingEmbedding
    return kind(provider, retry)


class RetryingSummarization:
    """A summarization or learning provider behind ``Retry``: it has the calls that the provider has."""

    def __init__(self, provider: SummarizationProvider, retry: Retry) -> None:
        self.inner = provider
        self._retry = retry
        for name in CALLS:
            if hasattr(provider, name):
                setattr(self, name, partial(self._call, name))

    @property
    def model_id(self) -> str:
        """As the provider's."""
        return self.inner.model_id

    @property
    def quotes(self) -> bool:
        """As the provider's, False if it has none."""
        return getattr(self.inner, "quotes", False) is True

    def _call(self, name: str, *args: Any, **named: Any) -> Any:
        return self._retry(partial(getattr(self.inner, name), *args, **named))


@runtime_checkable
class AsksInParts(Protocol):
    """A summarization provider whose calls may be several questions; it takes ``Retry`` inside."""

    def retried(self, retry: Retry) -> SummarizationProvider:
        """Return the provider with every question behind ``retry``."""
        ...


def retrying_summarization(provider: SummarizationProvider, retry: Retry) -> SummarizationProvider:
    """Return a summarization provider behind ``retry``, question by question where it can."""
    if isinstance(provider, AsksInParts):
        return provider.retried(retry)
    return cast("SummarizationProvider", RetryingSummarization(provider, retry))
