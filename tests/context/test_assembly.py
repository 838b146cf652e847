"""Content of a window: sources, filters, limits of sources, relevance."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.context import world as kit
from support.context.limits import set_limits
from support.context.world import content, decisions, section

from caliber.context.assembler import extra_texts
from caliber.model.context import AssemblyAction, SectionType, SourceType
from caliber.model.errors import InvalidValue, InvalidVector, NotFound
from caliber.model.references import EntityType
from caliber.model.storage import ResultStatus
from caliber.model.trajectory import TurnRole
from caliber.schema.relations import ARTIFACT, NOTE, SCOPE

# --- sources -------------------------------------------------------------------------------------


def test_every_source_has_its_section(world: Any) -> None:
    # C-449, C-450, C-460, C-462, C-053
    world.config = kit.strict(
        system_instructions="Be brief.", persona="A librarian.", **{"section_priorities.custom": [["facts", 65]]}
    )
    world.scope(summary="we began", closed=True)
    world.scope_id = world.scope()
    world.turn("hello")
    world.artifact("x = 1")
    world.note("tests use make")
    window = world.window(extra_sections={"facts": "water is wet"})
    types = [item.section_type for item in window.sections]
    assert types == [
        SectionType.SYSTEM, SectionType.PERSONA, SectionType.USER, SectionType.ARTIFACTS, SectionType.NOTES,
        SectionType.CUSTOM, SectionType.HISTORY,
    ]  # fmt: skip
    assert [item.priority for item in window.sections] == [100, 95, 90, 80, 70, 65, 60]  # C-051
    assert window.text == (
        "# System\nBe brief.\n\n# Persona\nA librarian.\n\n# Conversation\nuser: hello\n\n"
        "# Artifacts\n[fact]\n    x = 1\n\n"
        "# Notes\n- build (fact): tests use make\n\n# facts\nwater is wet\n\n# History\n- we began"
    )
    assert window.status is ResultStatus.OK
    assert [item.compressible for item in window.sections] == [True, True, True, False, True, True, True]  # C-224
    texts = {"system_instructions": "Be brief.", "persona": "A librarian."}
    for name in ("system", "persona", "user", "artifacts", "notes", "history"):
        for priority, place in ((500, 0), (1, -1)):
            config = kit.strict(**texts, **{f"section_priorities.{name}": priority})
            assert world.window(config=config).sections[place].name == name


def test_a_window_holds_no_more_than_its_doses(world: Any) -> None:
    # C-254
    for at in range(4):
        world.note(f"note {at}")
        world.artifact(f"artifact {at}")
        world.scope(trajectory=None, summary=f"summary {at}")
    for knob, place in (
        ("max_notes_in_window", "notes"),
        ("max_artifacts_in_window", "artifacts"),
        ("max_scopes_in_window", "history"),
    ):
        for most in (1, 2):
            window = world.window(config=kit.strict(**{f"pcp.dosage.{knob}": most}))
            assert len(section(window, place).sources) == most
    for most in (30, 60):
        window = world.window(config=kit.strict(**{"pcp.dosage.max_context_tokens": most}))
        assert most / 2 < window.used_tokens <= most


def test_stable_first_puts_what_changes_least_first(world: Any) -> None:
    # design section 5, Prompt caches
    world.config = kit.config_of(system_instructions="Be brief.", **{"section_priorities.custom": [["facts", 5]]})
    world.scope(summary="we began", closed=True)
    world.scope_id = world.scope()
    world.turn("hello")
    world.turn("hi", TurnRole.ASSISTANT)
    world.turn("what is x?")
    world.artifact("x = 1")
    world.note("tests use make")
    window = world.window(extra_sections={"facts": "water is wet", "persona": "A librarian."})
    assert [item.name for item in window.sections] == [
        "system", "persona", "facts", "history", "user", "artifacts", "notes", "current",
    ]  # fmt: skip
    assert window.text == (
        "# System\nBe brief.\n\n# Persona\nA librarian.\n\n# facts\nwater is wet\n\n# History\n- we began\n\n"
        "# Conversation\nuser: hello\n\nassistant: hi\n\n# Artifacts\n[fact]\n    x = 1\n\n"
        "# Notes\n- build (fact): tests use make\n\n# Now\nuser: what is x?"
    )
    (user, current) = (section(window, name) for name in ("user", "current"))
    assert (user.section_type, current.section_type) == (SectionType.USER, SectionType.CURRENT)


def test_unknown_trajectory_is_not_found(world: Any) -> None:
    # C-447
    with pytest.raises(NotFound):
        world.window(trajectory_id=kit.numbered(9))


@pytest.mark.parametrize("config_of", [kit.config_of, kit.strict])
def test_a_new_scope_begins_with_the_last_exchanges(world: Any, config_of: Any) -> None:
    # design section 5, issue item 4: closing a scope in mid-conversation takes nothing from view
    world.config = config_of()
    world.turn("my dog is called Pixel")
    world.turn("a fine name", TurnRole.ASSISTANT)
    world.change(SCOPE, world.scope_id, closed_at=world.now())
    closed = world.window()
    assert closed.scope_id is None
    assert [message.content for message in closed.messages] == ["my dog is called Pixel", "a fine name"]
    new = world.scope()
    between = world.window()
    assert between.scope_id == new
    assert [message.content for message in between.messages] == ["my dog is called Pixel", "a fine name"]
    world.turn("what is it called?", scope=new)
    window = world.window()
    earlier = "# Conversation\nuser: my dog is called Pixel\n\nassistant: a fine name\n\n"
    if config_of is kit.strict:  # its conversation is one section
        assert content(window, "user") == earlier + "user: what is it called?"
    else:
        assert content(window, "user") == earlier
        assert content(window, "current") == "# Now\nuser: what is it called?"


def test_turns_of_scopes_stand_in_the_order_of_scopes(world: Any) -> None:
    # O-8: chronological, whichever scope was written to last
    first, second = world.scope_id, world.scope()
    for text, scope in (("one", first), ("two", second), ("three", first), ("four", second)):
        world.turn(text, scope=scope)
    assert [message.content for message in world.window().messages] == ["one", "two", "three", "four"]


def test_invalid_utf8_is_replaced(world: Any) -> None:
    # C-451
    world.turn(b"caf\xff")
    window = world.window()
    assert content(window, "current") == "# Now\nuser: caf�"
    assert window.to_messages() == [{"role": "user", "content": "caf�"}]


def test_artifacts_that_no_longer_count_are_left_out(world: Any) -> None:
    # C-452, K-080
    keep = world.artifact("keep")
    superseded, rolled, retired = world.artifact("superseded"), world.artifact("rolled back"), world.artifact("retired")
    world.change(ARTIFACT, superseded, superseded_by=keep)
    world.change(ARTIFACT, rolled, rolled_back_at=world.now())
    world.change(ARTIFACT, retired, retired_at=world.now())
    world.artifact("expired", expires_at=world.now())
    world.artifact("still good", expires_at=world.now() + timedelta(days=1))
    window = world.window()
    assert [source.id for source in section(window, "artifacts").sources][1:] == [keep]
    assert len(section(window, "artifacts").sources) == 2
    assert len(window.assembly_trace) == 2


def test_artifacts_of_ancestors_are_visible_up_to_the_depth(world: Any) -> None:
    # C-251, K-097, K-074
    top = world.trajectory_id
    middle = world.trajectory(parent=top)
    bottom = world.trajectory(parent=middle)
    for at, trajectory in enumerate((top, middle, bottom, world.trajectory())):
        world.artifact(f"of {at}", trajectory_id=trajectory)
    world.trajectory_id = bottom

    def seen(depth: int, *, enabled: bool = True) -> set[int]:
        config = kit.config_of(**{"pcp.context_dag.max_depth": depth, "pcp.context_dag.enabled": enabled})
        window = world.window(config=config)
        return {at for at in range(4) if f"of {at}" in window.text}

    assert seen(1) == {1, 2}
    assert seen(2) == {0, 1, 2}
    assert seen(5) == {0, 1, 2}
    assert seen(5, enabled=False) == {2}


@pytest.mark.parametrize(("strategy", "kept"), [("lru", {"b", "c"}), ("relevance", {"a", "b"}), ("hybrid", {"a", "b"})])
def test_ancestors_are_pruned_by_strategy(
    world: Any, strategy: str, kept: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # C-251
    world.open_space()
    child = world.trajectory(parent=world.trajectory_id)
    relevance = {"a": [1, 0, 0, 0], "b": [1, 1, 0, 0], "c": [0, 1, 0, 0]}
    keys = {name: world.artifact(f"artifact {name}", vector) for name, vector in relevance.items()}
    world.used(EntityType.ARTIFACT, keys["c"])
    world.used(EntityType.ARTIFACT, keys["b"])
    world.trajectory_id = child
    world.artifact("own")
    set_limits(monkeypatch, artifact_limit=3)
    config = kit.config_of(min_relevance_threshold=0.0, **{"pcp.context_dag.prune_strategy": strategy})
    window = world.window(config=config, query="q", query_embedding=[1, 0, 0, 0])
    assert "own" in window.text
    assert {name for name in keys if f"artifact {name}" in window.text} == kept
    (cut,) = [item for item in window.cut_offs if item.source_type is SourceType.ARTIFACT]
    assert (cut.filter, cut.limit, cut.considered) == (f"ancestors:{strategy}", 2, 3)


def test_notes_that_do_not_hold_are_left_out(world: Any) -> None:
    # C-453
    now = world.now()
    old = world.note("superseded")
    kept = world.note("kept")
    world.change(NOTE, old, superseded_by=kept)
    world.change(NOTE, world.note("archived"), archived_at=now)
    world.note("not yet", valid_from=now + timedelta(days=1))
    world.note("no longer", valid_until=now)
    world.note("in force", valid_from=now, valid_until=now + timedelta(days=1))
    at = (now.timestamp() + 10) * 1e6
    window = world.window(as_of_us=int(at))
    assert [text.split(": ")[1] for text in content(window, "notes").split("\n") if text.startswith("-")] == [
        "in force",
        "kept",
    ]
    later = world.window(as_of_us=int(at) + 86_400_000_000)
    assert "not yet" in later.text
    assert "in force" not in later.text


def test_notes_outside_the_mask_leave_no_trace(world: Any) -> None:
    # C-453, and design: nothing seen that should not be
    hidden, shown = world.note("hidden"), world.note("shown")
    notes = world.memory.snapshot["note"]
    mask = np.ones(notes.length, np.bool_)
    mask[notes.find(hidden.bytes)] = False
    window = world.window(note_mask=mask)
    assert {decision.target_id for decision in window.assembly_trace} == {shown}
    with pytest.raises(InvalidValue, match="codes"):
        world.window(note_mask=mask[:-1])


def test_without_a_query_the_newest_notes_are_taken(world: Any) -> None:
    # C-453, O-15
    keys = [world.note(f"note {at}") for at in range(6)]
    config = kit.config_of(**{"assembly.notes_without_query": 2})
    window = world.window(config=config)
    assert [source.id for source in section(window, "notes").sources] == [keys[5], keys[4]]
    (cut,) = window.cut_offs
    made = world.memory.snapshot["note"].column("created_at")[4]
    assert (cut.source_type, cut.filter, cut.limit, cut.considered) == (SourceType.NOTE, "newest", 2, 6)
    assert cut.cutoff_score == made
    assert len(window.assembly_trace) == 2
    none = world.window(config=kit.config_of(**{"assembly.notes_without_query": 0}))
    assert section(none, "notes") is None


def test_closed_scopes_with_a_summary_are_history(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # C-454
    world.scope(closed=True)
    world.scope(summary="first")
    world.scope(summary="second")
    window = world.window()
    assert content(window, "history") == "# History\n- second\n\n- first"
    set_limits(monkeypatch, summary_limit=1)
    limited = world.window()
    assert "first" not in limited.text
    (cut,) = limited.cut_offs
    assert (cut.filter, cut.limit, cut.cutoff_score, cut.considered) == ("newest", 1, 3.0, 2)


def test_only_the_newest_turns_are_considered(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # O-15
    for at in range(5):
        world.turn(f"turn {at}")
    set_limits(monkeypatch, max_turns=2)
    window = world.window()
    assert [message.content for message in window.messages] == ["turn 3", "turn 4"]
    assert len(window.assembly_trace) == 2
    (cut,) = window.cut_offs
    assert (cut.source_type, cut.limit, cut.cutoff_score, cut.considered) == (SourceType.TURN, 2, 3.0, 5)


def test_a_limit_does_not_part_a_result_from_its_call(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # O-8
    world.tool_turns("one", "two")
    world.turn("and now?")
    set_limits(monkeypatch, max_turns=3)
    window = world.window()
    assert [message.content for message in window.messages] == ["and now?"]


def test_extra_sections_are_those_that_are_configured(world: Any) -> None:
    with pytest.raises(InvalidValue, match="nonsense"):
        world.window(extra_sections={"nonsense": "x"})
    with pytest.raises(InvalidValue, match="notes"):
        world.window(extra_sections={"notes": "x"})
    with pytest.raises(InvalidValue, match="persona"):
        world.window(extra_sections={"persona": "\ud800"})
    world.turn("hello")
    assert section(world.window(extra_sections={"persona": None}), "persona") is None
    config = kit.config_of(persona="configured")
    assert "configured" in world.window(config=config).text
    given = world.window(config=config, extra_sections={"persona": "given"})
    assert content(given, "persona") == "# Persona\ngiven\n\n"


# --- relevance -----------------------------------------------------------------------------------


def test_relevance_is_full_without_a_query(world: Any) -> None:
    # C-455
    world.open_space()
    world.artifact("a", [1, 0, 0, 0])
    world.note("n", [1, 0, 0, 0])
    window = world.window()
    assert {decision.relevance for decision in window.assembly_trace} == {1.0}


def test_relevance_is_the_clipped_cosine_or_neutral(world: Any) -> None:
    # C-455, K-096
    world.open_space()
    same = world.artifact("same", [2, 0, 0, 0])
    half = world.artifact("half", [1, 1, 0, 0])
    away = world.artifact("away", [-1, 0, 0, 0])
    bare = world.artifact("bare")
    world.scope(summary="before")
    config = kit.config_of(min_relevance_threshold=0.0)
    window = world.window(config=config, query="q", query_embedding=[1, 0, 0, 0])
    relevance = {decision.target_id: decision.relevance for decision in window.assembly_trace}
    assert relevance[same] == 1.0
    assert relevance[half] == pytest.approx(0.7071, abs=1e-4)
    assert relevance[away] == 0.0
    assert relevance[bare] == 0.5
    assert [s.id for s in section(window, "artifacts").sources] == [same, half, bare, away]
    assert window.status is ResultStatus.OK


def test_a_query_picks_the_most_similar_notes(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # C-453, O-15
    world.open_space()
    best = world.note("best", [1, 0, 0, 0])
    good = world.note("good", [3, 1, 0, 0])
    fair = world.note("fair", [1, 1, 0, 0])
    world.note("far", [0, 0, 1, 0])
    world.note("without a vector")
    set_limits(monkeypatch, note_search_limit=2, note_min_similarity=0.5)
    window = world.window(query="q", query_embedding=[1, 0, 0, 0])
    assert [source.id for source in section(window, "notes").sources] == [best, good]
    (cut,) = window.cut_offs
    assert (cut.filter, cut.limit, cut.considered) == ("similarity_limit", 2, 5)
    assert cut.cutoff_score == pytest.approx(3 / 10**0.5)
    set_limits(monkeypatch, note_search_limit=10)
    wider = world.window(query="q", query_embedding=[1, 0, 0, 0])
    assert [source.id for source in section(wider, "notes").sources] == [best, good, fair]
    assert wider.cut_offs[0].filter == "min_similarity"
    assert wider.cut_offs[0].cutoff_score == 0.5


def test_a_query_without_a_vector_degrades(world: Any) -> None:
    # C-448, C-455
    world.note("n")
    world.artifact("a")
    window = world.window(query="q")
    assert window.status is ResultStatus.DEGRADED
    assert window.degraded == ("no_embedding",)
    assert {d.relevance for d in window.assembly_trace if d.source_type is not SourceType.TURN} == {0.5}
    assert "- build (fact): n" in window.text


@pytest.mark.parametrize("how", ["dimensions", "space"])
def test_what_cannot_be_compared_is_an_error(world: Any, how: str) -> None:
    # K-096
    world.open_space()
    bad = world.artifact("embedded", [1, 0, 0, 0])
    plain = world.artifact("not embedded")
    note = world.note("note", [1, 0, 0, 0])
    call: dict[str, Any] = {"query": "q", "query_embedding": [1, 0, 0]}
    if how == "space":
        call = {"query": "q", "query_embedding": [1, 0, 0, 0], "space_id": kit.numbered(3)}
    window = world.window(**call)
    assert window.status is ResultStatus.DEGRADED
    assert window.degraded == ("embedding_mismatch",)
    errors = decisions(window, "embedding_error")
    assert {decision.target_id for decision in errors} == {bad, note}
    assert all(decision.action is AssemblyAction.EXCLUDE for decision in errors)
    assert section(window, "artifacts").sources[0].id == plain


def test_a_query_vector_must_be_one_finite_row(world: Any) -> None:
    world.open_space()
    for wrong in ([1, float("nan"), 0, 0], [[1, 0, 0, 0]]):
        with pytest.raises(InvalidVector):
            world.window(query="q", query_embedding=wrong)


def test_irrelevance_is_judged_before_the_budget(world: Any) -> None:
    # C-458, K-079
    world.open_space()
    far = world.artifact("far " * 4_000, [0, 1, 0, 0])
    near = world.artifact("near", [1, 0, 0, 0])
    window = world.window(query="q", query_embedding=[1, 0, 0, 0], max_tokens=200)
    (decision,) = decisions(window, "relevance_threshold")
    assert decision.target_id == far
    assert decision.reason == "relevance 0.0000 is below the threshold 0.1000"
    assert decision.tokens == world.memory.snapshot["artifact"].column("token_count")[0]
    assert section(window, "artifacts").sources[0].id == near


def test_a_section_that_is_not_declared_is_refused_with_how_to_declare_it() -> None:
    plan: Any = SimpleNamespace(by_name={}, sections=())
    with pytest.raises(InvalidValue, match=r"section_priorities\.custom, such as custom = \[\[\"tools\", 40\]\]"):
        extra_texts(plan, {"tools": "grep"})
