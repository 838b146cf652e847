"""The reference profile: the sources' numbers where they exist, ours where we say so, and a file that says which."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from caliber.config import CaliberConfig, profiles
from caliber.config.bases import complete
from caliber.config.faults import section_in
from caliber.config.manual.render import render_json, render_toml
from caliber.config.nested import plain
from caliber.config.profiles import fitting
from caliber.config.tree import DECLARED_IN_LISTS
from caliber.model.errors import MultipleErrors
from caliber.model.time import format_duration, parse_duration_ms

PRUNE = {"action": "prune", "target": "note", "older_than_ms": "90m"}
HASH_PROVIDER = {"provider_type": "hash", "model": "hash", "dimensions": 32}
EMBEDDED = ("turn", "note", "artifact", "scope", "todo", "default")


def knobs(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, FieldInfo, Any]]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if name in DECLARED_IN_LISTS:
            continue
        if section_in(field.annotation) is None:
            yield f"{prefix}{name}", field, value
        elif isinstance(value, BaseModel):  # of records by name there are none
            yield from knobs(value, f"{prefix}{name}.")


def with_extra(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        if name in fitting.EMBED_EXTRA:
            return object() if installed else None
        return find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


# The numbers of C-121, C-118, C-257, M-131 and C-489's example, written out from the sources.
SOURCE_NUMBERS: dict[str, Any] = {
    "agents.registration": "required",  # C-420
    "assembly.fill_ratio": 0.95,
    "assembly.separator": "\n\n",
    "pcp.anti_sprawl.duplicate_similarity": 0.95,
    "tokens.bytes_per_token": 3.5,
    "vector.hnsw_m": 16,
    "vector.hnsw_ef_construction": 64,
    "embedding.long_text": "chunk_mean",
    "embedding_cache_retention": 2_592_000_000,
    "search.candidate_factor": 2,
    "search.vector_candidates": 20,
    "search.min_similarity": 0.7,
    "search.normalisation": "saturation",
    "search.fusion": "weighted",
    "search.weights.vector": 0.4,
    "search.weights.keyword": 0.3,
    "search.weights.graph": 0.2,
    "search.weights.importance": 0.1,
    "section_priorities.custom": [],
    "pcp.context_dag.enabled": True,
    "pcp.context_dag.max_depth": 10,
    "pcp.context_dag.prune_strategy": "hybrid",
    "pcp.recovery_points.frequency": "per_scope",
    "pcp.recovery_points.compression_enabled": True,
    "pcp.dosage.max_context_tokens": 8_000,
    "pcp.dosage.max_scopes_in_window": 5,
    "pcp.dosage.max_artifacts_in_window": 20,
    "pcp.dosage.max_notes_in_window": 10,
    "pcp.anti_sprawl.linter_enabled": True,
    "pcp.anti_sprawl.vocabulary_enforcement": False,
    "pcp.anti_sprawl.duplicate_detection": True,
    "pcp.anti_sprawl.max_artifact_size": 10_000,
    "pcp.grounding.require_source_for_facts": True,
    "pcp.grounding.confidence_threshold": 0.5,
    "pcp.grounding.stale_data_max_age_ms": 2_592_000_000,
    "pcp.grounding.conflict_resolution": "highest_confidence",
    "access.default_visibility": {"orchestrator": ["orchestrator", "optimizer"], "optimizer": ["optimizer", "executor"],
                                  "reviewer": ["reviewer", "executor"], "executor": ["executor", "reviewer"]},
    "access.views.interests": {"orchestrator": ["decision", "architecture", "coordination"],
                               "optimizer": ["decision", "pattern", "skill"], "reviewer": ["bug", "test", "decision"],
                               "executor": ["implementation", "pattern", "bug"]},
}  # fmt: skip


def test_the_knobs_know_the_numbers_of_the_sources() -> None:
    # C-118 C-121 C-257 K-002
    config = profiles.reference("store.db", embedding_provider=HASH_PROVIDER)
    known = {
        path: plain(field.json_schema_extra["source_value"])
        for path, field, _ in knobs(config)
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra["source_value"] is not None
    }
    assert known == SOURCE_NUMBERS


def test_the_reference_profile_uses_them_except_where_it_says_why_not() -> None:
    # K-002 O-14
    config = profiles.reference("store.db", embedding_provider=HASH_PROVIDER)
    values = {path: plain(value) for path, _, value in knobs(config)}
    differing = {path for path in SOURCE_NUMBERS if values[path] != SOURCE_NUMBERS[path]}
    assert differing == set(profiles.DEVIATIONS)
    assert all(len(reason) > 20 for reason in profiles.DEVIATIONS.values())


def test_with_the_extra_it_embeds_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    # design section 8
    with_extra(monkeypatch, installed=True)
    config = profiles.reference("store.db")
    assert (config.embedding_provider.provider_type, config.embedding_provider.dimensions) == ("static", 256)
    assert config.vector.dimensions == 256
    modes = dict.fromkeys(EMBEDDED, "commit") | {"turn": "behind"}
    assert config.embedding.embed == modes


def test_without_the_extra_there_is_no_provider_and_nothing_is_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    # design section 8, C-102
    with_extra(monkeypatch, installed=False)
    config = profiles.reference("store.db")
    assert config.embedding_provider is None
    assert config.vector is None
    assert config.embedding.embed == dict.fromkeys(EMBEDDED, "off")
    assert config.summarization_provider.provider_type == "extractive"


def test_looking_for_the_extra_does_not_import_it() -> None:
    before = set(sys.modules)
    fitting.embed_available()
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] in fitting.EMBED_EXTRA}


@pytest.mark.parametrize(("changes", "expected"), [
    ({"token_budget": 4_000}, {"token_budget": 4_000, "pcp.dosage.max_context_tokens": 4_000}),
    ({"embedding_provider": HASH_PROVIDER}, {"vector.dimensions": 32, "embedding_provider.provider_type": "hash"}),
    ({"embedding_provider": None}, {"embedding.embed": dict.fromkeys(EMBEDDED, "off")}),
    ({"system_instructions": "Be brief."}, {"system_instructions": "Be brief."}),
    ({"storage.durability": "group"}, {"storage.durability": "group"}),
    ({"embedding_provider": HASH_PROVIDER, "assembly": {"evict_block_turns": 32}},
     {"assembly.evict_block_turns": 32, "vector.dimensions": 32}),
])  # fmt: skip
def test_knobs_that_must_agree_follow_a_changed_one(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    # K-006: in the profile, never in a configuration that a person wrote
    config = profiles.reference("store.db", **changes)
    values = {path: plain(value) for path, _, value in knobs(config)}
    assert {path: values[path] for path in expected} == expected


@pytest.mark.parametrize("name", profiles.PROFILES)
@pytest.mark.parametrize("sections", [
    {"search": {"candidate_factor": 5}},
    {"pcp": {"dosage": {"max_notes_in_window": 7}}, "aio": {"workers": 2}},
    {"assembly": {"evict_block_turns": 32}},
    {"summaries": {"max_tokens": 32}},
    {"storage": {"durability": "group"}},
    {"access": {"ownership": "role"}},
    {"context_window_persistence": {"kind": "permanent"}, "retention": {"windows_ms": "forever"}},
    {"embedding_provider": {"provider_type": "static", "dimensions": 64}},
    {"search": {}},
])  # fmt: skip
def test_a_section_changes_the_knobs_it_names(
    name: str, sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the same section of a file with ``base`` does."""
    with_extra(monkeypatch, installed=True)
    found = profiles.PROFILES[name]("store.db", **sections).to_mapping()
    file = {"base": name, **sections, "storage": {"path": "store.db", **sections.get("storage", {})}}
    assert found == CaliberConfig.from_mapping(complete(file).data).to_mapping()


