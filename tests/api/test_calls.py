"""Number of Python functions that one call runs, and of their modules, on the calling thread: limits that only fall.

No clock: the same on every machine. The figures are those of a store in a file, in its steady state, with vectors made
behind. A change that lowers one lowers its limit in ``tools/budgets.toml``. Source: design, section 9.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.api.counted_calls import counted
from support.configs import USER

import caliber

NOTES, TURNS = 400, 60
# Which records share a window's last tokens follows drawn ids: it runs up to ten functions more or less. What a read
# leaves behind wakes a thread, or finds it awake: ``get`` runs 12 functions then, and 2 more to wake it; an append
# runs one more beside other work than its 143, a search a few more than its 142.
TABLE = Path(__file__).parent.parent.parent / "tools" / "budgets.toml"
LIMITS: dict[str, list[int]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["calls"]


@pytest.fixture
def steady(file_backend: Any) -> dict[str, Callable[[], Any]]:
    """Return the calls over a store that has settled."""
    memory = file_backend.open(write_behind__usage_enabled=True)
    task = memory.start_trajectory("plan the trip to the coast", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    said = {"entity_type": "topic", "note_type": "fact", "confidence": 0.9}
    note = [
        memory.add_note(entity=f"place {at % 40}", content=f"the harbour of place {at} opens at {at % 24}", **said)
        for at in range(NOTES)
    ][-1]
    for at in range(TURNS):
        memory.append_turn(scope.scope_id, role="user" if at % 2 else "assistant", content=f"what of day {at}?")

    turns = iter(range(1_000))

    def opened() -> None:
        """Open the store again, and assemble a first window: both rise with what is done for each record."""
        with caliber.open(memory.config, principal=caliber.Principal.admin()) as again:
            assert again.assemble_context(task.trajectory_id, query="when does the harbour open?").used_tokens

    calls: dict[str, Callable[[], Any]] = {
        "open": opened,
        "append_turn": lambda: memory.append_turn(scope.scope_id, role="user", content=f"and then {next(turns)}?"),
        "assemble_context": lambda: memory.assemble_context(task.trajectory_id, query="when does the harbour open?"),
        "search": lambda: memory.search("harbour of place 7", kinds=["note"], limit=10),
        "get": lambda: memory.get(note.note_id),
        "remember": lambda: memory.remember([{"role": "user", "content": f"{next(turns)}?"}] * 2, user="anna"),
    }
    for call in calls.values():
        for _ in range(3):
            call()
    memory.flush()

    def settle() -> None:
        """Write all that was left behind, and take it over."""
        memory.flush()
        memory.current_scope(task.trajectory_id)

    return {**calls, "settle": settle}


@pytest.mark.parametrize("name", LIMITS)
def test_a_call_runs_no_more_functions_than_before(name: str, steady: dict[str, Callable[[], Any]]) -> None:
    # design section 9; issue "The house I"
    # The least of several: in others memory takes over what was written behind in between; beside load it may in many,
    # also of those that wait for it.
    found = [counted(steady[name]) for _ in range(7)]
    most, entered = LIMITS[name]
    while len(found) < 10 or (len(found) < 40 and min(calls for calls, _ in found) > most):
        steady["settle"]()
        found.append(counted(steady[name]))
    calls, counts = min(found, key=lambda item: item[0])
    assert calls <= most, f"{name} runs {calls} functions; the most of them: {counts.most_common(10)}"
    modules = min((list(counts) for _, counts in found), key=len)
    assert len(modules) <= entered, f"{name} enters {len(modules)} modules: {sorted(modules)}"


def test_a_window_runs_as_many_functions_for_a_user_of_many_tasks(file_backend: Any) -> None:
    # The tasks within reach of recall were looked up one by one: for 2,000 of them they took half of a window's time.
    memory = file_backend.open()
    found = []
    for more in (40, 120):
        for at in range(more):
            task = memory.start_trajectory(f"talk {at}", user="maria")
            scope = memory.current_scope(task.trajectory_id)
            said = "I bought apples at the market" if at % 2 else "we saw the sea"
            memory.append_turn(scope.scope_id, role="user", content=said)
        memory.flush()
        window = partial(memory.assemble_context, task.trajectory_id, query="what did I buy?", max_tokens=600)
        found.append(min([counted(window)[0] for _ in range(5)][2:]))
    few, many = found
    assert many < few + 60
