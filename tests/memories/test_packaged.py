"""Declarations that come with CALIBER: in a configuration and a program, and added to a store that is there.

Source: docs/memories.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.configs import config

import caliber
from caliber.dsl.files import load_program
from caliber.dsl.loading import config_of
from caliber.model.errors import DTypeError, MultipleErrors

BLOCK = "memory_block"
MINE = {"name": "mine", "type": "semantic", "fields": [{"name": "content", "type": "text"}]}


def _program(folder: Path, text: str) -> Path:
    file = folder / "agent.caliber"
    body = f'config {{ base: reference }} adapter store {{ type: sqlite connection: "{folder / "agent.db"}" }}'
    file.write_text(f'caliber: "0.1.0" {{ {text} {body} }}', "utf-8")
    return file


def test_a_name_stands_for_its_memories() -> None:
    named = config(":memory:", memories=["blocks", MINE])
    assert [memory.name for memory in named.memories] == [BLOCK, "mine"]
    assert config(":memory:", memories=named.to_mapping()["memories"]) == named


def test_a_program_includes_them(tmp_path: Path) -> None:
    twice = 'include "caliber:blocks" include "caliber:blocks" memory mine { type: semantic schema: { content: text } }'
    made = load_program(_program(tmp_path, twice)).config
    assert [memory.name for memory in made.memories] == [BLOCK, "mine"]
    assert made.memories[0] == config(":memory:", memories=["blocks"]).memories[0]


def test_an_unknown_name_says_which_there_are(tmp_path: Path) -> None:
    for wrong in ("block", "../blocks", ""):
        with pytest.raises(MultipleErrors, match="there are blocks"):
            config(":memory:", memories=[wrong])
        with pytest.raises(MultipleErrors, match="there are blocks"):
            config_of(_program(tmp_path, f'include "caliber:{wrong}"'))


def test_a_store_of_another_program_gains_them_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with caliber.open(path, create=True, memories=[MINE]) as memory:
        kept = memory.records("mine").insert(content="was here before")
    with caliber.open(path, create=True, memories=["blocks"]) as memory:
        assert memory.records(BLOCK).find() == []
    more = {**MINE, "fields": [*MINE["fields"], {"name": "more", "type": "int", "optional": True}]}
    with caliber.open(path, create=True, memories=[more]) as memory:
        assert memory.records("mine").get(kept.record_id).content == kept.content
        assert memory.records("mine").insert(content="b", more=1).more == 1


def test_memories_are_names_or_declarations(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match="memories"):
        caliber.open(tmp_path / "agent.db", create=True, memories="blocks")
    with pytest.raises(MultipleErrors):
        caliber.open(tmp_path / "agent.db", create=True, memories=[7])  # type: ignore[list-item]
    assert not (tmp_path / "agent.db").exists()
