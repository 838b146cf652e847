"""Effects of jobs in tests: rows of the same relation, ended from the start, in the transaction that ends a job."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from caliber.jobs.claims import Claim
from caliber.jobs.states import new_job
from caliber.model.access import Principal, PrincipalKind
from caliber.model.jobs import Job, JobOutcome
from caliber.model.time import from_us
from caliber.schema.relations import JOB
from caliber.storage.write.unit_of_work import UnitOfWork

_ME = Principal(PrincipalKind.SYSTEM, "test")


def insert_effect(uow: UnitOfWork, claim: Claim) -> None:
    """Write that a job, whose payload holds its number ``n``, had its effect."""
    now = from_us(uow.now_us)
    effect = new_job("effect", now, now, _ME, key=None, payload={"of": claim.job.payload["n"]}, of=(None, None))
    uow.insert(JOB, dataclasses.replace(effect, ended_at=now, outcome=JobOutcome.DONE))


def jobs_and_effects(store: Any) -> tuple[dict[int, Job], Counter[int]]:
    """Return the jobs that have a number, by it, and how often each had its effect."""
    plans = store.plans[JOB.name]
    with store.read() as session:
        found = [plans.codec.decode(row) for row in session.run(plans.page, (bytes(16), 1_000_000))]
    effects = Counter(row.payload["of"] for row in found if row.kind == "effect")
    return {row.payload["n"]: row for row in found if "n" in row.payload}, effects
