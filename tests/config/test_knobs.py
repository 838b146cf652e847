"""Each knob is turned, and something that runs behaves otherwise. Source: C-094 to C-126, design section 8."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from support.evidence import share
from support.knobs import CASES, Case, Place, Seen

from caliber.config import profiles
from caliber.config.manual.explaining import REPEATED, declared
from caliber.schema.relations import RELATIONS

ELSEWHERE = {
    "access/test_rights.py": "access.rights.NAME.read access.rights.NAME.write",
    "access/test_trust.py": "trust.artifacts trust.assistant_turns trust.notes trust.tool_turns trust.user_turns"
        " trust.web_tools",
    "agents/test_conflicts.py": "agents.contention_ms",
    "agents/test_messages.py": "agents.messages.attempts_max agents.messages.pending_max message_retention",
    "agents/test_registry.py": "agents.heartbeat_timeout_ms agents.registration",
    "agents/test_views.py": "access.views.interests access.views.scoring.enabled",
    "api/test_events_handles.py": "context_window_persistence.kind context_window_persistence.ttl_ms"
        " retention.changes_ms retention.events_ms write_behind.flush_interval_ms write_behind.trace_enabled"
        " write_behind.usage_enabled write_behind.window_durability",
    "context/test_assembly.py": "assembly.relevance min_relevance_threshold pcp.context_dag.enabled"
        " pcp.context_dag.max_depth pcp.context_dag.prune_strategy pcp.dosage.max_artifacts_in_window"
        " pcp.dosage.max_context_tokens pcp.dosage.max_notes_in_window pcp.dosage.max_scopes_in_window persona"
        " section_priorities.artifacts section_priorities.custom section_priorities.history section_priorities.notes"
        " section_priorities.persona section_priorities.system section_priorities.user system_instructions",
    "context/test_budget.py": "assembly.evict_block_turns assembly.fill_ratio assembly.message_overhead_tokens"
        " assembly.section_headers assembly.section_shares assembly.separator assembly.truncate_min_tokens"
        " token_budget tokens.bytes_per_token",
    "context/test_days.py": "time_zone",
    "context/test_windows_bad_input.py": "tokens.estimator tokens.vocabulary",
    "context/test_evaluators.py": "resident.evaluator",
    "context/test_relevance_by_search.py": "recall.limit",
    "context/test_rules_by_example.py": "assembly.notes_without_query assembly.overflow_policy injection_rules"
        " recall.trust",
    "context/test_windows_properties.py": "assembly.order",
    "embedding/test_embedding_behaviour.py": "embedding.long_text embedding.long_text_tokens",
    "embedding/test_fill_jobs.py": "embedding.batch_size embedding.reembed",
    "embedding/test_reembedding.py": "vector.dimensions",
    "engine/test_locks.py": "lock_timeout",
    "jobs/test_running.py": "jobs.lease_ms jobs.poll_ms",
    "jobs/test_state_machine.py": "jobs.backoff_ms",
    "kernels/test_evaluator_code.py": "cache_dir",
    "knowledge/test_notes_access.py": "principal.admin principal.id principal.kind principal.role",
    "llm/test_http_embedding.py": "embedding_provider.endpoint embedding_provider.http.max_connections"
        " embedding_provider.http.requests_per_minute embedding_provider.http.timeout_ms"
        " embedding_provider.http.tokens_per_minute embedding_provider.model embedding_provider.options",
    "llm/test_http_secrets.py": "embedding_provider.api_key embedding_provider.http.proxy"
        " embedding_provider.http.trusted",
    "llm/test_language_models.py": "summarization_provider.chat.max_input_tokens"
        " summarization_provider.chat.max_output_tokens summarization_provider.chat.prompts"
        " summarization_provider.chat.temperature",
    "llm/test_embedding.py": "embedding_provider.dimensions embedding_provider.provider_type",
    "llm/test_limiter.py": "llm_retry_config.backoff_multiplier llm_retry_config.initial_backoff"
        " llm_retry_config.jitter llm_retry_config.max_backoff llm_retry_config.max_retries",
    "memories/test_own_memories.py": "memories",
    "pcp/test_checked_reads.py": "validation_mode",
    "pcp/test_conflicts.py": "pcp.grounding.conflict_resolution",
    "pcp/test_inspecting.py": "write_behind.operation_share",
    "pcp/test_lint.py": "pcp.anti_sprawl.duplicate_detection pcp.anti_sprawl.duplicate_similarity"
        " pcp.anti_sprawl.linter_enabled pcp.anti_sprawl.max_artifact_size pcp.anti_sprawl.on_write"
        " pcp.anti_sprawl.vocabulary pcp.anti_sprawl.vocabulary_enforcement",
    "pcp/test_orphans.py": "orphan_detection_threshold",
    "pcp/test_validation.py": "contradiction_threshold pcp.grounding.confidence_threshold"
        " pcp.grounding.require_source_for_facts pcp.grounding.stale_data_max_age_ms",
    "policies/test_closing.py": "checkpoint_retention close.on_llm_failure pcp.recovery_points.frequency"
        " storage.serialization_retries",
    "policies/test_policy_runs.py": "policies policy_engine.on_error",
    "policies/test_waiting_triggers.py": "jobs.attempts_max",
    "postgres/test_faults.py": "storage.lock_timeout_ms storage.statement_timeout_ms",
    "postgres/test_notify.py": "storage.feed_dsn",
    "postgres/test_postgres.py": "storage.dsn storage.pool_max storage.prepared_max storage.schema_name",
    "postgres/test_vector_index.py": "vector.hnsw_ef_construction vector.hnsw_m vector.index_type",
    "retention/test_retention.py": "retention.sweep_every_ms",
    "search/test_backend_mode.py": "search.mode",
    "search/test_twin.py": "search.boosts.date search.boosts.date_slack_ms search.boosts.exact"
        " search.boosts.mentioned search.boosts.question search.boosts.recency search.boosts.recency_half_life_ms"
        " search.boosts.time search.diversity search.floor.similarity search.floor.words search.fusion"
        " search.graph.conversation search.keyword.b search.keyword.k1 search.keyword.language"
        " search.keyword.neighbour_boost search.keyword.saturate search.keyword.similar_words search.min_similarity"
        " search.normalisation search.vector_candidates search.weights.graph search.weights.importance"
        " search.weights.keyword search.weights.vector",
    "storage/test_opening.py": "resident.resident_bytes storage.adapter storage.busy_timeout_ms storage.path"
        " storage.readers storage.wal_autocheckpoint_pages",
    "storage/test_writers.py": "storage.durability",
    "tenancy/test_moves.py": "tenancy.fence_ms tenancy.verify_in_fence",
    "tenancy/test_roles.py": "storage.login_role storage.login_secret",
    "tenancy/test_tenants.py": "tenancy.new_tenants",
    "trajectory/test_trajectories.py": "trajectory.children_on_complete trajectory.store_goal_text",
    "trajectory/test_turn_summaries.py": "summaries.max_tokens summaries.turns",
}  # fmt: skip
"""Tests of behaviour, which fail where a knob does nothing, and the knobs that they turn."""

VALUES_ELSEWHERE = {
    "assembly.overflow_policy": ("pcp/test_dosage.py", "compress"),
    "assembly.relevance": ("kernels/test_evaluators.py", "search vector"),
    "context_window_persistence.kind": ("context/test_ended_facts.py", "permanent"),
    "principal.kind": ("access/test_application.py", "application"),
    "recall.from": ("pcp/test_ancestry.py", "trajectory"),
    "write_behind.window_durability": ("erasure/test_work_under_way.py", "behind"),
}
"""Values of enumerations that neither a case nor the test of the knob turns to, and the tests that do."""
PASSED_ON = {
    "access.default_visibility": "roles of agents, alike but for the rights that they name",
    "access.views.interests": "types of notes, each stored and searched alike",
    "embedding_provider.http.proxy": "none is the absence of the other",
    "search.keyword.language": "more stemmers of the same library, chosen by name as these are",
    "storage.adapter": "the others are databases that are not built yet: opening such a store is refused",
}
"""Enumerations of which no test turns to every value, and why."""


def read(place: str) -> str:
    return (Path(__file__).resolve().parents[1] / place).read_text(encoding="utf-8")


@pytest.mark.parametrize("case", share(CASES, 1, daily=6), ids=str)
def test_a_knob_changes_what_is_seen(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def check(case: Case, folder: Path) -> None:
    """Fail unless each value shows what it is to show, and no two the same."""
    shown = []
    for which, (value, expected) in enumerate(case.sees):
        own = folder / str(which)
        own.mkdir()
        with ExitStack() as stack:
            place = Place(own, stack)
            shown.append(case.see(case.config(value, place), place))
        assert shown[-1] == expected, f"{case} = {value!r}"
    same = [one for at, one in enumerate(shown) if one in shown[:at]]
    assert not same, f"two values look the same, {same}: the knob does nothing here, or the case does not see it"


def test_a_knob_that_does_nothing_is_found(tmp_path: Path) -> None:
    deaf = Case("search.candidate_factor", lambda *_: 1, (Seen(1, 1), Seen(2, 1)), {}, "")
    with pytest.raises(AssertionError, match="two values look the same"):
        check(deaf, tmp_path)
    (tmp_path / "again").mkdir()
    with pytest.raises(AssertionError, match=r"search\.candidate_factor = 2"):
        check(replace(deaf, sees=(Seen(1, 1), Seen(2, 2))), tmp_path / "again")


def test_every_knob_has_a_case() -> None:
    without = declared().keys() - {case.path for case in CASES} - REPEATED.keys()
    turned = Counter(path for paths in ELSEWHERE.values() for path in paths.split())
    assert sorted(without - turned.keys()) == [], "say in tests/support/knobs.py what these change"
    assert sorted(turned.keys() - without) == [], "these have a case, or are gone: take them off the list"
    assert [path for path, times in (Counter(map(str, CASES)) + turned).items() if times > 1] == []
    for place, paths in ELSEWHERE.items():
        text = read(place)
        missing = [path for path in paths.split() if not re.search(rf"(?<![a-z]){path.rpartition('.')[2]}\b", text)]
        assert missing == [], f"{place} does not turn these"


def values_of(annotation: Any) -> list[Any]:
    """Return the values of an enumeration; none of anything else."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [member.value for member in annotation]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for inner in get_args(annotation) if inner is not type(None) for value in values_of(inner)]


