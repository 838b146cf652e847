"""Sample declared memory for the contract suite, with a field of every type."""

from __future__ import annotations

from typing import Any, Final

from caliber.config.memories import MemoryConfig
from caliber.schema.catalog import BUILT_IN, Catalog
from caliber.storage.stored_memories import first_memories

MEMORIES: Final[list[dict[str, Any]]] = [
    {
        "name": "example",
        "type": "semantic",
        "fields": [
            {"name": "example_id", "type": "uuid"},
            {"name": "trajectory_id", "type": "uuid", "optional": True},
            {"name": "content", "type": "text"},
            {"name": "subject", "type": "text"},
            {"name": "place", "type": "text", "optional": True},
            {"name": "kind", "type": "enum", "values": ["one", "two words", "3"]},
            {"name": "mood", "type": "enum", "values": ["good", "bad"], "optional": True},
            {"name": "count", "type": "int"},
            {"name": "count_or_none", "type": "int", "optional": True},
            {"name": "score", "type": "float"},
            {"name": "score_or_none", "type": "float", "optional": True},
            {"name": "certain", "type": "bool"},
            {"name": "certain_or_none", "type": "bool", "optional": True},
            {"name": "seen_at", "type": "timestamp"},
            {"name": "valid_until", "type": "timestamp", "optional": True},
            {"name": "other", "type": "uuid", "optional": True},
            {"name": "about", "type": "json"},
            {"name": "about_or_none", "type": "json", "optional": True},
            {"name": "content_embedding", "type": "embedding"},
        ],
        "retention": {"kind": "persistent"},
        "indexes": [
            {"field": "subject", "type": "btree"},
            {"field": "kind", "type": "hash"},
            {"field": "count_or_none", "type": "btree"},
            {"field": "seen_at", "type": "btree"},
            {"field": "other", "type": "hash"},
        ],
        "parent": "note",
    }
]
"""As a configuration takes it."""

CATALOG: Final[Catalog] = BUILT_IN.with_memories(
    first_memories([MemoryConfig.model_validate(memory).declared for memory in MEMORIES], 0)
)
"""The relations of a store that is made with it."""
