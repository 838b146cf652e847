"""Knobs of tasks, policies, checkpoints and those who act."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from support.config.knobs.case import NO_VECTORS, Agent, Case, Place, works
from support.configs import policy
from support.inspection import inspect
from support.memories import FACT
from support.providers import ScriptedLearner, ScriptedSummarizer
from support.waits import until
from support.weeks import MONDAY

import caliber
from caliber.access.acting import ActingAgent, registered
from caliber.config import CaliberConfig
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import Handler
from caliber.jobs.queue import JobQueue
from caliber.llm.facts import ExtractedFact
from caliber.model import AgentRole, EventType, Principal, PrincipalKind
from caliber.model.errors import Conflict, LockAcquisitionFailed
from caliber.model.learning import PersonAttribute
from caliber.model.time import FixedClock
from caliber.policies import schedules

SUMMARIZE = {"action": "summarize", "target": "turn_buffer"}
NOTIFY = {"action": "notify", "channel": "told"}
PRUNE = {"action": "prune", "target": "note", "below_confidence": 0.5}
HOUR_MS = 3_600_000
EVERY_CHECKPOINT = {"pcp.recovery_points.frequency": "per_turn"}


def scheduled(*actions: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a policy that is due at 3 in the morning."""
    made = policy("schedule", *actions)
    made["rules"][0]["cron"] = "0 3 * * *"
    return [made]


def occurrences(settings: CaliberConfig, place: Place) -> int:
    """Count the occurrences that the calendar lists of an event that is repeated for ever."""
    calendar = place.open(settings).workspace.calendar
    calendar.add("standup", MONDAY, rrule="FREQ=DAILY")
    return len(calendar.occurrences(MONDAY, MONDAY + timedelta(days=99)))


def learnt(settings: CaliberConfig, place: Place) -> list[str]:
    """Remember two messages with a provider that learns the same from each; return what was learnt."""
    provider = ScriptedLearner()
    provider.facts = lambda turns: [
        ExtractedFact("user", PersonAttribute.HOME, "I live in", "lives in town", turn.turn_number) for turn in turns
    ][:1]
    memory = place.open(settings, summarization_provider=provider)
    messages = [{"role": "user", "content": "I live in Berlin."}, {"role": "user", "content": "I moved to Rome."}]
    learned = memory.remember(messages, user="maria")
    return [each.statement for each in learned.decisions if each.note_id is not None]


def case(
    path: str, see: Any, one: tuple[Any, Any], other: tuple[Any, Any], *more: tuple[Any, Any], **also: Any
) -> Case:
    given = {name.replace("__", "."): value for name, value in also.items()}
    return Case(path, see, one, other, {**NO_VECTORS, "pcp.recovery_points.frequency": "manual", **given}, more=more)


# --- agents --------------------------------------------------------------------------------------------


def heard(config: CaliberConfig, place: Place) -> int:
    """Return the seconds by which an act renews the heartbeat of an agent that was silent for three."""
    clock = FixedClock()
    memory = place.open(config, clock=clock)
    engine = inspect(memory).engine
    made = memory.agents.register("planner")
    clock.advance(ms=3_000)
    engine.write(lambda uow: registered(uow, engine.config, ActingAgent("planner", made.ref)))
    return (memory.agents.get("planner").last_heartbeat - made.last_heartbeat).seconds


def unanswered(config: CaliberConfig, place: Place) -> str:
    """Return the status of a delegation two hours after it was given."""
    clock = FixedClock()
    memory = place.open(config, clock=clock)
    memory.agents.register("planner", can_delegate_to=["coder"])
    memory.agents.register("ada", type="coder")
    task = memory.start_trajectory("ship it", user="ana")
    given = memory.agents.delegations.delegate("test it", parent=task.trajectory_id, to="ada", agent="planner")
    clock.advance(ms=2 * HOUR_MS)
    memory.jobs.run_due()
    return memory.agents.delegations.get(given.delegation_id).status.value


