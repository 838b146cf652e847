"""A process that runs what is due by schedule, at the times it is told.

Told by lines on its standard input: ``use`` and what to open, ``at`` and a time, ``die`` and a time to be killed at in
the middle of an action. Answers each with a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))


class Clock:
    now = 0

    def now_us(self) -> int:
        return self.now


def main() -> None:
    from support.configs import config

    import caliber
    from caliber.storage.write import ending

    clock = Clock()
    memory: Any = None
    archive = ending.archive

    def dies(*arguments: Any) -> None:
        archive(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    for line in sys.stdin:
        order, _, rest = line.strip().partition(" ")
        answer: Any = None
        if order == "use":
            path, knobs, clock.now = json.loads(rest)
            memory = caliber.open(config(path, **knobs), clock=clock)
        elif order == "at":
            clock.now = int(rest)
            answer = memory.jobs.run_due()
        else:
            clock.now = int(rest)
            ending.archive = dies  # type: ignore[assignment]
            memory.jobs.run_due()
        print(json.dumps(answer), flush=True)
    memory.close()


if __name__ == "__main__":
    main()
