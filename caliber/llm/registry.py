"""Factory of the providers that a configuration names, and the declarations of their options. (C-102 to C-104)"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from caliber.llm.protocols import EmbeddingProvider, SummarizationProvider
from caliber.model.errors import (
    ConfigError,
    IncompatibleOptions,
    InvalidConfigValue,
    MissingRequired,
    MultipleErrors,
    ProviderNotSupported,
)
from caliber.model.lazy_dataclass import dataclass
from caliber.model.providers import TokenCounter

if TYPE_CHECKING:
    from caliber.config.providers import ProviderConfig, ServiceConfig, SummarizerConfig
    from caliber.llm.remote.http import HttpClient


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its meaning, and its values (a choice, a whole number in a range, true or false, or text)."""

    meaning: str
    kind: type[int] | type[bool] | type[str]
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 2**31 - 1

    def fault(self, value: Any) -> str | None:
        """Return why this value cannot be taken."""
        if self.kind is bool:
            return None if isinstance(value, bool) else "must be true or false"
        if self.kind is int:
            if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
                return f"must be a whole number from {self.low} to {self.high}"
            return None
        if self.choices:
            return None if value in self.choices else f"must be one of {', '.join(self.choices)}"
        return None if isinstance(value, str) and value.strip() else "must be text"


BATCH_TOKENS = Option("most tokens of one request, as estimated; more texts are another request", int, low=1)
ENCODING = Option("how vectors travel", str, ("float", "base64"))
SEND_DIMENSIONS = Option("whether the service is asked for this length of vectors", bool)
KEEP_ALIVE = Option("how long the model stays in the service's memory, such as 5m", str)

EMBEDDING: Mapping[str, Mapping[str, Option]] = {
    "hash": {},
    "static": {},
    "minilm": {
        "threads": Option(
            "threads of one computation; with 1 equal texts have equal vectors to the bit", int, low=1, high=256
        ),
        "max_tokens": Option(
            "tokens of a text that are read, without the two that the model adds", int, low=1, high=510
        ),
    },
    "openai": {"batch_tokens": BATCH_TOKENS, "encoding_format": ENCODING, "send_dimensions": SEND_DIMENSIONS},
    "voyage": {
        "batch_tokens": BATCH_TOKENS,
        "encoding_format": ENCODING,
        "send_dimensions": SEND_DIMENSIONS,
        "input_type": Option("what the texts are said to be", str, ("none", "document", "query")),
    },
    "ollama": {"batch_tokens": BATCH_TOKENS, "keep_alive": KEEP_ALIVE, "send_dimensions": SEND_DIMENSIONS},
}

SUMMARIZATION: Mapping[str, Mapping[str, Option]] = {
    "extractive": {},
    "openai": {
        "answer_format": Option(
            "how the model is kept to the form of its answer", str, ("json_schema", "json_object", "none")
        ),
        "limit_field": Option("the field that bounds an answer", str, ("max_completion_tokens", "max_tokens")),
    },
    "anthropic": {},
    "ollama": {
        "keep_alive": KEEP_ALIVE,
        "context_tokens": Option("tokens of question and answer together that the model is set up for", int, low=1),
    },
}


def option_faults(
    field: str, kind: str, options: Mapping[str, Option], values: Mapping[str, Any]
) -> Iterator[ConfigError]:
    """Yield the faults of a provider's options: missing, out of range, unknown."""
    for name, option in options.items():
        if name not in values:
            yield MissingRequired(
                f"{field}.options.{name} is required: {option.meaning}", field=f"{field}.options.{name}"
            )
        elif (fault := option.fault(values[name])) is not None:
            shown = values[name] if isinstance(values[name], int) else "it"
            yield InvalidConfigValue(field=f"{field}.options.{name}", value=shown, reason=fault)
    unknown = sorted(set(values) - set(options))
    if unknown:
        there = f"has {', '.join(options)}" if options else "has no options"
        yield InvalidConfigValue(field=f"{field}.options", value=unknown, reason=f"provider_type {kind} {there}")


