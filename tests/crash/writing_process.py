"""The process that is killed: writes without end and reports each acknowledged write on its standard output.

Run as ``writing_process.py PATH SEED DURABILITY THREADS NAME``; it never ends by itself.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.workload import Worker, settings_for, to_line

import caliber


def report(entry: dict[str, Any]) -> None:
    os.write(1, to_line(entry))  # one short write to a pipe arrives whole, or not at all


def main() -> None:
    path, seed, durability, threads, name = sys.argv[1:]
    memory = caliber.open(settings_for(path, storage__durability=durability))
    os.write(1, b'{"kind": "ready", "id": ""}\n')

    def run(number: int) -> None:
        worker = Worker(memory, random.Random(f"{seed}.{number}"), f"{name}.{number}", report)
        worker.begin()
        while True:
            worker.step()

    for number in range(1, int(threads)):
        threading.Thread(target=run, args=(number,), daemon=True).start()
    run(0)


main()
