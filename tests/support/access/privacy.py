"""Random stores of several principals, random reads, and comparison with stores without what a reader may not see.

Users, agents of roles and the application leave tasks, notes, records, edges and sessions in one store. For each reader
a second store is filled with what an independent rule lets it see.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from support.configs import policy
from support.databases import Backend
from support.evidence import scale
from support.inspection import inspect
from support.memories import FACT
from support.weeks import SetClock

import caliber
from caliber.config import profiles
from caliber.model import (
    AgentRole,
    ConflictStatus,
    ConflictType,
    Disagreement,
    Edge,
    EdgeRelation,
    EntityRef,
    Principal,
)
from caliber.model.errors import ConstraintViolation, NotFound, PermissionDenied, Unavailable
from caliber.model.references import ConflictId, EdgeId
from caliber.model.time import from_us
from caliber.model.trust import TrustLabel

USERS = [Principal.user(f"user {at}") for at in range(scale(4, 20))]
SERVED = USERS[:6]
"""The users for whom agents and the application read: each pair of eyes needs a store of its own to compare with."""
NARROW = Principal.agent("narrow", AgentRole.REVIEWER)
"""An agent that may read turns of its own tasks, and neither artifacts nor facts."""
AUDITOR = Principal.agent("auditor", AgentRole.OPTIMIZER)
"""An agent whose role may read no turn and no note."""
AGENTS = [
    Principal.agent("planner", AgentRole.ORCHESTRATOR),
    Principal.agent("worker", AgentRole.EXECUTOR),
    NARROW,
    AUDITOR,
]
GUEST = Principal.agent("guest")
PRINCIPALS = [*USERS, *AGENTS, GUEST]
SHIPPED = profiles.reference("a.db").principal
APPLICATION = SHIPPED.to_principal()
"""The principal of a handle by default. Reads without a user what is hidden from no person; nothing names it."""
WORDS = [
    "harbour", "lantern", "meadow", "orchid", "pepper", "quartz", "raven", "saddle", "timber", "velvet", "willow",
    "yonder", "zephyr", "amber",
]  # fmt: skip
KNOBS: dict[str, Any] = {
    "memories": [FACT],
    "policies": [policy("scope_close", {"action": "summarize", "target": "turn_buffer"})],
    "jobs__poll_ms": 0,
    "search__keyword__similar_words": "none",
    "write_behind__usage_enabled": False,
}
_TASKS = {"trajectory": "all", "scope": "all"}
_EVERY = dict.fromkeys(("trajectory", "scope", "turn", "artifact", "note", "fact"), "all")
MAY_READ = {NARROW: {**_TASKS, "turn": "own", "note": "all"}, AUDITOR: {**_TASKS, "artifact": "all", "fact": "own"}}
KNOBS["access__rights"] = {
    "agent:narrow": {"read": MAY_READ[NARROW], "write": _EVERY},
    "optimizer": {"read": MAY_READ[AUDITOR], "write": _EVERY},
}
DEFAULTS = {
    "orchestrator": {"orchestrator", "optimizer"},
    "executor": {"executor", "reviewer"},
    "reviewer": {"reviewer", "executor"},
    "optimizer": {"optimizer", "executor"},
}
INTERESTS = {
    "orchestrator": {"decision", "architecture", "coordination", "untyped"},
    "optimizer": {"decision", "pattern", "skill", "untyped"},
    "reviewer": {"bug", "test", "decision", "untyped"},
    "executor": {"implementation", "pattern", "bug", "untyped"},
}
TYPES = ["fact", "untyped", "decision", "pattern", "bug", "implementation", "coordination"]


@dataclass
class Step:
    """One write: who makes it, what it needs to be there, and who may see what it leaves behind."""

    do: Callable[[World], Any]
    seen_by: Callable[[Principal], bool]
    at: Any


@dataclass
class World:
    """A store, and what each step left in it, by the number of the step."""

    memory: caliber.Caliber
    clock: SetClock
    made: dict[int, Any] = field(default_factory=dict)
    handles: dict[Principal, caliber.Caliber] = field(default_factory=dict)
    done: int = 0
    """The steps of the plan that were looked at: whether they were done depends on who sees them."""

    def as_(self, principal: Principal | None) -> caliber.Caliber:
        """Return the one handle of a principal: what it remembers of earlier reads must not show."""
        if principal is None:
            return self.memory
        if principal not in self.handles:
            self.handles[principal] = self.memory.acting_as(principal)
        return self.handles[principal]


Seen = Callable[[frozenset[Principal]], bool]

GRANTED: dict[int, frozenset[Principal]] = {}
"""The principals that were granted the task, session or note of a step: they see it, and the records of the task."""


@contextmanager
def without_grants() -> Iterator[None]:
    """Let nobody see anything by a grant."""
    held = dict(GRANTED)
    GRANTED.clear()
    try:
        yield
    finally:
        GRANTED.update(held)


def steps(rng: random.Random, users: Sequence[Principal] = USERS, each: int = 60) -> list[Step]:
    """Return the writes of a store, in their order."""
    out: list[Step] = []
    sight: dict[int, Seen] = {}
    linked: set[tuple[int, ...]] = set()
    workers: dict[int, Principal] = {}
    above_of: dict[int, tuple[int, ...]] = {}  # by task: its session and the tasks above it
    places: dict[str, list[int]] = {"task": [], "session": [], "text": [], "fact": [], "scope": [], "stated": []}

    def add(do: Callable[[World], Any], seen: Seen, *kinds: str, kind: str = "", task: int | None = None) -> None:
        number = len(out)

        def granted_too(viewers: frozenset[Principal]) -> bool:
            if not may_read(viewers, kind, None if task is None else workers.get(task)):
                return False
            lines = (number, *above_of.get(number, ()))
            return seen(viewers) or any(not GRANTED.get(each, frozenset()).isdisjoint(viewers) for each in lines)

        out.append(Step(do, granted_too, number))
        sight[number] = granted_too
        for each in kinds:
            places[each].append(number)

    def words() -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 9)))

    def own(*who: Principal) -> Seen:
        for_people = any(one in USERS for one in who)
        return lambda viewers: any(one in viewers for one in who) or (APPLICATION in viewers and not for_people)

    for at in range(6 * len(users)):
        user, agent, goal = rng.choice(users), rng.choice(AGENTS), words()
        kind = rng.randrange(6) if at > 2 else at
        if kind == 0:
            add(functools.partial(start, None, goal, initiator=HOST), EVERYBODY, "task")
        elif kind in (1, 3):
            add(functools.partial(start, user, goal), own(user), "task")
        elif kind == 2:
            workers[len(out)] = agent
            add(functools.partial(start, agent, goal, user=user.id), own(user, agent), "task")
        elif kind == 4:
            above = rng.choice(places["task"])
            owners = frozenset(each for each in USERS if sight[above](frozenset((each,))))
            seen = EVERYBODY if len(owners) == len(USERS) else own(*owners)
            above_of[len(out)] = (above, *above_of.get(above, ()))
            add(functools.partial(start, None, goal, initiator=HOST, parent=above), seen, "task")
        else:
            session = len(out)
            add(lambda world, user=user: world.as_(user).start_session().session_id, own(user), "session")
            above_of[len(out)] = (session,)
            add(functools.partial(start, None, goal, initiator=HOST, session=session), own(user), "task")
    for _ in range(each * len(users)):
        task, text = rng.choice(places["task"]), words()
        kind = rng.randrange(11)
        if kind == 10 and len(places["stated"]) > 1:
            ends = rng.sample(places["stated"], 2)
            if tuple(sorted(ends)) not in linked:
                linked.add(tuple(sorted(ends)))
                add(
                    functools.partial(dispute, *ends),
                    lambda viewers, ends=ends: all(sight[end](viewers) for end in ends),
                )
        elif kind < 3:
            label = rng.choice(list(TrustLabel))
            add(functools.partial(say, task, text, trust=label), sight[task], "text", kind="turn", task=task)
        elif kind == 9:
            add(functools.partial(close, task), sight[task], "scope")
        elif kind == 3:
            add(functools.partial(keep, task, text), sight[task], "text", "stated", kind="artifact", task=task)
        elif kind == 4:
            add(functools.partial(fact, task, text), sight[task], "text", "fact", kind="fact", task=task)
        elif kind == 5:
            user = rng.choice(users)
            for_user = {"user": user.id} if rng.random() < 0.5 else {}
            add(
                functools.partial(note, None if for_user else user, text, **for_user),
                own(user),
                "text",
                "stated",
                kind="note",
            )
        elif kind == 6:
            agent = rng.choice(AGENTS)
            roles = DEFAULTS[agent.role.value] if agent.role else set()
            readers = [agent, *(each for each in AGENTS if each.role and each.role.value in roles)]
            add(functools.partial(note, agent, text), own(*readers), "text", "stated", kind="note")
        elif kind == 7:
            named = rng.sample(PRINCIPALS, 2)
            labels = [each.label for each in named]
            add(functools.partial(note, None, text, visible_to=labels), own(*named), "text", "stated", kind="note")
        elif rng.random() < 0.5 or len(places["text"]) < 2:
            add(functools.partial(note, None, text), EVERYBODY, "text", "stated", kind="note")
        else:
            ends = rng.sample(places["text"], 2)
            if tuple(ends) in linked:
                continue
            linked.add(tuple(ends))
            add(functools.partial(link, *ends), lambda viewers, ends=ends: all(sight[end](viewers) for end in ends))
    return out


def may_read(viewers: frozenset[Principal], kind: str, worker: Principal | None) -> bool:
    """Return whether the rights of every agent among the viewers let it read a kind of record in an agent's task."""
    for viewer in viewers & MAY_READ.keys():
        scope = MAY_READ[viewer].get(kind, "none") if kind else "all"
        if scope == "none" or (scope == "own" and worker != viewer):
            return False
    return True


