"""A process that appends turns and is killed before any of them is summarized, or while a summary is being stored.

Told in JSON: the store, its knobs, the scope, how many turns, and where it is to be killed: ``asked`` (while the
provider works) or ``storing`` (the transaction of the summary is open).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))


def dies(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    from support.configs import config
    from support.providers import ScriptedSummarizer

    import caliber
    from caliber.schema.relations import TURN_SUMMARY
    from caliber.storage.write.unit_of_work import UnitOfWork

    path, knobs, scope, turns, where = json.loads(sys.argv[1])
    provider = ScriptedSummarizer()
    if where == "asked":
        provider.before = dies
    else:
        insert_new = UnitOfWork.insert_new

        def inserting(self: UnitOfWork, relation: Any, entity: Any) -> bool:
            inserted = insert_new(self, relation, entity)
            if relation is TURN_SUMMARY:
                dies()
            return inserted

        UnitOfWork.insert_new = inserting  # type: ignore[method-assign]
    memory = caliber.open(config(path, **knobs), summarization_provider=provider)
    memory.append_turns(scope, [{"role": "user", "content": f"turn {number}"} for number in range(turns)])
    time.sleep(60)  # the worker ends it before


if __name__ == "__main__":
    main()
