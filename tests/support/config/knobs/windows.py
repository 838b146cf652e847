"""Knobs of the context window: what enters, in which order, how it is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any

from contract.entities import plain
from support.config.knobs.case import NO_VECTORS, Agent, Case, Place
from support.context.limits import set_limits
from support.context.world import ME, PLAIN, World, numbered

from caliber.config import CaliberConfig
from caliber.model.errors import InvalidValue, NotFound
from caliber.model.references import EntityRef, EntityType
from caliber.model.time import FixedClock
from caliber.model.trajectory import TurnRole
from caliber.model.trust import TrustLabel
from caliber.schema.relations import BY_NAME

SESSION = BY_NAME["session"]
NEAR, FAIR, FAR = [1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0]

BARE: dict[str, Any] = {
    **PLAIN,
    "search.keyword.similar_words": "none",
    # One byte a token, nothing but the texts: arithmetic that can be done in the head.
    "tokens.bytes_per_token": 1.0,
    "assembly.message_overhead_tokens": 0,
    "assembly.section_headers": False,
    "assembly.separator": "|",
    "assembly.section_shares": {},
    "assembly.fill_ratio": 1.0,
    "assembly.order": "priority",
    "assembly.overflow_policy": "exclude",
    "assembly.truncate_min_tokens": 4,
}


SHARED: dict[str, Any] = {
    "assembly.order": "stable_first",
    "assembly.evict_block_turns": 1,
}
"""The sections share the budget."""
RECALLED: dict[str, Any] = {**SHARED, "assembly.relevance": "search", "min_relevance_threshold": 0.0}
"""A search says what of earlier enters."""
NOTES: dict[str, Any] = {"memory": "note", "mode": {"kind": "full"}, "priority": 70}
"""A rule that brings the newest notes."""

# --- what is looked at -----------------------------------------------------------------------------


def names(window: Any) -> list[str]:
    return [section.name for section in window.sections]


def items(name: str) -> Callable[[Any], list[str]]:
    """Return an observation of a section's items, without their heads."""

    def show(window: Any) -> list[str]:
        found = next((section.content for section in window.sections if section.name == name), "")
        return [item.rpartition(": ")[2].removeprefix("- ") for item in found.split("|") if item]

    return show


def ids(name: str) -> Callable[[Any], list[int]]:
    """Return an observation of the ids of a section's records, as small numbers."""

    def show(window: Any) -> list[int]:
        found = [section for section in window.sections if section.name == name]
        return [source.id.int for section in found for source in section.sources]

    return show


def spoken(window: Any) -> list[str]:
    """List what the conversation holds."""
    return [message.content for message in window.messages if message.name != "memory" and message.role != "system"]


def recalled(window: Any) -> list[str]:
    """List what came from earlier."""
    found = next((section.content for section in window.sections if section.name == "recall"), "")
    return [item.rpartition("] ")[2] for item in found.removesuffix("|").split("|") if item]


def text(window: Any) -> str:
    return str(window.text)


def used(window: Any) -> int:
    return int(window.used_tokens)


def window_of(
    build: Callable[[World], Any], show: Callable[[Any], Any], some: Mapping[str, Any] | None = None, **call: Any
) -> Callable[[CaliberConfig, Place], Any]:
    """Return the observation of one window over a small store, in which only the last message is certain to enter."""

    def see(config: CaliberConfig, place: Place) -> Any:
        few = {"recent_exchanges": 0, "recent_from_tokens": 0, "spare_share": 0.0}
        set_limits(place.fixture("monkeypatch"), **{**few, **(some or {})})
        with closing(World(config)) as world:
            with world.at_once():
                build(world)
            return show(world.window(**call))

    return see


def case(
    path: str, see: Any, one: tuple[Any, Any], other: tuple[Any, Any], *more: tuple[Any, Any], **also: Any
) -> Case:
    knobs = {name.replace("__", "."): value for name, value in also.items()}
    return Case(path, see, one, other, {**BARE, **knobs}, more=more)


# --- what is in the stores -------------------------------------------------------------------------


def everything(world: World) -> None:
    world.turn("hello")
    world.note("noted")
    world.artifact("made")
    world.scope(summary="summed up")


