"""A process that writes and searches until it is killed: ``searching_process.py PATH SEED DURABILITY``."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.configs import USER
from support.crash.workload import settings_for
from support.search.history import Texts, add_notes

import caliber


def main() -> None:
    path, seed, durability = sys.argv[1:]
    rng, texts = random.Random(seed), Texts(int(float(seed) * 1e9))
    behind = {"embedding__embed__note": "behind", "embedding__embed__turn": "behind"}
    quiet = {"search__keyword__similar_words": "none", "write_behind__trace_enabled": False}
    with caliber.open(settings_for(path, storage__durability=durability, **behind, **quiet)) as memory:
        trajectory = memory.start_trajectory("search and write", initiator=USER)
        scope = memory.current_scope(trajectory.trajectory_id)
        assert scope is not None
        notes, turns = list(add_notes(memory, texts, 5)), []
        print("ready", flush=True)
        parent = os.getppid()
        while os.getppid() == parent:  # what was to kill it may have been killed itself
            what = rng.random()
            if what < 0.3:
                notes += add_notes(memory, texts, rng.randint(1, 20))
            elif what < 0.5:
                said = [{"role": "user", "content": texts.words(6) + "?" * rng.randint(0, 1)} for _ in range(3)]
                turns += [turn.turn_id for turn in memory.append_turns(scope.scope_id, said)]
            elif what < 0.6:
                memory.storage.notes.update(rng.choice(notes), content=texts.words(9))
            elif what < 0.65:
                memory.storage.notes.delete(notes.pop(rng.randrange(len(notes))))
                notes += add_notes(memory, texts, 1)
            elif what < 0.7 and turns:
                memory.storage.turns.delete(turns.pop(rng.randrange(len(turns))))
            else:
                memory.search(texts.words(3))


main()
