"""Configuration: typed sections, validation, files, profiles and the manual of all settings."""

from caliber.config.context import (
    AssemblyConfig,
    PersistenceConfig,
    SectionPriorities,
    TokensConfig,
)
from caliber.config.injection import InjectionKind, InjectionMode, InjectionRule
from caliber.config.knobs import FrozenMap
from caliber.config.lifecycle import (
    CloseConfig,
    PolicyEngineConfig,
    PrincipalConfig,
    SummariesConfig,
    TrajectoryConfig,
)
from caliber.config.loading import load_config_file
from caliber.config.memories import (
    FieldConfig,
    IndexConfig,
    MemoryConfig,
    MemoryRetentionConfig,
    WhenConfig,
)
from caliber.config.pcp import (
    AntiSprawlConfig,
    ContextDagConfig,
    DosageConfig,
    GroundingConfig,
    PCPConfig,
    RecoveryConfig,
)
from caliber.config.policies import ActionConfig, PolicyAction, PolicyConfig, PolicyTarget, RuleConfig
from caliber.config.providers import (
    ChatConfig,
    EmbeddingConfig,
    HttpConfig,
    ProviderConfig,
    RetryConfig,
    SummarizerConfig,
    VectorConfig,
)
from caliber.config.search import SearchConfig
from caliber.config.secret import SecretRef
from caliber.config.storage import (
    AioConfig,
    PostgresConfig,
    ResidentConfig,
    RetentionConfig,
    StorageConfig,
    WriteBehindConfig,
)
from caliber.config.tree import CaliberConfig
from caliber.config.trust import TrustConfig
from caliber.config.warnings import ConfigWarning

__all__ = [
    "AccessConfig",
    "ActionConfig",
    "AioConfig",
    "AntiSprawlConfig",
    "AssemblyConfig",
    "CaliberConfig",
    "ChatConfig",
    "CloseConfig",
    "ConfigWarning",
    "ContextDagConfig",
    "DosageConfig",
    "EmbeddingConfig",
    "FieldConfig",
    "FrozenMap",
    "GroundingConfig",
    "HttpConfig",
    "IndexConfig",
    "InjectionKind",
    "InjectionMode",
    "InjectionRule",
    "MemoryConfig",
    "MemoryRetentionConfig",
    "PCPConfig",
    "PersistenceConfig",
    "PolicyAction",
    "PolicyConfig",
    "PolicyEngineConfig",
    "PolicyTarget",
    "PostgresConfig",
    "PrincipalConfig",
    "ProviderConfig",
    "RecoveryConfig",
    "ResidentConfig",
    "RetentionConfig",
    "RetryConfig",
    "RuleConfig",
    "SearchConfig",
    "SecretRef",
    "SectionPriorities",
    "StorageConfig",
    "SummariesConfig",
    "SummarizerConfig",
    "TokensConfig",
    "TrajectoryConfig",
    "TrustConfig",
    "VectorConfig",
    "WhenConfig",
    "WriteBehindConfig",
    "load_config_file",
]