def vectors(world: World) -> None:
    world.open_space()
    for number, vector in enumerate((NEAR, FAIR, FAR), 1):
        world.note(f"note {number}", vector, note_id=numbered(number))
        world.artifact(f"artifact {number}", vector, artifact_id=numbered(10 + number))


def several(world: World) -> None:
    for at in range(4):
        world.turn(f"turn {at}")
        world.note(f"note {at}")
        world.artifact(f"artifact {at}")
        world.scope(trajectory=None, summary=f"summary {at}")


def summed(world: World) -> None:
    """Scopes whose turns no window shows: their summaries stand for them."""
    for at in range(4):
        world.scope(trajectory=None, summary=f"summary {at}")


def turns(count: int) -> Callable[[World], None]:
    def build(world: World) -> None:
        for at in range(count):
            world.turn(f"turn {at}")

    return build


def earlier(world: World) -> None:
    """One sentence in each of some tasks, which differ in whose they are and how far they are trusted."""
    session, stranger = numbered(50), EntityRef(EntityType.USER, numbered(2))
    world.insert(SESSION, plain(SESSION, session_id=session))
    world.trajectory_id = world.trajectory(session=session)
    world.scope_id = world.scope()
    world.turn("here a zeppelin flew")
    world.turn("we saw it", TurnRole.ASSISTANT)
    world.turn("was there another?")
    for said, owner, whose, trust in (
        ("one more zeppelin of mine", ME, None, TrustLabel.TOOL),
        ("a zeppelin of our session", stranger, session, TrustLabel.TOOL),
        ("the zeppelin of a stranger", stranger, None, TrustLabel.TOOL),
        ("some zeppelin on the web", ME, None, TrustLabel.WEB),
    ):
        task = world.trajectory(initiator=owner, session=whose)
        world.turn(said, trajectory=task, scope=world.scope(trajectory=task), trust=trust)


def labelled(world: World) -> None:
    """One sentence in each of some tasks, each trusted less than the one before."""
    world.turn("which zeppelin?")
    for label in TrustLabel:
        task = world.trajectory()
        world.turn(f"a zeppelin of the {label}", trajectory=task, scope=world.scope(trajectory=task), trust=label)


def short_and_long(world: World) -> None:
    """Two notes: the longer one says it more often."""
    world.note("zeppelin zeppelin zeppelin " + "and many other words " * 20, note_id=numbered(1))
    world.note("zeppelin", note_id=numbered(2))


def alike(world: World) -> None:
    world.open_space()
    world.note("the zeppelin landed at noon", NEAR, note_id=numbered(1))
    world.note("at noon the zeppelin came down", [10, 1, 0, 0], note_id=numbered(2))
    world.note("a zeppelin was built", FAR, note_id=numbered(3))


def foreign(world: World) -> None:
    world.turn("Вчера мы перенесли резервные копии на другой сервер. " * 4)


def long_note(world: World) -> None:
    world.turn("hi")
    world.note("word " * 30)


def in_sentences(world: World) -> None:
    world.note("One is here. Two is here. Three is here.")


def said_in_sentences(world: World) -> None:
    world.turn("hi")
    in_sentences(world)


def full(world: World) -> None:
    world.turn("x" * 80)
    world.note("n")


def family(world: World) -> None:
    """Artifacts of two trajectories above: one used last, one more relevant, one next in both."""
    world.open_space()
    top = world.trajectory_id
    middle = world.trajectory(parent=top)
    world.artifact("of the top", NEAR, trajectory_id=top, artifact_id=numbered(1))
    world.artifact("of the middle", FAR, trajectory_id=middle, artifact_id=numbered(2))
    world.artifact("of the middle too", FAIR, trajectory_id=middle, artifact_id=numbered(3))
    world.used(EntityType.ARTIFACT, numbered(2))
    world.trajectory_id = world.trajectory(parent=middle)
    world.scope()


def large_family(world: World) -> None:
    """Artifacts of a trajectory above: one used last, one most relevant, one the second in both."""
    world.open_space()
    for number, vector in ((1, NEAR), (4, [1, 2, 0, 0]), (5, [1, 3, 0, 0]), (2, FAR), (3, FAIR)):
        world.artifact(f"artifact {number}", vector, artifact_id=numbered(number))
    world.used(EntityType.ARTIFACT, numbered(2))
    world.trajectory_id = world.trajectory(parent=world.trajectory_id)
    world.scope()


