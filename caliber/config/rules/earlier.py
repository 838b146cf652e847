"""Upgrade of stored configurations from earlier versions: renames old settings, so that old windows replay.

Only stored configurations are translated. Files must use the names of the installed version.
"""

from __future__ import annotations

from typing import Any, Final

from caliber.config.providers import EMBED_DEFAULT
from caliber.model.access import AgentRole

_EMBED_KNOBS: Final = {
    "embed_turns": "turn",
    "embed_notes": "note",
    "embed_artifacts": "artifact",
    "embed_summaries": "scope",
    "embed_memories": EMBED_DEFAULT,
}
"""Knobs of schema 2, each an entry of ``embedding.embed`` now."""

_KEYWORD_KNOBS: Final = {
    "lend_near": "neighbour_boost",
    "lend_far": "far_neighbour_boost",
    "lend_answer": "answer_boost",
}
"""Renamed knobs of ``search.keyword``."""
_JOB_KNOBS: Final = {
    "schedule_poll_ms": "poll_ms",
    "schedule_attempts_max": "attempts_max",
    "trigger_takeover_ms": "lease_ms",
}
"""Knobs of ``policy_engine`` up to schema 3, in the names of section ``jobs``."""
_NEW_JOB_KNOBS: Final = {"backoff_ms": 1, "backoff_max_ms": 1, "history_ms": 0, "workers": 1}
"""Settings that did not exist then; no window depends on them."""


_NEW_SECTIONS: Final[dict[str, Any]] = {
    "learning": {"method": "rules", "max_facts": 100},
    "agents": {
        "registration": "open",
        "heartbeat_timeout_ms": 1,
        "lock_place_ms": 100,
        "lock_poll_ms": 1,
        "messages": {"lease_ms": 1, "attempts_max": 1, "pending_max": 1, "payload_max_bytes": 1, "poll_ms": 0},
        "conflicts": {"concurrent_writes": False, "decisions": False},
    },
    "workspace": {"value_chars": 2, "occurrences_max": 1},
    "message_retention": 1,
    "contradiction_threshold": 1.0,
    "delegation_timeout": 3_600_000,
}
"""Sections and knobs that earlier versions did not have, with what they did then."""

_NO_WEIGHTS: Final = {"base": 1.0, "access": 0.0, "recency": 0.0, "relevance": 0.0}
_NEW_ACCESS_KNOBS: Final[dict[str, Any]] = {
    "views": {
        "interests": {role.value: [] for role in AgentRole},
        "scoring": {
            "enabled": False,
            "candidates": 1,
            "full_uses": 1,
            "half_life_ms": 1,
            "interesting": 0.0,
            "other": 0.0,
            "weights": {role.value: _NO_WEIGHTS for role in AgentRole},
        },
    },
}
"""Settings of section ``access`` that did not exist then; no window depends on them."""
_NEW_GROUNDING_KNOBS: Final = {"verifier_timeout_ms": 1, "conflict_resolution": "manual"}
_NEW_WRITE_BEHIND_KNOBS: Final = {"operation_share": 0.0}
_NEW_RETENTION_KNOBS: Final = {"ended_ms": "forever"}


def renamed(data: dict[str, Any]) -> dict[str, Any]:
    """Return a stored configuration in today's names."""
    search = data.get("search")
    if isinstance(search, dict) and isinstance(keyword := search.get("keyword"), dict):
        keyword = {_KEYWORD_KNOBS.get(name, name): value for name, value in keyword.items()}
        data = {**data, "search": {**search, "keyword": keyword}}
    embedding = data.get("embedding")
    if isinstance(embedding, dict) and _EMBED_KNOBS.keys() <= embedding.keys():
        modes = {kind: embedding[name] for name, kind in _EMBED_KNOBS.items()}
        rest = {name: value for name, value in embedding.items() if name not in _EMBED_KNOBS}
        data = {**data, "embedding": {**rest, "embed": modes}}
    engine = data.get("policy_engine")
    if isinstance(engine, dict) and _JOB_KNOBS.keys() <= engine.keys():
        jobs = {name: engine[earlier] for earlier, name in _JOB_KNOBS.items()} | _NEW_JOB_KNOBS
        rest = {name: value for name, value in engine.items() if name not in _JOB_KNOBS}
        data = {**data, "policy_engine": rest, "jobs": jobs}
    access = data.get("access")
    if isinstance(access, dict):
        data = {**data, "access": {**_NEW_ACCESS_KNOBS, **access}}
    write_behind = data.get("write_behind")
    if isinstance(write_behind, dict):
        data = {**data, "write_behind": {**_NEW_WRITE_BEHIND_KNOBS, **write_behind}}
    retention = data.get("retention")
    if isinstance(retention, dict):
        data = {**data, "retention": {**_NEW_RETENTION_KNOBS, **retention}}
    pcp = data.get("pcp")
    if isinstance(pcp, dict) and isinstance(grounding := pcp.get("grounding"), dict):
        data = {**data, "pcp": {**pcp, "grounding": {**_NEW_GROUNDING_KNOBS, **grounding}}}
    given = {name: value for name, value in data.items() if value is not None or name not in _NEW_SECTIONS}
    return {**_NEW_SECTIONS, **given}
