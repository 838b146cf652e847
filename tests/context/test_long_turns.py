"""Recalled turns that are long enter as an excerpt around what answers, and holes in passages are marked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import caliber

NOISE = [
    f"Point {at} of the agenda is the harbour wall, the price of rope and fee {at * 37 % 101}." for at in range(170)
]
SECRETS = {
    "What is the code of the safe?": "The code of the safe is OTTER-7.",
    "Which allergies does Nora have?": "Nora is allergic to hazelnuts.",
    "When does the ferry leave?": "The ferry leaves at 6:40 from pier two.",
}
SHAPES: dict[str, Any] = {
    "sentences": lambda secret, at: " ".join([*NOISE[:at], secret, *NOISE[at:]]),
    "lines": lambda secret, at: "\n".join([*NOISE[:at], f"- {secret}", *NOISE[at:]]),
    "one sentence": lambda secret, at: " ".join([*NOISE[:at], secret, *NOISE[at:]]).replace(".", ","),
    "code": lambda secret, at: "```\n" + "\n".join([*NOISE[:at], secret, *NOISE[at:]]) + "\n```",
}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[caliber.Caliber]:
    config = caliber.profiles.chat_companion(tmp_path / "memory.db", embedding_provider=None)
    with caliber.open(config, create=True) as opened:
        yield opened


def asked(memory: caliber.Caliber, question: str, budget: int) -> Any:
    task = memory.start_trajectory("a question", user="ana").trajectory_id
    memory.remember([{"role": "user", "content": question}], user="ana", task=task)
    return memory.assemble_context(task, max_tokens=budget)


def test_a_long_turn_enters_as_the_passage_that_answers(memory: caliber.Caliber) -> None:
    # issue 40, item 5
    at = 0
    for shape in SHAPES.values():
        for secret in SECRETS.values():
            at = (at + 71) % len(NOISE)
            task = memory.start_trajectory("a talk", user="ana").trajectory_id
            said = shape(f"{secret[:-1]} in year {at}.", at)
            memory.remember(
                [{"role": "user", "content": said}, {"role": "assistant", "content": "Thanks."}], user="ana", task=task
            )
    for question, secret in SECRETS.items():
        for budget in (1_000, 4_000):
            window = asked(memory, question, budget)
            assert f"{secret[:-1]} in year" in window.text, (question, budget)
            recalled = next(section for section in window.sections if section.name == "recall")
            first, *_ = recalled.content.removeprefix("# From earlier\n").split("\n\n")
            assert first.startswith("[user, "), first[:80]
            assert "] … " in first, first[:80]
            assert first.splitlines()[0].endswith(" …") or "\n    " in first
            assert all(source.tokens <= 201 for source in recalled.sources)
            for source in recalled.sources:
                assert source.span is not None
            memory.flush()
            assert memory.replay(window.window_id, user="ana") == window


def test_a_hole_in_a_passage_is_marked(memory: caliber.Caliber) -> None:
    # issue 40, item 5
    task = memory.start_trajectory("a talk", user="ana").trajectory_id
    said = [f"My sister Nora keeps bees on island {at}." if at % 4 == 1 else NOISE[at] for at in range(30)]
    memory.remember([{"role": "user", "content": text} for text in said], user="ana", task=task)
    window = asked(memory, "Which islands does my sister Nora keep bees on?", 600)
    (recall,) = [section for section in window.sections if section.name == "recall"]
    lines = [line for line in recall.content.splitlines() if line and not line.startswith("#")]
    shown = [next((at for at, text in enumerate(said) if text in line), None) for line in lines]
    assert shown.count(None) >= 1
    for line, before, after in zip(lines[1:], shown, shown[1:], strict=False):
        if before is not None and after is not None:
            assert after == before + 1, line
    assert [line for line, at in zip(lines, shown, strict=True) if at is None] == ["…"] * shown.count(None)
    for source in recall.sources:
        assert recall.content[slice(*source.span)].strip("…\n")