def mailed(memory: caliber.Caliber, payload: str = "x") -> str:
    """Return the outcome of a message that one agent sends to another."""
    memory.agents.register("bob")
    return works(lambda: memory.agents.messages.send(payload, to="bob", agent="ann"))


def delivered(config: CaliberConfig, place: Place) -> list[int]:
    """Return how many messages each of four claims gets, 1.5 s after the one before, of one that stays unread."""
    clock = FixedClock()
    memory = place.open(config, clock=clock)
    mailed(memory)
    counts = []
    for _ in range(4):
        counts.append(len(memory.agents.messages.claim(agent="bob")))
        clock.advance(ms=1_500)
    return counts


# --- scopes and trajectories -------------------------------------------------------------------------


def summaries_of_turns(config: CaliberConfig, place: Place) -> list[str]:
    """Return the summaries of the blocks of five turns."""
    agent = Agent(place.open(config, summarization_provider=ScriptedSummarizer()))
    for number in range(5):
        agent.say(f"turn {number}")
    agent.memory.flush()
    return [summary.content for summary in agent.memory.storage.turn_summaries.list_by_scope(agent.scope_id)]


def goal(config: CaliberConfig, place: Place) -> str | None:
    agent = Agent(place.open(config), goal="find out")
    found: str | None = agent.memory.get(agent.trajectory_id).goal
    return found


def confidence(config: CaliberConfig, place: Place) -> float:
    """Return the confidence of a note drawn from a task, where the model answers 0.6."""
    agent = Agent(place.open(config, summarization_provider=ScriptedSummarizer()))
    agent.keep("a thing learned")
    (note,) = agent.memory.consolidate_notes(agent.trajectory_id)
    return float(note.confidence)


# --- checkpoints -------------------------------------------------------------------------------------


def checkpoints(config: CaliberConfig, place: Place) -> int:
    agent = Agent(place.open(config))
    for number in range(3):
        agent.say(f"turn {number}")
    said = int(agent.memory.storage.checkpoints.count())
    agent.memory.close_scope(agent.scope_id)
    return max(said, int(agent.memory.storage.checkpoints.count()))


def packed(config: CaliberConfig, place: Place) -> str:
    agent = Agent(place.open(config))
    agent.say("turn")
    (checkpoint,) = agent.memory.storage.checkpoints.list_by_trajectory(agent.trajectory_id)
    return str(checkpoint.codec)


# --- policies ----------------------------------------------------------------------------------------


def told(config: CaliberConfig, place: Place) -> int:
    agent = Agent(place.open(config))
    agent.memory.close_scope(agent.scope_id)
    return len(agent.memory.trace(agent.trajectory_id, event_type="caliber_told"))


def tables_of_memories(config: CaliberConfig, place: Place) -> list[str]:
    """Return the tables of memories that are not built in."""
    with inspect(place.open(config)).store.read() as session:
        rows = session.command(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'memory_%' AND name <> 'memory_type'"
        )
    return sorted(name for (name,) in rows)


def clock_at(hour: int) -> FixedClock:
    return FixedClock(int(MONDAY.timestamp() + 3_600 * hour) * 1_000_000)


def by_itself(config: CaliberConfig, place: Place) -> str:
    """Return whether an open store runs due schedules unasked."""
    clock = clock_at(1)
    memory = place.open(config, clock=clock)
    heard = threading.Event()
    memory.events.subscribe(lambda _: heard.set(), event_type="caliber_told")
    memory.jobs.run_due()
    clock.advance(ms=3 * HOUR_MS)
    # What looks every millisecond is waited for as long as it may take; what never looks is given a moment.
    return "told" if heard.wait(20 if config.jobs.poll_ms else 0.05) else "silent"


def tries_within_half_a_minute(config: CaliberConfig, place: Place) -> int:
    """Return how often an action that others get in the way of is tried within 30 seconds of its first failure."""

    def overtaken(*_: Any) -> int:
        raise Conflict(entity_type="note", id="planted", reason="planted", retryable=True)

    place.fixture("monkeypatch").setattr(schedules, "prune_everywhere", overtaken)
    clock = clock_at(1)
    memory = place.open(config, clock=clock)
    memory.jobs.run_due()
    clock.advance(ms=3 * HOUR_MS)
    memory.jobs.run_due()
    clock.advance(ms=30_000)
    memory.jobs.run_due()
    return sum(event.event_type == EventType.POLICY_EXECUTE.value for event in memory.storage.events.all())