def test_a_dotted_path_goes_over_its_section() -> None:
    search = {"candidate_factor": 5, "vector_candidates": 70}
    config = profiles.reference("store.db", **{"search.candidate_factor": 6}, search=search)
    assert (config.search.candidate_factor, config.search.vector_candidates) == (6, 70)


def test_a_store_of_the_other_database_is_a_section_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_DSN", "postgresql:///test")
    storage = {"adapter": "postgres", "schema_name": "agents"}
    found = profiles.reference("env:A_DSN", storage=storage)
    paths = {f"storage.{name}": value for name, value in storage.items()}
    assert found == profiles.reference("env:A_DSN", **paths)


def test_two_stated_numbers_that_disagree_are_still_refused() -> None:
    # K-006
    with pytest.raises(MultipleErrors):
        profiles.reference("store.db", token_budget=3_000, **{"pcp.dosage.max_context_tokens": 4_000})
    with pytest.raises(MultipleErrors):
        profiles.reference("store.db", embedding_provider=HASH_PROVIDER, **{"vector.dimensions": 48})
    with pytest.raises(MultipleErrors):
        profiles.reference("store.db", token_budget=3_000, pcp={"dosage": {"max_context_tokens": 4_000}})


@pytest.mark.parametrize("changes", [
    {"token_budget": 0}, {"token_budget": "many"}, {"embedding_provider": 7}, {"no_such": 1}, {"vector.dimensions": 0},
    {"search": {"no_such": 1}}, {"token_budget": {"a": 1}}, {"storage": {"adapter": {}}},
])  # fmt: skip
def test_wrong_changes_are_faults_not_crashes(changes: dict[str, Any]) -> None:
    with pytest.raises(MultipleErrors):
        profiles.reference("store.db", **changes)


def test_a_path_object_is_a_path() -> None:
    assert profiles.reference(Path("a") / "b.db").storage.path == str(Path("a") / "b.db")


