"""A process that closes a scope and runs what is due, and is killed on the way.

Told in JSON: the store, its knobs, the scope, the time, and which event of a run it is to be killed at: while it is
written (``in``: its transaction is open) or as soon as it is told (``after``: its transaction is committed).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> None:
    from caliber.events import event_log  # first of all: other modules take ``log`` from it

    path, knobs, scope, now_us, where, at = json.loads(sys.argv[1])
    log, seen = event_log.log, [0]

    def dies() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def counting(uow: Any, event: Any, publish: Any) -> None:
        here = seen[0] == at
        seen[0] += 1

        def told(event: Any) -> None:
            if here:
                dies()
            publish(event)

        log(uow, event, told)
        if here and where == "in":
            dies()

    event_log.log = counting

    from support.configs import config
    from support.providers import ScriptedSummarizer

    import caliber
    from caliber.model.time import FixedClock
    from caliber.retention import retaining

    retaining.SWEEP_ROWS = 1  # type: ignore[misc]
    memory = caliber.open(config(path, **knobs), clock=FixedClock(now_us), summarization_provider=ScriptedSummarizer())
    memory.close_scope(scope)
    memory.jobs.run_due()
    memory.close()


if __name__ == "__main__":
    main()
