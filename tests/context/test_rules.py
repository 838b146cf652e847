"""Rules of injection in a store: what a trigger asks for, what survives a restart, what a changed rule changes."""

from __future__ import annotations

import threading
import time
import uuid
from functools import partial
from typing import Any

import apsw
import pytest
from support.configs import policy
from support.context.limits import set_limits
from support.drawn import needs
from support.inspection import inspect
from support.threads import at_once

import caliber
from caliber.model import EntityRef, EntityType
from caliber.model.access import Principal, PrincipalKind
from caliber.model.declared import Trigger
from caliber.model.errors import BudgetTooSmall, NotFound, Unavailable

pytestmark = pytest.mark.databases("one")

LATE = {"write_behind__flush_interval_ms": 600_000}
"""Nothing is written behind but by a flush."""
NOTE = {"entity": "build", "entity_type": "project", "note_type": "fact", "confidence": 0.9}


def inject(memory: str, mode: Any = "full") -> dict[str, Any]:
    kind, number = (mode, None) if isinstance(mode, str) else mode
    form: dict[str, Any] = {"kind": kind}
    if number is not None:
        form["count" if kind == "top_k" else "min_relevance"] = number
    return {"action": "inject", "target": memory, "mode": form}


def rule(memory: str, **more: Any) -> dict[str, Any]:
    return {"memory": memory, "mode": {"kind": "full"}, "priority": 50, **more}


def names(window: Any) -> list[str]:
    return [section.name for section in window.sections]


@pytest.fixture
def opened(backend: Any) -> Any:
    """A store in which a policy on a trigger asks for all notes, and rules ask for none."""

    def make(trigger: str = "task_start", **options: Any) -> Any:
        settings = {
            "injection_rules": [rule("artifact")],
            "policies": [policy(trigger, inject("note"), name="greet")],
            **options,
        }
        return backend.open(**settings)

    return make


def begun(memory: Any, start: Any) -> Any:
    memory.add_note(content="tests use make", **NOTE)
    return start(memory).trajectory_id


def test_what_a_trigger_asks_for_is_in_the_next_window_and_in_no_other(opened: Any, start: Any) -> None:
    # K-065, C-152, C-179
    memory = opened()
    task = begun(memory, start)
    first = memory.assemble_context(task)
    assert names(first) == ["once_note"]
    assert names(memory.assemble_context(task)) == []
    memory.flush()
    assert names(memory.assemble_context(task)) == []
    told = memory.explain(first.window_id)
    assert [(item["rule"], item["once"]) for item in told["rules"] if "once" in item] == [
        ("once_note", "greet[0][0] on task_start")
    ]
    again = memory.replay(first.window_id)
    assert (again.text, again.sections, again.assembly_trace) == (first.text, first.sections, first.assembly_trace)
    (run,) = [event for event in memory.trace(task) if event.event_type == "policy_execute"]
    assert (run.payload["action"], run.payload["asked"]) == ("inject note", 1)
    (entered,) = memory.trace(task, event_type="context_inject")  # C-295: once, though three windows were assembled
    assert entered.subject_id == first.window_id
    assert entered.payload == {"asked": [{"memory": "note", "rule": "greet[0][0] on task_start"}]}


@pytest.mark.parametrize("backend", ["sqlite-memory"], indirect=True)
def test_its_section_is_called_otherwise_where_the_caller_has_one_of_that_name(opened: Any, start: Any) -> None:
    # K-065, C-465: what a caller gives a text for stays the caller's
    memory = opened(**{"section_priorities.custom": [["once_note", 50]]})
    window = memory.assemble_context(begun(memory, start), extra_sections={"once_note": "the caller's"})
    assert names(window) == ["once_note", "once_note_2"]
    assert window.text.index("the caller's") < window.text.index("tests use make")


@needs("reopen")
def test_it_survives_a_restart_until_a_window_has_taken_it(backend: Any, opened: Any, start: Any) -> None:
    # K-065: durable, consumed once
    memory = opened()
    task = begun(memory, start)
    memory.close()
    again = opened()
    window = again.assemble_context(task)
    assert names(window) == ["once_note"]
    again.close()
    third = opened()
    assert names(third.assemble_context(task)) == []
    assert third.replay(window.window_id).text == window.text