def EVERYBODY(_: frozenset[Principal]) -> bool:  # noqa: N802
    return True


HOST = EntityRef.agent("host")


def start(by: Principal | None, goal: str, world: World, **options: Any) -> Any:
    above = {name: world.made[options.pop(name)] for name in ("parent", "session") if name in options}
    return world.as_(by).start_trajectory(goal, **options, **above).trajectory_id


def scope(world: World, task: int) -> uuid.UUID:
    found = world.memory.current_scope(world.made[task])
    return found.scope_id


def say(task: int, text: str, world: World, **options: Any) -> Any:
    return world.memory.append_turn(scope(world, task), role="user", content=text, **options).turn_id


def close(task: int, world: World) -> Any:
    """Close the scope of a task, which sums up its turns, and open the next one."""
    closed = world.memory.close_scope(scope(world, task))
    world.memory.open_scope(world.made[task])
    return closed.scope_id


def keep(task: int, text: str, world: World) -> Any:
    made = world.memory.create_artifact(
        scope(world, task), artifact_type="fact", content=text, extraction_method="explicit"
    )
    return made.artifact_id


def fact(task: int, text: str, world: World) -> Any:
    records = world.memory.records("fact")
    return records.insert(subject=text, kind="claim", content=text, trajectory=world.made[task]).record_id