def run_at_once(config: CaliberConfig, place: Place) -> int:
    """Return the number of three waiting jobs that run in the background at the same time."""
    memory = place.open(config)
    begun, go, queue = [], threading.Event(), inspect(memory).engine.part(JobQueue)

    def wait(_: Claim) -> int:
        begun.append(True)
        go.wait(20)
        return 1

    queue.register(Handler("wait", wait, concurrency=3))
    inspect(memory).write(lambda uow: [queue.enqueue(uow, "wait") for _ in range(3)] and None)
    until(lambda: len(begun) >= config.jobs.workers)
    go.wait(0.05)  # a moment for one too many
    at_once = len(begun)
    go.set()
    return at_once


# --- who acts ----------------------------------------------------------------------------------------


def agent_of(name: str, role: AgentRole) -> Principal:
    return Principal(PrincipalKind.AGENT, name, role)


def seen_by_others(author: AgentRole) -> Callable[[CaliberConfig, Place], list[str]]:
    """Return the observation of which other roles find a note that an agent of one role wrote."""

    def see(config: CaliberConfig, place: Place) -> list[str]:
        memory = place.open(config)
        Agent(memory)
        mine = memory.acting_as(agent_of("author", author))
        mine.add_note(entity="it", entity_type="topic", note_type="fact", content="a secret", confidence=0.9)
        others = [role for role in AgentRole if role is not author]
        return [role.value for role in others if memory.acting_as(agent_of("other", role)).search("secret").hits]

    return see


def notes_of_two(config: CaliberConfig, place: Place) -> int:
    """Return the number of notes of one thing that two agents of a role learned."""
    memory = place.open(config, summarization_provider=ScriptedSummarizer())
    agent = Agent(memory)
    agent.keep("a thing learned")
    for name in ("one", "other"):
        memory.acting_as(agent_of(name, AgentRole.EXECUTOR)).consolidate_notes(agent.trajectory_id)
    return int(memory.storage.notes.count())


def signed(config: CaliberConfig, place: Place) -> str | None:
    note = Agent(place.open(config)).note("a thing")
    author: str | None = note.created_by
    return author


def storage_open(config: CaliberConfig, place: Place) -> str:
    memory = place.open(config)
    return works(lambda: memory.storage.notes.all())


def visibility(author: AgentRole, first: AgentRole, second: AgentRole) -> Case:
    path = "access.default_visibility"
    made = case(path, seen_by_others(author), ([first.value], [first.value]), ([second.value], [second.value]))
    return replace(made, named=f"{path}.{author.value}")


# --- calls -------------------------------------------------------------------------------------------


def lapsed(config: CaliberConfig, place: Place) -> str:
    """Return whether another can take a lock 8 seconds after it was taken."""
    clock = FixedClock()
    memory = place.open(config, clock=clock)
    memory.agents.locks.acquire("r", holder="one")
    clock.advance(ms=8_000)
    try:
        memory.agents.locks.acquire("r", holder="other")
    except LockAcquisitionFailed:
        return "held"
    return "lapsed"


def at_once(config: CaliberConfig, place: Place) -> tuple[int, int]:
    """Return how many of six asynchronous calls are under way while none can end, and how many wait for a thread."""

    async def run() -> tuple[int, int]:
        memory = await caliber.aio.open(config)
        place.keep(memory.sync)
        held = threading.Event()
        pool = inspect(memory).workers
        started = threading.Semaphore(0)

        def call() -> None:
            started.release()
            held.wait(20)

        calls = [asyncio.ensure_future(pool.run(call)) for _ in range(6)]
        await asyncio.sleep(0)  # every call has come to its first wait
        for _ in range(config.aio.workers):
            assert await asyncio.to_thread(started.acquire, timeout=20)
        await asyncio.sleep(0)
        waiting = pool.executor._work_queue.qsize()
        running = config.aio.workers + sum(started.acquire(blocking=False) for _ in range(6))
        held.set()
        await asyncio.gather(*calls)
        return running, waiting

    return asyncio.run(run())


