"""One store under both evaluators: the same windows, searches and replays, and each window says which it was.

Source: design section 5 (Determinism); issue 3, item 7.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.context.limits import set_limits
from support.drawn import needs
from support.inspection import replaced

import caliber
from caliber.model import AgentRole, FixedClock, Principal, PrincipalKind
from caliber.model.time import from_us

pytestmark = [pytest.mark.prove, pytest.mark.databases("one")]

EXECUTOR = Principal(PrincipalKind.AGENT, "doer", AgentRole.EXECUTOR)
TOPICS = ("rivers", "bridges", "night trains", "the red door", "winter tyres")


@pytest.fixture
@needs("sharing")
def handles(
    backend: Any, start: Any, compiled_code: Path, numba: Any, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Handles of both evaluators on one store, the one filled through the other's eyes."""
    clock = FixedClock()
    options: dict[str, Any] = {"cache_dir": str(compiled_code), "token_budget": 900}
    set_limits(monkeypatch, note_search_limit=7)
    agent = start(backend.open(clock=clock, **options))
    other = backend.open(clock=clock, resident__evaluator="numba", resident__read_consistency="latest", **options)
    _fill(agent, clock)
    return {"agent": agent, "numpy": agent.memory, "numba": other, "clock": clock}


def _fill(agent: Any, clock: FixedClock) -> None:
    choose = random.Random(7)
    memory = agent.memory
    now = from_us(clock.now_us())
    for at in range(60):
        clock.advance(ms=choose.choice([0, 5]))
        until = choose.choice([None, now + timedelta(days=choose.randint(1, 5))])
        agent.note(
            f"about {choose.choice(TOPICS)}, remark {at}",
            note_type=choose.choice(["fact", "convention", "gotcha"]),
            valid_from=None if until is None else now - timedelta(days=2),
            valid_until=until,
            visible_to=choose.choice([None, None, ["executor"], ["reviewer"], ["agent:doer"]]),
            importance=choose.choice([None, 2, 5.5]),
        )
    for at in range(25):
        clock.advance(ms=choose.choice([0, 5]))
        agent.keep(f"result {at} on {choose.choice(TOPICS)}", ttl=choose.choice([None, "1h", "scope"]))
    for at in range(9):
        agent.say(f"turn {at}: tell me of {choose.choice(TOPICS)}")
    memory.flush()


def _searches(clock: FixedClock) -> Iterator[tuple[str, dict[str, Any]]]:
    now = from_us(clock.now_us())
    for query in ("", "rivers and bridges", "a red door in winter"):
        yield query, {"limit": 10}
        yield query, {"limit": 3, "kinds": ["note"]}
        yield query, {"limit": 50, "kinds": ["note"], "filter": {"importance": [2, 5.5], "note_type": "fact"}}
        yield query, {"limit": 50, "as_of": now + timedelta(days=3)}
        yield query, {"limit": 5, "filter": {"entity_type": "nobody"}}


@pytest.mark.parametrize("principal", [None, EXECUTOR])
def test_searches_are_equal(handles: dict[str, Any], principal: Principal | None) -> None:  # M-041, M-043, M-118
    left, right = handles["numpy"], handles["numba"]
    if principal is not None:
        left, right = left.acting_as(principal), right.acting_as(principal)
    found = 0
    for query, options in _searches(handles["clock"]):
        one, two = left.search(query, **options), right.search(query, **options)
        assert (one.hits, one.status, one.position) == (two.hits, two.status, two.position), (query, options)
        found += len(one.hits)
    assert found > 100


@pytest.mark.parametrize("principal", [None, EXECUTOR])
def test_windows_are_equal_and_replay_under_either(handles: dict[str, Any], principal: Principal | None) -> None:
    # C-447, C-467; a window names its evaluator, and replay may use the other: results are equal
    left, right, agent = handles["numpy"], handles["numba"], handles["agent"]
    if principal is not None:
        left, right = left.acting_as(principal), right.acting_as(principal)
    for query in (None, "rivers and bridges", "a red door in winter"):
        for budget in (120, 900):
            options: dict[str, Any] = {"query": query, "max_tokens": budget}
            one = left.assemble_context(agent.trajectory_id, **options)
            two = right.assemble_context(agent.trajectory_id, **options)
            assert (one.evaluator, two.evaluator) == ("numpy", "numba")
            assert one.text.encode() == two.text.encode()
            assert one.to_messages() == two.to_messages()
            assert one.assembly_trace == two.assembly_trace
            left.flush()
            right.flush()
            for window in (one, two):
                for memory in (left, right):
                    again = memory.replay(window.window_id)
                    assert again.text == window.text
                    assert again.evaluator == window.evaluator
                    assert memory.explain(window.window_id)["inputs"]["evaluator"] == window.evaluator


def test_figures_name_the_evaluator(handles: dict[str, Any]) -> None:
    plain, compiled = handles["numpy"].admin.stats(), handles["numba"].admin.stats()
    assert (plain["evaluator"], plain["compiled_loops"]) == ("numpy", None)
    assert compiled["evaluator"] == "numba"
    loops = compiled["compiled_loops"]
    assert loops["loaded"] + loops["compiled"] == len(list(Path(loops["folder"]).glob("*.code")))
    assert loops["problems"] == []
    assert not [event for event in handles["numba"].storage.events.all() if event.event_type == "error"]


def test_what_was_not_kept_is_in_the_event_log(backend: Any, numba: Any, compiled_code: Path) -> None:
    from caliber.kernels import evaluator
    from caliber.kernels.jit.code import CompiledCode

    code = CompiledCode(compiled_code, 0, 13, 2.5, ("a/b cannot be written to: Read-only file system",))
    with replaced(evaluator, "compiled", caliber.kernels.Evaluator("numba", numba.loops, code)):
        memory = backend.open(resident__evaluator="numba", cache_dir=str(compiled_code))
    memory.flush()
    assert memory.admin.stats()["compiled_loops"]["problems"] == list(code.problems)
    errors = [event for event in memory.storage.events.all() if event.payload.get("where") == "evaluator"]
    assert len(errors) == 1
    assert "Read-only file system" in errors[0].payload["message"]
    assert datetime.now(UTC) - errors[0].created_at < timedelta(minutes=5)
