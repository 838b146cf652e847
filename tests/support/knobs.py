"""A case for each knob that no test of behaviour turns: some values, and what a running part shows with each.

``tests/config/test_knobs.py`` runs ``CASES``, and names the tests that turn the other knobs. Source: issue "The DSL and
the policy engine", item 7; design section 8.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from contract.entities import plain
from contract.world import count

import caliber
from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.config import CaliberConfig
from caliber.embedding.service import Embeddings
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import Handler
from caliber.jobs.queue import JobQueue
from caliber.kernels import uuid7
from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.protocols import ExtractedFact
from caliber.model import AgentRole, EventType, Principal, PrincipalKind
from caliber.model.errors import CaliberError, Conflict, NotFound, Unavailable
from caliber.model.events import Event, EventFamily
from caliber.model.learning import PersonAttribute
from caliber.model.references import EntityRef, EntityType, EventId
from caliber.model.time import FixedClock, from_us
from caliber.policies import schedules
from caliber.schema.relations import BY_NAME, EMBEDDING, EVENT
from caliber.search.opening import SearchEngine
from caliber.search.request import Asked
from support.configs import DIMENSIONS, HASH_PROVIDER, config, policy, scheduled
from support.context.limits import set_limits
from support.context.world import ME, PLAIN, World, numbered
from support.databases import Agent
from support.inspection import inspect
from support.memories import FACT
from support.providers import CountingEmbeddings, ScriptedLearner, ScriptedSummarizer, outage
from support.storage.crowds import Gate
from support.waits import holds_within, until
from support.weeks import MONDAY

DAY_MS = 86_400_000
NO_VECTORS: dict[str, Any] = {
    "embedding_provider": None,
    "search.keyword.similar_words": "none",
    "summarization_provider": None,
    "policies": [],
    "pcp.recovery_points.frequency": "manual",
}
"""Opens in a third of the time: no model is loaded."""


class Place(NamedTuple):
    """The place of one observation: a folder of its own, and what is closed at its end."""

    folder: Path
    stack: ExitStack

    def open(self, settings: CaliberConfig, **options: Any) -> caliber.Caliber:
        if not settings.storage.in_memory:
            caliber.create(settings, exist_ok=True)
        return self.stack.enter_context(caliber.open(settings, **options))


class Seen(NamedTuple):
    """A value of a knob, and what is seen with it."""

    value: Any
    shows: Any


@dataclass(frozen=True)
class Case:
    """A knob, how its effect is looked at, and what is seen with each of some values; ``also`` is beside the reference.

    ``named`` is the knob's path where it holds the name of an entry of a table.
    """

    path: str
    see: Callable[[CaliberConfig, Place], Any]
    sees: tuple[Seen, ...]
    also: dict[str, Any]
    named: str

    def __str__(self) -> str:
        return self.named or self.path

    def config(self, value: Any, place: Place) -> CaliberConfig:
        """Return the configuration with a value, and everything else the same."""
        knobs = {**self.also, str(self): value}
        in_file = knobs.pop("in_file", False)
        path = str(place.folder / "store.db") if in_file else ":memory:"
        return config(path, **{name.replace(".", "__"): one for name, one in knobs.items()})


def case(path: str, see: Any, *sees: tuple[Any, Any], named: str = "", **also: Any) -> Case:
    """Return a case of a store without a model; ``also`` has ``__`` for the dot."""
    given = {name.replace("__", "."): value for name, value in also.items()}
    return Case(path, see, tuple(Seen(*one) for one in sees), {**NO_VECTORS, **given}, named)


# --- windows ---------------------------------------------------------------------------------------------

SESSION = BY_NAME["session"]
RECALLED: dict[str, Any] = {
    **PLAIN,
    "assembly.separator": "|",
    "assembly.section_headers": False,
    "assembly.relevance": "search",
    "min_relevance_threshold": 0.0,
}


def window_of(build: Callable[[World], Any], show: Callable[[Any], Any]) -> Callable[[CaliberConfig, Place], Any]:
    """Return the observation of one window over a small store, in which only the last message is certain to enter."""

    def see(config: CaliberConfig, place: Place) -> Any:
        patch = place.stack.enter_context(pytest.MonkeyPatch.context())
        set_limits(patch, recent_exchanges=0, recent_from_tokens=0, spare_share=0.0)
        with closing(World(config)) as world:
            with world.at_once():
                build(world)
            return show(next(part for part in world.window(query="zeppelin").sections if part.name in SHOWN))

    return see


SHOWN = ("recall", "notes")


def recalled(section: Any) -> list[str]:
    """List what came from earlier."""
    return [item.rpartition("] ")[2] for item in section.content.removesuffix("|").split("|") if item]


def ids(section: Any) -> list[int]:
    return [source.id.int for source in section.sources]


def earlier(world: World) -> None:
    """One sentence in each of some tasks, which differ in whose they are."""
    session, stranger = numbered(50), EntityRef(EntityType.USER, numbered(2))
    world.insert(SESSION, plain(SESSION, session_id=session))
    world.trajectory_id = world.trajectory(session=session)
    world.scope_id = world.scope()
    world.turn("was there another?")
    for said, owner, whose in (
        ("one more zeppelin of mine", ME, None),
        ("a zeppelin of our session", stranger, session),
        ("the zeppelin of a stranger", stranger, None),
    ):
        task = world.trajectory(initiator=owner, session=whose)
        world.turn(said, trajectory=task, scope=world.scope(trajectory=task))


def short_and_long(world: World) -> None:
    """Two notes: the longer one says it more often."""
    world.note("zeppelin zeppelin zeppelin " + "and many other words " * 20, note_id=numbered(1))
    world.note("zeppelin", note_id=numbered(2))


# --- search and vectors ----------------------------------------------------------------------------------


def records_read(config: CaliberConfig, place: Place) -> int:
    """Return the number of records that a search in the database reads."""
    agent = Agent(place.open(config))
    for number in range(4):
        agent.note(f"zeppelin {number}")
    engine = inspect(agent.memory).engine
    stored, space = engine.part(SearchEngine).stored, engine.part(Embeddings).searched(engine.memory.snapshot)
    assert stored is not None
    asked = Asked(
        text="",
        vector=HashEmbeddingProvider(DIMENSIONS, "test").embed("zeppelin"),
        without_vector=None,
        space=space,
        kinds=("note",),
        limit=1,
        readers=Readers(engine.part(TaskOwners), config.principal.to_principal()),
        as_of_us=engine.clock.now_us(),
        now_us=engine.clock.now_us(),
    )
    with engine.store.read() as session:
        return len(stored.candidates(session, asked).nearest()["note"])


def cached_later(config: CaliberConfig, place: Place) -> int:
    """Return how many vectors that are two days old upkeep removes from the cache."""
    clock = FixedClock()
    agent = Agent(place.open(config, clock=clock, embedding_provider=CountingEmbeddings()))
    agent.note("a thing")
    agent.memory.flush()
    clock.advance(ms=2 * DAY_MS)
    return agent.memory.admin.maintain()["embedding_cache"]


def one_of_each(kind: str) -> Callable[[CaliberConfig, Place], tuple[str, int]]:
    """Return the observation of writing during an outage of the provider, and what has a vector when it is over."""

    def see(config: CaliberConfig, place: Place) -> tuple[str, int]:
        provider = CountingEmbeddings()
        agent = Agent(place.open(config, embedding_provider=provider, summarization_provider=ScriptedSummarizer()))
        if kind == "scope":
            agent.say("a turn")
        write = {
            "turn": lambda: agent.say("a turn"),
            "note": lambda: agent.note("a note"),
            "artifact": lambda: agent.keep("an artifact"),
            "todo": lambda: agent.memory.workspace.todos.add("a to-do"),
            "scope": lambda: agent.memory.close_scope(agent.scope_id),
        }
        provider.failure = outage
        outcome = "written"
        try:
            write.get(kind, lambda: agent.memory.records("fact").insert(subject="x", kind="claim", content="a fact"))()
        except CaliberError:
            outcome = "refused"
        provider.failure = None
        agent.memory.flush()
        return outcome, count(inspect(agent.memory).store, EMBEDDING)

    return see


class Plane:
    """Vectors of a plane that the texts themselves say."""

    model_id = "plane"
    dimensions = 2

    def embed(self, text: str) -> Any:
        return np.array([float(word) for word in text.rpartition(":")[2].split()], np.float32)

    def embed_batch(self, texts: Any) -> Any:
        return np.stack([self.embed(text) for text in texts])


def nearest(config: CaliberConfig, place: Place) -> str:
    agent = Agent(place.open(config, embedding_provider=Plane()))
    for place_of in ("0.8 0.3", "0.3 0", "3 3"):
        agent.note(place_of)
    return str(agent.memory.search("1 0", limit=1).hits[0].content)


def vector_case(path: str, see: Any, *sees: tuple[Any, Any], named: str = "", **also: Any) -> Case:
    """Return a case of a store with a provider, which embeds nothing unless ``also`` says so."""
    given = {"embedding_provider": HASH_PROVIDER, "embedding__embed": {"default": "off"}, **also}
    return case(path, see, *sees, named=named, **given)


def kind_case(kind: str) -> Case:
    """Return the case of one entry of ``embedding.embed``, with every other kind off."""
    sees = (("off", ("written", 0)), ("commit", ("refused", 0)), ("behind", ("written", 1)))
    named = f"embedding.embed.{kind}"
    also: dict[str, Any] = {"llm_retry_config__max_retries": 0, "memories": [FACT]}
    if kind == "scope":
        summarize = policy("scope_close", {"action": "summarize", "target": "turn_buffer"})
        also |= {"close__on_llm_failure": "fail", "policies": [summarize]}
    return vector_case("embedding.embed", one_of_each(kind), *sees, named=named, **also)


# --- agents, jobs and calls ------------------------------------------------------------------------------


def unanswered(config: CaliberConfig, place: Place) -> str:
    """Return the status of a delegation two hours after it was given."""
    clock = FixedClock()
    memory = place.open(config, clock=clock)
    memory.agents.register("planner", can_delegate_to=["coder"])
    memory.agents.register("ada", type="coder")
    task = memory.start_trajectory("ship it", user="ana")
    given = memory.agents.delegations.delegate("test it", parent=task.trajectory_id, to="ada", agent="planner")
    clock.advance(ms=DAY_MS // 12)
    memory.jobs.run_due()
    return memory.agents.delegations.get(given.delegation_id).status.value


def delivered(config: CaliberConfig, place: Place) -> list[int]:
    """Return how many messages each of four claims gets, 1.5 s after the one before, of one that stays unread."""
    clock = FixedClock()
    memory = place.open(config, clock=clock)
    memory.agents.register("bob")
    memory.agents.messages.send("x", to="bob", agent="ann")
    counts = []
    for _ in range(4):
        counts.append(len(memory.agents.messages.claim(agent="bob")))
        clock.advance(ms=1_500)
    return counts


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


def packed(config: CaliberConfig, place: Place) -> str:
    agent = Agent(place.open(config))
    agent.say("turn")
    (checkpoint,) = agent.memory.storage.checkpoints.list_by_trajectory(agent.trajectory_id)
    return str(checkpoint.codec)


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


def calls_at_once(config: CaliberConfig, place: Place) -> tuple[int, int]:
    """Return how many of six asynchronous calls are under way while none can end, and how many wait for a thread."""

    async def run() -> tuple[int, int]:
        memory = await caliber.aio.open(config)
        place.stack.enter_context(memory.sync)
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


# --- memory, and what is written behind ------------------------------------------------------------------


def seen_at_once(config: CaliberConfig, place: Place) -> bool:
    """Return whether a handle knows a note that another one has just written."""
    memory = place.open(config)
    note = Agent(place.open(config)).note("news").note_id
    with suppress(NotFound):
        return bool(memory.get(note))
    return False


def seen_later(config: CaliberConfig, place: Place) -> bool:
    """Return whether a handle comes to know a note that another one wrote: waited for long where it is to."""
    memory = place.open(config)
    Agent(place.open(config)).note("news")
    return holds_within(lambda: bool(memory.search("news").hits), 20 if config.resident.feed_poll_ms else 0.05)


def words_known(config: CaliberConfig, place: Place) -> bool:
    """Return whether the words of a store are known before the first search."""
    agent = Agent(place.open(config))
    agent.note("zeppelin")
    agent.memory.close()
    words = inspect(place.open(config)).part(SearchEngine).searcher.keywords.dictionary
    return holds_within(lambda: len(words) > 0, 20 if config.resident.warm_after_ms else 0.05)


def windows_of_before(config: CaliberConfig, place: Place) -> int:
    """Return the number of two-day-old windows that upkeep removes, with windows kept for a month."""
    clock = FixedClock()
    month = {"retention.windows_ms": "30d", "context_window_persistence.ttl_ms": "30d"}
    agent = Agent(place.open(config.with_overrides(**month), clock=clock))
    agent.memory.assemble_context(agent.trajectory_id)
    agent.memory.close()
    clock.advance(ms=2 * DAY_MS)
    return place.open(config, clock=clock).admin.maintain()["windows"]


def tries_within_half_a_minute(config: CaliberConfig, place: Place) -> int:
    """Return how often an action that others get in the way of is tried within 30 seconds of its first failure."""

    def overtaken(*_: Any) -> int:
        raise Conflict(entity_type="note", id="planted", reason="planted", retryable=True)

    place.stack.enter_context(pytest.MonkeyPatch.context()).setattr(schedules, "prune_everywhere", overtaken)
    clock = FixedClock(int(MONDAY.timestamp() + 3_600) * 1_000_000)
    memory = place.open(config, clock=clock)
    for ms in (0, 3 * 3_600_000, 30_000):
        clock.advance(ms=ms)
        memory.jobs.run_due()
    return sum(event.event_type == EventType.POLICY_EXECUTE.value for event in memory.storage.events.all())


def closed_beside_a_writer(config: CaliberConfig, _: Place) -> str:
    """Return the outcome of closing while another writes for a while, or until the close gave up."""
    memory = caliber.open(config)
    inspect(memory).behind.flush()
    gate = Gate(inspect(memory).store)
    event = Event(EventId(uuid7()), EventFamily.TRACE, "caliber_seen", from_us(0))
    inspect(memory).behind.put((inspect(memory).engine.log, None, event))
    timer = threading.Timer(0.1, gate.open)
    timer.start()
    try:
        memory.close()
    except Unavailable:
        return "given up"
    finally:
        timer.join()
    return "drained"


def applied_by_itself(config: CaliberConfig, place: Place) -> bool:
    """Return whether an event goes that is too old: waited for long where it is to go, and a moment where it is not."""
    clock = FixedClock()
    agent = Agent(place.open(config, clock=clock))
    agent.memory.flush()
    clock.advance(ms=2 * DAY_MS)
    store = inspect(agent.memory).store
    return holds_within(lambda: not count(store, EVENT), 20 if config.retention.apply_every_ms else 0.05)


# --- who acts --------------------------------------------------------------------------------------------


def agent_of(name: str, role: AgentRole) -> Principal:
    return Principal(PrincipalKind.AGENT, name, role)


def notes_of_two(config: CaliberConfig, place: Place) -> int:
    """Return the number of notes of one thing that two agents of a role learned."""
    memory = place.open(config, summarization_provider=ScriptedSummarizer())
    agent = Agent(memory)
    agent.keep("a thing learned")
    for name in ("one", "other"):
        memory.acting_as(agent_of(name, AgentRole.EXECUTOR)).consolidate_notes(agent.trajectory_id)
    return int(memory.storage.notes.count())


def visibility(author: AgentRole, first: AgentRole, second: AgentRole) -> Case:
    """Return the case of which other roles find a note that an agent of one role wrote."""

    def see(config: CaliberConfig, place: Place) -> list[str]:
        memory = place.open(config)
        Agent(memory)
        mine = memory.acting_as(agent_of("author", author))
        mine.add_note(entity="it", entity_type="topic", note_type="fact", content="a secret", confidence=0.9)
        others = [role for role in AgentRole if role is not author]
        return [role.value for role in others if memory.acting_as(agent_of("other", role)).search("secret").hits]

    path = "access.default_visibility"
    sees = [([role.value], [role.value]) for role in (first, second)]
    return case(path, see, *sees, named=f"{path}.{author.value}")


ROLES = AgentRole
HOME, MINE, OURS = "lives in town", "one more zeppelin of mine", "a zeppelin of our session"
CASES: tuple[Case, ...] = (
    # --- windows
    case(
        "recall.from",
        window_of(earlier, recalled),
        ("session", [OURS]),
        ("owner", [MINE]),
        ("tenant", [MINE, OURS, "the zeppelin of a stranger"]),
        **RECALLED,
    ),
    case("recall.length_weight", window_of(short_and_long, ids), (0.0, [1, 2]), (1.0, [2, 1]), **RECALLED),
    # --- search and vectors
    vector_case(
        "search.candidate_factor", records_read, (1, 1), (3, 3), search__mode="backend", search__vector_candidates=1,
        embedding__embed__note="commit",
    ),
    vector_case("embedding_cache_retention", cached_later, ("1d", 1), ("3d", 0), embedding__embed__note="commit"),
    *(kind_case(kind) for kind in ("turn", "note", "artifact", "todo", "fact", "default", "scope")),
    vector_case(
        "vector.distance_metric",
        nearest,
        ("cosine", "0.3 0"),
        ("inner_product", "3 3"),
        ("l2", "0.8 0.3"),
        embedding_provider={**HASH_PROVIDER, "dimensions": 2},
        embedding__embed__note="commit",
        search__min_similarity=-1.0,
        search__weights={"vector": 1.0, "keyword": 0.0, "graph": 0.0, "importance": 0.0},
    ),
    # --- agents, jobs and calls
    case("delegation_timeout", unanswered, ("1h", "rejected"), ("3h", "pending")),
    case("agents.messages.lease_ms", delivered, (1_000, [1, 1, 1, 1]), (4_000, [1, 0, 0, 1])),
    case("learning.method", learnt, ("model", [HOME]), ("rules", ["lives in Berlin", "lives in Rome"])),
    case(
        "pcp.recovery_points.compression_enabled",
        packed,
        (False, "sha256+json"),
        (True, "sha256+json+zlib"),
        pcp__recovery_points__frequency="per_turn",
    ),
    case("jobs.workers", run_at_once, (1, 1), (2, 2), jobs__poll_ms=5),
    case("aio.workers", calls_at_once, (1, (1, 1)), (2, (2, 1)), aio__queue=1),
    case("aio.queue", calls_at_once, (1, (1, 1)), (3, (1, 3)), aio__workers=1),
    # --- memory, and what is written behind
    case("resident.read_consistency", seen_at_once, ("local", False), ("latest", True), in_file=True),
    case("resident.feed_poll_ms", seen_later, (0, False), (1, True), in_file=True),
    case("resident.warm_after_ms", words_known, (0, False), (1, True), in_file=True),
    case(
        "retention.windows_ms",
        windows_of_before,
        ("1d", 1),
        ("3d", 0),
        in_file=True,
        context_window_persistence__ttl_ms="12h",
    ),
    case(
        "jobs.backoff_max_ms",
        tries_within_half_a_minute,
        ("10s", 2),
        ("5m", 1),
        policies=[scheduled("0 3 * * *", {"action": "prune", "target": "note", "below_confidence": 0.5})],
        jobs__poll_ms=0,
        jobs__backoff_ms="1m",
    ),
    case("write_behind.shutdown_ms", closed_beside_a_writer, (1, "given up"), ("20s", "drained")),
    case("retention.apply_every_ms", applied_by_itself, (0, False), (1, True), retention__events_ms="1d"),
    # --- who acts
    visibility(ROLES.ORCHESTRATOR, ROLES.OPTIMIZER, ROLES.EXECUTOR),
    visibility(ROLES.OPTIMIZER, ROLES.EXECUTOR, ROLES.REVIEWER),
    visibility(ROLES.REVIEWER, ROLES.EXECUTOR, ROLES.ORCHESTRATOR),
    visibility(ROLES.EXECUTOR, ROLES.REVIEWER, ROLES.OPTIMIZER),
    case("access.ownership", notes_of_two, ("agent", 2), ("role", 1)),
)  # fmt: skip