def test_a_window_that_takes_it_runs_no_statement(opened: Any, start: Any) -> None:
    # design section 5
    memory = opened(**LATE)
    task = begun(memory, start)
    store = inspect(memory).store
    before = store.statement_count()
    assert names(memory.assemble_context(task)) == ["once_note"]
    assert store.statement_count() == before


def test_of_windows_assembled_at_once_one_takes_it(opened: Any, start: Any) -> None:
    # K-065, also for others who act on the task
    memory = opened(**LATE)
    task = begun(memory, start)
    handles = [memory, memory.acting_as(Principal(PrincipalKind.AGENT, "other"))] * 4
    found = []

    def assemble(handle: Any) -> None:
        found.append(names(handle.assemble_context(task)))

    at_once([partial(assemble, handle) for handle in handles])
    assert sorted(found) == [[]] * 7 + [["once_note"]]


def test_a_window_that_comes_to_nothing_takes_nothing(opened: Any, start: Any) -> None:
    memory = opened()
    task = begun(memory, start)
    with pytest.raises(BudgetTooSmall):
        memory.assemble_context(task, max_tokens=1)
    assert names(memory.assemble_context(task)) == ["once_note"]


def test_what_is_asked_for_again_meanwhile_is_not_lost(opened: Any, start: Any) -> None:
    # K-065: at every trigger, the first window after it
    memory = opened("turn", **LATE)
    task = begun(memory, start)
    scope = memory.current_scope(task).scope_id
    memory.append_turn(scope, role="user", content="one")
    memory.append_turn(scope, role="user", content="two")
    assert names(memory.assemble_context(task)) == ["user", "once_note", "current"]
    memory.append_turn(scope, role="user", content="three")
    memory.flush()  # removes what the first window took, and nothing else
    assert names(memory.assemble_context(task)) == ["user", "once_note", "current"]
    memory.flush()
    assert names(memory.assemble_context(task)) == ["user", "current"]
    assert inspect(memory).resident.snapshot["pending_injection"].count() == 0


@pytest.mark.parametrize("kept", ["ephemeral", "commit"])
@needs("reopen")
def test_it_is_taken_once_however_windows_are_kept(backend: Any, opened: Any, start: Any, kept: str) -> None:
    options: dict[str, Any] = {
        "ephemeral": {"context_window_persistence": {"kind": "ephemeral"}},
        "commit": {"write_behind__window_durability": "commit"},
    }[kept]
    memory = opened(**options)
    task = begun(memory, start)
    assert names(memory.assemble_context(task)) == ["once_note"]
    memory.close()
    assert names(opened(**options).assemble_context(task)) == []


def test_what_nobody_took_ends_with_its_task(opened: Any, start: Any) -> None:
    memory = opened()
    task = begun(memory, start)
    memory.complete_trajectory(task, status="success", summary="done")
    assert inspect(memory).resident.snapshot["pending_injection"].count() == 0


def test_a_declared_memory_enters_at_its_own_triggers(backend: Any, start: Any) -> None:
    # C-145
    field = {"name": "content", "type": "text"}
    declared = {
        "name": "note",
        "type": "semantic",
        "fields": [field],
        "retention": {"kind": "persistent"},
        "inject_on": [{"on": Trigger.SCOPE_CLOSE.value}],
    }
    memory = backend.open(injection_rules=[rule("artifact")], memories=[declared], policies=[])
    task = begun(memory, start)
    assert names(memory.assemble_context(task)) == []
    memory.close_scope(memory.current_scope(task).scope_id)
    window = memory.assemble_context(task)
    assert names(window) == ["once_note"]
    (told,) = [item for item in memory.explain(window.window_id)["rules"] if "once" in item]
    assert told["once"] == "memory note[0][0] on scope_close"


