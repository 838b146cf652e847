"""The configuration tree: what must be stated, what is refused, and that every fault is reported at once."""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest
from support.cases import each

import caliber
from caliber.config import CaliberConfig, FrozenMap, StorageConfig, profiles
from caliber.config.faults import section_in
from caliber.config.knobs import Section
from caliber.config.profiles import services
from caliber.config.rules import checks
from caliber.config.tree import DECLARED_IN_LISTS
from caliber.model.access import AgentRole, PrincipalKind
from caliber.model.errors import (
    ConfigError,
    IncompatibleOptions,
    InvalidConfigValue,
    MissingRequired,
    MultipleErrors,
    ProviderNotSupported,
)
from caliber.model.storage import Durability

PROVIDER = {"provider_type": "hash", "model": "hash", "dimensions": 64, "options": {"seed": 7}, "http": services.http()}
MODEL = services.SUMMARIZATION["anthropic"]
TENANCY = {
    "new_tenants": "files",
    "fence_ms": "10s",
    "verify_in_fence": True,
    "directory": {"adapter": "sqlite", "path": "tenants.db"},
    "sources": {"files": {**profiles.reference("a.db").to_mapping()["storage"], "path": "{tenant}.db"}},
}
SAMPLE = profiles.reference(
    "store.db",
    embedding_provider=PROVIDER,
    previous_embedding_provider=PROVIDER,
    summarization_provider=MODEL,
    tenancy=TENANCY,
)


def sample() -> dict[str, Any]:
    """A complete configuration as plain data, every section present."""
    return SAMPLE.to_mapping()


