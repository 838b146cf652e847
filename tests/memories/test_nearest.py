"""Records nearest to a text or vector, with exact cosines: against NumPy, in memory and in the database.

Source: C-336, C-342, M-020, M-025, M-026; docs/memories.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.drawn import needs
from support.memories import FACT
from support.providers import CountingEmbeddings

from caliber.model import FixedClock, Principal
from caliber.model.errors import DimensionMismatch, InputError, InvalidValue, ProviderNotConfigured
from caliber.model.time import from_us

pytestmark = pytest.mark.usefixtures("full_text")

DIMENSIONS = 32
PLACE = {"name": "place", "type": "semantic", "fields": [{"name": "title", "type": "text"}]}


@pytest.fixture(params=["resident", "backend"])
def memory(request: Any, backend: Any) -> Any:
    config = backend.config(
        search__mode=request.param, embedding__embed__default="commit", memories=[FACT, PLACE],
        search__vector_candidates=1,
    )  # fmt: skip
    return backend.open(config, embedding_provider=CountingEmbeddings(DIMENSIONS), clock=FixedClock())


def cosines(memory: Any, query: Any) -> dict[Any, float]:
    stored = {row.owner_id: np.frombuffer(row.vector, "<f4") for row in memory.storage.embeddings.all()}
    return {key: float(row @ query / np.linalg.norm(row) / np.linalg.norm(query)) for key, row in stored.items()}


def test_cosines_are_those_of_numpy_for_every_kind_of_record(memory: Any, start: Any) -> None:
    agent = start(memory)
    for at in range(40):
        agent.note(f"the lake {at} and a boat", entity="e" if at % 2 else "f", tags=["odd"] if at % 3 else [])
        agent.keep(f"artifact {at} of boats", artifact_type="fact" if at % 2 else "error_log")
    facts = memory.records("fact")
    facts.insert_many(
        {
            "subject": f"s{at}",
            "kind": "claim" if at % 2 else "rumour",
            "content": f"fact {at} of lakes",
            "score": at / 40,
        }
        for at in range(40)
    )
    rng = np.random.default_rng(7)
    artifact = {"trajectory_id": agent.trajectory_id, "artifact_type": "fact"}
    conditions: dict[str, tuple[Any, ...]] = {
        "note": (None, {"entity": "e"}, 'tags contains "odd"', {"tags": "odd", "entity": "f"}),
        "artifact": (None, artifact),  # C-336
        "fact": (None, 'score > 0.5 and kind = "claim"', {"kind": "rumour"}),
    }
    scores: list[float] = []
    for name, asked in conditions.items():
        records = memory.records(name)
        key = "record_id" if name == "fact" else f"{name}_id"
        for condition in asked:
            vector = rng.standard_normal(DIMENSIONS).astype(np.float32)
            meant = {getattr(each, key): each for each in records.find(condition)}
            exact = cosines(memory, vector)
            wanted = sorted(((exact[each], each) for each in meant), key=lambda pair: (-pair[0], pair[1].bytes))
            found = records.nearest(vector, condition, limit=50)
            assert [record for record, _ in found] == [meant[each] for _, each in wanted], (name, condition)
            assert np.allclose([score for _, score in found], [score for score, _ in wanted], atol=1e-3)
            scores += [score for _, score in found]
            assert records.nearest(vector, condition, limit=7, offset=5) == found[5:12]
            least = found[3][1]
            assert records.nearest(vector, condition, limit=50, min_similarity=least) == found[:4]
    assert min(scores) < 0 < max(scores)
    first = memory.records("note").nearest("e: the lake 7 and a boat", limit=1)
    assert first[0][0].content == "the lake 7 and a boat"
    assert first[0][1] == pytest.approx(1, abs=1e-3)
    assert facts.nearest(facts.nearest("fact 3 of lakes", limit=1)[0][0].content, kind="claim")[0][1] > 0.99


def test_only_what_counts_and_may_be_seen_is_near(memory: Any, start: Any) -> None:
    agent = start(memory)
    notes = memory.records("note")
    old, hidden, shown = (agent.note(f"a lake {at}", visible_to=None if at != 1 else ["agent:x"]) for at in range(3))
    private = memory.start_trajectory("mine", user="ana")
    scope = memory.current_scope(private.trajectory_id)
    own = memory.create_artifact(
        scope.scope_id, artifact_type="fact", content="a lake of hers", extraction_method="explicit"
    )
    memory.storage.notes.update(old.note_id, archived_at=from_us(0))
    reader = memory.acting_as(Principal.agent("planner")).records("note")
    assert [each.note_id for each, _ in reader.nearest("a lake")] == [shown.note_id]
    assert {each.note_id for each, _ in notes.nearest("a lake")} == {shown.note_id, hidden.note_id}
    app = memory.acting_as(Principal.application("app")).records("artifact")
    assert app.nearest("a lake") == []
    assert [each for each, _ in app.nearest("a lake", trajectory_id=private.trajectory_id)] == [own]
    notes_left = memory.storage.notes
    notes_left.delete(shown.note_id)
    assert reader.nearest("a lake") == []


def test_what_cannot_be_asked_is_refused(memory: Any, start: Any) -> None:
    start(memory).note("a lake")
    notes = memory.records("note")
    for wrong in (
        {"limit": 0}, {"limit": 1_000}, {"offset": -1}, {"min_similarity": 2}, {"filter": {"colour": 1}},
        {"limit": 2.5}, {"nothing": 1},
    ):  # fmt: skip
        with pytest.raises(InputError):
            notes.nearest("a lake", **wrong)
    for wrong in ("", [0.0] * DIMENSIONS, [float("inf")] * DIMENSIONS, None, {}):
        with pytest.raises(InputError):
            notes.nearest(wrong)
    with pytest.raises(DimensionMismatch):
        notes.nearest([1.0])
    for name in ("place", "trajectory"):
        with pytest.raises(InvalidValue, match="has no vectors"):
            memory.records(name).nearest("a lake")


@needs("reopen")
def test_a_vector_needs_no_provider_and_a_text_does(memory: Any, start: Any, backend: Any) -> None:
    note = start(memory).note("a lake")
    mode, vector = memory.config.search.mode, CountingEmbeddings(DIMENSIONS).embed("thing: a lake")
    memory.close()
    with backend.open(
        backend.config(search__mode=mode, embedding_provider=None, memories=[PLACE]), clock=FixedClock()
    ) as silent:
        notes = silent.records("note")
        assert [each.note_id for each, _ in notes.nearest(vector)] == [note.note_id]
        with pytest.raises(ProviderNotConfigured):
            notes.nearest("a lake")
