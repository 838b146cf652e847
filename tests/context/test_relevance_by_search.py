"""Windows whose relevance a search makes: what enters, in which order, and what is said of it.

Source: issue "Search in native memory", item 8; docs/search.md (In windows).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.context import world as kit
from support.context.limits import set_limits
from support.context.world import decisions, section

import caliber
from caliber.explain.explainer import explain
from caliber.explain.replayer import replay
from caliber.kernels.dispatch import available_paths, forced_path
from caliber.kernels.evaluator import NUMPY, Evaluator
from caliber.model.context import SourceType
from caliber.model.errors import InvalidVector
from caliber.model.storage import ResultStatus

NEAR, FAR = [1, 0, 0, 0], [0, 1, 0, 0]


@pytest.fixture(params=[kit.searching, kit.strict_searching], ids=["shared", "strict"])
def world(request: Any) -> Iterator[Any]:
    made = kit.World(request.param())
    made.open_space()
    yield made
    made.close()


@pytest.fixture
def shared() -> Iterator[Any]:
    """A world whose budget is shared."""
    made = kit.World(kit.searching())
    made.open_space()
    yield made
    made.close()


@pytest.fixture
def strict() -> Iterator[Any]:
    """A world whose budget is filled strictly by priority."""
    made = kit.World(kit.strict_searching())
    made.open_space()
    yield made
    made.close()


def shown(window: Any, name: str) -> list[Any]:
    found = section(window, name)
    return [] if found is None else [source.id for source in found.sources]


def relevance(window: Any) -> dict[Any, float]:
    return {decision.target_id: decision.relevance for decision in window.assembly_trace}


# --- what enters ----------------------------------------------------------------------------------


def test_a_note_found_only_by_a_word_enters(world: Any) -> None:
    worded = world.note("the zeppelin landed at noon", FAR)
    near = world.note("of something else", NEAR)
    world.note("of nothing", FAR)
    asked: dict[str, Any] = {"query": "when did the zeppelin land?", "query_embedding": NEAR}
    window = world.window(**asked)
    assert shown(window, "notes") == [worded, near]
    (first,) = [item for item in window.assembly_trace if item.target_id == worded]
    assert set(first.breakdown) == {"keyword"}
    # the knob: by vectors alone the word says nothing
    vector = world.window(config=world.config.with_overrides(**{"assembly.relevance": "vector"}), **asked)
    assert shown(vector, "notes") == [near]


def test_words_rank_without_any_vector(world: Any) -> None:
    # M-040: an outage costs one leg
    found = world.note("backups run at night")
    world.note("lunch is at noon")
    kept = world.artifact("the plan for backups")
    other = world.artifact("a recipe")
    window = world.window(query="backups?", without_vector="query_not_embedded: timeout")
    assert (window.status, window.degraded) == (ResultStatus.DEGRADED, ("query_not_embedded: timeout",))
    assert shown(window, "notes") == [found]
    # nothing is too slight for an artifact of the task while there is room; what is relevant comes first
    assert shown(window, "artifacts") == [kept, other]
    assert relevance(window)[other] == 0.0
    plain = world.window(query="backups?")
    assert plain.degraded == ("no_embedding",)


def test_a_configuration_without_vectors_misses_none() -> None:
    made = kit.World(kit.config_of(**{"assembly.relevance": "search"}))
    found = made.note("backups run at night")
    made.note("lunch")
    window = made.window(query="backups")
    assert (window.status, window.degraded) == (ResultStatus.OK, ())
    assert shown(window, "notes") == [found]
    made.close()


def test_strictly_a_query_that_says_nothing_to_the_store_is_neutral(strict: Any) -> None:
    notes = [strict.note(text) for text in ("one", "two", "three")]
    artifact = strict.artifact("four")
    window = strict.window(query="xyzzy", config=strict.config.with_overrides(**{"assembly.notes_without_query": 2}))
    assert shown(window, "notes") == [notes[2], notes[1]]
    assert relevance(window) == {notes[2]: 0.5, notes[1]: 0.5, artifact: 0.5}
    assert window.cut_offs[0].filter == "newest"
    # words that are known decide, also where they are nobody's note
    strict.artifact("xyzzy")
    assert shown(strict.window(query="xyzzy"), "notes") == []


def test_nothing_to_recall_fills_nothing(shared: Any) -> None:
    # issue item 3: no word known, nothing near: junk does not enter because there is room
    for text in ("one", "two", "three"):
        shared.note(text, FAR)
    other = shared.trajectory()
    shared.turn("of something else", trajectory=other, scope=shared.scope(trajectory=other))
    own = shared.artifact("four")
    for query in ({"query": "xyzzy"}, {"query": "xyzzy", "query_embedding": NEAR}):
        window = shared.window(**query)
        assert relevance(window) == {own: 0.0}  # what belongs to the task is there all the same
        cuts = {item.source_type: (item.filter, item.considered) for item in window.cut_offs}
        assert cuts == {SourceType.NOTE: ("not_found", 3), SourceType.TURN: ("not_found", 1)}
    shared.artifact("xyzzy")
    assert shown(shared.window(query="xyzzy"), "notes") == []


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_query_asks_for_nothing(world: Any, blank: str) -> None:
    note = world.note("one", NEAR)
    window = world.window(query=blank)
    assert (window.status, relevance(window)) == (ResultStatus.OK, {note: 1.0})


def test_a_query_by_vector_alone(world: Any) -> None:
    near, fair = world.note("a", NEAR), world.note("b", [1, 1, 0, 0])
    window = world.window(query_embedding=NEAR)
    assert shown(window, "notes") == [near, fair]
    with pytest.raises(InvalidVector):
        world.window(query_embedding=[NEAR])


@pytest.mark.parametrize("how", ["dimensions", "space"])
def test_a_vector_of_another_model_is_said_and_words_rank(world: Any, how: str) -> None:
    # K-096
    found, other = world.note("backups", FAR), world.note("lunch", NEAR)
    call: dict[str, Any] = {"query": "backups", "query_embedding": [1, 0, 0]}
    if how == "space":
        call = {"query": "backups", "query_embedding": NEAR, "space_id": kit.numbered(3)}
    window = world.window(**call)
    assert (window.status, window.degraded) == (ResultStatus.DEGRADED, ("embedding_mismatch",))
    assert shown(window, "notes") == [found]
    assert other not in relevance(window)


def test_what_nobody_finds_is_below_any_threshold(world: Any) -> None:
    # C-458
    found, other = world.artifact("backups"), world.artifact("lunch")
    window = world.window(query="backups", config=world.config.with_overrides(min_relevance_threshold=0.01))
    assert shown(window, "artifacts") == [found]
    (decision,) = decisions(window, "relevance_threshold")
    assert (decision.target_id, decision.relevance, decision.breakdown) == (other, 0.0, {})


def test_summaries_of_the_task_stand_newest_first_whatever_is_asked(shared: Any, strict: Any) -> None:
    # design section 5: what precedes the conversation does not follow the query
    for world in (shared, strict):
        scopes = [world.scope(summary=text) for text in ("we moved the backups", "we had lunch", "we slept")]
        for query in ("backups", "lunch", None):
            assert shown(world.window(query=query), "history") == scopes[::-1]


def test_summaries_of_other_tasks_are_recalled(shared: Any) -> None:
    # issue item 1
    other = shared.trajectory()
    found = shared.scope(trajectory=other, summary="we moved the backups")
    shared.scope(trajectory=other, summary="we had lunch")
    window = shared.window(query="backups")
    assert shown(window, "recall") == [found]
    assert shown(window, "history") == []


# --- limits ---------------------------------------------------------------------------------------


def test_strict_limits_keep_the_most_relevant(strict: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # O-15
    notes = [strict.note("backups " * (1 + at) + "of many other things" * (5 - at)) for at in range(5)]
    strict.note("lunch")
    artifacts = [strict.artifact(text) for text in ("backups", "lunch", "dinner", "night")]
    scopes = [strict.scope(summary=text) for text in ("backups", "lunch", "dinner")]
    set_limits(monkeypatch, note_search_limit=2, artifact_limit=2, summary_limit=1)
    window = strict.window(query="backups")
    assert shown(window, "notes") == [notes[4], notes[3]]
    assert shown(window, "artifacts") == [artifacts[0], artifacts[3]]  # the rest by age
    assert shown(window, "history") == [scopes[2]]
    cuts = {item.source_type: item for item in window.cut_offs}
    note = cuts[SourceType.NOTE]
    assert (note.filter, note.limit, note.considered) == ("relevance_limit", 2, 6)
    assert note.cutoff_score == relevance(window)[notes[3]]
    assert (cuts[SourceType.ARTIFACT].filter, cuts[SourceType.ARTIFACT].cutoff_score) == ("relevance_limit", 0.0)
    assert (cuts[SourceType.SCOPE_SUMMARY].filter, cuts[SourceType.SCOPE_SUMMARY].considered) == ("newest", 3)
    set_limits(monkeypatch, note_search_limit=10, artifact_limit=1_000, summary_limit=1_000)
    few = strict.window(query="backups")
    assert few.cut_offs[0].filter == "not_found"
    assert few.cut_offs[0].cutoff_score is None
    set_limits(monkeypatch, note_search_limit=0)
    none = strict.window(query="backups")
    assert shown(none, "notes") == []
    assert none.cut_offs[0].limit == 0


def test_the_limit_of_recall_keeps_the_most_relevant_of_all_kinds(shared: Any) -> None:
    # O-15, issue item 1: one relevance, whatever the kind
    other = shared.trajectory()
    scope = shared.scope(trajectory=other)
    for at in range(4):
        text = "backups " * (1 + at) + "of many other things" * (5 - at)
        shared.note(f"{text} in a note")
        shared.artifact(f"{text} in an artifact", trajectory_id=other, scope_id=scope)
        shared.turn(f"{text} in a turn", trajectory=other, scope=shared.scope(trajectory=other))
    wide = shared.window(query="backups")
    ranking = sorted(relevance(wide).values(), reverse=True)
    assert len(ranking) == 12
    few = shared.window(query="backups", config=shared.config.with_overrides(**{"recall.limit": 5}))
    assert sorted(relevance(few).values(), reverse=True) == ranking[:5]
    assert {(item.filter, item.limit, item.cutoff_score) for item in few.cut_offs} == {
        ("relevance_limit", 5, ranking[4])
    }
    assert {(item.source_type, item.considered) for item in few.cut_offs} == {
        (SourceType.NOTE, 4),
        (SourceType.ARTIFACT, 4),
        (SourceType.TURN, 4),
    }


def test_strictly_artifacts_of_other_tasks_are_not_found(strict: Any) -> None:
    # K-074
    other = strict.trajectory()
    strict.artifact("backups elsewhere", trajectory_id=other)
    own = strict.artifact("backups here")
    assert set(relevance(strict.window(query="backups"))) == {own}


def test_artifacts_of_other_tasks_are_recalled_as_far_as_recall_reaches(shared: Any) -> None:
    # issue item 1
    other = shared.trajectory()
    elsewhere = shared.artifact("backups elsewhere", trajectory_id=other)
    own = shared.artifact("backups here")
    assert set(relevance(shared.window(query="backups"))) == {own, elsewhere}
    near = shared.config.with_overrides(**{"recall.from": "trajectory"})
    assert set(relevance(shared.window(query="backups", config=near))) == {own}


def test_a_search_runs_no_statement(world: Any) -> None:
    for at in range(5):
        world.note(f"note {at} of backups", NEAR)
        world.artifact(f"artifact {at} of backups", NEAR)
    before = world.store.statement_count()
    assert world.window(query="backups", query_embedding=NEAR).status is ResultStatus.OK
    assert world.store.statement_count() == before


# --- who may see what -------------------------------------------------------------------------------


@pytest.mark.parametrize("config_of", [kit.searching, kit.strict_searching])
def test_hidden_notes_leave_no_trace_in_relevance(config_of: Any) -> None:
    # design: nothing seen that should not be; N, df and lengths are of the visible
    made = {}
    for hidden in (False, True):
        world = kit.World(config_of())
        world.open_space()
        keys = []
        for at in range(6):
            keys.append(world.note(f"backups of host {at} " + "at night " * at, np.eye(4)[at % 4] + 0.1 * at))
            if hidden:
                world.note("backups " * 3, NEAR, entity="secret backups")
        notes = world.memory.snapshot["note"]
        mask = np.zeros(notes.length, np.bool_)
        mask[[notes.find(key.bytes) for key in keys]] = True
        window = world.window(query="backups of secret host 3", query_embedding=NEAR, note_mask=mask)
        at = {key: number for number, key in enumerate(keys)}
        made[hidden] = (
            [(at[d.target_id], d.relevance, dict(d.breakdown), d.reason) for d in window.assembly_trace],
            [(item.filter, item.cutoff_score, item.considered) for item in window.cut_offs],
        )
        world.close()
    assert made[True] == made[False]
    assert len(made[True][0]) == 6


# --- record, replay, explain ------------------------------------------------------------------------


def fields(window: Any) -> str:
    return repr((window, window.assembly_trace, window.to_messages()))


def test_replay_is_equal_after_the_statistics_changed(world: Any) -> None:
    # C-467
    keys = [world.note(f"backups of host {at}", [1, at, 0, 0]) for at in range(4)]
    world.artifact("backups", NEAR)
    asked: dict[str, Any] = {"query": "backups of host 2", "query_embedding": NEAR}
    assembled = world.assemble(**asked)
    before = fields(assembled.window)
    record = assembled.record
    for at in range(20):
        world.note(f"host {at}", NEAR)
    world.change(kit.NOTE, keys[2], content="nothing of the kind")
    again = replay(record, world.config, kit.Contents(world))
    assert fields(again) == before
    assert relevance(world.window(**asked)) != relevance(assembled.window)


def test_the_trace_shows_which_legs_gave_what(world: Any) -> None:
    both = world.note("backups", NEAR)
    world.note("lunch", FAR)
    artifact = world.artifact("the backups moved", FAR)
    window = world.window(query="backups", query_embedding=NEAR)
    record = world.assemble(query="backups", query_embedding=NEAR).record
    explained = explain(record, world.config, kit.Contents(world))
    for decision in window.assembly_trace:
        assert sum(decision.breakdown.values()) == pytest.approx(decision.relevance, abs=3e-4)
    told = {item["id"]: item for item in explained["inclusions"]}
    assert set(told[str(both)]["breakdown"]) == {"keyword", "vector"}
    assert set(told[str(artifact)]["breakdown"]) == {"keyword"}


def test_why_not_this_note(strict: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # design section 5; of a shared budget tests/context/test_record.py asks the same
    world = strict
    keys = [world.note("backups " * (at + 1) + "and more of the same " * (4 - at)) for at in range(4)]
    lunch = world.note("lunch")
    artifacts = [world.artifact(text) for text in ("backups", "lunch")]
    set_limits(monkeypatch, note_search_limit=2, artifact_limit=1)
    record = world.assemble(query="backups").record

    def ask(key: Any, **options: Any) -> Any:
        return explain(record, world.config, kit.Contents(world), exclusion=key, **options)

    late = ask(keys[0], score_now=world.score_now)
    assert (late["verdict"], late["filter"], late["limit"]) == ("cut_off", "relevance_limit", 2)
    assert 0 < late["score"] < late["cutoff_score"]
    assert late["breakdown"] == {"keyword": pytest.approx(late["score"])}
    assert f"its relevance is {late['score']:.4f} (keyword {late['score']:.4f})" in late["reason"]
    never = ask(lunch, score_now=world.score_now)
    assert (never["score"], never["breakdown"]) == (0.0, {})
    assert "too little in common" in never["reason"]
    assert "not known any more" in ask(lunch)["reason"]
    assert ask(artifacts[1], score_now=world.score_now)["filter"] == "relevance_limit"
    inside = ask(keys[3])
    assert (inside["verdict"], list(inside["breakdown"])) == ("included", ["keyword"])
    set_limits(monkeypatch, note_search_limit=9)
    record = world.assemble(query="backups").record
    assert ask(lunch, score_now=world.score_now)["filter"] == "not_found"


@pytest.mark.prove
def test_relevance_is_the_same_however_it_is_computed(numba: Evaluator) -> None:
    # C-447: canonical scores
    legs = {"vector": 0.4, "keyword": 0.3, "graph": 0.2, "importance": 0.1}
    config = kit.searching(**{"search.weights": legs, "search.boosts.recency": 0.1})
    seen = set()
    for evaluator in (NUMPY, numba):
        world = kit.World(config, evaluator=evaluator)
        world.open_space()
        rng = np.random.default_rng(3)
        for at in range(40):
            note = f"backups of host {at % 7} " + "at night " * (at % 5)
            world.note(note, rng.standard_normal(4), importance=1 + at % 10)
            world.artifact(f"plan {at} for host {at % 3}", rng.standard_normal(4))
        asked: dict[str, Any] = {"query": "backups of host 2", "query_embedding": rng.standard_normal(4)}
        for path in available_paths():
            with forced_path(path):
                window = world.window(**asked)
                seen.add(repr((window.text, window.assembly_trace, window.cut_offs)))
        assert len({decision.relevance for decision in window.assembly_trace}) > 10
        world.close()
    assert len(seen) == 1


# --- recall stops where relevance stops: no budget is filled with what has little in common with the question ---


TALKS = (
    ("I moved to Lisbon last spring.", "A lovely town to live in."),
    ("My cat is called Biscuit, she is afraid of thunder.", "Poor Biscuit, storms are loud."),
    ("I take pills for my thyroid at seven.", "I shall keep that in mind."),
    ("We went to the museum with Tom.", "Which pictures did you like?"),
    ("My brother Tom works as a nurse in Porto.", "That is a hard profession."),
    ("I want to learn to play the cello.", "A teacher would help."),
    ("The car needs new brakes.", "Do not wait too long."),
    ("I bought a red bicycle for Mia.", "She will be happy."),
    ("The meeting with the bank is on Friday at ten.", "Good luck with it."),
    ("The neighbours have a new baby, called Oskar.", "Congratulations to them."),
    ("The dentist said that I need a crown.", "That sounds expensive."),
    ("We plan a trip to the Azores in August.", "The islands are green."),
)
ONE_FACT = {"What is my cat called?": "Biscuit", "Where does Tom work?": "Porto", "When do I take my pills?": "seven"}
NOTHING = ("What is the capital of Mongolia?", "How tall is the Eiffel tower?", "Explain quantum entanglement to me.")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[caliber.Caliber]:
    with caliber.open(caliber.profiles.chat_companion(tmp_path / "memory.db"), create=True) as opened:
        for _ in range(3):
            for said, answer in TALKS:
                task = opened.start_trajectory("a talk", user="ana").trajectory_id
                messages = [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
                opened.remember(messages, user="ana", task=task)
        yield opened


def asked(memory: caliber.Caliber, question: str) -> tuple[str, int]:
    """Return the text of what a window recalls, and its tokens."""
    task = memory.start_trajectory("a question", user="ana").trajectory_id
    memory.remember([{"role": "user", "content": question}], user="ana", task=task)
    window: Any = memory.assemble_context(task)
    recalled = [each for each in window.sections if each.name in ("recall", "notes", "artifacts", "history")]
    return "".join(each.content for each in recalled), sum(each.token_count for each in recalled)


def test_a_window_recalls_what_the_question_asks_for_and_no_more(memory: caliber.Caliber) -> None:
    # issue 40, item 6
    for question, answer in ONE_FACT.items():
        text, tokens = asked(memory, question)
        assert answer in text, question
        assert tokens <= 300, (question, tokens, text)
    for question in NOTHING:
        assert asked(memory, question) == ("", 0), question