def test_every_value_of_an_enumeration_is_turned_to() -> None:
    turned: dict[str, set[Any]] = {}
    for case in CASES:
        turned.setdefault(case.path, set()).update(value for value, _ in case.sees if isinstance(value, str))
    places = {path: place for place, paths in ELSEWHERE.items() for path in paths.split()}
    missing: dict[str, list[str]] = {}
    for path in places.keys() | turned.keys():  # not of sections that repeat another one
        knobs = declared(repeated=True)[path]
        text = read(places[path]) if path in places else ""
        place, values = VALUES_ELSEWHERE.get(path, ("", ""))
        assert all(re.search(rf"[\"'.]{value}\b", read(place)) for value in values.split()), f"{place}: {path}"
        for value in {value for one in knobs for value in values_of(one.field.annotation)} - turned.get(path, set()):
            if not re.search(rf"[\"']{value}[\"']|\.{value.upper()}\b", text) and value not in values.split():
                missing.setdefault(path, []).append(value)
    assert {path: found for path, found in missing.items() if path not in PASSED_ON} == {}
    assert PASSED_ON.keys() - missing.keys() == set(), "these have every value: take them off the list"


def test_every_kind_that_is_embedded_has_a_case() -> None:
    entries = {case.named.rpartition(".")[2] for case in CASES if case.path == "embedding.embed"}
    built_in = {relation.name for relation in RELATIONS if relation.embedded is not None}
    assert entries == {*built_in, "default", "fact"}
    assert profiles.reference("store.db").embedding.embed.keys() == {*built_in, "default"}
