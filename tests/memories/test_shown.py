"""The text of a declared memory's records in windows, as the memory declares it. Source: docs/memories.md."""

from __future__ import annotations

from typing import Any

import pytest
from support.configs import config

from caliber.dsl.files import compile_text
from caliber.dsl.writing import render_caliber
from caliber.model.errors import MultipleErrors

PLACE: dict[str, Any] = {
    "name": "place",
    "type": "semantic",
    "fields": [{"name": "name", "type": "text"}, {"name": "stars", "type": "int", "optional": True},
               {"name": "map", "type": "bytes", "optional": True}, {"name": "content", "type": "text"}],
    "indexes": [{"field": "content", "type": "gin"}],
    "shown": "{name} ({stars} stars): {content}",
}  # fmt: skip


def test_windows_show_records_as_their_memory_says(backend: Any) -> None:
    memory = backend.open(backend.config(memories=[PLACE]))
    places = memory.records("place")
    places.insert(name="Lagos", stars=4, content="has a lighthouse\nand a harbour")
    places.insert(name="Tunes", content="has a lighthouse of its own")
    task = memory.start_trajectory("travel", user="ana")
    window = memory.assemble_context(task.trajectory_id, query="lighthouse")
    assert "Lagos (4 stars): has a lighthouse\n    and a harbour" in window.text
    assert "Tunes ( stars): has a lighthouse of its own" in window.text
    memory.flush()
    assert memory.replay(window.window_id, user="ana").text == window.text


@pytest.mark.parametrize(
    ("shown", "why"),
    [("{named}", "names named"), ("{map}", "names map"), ("{}", "names no field"), ("plain", "names fields in braces"),
     ("{name", "is no text with fields in braces"), ("{stars:>4}", "without more in them"),
     ("{name.x}", "names name.x")],
)  # fmt: skip
def test_a_text_names_fields_and_no_more(shown: str, why: str) -> None:
    with pytest.raises(MultipleErrors, match=why):
        config(":memory:", memories=[{**PLACE, "shown": shown}])


def test_a_program_says_it_too() -> None:
    made = config(":memory:", memories=[PLACE])
    assert compile_text(render_caliber(made)) == made
