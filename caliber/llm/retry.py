"""Providers that are asked again: an outage or a rate limit that passes is not the caller's failure.

Source: C-106 to C-111, C-215.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from caliber.llm.protocols import (
    ConsolidationDecision,
    ConsolidationMember,
    EmbeddingProvider,
    ExtractedArtifact,
    ExtractionTurn,
    FloatMatrix,
    FloatVector,
    GeneratedNote,
    MergedNote,
    SummarizationProvider,
    TrajectoryDigest,
)
from caliber.model.errors import LlmError

T = TypeVar("T")


class RetrySettings(Protocol):
    """What is read of a ``RetryConfig``. Units: milliseconds; jitter is a share of each wait."""

    @property
    def max_retries(self) -> int: ...
    @property
    def initial_backoff(self) -> int: ...
    @property
    def max_backoff(self) -> int: ...
    @property
    def backoff_multiplier(self) -> float: ...
    @property
    def jitter(self) -> float: ...


def backoff_ms(settings: RetrySettings, attempt: int, error: LlmError, chance: float) -> float:
    """Return the wait before further attempt ``attempt``, counted from 0; ``chance`` is in [0, 1).

    What the provider itself asks for (``retry_after_ms``) is waited for when it is longer. Source: C-111.
    """
    try:
        grown = settings.initial_backoff * settings.backoff_multiplier**attempt
    except OverflowError:
        grown = float(settings.max_backoff)
    wait = min(float(settings.max_backoff), grown)
    wait *= 1.0 - settings.jitter * chance
    asked = error.context.get("retry_after_ms")
    return max(wait, float(asked)) if isinstance(asked, int | float) else wait


class Retry:
    """Calls a provider, and calls it again while what it raises may pass."""

    def __init__(self, settings: RetrySettings, stopped: threading.Event) -> None:
        self._settings = settings
        self._stopped = stopped

    def __call__(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns. Raises: its last error, at once when closing."""
        for attempt in range(self._settings.max_retries):
            try:
                return call()
            except LlmError as error:
                if not error.retryable:
                    raise
                wait = backoff_ms(self._settings, attempt, error, random.random())  # noqa: S311  (no secret)
                if self._stopped.wait(wait / 1_000):
                    raise
        return call()


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


class RetryingSummarization:
    """A summarization provider behind ``Retry``."""

    def __init__(self, provider: SummarizationProvider, retry: Retry) -> None:
        self.inner = provider
        self._retry = retry

    @property
    def model_id(self) -> str:
        """As the provider's."""
        return self.inner.model_id

    def summarize(self, text: str, max_tokens: int) -> str:
        """As the provider's."""
        return self._retry(lambda: self.inner.summarize(text, max_tokens))

    def extract_artifacts(self, turns: Sequence[ExtractionTurn]) -> list[ExtractedArtifact]:
        """As the provider's."""
        return self._retry(lambda: self.inner.extract_artifacts(turns))

    def generate_notes(
        self,
        trajectory: TrajectoryDigest,
        scope_summaries: Sequence[str],
        artifacts: Sequence[ExtractedArtifact],
    ) -> list[GeneratedNote]:
        """As the provider's."""
        return self._retry(lambda: self.inner.generate_notes(trajectory, scope_summaries, artifacts))

    def merge_notes(self, a: GeneratedNote, b: GeneratedNote) -> MergedNote:
        """As the provider's."""
        return self._retry(lambda: self.inner.merge_notes(a, b))

    def verify_contradiction(self, a: str, b: str) -> bool:
        """As the provider's."""
        return self._retry(lambda: self.inner.verify_contradiction(a, b))

    def decide_consolidation(self, clusters: Sequence[Sequence[ConsolidationMember]]) -> list[ConsolidationDecision]:
        """As the provider's."""
        return self._retry(lambda: self.inner.decide_consolidation(clusters))