# --- through the public face -----------------------------------------------------------------------


def longest_allowed(config: CaliberConfig, place: Place) -> str:
    agent = Agent(place.open(config))
    agent.say("hello")
    try:
        return str(agent.memory.assemble_context(agent.trajectory_id, max_tokens=60).text)
    except InvalidValue:
        return "refused"


def kept_for(config: CaliberConfig, place: Place) -> list[int]:
    """After which of some minutes a window can still be replayed that was made at the beginning."""
    clock = FixedClock()
    agent = Agent(place.open(config, clock=clock))
    agent.say("hello")
    window = agent.memory.assemble_context(agent.trajectory_id)
    agent.memory.flush()
    found = []
    for minutes in (10, 60, 600):
        clock.advance(ms=60_000 * minutes)
        with suppress(NotFound):
            assert agent.memory.replay(window.window_id).text == window.text
            found.append(minutes)
    return found


BY_VECTOR = {"query": "q", "query_embedding": NEAR}
BY_PRIORITY = ["system", "persona", "user", "artifacts", "notes", "history"]


def priority(section: str) -> Case:
    """A section of the highest priority comes first, of the lowest last."""
    rest = [name for name in BY_PRIORITY if name != section]
    return case(
        f"section_priorities.{section}",
        window_of(everything, names),
        (500, [section, *rest]),
        (1, [*rest, section]),
        system_instructions="Be brief.",
        persona="A sage.",
    )


