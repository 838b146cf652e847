"""Configuration sections of embedding and summary providers, retries, vectors, and when records are embedded."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from caliber.config.knobs import Duration, FrozenMap, Int, Name, Option, Real, Section, knob
from caliber.config.secret import SecretRef, has_credentials, is_reference, is_secret_name, readable
from caliber.model.embedding import DistanceMetric, EmbedMode, VectorIndexType

EMBED_DEFAULT: Final = "default"
"""The entry of ``embedding.embed`` for every kind without one."""


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


class HttpConfig(Section):
    """Requests to a provider that is a service."""

    timeout_ms: Duration = knob("Longest time of a whole request.", "M-009", unit="ms", source_value=30_000, gt=0)
    requests_per_minute: Int = knob("Requests sent in a minute; 0 for any number.", "M-016", ge=0)
    tokens_per_minute: Int = knob("Tokens sent in a minute, as estimated; 0 for any number.", "M-016", ge=0)
    max_connections: Int = knob("Connections, hence requests, at a time.", "ours", ge=1, le=1_000)
    proxy: Literal["none", "environment"] = knob(
        "Proxy settings to follow: none, or HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY of the environment.", "ours"
    )
    trusted: Name = knob(
        "Certificates that are trusted: usual, or a file of them (PEM) instead; ~ is the home folder.", "ours"
    )


class ChatConfig(Section):
    """Input and parameters of a language model."""

    max_input_tokens: Int = knob(
        "Longest text of one request, as estimated; a longer text is split between sentences and sent in parts.",
        "ours",
        unit="tokens",
        ge=64,
    )
    max_output_tokens: Int = knob("Longest answer the model may give.", "ours", unit="tokens", ge=16)
    prompts: Name = knob("Instructions to the model: builtin, or a folder with a file for each call.", "ours")
    temperature: Annotated[Real, Field(ge=0)] | Literal["unsent"] = knob(
        "Sampling temperature, 0 or more; not sent to models that do not accept it.", "ours"
    )


class ServiceConfig(Section):
    """A provider; ``caliber.llm`` defines the kinds."""

    provider_type: Name = knob(
        "Kind of provider. On this machine static, minilm and hash embed, extractive summarizes; over HTTP openai, "
        "voyage and ollama embed, openai, anthropic and ollama summarize.",
        "C-104",
    )
    model: Name = knob("Model of the provider.", "C-104")
    endpoint: Annotated[Name, AfterValidator(_endpoint)] | None = knob(
        "Address of the service.", "C-104", optional=True
    )
    api_key: SecretRef | None = knob(
        "Variable that holds the API key, as env:NAME; never the key itself.", "C-105", optional=True
    )
    options: Annotated[FrozenMap[Option], AfterValidator(_options)] = knob(
        "Further settings that the kind of provider asks for.", "ours", optional=True, default=FrozenMap()
    )
    http: HttpConfig | None = knob("Requests to the service; for providers over HTTP.", "ours", optional=True)


class ProviderConfig(ServiceConfig):
    """A provider of embeddings."""

    dimensions: Int | None = knob("Length of the provider's vectors.", "C-104", optional=True, ge=1, le=16_384)


class SummarizerConfig(ServiceConfig):
    """A provider of summaries: it may be a language model."""

    chat: ChatConfig | None = knob("Input and parameters of a language model.", "ours", optional=True)


class RetryConfig(Section):
    """Retries of calls to providers."""

    max_retries: Int = knob("Further attempts after the first.", "C-107", ge=0, le=1_000)
    initial_backoff: Duration = knob("Wait before the first further attempt.", "C-108", unit="ms", gt=0)
    max_backoff: Duration = knob("Longest wait, at least initial_backoff.", "C-109", unit="ms", gt=0)
    backoff_multiplier: Real = knob("Growth of the wait from one attempt to the next.", "C-110", gt=1)
    jitter: Real = knob("Random part of each wait.", "C-111", ge=0, le=1)


class VectorConfig(Section):
    """The space that vectors live in."""

    dimensions: Int = knob("Length of every vector.", "C-488", gt=0)
    index_type: VectorIndexType = knob(
        "Search of near vectors with search.mode backend: an index of PostgreSQL, or exact; SQLite is always exact.",
        "C-488",
    )
    distance_metric: DistanceMetric = knob("Measure of distance.", "C-488")
    hnsw_m: Int = knob("HNSW: links of a node.", "C-489", source_value=16, ge=2, le=100)
    hnsw_ef_construction: Int = knob(
        "HNSW: candidates examined while building, at least 2 * hnsw_m.", "C-489", source_value=64, ge=4, le=1_000
    )


class EmbeddingConfig(Section):
    """Embedding of records: when, and how."""

    embed: FrozenMap[EmbedMode] = knob(
        "Time of embedding, by kind of record: behind (in the background, after the commit), commit (with it)"
        " or off (never). Kinds are turn, note, artifact, scope (its summary) and each declared memory with"
        " an embedding, by its name; default holds for every kind that is not named.",
        "design",
    )
    batch_size: Int = knob("Texts in one call of the provider.", "ours", unit="texts", ge=1, le=65_536)
    reembed: Literal["behind", "manual"] = knob(
        "Process that embeds existing records after the model was changed: any program that has the store"
        " open, in the background, or only `caliber db reembed`.",
        "ours",
    )
    long_text: Literal["chunk_mean", "truncate", "error", "chunks"] = knob(
        "Treatment of a text longer than long_text_tokens: the mean of its chunks' vectors, its beginning"
        " only, an error, or a vector for each chunk, of which the best one counts.",
        "M-015",
        source_value="chunk_mean",
    )
    long_text_tokens: Int = knob(
        "Longest text embedded in one piece; counted by the model's own tokenizer where CALIBER has it.",
        "M-015",
        unit="tokens",
        ge=1,
    )

    def entry_of(self, kind: str) -> str:
        """Return the entry of ``embed`` that decides when a kind is embedded: its own, or ``default``."""
        return kind if kind in self.embed else EMBED_DEFAULT

    def mode_of(self, kind: str) -> EmbedMode:
        """Return when records of a kind are embedded."""
        return self.embed[self.entry_of(kind)]
