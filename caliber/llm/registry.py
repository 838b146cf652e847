"""Which provider a configuration names. No name, no provider: nothing is assumed (C-102, C-103)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from caliber.llm.protocols import EmbeddingProvider, SummarizationProvider
from caliber.llm.texts import TokenCounter
from caliber.model.errors import IncompatibleOptions, InvalidConfigValue, MissingRequired, ProviderNotSupported

Provider = TypeVar("Provider")


class ProviderSettings(Protocol):
    """What is read of a ``ProviderConfig``; the local providers need no key and no endpoint. Source: C-104."""

    @property
    def provider_type(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def dimensions(self) -> int | None: ...
    @property
    def endpoint(self) -> str | None: ...
    @property
    def api_key(self) -> object | None: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


def embedding_provider_types() -> tuple[str, ...]:
    """Return the values of ``embedding_provider.provider_type`` that this version can build."""
    return tuple(sorted(_EMBEDDING))


def summarization_provider_types() -> tuple[str, ...]:
    """Return the values of ``summarization_provider.provider_type`` that this version can build."""
    return tuple(sorted(_SUMMARIZATION))


def is_costly(settings: ProviderSettings) -> bool:
    """Return whether asking this provider takes longer than looking into the store."""
    return settings.endpoint is not None or settings.provider_type == "minilm"


def build_embedding_provider(
    settings: ProviderSettings, token_counter: TokenCounter | None = None
) -> EmbeddingProvider:
    """Return the embedding provider that the settings name; reads no model file yet, and asks nobody.

    Raises: ProviderNotSupported, ExtraNotInstalled, MissingRequired, InvalidConfigValue, IncompatibleOptions.
    """
    return _chosen(_EMBEDDING, "embedding_provider", settings)(settings)


def build_summarization_provider(
    settings: ProviderSettings, embedding_provider: EmbeddingProvider | None, token_counter: TokenCounter
) -> SummarizationProvider:
    """Return the summarization provider that the settings name; it counts tokens with ``token_counter``.

    Raises: ProviderNotSupported, InvalidConfigValue, IncompatibleOptions.
    """
    build = _chosen(_SUMMARIZATION, "summarization_provider", settings)
    return build(settings, embedding_provider, token_counter)


def _static(settings: ProviderSettings) -> EmbeddingProvider:
    from caliber.llm.static import DIMENSIONS, MODEL, StaticEmbeddingProvider

    _local("embedding_provider", settings)
    _model_is("embedding_provider", settings, MODEL)
    return StaticEmbeddingProvider(DIMENSIONS[-1] if settings.dimensions is None else settings.dimensions)


def _hash(settings: ProviderSettings) -> EmbeddingProvider:
    from caliber.llm.hash_provider import HashEmbeddingProvider

    _local("embedding_provider", settings)
    if settings.dimensions is None:
        raise MissingRequired(field="embedding_provider.dimensions")
    return HashEmbeddingProvider(settings.dimensions, settings.model)


def _extractive(
    settings: ProviderSettings, embedding_provider: EmbeddingProvider | None, token_counter: TokenCounter
) -> SummarizationProvider:
    from caliber.llm.extractive import MODEL, ExtractiveProvider

    _local("summarization_provider", settings)
    _model_is("summarization_provider", settings, MODEL)
    if settings.dimensions is not None:
        raise IncompatibleOptions(
            option_a="summarization_provider.provider_type = extractive",
            option_b="summarization_provider.dimensions",
            reason="a summary has no dimensions",
        )
    return ExtractiveProvider(token_counter, embedding_provider)


def _local(field: str, settings: ProviderSettings) -> None:
    """Refuse what a local provider would silently ignore."""
    for name, value in (("endpoint", settings.endpoint), ("api_key", settings.api_key)):
        if value is not None:
            raise IncompatibleOptions(
                option_a=f"{field}.provider_type = {settings.provider_type}",
                option_b=f"{field}.{name}",
                reason="this provider runs in the process and calls nobody",
            )
    if settings.options:
        raise InvalidConfigValue(
            field=f"{field}.options",
            value=sorted(settings.options),
            reason=f"provider_type {settings.provider_type} has no options",
        )


def _model_is(field: str, settings: ProviderSettings, model: str) -> None:
    if settings.model != model:
        raise InvalidConfigValue(
            field=f"{field}.model", value=settings.model, reason=f"provider_type {settings.provider_type} has {model}"
        )


def _chosen(known: Mapping[str, Provider], field: str, settings: ProviderSettings) -> Provider:
    build = known.get(settings.provider_type)
    if build is None:
        supported = tuple(sorted(known))
        raise ProviderNotSupported(
            f"{field}.provider_type = {settings.provider_type!r} is not supported; supported: {', '.join(supported)}",
            provider=settings.provider_type,
            supported=supported,
        )
    return build


_EMBEDDING: Mapping[str, Callable[[ProviderSettings], EmbeddingProvider]] = {"hash": _hash, "static": _static}
_SUMMARIZATION: Mapping[
    str, Callable[[ProviderSettings, EmbeddingProvider | None, TokenCounter], SummarizationProvider]
] = {"extractive": _extractive}
