"""Trust labels under any order of writes: nothing derived is trusted more than its least trusted source.

Filters that a database answers: any filter, any rows, the answers of ``holds``.

Source: design section 10 (trust labels); decision 0156.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.configs import USER, config, policy
from support.evidence import examples, scale
from support.providers import ScriptedSummarizer
from support.storage.filled import Filled
from support.storage.predicates import IDS, VARIABLES, cases, singles

import caliber
from caliber.backends.postgres.dialect import dialect_of
from caliber.backends.sqlite.dialect import DIALECT
from caliber.dsl.filters import compile_filter
from caliber.kernels.patterns import matches
from caliber.model import NoteType, TrustLabel, TurnRole
from caliber.model.errors import InvalidValue
from caliber.model.providers import ExtractedArtifact, GeneratedNote, TrajectoryDigest
from caliber.model.trust import least_trusted
from caliber.schema.memories import BUILT_IN
from caliber.schema.predicate import Comparison, Either, Operator, Predicate, Variable, holds
from caliber.schema.relations import BY_NAME
from caliber.storage.compile import conditions
from caliber.storage.compile.conditions import StoredFilter, compile_stored
from caliber.storage.compile.plan import Dialect
from caliber.storage.protocol import Store

EXAMPLES = examples(25, 1_000)
RULES = {"system": "system", "user": "user", "assistant": "tool", "tool": "tool"}
POLICIES = [
    policy("scope_close", {"action": "summarize", "target": "turn_buffer"},
           {"action": "extract_artifacts", "target": "turn_buffer"}),
    policy("task_end", {"action": "consolidate_notes", "target": "trajectory"}, name="end"),
]  # fmt: skip

labels = st.none() | st.sampled_from(TrustLabel)
turns = st.tuples(
    st.sampled_from(TurnRole),
    labels,
    st.sampled_from(["I prefer tea.", "Always use port 8080.", "KEEP this", "We decided to use Redis.", "Hello."]),
)
kept = st.tuples(st.none() | st.integers(0, 6), labels)
scopes = st.lists(st.tuples(st.lists(turns, max_size=4), st.lists(kept, max_size=2)), min_size=1, max_size=3)


class Everything(ScriptedSummarizer):
    """A provider that draws one note from all it is shown, about the same thing each time."""

    def generate_notes(
        self, trajectory: TrajectoryDigest, scope_summaries: Sequence[str], artifacts: Sequence[ExtractedArtifact]
    ) -> list[GeneratedNote]:
        text = f"{trajectory.goal}: " + "; ".join([*scope_summaries, *(item.content for item in artifacts)])
        return [GeneratedNote("all", "topic", NoteType.FACT, text, 1.0)]


@pytest.fixture(scope="module")
def memories() -> Iterator[dict[bool, caliber.Caliber]]:
    """One store whose provider reads everything, and one whose provider quotes."""
    knobs: dict[str, Any] = {"embedding_provider": None, "search__keyword__similar_words": "none", "policies": POLICIES}
    with (
        caliber.open(config(":memory:", **knobs), summarization_provider=Everything()) as whole,
        caliber.open(config(":memory:", **knobs)) as quoting,
    ):
        yield {False: whole, True: quoting}


def distrust(records: Sequence[Any], otherwise: TrustLabel = TrustLabel.SYSTEM) -> int:
    return least_trusted(otherwise, *(record.trust for record in records)).distrust


@given(scopes, st.booleans())
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_trusted_more_than_what_it_is_made_of(
    memories: dict[bool, caliber.Caliber], written: list[tuple[list[Any], list[Any]]], quoting: bool
) -> None:
    memory = memories[quoting]
    trajectory = memory.start_trajectory(f"task {uuid.uuid4()}", initiator=USER)
    said: list[Any] = []
    for at, (several, artifacts) in enumerate(written):
        scope: Any = (
            memory.open_scope(trajectory.trajectory_id) if at else memory.current_scope(trajectory.trajectory_id)
        )
        here: list[Any] = []
        for role, trust, text in several:
            called = "1" if role is TurnRole.TOOL else None
            turn = memory.append_turn(scope.scope_id, role=role, content=text, tool_call_id=called, trust=trust)
            expected = TrustLabel(RULES[role]) if trust is None else trust
            if trust is None and role is TurnRole.ASSISTANT:
                expected = least_trusted(expected, *(earlier.trust for earlier in here))
            assert turn.trust is expected
            here.append(turn)
            assert memory.get(scope.scope_id).trust.distrust == distrust(here)
        said += here
        for source_turn, trust in artifacts:
            keep(memory, scope.scope_id, said, source_turn, trust)
        closed = memory.close_scope(scope.scope_id)
        assert closed.trust.distrust == distrust(here)
    memory.complete_trajectory(trajectory.trajectory_id, status="success", summary="It went well.")
    check_derived(memory, trajectory.trajectory_id, said, quoting)


def keep(memory: caliber.Caliber, scope_id: Any, said: list[Any], source_turn: int | None, trust: Any) -> None:
    """Keep an artifact, if its label is one it may have."""
    source = next((turn for turn in said if turn.turn_number == source_turn), None)
    options: dict[str, Any] = {"artifact_type": "fact", "extraction_method": "explicit", "source_turn": source_turn}
    if source is not None and trust is not None and trust.distrust < source.trust.distrust:
        with pytest.raises(InvalidValue):
            memory.create_artifact(scope_id, content="kept", trust=trust, **options)
        return
    artifact = memory.create_artifact(scope_id, content="kept", trust=trust, **options)
    if trust is not None:
        assert artifact.trust is trust
    elif source is not None:
        assert artifact.trust is source.trust
    else:
        assert artifact.trust.distrust >= TrustLabel.TOOL.distrust


def check_derived(memory: caliber.Caliber, trajectory_id: Any, said: list[Any], quoting: bool) -> None:
    artifacts = memory.storage.artifacts.list_by_trajectory(trajectory_id)
    scopes = memory.storage.scopes.list_by_trajectory(trajectory_id)
    of_turn = {turn.turn_number: turn for turn in said}
    for artifact in artifacts:
        if artifact.extraction_method != "inferred":
            continue  # seen when it was kept; a turn may have the number it named only since
        sources = [of_turn[artifact.source_turn]]
        if not quoting:
            sources = [turn for turn in said if turn.scope_id == artifact.scope_id]
        assert artifact.trust.distrust >= distrust(sources)
    made_of = [*artifacts, *(scope for scope in scopes if scope.summary)]
    for note in memory.storage.notes.all():
        if trajectory_id not in note.source_trajectory_ids:
            continue
        # So that the next example's are no more of it than their own sources.
        memory.storage.notes.update(note.note_id, archived_at=note.created_at)
        if not quoting:
            assert note.trust.distrust >= distrust(made_of, TrustLabel.TOOL)
            continue
        for line in filter(None, map(str.strip, note.content.splitlines())):
            having = [item for item in made_of if line in (item.summary if hasattr(item, "summary") else item.text)]
            # Of several that say it, the most trusted vouches for it; what nobody says is trusted as all.
            best = min((item.trust.distrust for item in having), default=distrust(made_of, TrustLabel.TOOL))
            assert note.trust.distrust >= best


FILTER_EXAMPLES, ROWS = examples(15, 2_000), scale(25, 200)


class Asked(Filled):
    """Asks the database of a store the same as a person."""

    def __init__(self, store: Store, dialect: Dialect) -> None:
        super().__init__(store, ROWS)
        self.dialect = dialect

    def check(self, name: str, predicate: Predicate, variables: Any = VARIABLES) -> StoredFilter:
        relation = BUILT_IN[name].relation
        stored = compile_stored(predicate, relation, self.dialect)
        with self.store.read() as session:
            found = stored.ordinals(session, variables)
        known = sorted(self.records[relation.name].items())
        assert found == [at for at, item in known if holds(predicate, item, variables, matches)], stored.plan.sql
        return stored


@pytest.fixture
def filled(backend: Any) -> Asked:
    settings = backend.config()
    dialect = dialect_of(settings.storage.schema_name, "public") if backend.adapter == "postgres" else DIALECT
    return Asked(backend.store(), dialect)


def test_a_database_answers_as_the_meaning_says(filled: Asked) -> None:
    # C-161 to C-165, K-064, K-071
    kinds: dict[Any, list[tuple[str, Comparison]]] = {}
    for name, memory in BUILT_IN.items():
        for column in memory.relation.columns:
            for single in singles(column):
                kind = (column.type, column.nullable, column.name.startswith("valid_"), single.operator)
                kinds.setdefault(kind, []).append((name, single))
    for several in kinds.values():
        filled.check(*filled.chance.choice(several))

    @given(cases)
    @settings(max_examples=FILTER_EXAMPLES)
    def any_filter(case: tuple[str, Predicate]) -> None:
        filled.check(*case)

    any_filter()


def test_values_are_bound_and_long_filters_fit(filled: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = compile_filter("""entity = "x'); DROP TABLE note; --" or confidence = 0.25""", BUILT_IN["note"])
    stored = filled.check("note", hostile)
    assert "DROP" not in stored.plan.sql
    assert stored.plan.name == compile_stored(hostile, BY_NAME["note"], filled.dialect).plan.name
    without_now = {**VARIABLES, Variable.NOW: None}
    filled.check("note", Comparison("valid_until", Operator.GREATER, Variable.NOW), without_now)
    # a chain of so many would be deeper than SQLite takes
    long = Either(tuple(Comparison("token_count", Operator.EQUAL, number) for number in range(1_500)))
    filled.check("note", long)
    monkeypatch.setattr(conditions, "MOST_VALUES", 1_499)
    with pytest.raises(InvalidValue, match="more than 1499 values"):
        compile_stored(long, BY_NAME["note"], filled.dialect)
    # PostgreSQL keeps a zero character as an escape that ends in "0"
    assert "é\x00b" in {item["entity"] for item in filled.records["note"].values()}
    for part, exact in (("0", False), ("\x00", True), ("b", True), ("\ufdd0", True)):
        stored = filled.check("note", Comparison("entity", Operator.CONTAINS, part))
        assert stored.exact is exact
    # an id that begins within another is no member
    across = uuid.UUID(bytes=(IDS[2].bytes + IDS[1].bytes)[8:24])
    assert (IDS[2], IDS[1]) in {item["source_trajectory_ids"] for item in filled.records["note"].values()}
    filled.check("note", Comparison("source_trajectory_ids", Operator.CONTAINS, across))
