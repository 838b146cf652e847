"""Configuration: typed sections, validation, files, profiles and the manual of all settings."""

from caliber.config.knobs import FrozenMap
from caliber.config.policies import PolicyAction, PolicyConfig, PolicyTarget
from caliber.config.providers import ChatConfig, HttpConfig, ProviderConfig, SummarizerConfig, VectorConfig
from caliber.config.secret import SecretRef
from caliber.config.storage import AioConfig, PostgresConfig, StorageConfig
from caliber.config.tree import CaliberConfig

__all__ = [
    "AioConfig",
    "CaliberConfig",
    "ChatConfig",
    "FrozenMap",
    "HttpConfig",
    "PolicyAction",
    "PolicyConfig",
    "PolicyTarget",
    "PostgresConfig",
    "ProviderConfig",
    "SecretRef",
    "StorageConfig",
    "SummarizerConfig",
    "VectorConfig",
]
