"""Sections of language models and vectors: providers, retries, embedding, search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from caliber.config.knobs import Duration, FrozenMap, Int, Name, Option, Real, Section, knob
from caliber.config.secret import SecretRef, has_credentials, is_reference, is_secret_name, readable
from caliber.model.enums import DistanceMetric, EmbedMode, VectorIndexType


def _endpoint(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise PydanticCustomError("endpoint", "must begin with http:// or https://")
    if has_credentials(value):
        raise PydanticCustomError("secret", "holds credentials: give them as api_key = env:NAME")
    return value


def _secrets_in(value: Any, name: str) -> Iterator[str]:
    """Yield the names of options that hold a secret in clear."""
    if isinstance(value, str):
        if has_credentials(value) or (is_secret_name(name) and not is_reference(value)):
            yield name
    elif isinstance(value, FrozenMap):
        for key, item in value.items():
            yield from _secrets_in(item, key)
    elif isinstance(value, tuple):
        for item in value:
            yield from _secrets_in(item, name)


def _options(value: FrozenMap[Any]) -> FrozenMap[Any]:
    names = sorted(set(_secrets_in(value, "")))
    if names:
        raise PydanticCustomError(
            "secret", "{names} may hold a secret: use env:NAME instead", {"names": ", ".join(map(readable, names))}
        )
    return value


class ProviderConfig(Section):
    """Who embeds, or who summarizes; which kinds exist is known to ``caliber.llm``."""

    provider_type: Name = knob(
        "Kind of provider: static or hash embed, extractive summarizes, all on this machine.", "C-104"
    )
    model: Name = knob("Model the provider is to use.", "C-104")
    endpoint: Annotated[Name, AfterValidator(_endpoint)] | None = knob(
        "Address of the service.", "C-104", optional=True
    )
    dimensions: Int | None = knob("Length of its vectors.", "C-104", optional=True, ge=1, le=16_384)
    api_key: SecretRef | None = knob(
        "Variable that holds its key, as env:NAME; never the key itself.", "C-105", optional=True
    )
    options: Annotated[FrozenMap[Option], AfterValidator(_options)] = knob(
        "Further settings that the provider understands.", "ours", optional=True, default=FrozenMap()
    )


class RetryConfig(Section):
    """How calls to providers are tried again."""

    max_retries: Int = knob("Further attempts after the first.", "C-107", ge=0, le=1_000)
    initial_backoff: Duration = knob("Wait before the first further attempt.", "C-108", unit="ms", gt=0)
    max_backoff: Duration = knob("Longest wait, at least initial_backoff.", "C-109", unit="ms", gt=0)
    backoff_multiplier: Real = knob("Growth of the wait from one attempt to the next.", "C-110", gt=1)
    jitter: Real = knob("Part of each wait that is left to chance.", "C-111", ge=0, le=1)


class VectorConfig(Section):
    """The space that vectors live in."""

    dimensions: Int = knob("Length of every vector.", "C-488", gt=0)
    index_type: VectorIndexType = knob(
        "Index of the database beyond resident memory; SQLite is always exact.", "C-488", later=True
    )
    distance_metric: DistanceMetric = knob("What nearness means.", "C-488")
    hnsw_m: Int = knob("HNSW: links of a node.", "C-489", seed=16, ge=2, le=100, later=True)
    hnsw_ef_construction: Int = knob(
        "HNSW: candidates looked at while building, at least 2 * hnsw_m.", "C-489", seed=64, ge=4, le=1_000, later=True
    )
    ivfflat_lists: Int = knob("IVFFlat: number of lists.", "C-121", seed=100, ge=1, le=32_768, later=True)


class EmbeddingConfig(Section):
    """When and how records get their vectors."""

    embed_turns: EmbedMode = knob("When turns are embedded: behind the commit, with it, or never.", "design")
    embed_notes: EmbedMode = knob("When notes are embedded.", "design")
    embed_artifacts: EmbedMode = knob("When artifacts are embedded.", "design")
    embed_summaries: EmbedMode = knob("When summaries of scopes are embedded.", "design")
    batch_size: Int = knob("Texts in one call of the provider.", "ours", unit="texts", ge=1, le=65_536)
    worker_idle_ms: Duration = knob("How often the worker looks for rows that lack a vector.", "ours", unit="ms", gt=0)
    long_text: Literal["chunk_mean", "truncate", "error"] = knob(
        "A text longer than long_text_tokens: the mean of its chunks, its beginning, or an error.", "ours"
    )
    long_text_tokens: Int = knob("Longest text embedded in one piece.", "ours", unit="tokens", ge=1)
    cache_entries: Int = knob("Vectors of recent texts kept in memory.", "ours", ge=0)


class SearchConfig(Section):
    """Limits of search."""

    limit_max: Int = knob("Largest number of hits a caller may ask for.", "K-204", seed=999, ge=1, le=999)
    default_limit: Int = knob("Hits when the command line does not say.", "ours", ge=1, le=999)
    candidate_factor: Int = knob("Candidates each leg contributes, times the limit.", "ours", ge=1, le=100, later=True)
    min_similarity: Real = knob("Least similarity of a hit found by vector.", "ours", ge=-1, le=1)
