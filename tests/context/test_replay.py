"""A window is the same for ever: replayed byte for byte after everything that can happen to its sources.

Source: design section 5 (Determinism), issue: Done when.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support.configs import policy
from support.drawn import needs
from support.inspection import inspect

import caliber
from caliber.model import FixedClock
from caliber.model.errors import NotFound

pytestmark = pytest.mark.databases("one")

TESTS = str(Path(__file__).resolve().parents[1])
PRUNE_ALL = policy(
    "task_end",
    {"action": "prune", "target": "turn_buffer", "older_than_ms": 0},
    {"action": "prune", "target": "artifact", "older_than_ms": 0},
    {"action": "prune", "target": "note", "older_than_ms": 0},
)
OPTIONS: dict[str, Any] = {
    "policies": [policy("scope_close", {"action": "summarize", "target": "turn_buffer"}, name="closing"), PRUNE_ALL],
    "system_instructions": "You are a test.",
    "token_budget": 1_200,
    "embedding__embed__turn": "off",
}


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def agent(backend: Any, start: Any, clock: FixedClock) -> Any:
    """An agent with something of every source, more than fits, and odd bytes among it."""
    agent = start(backend.open(clock=clock, **OPTIONS))
    memory = agent.memory
    agent.notes = []
    for at in range(30):
        clock.advance(ms=7)
        agent.notes.append(
            agent.note(
                f"note {at}: {'memory ' * (at % 7 + 1)} \U0001f9e0 é",
                entity=f"e{at % 4}",
                source_trajectory_ids=[agent.trajectory_id],
            )
        )
    agent.say("earlier talk about memory. It was long. It had points.")
    memory.close_scope(agent.scope_id)
    agent.scope = memory.open_scope(agent.trajectory_id)
    agent.artifacts = [agent.keep(f"artifact {at} " + "word " * (at * 9)) for at in range(12)]
    agent.keep(b"\xff\xfe raw bytes")
    for at in range(25):
        clock.advance(ms=7)
        agent.say(f"turn {at} " + "text " * (at % 5), role="user" if at % 2 else "assistant")
    agent.say("", role="assistant", tool_calls=[{"id": "1", "function": {"name": "f", "arguments": "{}"}}])
    agent.say(b"tool said \xff", role="tool", tool_call_id="1")
    memory.flush()
    return agent


def windows_of(agent: Any) -> list[Any]:
    """Windows of every kind: with and without query, roomy and tight, of another principal, with sections fed in."""
    memory = agent.memory
    other = memory.acting_as(caliber.Principal(caliber.model.PrincipalKind.AGENT, "other"))
    made = [
        memory.assemble_context(agent.trajectory_id),
        memory.assemble_context(agent.trajectory_id, query="memory points"),
        memory.assemble_context(agent.trajectory_id, query="memory points", max_tokens=250),
        memory.assemble_context(agent.trajectory_id, max_tokens=80),
        other.assemble_context(agent.trajectory_id, query="turn"),
    ]
    memory.flush()
    return made


def _refs(section: Any) -> list[Any]:
    return [[str(ref.id), ref.version, repr(ref.relevance), ref.tokens] for ref in section.sources]


def fingerprint(window: Any) -> dict[str, Any]:
    """All of a window that its reader can see, comparable between processes."""
    return {
        "text": window.text,
        "messages": window.to_messages(),
        "used": window.used_tokens,
        "sections": [
            [part.section_type.value, part.content, part.token_count, _refs(part)]
            for part in window.sections
        ],
        "trace": [
            [str(d.target_id), d.ordinal, d.version, d.action.value, d.reason, d.tokens, repr(d.relevance), d.rank]
            for d in window.assembly_trace
        ],
        "stable": window.stable_prefix_tokens,
    }  # fmt: skip


def replayed(memory: Any, windows: list[Any]) -> None:
    for window in windows:
        again = memory.replay(window.window_id)
        assert again.text.encode() == window.text.encode()
        assert fingerprint(again) == fingerprint(window)
        assert again == window, "nothing about it differs"


def test_replay_is_the_same_at_once_and_from_disk(agent: Any) -> None:
    memory = agent.memory
    window = memory.assemble_context(agent.trajectory_id, query="memory")
    assert fingerprint(memory.replay(window.window_id)) == fingerprint(window)
    memory.flush()
    assert fingerprint(memory.replay(window.window_id)) == fingerprint(window)
    assert memory.replay(window.window_id) == window, "nothing about it differs"


@needs("reopen")
def test_replay_survives_reopening_under_any_configuration(agent: Any, backend: Any, clock: FixedClock) -> None:
    """A window names the configuration it was made under, and is replayed under that one. Issue, Done when."""
    windows = windows_of(agent)
    agent.memory.close()
    changed = {**OPTIONS, "system_instructions": "Something else.", "token_budget": 600, "assembly__separator": "\n"}
    for options in (OPTIONS, changed):
        with backend.open(clock=clock, **options) as again:
            replayed(again, windows)


def test_replay_survives_whatever_happens_to_its_sources(agent: Any, clock: FixedClock) -> None:
    # issue, Done when: new knowledge, updates, merges, expiry, compaction, eviction, pruning and deletion
    memory, storage = agent.memory, agent.memory.storage
    fleeting = agent.keep("for a moment", ttl="1s")
    windows = windows_of(agent)
    for at in range(40):
        agent.note(f"memory points {at}")
        agent.say(f"later {at}")
    replayed(memory, windows)
    for round_number in range(3):
        for note in agent.notes:
            storage.notes.update(note.note_id, content=f"changed {round_number} {note.note_id}")
        storage.notes.update(agent.notes[0].note_id, confidence=round_number / 10)
        replayed(memory, windows)
    assert "changed 2" in memory.assemble_context(agent.trajectory_id, query="changed").text
    memory.supersede_note(agent.notes[1].note_id, content="merged")
    (closed,) = [scope for scope in storage.scopes.all() if scope.summary]
    storage.scopes.update(closed.scope_id, summary="rewritten")
    clock.advance(ms=2_000)
    memory.admin.maintain()
    assert memory.get(fleeting.artifact_id).retired_at is not None
    replayed(memory, windows)
    for note in agent.notes[::3]:
        storage.notes.delete(note.note_id)
    inspect(memory).resident.compact()
    replayed(memory, windows)
    inspect(memory).resident.reload()
    replayed(memory, windows)
    for generation in inspect(memory).mirrors.generations.values():
        generation.evict_texts(1 << 30)
    replayed(memory, windows)
    memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    assert storage.turns.count() == 0
    memory.admin.maintain()
    replayed(memory, windows)
    for table, key in (("notes", "note_id"), ("artifacts", "artifact_id")):
        for entity in list(getattr(storage, table).all()):
            assert getattr(storage, table).delete(getattr(entity, key))
    assert storage.notes.count() == storage.artifacts.count() == 0
    replayed(memory, windows)
    assert memory.admin.verify() == []


def test_replay_names_a_source_that_was_erased(agent: Any, backend: Any) -> None:
    """Only forgetting makes a window unreadable, and then it says what is gone."""
    (_, window, *_) = windows_of(agent)
    notes = {source.id for section in window.sections for source in section.sources} & {n.note_id for n in agent.notes}
    agent.memory.storage.notes.delete(notes.pop())
    backend.tamper(agent.memory, "DELETE FROM content_version")
    with pytest.raises(NotFound):
        agent.memory.replay(window.window_id)


_REPLAY = """
    import importlib.util, json, sys
    sys.path.insert(0, sys.argv[2])
    import caliber
    from caliber.kernels import active_path
    from support.configs import config
    spec = importlib.util.spec_from_file_location('replay_tests', sys.argv[3])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with caliber.open(config(sys.argv[1], **module.OPTIONS, **json.loads(sys.argv[4]))) as memory:
        out = [module.fingerprint(memory.replay(window_id)) for window_id in sys.argv[5:]]
    print(json.dumps({'path': active_path(), 'windows': out}))