def put(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *parents, last = path.split(".")
    node = data
    for part in parents:
        node = node[part]
    node[last] = value
    return data


def faults(data: Any) -> list[ConfigError]:
    with pytest.raises(MultipleErrors) as caught:
        CaliberConfig.from_mapping(data)
    assert caught.value.errors
    found: list[ConfigError] = caught.value.errors
    return found


def only(data: Any) -> ConfigError:
    found = faults(data)
    assert len(found) == 1, found
    return found[0]


NAMED_BY_USERS = ("sources", "rights")
"""Sections with a table for each name that the configuration gives."""


def knobs(section: type[pydantic.BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and field of every knob and every section, what there may be many of aside."""
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        yield path, field
        inner = section_in(field.annotation)
        if inner is not None and name not in (*DECLARED_IN_LISTS, *NAMED_BY_USERS):
            yield from knobs(inner, f"{path}.")


REQUIRED = [path for path, field in knobs(CaliberConfig) if field.is_required()]
OPTIONAL = sorted(path for path, field in knobs(CaliberConfig) if not field.is_required())


# --- what must be stated -------------------------------------------------------------------------


@each("path", REQUIRED)
def test_a_missing_knob_is_named(path: str) -> None:
    # C-094 to C-121, K-002, K-003: every knob is required, none has a silent default
    data = sample()
    *parents, last = path.split(".")
    node = data
    for part in parents:
        node = node[part]
    del node[last]
    error = only(data)
    assert isinstance(error, MissingRequired)
    assert error.context["field"] == path


def test_only_the_named_few_may_be_left_out() -> None:
    # C-102 C-103 C-104 C-115 C-120: this list grows only with a requirement that says "optional"
    # (http and chat: C-246, C-497 have them for some kinds of providers, the registry refuses their absence there)
    provider = ["api_key", "dimensions", "endpoint", "http", "options"]
    assert sorted(OPTIONAL) == sorted(
        [
            "system_instructions",
            "persona",
            "access.rights",  # an agent without a rule has every kind
            "agents.contention_ms",  # without it no lock that is waited for is a conflict
            "tenancy",  # a store alone needs no directory
            "embedding_provider",
            *(f"embedding_provider.{name}" for name in provider),
            "previous_embedding_provider",  # nothing was before the first model
            *(f"previous_embedding_provider.{name}" for name in provider),
            "summarization_provider",
            *(f"summarization_provider.{name}" for name in [*provider, "chat"] if name != "dimensions"),
            "vector",
            "context_window_persistence.ttl_ms",
            "principal.role",
            "time_zone",  # without it days are those of UTC
            "tokens.vocabulary",  # an estimator that counts bytes has none
            "orphan_detection_threshold",  # without it no task is ended
            "pcp.anti_sprawl",
            "pcp.anti_sprawl.on_write",  # without it the lint runs on demand
            "pcp.grounding",
        ]
    )


def test_an_empty_configuration_lists_everything_it_lacks() -> None:
    # C-122 K-007
    found = faults({})
    assert all(isinstance(error, MissingRequired) for error in found)
    assert [error.context["field"] for error in found] == [
        name for name, field in CaliberConfig.model_fields.items() if field.is_required()
    ]


@pytest.mark.parametrize("data", [None, [], "text", 7, [("token_budget", 1)]])
def test_what_is_not_a_table_is_one_fault(data: Any) -> None:
    assert isinstance(only(data), InvalidConfigValue)


def test_names_of_knobs_are_text() -> None:
    assert {error.context["reason"] for error in faults({1: 2, None: 3})} == {"names of knobs are text"}
    data = sample()
    data["aio"][1] = 2
    assert isinstance(only(data), InvalidConfigValue)


# --- single values -------------------------------------------------------------------------------

INT64 = 2**63 - 1
POSITIVE = [0, -1, True, 1.5, "1", None, [], 2**63]
NATURAL = [-1, False, 1.5, "1", None, {}, 2**63]
RATIO = [-0.01, 1.01, math.nan, math.inf, -math.inf, "0.5", True, None]
DURATION = [0, -1, True, 1.5, "", "0s", "soon", "30 s", "-1s", "1.5h", None, [], 2**63, "999999999999999w"]
WRONG: dict[str, list[Any]] = {
    "token_budget": [*POSITIVE, 2_000_001],  # C-094
    "section_priorities.user": NATURAL,  # C-096
    "section_priorities.system": NATURAL,
    "section_priorities.persona": NATURAL,
    "section_priorities.artifacts": NATURAL,
    "section_priorities.notes": NATURAL,
    "section_priorities.history": NATURAL,
    "section_priorities.custom": [[["a", -1]], [["", 1]], [["a", 1], ["a", 2]], [["notes", 1]], [["a"]], [["a", 1, 2]],
                                  [{"a": 1}], {"a": 1}, "a"],
    "checkpoint_retention": POSITIVE,  # C-097
    "contradiction_threshold": RATIO,  # C-099
    "context_window_persistence.kind": ["Ttl", "never", 1, None],  # C-100 C-506
    "context_window_persistence.ttl_ms": [0, -1, "0s", "x", 1.5],
    "validation_mode": ["sometimes", "", None, 1],  # C-101 C-506
    "embedding_provider.provider_type": ["", " ", None, 1],  # C-104
    "embedding_provider.model": ["", "\t", None],  # C-104
    "embedding_provider.dimensions": [0, 16_385, 1.5, "64", True],  # C-104
    "embedding_provider.endpoint": ["", "ftp://x", "localhost:80", 1],
    "embedding_provider.options": ["x", [], {"a": None}, {"a": math.nan}, {"a": {1: 2}}, {"a": {"b": object()}}],
    "llm_retry_config.max_retries": NATURAL,  # C-107
    "llm_retry_config.initial_backoff": DURATION,  # C-108
    "llm_retry_config.max_backoff": DURATION,  # C-109
    "llm_retry_config.backoff_multiplier": [1.0, 1, 0.5, -2.0, math.inf, math.nan, "2"],  # C-110
    "llm_retry_config.jitter": RATIO,  # C-111
    "lock_timeout": DURATION,  # C-112
    "message_retention": DURATION,  # C-113
    "delegation_timeout": DURATION,  # C-114
    "system_instructions": [1, [], "\ud800"],  # C-115
    "min_relevance_threshold": RATIO,  # C-116
    "orphan_detection_threshold": [value for value in DURATION if value is not None],  # C-117
    "embedding_cache_retention": DURATION,  # C-118
    "assembly.fill_ratio": [*RATIO, 0.0],  # C-121
    "assembly.overflow_policy": ["", "drop", None],
    "assembly.section_shares": [
        # C-219
        {"notes": [-0.1, 1]},
        {"notes": [0, 1.1]},
        {"notes": [0.5, 0.4]},
        {"notes": ["0", 1]},
        {"notes": [0]},
        {"notes": [0, 0, 1]},
        {"notes": 0.5},
        {"notes": [0, math.nan]},
        {"nowhere": [0, 1]},
        {"notes": [0.6, 1], "recall": [0.5, 1]},
        [],
        None,
        {1: [0, 1]},
    ],
    "recall.from": ["Owner", "task", "", None, 1],
    "recall.limit": [*NATURAL, 10_001],
    "recall.length_weight": RATIO,
    "recall.trust": ["nobody", "", None, 1],
    "assembly.separator": ["x" * 65, 1, None],
    "tokens.bytes_per_token": [0, -1.0, math.nan, math.inf, "3.5", None],
    "tokens.estimator": ["tiktoken", None],
    "pcp.context_dag.enabled": [1, "true", None],  # C-250
    "pcp.context_dag.max_depth": POSITIVE,
    "pcp.context_dag.prune_strategy": ["Lru", "oldest", None],  # C-506
    "pcp.recovery_points.frequency": ["hourly", None],  # C-252
    "pcp.recovery_points.compression_enabled": [0, "no"],
    "pcp.dosage.max_context_tokens": POSITIVE,  # C-254
    "pcp.dosage.max_scopes_in_window": NATURAL,
    "pcp.dosage.max_artifacts_in_window": NATURAL,
    "pcp.dosage.max_notes_in_window": NATURAL,
    "pcp.anti_sprawl.max_artifact_size": POSITIVE,  # C-255
    "pcp.anti_sprawl.duplicate_similarity": RATIO,
    "pcp.anti_sprawl.vocabulary": ["abc", [""], [1], {"a": 1}, {"a"}],
    "pcp.grounding.confidence_threshold": RATIO,  # C-256
    "pcp.grounding.stale_data_max_age_ms": DURATION,
    "pcp.grounding.conflict_resolution": ["oldest", None],
    "vector.dimensions": POSITIVE,  # C-488
    "vector.index_type": ["hsnw", "", None],  # C-491
    "vector.distance_metric": ["euclid", "", None],  # C-491
    "vector.hnsw_m": [1, 101, 16.0],  # C-489
    "vector.hnsw_ef_construction": [3, 1_001],  # C-489
    "storage.adapter": ["mysql", "", None, 1],
    "storage.path": ["", "  ", "env:", "env:9X", "env:A-B", "a\0b", 1, None],
    "storage.durability": ["none", "off", None],
    "storage.readers": [*POSITIVE, 257],
    "resident.evaluator": ["cython", None],
    "resident.read_consistency": ["eventual", None],
    "retention.windows_ms": [0, -1, "0s", "never", 1.5, True, []],
    "embedding.embed": [[], None, "off", {}, {"turn": "off"}, {1: "off"}],
    "embedding.embed.note": ["sometimes", None, True],
    "embedding.embed.default": ["sometimes", None, True],
    "embedding.embed.nowhere": ["off", "sometimes", None],
    "embedding.long_text": ["split", None],
    "search.min_similarity": [-1.1, 1.1, math.nan],
    "principal.kind": ["robot", None],
    "principal.id": ["", " ", 1, "x" * 257],
    "principal.admin": ["yes", 1, None],
    "access.ownership": ["everyone", None],
    "access.default_visibility.executor": [["boss"], "executor", None],
    "close.on_llm_failure": ["ignore", None],  # C-215
    "policy_engine.on_error": ["retry", None],  # C-229
    "time_zone": ["", "Mars/Olympus", "../UTC", "/etc/localtime", "Europe", "a\0b", 1],  # C-148
    "policy_engine.schedule_attempts_max": POSITIVE,
    "trajectory.children_on_complete": ["kill", None],  # C-237
    "policies": [None, {}, "x", [1], [{}]],
    "memories": [None, {}, "x", [1], [{}]],
    "injection_rules": [None, {}, "x", [1], [{}]],
}  # fmt: skip


@each(("path", "value"), [(path, value) for path, values in WRONG.items() for value in values])
def test_a_wrong_value_is_refused_where_it_stands(path: str, value: Any) -> None:
    # C-094 to C-121, C-125, C-250 to C-256, C-488 to C-491, C-506
    found = faults(put(sample(), path, value))
    at_path = [error for error in found if str(error.context.get("field", "")).startswith(path)]
    assert at_path, found
    assert all(isinstance(error, (InvalidConfigValue, MissingRequired)) for error in at_path)
    assert all(error.context["reason"] for error in at_path if isinstance(error, InvalidConfigValue))


@each(("path", "value"), [
    ("token_budget", 2_000_000),
    ("section_priorities.history", 0),
    ("section_priorities.custom", [["tools", 0], ["safety", 99]]),
    ("contradiction_threshold", 0),
    ("contradiction_threshold", 1),
    ("llm_retry_config.max_retries", 0),
    ("llm_retry_config.backoff_multiplier", 1.000001),
    ("lock_timeout", 1),  # K-112: sub-second durations are positive
    ("lock_timeout", "1ms"),
    ("lock_timeout", INT64),
    ("min_relevance_threshold", 0.0),
    ("vector.hnsw_m", 2),
    ("vector.hnsw_ef_construction", 32),
    ("storage.path", "env:CALIBER_STORE"),
    ("storage.path", ":memory:"),
    ("storage.durability", Durability.GROUP),
    ("resident.feed_poll_ms", 0),
    ("resident.warm_after_ms", 0),
    ("retention.changes_ms", None),
    ("retention.changes_ms", "forever"),
    ("assembly.section_shares", {}),
    ("assembly.section_shares", {"user": [0, 0], "recall": [1, 1]}),
    ("embedding.embed", {"default": "off"}),
    ("embedding.embed", {"default": "commit", "turn": "behind", "scope": "off"}),
    ("recall.limit", 0),
    ("recall.from", "tenant"),
    ("embedding_provider.options", {"a": [1, 2.5, {"b": True}], "c": "d"}),
    ("embedding_provider.endpoint", "http://localhost:11434/v1"),
    ("embedding_provider.api_key", "env:OPENAI_API_KEY"),
    ("summarization_provider", None),
    ("policies", []),
])  # fmt: skip
def test_values_at_the_limits_are_accepted(path: str, value: Any) -> None:
    config = CaliberConfig.from_mapping(put(sample(), path, value))
    assert CaliberConfig.from_json(config.canonical_json()) == config


@each("path", [path for path, field in knobs(CaliberConfig) if field.annotation in (float, float | None)])
@each("value", [math.nan, math.inf, -math.inf])
def test_no_number_is_nan_or_infinite(path: str, value: float) -> None:
    # C-099 C-110
    error = only(put(sample(), path, value))
    assert (type(error), error.context["field"]) == (InvalidConfigValue, path)


SECTIONS = [
    "",
    *(
        path
        for path, field in knobs(CaliberConfig)
        if section_in(field.annotation) and path not in (*DECLARED_IN_LISTS, "access.rights")
    ),
]


@each("section", SECTIONS)
def test_an_unknown_knob_is_refused_with_its_path(section: str) -> None:
    # C-124
    path = f"{section}.no_such_knob" if section else "no_such_knob"
    error = only(put(sample(), path, 1))
    assert (type(error), error.context["field"]) == (InvalidConfigValue, path)


def test_a_misspelt_knob_is_answered_with_the_right_name() -> None:
    # C-124
    data = sample()
    data["pcp"]["dosage"]["max_context_token"] = data["pcp"]["dosage"].pop("max_context_tokens")
    missing, misspelt = faults(data)
    assert missing.context == {"field": "pcp.dosage.max_context_tokens"}
    assert "did you mean max_context_tokens?" in str(misspelt)


def test_an_adapter_that_keeps_nothing_for_good_holds_no_store() -> None:
    # K-004 O-3
    error = only(put(sample(), "storage.adapter", "redis"))
    assert isinstance(error, ProviderNotSupported)
    assert error.context["provider"] == "redis"


@pytest.mark.parametrize(
    ("adapter", "where", "kind"), [("libsql", "a.db", "sqlite"), ("cockroachdb", "env:MY_DSN", "postgres")]
)
def test_adapters_of_later_issues_are_refused_when_they_are_opened(adapter: str, where: str, kind: str) -> None:
    # C-159 K-004 O-3: they are configured as their family is
    made = profiles.reference(where, **{"storage.adapter": kind})
    made = made.with_overrides(storage={**made.to_mapping()["storage"], "adapter": adapter})
    for act in (caliber.open, caliber.create, caliber.migrate):
        with pytest.raises(ProviderNotSupported) as caught:
            act(made)
        assert caught.value.context["provider"] == adapter


@pytest.mark.parametrize(("path", "value"), [
    ("\ud800", 1),
    ("storage.\ud800\n", 1),
    ("token_budget.\ud800", 2),
    ("\x1b[31mred\n", 1),
    ("x" * 10_000, 1),
    ("storage.path", "a\ud800b"),
    ("assembly.section_shares", {"\x1b\n": [0, 1]}),
    ("embedding.embed", {"default": "commit", "\x1b\n": "off"}),
    ("embedding.embed", {"default": "commit", "x" * 10_000: "off"}),
    ("embedding.embed", {"default": "commit", "note": "\x1b\n"}),
    ("embedding_provider.options", {"\ud800": 1}),
    ("embedding_provider.options", {"\x1bapi_key": "abc"}),
    ("section_priorities.custom", [["\n\x1b[31m", 1], ["\n\x1b[31m", 1]]),
    ("policies", [{"name": "\x1b[31m", "rules": []}]),
])  # fmt: skip
def test_faults_can_be_printed_anywhere(path: str, value: Any) -> None:
    # Neither terminal escapes, nor line breaks, nor lone surrogates from a file reach a terminal or a log.
    with pytest.raises(MultipleErrors) as caught:
        SAMPLE.with_overrides(**{path: value})
    (error,) = caught.value.errors
    assert str(error).isprintable()
    assert len(str(error)) < 400


# --- rules between knobs -------------------------------------------------------------------------


CLASHES: list[tuple[dict[str, Any], str, str]] = [
    # K-006
    ({"token_budget": 7_999}, "pcp.dosage.max_context_tokens", "token_budget"),
    # C-109
    ({"llm_retry_config.max_backoff": 199}, "llm_retry_config.max_backoff", "llm_retry_config.initial_backoff"),
    # C-120
    ({"vector.dimensions": 63}, "embedding_provider.dimensions", "vector.dimensions"),
    # C-489
    ({"vector.hnsw_ef_construction": 31}, "vector.hnsw_ef_construction", "vector.hnsw_m"),
    # C-493
    ({"vector.dimensions": 16_001, "embedding_provider.dimensions": None}, "vector.dimensions", "storage.adapter"),
    ({"vector.dimensions": 4_001, "embedding_provider.dimensions": 4_001, "vector.index_type": "hnsw"},
     "vector.dimensions", "vector.index_type"),
    # C-464: windows may not be promised longer than they are kept
    ({"context_window_persistence.ttl_ms": "31d"}, "context_window_persistence.ttl_ms", "retention.windows_ms"),
    ({"context_window_persistence": {"kind": "permanent"}}, "context_window_persistence.kind", "retention.windows_ms"),
    ({"context_window_persistence.kind": "ephemeral"}, "context_window_persistence.ttl_ms",
     "context_window_persistence.kind"),
    # C-281
    ({"pcp.anti_sprawl.vocabulary_enforcement": True}, "pcp.anti_sprawl.vocabulary_enforcement",
     "pcp.anti_sprawl.vocabulary"),
    ({"principal.role": "reviewer"}, "principal.role", "principal.kind"),  # M-118
]  # fmt: skip


@pytest.mark.parametrize(("changes", "option_a", "option_b"), CLASHES)
def test_knobs_that_contradict_each_other_are_refused(changes: dict[str, Any], option_a: str, option_b: str) -> None:
    # C-122 K-007: one attempt reports everything, also beside unrelated faults
    data = sample()
    for path, value in changes.items():
        put(data, path, value)
    error = only(data)
    assert isinstance(error, IncompatibleOptions)
    assert (error.context["option_a"], error.context["option_b"]) == (option_a, option_b)
    assert error.context["reason"]
    del data["aio"]
    found = faults(data)
    assert {type(error) for error in found} == {MissingRequired, IncompatibleOptions}
    assert any(error.context.get("option_a") == option_a for error in found)


def test_a_contradiction_is_not_reported_about_a_value_that_is_itself_wrong() -> None:
    found = faults(put(sample(), "checkpoint_retention", "six"))
    assert [error.context.get("field") for error in found] == ["checkpoint_retention"]


def test_a_provider_without_a_vector_space_lacks_it() -> None:
    # C-120
    data = sample()
    del data["vector"]
    error = only(data)
    assert (type(error), error.context["field"]) == (MissingRequired, "vector")


def test_without_any_vectors_nothing_can_be_embedded() -> None:
    # C-102
    data = sample()
    del data["vector"]
    del data["embedding_provider"], data["previous_embedding_provider"]
    found = faults(data)
    assert [error.context["option_a"] for error in found] == [
        "embedding.embed.artifact", "embedding.embed.default", "embedding.embed.note", "embedding.embed.scope",
        "embedding.embed.todo", "embedding.embed.turn", "search.weights.vector",
    ]  # fmt: skip
    data["embedding"]["embed"] = {"default": "off"}
    data["search"]["weights"] = {"vector": 0.0, "keyword": 0.7, "graph": 0.2, "importance": 0.1}
    assert CaliberConfig.from_mapping(data).vector is None


# --- when records are embedded, by kind ----------------------------------------------------------

WITH_VECTORS = {
    "name": "fact",
    "type": "semantic",
    "fields": [{"name": "content", "type": "text"}, {"name": "content_embedding", "type": "embedding"}],
}
WITHOUT = {"name": "step", "type": "procedural", "fields": [{"name": "position", "type": "int"}]}


def embedding_of(modes: Any, *memories: Any) -> dict[str, Any]:
    data = put(sample(), "embedding.embed", modes)
    data["memories"] = list(memories)
    return data


def test_a_kind_is_embedded_as_its_entry_says_or_as_the_default() -> None:
    # C-135
    modes = {"turn": "behind", "fact": "off", "default": "commit"}
    embedding = CaliberConfig.from_mapping(embedding_of(modes, WITH_VECTORS, WITHOUT)).embedding
    assert {kind: embedding.mode_of(kind) for kind in ("turn", "note", "fact", "later")} == {
        "turn": "behind", "note": "commit", "fact": "off", "later": "commit",
    }  # fmt: skip
    assert [embedding.entry_of(kind) for kind in ("turn", "note")] == ["turn", "default"]
    changed = SAMPLE.with_overrides(**{"embedding.embed.note": "off"}).embedding.embed
    assert changed == {**SAMPLE.embedding.embed, "note": "off"}


@pytest.mark.parametrize(("kind", "said"), [
    ("nte", "there is no kind nte; did you mean `note`?"),
    ("fcat", "did you mean `fact`?"),
    ("turns", "did you mean `turn`?"),
    ("turn_buffer", "did you mean `turn`?"),
    ("zebra", "there is no kind zebra; there are default, scope, turn, artifact, note, todo, fact"),
    ("session", "there is no kind session"),
    ("step", "step has no embedding"),
    ("trajectory", "a task has no text of its own"),
])  # fmt: skip
def test_a_kind_that_cannot_be_embedded_is_refused_where_it_stands(kind: str, said: str) -> None:
    # C-122
    error = only(embedding_of({kind: "off", "default": "commit"}, WITH_VECTORS, WITHOUT))
    assert (type(error), error.context["field"]) == (InvalidConfigValue, f"embedding.embed.{kind}")
    assert said in error.context["reason"]


def test_all_that_is_wrong_with_the_modes_of_kinds_comes_at_once() -> None:
    # C-122 K-007
    modes = {"nte": "off", "step": "sometimes", "note": "sometimes", "defualt": "off"}
    found = {(type(error), error.context["field"]) for error in faults(embedding_of(modes, WITH_VECTORS, WITHOUT))}
    assert found == {
        (MissingRequired, "embedding.embed.default"),
        (InvalidConfigValue, "embedding.embed.defualt"),
        (InvalidConfigValue, "embedding.embed.note"),
        (InvalidConfigValue, "embedding.embed.nte"),
        (InvalidConfigValue, "embedding.embed.step"),
    }


def test_a_memory_that_is_wrong_by_itself_is_a_kind_all_the_same() -> None:
    broken = {"name": "fact", "type": "semantic", "fields": []}
    found = faults(embedding_of({"fact": "off", "default": "commit"}, broken))
    assert [error.context["field"] for error in found] == ["memories[0].fields"]


@pytest.mark.parametrize("name", ["embed_turns", "embed_notes", "embed_artifacts", "embed_summaries", "embed_memories"])
def test_a_knob_for_one_kind_is_answered_with_the_knob_for_all(name: str) -> None:
    # C-124
    error = only(put(sample(), f"embedding.{name}", "off"))
    assert error.context["field"] == f"embedding.{name}"
    assert "did you mean embed?" in str(error)


def test_persistence_with_a_lifetime_needs_one() -> None:
    # C-100
    error = only(put(sample(), "context_window_persistence", {"kind": "ttl"}))
    assert error.context == {"field": "context_window_persistence.ttl_ms"}


def test_shares_of_custom_sections_are_known_sections() -> None:
    data = put(sample(), "section_priorities.custom", [["tools", 50]])
    put(data, "assembly.section_shares", {"tools": [0.1, 0.25]})
    config = CaliberConfig.from_mapping(data)
    assert config.assembly.share("tools") == (0.1, 0.25)
    assert config.assembly.share("notes") == (0.0, 1.0)
    assert config.section_priorities.of("tools") == 50
    assert config.section_priorities.of("notes") == config.section_priorities.notes
    with pytest.raises(KeyError):
        config.section_priorities.of("nowhere")


def test_every_check_reads_paths_that_exist() -> None:
    paths = {path for path, _ in knobs(CaliberConfig)}
    assert {path for read, _ in checks.CHECKS for path in read} <= paths


def test_all_faults_of_a_ruined_configuration_come_at_once() -> None:
    # C-122
    data = sample()
    put(data, "token_budget", 0)
    put(data, "aio.workers", "four")
    put(data, "llm_retry_config.max_backoff", 1)
    put(data, "storage.adapter", "redis")
    put(data, "typo", 1)
    del data["search"]["candidate_factor"]
    found = faults(data)
    assert sorted(type(error).__name__ for error in found) == [
        "IncompatibleOptions", "InvalidConfigValue", "InvalidConfigValue", "InvalidConfigValue", "MissingRequired",
        "ProviderNotSupported",
    ]  # fmt: skip


# --- what a configuration is ---------------------------------------------------------------------


def test_nothing_in_it_can_be_changed() -> None:
    # C-126
    config = SAMPLE
    with pytest.raises(pydantic.ValidationError):
        config.token_budget = 1  # type: ignore[misc]
    with pytest.raises(pydantic.ValidationError):
        config.storage.path = "x"  # type: ignore[misc]
    with pytest.raises((TypeError, AttributeError)):
        config.assembly.section_shares["notes"] = (0.0, 1.0)  # type: ignore[index]
    with pytest.raises(AttributeError):
        config.assembly.section_shares.extra = 1  # type: ignore[attr-defined]
    assert isinstance(config.policies, tuple)


def test_it_does_not_share_what_it_was_made_from() -> None:
    # C-126
    data = sample()
    config = CaliberConfig.from_mapping(data)
    before = config.canonical_json()
    data["policies"].clear()
    data["assembly"]["section_shares"].clear()
    data["embedding_provider"]["options"]["seed"] = 8
    assert config.canonical_json() == before
    config.to_mapping()["policies"].clear()
    assert config.canonical_json() == before


def test_hash_and_equality_are_by_content() -> None:
    # C-126
    first = CaliberConfig.from_mapping(sample())
    second = CaliberConfig.from_mapping(dict(reversed(list(sample().items()))))
    other = first.with_overrides(token_budget=8_001)
    assert first == second
    assert first.hash == second.hash
    assert len(first.hash) == 32
    assert {first, second, other} == {first, other}
    assert first != other
    assert first != "configuration"
    assert other.hash != first.hash
    assert first.with_overrides(min_relevance_threshold=-0.0) == first.with_overrides(min_relevance_threshold=0)
    flag, number = ({**PROVIDER, "options": {"seed": seed}} for seed in (True, 1))
    assert first.with_overrides(embedding_provider=flag) != first.with_overrides(embedding_provider=number)


def test_hash_is_sha256_of_the_canonical_json() -> None:
    # C-126
    import hashlib

    text = SAMPLE.canonical_json()
    assert SAMPLE.hash == hashlib.sha256(text.encode()).digest()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def test_every_knob_changes_the_hash() -> None:
    # C-126: a window that names the hash names all of the configuration
    changes: dict[str, Any] = {"token_budget": 9_000, "persona": "x", "retention.events_ms": "forever", "policies": []}
    seen = {SAMPLE.hash}
    for path, value in changes.items():
        seen.add(SAMPLE.with_overrides(**{path: value}).hash)
    assert len(seen) == len(changes) + 1


def test_it_survives_pickling_and_copying() -> None:
    # C-126
    again = pickle.loads(pickle.dumps(SAMPLE))
    assert again == SAMPLE
    assert again.storage == SAMPLE.storage
    assert copy.deepcopy(SAMPLE) == copy.copy(SAMPLE) == SAMPLE.model_copy() == SAMPLE
    assert hash(SAMPLE.storage) == hash(again.storage)


def test_no_way_around_validation() -> None:
    with pytest.raises(MultipleErrors):
        SAMPLE.model_copy(update={"token_budget": 0})
    with pytest.raises(MultipleErrors):
        CaliberConfig(**{**sample(), "token_budget": 0})
    with pytest.raises(MultipleErrors):
        CaliberConfig.model_validate({**sample(), "token_budget": 0})
    forged = StorageConfig.model_construct(**{**dict(SAMPLE.storage), "readers": 0})
    assert only({**sample(), "storage": forged}).context["field"] == "storage.readers"


def test_overrides_are_validated_and_leave_the_original() -> None:
    changed = SAMPLE.with_overrides(**{"storage.path": "b.db", "section_priorities.custom": [("tools", 5)]})
    assert (changed.storage.path, SAMPLE.storage.path) == ("b.db", "store.db")
    assert changed.section_priorities.of("tools") == 5
    assert SAMPLE.with_overrides() == SAMPLE
    for wrong, field in (("storage.pth", "storage.pth"), ("token_budget.x", "token_budget.x"), ("", "configuration")):
        with pytest.raises(MultipleErrors) as caught:
            SAMPLE.with_overrides(**{wrong: 1})
        assert caught.value.errors[0].context["field"] == field
    sections = SAMPLE.with_overrides(storage=changed.storage)
    assert sections.storage.path == "b.db"


def test_the_configuration_of_a_tenant_is_the_one_that_a_copy_would_be() -> None:
    # issue "People", 5: opening a tenant does not check what all tenants share
    config = profiles.chat_companion("app.db", tenancy={})
    storage = SAMPLE.with_overrides(**{"storage.path": "tenants/é.db"}).storage
    made, copied = config.with_storage(storage), config.with_overrides(storage=storage, tenancy=None)
    assert made == copied
    assert (
        made.canonical_json()
        == copied.canonical_json()
        == json.dumps(copied.to_mapping(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    )
    assert (made.tenancy, made.storage.path, made.search) == (None, "tenants/é.db", config.search)
    assert config.tenancy is not None
    assert config.storage.path == "app.db"
    assert config.hash != made.hash
    assert CaliberConfig.from_canonical(made.canonical_json()) == made
    postgres = profiles.chat_companion("env:A_DSN", **{"storage.adapter": "postgres"}).storage
    with pytest.raises(MultipleErrors) as caught:
        config.with_storage(postgres.model_copy(update={"login_role": "a"}))
    assert caught.value.errors[0].context["field"] == "storage.login_secret"


def test_principal_and_visibility_are_given_in_terms_of_the_model() -> None:
    config = SAMPLE.with_overrides(principal={"kind": "agent", "id": "p", "role": "reviewer", "admin": False})
    principal = config.principal.to_principal()
    assert (principal.kind, principal.id, principal.role) == (PrincipalKind.AGENT, "p", AgentRole.REVIEWER)
    assert principal.label == "agent:p"
    # M-131
    assert config.access.default_visibility["orchestrator"] == (AgentRole.ORCHESTRATOR, AgentRole.OPTIMIZER)
    assert config.access.default_visibility["executor"] == (AgentRole.EXECUTOR, AgentRole.REVIEWER)


def test_every_knob_is_described() -> None:
    for path, field in knobs(CaliberConfig):
        assert field.description, path
        assert field.description.endswith("."), path
        about = field.json_schema_extra
        assert isinstance(about, dict)
        assert about["source"], path
        timed = path.endswith("_ms") or "backoff" in path.removeprefix("llm_retry_config.").removesuffix("_multiplier")
        if timed and not path.endswith("_multiplier"):
            assert about["unit"] == "ms", path


def test_every_section_is_frozen_and_closed() -> None:
    # C-124 C-126
    for path, field in knobs(CaliberConfig):
        section = section_in(field.annotation)
        if section is not None:
            assert issubclass(section, Section), path
            assert (section.model_config["frozen"], section.model_config["extra"]) == (True, "forbid"), path


def test_frozen_maps_equal_mappings_with_the_same_items() -> None:
    one, two = FrozenMap({"b": 1, "a": 2}), FrozenMap({"a": 2, "b": 1})
    assert one == two == {"a": 2, "b": 1}
    assert hash(one) == hash(two)
    assert list(one) == ["a", "b"]
    assert pickle.loads(pickle.dumps(one)) == one
    assert one != FrozenMap({"a": 2})


def test_importing_the_configuration_does_not_import_numpy() -> None:
    script = "import sys, caliber.config; print(sorted({'numpy', 'cronsim', 'tomllib', 'apsw'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