Provider = TypeVar("Provider")


def is_costly(settings: ServiceConfig) -> bool:
    """Return whether asking this provider takes longer than looking into the store."""
    return settings.endpoint is not None or settings.provider_type == "minilm"


def build_embedding_provider(
    settings: ProviderConfig, token_counter: TokenCounter | None = None, *, field: str = "embedding_provider"
) -> EmbeddingProvider:
    """Return the embedding provider that the settings name; no model file is read and no request sent yet.

    ``token_counter`` estimates the tokens of a request, for a service's limits; without one, bytes are counted.
    ``field`` is the section that errors name.

    Raises: ProviderNotSupported, ExtraNotInstalled, MissingRequired, InvalidConfigValue, IncompatibleOptions;
        MultipleErrors for several of them.
    """
    build = _chosen(_EMBEDDING, field, settings)
    return build(settings, token_counter or _bytes, field)


def build_summarization_provider(
    settings: SummarizerConfig, embedding_provider: EmbeddingProvider | None, token_counter: TokenCounter
) -> SummarizationProvider:
    """Return the summarization provider that the settings name; it counts tokens with ``token_counter``.

    Raises: as ``build_embedding_provider``.
    """
    build = _chosen(_SUMMARIZATION, "summarization_provider", settings)
    return build(settings, embedding_provider, token_counter)


# --- on this machine -----------------------------------------------------------------------------


def _static(settings: ProviderConfig, _: TokenCounter, field: str) -> EmbeddingProvider:
    from caliber.llm.local.static import DIMENSIONS, MODEL, StaticEmbeddingProvider

    _local(field, settings)
    _model_is(field, settings, MODEL)
    return StaticEmbeddingProvider(DIMENSIONS[-1] if settings.dimensions is None else settings.dimensions)


def _minilm(settings: ProviderConfig, _: TokenCounter, field: str) -> EmbeddingProvider:
    from caliber.llm.local.minilm import DIMENSIONS, MODEL, MiniLmEmbeddingProvider

    _local(field, settings)
    _model_is(field, settings, MODEL)
    if settings.dimensions not in (None, DIMENSIONS):
        raise InvalidConfigValue(
            field=f"{field}.dimensions", value=settings.dimensions, reason=f"{MODEL} has {DIMENSIONS}"
        )
    return MiniLmEmbeddingProvider(threads=settings.options["threads"], max_tokens=settings.options["max_tokens"])


def _hash(settings: ProviderConfig, _: TokenCounter, field: str) -> EmbeddingProvider:
    from caliber.llm.local.hashed import HashEmbeddingProvider

    _local(field, settings)
    if settings.dimensions is None:
        raise MissingRequired(field=f"{field}.dimensions")
    return HashEmbeddingProvider(settings.dimensions, settings.model)


def _extractive(
    settings: SummarizerConfig, embedding_provider: EmbeddingProvider | None, token_counter: TokenCounter
) -> SummarizationProvider:
    from caliber.llm.local.extractive import MODEL, ExtractiveProvider

    _local("summarization_provider", settings)
    _model_is("summarization_provider", settings, MODEL)
    if settings.chat is not None:
        raise _clash("summarization_provider", settings, "chat", "this provider is no language model")
    return ExtractiveProvider(token_counter, embedding_provider)


def _local(field: str, settings: ServiceConfig) -> None:
    """Refuse settings that a local provider would silently ignore."""
    for name, value in (("endpoint", settings.endpoint), ("api_key", settings.api_key), ("http", settings.http)):
        if value is not None:
            raise _clash(field, settings, name, "this provider runs in the process and sends no requests")


def _model_is(field: str, settings: ServiceConfig, model: str) -> None:
    if settings.model != model:
        raise InvalidConfigValue(
            field=f"{field}.model", value=settings.model, reason=f"provider_type {settings.provider_type} has {model}"
        )


