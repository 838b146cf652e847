"""Provider presets (model, endpoint, limits) for ``caliber init --embedding KIND --summaries KIND``.

The models are the usual first choice of each service, the numbers are ours; all of them are written out, none is
assumed later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SECOND: Final = 1_000
_MIB: Final = 1 << 20

OPENAI_ENDPOINT: Final = "https://api.openai.com/v1"
VOYAGE_ENDPOINT: Final = "https://api.voyageai.com/v1"
ANTHROPIC_ENDPOINT: Final = "https://api.anthropic.com/v1"
OLLAMA_ENDPOINT: Final = "http://localhost:11434"


def http(**changes: Any) -> dict[str, Any]:
    """Return a section ``http``."""
    return {
        "timeout_ms": 30 * SECOND,
        "requests_per_minute": 300,
        "tokens_per_minute": 200_000,
        "max_connections": 4,
        "proxy": "none",
        "trusted": "usual",
        **changes,
    }


def chat(**changes: Any) -> dict[str, Any]:
    """Return a section ``chat``."""
    return {
        "max_input_tokens": 16_000,
        "max_output_tokens": 4_000,
        "prompts": "builtin",
        "temperature": 0.0,
        **changes,
    }


# A model on this machine has no limits of rate, and may first have to be loaded.
_LOCAL: Final = http(timeout_ms=120 * SECOND, requests_per_minute=0, tokens_per_minute=0, max_connections=2)

EMBEDDING: Final[Mapping[str, Mapping[str, Any]]] = {
    "static": {"provider_type": "static", "model": "wordllama-l2-supercat", "dimensions": 256, "options": {}},
    "minilm": {
        "provider_type": "minilm",
        "model": "all-MiniLM-L6-v2-onnx-int8",
        "dimensions": 384,
        "options": {"threads": 1, "max_tokens": 254},
    },
    "openai": {
        "provider_type": "openai",
        "model": "text-embedding-3-small",
        "endpoint": OPENAI_ENDPOINT,
        "dimensions": 1_536,
        "api_key": "env:OPENAI_API_KEY",
        "options": {"send_dimensions": True, "encoding_format": "base64", "batch_tokens": 100_000},
        "http": http(),
    },
    "voyage": {
        "provider_type": "voyage",
        "model": "voyage-3.5",
        "endpoint": VOYAGE_ENDPOINT,
        "dimensions": 1_024,
        "api_key": "env:VOYAGE_API_KEY",
        "options": {
            "send_dimensions": True,
            "encoding_format": "base64",
            "batch_tokens": 100_000,
            "input_type": "none",
        },
        "http": http(),
    },
    "ollama": {
        "provider_type": "ollama",
        "model": "nomic-embed-text",
        "endpoint": OLLAMA_ENDPOINT,
        "dimensions": 768,
        "options": {"send_dimensions": False, "batch_tokens": 20_000, "keep_alive": "5m"},
        "http": _LOCAL,
    },
}

SUMMARIZATION: Final[Mapping[str, Mapping[str, Any]]] = {
    "extractive": {"provider_type": "extractive", "model": "extractive", "options": {}},
    "openai": {
        "provider_type": "openai",
        "model": "gpt-4.1-mini",
        "endpoint": OPENAI_ENDPOINT,
        "api_key": "env:OPENAI_API_KEY",
        "options": {"answer_format": "json_schema", "limit_field": "max_completion_tokens"},
        "http": http(timeout_ms=120 * SECOND),
        "chat": chat(),
    },
    "anthropic": {
        "provider_type": "anthropic",
        "model": "claude-haiku-4-5",
        "endpoint": ANTHROPIC_ENDPOINT,
        "api_key": "env:ANTHROPIC_API_KEY",
        "options": {},
        "http": http(timeout_ms=120 * SECOND),
        "chat": chat(),
    },
    "ollama": {
        "provider_type": "ollama",
        "model": "llama3.2",
        "endpoint": OLLAMA_ENDPOINT,
        "options": {"keep_alive": "5m", "context_tokens": 8_192},
        "http": _LOCAL,
        "chat": chat(max_input_tokens=6_000, max_output_tokens=1_500),
    },
}

# A write does not wait for a service, nor fail with it.
_BEHIND: Final = {"embedding.embed": {"default": "behind"}}

CHANGES: Final[Mapping[str, Mapping[str, Any]]] = {
    # As long as a text the model reads, counted by its own tokenizer.
    "minilm": {"embedding.long_text_tokens": 254},
    "openai": _BEHIND,
    "voyage": _BEHIND,
    "ollama": _BEHIND,
}
"""Knobs elsewhere that go with a kind of embedding provider."""


def chosen(embedding: str | None, summaries: str | None) -> dict[str, Any]:
    """Return the changes to a profile that these kinds of providers make; ``none`` is no provider, None no change."""
    changes: dict[str, Any] = {}
    if embedding is not None:
        changes["embedding_provider"] = None if embedding == "none" else dict(EMBEDDING[embedding])
        changes |= CHANGES.get(embedding, {})
    if summaries is not None:
        changes["summarization_provider"] = None if summaries == "none" else dict(SUMMARIZATION[summaries])
    return changes
