"""One of the processes of ``test_events_of_other_processes``: does as its lines of stdin say, and answers each.

``make N`` makes artifacts and says their ids; ``fail`` tries to make one and is refused; ``until ID`` waits for the
event of one, and says everything that was heard.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.configs import USER
from support.crash.workload import settings_for

import caliber
from caliber.model.agents import LockToken
from caliber.model.errors import LockExpired
from caliber.model.events import Event


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    with caliber.open(settings_for(order["path"], **order["overrides"])) as memory:
        heard: list[str] = []

        def hear(event: Event) -> None:
            heard.append("missed" if event.event_type == "events_missed" else str(event.subject_id))

        task = memory.start_trajectory("of a process", initiator=USER)
        scope = memory.current_scope(task.trajectory_id)
        assert scope is not None
        memory.events.subscribe(hear, event_type="artifact_create", remote=True)
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            answer: Any = None
            if word == "make":
                answer = [
                    str(
                        memory.create_artifact(
                            scope.scope_id,
                            artifact_type="fact",
                            content=f"{uuid.uuid4()}",
                            extraction_method="explicit",
                        ).artifact_id
                    )
                    for _ in range(int(rest))
                ]
            elif word == "fail":
                try:
                    memory.create_artifact(
                        scope.scope_id, artifact_type="fact", content="no", extraction_method="explicit",
                        guard=LockToken("nobody's", 1),
                    )  # fmt: skip
                except LockExpired:
                    answer = "refused"
            elif word == "until":
                limit = time.monotonic() + 60
                while rest not in heard and time.monotonic() < limit:
                    time.sleep(0.005)
                answer = list(heard)
            print(json.dumps(answer), flush=True)


main()
