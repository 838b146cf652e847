"""Writers that meet: rules over several rows hold, whoever is first. Source: C-013, decision 0091."""

from __future__ import annotations

import threading
from typing import Any

from support.configs import USER
from support.inspection import inspect

from caliber.model.trajectory import OutcomeStatus
from caliber.trajectory import lifecycle


def test_session_ends_with_the_last_of_trajectories_that_end_at_once(backend: Any) -> None:
    # C-013: neither saw the other as ended, and the session stayed open for ever
    memory = backend.open()
    session = memory.start_session(initiator=USER)
    tasks = []
    for at in range(3):
        task = memory.start_trajectory(f"task {at}", initiator=USER, session=session.session_id)
        memory.close_scope(memory.current_scope(task.trajectory_id).scope_id)
        tasks.append(task)
    done, go = threading.Event(), threading.Event()

    def finish(uow: Any, task: Any) -> None:
        lifecycle.finish_trajectory(uow, task.trajectory_id, status=OutcomeStatus.SUCCESS, summary="", notes=())

    def first(uow: Any) -> None:
        finish(uow, tasks[0])
        done.set()
        assert go.wait(30)

    threads = [threading.Thread(target=lambda: inspect(memory).write(first))]
    threads[0].start()
    assert done.wait(30)
    for task in tasks[1:]:
        threads.append(threading.Thread(target=lambda task=task: inspect(memory).write(lambda uow: finish(uow, task))))
        threads[-1].start()
    threads[-1].join(0.3)  # one that does not wait for the first is done by now
    go.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert memory.get(session.session_id).ended_at is not None
    assert memory.admin.verify() == []
