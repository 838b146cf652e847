"""Root class ``CaliberConfig``: the validated, immutable configuration of all sections.

Every knob is required: an omitted one is an error, not a default. All faults are reported at once, as one
``MultipleErrors``.

Source: C-094 to C-126, design section 8.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

import pydantic
from pydantic import Field, PrivateAttr

from caliber.config import faults
from caliber.config.access.rights import AccessConfig, AgentsConfig
from caliber.config.bases import KNOB as BASE
from caliber.config.bases import complete
from caliber.config.context import (
    TOKEN_BUDGET_MAX,
    AssemblyConfig,
    PersistenceConfig,
    RecallConfig,
    SectionPriorities,
    TokensConfig,
)
from caliber.config.injection import RULES_MAX, InjectionRule
from caliber.config.knobs import AsList, Duration, Int, Name, Real, Section, Text, knob
from caliber.config.lifecycle import (
    CloseConfig,
    JobsConfig,
    LearningConfig,
    PolicyEngineConfig,
    PrincipalConfig,
    SummariesConfig,
    TimeZone,
    TrajectoryConfig,
    TrustConfig,
)
from caliber.config.memories import MEMORIES_MAX, MemoryConfig, WithPackaged
from caliber.config.nested import override, plain
from caliber.config.parsing import parse_json, parse_toml
from caliber.config.pcp import PCPConfig
from caliber.config.policies import PolicyConfig
from caliber.config.providers import (
    EmbeddingConfig,
    ProviderConfig,
    RetryConfig,
    SummarizerConfig,
    VectorConfig,
)
from caliber.config.rules import checks, declared  # noqa: F401  (declared registers checks)
from caliber.config.search import SearchConfig
from caliber.config.secret import REDACTED, LiteralDsn
from caliber.config.storage import (
    AioConfig,
    AnyStorage,
    ResidentConfig,
    RetentionConfig,
    WriteBehindConfig,
    expand_dir,
)
from caliber.config.tenancy import TenancyConfig
from caliber.model import arguments
from caliber.model.errors import ConfigError, MultipleErrors
from caliber.model.storage import ValidationMode

DECLARED_IN_LISTS: Final = ("policies", "memories", "injection_rules")
"""Knobs that are lists of definitions, each a section of its own."""


class CaliberConfig(Section):
    """All that can be set. Two configurations are equal when their contents are; ``hash`` names the content."""

    token_budget: Int = knob("Most tokens of a context window.", "C-094", unit="tokens", gt=0, le=TOKEN_BUDGET_MAX)
    checkpoint_retention: Int = knob("Most checkpoints kept of a task.", "C-097", gt=0)
    contradiction_threshold: Real = knob(
        "Similarity from which two differing statements are compared; those about one subject always are.",
        "C-099",
        ge=0,
        le=1,
    )
    validation_mode: ValidationMode = knob("Validate writes only, or reads too.", "C-101")
    lock_timeout: Duration = knob("Time after which a lock that nobody extends lapses.", "C-112", unit="ms", gt=0)
    message_retention: Duration = knob(
        "Time that messages between agents are kept once they are acknowledged, expired or dead.",
        "C-113",
        unit="ms",
        gt=0,
    )
    delegation_timeout: Duration = knob("Longest wait of a delegation for an answer.", "C-114", unit="ms", gt=0)
    min_relevance_threshold: Real = knob(
        "Least relevance of a record in a window, as assembly.relevance measures it; 0 if a search does not find it.",
        "C-116",
        ge=0,
        le=1,
    )
    orphan_detection_threshold: Duration | None = knob(
        "Time without activity after which an active trajectory is ended as abandoned. Default: never.",
        "C-117",
        unit="ms",
        gt=0,
        optional=True,
    )
    embedding_cache_retention: Duration = knob(
        "Time that cached vectors are kept.", "C-118", unit="ms", source_value=30 * 86_400_000, gt=0
    )
    cache_dir: Name = knob("Folder for files that can be made again; ~ is the home folder.", "design")
    time_zone: TimeZone | None = knob(
        "Zone of the users' days and of schedules; US zones read 12/05 as December. Default: UTC.",
        "C-148",
        optional=True,
    )
    system_instructions: Text | None = knob("Text of section system.", "C-115", optional=True)
    persona: Text | None = knob("Text of section persona.", "design", optional=True)

    storage: AnyStorage = knob("The durable store.", "C-004")
    tenancy: TenancyConfig | None = knob("Many tenants, spread over several databases.", "O-1", optional=True)
    resident: ResidentConfig = knob("Resident memory: the mirror that answers reads.", "design")
    write_behind: WriteBehindConfig = knob("Write-behind: the writes that follow reads.", "design")
    retention: RetentionConfig = knob("Retention of operational records.", "design")
    embedding_provider: ProviderConfig | None = knob("Provider of embeddings.", "C-102", optional=True)
    previous_embedding_provider: ProviderConfig | None = knob(
        "Previous provider of embeddings: searches use its vectors until those of embedding_provider are complete.",
        "ours",
        optional=True,
    )
    vector: VectorConfig | None = knob("Embedding space: the length and the index of vectors.", "C-120", optional=True)
    summarization_provider: SummarizerConfig | None = knob("Provider of summaries.", "C-103", optional=True)
    llm_retry_config: RetryConfig = knob("Retries of calls to providers.", "C-106")
    embedding: EmbeddingConfig = knob("Embedding of records.", "design")
    search: SearchConfig = knob("Search: legs, weights and order.", "M §1.3")
    tokens: TokensConfig = knob("Counting of tokens.", "C-121")
    section_priorities: SectionPriorities = knob("Priorities of sections when the budget is short.", "C-095")
    assembly: AssemblyConfig = knob("Filling of windows.", "C-121")
    recall: RecallConfig = knob("Recall of earlier conversations into windows.", "ours")
    context_window_persistence: PersistenceConfig = knob("Storage of assembled windows.", "C-100")
    trajectory: TrajectoryConfig = knob("Tasks.", "C-237")
    close: CloseConfig = knob("Closing a scope.", "C-215")
    summaries: SummariesConfig = knob("Summaries of blocks of turns.", "design")
    learning: LearningConfig = knob("Facts about people, learnt from messages.", "ours")
    pcp: PCPConfig = knob("Persistent Context Protocol: checkpoints, limits and checks.", "C-119")
    principal: PrincipalConfig = knob("The principal of a handle that is opened without one.", "design")
    agents: AgentsConfig = knob("Agents that share the store.", "C-418")
    access: AccessConfig = knob("Access to records, and views of roles.", "M-131")
    trust: TrustConfig = knob("Trust labels of content that is written without one.", "design")
    aio: AioConfig = knob("The asynchronous face.", "O-4")
    jobs: JobsConfig = knob("Jobs: work in the background.", "C-229")
    policy_engine: PolicyEngineConfig = knob("Execution of policies.", "C-229")
    policies: Annotated[tuple[PolicyConfig, ...], AsList, Field(max_length=1_000)] = knob(
        "Policies: actions at events and on schedules.", "C-226"
    )

    memories: Annotated[tuple[MemoryConfig, ...], AsList, WithPackaged, Field(max_length=MEMORIES_MAX)] = knob(
        "Memories that are declared, besides those of every store; one that comes with CALIBER by its name.", "C-130"
    )
    injection_rules: Annotated[tuple[InjectionRule, ...], AsList, Field(max_length=RULES_MAX)] = knob(
        "Records of memories that enter windows. Default: those of assembly.", "C-465"
    )

    _texts: dict[str, str] | None = PrivateAttr(default=None)
    """The canonical text of each section that is set."""

    def __init__(self, /, **data: Any) -> None:
        found: list[ConfigError] = []
        try:
            super().__init__(**data)
        except pydantic.ValidationError as error:
            found = faults.translate(error, type(self))
        # Outside the except block, so that the values inside pydantic's error do not travel with ours.
        found.extend(checks.run(type(self), data) if found else checks.run_valid(self))
        if found:
            raise MultipleErrors(errors=found)

    # --- where it comes from ---------------------------------------------------------------------

    @classmethod
    def from_mapping(cls, data: Mapping[Any, Any]) -> Self:
        """Return the configuration of a nested mapping, such as a parsed file; its ``base`` supplies omitted settings.

        Raises: MultipleErrors with every fault.
        """
        if not isinstance(data, Mapping):
            raise MultipleErrors(errors=[faults.wrong("configuration", data, "must be a table of knobs")])
        if unusable := [key for key in data if not isinstance(key, str)]:
            raise MultipleErrors(
                errors=[faults.wrong("configuration", key, "names of knobs are text") for key in unusable]
            )
        if BASE in data:
            data = complete(data).data
        return cls(**data)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the configuration in a JSON document.

        Raises: MultipleErrors; a document that does not parse is one fault of field ``json``. Source: C-123.
        """
        return cls.from_mapping(parse_json(text))

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Return the configuration in a TOML document.

        Raises: MultipleErrors; a document that does not parse is one fault of field ``toml``.
        """
        return cls.from_mapping(parse_toml(text))

    @classmethod
    def from_canonical(cls, text: str) -> Self:
        """Return the configuration that ``canonical_json`` wrote: the same one, but for a connection string left out.

        Raises: MultipleErrors.
        """
        data = parse_json(text)
        storage = data.get("storage")
        if isinstance(storage, dict) and storage.get("dsn") == REDACTED:
            storage["dsn"] = LiteralDsn(REDACTED)
        made = cls.from_mapping(data)
        made.__dict__["hash"] = hashlib.sha256(text.encode()).digest()
        return made

    def with_overrides(self, **changes: Any) -> Self:
        """Return a copy with knobs changed, by name or by dotted path: ``**{"storage.path": "a.db"}``.

        Raises: MultipleErrors, as every way to a configuration does.
        """
        return type(self).from_mapping(override(self.to_data(), changes))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy; unlike pydantic's own, with ``update`` it is validated again."""
        return self.with_overrides(**update) if update else super().model_copy(deep=deep)

    def with_storage(self, storage: AnyStorage) -> Self:
        """Return a copy with another store, and without tenancy: the configuration of one tenant.

        It shares the other sections; only rules about the store are checked again. Raises: MultipleErrors, DTypeError.
        """
        arguments.check_type(storage, Section, "storage")
        texts = {**self._section_texts(), "storage": _text(plain(storage))}
        texts.pop("tenancy", None)
        made = super().model_copy()
        made.__dict__.update(storage=storage, tenancy=None)
        made.__dict__.pop("hash", None)
        made._texts = texts
        if found := checks.run_valid(made, about="storage"):
            raise MultipleErrors(errors=found)
        return made

    # --- properties ----------------------------------------------------------------------------------

    def to_mapping(self) -> dict[str, Any]:
        """Return it as plain nested data; durations are milliseconds, secrets are references.

        A connection string that may hold a password is omitted: its place holds ``<redacted>``.
        """
        data: dict[str, Any] = plain(self)
        return data

    def to_data(self) -> dict[str, Any]:
        """Return it as ``to_mapping`` does, but with connection strings as they are: to make another one of it."""
        data: dict[str, Any] = plain(self, opened=True)
        return data

    def canonical_json(self) -> str:
        """Return the one JSON text of this content: keys sorted, no spaces, absent options left out."""
        return "{" + ",".join([f'"{name}":{value}' for name, value in sorted(self._section_texts().items())]) + "}"

    def _section_texts(self) -> dict[str, str]:
        if self._texts is None:
            self._texts = {name: _text(value) for name, value in self.to_mapping().items()}
        return self._texts

    @functools.cached_property
    def hash(self) -> bytes:
        """SHA-256 of ``canonical_json``; windows name the configuration they were made under by it (C-126)."""
        return hashlib.sha256(self.canonical_json().encode()).digest()

    @property
    def cache_path(self) -> Path:
        """``cache_dir`` with ``~`` expanded."""
        return expand_dir(self.cache_dir)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CaliberConfig) and other.hash == self.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def __repr__(self) -> str:
        return f"CaliberConfig({self.storage.adapter}, token_budget={self.token_budget}, hash={self.hash.hex()[:16]})"

    __str__ = __repr__


def _text(value: Any) -> str:
    """Return the one JSON text of plain data."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def values_of(base: CaliberConfig | str | None) -> dict[str, Any] | str | None:
    """Return a base as ``bases.complete`` takes it."""
    return base.to_data() if isinstance(base, CaliberConfig) else base
