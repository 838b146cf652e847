"""Invariants of every window under rules: any rules, any records, any budget."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.context.limits import set_limits
from support.context.world import Contents, World, numbered, searching
from support.evidence import examples

from caliber.config.injection import InjectionKind
from caliber.context.assembler import plan_of
from caliber.context.rules import OneShot
from caliber.dsl.variables import variables_of
from caliber.explain.absence import failing, values_of
from caliber.explain.explainer import explain
from caliber.explain.replayer import replay
from caliber.model.context import AssemblyAction, SourceType
from caliber.model.errors import BudgetTooSmall
from caliber.model.knowledge import NoteType
from caliber.model.references import EntityRef, EntityType
from caliber.model.trajectory import ArtifactType, TurnRole
from caliber.model.trust import TrustLabel
from caliber.schema.relations import BY_NAME

EXAMPLES = examples(40, 3_000)

words = st.text("ab é漢.\n", max_size=40).map(lambda text: "tea " + text)
vectors = st.one_of(st.none(), st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4))
grades = st.sampled_from([0.2, 0.5, 0.9])
turns = st.tuples(words, st.sampled_from([TurnRole.USER, TurnRole.ASSISTANT]), st.sampled_from(list(TrustLabel)[1:]))
records = st.fixed_dictionaries(
    {
        "notes": st.lists(st.tuples(words, vectors, grades, st.sampled_from(list(NoteType)[:3])), max_size=8),
        "artifacts": st.lists(st.tuples(words, vectors, st.sampled_from(list(ArtifactType)[:3])), max_size=6),
        "summaries": st.lists(words, max_size=3),
        "turns": st.lists(turns, max_size=6),
        "earlier": st.lists(turns, max_size=3),
        "elsewhere": st.lists(turns, max_size=3),
        "strange": st.lists(turns, max_size=2),
        "calls": st.integers(0, 2),
    }
)
FILTERS: dict[str, list[str]] = {
    "note": ["confidence > 0.4", 'note_type = "fact" or confidence < 0.3',
             'content contains "a" and valid_until > now()', 'content ~ "b+"'],
    "artifact": ['artifact_type = "fact"', "trajectory_id = current_trajectory", 'artifact_type != "fact"'],
    "scope": ["sequence > 0", 'summary contains "a"', "trajectory_id = current_trajectory"],
    "turn_buffer": ['role = "user"', "turn_number > 2", 'role != "tool"', 'trust != "web"',
                    "trajectory_id = current_trajectory"],
}  # fmt: skip
modes = st.one_of(
    st.just({"kind": "full"}),
    st.just({"kind": "summary"}),
    st.integers(1, 4).map(lambda count: {"kind": "top_k", "count": count}),
    st.sampled_from([0.0, 0.3, 0.8]).map(lambda least: {"kind": "relevant", "min_relevance": least}),
)


@st.composite
def programs(draw: st.DrawFn) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 5))):
        memory = draw(st.sampled_from(list(FILTERS)))
        mode = draw(modes)
        again = any(item["memory"] == memory and item["mode"]["kind"] == "full" for item in out)
        if memory == "turn_buffer" and (mode["kind"] == "summary" or (again and mode["kind"] == "full")):
            continue
        rule = {"memory": memory, "mode": mode, "priority": draw(st.integers(0, 3))}
        if draw(st.booleans()):
            rule["filter"] = draw(st.sampled_from(FILTERS[memory]))
        if draw(st.booleans()):
            rule["max_tokens"] = draw(st.integers(1, 60))
        out.append(rule)
    return out


shots = st.lists(
    st.sampled_from(["note", "artifact", "scope", "turn_buffer"]).map(
        lambda memory: OneShot(memory, InjectionKind.TOP_K, 2, None, "a test")
    ),
    max_size=2,
)
knobs = st.fixed_dictionaries(
    {
        "assembly.order": st.sampled_from(["priority", "stable_first"]),
        "assembly.fill_ratio": st.sampled_from([0.5, 1.0]),
        "assembly.overflow_policy": st.sampled_from(["truncate", "compress", "exclude"]),
        "assembly.truncate_min_tokens": st.integers(1, 20),
        "assembly.relevance": st.sampled_from(["search", "vector"]),
        "assembly.section_shares": st.sampled_from([{}, {"user": [0.0, 0.4]}]),
        "tokens.estimator": st.sampled_from(["bytes", "calibrated"]),
        "min_relevance_threshold": st.sampled_from([0.0, 0.5]),
        "recall.from": st.sampled_from(["owner", "trajectory"]),
    }
)
numbers = st.fixed_dictionaries(
    {
        "critical_priority": st.sampled_from([0, 2, 60, 101]),
        "compress_ratio": st.sampled_from([0.1, 0.5, 1.0]),
        "rule_limit": st.integers(0, 6),
        "relevant_limit": st.integers(0, 4),
        "recency_fallback_limit": st.integers(0, 4),
        "summary_mode_tokens": st.integers(1, 12),
    }
)
calls = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 400),
        "query": st.sampled_from([None, "tea a", "nothing known"]),
        "query_embedding": vectors,
    }
)
STRANGER = EntityRef(EntityType.AGENT, numbered(2))
_SOURCES = {
    "note": SourceType.NOTE,
    "artifact": SourceType.ARTIFACT,
    "scope": SourceType.SCOPE_SUMMARY,
    "turn_buffer": SourceType.TURN,
}


def build(memory: dict[str, Any]) -> Any:
    world = World()
    with world.at_once():
        world.open_space(4)
        for text, vector, grade, kind in memory["notes"]:
            world.note(text, vector, confidence=grade, note_type=kind)
        for text, vector, type_ in memory["artifacts"]:
            world.artifact(text, vector, artifact_type=type_)
        for text in memory["summaries"]:
            world.scope(summary=text)
        other, stranger = world.trajectory(), world.trajectory(initiator=STRANGER)
        for task, said in (
            (world.trajectory_id, memory["earlier"]), (other, memory["elsewhere"]), (stranger, memory["strange"]),
        ):  # fmt: skip
            scope = world.scope(trajectory=task, closed=True)
            for text, role, trust in said:
                world.turn(text, role, trajectory=task, scope=scope, trust=trust)
        world.scope_id = world.scope()
        for text, role, trust in memory["turns"]:
            world.turn(text, role, trust=trust)
        for _ in range(memory["calls"]):
            world.tool_turns("one", "two")
    return world


_EMPTY: dict[str, Any] = {name: [] for name in ("notes", "artifacts", "summaries", "turns", "earlier", "elsewhere")}
_EMPTY |= {"strange": [], "calls": 0}
_KNOBS: dict[str, Any] = {
    "assembly.order": "stable_first", "assembly.fill_ratio": 0.5, "assembly.overflow_policy": "truncate",
    "assembly.relevance": "search", "assembly.section_shares": {},
    "tokens.estimator": "bytes", "min_relevance_threshold": 0.0, "recall.from": "owner",
}  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=EXAMPLES)
@example(  # two rules that each take a turn of one past conversation
    memory={**_EMPTY, "elsewhere": [("tea ", TurnRole.USER, TrustLabel.USER)] * 2},
    rules=[
        {"memory": "turn_buffer", "mode": {"kind": "top_k", "count": 1}, "priority": 0},
        {"memory": "turn_buffer", "mode": {"kind": "top_k", "count": 2}, "priority": 0, "max_tokens": 3},
        {"memory": "note", "mode": {"kind": "full"}, "priority": 0},
    ],
    once=[],
    options={**_KNOBS, "assembly.truncate_min_tokens": 1},
    some={"rule_limit": 0, "relevant_limit": 0, "recency_fallback_limit": 0, "summary_mode_tokens": 1},
    call={"max_tokens": 31, "query": None, "query_embedding": None},
)
@given(records, programs(), shots, knobs, numbers, calls)
def test_every_window_under_rules_keeps_its_promises(
    memory: dict[str, Any], rules: list[dict[str, Any]], once: list[OneShot], options: Any, some: Any, call: Any
) -> None:
    # C-050, C-160, C-161, C-219, C-221, C-222, C-465, issue item 5
    world = build(memory)
    patch = pytest.MonkeyPatch()
    set_limits(patch, **some)
    try:
        config = world.config = searching(injection_rules=rules, **options)
        try:
            assembled = world.assemble(once=tuple(once), **call)
        except BudgetTooSmall:
            return
        _check(world, config, assembled, tuple(once))
    finally:
        patch.undo()
        world.close()


def _check(world: Any, config: Any, assembled: Any, once: tuple[OneShot, ...]) -> None:
    window, plan = assembled.window, plan_of(config, once)
    facts_of = {section.name: section for section in plan.sections}

    # the budget, and each rule's own
    assert window.used_tokens <= window.max_tokens
    for section in window.sections:
        cap = facts_of[section.name].cap_tokens
        assert cap is None or section.token_count <= cap

    # a record at most once, and no record without a rule
    shown = [item.id for section in window.sections for item in section.sources]
    assert len(set(shown)) == len(shown)
    candidates = Counter((item.source_type, item.ordinal) for item in window.assembly_trace)
    # A turn may be looked at twice: as a part of the conversation, and as a turn that a rule ranks.
    assert all(count <= 1 + (kind is SourceType.TURN) for (kind, _), count in candidates.items())
    if plan.governed:
        assert all(item.rule is not None or item.source_type is SourceType.TURN for item in window.assembly_trace)

    # nobody else's turns, and no turn that recall does not trust
    snapshot = world.memory.snapshot
    for item in window.assembly_trace:
        if item.source_type is SourceType.TURN:
            turn = world.memory.entity(*snapshot.locate(item.target_id.bytes))
            task = world.memory.entity(*snapshot.locate(turn.trajectory_id.bytes))
            assert task.initiator != STRANGER
            assert turn.trajectory_id == world.trajectory_id or turn.trust is not TrustLabel.WEB

    # no filter is violated
    by_name = {section.rule.name: section.rule for section in plan.sections if section.rule is not None}
    for item in window.assembly_trace:
        rule = None if item.rule is None else by_name[item.rule]
        if rule is None or rule.predicate is None:
            continue
        owners, row = snapshot.locate(item.target_id.bytes)
        values = values_of(BY_NAME[owners.relation.name], world.memory.entity(owners, row))
        variables = variables_of(window.trajectory_id, window.scope_id, "human:owner", world.clock.now_us() + 1_000_000)
        assert not failing(rule.predicate, values, variables)
        assert item.source_type is _SOURCES[rule.memory]

    # modes: as many as they may, as near as they must
    for section in plan.rule_sections:
        mine = [item for item in window.assembly_trace if item.rule == section.rule.name]
        mode = section.rule.mode
        assert mode.count is None or len(mine) <= mode.count
        if mode.min_relevance is not None:
            assert all(np.float32(item.relevance) >= np.float32(mode.min_relevance) for item in mine)

    # the record: the same bytes, and an answer for every record
    again = replay(assembled.record, config, Contents(world))
    assert (again.text, again.sections, again.assembly_trace, again.cut_offs, again.to_messages()) == (
        window.text, window.sections, window.assembly_trace, window.cut_offs, window.to_messages(),
    )  # fmt: skip
    included = {item.target_id for item in window.assembly_trace if item.action is not AssemblyAction.EXCLUDE}
    for name in ("note", "artifact", "scope", "turn"):
        relation = snapshot[name]
        for row in range(relation.length):
            record_id = relation.entity_id(row)
            told = explain(
                assembled.record,
                config,
                Contents(world),
                exclusion=record_id,
                score_now=lambda *asked: world.score_now(*asked),
            )
            assert (told["verdict"] == "included") is (record_id in included)
            assert told["verdict"] != "changed_since"