@needs("reopen")
def test_one_changed_rule_changes_the_window_and_explain_says_so(backend: Any, start: Any) -> None:
    # issue: "changing one rule visibly changes the window, shown by explain"
    sure = [rule("note", filter="confidence > 0.5")]
    memory = backend.open(injection_rules=sure)
    task = begun(memory, start)
    doubtful = memory.add_note(content="perhaps", **{**NOTE, "confidence": 0.3})
    window = memory.assemble_context(task)
    told = memory.explain(window.window_id, exclusion=doubtful.note_id)
    assert told["reason"] == "the rule note filters it: confidence 0.3 is not > 0.5"
    memory.close()
    other = backend.open(injection_rules=[rule("note", filter="confidence > 0.2")])
    changed = other.assemble_context(task)
    assert "perhaps" in changed.text
    assert other.explain(changed.window_id, exclusion=doubtful.note_id)["rule"] == "note"
    # the window of before is explained and replayed by the rules it was made under
    assert other.explain(window.window_id, exclusion=doubtful.note_id)["verdict"] == "filtered"
    assert other.replay(window.window_id).text == window.text


def test_untrusted_text_stays_out_of_a_section(backend: Any, start: Any) -> None:
    # issue item 5: rules keep untrusted content out of chosen sections, whatever else competes
    kept_out = 'trust != "web" and trust != "tool"'
    memory = backend.open(
        injection_rules=[
            rule("note", name="trusted", filter=kept_out, priority=90),
            rule("note", name="rest", priority=10, mode={"kind": "summary"}),
            rule("artifact", filter=kept_out),
            rule("turn_buffer", filter=kept_out),
            rule("turn_buffer", mode={"kind": "top_k", "count": 20}, filter=kept_out, priority=20),
            rule("turn_buffer", name="every", mode={"kind": "top_k", "count": 20}, priority=5),
        ],
        recall__trust="web",
        search__keyword__similar_words="none",
    )
    earlier = start(memory)
    for label in ("user", "tool", "web", "system"):
        memory.append_turn(earlier.scope_id, role="user", content=f"once, a turn of {label}", trust=label)
    task = start(memory).trajectory_id
    scope, made = memory.current_scope(task).scope_id, {}
    for label in ("user", "tool", "web", "system"):
        memory.add_note(content=f"note of {label}", trust=label, **{**NOTE, "entity": label})
        made[label] = memory.create_artifact(
            scope, artifact_type="fact", content=f"artifact of {label}", extraction_method="explicit", trust=label
        ).artifact_id
        memory.append_turn(scope, role="user", content=f"turn of {label}", trust=label)
    memory.append_turn(scope, role="user", content="which turn was it, once?", trust="user")
    window = memory.assemble_context(task)
    texts = {section.name: section.content for section in window.sections}
    for name in ("trusted", "artifacts", "user", "recall"):
        assert "of user" in texts[name], name
        assert "of system" in texts[name], name
        assert "of web" not in texts[name], name
        assert "of tool" not in texts[name], name
    for name in ("rest", "every"):
        assert "of web" in texts[name], name
        assert "of tool" in texts[name], name
        assert "of user" not in texts[name], name
    assert memory.replay(window.window_id).text == window.text
    memory.flush()
    why = memory.explain(window.window_id, exclusion=made["tool"])
    assert (why["verdict"], why["trust"]) == ("filtered", "tool")
    assert "trust" in why["reason"]
    told = memory.explain(window.window_id)["inclusions"]
    assert {item["trust"] for item in told if item["type"] == "artifact"} == {"user", "system"}


def test_what_is_recalled_from_other_tasks_is_trusted(backend: Any, start: Any) -> None:
    # design section 10: the knob for the ordinary section, and for what rules rank
    for rules in ([], [rule("turn_buffer", mode={"kind": "top_k", "count": 20})]):
        memory = backend.open(injection_rules=rules, search__keyword__similar_words="none")
        earlier = start(memory)
        memory.append_turn(earlier.scope_id, role="user", content="the harbour opens at six", trust="user")
        memory.append_turn(earlier.scope_id, role="user", content="the harbour opens at noon", trust="web")
        agent = start(memory)
        memory.append_turn(agent.scope_id, role="user", content="a page on the harbour says nine", trust="web")
        memory.close_scope(agent.scope_id)
        scope = memory.open_scope(agent.trajectory_id).scope_id
        memory.append_turn(scope, role="user", content="when does the harbour open?")
        text = memory.assemble_context(agent.trajectory_id).text
        assert "opens at six" in text
        assert "at noon" not in text
        assert "says nine" in text  # the task's own
        memory.close()
        if not backend.has("reopen"):
            return