def note(by: Principal | None, text: str, world: World, **options: Any) -> Any:
    note_type = TYPES[len(text) % len(TYPES)]
    about = {"entity": text.split()[0], "entity_type": "thing", "note_type": note_type, "confidence": 0.5}
    return world.as_(by).add_note(content=text, **about, **options).note_id


def link(one: int, other: int, world: World) -> Any:
    ends = [world.memory.get(world.made[each]) for each in (one, other)]
    refs = [
        EntityRef(kind_of(world, each), world.made[number]) for each, number in zip(ends, (one, other), strict=True)
    ]
    edge = Edge(EdgeId(uuid.uuid4()), *refs, EdgeRelation.LINK, 0.9, 0.9, from_us(world.clock.now_us()))
    world.memory.storage.edges.insert(edge)
    return edge.edge_id


def dispute(one: int, other: int, world: World) -> Any:
    """Record a conflict of two records, with the words of both as its reason."""
    ids = sorted((world.made[one], world.made[other]), key=lambda each: each.bytes)
    records = [world.memory.get(each) for each in ids]
    sides = [EntityRef(kind_of(world, record), key) for record, key in zip(records, ids, strict=True)]
    reason = " and ".join(str(record.content) for record in records)
    now = from_us(world.clock.now_us())
    what = ConflictId(uuid.uuid4()), ConflictType.CONTRADICTING_FACT, sides[0], sides[1], ConflictStatus.ESCALATED
    conflict = Disagreement(*what, reason, now, "system:admin", now)
    world.memory.storage.conflicts.insert(conflict)
    return conflict.conflict_id


