"""Complete configurations to start from.

A profile is chosen by name, never assumed. ``reference`` takes the numbers of the source documents where they
exist; the knobs themselves know those (``seed``), and the few places where we differ are listed in ``DEPARTURES``
with their reason. Everything else is ours. ``coding_agent``, ``chat_companion`` and ``ops_agent`` change what their
tables in ``agent_profiles`` say.

Source: K-002, O-14, design section 8.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Any, Final

from caliber.config.agent_profiles import (
    AGENT_PROFILES,
    CHAT_COMPANION,
    CODING_AGENT,
    OPS_AGENT,
    SOURCES,
    AgentProfile,
    Change,
)
from caliber.config.search_profiles import CONVERSATION, search_settings
from caliber.config.tree import CaliberConfig, override

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

TOKEN_BUDGET: Final = 8_000
DIMENSIONS: Final = 256
BLOCK_TURNS: Final = 24
STATIC_MODEL: Final = "wordllama-l2-supercat"
_ABSENT: Final = object()
EMBED_EXTRA: Final = ("tokenizers", "wordllama")

DEPARTURES: Final = {
    "assembly.note_min_similarity": "0.5 was meant for large models; static vectors of related texts score 0.3 to 0.5.",
    "pcp.dosage.max_scopes_in_window": "Shares of the budget shape a window; this only bounds abuse.",
    "pcp.dosage.max_artifacts_in_window": "20 short artifacts left most of a budget unused; this only bounds abuse.",
    "pcp.dosage.max_notes_in_window": "10 notes left most of a budget unused; this only bounds abuse.",
    "search.vector_candidates": "Measured: 200 of a few hundred turns find more than 20 (docs/search.md).",
    "search.min_similarity": "0.7 was meant for large models; static vectors of related texts score 0.3 to 0.5.",
    "search.normalisation": "Measured best (docs/search.md).",
    "search.weights.vector": "Measured (docs/search.md); the sources' four weights are the search profile `sources`.",
    "search.weights.keyword": "Measured (docs/search.md), as above.",
    "search.weights.graph": "Measured (docs/search.md), as above.",
    "search.weights.importance": "Measured (docs/search.md), as above.",
    "pcp.anti_sprawl.max_artifact_size": "The bytes of a whole window: 8,000 tokens of 3.5 bytes.",
}


def embed_available() -> bool:
    """Return whether the extra ``embed`` is installed, without importing it."""
    return all(importlib.util.find_spec(name) is not None for name in EMBED_EXTRA)


def reference(path: str | os.PathLike[str], /, **overrides: Any) -> CaliberConfig:
    """Return the reference configuration for the store at ``path``.

    With ``**{"storage.adapter": "postgres"}`` the path is ``env:NAME`` of a variable that holds a DSN.

    Knobs are changed by name or dotted path: ``reference("a.db", token_budget=4000, **{"aio.workers": 2})``. The
    knobs that must agree with a changed one (K-006, vector dimensions, blocks of turns) follow it unless they are
    changed too. With the extra ``embed`` texts are embedded on this machine; without it there is no embedding
    provider and all but relevance by vector works.

    Raises: MultipleErrors.
    """
    return CaliberConfig.from_mapping(_with(_base(os.fspath(path), overrides), overrides))


def coding_agent(path: str | os.PathLike[str], /, **overrides: Any) -> CaliberConfig:
    """Return the configuration of an agent that changes code; as ``reference`` otherwise. Raises: MultipleErrors."""
    return _agent(CODING_AGENT, path, overrides)


def chat_companion(path: str | os.PathLike[str], /, **overrides: Any) -> CaliberConfig:
    """Return the configuration of an agent that talks with a person; as ``reference``. Raises: MultipleErrors."""
    return _agent(CHAT_COMPANION, path, overrides)


def ops_agent(path: str | os.PathLike[str], /, **overrides: Any) -> CaliberConfig:
    """Return the configuration of an agent that runs systems; as ``reference`` otherwise. Raises: MultipleErrors."""
    return _agent(OPS_AGENT, path, overrides)


def sources(path: str | os.PathLike[str], /, **overrides: Any) -> CaliberConfig:
    """Return a configuration that fills windows as the source documents do; as ``reference`` otherwise.

    Raises: MultipleErrors.
    """
    return _agent(SOURCES, path, overrides)


PROFILES: Final = {
    "reference": reference,
    "coding-agent": coding_agent,
    "chat-companion": chat_companion,
    "ops-agent": ops_agent,
    "sources": sources,
}


def reasons(profile: str, config: CaliberConfig) -> dict[str, str]:
    """Return, by path, why a profile gave a configuration's knobs the values they have; the reference has no reasons.

    A knob that was changed since has none.
    """
    if profile not in AGENT_PROFILES:
        return {}
    changes = AGENT_PROFILES[profile].changes
    values = _values(changes, config.token_budget, vectors=config.embedding_provider is not None)
    data = config.to_mapping()
    return {path: changes[path].why for path, value in values.items() if value_at(data, path) == value}


def _agent(profile: AgentProfile, path: str | os.PathLike[str], overrides: dict[str, Any]) -> CaliberConfig:
    base = _base(os.fspath(path), overrides)
    changed = profile.changes.get("token_budget")
    budget = overrides.get("token_budget", base["token_budget"] if changed is None else changed.value)
    vectors = base.get("embedding_provider") is not None
    base = override(base, _values(profile.changes, budget if isinstance(budget, int) else 1, vectors=vectors))
    return CaliberConfig.from_mapping(_with(base, overrides))


def _values(changes: Mapping[str, Change], budget: int, *, vectors: bool) -> dict[str, Any]:
    """Return what a profile sets."""
    out = {path: change.value for path, change in changes.items() if vectors or not change.vectors}
    if "token_budget" in changes:
        out["token_budget"] = out["pcp.dosage.max_context_tokens"] = budget
    return out


def value_at(data: Any, path: str) -> Any:
    """Return what stands at a dotted path of nested data, or None."""
    for part in path.split("."):
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _base(path: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    given = overrides.get("embedding_provider", _ABSENT)
    embed = embed_available() if given is _ABSENT else given is not None
    base = _reference(path, overrides.get("storage.adapter"), overrides.get("token_budget"), embed)
    if given is not _ABSENT:
        base["embedding_provider"] = given
    return base


def _with(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    return override(base, {**_following(overrides, base), **overrides})


def _following(overrides: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return the knobs that follow the changed ones."""
    pairs = [
        ("checkpoint_retention", "pcp.recovery_points.max_checkpoints"),
        ("stale_threshold", "pcp.grounding.stale_data_max_age_ms"),
        ("summaries.block_turns", "assembly.evict_block_turns"),
    ]
    provider = base.get("embedding_provider")
    changed = dict(overrides)
    if isinstance(provider, Mapping):
        pairs.append(("vector.dimensions", "embedding_provider.dimensions"))
        if "embedding_provider" in overrides and "dimensions" in provider:
            changed.setdefault("embedding_provider.dimensions", provider["dimensions"])
    out: dict[str, Any] = {}
    for pair in pairs:
        for one, other in (pair, pair[::-1]):
            if one in changed and other not in changed:
                out[other] = changed[one]
    return out


