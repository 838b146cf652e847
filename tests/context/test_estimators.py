"""The knob of the estimator: everything the engine counts follows it, and what was counted before stays.

Source: C-027, C-121, C-308; docs/tokens.md, docs/decisions/0016.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import pytest
from support.configs import policy
from support.drawn import needs
from support.providers import ScriptedSummarizer

from caliber.kernels import estimate_tokens, open_estimator
from caliber.kernels.tokens import estimators, tokenizer
from caliber.model.errors import ExtraNotInstalled, MultipleErrors

pytestmark = pytest.mark.databases("one")

NAMES = ["bytes", "calibrated"] + (["exact"] if find_spec("quicktok") else [])
TEXT = "Der schnelle Fuchs springt; 敏捷的狐狸 jumps over {'a': [1, 2, 3]} 🦊"
QUIET = {"embedding__embed__turn": "off", "embedding__embed__note": "off", "embedding__embed__artifact": "off"}


def knobs(estimator: str, vocabulary: str = "o200k_base") -> dict[str, Any]:
    return {"tokens__estimator": estimator, "tokens__vocabulary": vocabulary, **QUIET}


def count(estimator: str, text: str, vocabulary: str = "o200k_base") -> int:
    chosen = open_estimator(estimator, bytes_per_token=3.5, vocabulary=vocabulary)  # type: ignore[arg-type]
    return estimate_tokens(text, estimator=chosen)


def test_the_estimators_differ_on_this_text() -> None:
    assert len({count(name, TEXT) for name in NAMES}) == len(NAMES)
    assert count("exact", TEXT) != count("exact", TEXT, "cl100k_base")


@pytest.mark.parametrize("estimator", NAMES)
def test_everything_counted_follows_the_knob(backend: Any, start: Any, estimator: str) -> None:
    # C-027, C-121, C-308
    summarize = policy("scope_close", {"action": "summarize", "target": "turn_buffer"})
    summarizer = ScriptedSummarizer()
    memory = backend.open(
        summarization_provider=summarizer, policies=[summarize], embedding__embed__scope="off", **knobs(estimator)
    )
    expected = count(estimator, TEXT)
    agent = start(memory)
    turn, artifact, note = agent.say(TEXT), agent.keep(TEXT), agent.note(TEXT)
    assert (turn.token_count, artifact.token_count, note.token_count) == (expected,) * 3
    assert agent.memory.current_scope(agent.trajectory_id).tokens_input == expected

    window = memory.assemble_context(agent.trajectory_id)
    overhead = memory.config.assembly.message_overhead_tokens * len(window.messages)
    assert window.used_tokens == sum(count(estimator, s.content) for s in window.sections) + overhead
    assert window.estimator.split("/")[0] == estimator
    assert memory.explain(window.window_id)["inputs"]["estimator"] == window.estimator
    assert memory.admin.stats()["estimator"] == window.estimator
    assert memory.replay(window.window_id).used_tokens == window.used_tokens

    # Changed, closed, and written past the services.
    longer = f"{TEXT} {TEXT}"
    changed = memory.storage.artifacts.update(artifact.artifact_id, content=longer.encode())
    assert changed.token_count == count(estimator, longer)
    assert memory.storage.notes.update(note.note_id, content=longer).token_count == count(estimator, longer)
    closed = memory.close_scope(agent.scope_id)
    assert closed.summary
    assert closed.summary_tokens == count(estimator, closed.summary)


@pytest.mark.parametrize("estimator", NAMES[1:])
@needs("reopen")
def test_counts_of_another_estimator_stay_and_decide_nothing(backend: Any, start: Any, estimator: str) -> None:
    """docs/tokens.md: a stored count is what was counted when it was stored."""
    memory = backend.open(**knobs("bytes"))
    agent = start(memory)
    turns = [agent.say(f"{TEXT} {at}") for at in range(30)]
    before = memory.assemble_context(agent.trajectory_id)
    memory.close()

    memory = backend.open(**knobs(estimator))
    stored = memory.storage.turns.list_by_scope(agent.scope_id)
    assert [turn.token_count for turn in stored] == [turn.token_count for turn in turns]
    assert stored[0].version == turns[0].version
    new = memory.append_turn(agent.scope_id, role="user", content=TEXT)
    assert new.token_count == count(estimator, TEXT)
    # A window counts anew what it holds, whoever stored it.
    window = memory.assemble_context(agent.trajectory_id)
    overhead = memory.config.assembly.message_overhead_tokens * len(window.messages)
    assert window.used_tokens == sum(count(estimator, s.content) for s in window.sections) + overhead
    older, now = window.sections[-2:]
    assert now.sources[-1].tokens in (count(estimator, f"user: {TEXT}\n"), count(estimator, f"user: {TEXT}"))
    source = older.sources[0]
    assert source.tokens in (count(estimator, f"user: {TEXT} 0\n\n"), count(estimator, f"user: {TEXT} 0"))
    # A window that was made under the old one is replayed under the old one.
    again = memory.replay(before.window_id)
    assert (again.text, again.used_tokens, again.estimator) == (before.text, before.used_tokens, "bytes/3.5")


@needs("reopen")
def test_a_missing_package_is_said_at_open(
    backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    start(backend.open(**knobs("bytes"))).memory.close()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "nothing"))
    monkeypatch.setitem(sys.modules, "quicktok", None)
    tokenizer.open_token_vocabulary.cache_clear()
    estimators.open_estimator.cache_clear()
    try:
        with pytest.raises(ExtraNotInstalled, match=r"pip install 'caliber-memory\[tokens\]'"):
            backend.open(**knobs("exact"))
    finally:
        tokenizer.open_token_vocabulary.cache_clear()
        estimators.open_estimator.cache_clear()
    backend.open(**knobs("calibrated"))  # nothing was left locked


def test_an_estimator_that_reads_text_needs_a_vocabulary(backend: Any) -> None:
    with pytest.raises(MultipleErrors, match=r"tokens\.vocabulary"):
        backend.config(tokens__estimator="exact", tokens__vocabulary=None)
