"""Invariants of every window, for all contents, budgets and configurations."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.context.limits import set_limits
from support.context.world import ME, Contents, World, numbered, searching

from caliber.context import limits
from caliber.context.assembler import plan_of
from caliber.context.columns import TAIL_SHARE
from caliber.context.record.record import FORMAT, MAGIC, unpack_body, unpack_record
from caliber.explain.explainer import explain
from caliber.explain.replayer import replay
from caliber.kernels import estimate_tokens
from caliber.kernels.dispatch import available_paths, forced_path
from caliber.model.context import AssemblyAction, DecisionCode, SourceType
from caliber.model.errors import BudgetTooSmall, StorageError
from caliber.model.references import EntityRef, EntityType
from caliber.model.trajectory import ToolCall, TurnRole
from caliber.model.trust import TrustLabel
from caliber.schema.relations import NOTE

words = st.text("ab é漢😀\n.", max_size=60)
contents = st.one_of(words.map(str.encode), st.binary(max_size=40), words.map(lambda text: text.encode() * 20))
texts = st.one_of(words, words.map(lambda text: text * 20))
vectors = st.one_of(st.none(), st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4))


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for _ in range(draw(st.integers(0, 14))):
        kind = draw(st.sampled_from(["user", "assistant", "tools", "orphan", "pending"]))
        if kind == "tools":
            out.append((kind, (draw(contents), draw(st.lists(contents, min_size=1, max_size=3)), draw(st.booleans()))))
        else:
            out.append((kind, draw(contents)))
    return out


others = st.fixed_dictionaries(
    {
        "mine": st.booleans(),
        "turns": st.lists(st.tuples(contents, st.sampled_from([TrustLabel.USER, TrustLabel.WEB])), max_size=5),
        "artifacts": st.lists(st.tuples(contents, vectors), max_size=2),
        "summary": st.one_of(st.none(), texts.filter(bool)),
    }
)
"""Other tasks, of the same initiator or of another."""


@st.composite
def memories(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "turns": draw(conversations()),
        "notes": draw(st.lists(st.tuples(texts, vectors), max_size=8)),
        "artifacts": draw(st.lists(st.tuples(contents, vectors), max_size=8)),
        "summaries": draw(st.lists(texts.filter(bool), max_size=4)),
        "earlier": draw(st.lists(contents, max_size=4)),
        "pause": draw(st.booleans()),
        "others": draw(st.lists(others, max_size=3)),
        "blocks": draw(st.lists(texts.filter(bool), max_size=2)),
    }


LEGS = {"vector": 0.5, "keyword": 0.4, "graph": 0.05, "importance": 0.05}
SECTIONS = ["system", "persona", "facts", "history", "user", "artifacts", "notes", "recall", "current"]
shares = st.dictionaries(
    st.sampled_from(SECTIONS), st.tuples(st.sampled_from([0.0, 0.0, 0.05, 0.1]), st.floats(0, 1)).map(sorted)
)
knobs = st.fixed_dictionaries(
    {
        "assembly.order": st.sampled_from(["priority", "stable_first"]),
        "assembly.evict_block_turns": st.integers(1, 8),
        "assembly.fill_ratio": st.sampled_from([0.5, 0.95, 1.0]),
        "assembly.overflow_policy": st.sampled_from(["truncate", "compress", "exclude"]),
        "assembly.truncate_min_tokens": st.integers(1, 20),
        "assembly.message_overhead_tokens": st.integers(0, 5),
        "assembly.notes_without_query": st.integers(0, 8),
        "assembly.section_shares": shares,
        "recall.from": st.sampled_from(["trajectory", "session", "owner", "tenant"]),
        "recall.limit": st.sampled_from([0, 3, 400]),
        "recall.length_weight": st.sampled_from([0.0, 0.1, 1.0]),
        "recall.trust": st.sampled_from(["user", "web"]),
        # Without anything between them, texts grow together: tokens of the whole are not those of its parts.
        "assembly.separator": st.sampled_from(["", "\n", "\n\n", " — ", "x"]),
        "assembly.section_headers": st.booleans(),
        "tokens.bytes_per_token": st.sampled_from([0.5, 1.0, 3.3, 3.5, 4.0, 17.25]),
        # The extra tokens has no wheel for the newest Python.
        "tokens.estimator": st.sampled_from(["bytes", "calibrated", *(["exact"] if find_spec("quicktok") else [])]),
        "tokens.vocabulary": st.sampled_from(["o200k_base", "cl100k_base"]),
        "section_priorities.user": st.integers(0, 3),
        "section_priorities.system": st.integers(0, 3),
        "section_priorities.artifacts": st.integers(0, 3),
        "section_priorities.notes": st.integers(0, 3),
        "section_priorities.history": st.integers(0, 3),
        "section_priorities.custom": st.just([["facts", 2]]),
        "pcp.dosage.max_context_tokens": st.sampled_from([8_000, 8_000, 400, 90]),
        "pcp.dosage.max_artifacts_in_window": st.integers(0, 6),
        "pcp.dosage.max_notes_in_window": st.integers(0, 6),
        "pcp.dosage.max_scopes_in_window": st.integers(0, 3),
        "assembly.relevance": st.sampled_from(["search", "vector"]),
        "search.weights": st.sampled_from([LEGS, {**LEGS, "vector": 0.0, "keyword": 0.9}]),
        "search.normalisation": st.sampled_from(["peak", "saturation"]),
        "search.fusion": st.sampled_from(["weighted", "rrf"]),
        "search.diversity": st.sampled_from([0.0, 0.4]),
        "search.boosts.question": st.sampled_from([0.0, -5.0]),
        "min_relevance_threshold": st.sampled_from([0.0, 0.1, 0.6, 1.0]),
        "system_instructions": st.sampled_from([None, "Be brief.", "Überlege gut. " * 30]),
        "persona": st.sampled_from([None, "A careful librarian."]),
    }
)
numbers = st.fixed_dictionaries(
    {
        "critical_priority": st.sampled_from([0, 2, 60, 101]),
        "compress_ratio": st.sampled_from([0.1, 0.5, 1.0]),
        "max_turns": st.integers(0, 20),
        "artifact_limit": st.integers(0, 10),
        "note_search_limit": st.integers(0, 8),
        "summary_limit": st.integers(0, 4),
        "recent_exchanges": st.integers(0, 3),
        "recent_from_tokens": st.sampled_from([0, 300, 2_000]),
        "evict_share": st.sampled_from([0.05, 0.3, 1.0]),
        "spare_share": st.sampled_from([0.0, 0.14, 1.0]),
        "duplicate_similarity": st.sampled_from([0.5, 0.98, 1.0]),
    }
)
calls = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 1_500),
        "query": st.sampled_from([None, "what now?", " ", "a 漢 or b", '"ab" b*', "aa ab ba bb"]),
        "query_embedding": vectors,
        "extra_sections": st.sampled_from([{}, {"facts": "Water is wet. " * 3}]),
    }
)


def build(memory: dict[str, Any]) -> Any:
    world = World()
    with world.at_once():
        _write(world, memory)
    return world


def _write(world: Any, memory: dict[str, Any]) -> None:
    world.open_space(4)
    for text, vector in memory["notes"]:
        world.note(text, vector)
    for content, vector in memory["artifacts"]:
        world.artifact(content, vector)
    for summary in memory["summaries"]:
        world.scope(summary=summary)
    for other in memory["others"]:
        _write_other(world, other)
    if memory["earlier"]:
        world.scope_id = world.scope(closed=True)
        for content in memory["earlier"]:
            world.turn(content)
        first = world.turns_of[world.trajectory_id] - len(memory["earlier"])
        for at, content in enumerate(memory["blocks"][: len(memory["earlier"])]):
            world.turn_summary(content, first=first + at, last=first + at)
        if memory["pause"]:
            world.clock.advance(ms=86_400_000)
    world.scope_id = world.scope()
    for kind, content in memory["turns"]:
        if kind == "tools":
            said, results, chatter = content
            asked = [ToolCall(f"c{world.made}-{at}", "look", "{}") for at in range(len(results))]
            world.turn(said, TurnRole.ASSISTANT, calls=asked)
            if chatter:
                world.turn("meanwhile")
            for call, result in zip(asked, results, strict=True):
                world.turn(result, TurnRole.TOOL, call_id=call.id, name="look")
        elif kind == "orphan":
            world.turn(content, TurnRole.TOOL, call_id="nobody asked")
        elif kind == "pending":
            world.turn(content, TurnRole.ASSISTANT, calls=[ToolCall(f"p{world.made}", "wait", '{"s": 1}')])
        else:
            world.turn(content, TurnRole(kind))


def _write_other(world: Any, other: dict[str, Any]) -> None:
    owner = ME if other["mine"] else EntityRef(EntityType.USER, numbered(99))
    task = world.trajectory(initiator=owner)
    scope = world.scope(trajectory=task)
    for content, trust in other["turns"]:
        world.turn(content, trajectory=task, scope=scope, trust=trust)
    for content, vector in other["artifacts"]:
        world.artifact(content, vector, trajectory_id=task, scope_id=scope)
    if other["summary"] is not None:
        world.scope(trajectory=task, summary=other["summary"])


def configured(options: dict[str, Any]) -> Any:
    given = {name: value for name, value in options.items() if value is not None}
    return searching(**given)


many = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


NOTHING: dict[str, Any] = {
    **{kind: [] for kind in ("turns", "notes", "artifacts", "summaries", "earlier", "others", "blocks")},
    "pause": False,
}
NO_TURNS = {
    "critical_priority": 60, "compress_ratio": 0.5, "max_turns": 0, "artifact_limit": 0, "note_search_limit": 0,
    "summary_limit": 0, "recent_exchanges": 0, "recent_from_tokens": 0, "evict_share": 0.05, "spare_share": 0.0,
    "duplicate_similarity": 0.5,
}  # fmt: skip


@many
@given(memories(), knobs, numbers, calls)
@example(  # found turns below a share of the best, without a threshold
    {**NOTHING, "turns": [("user", b"")] * 4 + [("user", b"ab")]},
    {"recall.from": "trajectory", "recall.limit": 3, "min_relevance_threshold": 0.0, "search.weights": LEGS},
    NO_TURNS,
    {"max_tokens": 1, "query": '"ab" b*', "query_embedding": None, "extra_sections": {}},
)
@example(  # a result whose call was said before the turns that a conversation may show
    {**NOTHING, "turns": [("tools", (b"", [b"b"], True)), ("user", b""), ("user", b"")]},
    {
        "assembly.order": "stable_first", "assembly.evict_block_turns": 1, "assembly.fill_ratio": 0.5,
        "assembly.message_overhead_tokens": 0, "assembly.section_shares": {}, "assembly.separator": "",
        "assembly.section_headers": False, "recall.from": "trajectory", "recall.limit": 3, "recall.length_weight": 0.0,
        "tokens.bytes_per_token": 0.5, "tokens.estimator": "bytes", "section_priorities.custom": [["facts", 2]],
        "search.weights": LEGS, "search.normalisation": "peak", "search.fusion": "weighted", "search.diversity": 0.0,
        "search.boosts.question": 0.0, "min_relevance_threshold": 0.6,
        **{f"pcp.dosage.max_{kind}_in_window": 0 for kind in ("artifacts", "notes", "scopes")},
    },
    {**NO_TURNS, "critical_priority": 0, "compress_ratio": 0.1, "max_turns": 4},
    {"max_tokens": 54, "query": "a 漢 or b", "query_embedding": [0.0] * 4, "extra_sections": {}},
)  # fmt: skip
def test_every_window_keeps_its_promises(
    memory: dict[str, Any], options: dict[str, Any], some: dict[str, Any], call: dict[str, Any]
) -> None:
    # C-050, C-057, C-457, C-458, C-460, C-461, C-467, K-075 to K-079, O-8, O-9
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, **some)
        _check_promises(memory, options, call)


def _check_promises(memory: dict[str, Any], options: dict[str, Any], call: dict[str, Any]) -> None:
    world = build(memory)
    config = configured(options)
    try:
        assembled = world.assemble(config=config, **call)
    except BudgetTooSmall:
        return
    finally:
        world.close()
    window = assembled.window
    estimator = plan_of(config).estimator
    assert window.estimator == estimator.name
    overhead = config.assembly.message_overhead_tokens

    # the budget: sections add up, nothing exceeds it, nor a section its own
    assert window.used_tokens <= min(window.max_tokens, config.pcp.dosage.max_context_tokens)
    calls = [call["id"] for each in window.messages for call in each.tool_calls]
    fillers = len(calls) - len([each for each in window.messages if each.tool_call_id in calls])
    beside = overhead * len(window.messages) + (overhead + 4) * fillers  # "[no result]" for each call without one
    assert window.used_tokens == sum(s.token_count for s in window.sections) + beside
    assert window.text == "".join(section.content for section in window.sections)
    whole = estimate_tokens(window.text, estimator=estimator) + overhead * len(window.messages)
    assert whole <= (window.used_tokens if estimator.additive else window.max_tokens)
    plan = plan_of(config)
    for section in window.sections:
        assert section.token_count == estimate_tokens(section.content, estimator=estimator)
        cap = plan.cap_of(plan.by_name[section.name], window.max_tokens)
        assert cap is None or section.token_count <= cap
        if config.assembly.order == "priority":
            assert section.token_count <= config.assembly.share(section.name)[1] * plan.budget(window.max_tokens)
    assert 0 <= window.stable_prefix_tokens <= window.used_tokens

    # one section a type, in the order that is configured
    names = [section.name for section in window.sections]
    assert len(set(names)) == len(names)
    if config.assembly.order == "priority":
        priorities = [section.priority for section in window.sections]
        assert priorities == sorted(priorities, reverse=True)
        assert "current" not in names
    else:
        assert names == [name for name in SECTIONS if name in names]

    # the trace: every candidate once, ranks without a gap, inclusions as in the sections
    trace = window.assembly_trace
    assert [decision.rank for decision in trace] == list(range(len(trace)))
    included = [d for d in trace if d.action is not AssemblyAction.EXCLUDE]
    for decisions in (trace, included):
        # A turn of the conversation can be found too; it enters once.
        seen = [(d.source_type, d.ordinal) for d in decisions if d.target_id is not None]
        assert all(seen.count(one) == 1 or (decisions is trace and one[0] is SourceType.TURN) for one in seen)
    shown = {source.id for section in window.sections for source in section.sources if source.id is not None}
    assert shown == {d.target_id for d in included if d.target_id is not None}
    for decision in trace:
        if decision.rule_id == "relevance_threshold" and not decision.reason.endswith("% of the best"):
            assert np.float32(decision.relevance) < np.float32(config.min_relevance_threshold)
        elif decision.rule_id == "relevance_threshold":  # in the tail of what the search found
            best = max(d.relevance for d in trace if d.breakdown and d.rule_id not in ("duplicate", "open_conflict"))
            assert decision.relevance >= config.min_relevance_threshold
            assert np.float32(decision.relevance) < np.float32(TAIL_SHARE) * np.float32(best)
    for kind, limit in (  # C-254, C-466
        (SourceType.ARTIFACT, config.pcp.dosage.max_artifacts_in_window),
        (SourceType.NOTE, config.pcp.dosage.max_notes_in_window),
        (SourceType.SCOPE_SUMMARY, config.pcp.dosage.max_scopes_in_window),
    ):
        assert sum(d.source_type is kind and d.action is not AssemblyAction.EXCLUDE for d in trace) <= limit

    # turns in the order they were said; calls and results together, uncut
    said = [message for message in window.messages if message.role != "system" and message.name != "memory"]
    parts = [section for section in window.sections if section.name in ("user", "current")]
    places = [source.id for section in parts for source in section.sources]
    assert len(said) == len(places)
    by_id = {d.target_id: d.ordinal for d in included if d.source_type is SourceType.TURN}
    ordinals = [by_id[place] for place in places]
    assert ordinals == sorted(ordinals)
    asked = {call["id"] for message in said for call in message.tool_calls}
    answered = {message.tool_call_id for message in said if message.tool_call_id not in (None, "nobody asked")}
    assert answered <= asked
    every = {f"c{made}": many for made, many in _groups(memory, world)}
    for name, results in every.items():
        inside = {f"{name}-{at}" for at in range(results)}
        assert inside & asked in (set(), inside)
        assert inside & answered in (set(), inside)
    # The newest results are cut where they must be, as they may not be missing; a call never is.
    whole = _calling(world)
    for decision in trace:
        if decision.action is AssemblyAction.TRUNCATE:
            assert decision.source_type is not SourceType.ARTIFACT
            assert decision.target_id not in whole & set(places)
    if config.assembly.order == "stable_first":
        _shared_promises(world, config, call, window)


def _shared_promises(world: Any, config: Any, call: dict[str, Any], window: Any) -> None:
    """Check the promises that hold where the budget is shared: design section 5 (What a window is for)."""
    turns = world.memory.snapshot["turn"]
    own = [row for row in turns.rows().tolist() if _task_of(turns, row) == world.trajectory_id.bytes]
    own.sort(key=lambda row: int(turns.column("turn_number")[row]))
    own = own[len(own) - limits.MAX_TURNS :] if len(own) > limits.MAX_TURNS else own
    user = [row for row in own if turns.packed(row)[turns.layout.codec.index("role")] == "user"]
    current = next((section for section in window.sections if section.name == "current"), None)
    conversation = [section for section in window.sections if section.name in ("user", "current")]

    # the last user message always enters, where there is room for a few words of it at all
    if user and window.max_tokens >= 150:
        assert current.sources[0].id == turns.entity_id(user[-1])

    # the conversation is the end of what was said, but for what must enter by itself
    shown = {source.id for section in conversation for source in section.sources}
    reasons = {d.target_id: d.rule_id for d in window.assembly_trace if d.section in ("user", "current")}
    made, answers = (turns.layout.codec.index(name) for name in ("tool_calls", "tool_call_id"))
    within = {call[0] for row in own for call in json.loads(turns.packed(row)[made])}
    older = next((section for section in window.sections if section.name == "user"), None)
    if older is not None:
        first = [turns.entity_id(row) for row in own].index(older.sources[0].id)
        for row in own[first:]:
            key, answered = turns.entity_id(row), turns.packed(row)[answers]
            if answered is not None and answered not in within:
                continue  # no provider takes a result without its call; it may be recalled or not
            assert key in shown or reasons[key] in ("group_limit", "budget_limit", "standard_inclusion"), key

    # what is recalled: of whom it may be, no turn that the conversation shows, nothing without a query
    recalled = [section for section in window.sections if section.name == "recall"]
    for source in (source for section in recalled for source in section.sources):
        assert source.id not in shown
        relation, row = world.memory.snapshot.locate(source.id.bytes)
        if relation.relation.name == "turn":
            _check_reach(world, config, relation, row)
    asked = call["query_embedding"] is not None or bool((call["query"] or "").strip())
    if not asked or config.assembly.relevance == "vector" or not config.recall.limit:
        assert not recalled


def _task_of(turns: Any, row: int) -> bytes:
    key: bytes = turns.packed(row)[turns.layout.codec.index("trajectory_id")]
    return key


def _check_reach(world: Any, config: Any, turns: Any, row: int) -> None:
    task = _task_of(turns, row)
    if task == world.trajectory_id.bytes:
        return
    tasks = world.memory.snapshot["trajectory"]
    owner = tasks.packed(tasks.find(task))[tasks.layout.codec.index("initiator_id")]
    mine = owner == ME.id.bytes
    assert config.recall.reach == "tenant" or (config.recall.reach == "owner" and mine)
    if config.recall.trust is TrustLabel.USER:
        assert turns.packed(row)[turns.layout.codec.index("trust")] == "user"


def _calling(world: Any) -> set[Any]:
    """The turns that call tools."""
    rows = world.memory.snapshot["turn"]
    at = rows.layout.codec.index("tool_calls")
    return {rows.entity_id(row) for row in rows.rows().tolist() if rows.packed(row)[at] != "[]"}


def _groups(memory: dict[str, Any], world: Any) -> list[tuple[int, int]]:
    """The number in each group's call ids, and how many results it has, found as ``build`` made them."""
    rows = world.memory.snapshot["turn"]
    place = rows.layout.codec.index("tool_calls")
    out = []
    for row in rows.rows().tolist():
        calls = json.loads(rows.packed(row)[place])
        if calls and calls[0][0].startswith("c"):
            out.append((int(calls[0][0][1:].split("-")[0]), len(calls)))
    return out