def test_everything_fits_into_the_window() -> None:
    # A window must have room beside the longest section for the next.
    config = profiles.reference("store.db", embedding_provider=None)
    order = sorted(
        ("system", "persona", "user", "artifacts", "notes", "history"), key=config.section_priorities.of, reverse=True
    )
    assert order == ["system", "persona", "user", "artifacts", "notes", "history"]
    for profile in profiles.PROFILES.values():
        shares = profile("store.db", embedding_provider=None).assembly.section_shares
        assert sum(floor for floor, _ in shares.values()) < 1
        assert all(cap < 1 for _, cap in shares.values())


# --- the commented file --------------------------------------------------------------------------


def test_every_knob_in_the_file_has_its_comment_above_it() -> None:
    # design section 8
    config = profiles.reference("store.db", embedding_provider=HASH_PROVIDER)
    lines = render_toml(config).splitlines()
    descriptions = {path.rpartition(".")[2]: set[str]() for path, _, _ in knobs(config)}
    for path, field, _ in knobs(config):
        descriptions[path.rpartition(".")[2]].add(str(field.description))
    seen = 0
    for above, line in pairwise(lines):
        name, equals, _ = line.removeprefix("# ").partition(" =")
        if above.startswith("#   "):
            continue  # of a section that is not set
        if equals and name in descriptions and not line.startswith(("  ", "name", "on ", "actions")):
            assert any(above.startswith(f"# {text}") for text in descriptions[name]), line
            seen += 1
    assert seen == sum(1 for _ in knobs(config))


@pytest.mark.parametrize(
    ("comment", "line"),
    [
        ("# Share of the budget at which filling stops, with order = priority. Above 0 to 1.", "fill_ratio = 0.95"),
        ("# Newest notes taken when there is no query; 0 for none. 0 or more.", "notes_without_query = 10"),
        ("# Most tokens of a context window. 1 to 2000000 tokens.", "token_budget = 8000"),
        ("# Time after which a lock that nobody extends lapses. A duration.", 'lock_timeout = "30s"'),
        (
            (
                "# Persisted windows, also those that an earlier configuration kept for longer; and delegations and "
                "handoffs, from the time at which they ended, as a handoff holds a window. "
                '"forever" keeps them. A duration.'
            ),
            'windows_ms = "30d"',
        ),
        ("# Validate writes only, or reads too. One of on_mutation, always.", 'validation_mode = "on_mutation"'),
        ("# Address of the service. (optional, not set)", "# endpoint ="),
        ("# Connections that read while one writes. 1 to 256.", "readers = 4"),
    ],
)
def test_a_comment_says_meaning_range_and_unit(comment: str, line: str) -> None:
    assert f"{comment}\n{line}\n" in render_toml(profiles.reference("store.db", embedding_provider=HASH_PROVIDER))


@pytest.mark.parametrize("changes", [
    {},
    {"embedding_provider": None},
    {"summarization_provider": None, "policies": []},
    {"policies": [{"name": "empty", "rules": []}]},
    {"policies": [{"name": "p", "rules": [{"on": "schedule", "cron": "0 3 * * *", "actions": [PRUNE]}]}]},
    {"retention.windows_ms": "forever", "context_window_persistence": {"kind": "permanent"}},
    {"assembly.section_shares": {'a b"c': [0.1, 0.5], "recall": [0, 1]},
     "section_priorities.custom": [('a b"c', 1), ("x", 2)]},
    {"system_instructions": 'three\nlines """ with \\ quotes\r\nand \x00\x7f\u2028 controls ', "persona": "\n\n"},
    {"embedding_provider": {**HASH_PROVIDER, "options": {"a b": [1, 2.5, {"c": True}], "": "x\ny", "e": {}}}},
    {"embedding_provider": {**HASH_PROVIDER, "api_key": "env:KEY", "endpoint": "https://host/v1"}},
    {"lock_timeout": 1, "llm_retry_config.initial_backoff": 1_001, "recall.length_weight": 1e-7},
    {"storage.path": "env:STORE", "principal": {"kind": "agent", "id": "ä", "role": "executor", "admin": False}},
])  # fmt: skip
def test_rendered_files_read_back_unchanged(changes: dict[str, Any]) -> None:
    # design section 8
    config = profiles.reference("store.db", **{"embedding_provider": HASH_PROVIDER, **changes})
    text = render_toml(config)
    assert CaliberConfig.from_toml(text) == config
    assert CaliberConfig.from_json(render_json(config)) == config
    assert render_toml(CaliberConfig.from_toml(text)) == text
    tomllib.loads("\n".join(line.removeprefix("# ") if line.startswith("# [") else line for line in text.splitlines()))


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0ms"), (1, "1ms"), (1_000, "1s"), (90_000, "90s"), (3_600_000, "1h"), (604_800_000, "1w")]
)
def test_durations_are_written_in_the_largest_unit_that_fits(ms: int, text: str) -> None:
    assert format_duration(ms) == text
    assert parse_duration_ms(text) == ms
