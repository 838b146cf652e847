"""Values of the reference profile, from which all other profiles derive, and named presets of section ``search``.

Presets are the weights of the source documents, and the settings measured best.

Source: M-032, B-092, K-202; figures: docs/search.md.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from caliber.model.errors import InvalidConfigValue

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

TOKEN_BUDGET: Final = 8_000
DIMENSIONS: Final = 256
BLOCK_TURNS: Final = 24
STATIC_MODEL: Final = "wordllama-l2-supercat"


def reference_values(path: str, adapter: Any, budget: Any, embed: bool) -> dict[str, Any]:
    """Return the nested values of the reference configuration for one store."""
    tokens = budget if isinstance(budget, int) and budget > 0 else TOKEN_BUDGET
    data: dict[str, Any] = {
        "token_budget": TOKEN_BUDGET,
        "checkpoint_retention": 5,
        "contradiction_threshold": 0.85,
        "validation_mode": "on_mutation",
        "lock_timeout": 30 * SECOND,
        # Nobody answers for an hour: the agent that asked does it otherwise.
        "delegation_timeout": HOUR,
        "message_retention": 30 * DAY,
        # Nothing is too slight: limits and budgets keep the most relevant (docs/search.md, In windows).
        "min_relevance_threshold": 0.0,
        "embedding_cache_retention": 30 * DAY,
        "cache_dir": "~/.cache/caliber",
        "storage": postgres_values(path) if adapter == "postgres" else sqlite_values(path),
        "resident": {
            "resident_bytes": 1 << 30,
            "read_consistency": "local",
            "feed_poll_ms": 200,
            "warm_after_ms": 200,
            "evaluator": "numpy",
        },
        "write_behind": {
            "flush_interval_ms": 200,
            "shutdown_ms": 5 * SECOND,
            "window_durability": "behind",
            "usage_enabled": True,
            "trace_enabled": True,
            "operation_share": 0.0,
        },
        "retention": {
            "windows_ms": 30 * DAY,
            "events_ms": 90 * DAY,
            "changes_ms": 7 * DAY,
            "apply_every_ms": HOUR,
            "sweep_every_ms": 10 * MINUTE,
        },
        "summarization_provider": {"provider_type": "extractive", "model": "extractive", "options": {}},
        "llm_retry_config": {
            "max_retries": 3,
            "initial_backoff": 200,
            "max_backoff": 10 * SECOND,
            "backoff_multiplier": 2.0,
            "jitter": 0.2,
        },
        "embedding": {
            "embed": {
                "turn": "behind" if embed else "off",
                "note": "commit" if embed else "off",
                "artifact": "commit" if embed else "off",
                "scope": "commit" if embed else "off",
                "todo": "commit" if embed else "off",
                "default": "commit" if embed else "off",
            },
            "batch_size": 64,
            "reembed": "behind",
            "long_text": "chunk_mean",
            "long_text_tokens": 512,
        },
        "search": search_settings(CONVERSATION, vectors=embed),
        "tokens": {"estimator": "bytes", "bytes_per_token": 3.5, "vocabulary": "o200k_base"},
        "section_priorities": {
            "user": 90,
            "system": 100,
            "persona": 95,
            "artifacts": 80,
            "notes": 70,
            "history": 60,
            "custom": [],
        },
        "assembly": {
            "order": "stable_first",
            "evict_block_turns": BLOCK_TURNS,
            "fill_ratio": 0.95,
            "relevance": "search",
            "notes_without_query": 10,
            "overflow_policy": "truncate",
            "truncate_min_tokens": 32,
            "message_overhead_tokens": 4,
            "section_shares": {
                "history": [0.06, 0.06],
                "user": [0.06, 0.9],
                "earlier": [0.0, 0.75],
                "artifacts": [0.01, 0.3],
                "notes": [0.01, 0.6],
                "recall": [0.08, 0.75],
            },
            "separator": "\n\n",
            "section_headers": True,
        },
        "recall": {
            "from": "owner",
            "limit": 400,
            "length_weight": 0.1,
            "trust": "tool",
        },
        "context_window_persistence": {"kind": "ttl", "ttl_ms": 30 * DAY},
        "trajectory": {"children_on_complete": "reject", "store_goal_text": True},
        "close": {"on_llm_failure": "close_without_summary"},
        "summaries": {"turns": "behind", "max_tokens": 120},
        "learning": {"method": "model"},
        "pcp": {
            "context_dag": {"enabled": True, "max_depth": 10, "prune_strategy": "hybrid"},
            "recovery_points": {"frequency": "per_scope", "compression_enabled": True},
            "dosage": {
                "max_context_tokens": tokens,
                "max_scopes_in_window": 50,
                "max_artifacts_in_window": 200,
                "max_notes_in_window": 200,
            },
            "anti_sprawl": {
                "linter_enabled": True,
                "vocabulary_enforcement": False,
                "vocabulary": [],
                "duplicate_detection": True,
                "duplicate_similarity": 0.95,
                "max_artifact_size": 100_000,
            },
            "grounding": {
                "require_source_for_facts": False,
                "confidence_threshold": 0.5,
                "stale_data_max_age_ms": 365 * DAY,
                "conflict_resolution": "manual",
            },
        },
        "principal": {"kind": "application", "id": "app", "admin": False},
        # Who never registers an agent need not know of the registry.
        "agents": {
            "registration": "open",
            "heartbeat_timeout_ms": 5 * MINUTE,
            "messages": {
                "lease_ms": 30 * SECOND,
                "attempts_max": 5,
                "pending_max": 10_000,
            },
            # Who only tries a lock is refused often, which is no conflict: contention_ms is left out.
        },
        "access": {
            "default_visibility": {
                "orchestrator": ["orchestrator", "optimizer"],
                "optimizer": ["optimizer", "executor"],
                "reviewer": ["reviewer", "executor"],
                "executor": ["executor", "reviewer"],
            },
            "ownership": "agent",
            "views": {
                "interests": {
                    "orchestrator": ["decision", "architecture", "coordination"],
                    "optimizer": ["decision", "pattern", "skill"],
                    "reviewer": ["bug", "test", "decision"],
                    "executor": ["implementation", "pattern", "bug"],
                },
                "scoring": {
                    "enabled": False,
                },
            },
        },
        # Content that a caller does not vouch for counts as the output of a program.
        "trust": {
            "user_turns": "user",
            "assistant_turns": "tool",
            "tool_turns": "tool",
            "web_tools": [],
            "artifacts": "tool",
            "notes": "tool",
        },
        "aio": {"workers": 4, "queue": 1_024},
        "jobs": {
            "poll_ms": 15 * SECOND,
            "lease_ms": 5 * MINUTE,
            "attempts_max": 3,
            "backoff_ms": 1 * SECOND,
            "backoff_max_ms": 10 * MINUTE,
            "workers": 4,
        },
        "policy_engine": {"on_error": "continue"},
        "policies": _policies(),
        "memories": [],
        "injection_rules": [],
    }
    if embed:
        data["embedding_provider"] = {
            "provider_type": "static",
            "model": STATIC_MODEL,
            "dimensions": DIMENSIONS,
            "options": {},
        }
        data["vector"] = {
            "dimensions": DIMENSIONS,
            "index_type": "hnsw" if adapter == "postgres" else "exact",
            "distance_metric": "cosine",
            "hnsw_m": 16,
            "hnsw_ef_construction": 64,
        }
    return data


def sqlite_values(path: str) -> dict[str, Any]:
    """Return the values of a store in SQLite."""
    return {
        "adapter": "sqlite",
        "path": path,
        "durability": "commit",
        "busy_timeout_ms": 5 * SECOND,
        "readers": 4,
        "wal_autocheckpoint_pages": 1_000,
        "serialization_retries": 5,
    }


def postgres_values(dsn: str) -> dict[str, Any]:
    """Return the values of a store in PostgreSQL."""
    return {
        "adapter": "postgres",
        "dsn": dsn,
        "schema_name": "caliber",
        "durability": "commit",
        "pool_max": 8,
        "statement_timeout_ms": 30 * SECOND,
        "lock_timeout_ms": 5 * SECOND,
        "prepared_max": 1_024,
        "serialization_retries": 5,
    }


def _policies() -> list[dict[str, Any]]:
    """Return the policies of the sources' example, at the end of a scope and a task, except that nothing is removed."""
    return [
        {
            "name": "scope_management",
            "rules": [
                {
                    "on": "scope_close",
                    "actions": [
                        {"action": "summarize", "target": "turn_buffer"},
                        {"action": "extract_artifacts", "target": "turn_buffer"},
                        {"action": "checkpoint", "target": "scope"},
                    ],
                }
            ],
        },
        {
            "name": "trajectory_completion",
            "rules": [
                {
                    "on": "task_end",
                    "actions": [
                        {"action": "consolidate_notes", "target": "trajectory"},
                        {"action": "notify", "channel": "trajectory_complete"},
                    ],
                }
            ],
        },
    ]