def kind_of(world: World, record: Any) -> Any:
    name = type(record).__name__.lower()
    return name if name in ("turn", "artifact", "note") else world.memory.records("fact").relation.name


def fill(world: World, plan: Sequence[Step], viewers: frozenset[Principal] | None) -> World:
    """Do every step not yet looked at that ``viewers`` see, all of them for None; time goes on in either case."""
    if not world.done:
        for agent in (*AGENTS, GUEST):  # names of agents are no secret
            world.memory.identities.resolve(agent.id, kind="agent")
    due = plan[world.done :]
    for step in due:
        world.clock.at += timedelta(seconds=1)
        if viewers is None or step.seen_by(viewers):
            world.made[step.at] = step.do(world)
    world.done = len(plan)
    if due:
        world.memory.flush()
    return world


# --- reading ---------------------------------------------------------------------------------------

_COUNTED = re.compile(r"version=\d+|(updated|last_activity)_at=datetime[^)]*\)")
"""That, and when, something was written to a task or scope shows in it."""
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def plain(value: Any) -> str:
    """Return a value as text, without ids, ordinals and positions, in fields and in words."""
    return re.sub(r"(ordinal|position|sequence|conflict)([= ])\d+", r"\1\2#", _ID.sub("#", repr(value)))


def told(ask: Callable[[], Any]) -> str:
    try:
        return plain(ask())
    except (NotFound, PermissionDenied, ConstraintViolation, Unavailable) as error:
        return plain(str(error))


@dataclass
class Question:
    """One read: who asks, what, and whose eyes it is answered with."""

    by: Principal
    ask: Callable[[World], str]
    viewers: frozenset[Principal]
    what: str


def hits(result: Any) -> Any:
    found = [(hit.kind, hit.content, hit.score, hit.breakdown, hit.found_by) for hit in result.hits]
    return found, result.status, result.below_floor, result.reason


class Done:
    """The steps that were done, and which of them began tasks and kept artifacts."""

    def __init__(self, plan: list[Step]) -> None:
        self.plan = plan
        self.tasks: list[int] = []
        self.artifacts: dict[int, list[int]] = {}
        for step in plan:
            if isinstance(step.do, functools.partial) and step.do.func is start:
                self.tasks.append(step.at)
            elif isinstance(step.do, functools.partial) and step.do.func is keep:
                self.artifacts.setdefault(step.do.args[0], []).append(step.at)


def question(rng: random.Random, done: Done) -> Question:
    """Return a random read whose answer can be compared."""
    while True:
        one = _question(rng, done)
        if len(one.viewers) == 1 or not one.viewers.isdisjoint(SERVED):
            return one