def _clash(field: str, settings: ServiceConfig, name: str, reason: str) -> IncompatibleOptions:
    return IncompatibleOptions(
        option_a=f"{field}.provider_type = {settings.provider_type}", option_b=f"{field}.{name}", reason=reason
    )


# --- over HTTP -----------------------------------------------------------------------------------


def _remote_embedding(settings: ProviderConfig, token_counter: TokenCounter, field: str) -> EmbeddingProvider:
    from caliber.llm.remote import embedding as remote

    client = _client(field, settings, needs=("dimensions",))
    kinds = {
        "openai": remote.OpenAIEmbeddingProvider,
        "voyage": remote.VoyageEmbeddingProvider,
        "ollama": remote.OllamaEmbeddingProvider,
    }
    return kinds[settings.provider_type](client, settings, token_counter)


def _language_model(
    settings: SummarizerConfig, _: EmbeddingProvider | None, token_counter: TokenCounter
) -> SummarizationProvider:
    from caliber.llm.language_model import LanguageModelProvider
    from caliber.llm.remote import chat

    client = _client("summarization_provider", settings, needs=("chat",))
    assert settings.chat is not None  # or _client had refused
    kinds: Mapping[str, Callable[..., chat.ChatModel]]
    kinds = {"openai": chat.OpenAIChat, "anthropic": chat.AnthropicChat, "ollama": chat.OllamaChat}
    model = kinds[settings.provider_type](client, settings, token_counter)
    return LanguageModelProvider(model, settings.chat, token_counter)


_NEEDS_KEY = ("voyage", "anthropic")


def _client(field: str, settings: ServiceConfig, needs: tuple[str, ...]) -> HttpClient:
    """Return the connection to a service. Raises: as ``build_embedding_provider``."""
    from caliber.llm.remote.chat import ANTHROPIC_VERSION
    from caliber.llm.remote.http import HttpClient, Service

    kind = settings.provider_type
    fields = ("endpoint", "http", *needs, *(("api_key",) if kind in _NEEDS_KEY else ()))
    _raise(MissingRequired(field=f"{field}.{name}") for name in fields if getattr(settings, name) is None)
    endpoint, http = settings.endpoint, settings.http
    assert endpoint is not None
    assert http is not None
    service = Service(kind, endpoint, settings.api_key)
    if kind == "anthropic":
        version = (("anthropic-version", ANTHROPIC_VERSION),)
        service = Service(kind, endpoint, settings.api_key, "x-api-key", "", version)
    return HttpClient(service, http)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


# --- choosing ------------------------------------------------------------------------------------


def _chosen(builders: Mapping[str, Provider], field: str, settings: ServiceConfig) -> Provider:
    kind = settings.provider_type
    build = builders.get(kind)
    if build is None:
        supported = tuple(sorted(builders))
        raise ProviderNotSupported(
            f"{field}.provider_type = {kind!r} is not supported; supported: {', '.join(supported)}",
            provider=kind,
            supported=supported,
        )
    declared = EMBEDDING if builders is _EMBEDDING else SUMMARIZATION
    _raise(option_faults(field, kind, declared[kind], settings.options))
    return build


def _raise(faults: Iterator[ConfigError]) -> None:
    """Raise the errors, if any: one as itself, several together."""
    found = list(faults)
    if len(found) == 1:
        raise found[0]
    if found:
        raise MultipleErrors(errors=found)


_EMBEDDING: Mapping[str, Callable[[ProviderConfig, TokenCounter, str], EmbeddingProvider]] = {
    "hash": _hash,
    "minilm": _minilm,
    "ollama": _remote_embedding,
    "openai": _remote_embedding,
    "static": _static,
    "voyage": _remote_embedding,
}
_SUMMARIZATION: Mapping[
    str, Callable[[SummarizerConfig, EmbeddingProvider | None, TokenCounter], SummarizationProvider]
] = {
    "anthropic": _language_model,
    "extractive": _extractive,
    "ollama": _language_model,
    "openai": _language_model,
}