# --- declared memories ---------------------------------------------------------------------------

DECISION = {
    "name": "decision",
    "type": "semantic",
    "fields": [{"name": "title", "type": "text"}, {"name": "status", "type": "enum", "values": ["open", "done"]},
               {"name": "weight", "type": "float", "optional": True},
               {"name": "body", "type": "text", "optional": True}],
    "retention": {"kind": "persistent"},
    "indexes": [{"field": "title", "type": "hash"}],
}  # fmt: skip


def test_a_declared_memory_is_a_source_of_windows(backend: Any, start: Any) -> None:
    # C-130, C-160, C-465
    memory = backend.open(
        memories=[DECISION],
        injection_rules=[rule("decision", filter='status = "open"', max_tokens=200), rule("note", priority=10)],
    )
    task = start(memory).trajectory_id
    decisions = memory.records("decision")
    made = decisions.insert(title="Use make", status="open", weight=0.5, body="It is there.\nAlways.")
    done = decisions.insert(title="Use tea", status="done")
    gone = decisions.insert(title="Use ink", status="open")
    decisions.archive(gone.record_id)
    window = memory.assemble_context(task)
    assert [(section.name, section.section_type) for section in window.sections] == [("decision", "custom")]
    fields = ["- title: Use make", "  status: open", "  weight: 0.5", "  body: It is there.", "    Always."]
    assert window.text.splitlines() == ["# decision", *fields]
    (source,) = window.sections[0].sources
    assert (source.id, source.source_type) == (made.record_id, "memory")
    told = memory.explain(window.window_id, exclusion=done.record_id)
    assert told["reason"] == 'the rule decision filters it: status "done" is not = "open"'
    assert "archived" in memory.explain(window.window_id, exclusion=gone.record_id)["reason"]
    assert memory.explain(window.window_id, exclusion=made.record_id)["verdict"] == "included"
    decisions.update(made.record_id, {"title": "Use meson", "status": "done"})
    again = memory.replay(window.window_id)
    assert (again.text, again.sections, again.assembly_trace) == (window.text, window.sections, window.assembly_trace)
    decisions.delete(made.record_id)
    memory.flush()
    assert memory.replay(window.window_id).text == window.text
    assert memory.explain(window.window_id)["inclusions"][0]["rule"] == "decision"


def test_windows_forget_what_a_declared_memory_said(file_backend: Any, start: Any) -> None:
    memory = file_backend.open(memories=[DECISION], injection_rules=[rule("decision")])
    task = start(memory).trajectory_id
    memory.records("decision").insert(title="Zebedee wants tea", status="open")
    window = memory.assemble_context(task)
    assert "Zebedee" in window.text
    memory.flush()
    memory.forget(texts=["Zebedee"])
    with pytest.raises(NotFound):
        memory.replay(window.window_id)


