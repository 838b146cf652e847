"""A process that says something, starts a task, closes a scope or does what another left, and is killed on the way.

Told in JSON: the store, its knobs, the time, what it does (``turn``, ``task_start``, ``close`` or ``due``), its scope,
and where it is to be killed: while it stores what sets a trigger off, or takes it up (``storing``), as soon as that is
committed (``before``), while it writes an action's event (``in`` and which), or as soon as that is told (``after``).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))


def dies(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    from caliber.events import event_log  # first of all: other modules take ``log`` from it

    path, knobs, now_us, does, scope, where, at = json.loads(sys.argv[1])
    log, seen = event_log.log, [0]

    def counting(uow: Any, event: Any, publish: Any) -> None:
        here = seen[0] == at
        seen[0] += 1
        log(uow, event, (lambda _: dies()) if here and where == "after" else publish)
        if here and where == "in":
            dies()

    event_log.log = counting

    from support.configs import USER, config
    from support.providers import ScriptedSummarizer

    import caliber
    from caliber.model.time import FixedClock
    from caliber.retention import retaining
    from caliber.schema.relations import JOB
    from caliber.storage.write.unit_of_work import UnitOfWork
    from caliber.trajectory.service import Tasks

    memory = caliber.open(config(path, **knobs), clock=FixedClock(now_us), summarization_provider=ScriptedSummarizer())

    def dying(name: str) -> None:
        call = getattr(UnitOfWork, name)

        def writes(self: UnitOfWork, relation: Any, *parameters: Any, **how: Any) -> Any:
            written = call(self, relation, *parameters, **how)
            if relation is JOB:
                dies()
            return written

        setattr(UnitOfWork, name, writes)

    if where == "storing":
        dying("insert")
        dying("select_entities")
    elif where == "before":
        Tasks.run_trigger = dies  # type: ignore[assignment,method-assign]
    if does == "turn":
        memory.append_turn(scope, role="user", content="KEEP this")
    elif does == "task_start":
        memory.start_trajectory("is killed", initiator=USER)
    else:
        if does == "close":
            retaining.SWEEP_ROWS = 1  # type: ignore[misc]
            memory.close_scope(scope)
        memory.jobs.run_due()
    memory.close()


if __name__ == "__main__":
    main()
