"""A forked child finds the locks of modules free, whoever held them in its parent."""

from __future__ import annotations

import os
import threading

import pytest

from caliber.erasure import service
from caliber.kernels import evaluator
from caliber.kernels.jit import compiled
from caliber.resident import conversation
from caliber.resident import predicates as masks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_locks_that_other_threads_hold_are_free_in_a_child() -> None:
    locks = [
        (evaluator, "OPENING"), (compiled, "_compiling"), (conversation, "LOCK"), (masks, "_lock"),
        (service, "_one_at_a_time"),
    ]  # fmt: skip
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        for module, name in locks:
            getattr(module, name).acquire()
        held.set()
        go.wait(60)
        for module, name in locks:
            getattr(module, name).release()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(sum(getattr(module, name).locked() for module, name in locks))
    _, status = os.waitpid(child, 0)
    still = [name for module, name in locks if not getattr(module, name).locked()]
    go.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(status) == 0
    assert still == [], "the parent's locks stay as they are"
