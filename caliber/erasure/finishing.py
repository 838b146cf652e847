"""Registration of the job handler that finishes erasures whose process died, and a report of these at opening."""

from __future__ import annotations

from caliber.engine.engine import Engine
from caliber.erasure.unfinished import ERASURE_JOB, LeftErasures
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import IDLE, Handler
from caliber.jobs.queue import JobQueue


def open_erasures(engine: Engine, left: LeftErasures) -> None:
    """Let this process finish erasures that others abandoned, and report those that are ``left``."""

    def run(claim: Claim) -> int:
        from caliber.erasure.service import run_left  # imported only by a process that erases

        return run_left(engine, claim)

    engine.part(JobQueue).register(Handler(ERASURE_JOB, run, priority=IDLE))
    left.report(engine)