@many
@given(memories(), knobs, numbers, calls, st.integers(0, 2**32 - 1))
def test_a_window_is_a_function_of_its_inputs(
    memory: dict[str, Any], options: dict[str, Any], some: dict[str, Any], call: dict[str, Any], seed: int
) -> None:
    # C-467, O-9: rows elsewhere, compaction, another path through the kernels and a replay change no byte
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, **some)
        _check_sameness(memory, options, call, seed)


def _check_sameness(memory: dict[str, Any], options: dict[str, Any], call: dict[str, Any], seed: int) -> None:
    world = build(memory)
    config = configured(options)
    try:
        call = {**call, "now_us": world.clock.now_us() + 1, "as_of_us": world.clock.now_us()}
        first = world.assemble(config=config, **call)
        raw = first.record
        fields = repr((first.window, first.window.assembly_trace, first.window.to_messages()))
        assert len(raw) > 4

        # other rows, dead rows, then compacted
        doomed = world.note("to be removed", None)
        world.delete(NOTE, doomed)
        world.memory.compact()
        snapshot = world.memory.snapshot
        again = world.assemble(config=config, **call)
        moved = again.window
        assert (moved.text, moved.to_messages(), moved.sections) == (
            first.window.text,
            first.window.to_messages(),
            first.window.sections,
        )
        assert moved.assembly_trace == first.window.assembly_trace
        assert snapshot.position != first.window.position

        contents = Contents(world)
        for path in available_paths():
            with forced_path(path):
                replayed = replay(raw, config, contents)
                assert repr((replayed, replayed.assembly_trace, replayed.to_messages())) == fields
                assert replayed == first.window
        explained = explain(raw, config, contents)
        assert explained["budget"]["used"] == first.window.used_tokens
        assert sum(explained["budget"]["by_section"].values()) == sum(s.token_count for s in first.window.sections)
        assert len(explained["inclusions"]) + len(explained["exclusions"]) == len(first.window.assembly_trace)
        decisions = first.window.assembly_trace
        for decision in list(decisions)[seed % max(1, len(decisions)) :][:3]:
            if decision.target_id is not None:
                one = explain(raw, config, contents, exclusion=decision.target_id)
                same = [d for d in decisions if d.target_id == decision.target_id]
                # Of a turn that is in the conversation and was found too, what entered is told, else the first.
                same.sort(key=lambda d: (d.action is AssemblyAction.EXCLUDE, d.rank))
                assert one["reason"] == same[0].reason
                excluded = same[0].action is AssemblyAction.EXCLUDE
                assert one["verdict"] == ("excluded" if excluded else "included")
    except BudgetTooSmall:
        pass
    finally:
        world.close()


