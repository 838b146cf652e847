"""Profiles: complete, named configurations to start from (``reference``, ``coding_agent``, …).

A profile is chosen by name, never assumed. ``reference`` takes the numbers of the source documents where they exist
(``source_value`` of a knob); ``DEVIATIONS`` lists the few other values with their reasons. All other values are ours.
``coding_agent``, ``chat_companion`` and ``ops_agent`` make the changes in the tables of ``agents``.
"""

from __future__ import annotations

import os
from typing import Any, Final

from caliber.config.nested import value_at
from caliber.config.profiles.agents import (
    AGENT_PROFILES,
    CHAT_COMPANION,
    CODING_AGENT,
    OPS_AGENT,
    SOURCES,
)
from caliber.config.profiles.fitting import changed_values, values
from caliber.config.tree import CaliberConfig
from caliber.model.arguments import as_path, as_text, check_type

DEVIATIONS: Final = {
    "agents.registration": "Agents that never were registered take locks today; an upgrade must not refuse them.",
    "pcp.dosage.max_scopes_in_window": "Shares of the budget shape a window; this only bounds abuse.",
    "pcp.dosage.max_artifacts_in_window": "20 short artifacts left most of a budget unused; this only bounds abuse.",
    "pcp.dosage.max_notes_in_window": "10 notes left most of a budget unused; this only bounds abuse.",
    "pcp.anti_sprawl.max_artifact_size": "10 kB was for tests: many tools print more.",
    "pcp.grounding.require_source_for_facts": "Notes that a user or program adds by hand name no task.",
    "pcp.grounding.conflict_resolution": "Rules are wrong about one contradiction in five: a person decides.",
    "pcp.grounding.stale_data_max_age_ms": "30 days was for tests: most facts about people hold for years.",
    "search.vector_candidates": "Measured: 200 of a few hundred turns find more than 20 (docs/search.md).",
    "search.min_similarity": "0.7 was meant for large models; static vectors of related texts score 0.3 to 0.5.",
    "search.normalisation": "Measured best (docs/search.md).",
    "search.weights.vector": "Measured (docs/search.md); the sources' four weights are the search profile `sources`.",
    "search.weights.keyword": "Measured (docs/search.md), as above.",
    "search.weights.graph": "Measured (docs/search.md), as above.",
    "search.weights.importance": "Measured (docs/search.md), as above.",
}


def reference(path: str | os.PathLike[str], /, **overrides: Any) -> CaliberConfig:
    """Return the reference configuration for the store at ``path``.

    With ``**{"storage.adapter": "postgres"}`` the path is ``env:NAME`` of a variable that holds a DSN.

    Knobs are changed by name or dotted path: ``reference("a.db", token_budget=4000, **{"aio.workers": 2})``. A section
    given as a mapping changes the knobs it names: ``aio={"workers": 2}``. Knobs that must agree with a changed one
    (K-006, vector dimensions) follow it unless changed too. Without the extra ``embed`` there is no
    provider of embeddings, and all but relevance by vector works.

    Raises: MultipleErrors; DTypeError, InvalidValue for a path that is none.
    """
    return _made("reference", path, overrides)


def coding_agent(path: str | os.PathLike[str], /, **overrides: Any) -> CaliberConfig:
    """Return the configuration of an agent that changes code; as ``reference`` otherwise. Raises: MultipleErrors."""
    return _made(CODING_AGENT.name, path, overrides)


def chat_companion(path: str | os.PathLike[str], /, **overrides: Any) -> CaliberConfig:
    """Return the configuration of an agent that talks with a person; as ``reference``. Raises: MultipleErrors."""
    return _made(CHAT_COMPANION.name, path, overrides)


def ops_agent(path: str | os.PathLike[str], /, **overrides: Any) -> CaliberConfig:
    """Return the configuration of an agent that runs systems; as ``reference`` otherwise. Raises: MultipleErrors."""
    return _made(OPS_AGENT.name, path, overrides)


def sources(path: str | os.PathLike[str], /, **overrides: Any) -> CaliberConfig:
    """Return a configuration that fills windows as the source documents do; as ``reference`` otherwise.

    Raises: MultipleErrors.
    """
    return _made(SOURCES.name, path, overrides)


PROFILES: Final = {
    "reference": reference,
    "coding-agent": coding_agent,
    "chat-companion": chat_companion,
    "ops-agent": ops_agent,
    "sources": sources,
}


def reasons(profile: str, config: CaliberConfig) -> dict[str, str]:
    """Return, by path, why a profile gave knobs their values; the reference and a knob that was changed have none."""
    check_type(config, CaliberConfig, "config")
    known = AGENT_PROFILES.get(as_text(profile, "profile"))
    changes = {} if known is None else known.changes
    values = changed_values(changes, config.token_budget, vectors=config.embedding_provider is not None)
    data = config.to_mapping()
    return {path: changes[path].why for path, value in values.items() if value_at(data, path) == value}


def _made(profile: str, path: str | os.PathLike[str], overrides: dict[str, Any]) -> CaliberConfig:
    as_path(path, "path")
    return CaliberConfig.from_mapping(values(profile, os.fspath(path), overrides))  # as written: it may be a DSN