ROLES = AgentRole

CASES: tuple[Case, ...] = (
    # --- agents
    Case("agents.messages.lease_ms", delivered, (1_000, [1, 1, 1, 1]), (4_000, [1, 0, 0, 1]), NO_VECTORS),
    case("delegation_timeout", unanswered, ("1h", "rejected"), ("3h", "pending")),
    # --- tasks
    case("learning.method", learnt, ("model", ["lives in town"]), ("rules", ["lives in Berlin", "lives in Rome"])),
    case(
        "summaries.max_tokens",
        summaries_of_turns,
        (4, ["summary of user"]),
        (9, ["summary of user: tur"]),
        assembly__evict_block_turns=4,
    ),
    # --- checkpoints
    case("checkpoint_retention", checkpoints, (1, 1), (2, 2), **EVERY_CHECKPOINT),
    case("pcp.recovery_points.frequency", checkpoints, ("manual", 0), ("per_turn", 3), ("per_scope", 1)),
    case(
        "pcp.recovery_points.compression_enabled",
        packed,
        (False, "sha256+json"),
        (True, "sha256+json+zlib"),
        **EVERY_CHECKPOINT,
    ),
    # --- policies
    case("policies", told, ([], 0), ([policy("scope_close", NOTIFY, NOTIFY)], 2)),
    case(
        "memories",
        tables_of_memories,
        ([], []),
        ([{**FACT, "fields": [field for field in FACT["fields"] if field["type"] != "embedding"]}], ["memory_fact"]),
    ),
    case("jobs.poll_ms", by_itself, (0, "silent"), (1, "told"), policies=scheduled(NOTIFY)),
    case(
        "jobs.backoff_ms",
        tries_within_half_a_minute,
        ("10s", 2),
        ("1m", 1),
        policies=scheduled(PRUNE),
        jobs__poll_ms=0,
    ),
    case(
        "jobs.backoff_max_ms",
        tries_within_half_a_minute,
        ("10s", 2),
        ("5m", 1),
        policies=scheduled(PRUNE),
        jobs__poll_ms=0,
        jobs__backoff_ms="1m",
    ),
    case("jobs.workers", run_at_once, (1, 1), (2, 2), jobs__poll_ms=5),
    # --- how long records stay
    # --- who acts
    visibility(ROLES.ORCHESTRATOR, ROLES.OPTIMIZER, ROLES.EXECUTOR),
    visibility(ROLES.OPTIMIZER, ROLES.EXECUTOR, ROLES.REVIEWER),
    visibility(ROLES.REVIEWER, ROLES.EXECUTOR, ROLES.ORCHESTRATOR),
    visibility(ROLES.EXECUTOR, ROLES.REVIEWER, ROLES.OPTIMIZER),
    case("access.ownership", notes_of_two, ("agent", 2), ("role", 1)),
    case(
        "principal.kind",
        signed,
        ("human", "admin:owner@"),
        ("system", "admin:system:owner@"),
        ("agent", "admin:agent:owner@"),
        ("application", "admin:application:owner@"),
    ),
    case("principal.id", signed, ("ann", "admin:ann@"), ("bob", "admin:bob@")),
    case(
        "principal.role",
        signed,
        ("executor", "admin:agent:owner@executor"),
        ("reviewer", "admin:agent:owner@reviewer"),
        ("orchestrator", "admin:agent:owner@orchestrator"),
        ("optimizer", "admin:agent:owner@optimizer"),
        principal__kind="agent",
    ),
    case("principal.admin", storage_open, (False, "PermissionDenied"), (True, "done")),
    # --- calls
    case("aio.workers", at_once, (1, (1, 1)), (2, (2, 1)), aio__queue=1),
    case("aio.queue", at_once, (1, (1, 1)), (3, (1, 3)), aio__workers=1),
)
