"""The process that is killed: writes without end and reports each acknowledged write on its standard output.

Run as ``writing_process.py PATH SEED DURABILITY THREADS NAME [OVERRIDES]``; it never ends by itself. With overrides
(JSON) its store may be on a server that is killed too: then it goes on after each error.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.crash.workload import Worker, settings_for, to_line

import caliber
from caliber.model.errors import CaliberError


def report(entry: dict[str, Any]) -> None:
    os.write(1, to_line(entry))  # one short write to a pipe arrives whole, or not at all


def main() -> None:
    path, seed, durability, threads, name, *more = sys.argv[1:]
    overrides = json.loads(more[0]) if more else {"storage__durability": durability}
    tolerated = (CaliberError,) if more else ()
    memory = caliber.open(settings_for(path, **overrides))
    os.write(1, b'{"kind": "ready", "id": ""}\n')

    def run(number: int) -> None:
        worker = Worker(memory, random.Random(f"{seed}.{number}"), f"{name}.{number}", report)
        while True:
            try:
                if worker.trajectories:
                    worker.step()
                else:
                    worker.begin()
            except tolerated:
                time.sleep(0.02)

    for number in range(1, int(threads)):
        threading.Thread(target=run, args=(number,), daemon=True).start()
    run(0)


main()
