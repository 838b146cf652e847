"""The conversations of a user: listed with the one that was active last first, page by page."""

from __future__ import annotations

from typing import Any

import pytest

import caliber
from caliber.model import FixedClock, Principal
from caliber.model.errors import NotFound, PermissionDenied, RequiredFieldMissing

HOUR_US = 3_600_000_000


def test_conversations_of_a_user_are_listed_page_by_page(backend: Any) -> None:
    clock = FixedClock()
    memory = backend.open(clock=clock).acting_as(Principal.application())
    ana, ben = (memory.acting_as(Principal.user(name)) for name in ("ana", "ben"))
    tasks = []
    for at in range(5):
        clock.advance(us=HOUR_US)
        tasks.append(ana.start_trajectory(f"talk {at}").trajectory_id)
        ana.remember([{"role": "user", "content": f"This is talk {at}."}], task=tasks[-1])
    clock.advance(us=HOUR_US)
    ana.complete_trajectory(tasks[1], status="success")
    clock.advance(us=HOUR_US)
    ana.remember([{"role": "user", "content": "And on."}], task=tasks[0])
    ana.start_trajectory("a part", parent=tasks[0])
    ben.start_trajectory("of ben")
    newest = [tasks[0], tasks[1], tasks[4], tasks[3], tasks[2]]

    assert [each.trajectory_id for each in ana.conversations()] == newest
    assert memory.conversations("ana") == ana.conversations()
    pages, after = [], None
    while page := memory.conversations("ana", limit=2, after=after):
        pages.append([each.trajectory_id for each in page])
        after = page[-1]
    assert pages == [newest[:2], newest[2:4], newest[4:]]
    assert memory.conversations("ana", after=newest[2]) == memory.conversations("ana")[3:]
    assert [each.goal for each in memory.conversations("ben")] == ["of ben"]
    assert memory.conversations("nobody") == []
    agent = memory.acting_as(Principal.agent("planner"))
    made = agent.start_trajectory("for ana", user="ana").trajectory_id
    assert [each.trajectory_id for each in agent.conversations("ana", limit=1)] == [made]
    for call, error in (
        (lambda: ben.conversations("ana"), PermissionDenied),
        (lambda: memory.conversations(), RequiredFieldMissing),
        (lambda: memory.conversations("ben", after=tasks[0]), NotFound),
    ):
        with pytest.raises(error):
            call()


def test_an_agent_and_the_application_are_told_how_to_act_for_a_user(backend: Any) -> None:
    memory = backend.open()
    for principal in (Principal.application(), Principal.agent("planner")):
        with pytest.raises(RequiredFieldMissing, match=r"user='maria@example.com'.*as_user"):
            memory.acting_as(principal).remember([{"role": "user", "content": "I am Ana."}])
    assert isinstance(memory, caliber.Caliber)
