"""Registration of the job handler that finishes erasures whose process died, and a report of these at opening."""

from __future__ import annotations

from caliber.engine.engine import Engine
from caliber.erasure.unfinished import ERASURE_JOB, report_unfinished
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import IDLE, Handler
from caliber.jobs.queue import JobQueue


def open_erasures(engine: Engine) -> None:
    """Let this process finish erasures that others abandoned, and enqueue jobs for existing ones."""

    def run(claim: Claim) -> int:
        from caliber.erasure.service import run_left  # imported only by a process that erases

        return run_left(engine, claim)

    engine.part(JobQueue).register(Handler(ERASURE_JOB, run, priority=IDLE))
    report_unfinished(engine)
