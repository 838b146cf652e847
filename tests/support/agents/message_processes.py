"""A consumer of messages that writes an effect with each acknowledgement, until whoever started it kills it."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from multiprocessing.connection import Connection
from typing import Any

from support.configs import config
from support.databases import DSN
from support.inspection import inspect

import caliber
from caliber.agents.mail import delivery
from caliber.jobs.states import new_job
from caliber.model.access import Principal, PrincipalKind
from caliber.model.agents import AgentMessage
from caliber.model.jobs import JobOutcome
from caliber.model.time import from_us
from caliber.schema.relations import JOB
from caliber.storage.write.unit_of_work import UnitOfWork

KNOBS: dict[str, Any] = {
    "embedding_provider": None,
    "policies": [],
    "jobs__poll_ms": 0,
    "agents__messages__lease_ms": "300ms",
    "agents__messages__attempts_max": 1_000_000,  # a message of a killed consumer is delivered again each time
}
_ME = Principal(PrincipalKind.SYSTEM, "test")


def consume(memory: caliber.Caliber, message: AgentMessage) -> None:
    """Write the effect of a message, a row that has ended from the start, and acknowledge it with it."""

    def work(uow: UnitOfWork) -> None:
        now = from_us(uow.now_us)
        row = new_job("effect", now, now, _ME, key=None, payload={"of": message.payload["n"]}, of=(None, None))
        uow.insert(JOB, dataclasses.replace(row, ended_at=now, outcome=JobOutcome.DONE))
        assert message.claimed_by is not None
        delivery.ack(uow, message.claimed_by, [message])

    inspect(memory).engine.write(work)


def effects(memory: caliber.Caliber) -> Counter[int]:
    """Return how often each message had its effect."""
    store = inspect(memory).store
    plans = store.plans[JOB.name]
    with store.read() as session:
        rows = [plans.codec.decode(row) for row in session.run(plans.page, (bytes(16), 1_000_000))]
    return Counter(row.payload["of"] for row in rows if row.kind == "effect")


def work(path: str, knobs: dict[str, Any], dsn: str, name: str, reports: Connection) -> None:
    """Consume messages until the process is killed; report that it began."""
    os.environ[DSN] = dsn
    memory = caliber.open(config(path, **KNOBS, **knobs))
    messages = memory.acting_as(Principal.agent(name)).agents.messages
    reports.send(name)
    for message in messages.listen(batch=3):
        consume(memory, message)