def _reference(path: str, adapter: Any, budget: Any, embed: bool) -> dict[str, Any]:
    tokens = budget if isinstance(budget, int) and budget > 0 else TOKEN_BUDGET
    data: dict[str, Any] = {
        "token_budget": TOKEN_BUDGET,
        "checkpoint_retention": 5,
        "stale_threshold": 30 * DAY,
        "contradiction_threshold": 0.85,
        "validation_mode": "on_mutation",
        "lock_timeout": 30 * SECOND,
        "message_retention": 30 * DAY,
        "delegation_timeout": HOUR,
        # Nothing is too slight: limits and budgets keep the most relevant (docs/search.md, In windows).
        "min_relevance_threshold": 0.0,
        "orphan_detection_threshold": DAY,
        "embedding_cache_retention": 30 * DAY,
        "cache_dir": "~/.cache/caliber",
        "storage": _postgres(path) if adapter == "postgres" else _sqlite(path),
        "resident": {
            "resident_bytes": 1 << 30,
            "read_consistency": "local",
            "feed_poll_ms": 200,
            "warm_after_ms": 200,
            "segment_rows": 4_096,
            "compact_dead_ratio": 0.3,
            "evaluator": "numpy",
            "verify_on_open": False,
        },
        "write_behind": {
            "queue_max": 4_096,
            "flush_interval_ms": 200,
            "shutdown_ms": 5 * SECOND,
            "window_durability": "behind",
            "usage_enabled": True,
            "trace_enabled": True,
        },
        "retention": {
            "windows_ms": 30 * DAY,
            "events_ms": 90 * DAY,
            "changes_ms": 7 * DAY,
            "changes_keep_rows": 100_000,
            "apply_every_ms": HOUR,
            "sweep_every_ms": 10 * MINUTE,
            "sweep_rows": 500,
        },
        "summarization_provider": {"provider_type": "extractive", "model": "extractive", "options": {}},
        "llm_retry_config": {
            "max_retries": 3,
            "initial_backoff": 200,
            "max_backoff": 10 * SECOND,
            "backoff_multiplier": 2.0,
            "jitter": 0.2,
            "max_retry_after": MINUTE,
        },
        "embedding": {
            "embed": {
                "turn": "behind" if embed else "off",
                "note": "commit" if embed else "off",
                "artifact": "commit" if embed else "off",
                "scope": "commit" if embed else "off",
                "default": "commit" if embed else "off",
            },
            "batch_size": 64,
            "worker_idle_ms": 500,
            "reembed": "behind",
            "reembed_pause_ms": 20,
            "long_text": "chunk_mean",
            "long_text_tokens": 512,
            "cache_entries": 10_000,
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
            "recent_exchanges": 2,
            "recent_from_tokens": 600,
            "pause_ms": 6 * HOUR,
            "evict_block_turns": BLOCK_TURNS,
            "evict_share": 0.3,
            "spare_share": 0.14,
            "fill_ratio": 0.95,
            "relevance": "search",
            "relevant_limit": 20,
            "recency_fallback_limit": 10,
            "rule_limit": 1_000,
            "summary_mode_tokens": 64,
            "note_search_limit": 20,
            "note_min_similarity": 0.15,
            "notes_without_query": 10,
            "neutral_relevance": 0.5,
            "overflow_policy": "truncate",
            "truncate_min_tokens": 32,
            "message_overhead_tokens": 4,
            "max_turns": 1_000,
            "artifact_limit": 1_000,
            "summary_limit": 50,
            "section_shares": {
                "history": [0.06, 0.06],
                "user": [0.06, 0.76],
                "artifacts": [0.04, 0.3],
                "notes": [0.04, 0.3],
                "recall": [0.1, 0.75],
            },
            "separator": "\n\n",
            "section_headers": True,
        },
        "recall": {
            "from": "owner",
            "limit": 400,
            "carried_share": 1.0,
            "length_weight": 0.1,
            "duplicate_similarity": 0.98,
            "alike_share": 0.5,
            "trust": "tool",
        },
        "context_window_persistence": {"kind": "ttl", "ttl_ms": 30 * DAY},
        "trajectory": {"children_on_complete": "reject", "store_goal_text": True},
        "close": {"on_llm_failure": "close_without_summary", "summary_max_tokens": 200},
        "summaries": {"turns": "behind", "block_turns": BLOCK_TURNS, "max_tokens": 120},
        "notes": {"initial_confidence": 1.0},
        "pcp": {
            "context_dag": {"enabled": True, "max_depth": 10, "prune_strategy": "hybrid"},
            "recovery_points": {"frequency": "per_scope", "max_checkpoints": 5, "compression_enabled": True},
            "dosage": {
                "max_context_tokens": tokens,
                "max_scopes_in_window": 50,
                "max_artifacts_in_window": 200,
                "max_notes_in_window": 200,
                "critical_priority": 90,
                "compress_ratio": 0.5,
            },
            "anti_sprawl": {
                "linter_enabled": True,
                "vocabulary_enforcement": False,
                "vocabulary": [],
                "duplicate_detection": True,
                "duplicate_limit": 5,
                "duplicate_similarity": 0.95,
                "max_artifact_size": 28_000,
            },
            "grounding": {
                "require_source_for_facts": True,
                "confidence_threshold": 0.5,
                "stale_data_max_age_ms": 30 * DAY,
                "conflict_resolution": "highest_confidence",
            },
        },
        "principal": {"kind": "human", "id": "owner", "admin": True},
        "access": {
            "default_visibility": {
                "orchestrator": ["orchestrator", "optimizer"],
                "optimizer": ["optimizer", "executor"],
                "reviewer": ["reviewer", "executor"],
                "executor": ["executor", "reviewer"],
            },
            "ownership": "agent",
        },
        # What a caller does not vouch for is taken for what a program said.
        "trust": {
            "system_turns": "system",
            "user_turns": "user",
            "assistant_turns": "tool",
            "tool_turns": "tool",
            "web_tools": [],
            "artifacts": "tool",
            "notes": "tool",
        },
        "debug": {"trace_limit": 100, "view_limit": 100},
        "aio": {"workers": 4, "queue": 1_024},
        "policy_engine": {
            "on_error": "continue",
            "time_zone": "UTC",
            "schedule_poll_ms": 15 * SECOND,
            "schedule_attempts_max": 3,
            "trigger_takeover_ms": 5 * MINUTE,
        },
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
            "hnsw_ef_search": 100,
            "hnsw_max_scan_tuples": 20_000,
            "ivfflat_lists": 100,
            "ivfflat_probes": 10,
        }
    return data


def _sqlite(path: str) -> dict[str, Any]:
    return {
        "adapter": "sqlite",
        "path": path,
        "durability": "commit",
        "busy_timeout_ms": 5 * SECOND,
        "fork_wait_ms": 10 * SECOND,
        "readers": 4,
        "wal_autocheckpoint_pages": 1_000,
        "mmap_bytes": 0,
        "cache_kib": 16_384,
        "statement_cache": 256,
        "group_max_batch": 256,
        "group_wait_us": 0,
        "serialization_retries": 5,
    }


def _postgres(dsn: str) -> dict[str, Any]:
    return {
        "adapter": "postgres",
        "dsn": dsn,
        "schema_name": "caliber",
        "durability": "commit",
        "pool_max": 8,
        "pool_timeout_ms": 5 * SECOND,
        "connect_timeout_ms": 5 * SECOND,
        "statement_timeout_ms": 30 * SECOND,
        "lock_timeout_ms": 5 * SECOND,
        "prepared_max": 1_024,
        "group_max_batch": 256,
        "group_wait_us": 0,
        "serialization_retries": 5,
    }


def _policies() -> list[dict[str, Any]]:
    """What the sources' example does at a scope's and a task's end, except that nothing is ever removed."""
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