def _question(rng: random.Random, done: Done) -> Question:
    by = rng.choice([*PRINCIPALS, APPLICATION])
    alone = frozenset((by,))
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 3)))
    number = rng.choice(done.plan).at
    task = rng.choice(done.tasks)
    artifact = rng.choice(done.artifacts.get(task) or [-1])

    def named(world: World, at: int) -> uuid.UUID:
        return world.made.get(at, uuid.UUID(int=at + 1))

    def window(world: World) -> str:
        made = world.as_(by).assemble_context(named(world, task), query=words, max_tokens=rng_tokens)
        reasons = world.as_(by).explain(made.window_id, user=eyes)
        counts = {name: len(value) for name, value in reasons.items() if isinstance(value, list)}
        again = world.as_(by).replay(made.window_id, user=eyes)
        # Of what was cut off, how much there was counts too.
        return repr((made.text, made.used_tokens, counts)) + plain((again.text, reasons["cut_offs"]))

    def excluded(world: World) -> str:
        memory = world.as_(by)
        made = memory.assemble_context(named(world, task), query=words, max_tokens=300)
        return told(lambda: memory.explain(made.window_id, exclusion=named(world, number), user=eyes))

    def unnamed(world: World) -> str:
        made = world.as_(by).assemble_context(named(world, task), query=words, max_tokens=300)
        return told(lambda: len(world.as_(by).explain(made.window_id)))

    def reduced(world: World) -> str:
        """Return a window within a smaller limit, its page, and what differs from one that holds more."""
        memory = world.as_(by)
        small, large = (
            memory.assemble_context(named(world, task), query=words, max_tokens=limit) for limit in (300, 2_000)
        )
        made = memory.pcp.apply_dosage(small, max_tokens=120)
        page = _TIMED.sub("", memory.windows.html(small.window_id, user=eyes))
        change = memory.windows.diff(small.window_id, large.window_id, user=eyes)
        assert change.apply(small.text) == large.text
        return repr((made.text, made.used_tokens)) + page

    def checked(world: World) -> Any:
        found = world.as_(by).pcp.validate(named(world, task))
        return sorted(plain(each) for each in found.issues), found.valid, found.checked

    def state(world: World) -> Any:
        return world.as_(by).pcp.task_state(named(world, task))

    def summary(world: World) -> Any:
        found = world.as_(by).pcp.trace_summary(named(world, task))
        # Other windows were asked of the one store than of the other.
        return dataclasses.replace(found, duration_ms=0, context_assemblies=0, total_tokens_input=0, errors=0)

    def origin(world: World) -> Any:
        return world.as_(by).pcp.provenance(named(world, artifact))

    def figures(world: World) -> Any:
        found = world.as_(by).admin.stats()
        return sorted(found["records"].items()) if serves else found

    def records(world: World) -> Any:
        found = world.as_(by).records("fact")
        with_task = {"trajectory_id": named(world, task)}
        return [each.content for each in found.find(**with_task)], found.count(**with_task)

    def disputed(world: World) -> Any:
        return world.as_(by).conflicts.list(task=named(world, task), limit=500)

    def traced(world: World, for_user: str | None) -> Any:
        return events(world.as_(by).trace(named(world, task), limit=500, user=for_user), by)

    rng_tokens = rng.choice((200, 600, 2_000))
    served = done.plan[task].seen_by
    with without_grants():
        users = frozenset(each for each in USERS if served(frozenset((each,))))
        works = served(alone)
    # A task that one user alone sees is that user's: whoever works on it reads with the user's eyes too.
    # The application works on every task. Who was granted the task reads with its own eyes.
    serves = by is APPLICATION
    together = alone | users if len(users) == 1 and (works or serves) else alone
    reads = by.role.value if by.role else rng.choice(list(INTERESTS))

    def typed(shown: set[str]) -> None:
        if not shown <= INTERESTS[reads]:
            raise Leak("types of a view", by.label, sorted(shown))

    def viewed(world: World) -> str:
        found = world.as_(by).agents.view(reads).search(words, limit=8)
        typed({world.memory.get(hit.id).note_type.value for hit in found.hits})
        return plain(hits(found))

    def listed(world: World) -> str:
        found = world.as_(by).agents.view(reads).list_recent(limit=20)
        typed({each.note_type.value for each in found})
        return plain([(each.content, each.note_type) for each in found])

    eyes = next(iter(users)).id if serves and len(users) == 1 else None
    typo = words[:3] + words[4:] if len(words) > 5 else words
    user = by if by in USERS else rng.choice(SERVED)
    pair = alone | {user}
    in_task = together if serves else alone
    asks: list[tuple[str, Callable[[World], str], frozenset[Principal]]] = [
        ("search", lambda world: plain(hits(world.as_(by).search(words, limit=8))), alone),
        ("search for", lambda world: plain(hits(world.as_(by).search(words, limit=8, user=user.id))), pair),
        ("get for", lambda world: told(lambda: world.as_(by).get(named(world, number), user=user.id)), pair),
        ("search of a misspelt word", lambda world: plain(hits(world.as_(by).search(typo, limit=8))), alone),
        ("recent", lambda world: plain(hits(world.as_(by).search("", limit=8))), alone),
        ("get", lambda world: told(lambda: world.as_(by).get(named(world, number))), alone),
        ("window", lambda world: told(lambda: window(world)), together),
        ("excluded", lambda world: told(lambda: excluded(world)), together),
        ("counts", lambda world: plain(figures(world)), alone),
        ("count", lambda world: plain(world.as_(by).records("fact").count()), alone),
        ("find", lambda world: plain([each.content for each in world.as_(by).records("fact").find(limit=20)]), alone),
        ("trace", lambda world: told(lambda: traced(world, None)), alone),
        ("trace for", lambda world: told(lambda: traced(world, user.id)), pair),
        ("scope", lambda world: told(lambda: world.as_(by).current_scope(named(world, task))), in_task),
        ("records of a task", lambda world: told(lambda: records(world)), in_task),
        ("view", viewed, alone),
        ("recent of a view", listed, alone),
        ("conflicts", lambda world: plain(world.as_(by).conflicts.list(limit=500)), alone),
        ("conflicts for", lambda world: plain(world.as_(by).conflicts.list(limit=500, user=user.id)), pair),
        ("conflicts of a task", lambda world: told(lambda: disputed(world)), in_task),
        ("state of a task", lambda world: told(lambda: state(world)), in_task),
        ("summary of a trace", lambda world: told(lambda: summary(world)), in_task),
        ("origin of an artifact", lambda world: told(lambda: origin(world)), in_task),
        ("check of a task", lambda world: told(lambda: checked(world)), in_task),
        ("dosage, page and diff", lambda world: told(lambda: reduced(world)), together),
        ("explained without its user", lambda world: told(lambda: unnamed(world)), together),
    ]
    # A window takes as long as ten other reads.
    what, ask, viewers = rng.choices(asks, [2 if each[0] in _WINDOWS else 4 for each in asks])[0]
    if viewers & MAY_READ.keys() and what in _COUNTING:
        return Question(by, lambda world: _COUNTED.sub("", ask(world)), viewers, what)
    return Question(by, ask, viewers, what)