"""


# Each set on a database in a file; the server's rows reach the same kernels, so that one set shows that they do.
@pytest.mark.prove
@pytest.mark.parametrize(
    ("backend", "native"), [("sqlite", "scalar"), ("sqlite", None), ("postgres", None)], indirect=["backend"]
)
@needs("reopen")
def test_replay_is_the_same_on_every_instruction_set(
    native: str | None, agent: Any, backend: Any, clock: FixedClock
) -> None:
    # issue, Done when: "and under CALIBER_NATIVE=scalar"
    agent.memory.close()
    # The clock of the other process is the machine's: windows must not have expired by then.
    with backend.open(**OPTIONS) as memory:
        agent.memory = memory
        windows = windows_of(agent)
    environment = {name: value for name, value in os.environ.items() if name != "CALIBER_NATIVE"}
    if native is not None:
        environment["CALIBER_NATIVE"] = native
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_REPLAY), backend.path, TESTS, __file__,
         json.dumps(backend.knobs), *(str(window.window_id) for window in windows)],
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if native is not None:
        assert answer["path"] == native
    assert answer["windows"] == [json.loads(json.dumps(fingerprint(window))) for window in windows]


# --- the trace -----------------------------------------------------------------------------------


def test_trace_accounts_for_every_candidate(agent: Any) -> None:
    # issue, Done when: "the trace accounts for every candidate once"; that once is a property of all windows
    memory = agent.memory
    everything = memory.assemble_context(agent.trajectory_id)
    candidates = {d.target_id for d in everything.assembly_trace if d.target_id is not None}
    cut = {(c.source_type.value): c.considered for c in everything.cut_offs}
    turns = {turn.turn_id for turn in memory.storage.turns.list_by_scope(agent.scope.scope_id)}
    artifacts = {artifact.artifact_id for artifact in memory.storage.artifacts.all()}
    notes = {note.note_id for note in agent.notes}
    assert turns <= candidates
    assert artifacts <= candidates
    assert notes <= candidates or cut.get("note") == len(notes), "what is no candidate was cut by a limit, and said so"
    closed = [scope for scope in memory.storage.scopes.list_by_trajectory(agent.trajectory_id) if scope.summary]
    assert closed
    assert {scope.scope_id for scope in closed} <= candidates


def test_windows_bytes_are_bounded(agent: Any) -> None:
    # design section 9: ≤ 20 KB a window
    windows_of(agent)
    sizes = [len(window.record) for window in agent.memory.storage.context_windows.all()]
    assert max(sizes) < 20_000


def test_a_window_outlives_the_scope_it_shows(backend: Any, start: Any) -> None:
    memory = backend.open()
    agent = start(memory)
    agent.say("what was said before the scope went")
    window = memory.assemble_context(agent.trajectory_id)
    memory.flush()
    memory.storage.scopes.delete(agent.scope_id)
    assert memory.replay(window.window_id).text == window.text