_DAY_MS: Final = 24 * 60 * 60 * 1_000

CONVERSATION: Final = "conversation"
MEASURED_SPACES: Final = {
    "all-MiniLM-L6-v2-onnx-int8@384": 0.32,
    "wordllama-l2-supercat@128": 0.33,
    "wordllama-l2-supercat@256": 0.3,
    "wordllama-l2-supercat@64": 0.4,
}
"""Similarity above which texts have something in common, by embedding space: measured, docs/search.md."""

_SIMPLE: Final[dict[str, Any]] = {
    "mode": "resident",
    "candidate_factor": 2,
    "vector_candidates": 20,
    "min_similarity": 0.1,
    "normalisation": "saturation",
    "fusion": "weighted",
    "diversity": 0.0,
    "floor": {
        "words": 0.35,
        "similarity": MEASURED_SPACES,
    },
    "weights": {"vector": 0.4, "keyword": 0.3, "graph": 0.2, "importance": 0.1},
    "keyword": {
        "language": "english",
        "k1": 1.2,
        "b": 0.75,
        "saturate": 0.0,
        "neighbour_boost": 0.0,
        "similar_words": "none",
    },
    "boosts": {
        "mentioned": 0.0,
        "date": 0.0,
        "date_slack_ms": 14 * _DAY_MS,
        "time": 0.0,
        "exact": 0.5,
        "question": 0.0,
        "recency": 0.0,
        "recency_half_life_ms": 30 * _DAY_MS,
    },
    "graph": {"conversation": True},
}
_MEASURED: Final[dict[str, Any]] = {
    **_SIMPLE,
    "vector_candidates": 200,
    "normalisation": "peak",
    "weights": {"vector": 0.21, "keyword": 0.7, "graph": 0.09, "importance": 0.0},
    "keyword": {
        **_SIMPLE["keyword"],
        "k1": 0.9,
        "b": 0.4,
        "saturate": 1.0,
        "neighbour_boost": 0.4,
        "similar_words": "wordllama-l2-supercat",
    },
    "boosts": {**_SIMPLE["boosts"], "mentioned": 0.175, "date": 0.28, "time": 0.175, "question": -0.07},
    # Neighbours boost each word already; only explicit edges are followed.
    "graph": {**_SIMPLE["graph"], "conversation": False},
}
SEARCH_PROFILES: Final[dict[str, dict[str, Any]]] = {
    "sources": _SIMPLE,
    "semantic": {**_SIMPLE, "weights": {"vector": 0.7, "keyword": 0.3, "graph": 0.0, "importance": 0.0}},
    CONVERSATION: _MEASURED,
}


def search_settings(name: str, *, vectors: bool = True) -> dict[str, Any]:
    """Return the section ``search`` of a named profile; without ``vectors`` their weight goes to the other legs.

    ``sources`` has the four weights of the source documents, ``semantic`` their mix of two, ``conversation`` what was
    measured best on long conversations (docs/search.md).

    Raises: InvalidConfigValue for an unknown name.
    """
    if name not in SEARCH_PROFILES:
        raise InvalidConfigValue(field="search", value=name, reason=f"there are {', '.join(SEARCH_PROFILES)}")
    settings = copy.deepcopy(SEARCH_PROFILES[name])
    if not vectors:
        weights = settings["weights"]
        rest = sum(weights.values()) - weights["vector"]
        settings["weights"] = {leg: 0.0 if leg == "vector" else value / rest for leg, value in weights.items()}
        settings["keyword"]["similar_words"] = "none"
    return settings
