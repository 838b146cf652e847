"""Each knob is turned, and something that runs behaves otherwise. Source: C-094 to C-126, design section 8."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from support.config.knobs import CASES, Case, Place, servers
from support.evidence import share

from caliber.config import profiles
from caliber.config.manual.explaining import REPEATED, declared
from caliber.schema.relations import RELATIONS

ELSEWHERE = {
    "agents.heartbeat_timeout_ms": "agents/test_registry.py",
    "agents.messages.attempts_max": "agents/test_messages.py",
    "agents.messages.pending_max": "agents/test_messages.py",
    "agents.registration": "agents/test_registry.py",
    "close.on_llm_failure": "policies/test_closing.py",
    "embedding.batch_size": "embedding/test_fill_jobs.py",
    "embedding.long_text": "embedding/test_embedding_behaviour.py",
    "embedding.long_text_tokens": "embedding/test_embedding_behaviour.py",
    "embedding.reembed": "embedding/test_fill_jobs.py",
    "embedding_provider.http.max_connections": "llm/test_http_embedding.py",
    "embedding_provider.http.proxy": "llm/test_http_secrets.py",
    "embedding_provider.http.requests_per_minute": "llm/test_http_embedding.py",
    "embedding_provider.http.timeout_ms": "llm/test_http_embedding.py",
    "embedding_provider.http.tokens_per_minute": "llm/test_http_embedding.py",
    "embedding_provider.http.trusted": "llm/test_http_secrets.py",
    "jobs.attempts_max": "policies/test_waiting_triggers.py",
    "jobs.lease_ms": "jobs/test_running.py",
    "lock_timeout": "engine/test_locks.py",
    "message_retention": "agents/test_messages.py",
    "orphan_detection_threshold": "pcp/test_orphans.py",
    "policy_engine.on_error": "policies/test_policy_runs.py",
    "resident.resident_bytes": "storage/test_opening.py",
    "retention.changes_ms": "api/test_events_handles.py",
    "retention.events_ms": "api/test_events_handles.py",
    "retention.sweep_every_ms": "retention/test_retention.py",
    "summarization_provider.chat.max_input_tokens": "llm/test_language_models.py",
    "summarization_provider.chat.max_output_tokens": "llm/test_language_models.py",
    "summarization_provider.chat.prompts": "llm/test_language_models.py",
    "summarization_provider.chat.temperature": "llm/test_language_models.py",
    "summaries.turns": "trajectory/test_turn_summaries.py",
    "trajectory.children_on_complete": "trajectory/test_trajectories.py",
    "trajectory.store_goal_text": "trajectory/test_trajectories.py",
    "validation_mode": "pcp/test_checked_reads.py",
    "write_behind.flush_interval_ms": "api/test_events_handles.py",
    "write_behind.operation_share": "pcp/test_inspecting.py",
    "write_behind.trace_enabled": "api/test_events_handles.py",
    "write_behind.usage_enabled": "api/test_events_handles.py",
    "write_behind.window_durability": "api/test_events_handles.py",
}
"""Knobs without a case, and the tests of their behaviour, which fail where the knob does nothing."""

VALUES_ELSEWHERE = {
    "search.keyword.language": "more stemmers of the same library, chosen by name as these are",
    "storage.adapter": "the others are databases that are not built yet: opening such a store is refused",
    "tenancy.sources.NAME.adapter": "as of storage.adapter",
}
"""Enumerations of which a case has not every value, and why."""


@pytest.fixture(scope="module")
def knob_server(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """A schema for all cases that need one; ``postgres`` is the server."""
    assert postgres
    with servers.server(tmp_path_factory.mktemp("knobs")) as made:
        yield made


@pytest.mark.parametrize("case", share(CASES, 1, daily=6), ids=str)
def test_a_knob_changes_what_is_seen(case: Case, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for name in case.needs:
        request.getfixturevalue(name)
    check(case, request, tmp_path)


def check(case: Case, request: pytest.FixtureRequest, folder: Path) -> None:
    """Fail unless each value shows what it is to show, and no two the same."""
    seen: list[Any] = []
    for which, (value, expected) in enumerate(case.sees):
        own = folder / str(which)
        own.mkdir()
        with ExitStack() as stack:
            place = Place(own, request.getfixturevalue, stack)
            seen.append(case.see(case.config(which, place), place))
        assert seen[-1] == expected, f"{case} = {value!r}"
    same = [one for at, one in enumerate(seen) if one in seen[:at]]
    assert not same, f"two values look the same, {same}: the knob does nothing here, or the case does not see it"


def test_a_knob_that_does_nothing_is_found(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    deaf = Case("search.candidate_factor", lambda *_: 1, (1, 1), (2, 1))
    with pytest.raises(AssertionError, match="two values look the same"):
        check(deaf, request, tmp_path)
    (tmp_path / "again").mkdir()
    with pytest.raises(AssertionError, match=r"search\.candidate_factor = 2"):
        check(replace(deaf, other=(2, 2)), request, tmp_path / "again")


def test_every_knob_has_a_case() -> None:
    without = declared().keys() - {case.path for case in CASES} - REPEATED.keys()
    assert sorted(without - ELSEWHERE.keys()) == [], "say in tests/support/knobs what these change"
    assert sorted(ELSEWHERE.keys() - without) == [], "these have a case, or are gone: take them off the list"
    assert [path for path, count in Counter(map(str, CASES)).items() if count > 1] == []
    for path, place in ELSEWHERE.items():
        text = (Path(__file__).resolve().parents[1] / place).read_text(encoding="utf-8")
        assert path.rpartition(".")[2] in text, f"{place} does not turn {path}"


def test_every_kind_that_is_embedded_has_a_case() -> None:
    entries = {case.named.rpartition(".")[2] for case in CASES if case.path == "embedding.embed"}
    built_in = {relation.name for relation in RELATIONS if relation.embedded is not None}
    assert entries == {*built_in, "default", "fact"}
    assert profiles.reference("store.db").embedding.embed.keys() == {*built_in, "default"}


def values_of(annotation: Any) -> list[Any]:
    """Return the values of an enumeration; none of anything else."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [member.value for member in annotation]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for inner in get_args(annotation) if inner is not type(None) for value in values_of(inner)]


def test_every_value_of_an_enumeration_is_turned_to() -> None:
    knobs = declared(repeated=True)
    missing = set()
    for case in CASES:
        turned = [value for value, _ in case.sees]
        lists = any(isinstance(value, list) for value in turned)
        every = (
            [] if lists or case.on else [value for one in knobs[case.path] for value in values_of(one.field.annotation)]
        )
        missing |= {case.path for value in every if value not in turned}
    assert sorted(missing - VALUES_ELSEWHERE.keys()) == []
    assert sorted(VALUES_ELSEWHERE.keys() - missing) == [], "these have every value: take them off the list"