@pytest.mark.databases("all")
@needs("reopen", "full text")
def test_rules_bring_the_same_where_records_are_not_in_memory(
    backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # design section 5: what a filter lets through is asked of the database
    options: dict[str, Any] = {
        "memories": [DECISION],
        "injection_rules": [
            rule("note", filter="confidence > 0.5 and created_by != null"),
            rule("decision", mode={"kind": "top_k", "count": 2}, filter='status = "open"'),
            rule("note", name="asked", priority=60, mode={"kind": "top_k", "count": 1}, filter="confidence < 0.75"),
            rule("artifact"),
        ],
        "assembly__notes_without_query": 1,
        "embedding_provider": None,
        "search__keyword__similar_words": "none",
        "principal__kind": "agent",
        "principal__id": "reader",
        "principal__admin": False,
    }
    set_limits(monkeypatch, rule_limit=3)
    memory = backend.open(**options, search__mode="backend")
    other = backend.open(memory.config, principal=Principal(PrincipalKind.AGENT, "writer"))
    task = start(memory).trajectory_id
    for at in range(6):
        note = {**NOTE, "entity": f"thing {at}", "confidence": 0.4 + 0.1 * at}
        author, readers = (other, ["agent:writer"]) if at == 5 else (memory, None)
        author.add_note(content=f"note {at}", visible_to=readers, **note)
        memory.records("decision").insert(title=f"decision {at}", status="open" if at % 2 else "done")
    window = memory.assemble_context(task)
    assert {section.name: len(section.sources) for section in window.sections} == {
        "notes": 2,
        "asked": 1,
        "decision": 2,
    }
    assert window.degraded == ("not_resident",)
    assert memory.replay(window.window_id).text == window.text
    asked = memory.assemble_context(task, query="note 4 or 3")
    memory.close()
    again = backend.open(**options)
    assert again.assemble_context(task).text == window.text
    assert again.assemble_context(task, query="note 4 or 3").text == asked.text


@pytest.mark.databases("all")
@needs("sharing", "full text")
def test_rules_rank_the_same_turns_where_records_are_not_in_memory(backend: Any, start: Any) -> None:
    # design section 5: also of other tasks, and never of another owner
    ways: list[list[dict[str, Any]]] = [
        [rule("turn_buffer", mode={"kind": "top_k", "count": 3})],
        [
            rule("turn_buffer"),
            rule("turn_buffer", mode={"kind": "top_k", "count": 4}, filter='role = "user" and trust != "web"'),
            rule("turn_buffer", mode={"kind": "relevant", "min_relevance": 0.4}, name="near", priority=10),
            rule("note", priority=5),
        ],
    ]
    options: dict[str, Any] = {"search__keyword__similar_words": "none", "summaries__turns": "off"}
    stores = start(backend.open(search__mode="backend", injection_rules=ways[0], **options))
    memory = stores.memory
    for at in range(40):
        stores.say(f"the boat {at} of the harbour" if at % 3 else f"tea {at}", "user" if at % 2 else "assistant")
    strange = memory.start_trajectory("x", initiator=EntityRef(EntityType.USER, uuid.UUID(int=7)))
    theirs = memory.current_scope(strange.trajectory_id)
    memory.append_turn(theirs.scope_id, role="user", content="SECRET boat of the harbour")
    agent = start(memory)
    for at in range(8):
        agent.say(f"what of boat {at}?", "user" if at % 2 else "assistant", trust="web" if at == 3 else None)
    memory.close_scope(agent.scope_id)
    memory.append_turn(memory.open_scope(agent.trajectory_id).scope_id, role="user", content="boats in the harbour?")
    memory.flush()
    for rules in ways:
        for way in ({}, {"assembly__order": "priority"}, {"assembly__relevance": "vector"}):
            knobs = {**options, "injection_rules": rules, **way}
            stored, resident = backend.open(search__mode="backend", **knobs), backend.open(**knobs)
            for query in (None, "tea", "boat 7 of the harbour", "", "zzzq"):
                window = stored.assemble_context(agent.trajectory_id, query=query)
                expected = resident.assemble_context(agent.trajectory_id, query=query, consistency="latest")
                assert window.text == expected.text, (way, query)
                assert "SECRET" not in window.text
                assert stored.replay(window.window_id).text == window.text
            assert len(window.sections) > 1


def test_records_of_a_declared_memory_are_taken_by_what_a_query_asks(backend: Any, start: Any) -> None:
    # C-156, C-196
    fields = [{"name": "body", "type": "text"}, {"name": "body_embedding", "type": "embedding"}]
    lesson = {**DECISION, "name": "lesson", "fields": fields, "indexes": []}
    memory = backend.open(
        memories=[lesson],
        injection_rules=[rule("lesson", mode={"kind": "top_k", "count": 1}), rule("note")],
        search__keyword__similar_words="none",
    )
    task = start(memory).trajectory_id
    lessons = memory.records("lesson")
    wanted = lessons.insert(body="Backups are made at night.")
    newest = lessons.insert(body="Tea is made in the morning.")
    memory.flush()
    asked = memory.assemble_context(task, query="when are the backups made")
    assert [item.id for item in asked.sections[0].sources] == [wanted.record_id]
    assert asked.assembly_trace[0].breakdown
    told = memory.explain(asked.window_id, exclusion=newest.record_id)
    assert (told["verdict"], told["rule"]) == ("cut_off", "lesson")
    assert told["score"] is not None
    assert [item.id for item in memory.assemble_context(task).sections[0].sources] == [newest.record_id]


@needs("sharing")
def test_of_two_handles_on_one_store_one_takes_it_once_the_other_has_heard(
    backend: Any, opened: Any, start: Any
) -> None:
    # K-065: several processes
    first, second = opened(**LATE), opened(**LATE)
    task = begun(first, start)
    assert names(second.assemble_context(task, consistency="latest")) == ["once_note"]
    second.flush()
    assert names(first.assemble_context(task, consistency="latest")) == []
    again = start(first).trajectory_id
    # Neither has heard of the other: both may have it, and both come to an end of it.
    assert names(first.assemble_context(again)) == ["once_note"]
    assert names(second.assemble_context(again, consistency="latest")) == ["once_note"]
    first.flush()
    second.flush()
    assert names(second.assemble_context(again, consistency="latest")) == []
    assert inspect(first).resident.verify() == []


KEPT_AT_ONCE = {**LATE, "write_behind__window_durability": "commit", "resident__feed_poll_ms": 600_000}
"""Windows are kept before the call returns; a handle hears of another when it looks."""


@needs("sharing")
def test_of_two_handles_that_have_not_heard_of_each_other_one_takes_it_where_windows_are_kept_at_once(
    backend: Any, opened: Any, start: Any
) -> None:
    # K-065, decision 0167: several processes
    first, second = opened(**KEPT_AT_ONCE), opened(**KEPT_AT_ONCE)
    other = start(first).trajectory_id
    task = begun(first, start)
    assert names(second.assemble_context(other, consistency="latest")) == ["once_note"]
    waits = inspect(second).resident.snapshot["pending_injection"]
    assert names(first.assemble_context(task)) == ["once_note"]
    assert inspect(second).resident.snapshot["pending_injection"] is waits, "it has not heard"
    again = second.assemble_context(task)
    assert names(again) == []
    assert names(second.assemble_context(task)) == []
    # What was not returned was not kept.
    assert second.storage.context_windows.count() == 4
    assert second.replay(again.window_id).text == again.text
    assert second.storage.pending_injections.count() == 0
    for memory in (first, second):
        assert memory.assemble_context(task, consistency="latest")
        assert inspect(memory).resident.verify() == []


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_deadline_bounds_also_keeping_the_window_and_what_it_took_goes_to_the_next(
    backend: Any, opened: Any, start: Any
) -> None:
    memory = opened(**KEPT_AT_ONCE, storage__busy_timeout_ms=20_000)
    task = begun(memory, start)
    memory.flush()
    other, begun_s = apsw.Connection(backend.path), time.monotonic()
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable), caliber.deadline(50):
        memory.assemble_context(task)
    assert time.monotonic() - begun_s < 20
    other.execute("ROLLBACK")
    other.close()
    assert names(memory.assemble_context(task)) == ["once_note"]


@needs("sharing")
def test_of_two_handles_at_once_one_takes_it_where_windows_are_kept_at_once(
    backend: Any, opened: Any, start: Any
) -> None:
    # K-065, decision 0167: whoever loses the race makes its window again
    both = [opened(**KEPT_AT_ONCE) for _ in range(2)]
    tasks = [begun(both[0], start) for _ in range(6)]
    together = threading.Barrier(2)
    found: list[dict[Any, list[str]]] = [{}, {}]

    def assemble(at: int) -> None:
        both[at].search("tests", limit=1, consistency="latest")
        for task in tasks:
            together.wait(30)
            found[at][task] = names(both[at].assemble_context(task))

    at_once([partial(assemble, at) for at in range(2)])
    assert [sorted((found[0][task], found[1][task])) for task in tasks] == [[[], ["once_note"]]] * len(tasks)
    assert both[0].storage.context_windows.count() == 2 * len(tasks)
    assert both[0].storage.pending_injections.count() == 0
