"""Hidden tasks and notes below a shared task: neither a recovery of it nor the end of a delegation changes them."""

from __future__ import annotations

import pytest
from support.agents.teams import NOTE
from support.databases import Backend

import caliber
from caliber.model import Principal


def scope_of(memory: caliber.Caliber, task: object) -> object:
    scope = memory.current_scope(task)  # type: ignore[arg-type]
    return scope.scope_id


def test_a_recovery_leaves_what_its_principal_may_not_see(backend: Backend) -> None:
    memory = backend.open(jobs__poll_ms=0)
    bot, ana, ben = (
        memory.acting_as(each) for each in (Principal.agent("bot"), Principal.user("ana"), Principal.user("ben"))
    )
    shared = bot.start_trajectory("shared").trajectory_id
    checkpoint = ben.pcp.checkpoint(shared).checkpoint_id
    bot.append_turn(scope_of(bot, shared), role="user", content="open to all")
    hidden = ana.start_trajectory("hidden", parent=shared).trajectory_id
    turn = ana.append_turn(scope_of(ana, hidden), role="user", content="ana's own words").turn_id
    note = ana.add_note(content="only ana knows", source_trajectory_ids=[shared], **NOTE).note_id
    preview = ben.pcp.recover(shared, checkpoint, preview=True)
    assert (preview.turns_rolled_back, preview.subtasks_rolled_back, preview.records_rolled_back) == (1, 0, 0)
    ben.pcp.recover(shared, checkpoint)
    assert ana.get(hidden).status == "active"
    assert ana.get(turn).rolled_back_at is None
    assert ana.get(note).archived_at is None
    memory.acting_as(Principal.admin()).pcp.recover(shared, checkpoint)
    assert ana.get(turn).rolled_back_at is not None


@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_a_delegation_that_ends_leaves_tasks_of_other_users(backend: Backend, how: str) -> None:
    memory = backend.open(jobs__poll_ms=0)
    for name in ("planner", "worker"):
        memory.agents.register(name, type="any", can_delegate_to=["any"])
    planner, worker = (memory.acting_as(Principal.agent(name)) for name in ("planner", "worker"))
    ana = memory.acting_as(Principal.user("ana"))
    top = planner.start_trajectory("top").trajectory_id
    given = planner.agents.delegations.delegate("part", parent=top, to="worker").delegation_id
    below = worker.agents.delegations.accept(given).child_trajectory_id
    hidden = ana.start_trajectory("hidden", parent=below).trajectory_id
    own = worker.start_trajectory("own", parent=below).trajectory_id
    if how == "cancel":
        planner.agents.delegations.cancel(given, reason="another way")
    else:
        worker.agents.delegations.fail(given, reason="no way")
    assert (ana.get(hidden).status, worker.get(own).status) == ("active", "failed")