CASES = (
    Case(
        "token_budget",
        longest_allowed,
        (59, "refused"),
        (60, "user: hello"),
        {**BARE, **NO_VECTORS, "pcp.dosage.max_context_tokens": 50},
    ),
    case("system_instructions", window_of(everything, items("system")), ("Be brief.", ["Be brief."]), (None, [])),
    case("persona", window_of(everything, items("persona")), ("A sage.", ["A sage."]), (None, [])),
    case(
        "min_relevance_threshold",
        window_of(vectors, ids("artifacts"), **BY_VECTOR),
        (0.5, [11, 12]),
        (0.9, [11]),
    ),
    # --- how texts are counted
    case("tokens.bytes_per_token", window_of(turns(1), used), (1.0, 12), (3.0, 4)),
    case("tokens.estimator", window_of(turns(3), used), ("bytes", 38), ("calibrated", 15), ("exact", 17)),
    case(
        "tokens.vocabulary",
        window_of(foreign, used),
        ("o200k_base", 46),
        ("cl100k_base", 113),
        tokens__estimator="calibrated",
    ),
    # --- which section comes first
    *(priority(section) for section in BY_PRIORITY),
    case(
        "section_priorities.custom",
        window_of(everything, names, extra_sections={"rules": "Be kind."}),
        ([["rules", 500]], ["rules", "user", "artifacts", "notes", "history"]),
        ([["rules", 1]], ["user", "artifacts", "notes", "history", "rules"]),
    ),
    case(
        "assembly.order",
        window_of(everything, names),
        ("priority", ["user", "artifacts", "notes", "history"]),
        ("stable_first", ["history", "artifacts", "notes", "current"]),
    ),
    # --- how sections share a budget
    case(
        "assembly.section_shares",
        window_of(several, items("notes"), max_tokens=300),
        ({"notes": [0, 0.1]}, ["note 3"]),
        ({"notes": [0, 0.2]}, ["note 3", "note 2"]),
    ),
    Case(
        "assembly.evict_block_turns",
        window_of(turns(9), spoken, {"evict_share": 1.0}, max_tokens=80),
        (1, [f"turn {at}" for at in range(3, 9)]),
        (4, [f"turn {at}" for at in range(4, 9)]),
        {**BARE, **SHARED},
    ),
    # --- what comes back from earlier
    Case(
        "recall.from",
        window_of(earlier, recalled, query="zeppelin"),
        ("trajectory", []),
        ("session", ["a zeppelin of our session"]),
        {**BARE, **RECALLED},
        more=(
            ("owner", ["one more zeppelin of mine"]),
            ("tenant", ["one more zeppelin of mine", "a zeppelin of our session", "the zeppelin of a stranger"]),
        ),
    ),
    Case(
        "recall.trust",
        window_of(labelled, lambda window: len(recalled(window)), query="zeppelin"),
        ("system", 1),
        ("user", 2),
        {**BARE, **RECALLED},
        more=(("tool", 3), ("web", 4)),
    ),
    Case(
        "recall.limit",
        window_of(alike, ids("notes"), query="zeppelin"),
        (1, [3]),
        (2, [3, 1]),
        {**BARE, **RECALLED},
    ),
    Case(
        "recall.length_weight",
        window_of(short_and_long, ids("notes"), query="zeppelin"),
        (0.0, [1, 2]),
        (1.0, [2, 1]),
        {**BARE, **RECALLED},
    ),
    # --- what enters
    case("assembly.fill_ratio", window_of(full, names, max_tokens=120), (0.7, ["user"]), (1.0, ["user", "notes"])),
    Case(
        "assembly.relevance",
        window_of(vectors, ids("notes"), query="note 3", query_embedding=NEAR),
        ("vector", [1, 2]),
        ("search", [3, 1, 2]),
        {
            **{knob: value for knob, value in BARE.items() if knob != "vector"},
            "embedding_provider": {"provider_type": "hash", "model": "test", "dimensions": 4, "options": {}},
        },
    ),
    case(
        "injection_rules",
        window_of(everything, names),
        ([NOTES], ["user", "notes"]),
        ([{**NOTES, "memory": "artifact", "name": "made"}], ["user", "made"]),
    ),
    case("assembly.notes_without_query", window_of(vectors, ids("notes")), (1, [3]), (2, [3, 2])),
    case(
        "assembly.overflow_policy",
        window_of(said_in_sentences, items("notes"), max_tokens=45),
        ("exclude", []),
        ("truncate", ["One is here. Two..."]),
        ("compress", ["One is here."]),
    ),
    case(
        "assembly.truncate_min_tokens",
        window_of(long_note, names, max_tokens=60),
        (20, ["user", "notes"]),
        (55, ["user"]),
        assembly__overflow_policy="truncate",
    ),
    case("assembly.message_overhead_tokens", window_of(turns(3), used), (0, 38), (7, 38 + 3 * 7)),
    case(
        "assembly.separator",
        window_of(turns(2), text),
        ("|", "user: turn 0|user: turn 1"),
        ("; ", "user: turn 0; user: turn 1"),
    ),
    case(
        "assembly.section_headers",
        window_of(turns(1), text),
        (False, "user: turn 0"),
        (True, "# Conversation\nuser: turn 0"),
    ),
    # --- how much of each
    case("pcp.dosage.max_context_tokens", window_of(turns(4), used), (30, 25), (40, 38)),
    case(
        "pcp.dosage.max_scopes_in_window",
        window_of(summed, items("history")),
        (1, ["summary 3"]),
        (2, ["summary 3", "summary 2"]),
    ),
    case("pcp.dosage.max_artifacts_in_window", window_of(vectors, ids("artifacts")), (1, [13]), (2, [13, 12])),
    case("pcp.dosage.max_notes_in_window", window_of(vectors, ids("notes")), (1, [3]), (2, [3, 2])),
    # --- what ancestors give
    case("pcp.context_dag.enabled", window_of(family, ids("artifacts")), (False, []), (True, [3, 2, 1])),
    case("pcp.context_dag.max_depth", window_of(family, ids("artifacts")), (1, [3, 2]), (2, [3, 2, 1])),
    case(
        "pcp.context_dag.prune_strategy",
        window_of(large_family, ids("artifacts"), {"artifact_limit": 1}, **BY_VECTOR),
        ("lru", [2]),
        ("relevance", [1]),
        ("hybrid", [3]),
        min_relevance_threshold=0.0,
    ),
    # --- how long a window is kept
    Case(
        "context_window_persistence.kind",
        kept_for,
        ("ephemeral", []),
        ("permanent", [10, 60, 600]),
        {**BARE, **NO_VECTORS, "context_window_persistence": {"kind": "permanent"}, "retention.windows_ms": "forever"},
        more=(("ttl", [10, 60]),),
        beside=({}, {}, {"context_window_persistence.ttl_ms": "2h"}),
    ),
    Case(
        "context_window_persistence.ttl_ms",
        kept_for,
        ("30m", [10]),
        ("2h", [10, 60]),
        {**BARE, **NO_VECTORS},
    ),
)