# --- records ------------------------------------------------------------------------------------


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_no_record(raw: bytes, dressed: bool) -> None:
    with pytest.raises(StorageError):
        unpack_record((MAGIC + bytes((FORMAT,)) if dressed else b"") + raw)


@pytest.fixture(scope="module")
def body() -> bytes:
    import zlib

    world = World()
    world.open_space(4)
    for at in range(5):
        world.note(f"note {at}", [1, at, 0, 0])
        world.turn(f"turn {at}")
    world.tool_turns("a", "b")
    raw: bytes = world.assemble(query="q", query_embedding=[1, 0, 0, 0]).record
    world.close()
    return zlib.decompress(raw[4:])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_record_is_refused_or_read(body: bytes, data: st.DataObject) -> None:
    # Behind zlib's checksum nothing like this arrives; the parser must stand it all the same.
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        how = data.draw(st.sampled_from(["set", "cut", "insert"]))
        if how == "set":
            damaged[at] = data.draw(st.integers(0, 255))
        elif how == "cut" and len(damaged) > at + 1:
            del damaged[at : at + data.draw(st.integers(1, 40))]
        else:
            damaged[at:at] = data.draw(st.binary(max_size=8))
        if not damaged:
            damaged = bytearray(b"\x00")
    try:
        record = unpack_body(bytes(damaged))
    except StorageError:
        return
    assert set(np.unique(record.codes).tolist()) <= {int(code) for code in DecisionCode}
