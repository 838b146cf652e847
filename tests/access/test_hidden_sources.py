"""Windows whose sources were hidden since: replay names none, and explain shows no id, until they are visible again.

Source: design, section 5; docs/access.md.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.databases import Backend

from caliber.model import EntityRef, EntityType, Principal
from caliber.model.errors import CaliberError, NotFound

ABOUT = {"entity": "harbour", "entity_type": "place", "note_type": "fact", "confidence": 0.5}


class Harbour:
    """A window of Ben's task that quotes notes which everybody may read."""

    def __init__(self, backend: Backend, mode: str, **options: Any) -> None:
        self.memory = backend.open(embedding_provider=None, search__mode=mode, **options)
        self.ben = self.memory.acting_as(Principal.user("ben"))
        self.task = self.ben.start_trajectory("sail home").trajectory_id
        self.notes = [
            self.memory.add_note(content=f"The harbour is {word}.", **ABOUT).note_id
            for word in ("deep", "crowded", "closed at night")
        ]
        self.window = self.ben.assemble_context(self.task, query="harbour")
        assert "deep" in self.window.text
        self.ben.flush()

    def refused(self) -> CaliberError:
        """Return the error with which Ben's replay is refused."""
        with pytest.raises(NotFound) as caught:
            self.ben.replay(self.window.window_id)
        return caught.value

    def ids(self) -> set[str | None]:
        """Return the ids of what Ben is told that his window holds, or was considered for."""
        told = self.ben.explain(self.window.window_id)
        return {each["id"] for each in (*told["inclusions"], *told["exclusions"]) if each["type"] == "note"}

    def verdict(self, at: int) -> str:
        return str(self.ben.explain(self.window.window_id, exclusion=self.notes[at])["verdict"])


@pytest.mark.databases("all")
@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_replay_reveals_no_source_that_was_hidden_since(backend: Backend, mode: str) -> None:
    harbour = Harbour(backend, mode)
    memory, hidden = harbour.memory, harbour.notes[0]
    assert harbour.ids() == {str(note) for note in harbour.notes}
    before = harbour.ben.explain(harbour.window.window_id)
    memory.update_note(hidden, visible_to=["human:nobody"])
    error = harbour.refused()
    shown = f"{error} {error.context} {error.__cause__} {error.__context__}"
    assert str(hidden) not in shown
    assert "removed" not in shown
    assert error.context["entity_type"] == "context_window"
    told = harbour.ben.explain(harbour.window.window_id)
    assert str(hidden) not in json.dumps(told)
    assert harbour.ids() == {None, *(str(note) for note in harbour.notes[1:])}
    assert (told["budget"], len(told["inclusions"])) == (before["budget"], len(before["inclusions"]))
    assert harbour.verdict(0) == "unknown"
    assert harbour.verdict(1) == "included"
    # An administrator sees everything, and whoever may see the note again has the window as it was.
    assert memory.replay(harbour.window.window_id).text == harbour.window.text
    memory.update_note(hidden, visible_to=None)
    assert harbour.ben.replay(harbour.window.window_id).text == harbour.window.text
    assert harbour.ben.explain(harbour.window.window_id) == before


@pytest.mark.databases("all")
def test_hidden_sources_are_told_like_forgotten_ones(backend: Backend) -> None:
    harbour = Harbour(backend, "resident")
    memory, (gone, hidden, _) = harbour.memory, harbour.notes
    memory.forget(entity=EntityRef(EntityType.NOTE, gone))
    forgotten, ids = harbour.refused(), harbour.ids()
    assert harbour.verdict(0) == "unknown"
    memory.update_note(hidden, visible_to=["human:nobody"])
    both = harbour.refused()
    assert (str(both), both.context) == (str(forgotten), forgotten.context)
    assert harbour.ids() == ids - {str(hidden)}
    assert None in ids
    with pytest.raises(NotFound, match="it was forgotten"):
        memory.replay(harbour.window.window_id)


@pytest.mark.databases("all")
def test_hidden_candidates_have_no_id_in_a_trace(backend: Backend) -> None:
    """A record that did not enter is no reason to refuse, and the trace of the replay does not name it."""
    harbour = Harbour(backend, "resident", pcp__dosage__max_notes_in_window=1)
    included = {str(source.id) for section in harbour.window.sections for source in section.sources}
    (out, *_) = (note for note in harbour.notes if str(note) not in included)
    assert out in {each.target_id for each in harbour.window.assembly_trace}
    harbour.memory.update_note(out, visible_to=["human:nobody"])
    replayed = harbour.ben.replay(harbour.window.window_id)
    assert replayed.text == harbour.window.text
    assert out not in {each.target_id for each in replayed.assembly_trace}
    assert len(replayed.assembly_trace) == len(harbour.window.assembly_trace)
    assert str(out) not in json.dumps(harbour.ben.explain(harbour.window.window_id))
