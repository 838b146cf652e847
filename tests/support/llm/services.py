"""Configured providers that talk to the service of ``model_server``."""

from __future__ import annotations

import threading
from typing import Any

from support.llm.model_server import ModelServer

from caliber.config import ChatConfig, HttpConfig, ProviderConfig, SecretRef, SummarizerConfig
from caliber.config.profiles import services
from caliber.config.providers import RetryConfig
from caliber.llm.language_model import LanguageModelProvider
from caliber.llm.registry import build_embedding_provider, build_summarization_provider
from caliber.llm.remote.embedding import RemoteEmbeddingProvider
from caliber.llm.retry import Retry

KEY_NAME = "CALIBER_TEST_SERVICE_KEY"
KEY = "sk-hunter2swordfish0123456789"
RETRIES = {"llm_retry_config.max_retries": 3, "llm_retry_config.initial_backoff": 1, "llm_retry_config.max_backoff": 2}
"""Knobs that make retries quick."""


def count(text: str) -> int:
    """Count words: enough of an estimate, and easy to foresee."""
    return len(text.split())


def http_config(**changes: Any) -> HttpConfig:
    limits = {"requests_per_minute": 0, "tokens_per_minute": 0, "timeout_ms": 60_000}
    return HttpConfig(**services.http(**{**limits, **changes}))


def embedding_section(server: ModelServer, kind: str = "openai", **options: Any) -> dict[str, Any]:
    """Return a section ``embedding_provider`` for the service."""
    section = dict(services.EMBEDDING[kind])
    http = options.pop("http", {})
    key = options.pop("api_key", section.get("api_key") and f"env:{KEY_NAME}")
    section["options"] = {**section["options"], **options}
    section |= {"endpoint": server.endpoint, "dimensions": server.dimensions, "http": http_config(**http).model_dump()}
    section.pop("api_key", None)
    return section | ({} if key is None else {"api_key": key})


def summarizer_section(server: ModelServer, kind: str = "openai", **chat: Any) -> dict[str, Any]:
    """Return a section ``summarization_provider`` for the service."""
    section = dict(services.SUMMARIZATION[kind])
    http = chat.pop("http", {})
    options = chat.pop("options", {})
    if "api_key" in section:
        section["api_key"] = f"env:{KEY_NAME}"
    section["options"] = {**section["options"], **options}
    section |= {
        "endpoint": server.endpoint,
        "http": http_config(**http).model_dump(),
        "chat": ChatConfig(**{**services.chat(), **chat}).model_dump(),
    }
    return section


def embeddings(server: ModelServer, kind: str = "openai", **options: Any) -> RemoteEmbeddingProvider:
    """Return an embedding provider for the service."""
    provider = build_embedding_provider(ProviderConfig(**embedding_section(server, kind, **options)), count)
    assert isinstance(provider, RemoteEmbeddingProvider)
    server.callers.append(provider)
    return provider


def language_model(server: ModelServer, kind: str = "openai", **chat: Any) -> LanguageModelProvider:
    """Return a language model for the service."""
    provider = build_summarization_provider(SummarizerConfig(**summarizer_section(server, kind, **chat)), None, count)
    assert isinstance(provider, LanguageModelProvider)
    server.callers.append(provider)
    return provider


def secret() -> SecretRef:
    return SecretRef(f"env:{KEY_NAME}")


def waits(**changes: Any) -> RetryConfig:
    """Return the knobs of retries without a wait worth speaking of."""
    quick = {"max_retries": 3, "initial_backoff": 1, "max_backoff": 2, "backoff_multiplier": 2.0, "jitter": 0.0}
    return RetryConfig(**{**quick, **changes})


def retry(stopped: Any = None, **changes: Any) -> Retry:
    """Return a retry with such waits."""
    return Retry(waits(**changes), stopped or threading.Event())
