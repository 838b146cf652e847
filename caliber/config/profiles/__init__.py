"""Complete configurations to start from.

A profile is chosen by name, never assumed. ``reference`` takes the numbers of the source documents where they
exist (``source_value`` of a knob); ``DEVIATIONS`` lists the few other values
with their reasons. Everything else is ours. ``coding_agent``, ``chat_companion`` and ``ops_agent`` make the changes in
the tables of ``agents``.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Any, Final

from caliber.config.profiles.agents import (
    AGENT_PROFILES,
    CHAT_COMPANION,
    CODING_AGENT,
    OPS_AGENT,
    SOURCES,
    AgentProfile,
    Change,
)
from caliber.config.profiles.values import reference_values
from caliber.config.tree import CaliberConfig, override

_ABSENT: Final = object()
EMBED_EXTRA: Final = ("tokenizers", "wordllama")

DEVIATIONS: Final = {
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
    """Return the values that a profile sets."""
    out = {path: change.value for path, change in changes.items() if vectors or not change.vectors}
    if "token_budget" in changes:
        out["token_budget"] = out["pcp.dosage.max_context_tokens"] = budget
    return out


def value_at(data: Any, path: str) -> Any:
    """Return the value at a dotted path of nested data, or None."""
    for part in path.split("."):
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _base(path: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    given = overrides.get("embedding_provider", _ABSENT)
    embed = embed_available() if given is _ABSENT else given is not None
    base = reference_values(path, overrides.get("storage.adapter"), overrides.get("token_budget"), embed)
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
