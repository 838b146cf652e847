"""States of checkpoints that are longer than a reader unpacks can be read, as all others."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.erasure.shared_tasks import shared_task

import caliber
from caliber.model import Principal
from caliber.pcp.checkpoints import CODEC_JSON, CODEC_ZLIB, build_state, read_state

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