_WINDOWS = {"window", "excluded", "explained without its user", "dosage, page and diff"}
_COUNTING = {"get", "get for", "scope", "state of a task", "origin of an artifact"}
_TIMED = re.compile(r"[0-9.]+ (ms|µs|s)\b|[0-9a-f]{16,}|Store position [\d,]+|ordinal \d+|conflict \d+ is")
"""Durations, hashes, ordinals and the position of the store on a page."""


def events(found: Any, by: Principal) -> Any:
    """Return the type and payload of each event, without those that ``by`` caused by questions.

    The questions of the one store were others than those of the other.
    """
    asked = {"context_assemble", "validation_run"}
    named = [
        (str(each.event_type), each.payload)
        for each in found
        if str(each.event_type) not in asked
        and not (each.principal == by.label and each.payload.get("error") == "critical_sections_cut")
    ]
    # Policies run on a connection of their own, whose numbers of events are others.
    runs = [each for each in named if each[0] == "policy_execute"]
    return [each for each in named if each not in runs], sorted(runs, key=repr)


class Leak(AssertionError):
    """A read that differs: who asked what, whose eyes it was answered with, the answer and the right one."""


def check(open_store: Callable[[], World], reads: int, rng: random.Random, plan: list[Step]) -> dict[str, int]:
    """Compare random reads with those of stores that never held what may not be seen; return the reads of each sort."""
    so_far = Done(plan[: len(plan) // 2])
    whole = fill(open_store(), so_far.plan, None)
    others: dict[frozenset[Principal], World] = {}
    asked: dict[str, int] = {}
    try:
        for at in range(reads):
            done = len(so_far.plan)
            if at % 5 == 4 and done < len(plan):
                so_far = Done(plan[: done + max(1, 10 * len(plan) // reads)])
                fill(whole, so_far.plan, None)
            if rng.random() < 0.02:
                inspect(whole.memory).resident.compact()
            one = question(rng, so_far)
            if one.viewers not in others:
                others[one.viewers] = open_store()
            # The store to compare with is brought up to date when it is asked: most are asked seldom.
            other = fill(others[one.viewers], so_far.plan, one.viewers)
            asked[one.what] = asked.get(one.what, 0) + 1
            compare(one, whole, other)
    finally:
        for world in [whole, *others.values()]:
            world.handles[APPLICATION].close()
    return asked


def compare(one: Question, whole: World, other: World) -> None:
    """Ask both stores. Raises: Leak when the answers differ."""
    got, expected = one.ask(whole), one.ask(other)
    if got != expected:
        raise Leak(one.what, one.by.label, sorted(each.label for each in one.viewers), got, expected)


def opener(backend: Backend, another: Callable[[str], Backend], mode: str, **knobs: Any) -> Callable[[], World]:
    """Return a function that opens stores of one kind of database, each its own."""

    def opened() -> World:
        clock, made = SetClock(), another(backend.name)
        settings = made.config(search__mode=mode, **KNOBS | knobs, principal=SHIPPED.model_dump(mode="json"))
        memory = made.open(settings, clock=clock)
        return World(memory.acting_as(Principal.admin()), clock, handles={APPLICATION: memory})

    return opened
