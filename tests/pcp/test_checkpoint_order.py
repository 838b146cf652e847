"""Order of checkpoints: by their numbers in the store, whatever the clocks of the processes say.

Source: C-266, C-350 to C-352, K-092; issue 17.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from support.databases import Backend
from support.drawn import needs
from support.erasure.shared_tasks import shared_task
from support.weeks import SetClock

import caliber
from caliber.model import Principal
from caliber.pcp.checkpoints import CODEC_JSON, CODEC_ZLIB, build_state, read_state

KNOBS: dict[str, Any] = {
    "embedding_provider": None,
    "policies": [],
    "jobs__poll_ms": 0,
    "pcp__recovery_points__frequency": "manual",
}


def kept(number: int) -> dict[str, Any]:
    return {**KNOBS, "checkpoint_retention": number}


@pytest.mark.parametrize("number", [1, 3])
def test_a_clock_that_goes_back_makes_no_checkpoint_older(backend: Backend, number: int) -> None:
    clock = SetClock()
    memory = backend.open(clock=clock, **kept(number))
    task = memory.start_trajectory("mend the pump", user="ana").trajectory_id
    scope = memory.current_scope(task)
    assert scope is not None
    for at in range(4):
        memory.append_turn(scope.scope_id, role="user", content=f"good {at}")
        memory.pcp.checkpoint(task)
    clock.at -= timedelta(hours=1)
    memory.append_turn(scope.scope_id, role="user", content="good 4")
    newest = memory.pcp.checkpoint(task)
    tables = memory.storage.checkpoints
    assert tables.list_by_trajectory(task)[0].checkpoint_id == newest.checkpoint_id
    assert tables.get_latest(task).checkpoint_id == newest.checkpoint_id
    assert len(tables.list_by_trajectory(task)) == number
    memory.append_turn(scope.scope_id, role="assistant", content="bad")
    done = memory.pcp.recover(task)
    assert (done.checkpoint_id, done.turns_rolled_back) == (newest.checkpoint_id, 1)
    # The one that was made just before is there, and takes the recovery back.
    assert memory.pcp.recover(task, done.before_id).turns_restored == 1


@needs("sharing")
def test_checkpoints_of_two_processes_are_in_the_order_in_which_they_were_made(backend: Any) -> None:
    clock = SetClock()
    first, second = backend.open(clock=clock, **kept(3)), backend.open(clock=clock, **kept(3))
    task = first.start_trajectory("mend the pump", user="ana").trajectory_id
    for memory in (first, second, first, second, second, first, first, second, first):
        made = memory.pcp.checkpoint(task)
        listed = memory.storage.checkpoints.list_by_trajectory(task)
        assert [each.checkpoint_id for each in listed].index(made.checkpoint_id) == 0
    assert len(listed) == 3


# --- large states ----------------------------------------------------------------------------------


UNPACKED = 64 << 20


@pytest.mark.parametrize(
    ("most", "codec"), [(1, CODEC_ZLIB), pytest.param(UNPACKED, CODEC_JSON, marks=pytest.mark.prove)]
)
def test_a_state_of_any_size_is_read_as_it_was_written(memory: caliber.Caliber, most: int, codec: str) -> None:
    host, _, task = shared_task(memory)
    host.append_turn(host.current_scope(task.trajectory_id).scope_id, role="user", content="We leave on Monday.")
    window: Any = host.assemble_context(task.trajectory_id)
    made = memory.acting_as(Principal.admin()).pcp.checkpoint(task.trajectory_id)
    state = dataclasses.replace(read_state(made), rolled_back_turns=tuple((at, at) for at in range(most // 6)))
    name, packed = build_state(state, window, compress=True)
    assert name == codec
    again = read_state(dataclasses.replace(made, codec=name, state=packed))
    assert again.rolled_back_turns == state.rolled_back_turns
