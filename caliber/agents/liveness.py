"""Liveness of agents: signs of life of many at once, and the end of what silent ones hold.

All times are those of the database's clock. A job looks for silent agents. Source: C-421.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Final

from caliber.access.acting import ActingAgent, is_live, watch
from caliber.agents.locking import lock_queue
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.model.agents.registry import Agent, AgentLifecycle, AgentStatus
from caliber.model.events import EventType
from caliber.model.references import EntityType
from caliber.model.storage import ReadConsistency
from caliber.model.time import MS_US, from_us, to_us
from caliber.schema.relations import AGENT
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.unit_of_work import UnitOfWork

_WATCHER: Final = "system:agents"
"""The principal of the job that looks for silent agents."""


def renew(uow: UnitOfWork, keys: Iterable[bytes]) -> list[Agent]:
    """Renew the signs of life of agents in one statement, and return those that are registered; failed ones are idle.

    No version is compared: nothing else of a row changes.
    """
    ids = json.dumps(sorted(key.hex() for key in keys))
    decode = codec_of(AGENT).decode
    return [decode(row) for row in uow.change(AGENT, "agent.renew", ids, uow.now_us)]


def run(engine: Engine, claim: Claim) -> int:
    """Run the job that looks for silent agents, and return how many failed; the next look follows while any is active.

    Raises: Superseded, StorageError kinds.
    """
    failed = fail_silent(engine, _WATCHER)
    timeout_us = engine.config.agents.heartbeat_timeout_ms * MS_US
    active = [each for each in all_agents(engine) if each.lifecycle is AgentLifecycle.ACTIVE]

    def work(uow: UnitOfWork) -> int:
        claim.ack(uow)
        if active:
            # Not before the longest silent one could fail; failed ones may live again at any time.
            silent = [to_us(each.last_heartbeat) + timeout_us + 1 for each in active if is_live(each)]
            soonest = uow.now_us + max(1, engine.config.agents.sign_every_ms) * MS_US
            watch(uow, max(soonest, min(silent, default=uow.now_us + timeout_us)))
        return len(failed)

    return engine.write(work)


def fail_silent(engine: Engine, by: str) -> list[Agent]:
    """Set agents that were silent for longer than the timeout to failed, and return them; locks and requests end.

    ``by`` is the principal of the audit events. Raises: StorageError kinds.
    """
    timeout_us = engine.config.agents.heartbeat_timeout_ms * MS_US
    limit_us = engine.clock.now_us() - timeout_us
    known = all_agents(engine)
    keys = sorted(each.agent_id.bytes for each in known if is_live(each) and to_us(each.last_heartbeat) < limit_us)

    def work(uow: UnitOfWork) -> list[Agent]:
        failed: list[Agent] = []
        for key in keys:
            uow.lock(AGENT, key)
            agent: Agent | None = uow.find(AGENT, key)
            if agent is None or not is_live(agent) or uow.now_us - to_us(agent.last_heartbeat) <= timeout_us:
                continue
            now = from_us(uow.now_us)
            agent = uow.update(AGENT, dataclasses.replace(agent, status=AgentStatus.FAILED, updated_at=now))
            assert agent is not None
            log_change(engine, uow, by, EventType.AGENT_FAIL, agent, ("status",))
            failed.append(agent)
        if failed:
            lock_queue.forfeit(
                uow, [ActingAgent(each.name, each.ref).label for each in failed], lock_queue.waker(engine)
            )
        return failed

    return engine.write(work) if keys else []


def all_agents(engine: Engine) -> list[Agent]:
    """Return all registered agents, those of other processes included."""
    rows = engine.snapshot(ReadConsistency.LATEST)[AGENT.name]
    return [engine.memory.entity(rows, number) for number in rows.rows().tolist()]


def log_change(engine: Engine, uow: UnitOfWork, by: str, kind: EventType, agent: Agent, changed: Iterable[str]) -> None:
    """Log a change of what an agent is, or may do, in its transaction; names and texts stay out of the log."""
    payload = {"changed": sorted(changed), "status": agent.status.value, "lifecycle": agent.lifecycle.value}
    engine.audit(uow, kind, principal=by, subject=(EntityType.AGENT, agent.agent_id), payload=payload)
