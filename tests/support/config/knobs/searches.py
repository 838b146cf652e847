"""Knobs of search: what each leg finds, what moves a hit, in which order hits come."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import numpy as np
from support.config.knobs.case import FILE, NO_VECTORS, Agent, Case, Place
from support.configs import DIMENSIONS
from support.context.world import World, numbered
from support.inspection import inspect
from support.kinds import KINDS

from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.config import CaliberConfig
from caliber.config.cron import zone_of
from caliber.config.profiles.search import search_settings
from caliber.embedding.service import Embeddings
from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.model.knowledge import Edge, EdgeRelation
from caliber.model.references import EntityRef, EntityType
from caliber.model.time import from_us
from caliber.schema.relations import EDGE
from caliber.search.opening import SearchEngine
from caliber.search.request import Asked, Outcome, Request
from caliber.text.dates import Moment

NEAR, FAIR, FAR = [1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0]
DAY_MS = 86_400_000
NOW_US = 1_700_000_000_000_000
"""14 November 2023."""

WORDS = {"vector": 0.0, "keyword": 1.0, "graph": 0.0, "importance": 0.0}
VECTORS = {"vector": 1.0, "keyword": 0.0, "graph": 0.0, "importance": 0.0}
SPACE = "test@4"
"""The embedding space of ``NEAR``, ``FAIR`` and ``FAR``."""

BOTH = {"vector": 0.5, "keyword": 0.5, "graph": 0.0, "importance": 0.0}
LINKS = {"vector": 0.0, "keyword": 0.5, "graph": 0.5, "importance": 0.0}

BARE: dict[str, Any] = {
    "search": {
        **search_settings("sources"),
        "weights": WORDS,
        "boosts": {**search_settings("sources")["boosts"], "exact": 0.0},
        "graph": {"conversation": False},
    },
    "embedding_provider": {"provider_type": "hash", "model": "test", "dimensions": 4, "options": {}},
    "summarization_provider": None,
    "policies": [],
}


class _Everything:
    """Every record may be seen."""

    def over(self, _: Any) -> None:
        return None


def found(outcome: Outcome) -> list[int]:
    return [hit.relation.entity_id(hit.row).int for hit in outcome.found]


def scores(outcome: Outcome) -> list[float]:
    return [round(hit.score, 3) for hit in outcome.found]


def parts(name: str) -> Callable[[Outcome], dict[int, float]]:
    """Return an observation of one part's share in the score of each hit."""
    return lambda outcome: {
        key: round(hit.breakdown[name], 3)
        for key, hit in zip(found(outcome), outcome.found, strict=True)
        if name in hit.breakdown
    }


def search(
    build: Callable[[World], Any],
    text: str,
    show: Callable[[Outcome], Any] = found,
    *,
    vector: Any = None,
    limit: int = 10,
) -> Callable[[CaliberConfig, Place], Any]:
    """Return the observation of one search over a small store."""

    def see(config: CaliberConfig, _: Place) -> Any:
        with closing(World(config)) as world:
            world.open_space()
            with world.at_once():
                build(world)
            now = world.clock.now_us() + 1_000_000
            request = Request(
                snapshot=world.memory.snapshot,
                text=text,
                vector=None if vector is None else np.asarray(vector, np.float32),
                without_vector="not asked for" if vector is None else None,
                space_id=None if world.space is None else world.space.space_id,
                kinds=KINDS,
                limit=limit,
                readers=_Everything(),
                as_of_us=now,
                now_us=now,
                moment=Moment(now, zone_of(config.time_zone)),
            )
            return show(world.searcher(config).search(request))

    return see


def case(knob: str, see: Any, one: tuple[Any, Any], other: tuple[Any, Any], **also: Any) -> Case:
    given = {f"search.{name.replace('__', '.')}": value for name, value in also.items()}
    return Case(f"search.{knob}", see, one, other, {**BARE, **given})


# --- what is in the stores -------------------------------------------------------------------------


def notes(*texts: str, vectors: Any = None, **options: Any) -> Callable[[World], None]:
    """Return a function that writes notes 1, 2, 3 and so on."""

    def build(world: World) -> None:
        for number, text in enumerate(texts, 1):
            vector = None if vectors is None else vectors[number - 1]
            own = {name: values[number - 1] for name, values in options.items()}
            world.note(text, vector, note_id=numbered(number), **own)

    return build


def turns(*texts: str) -> Callable[[World], None]:
    """Return a function that writes turns, which are found as 0, 1, 2 and so on."""

    def build(world: World) -> None:
        for text in texts:
            world.turn(text)

    return build


def places(outcome: Outcome) -> list[int]:
    """The numbers of the turns that were found."""
    return [int(hit.relation.column("ordinal")[hit.row]) - 1 for hit in outcome.found]


def link(world: World, one: int, other: int) -> None:
    ends = [EntityRef(EntityType.NOTE, numbered(at)) for at in (one, other)]
    world.insert(EDGE, Edge(numbered(100 + one), *ends, EdgeRelation.SUPPORTS, 1.0, 1.0, from_us(NOW_US)))


def chain(world: World) -> None:
    """Notes linked one to the next; the first has the word."""
    notes("zeppelin", "two", "three", "four")(world)
    for one in (1, 2, 3):
        link(world, one, one + 1)


# --- through the public face -----------------------------------------------------------------------


def opened(config: CaliberConfig, place: Place) -> Agent:
    agent = Agent(place.open(config))
    for number in range(4):
        agent.note(f"zeppelin number {number}")
    return agent


def why_degraded(config: CaliberConfig, place: Place) -> str | None:
    reason = opened(config, place).memory.search("zeppelin").reason
    return None if reason is None else str(reason)


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


def plain(knob: str, see: Any, one: tuple[Any, Any], other: tuple[Any, Any], **also: Any) -> Case:
    return Case(f"search.{knob}", see, one, other, {**NO_VECTORS, **also})


LAKES = notes("lake lake lake lake lake lake lake lake lake", "lake boat cold deep wide", "of other things")
LENGTHS = notes("lake lake and a great many other words that nobody has asked about", "lake", "of other things")
DATED = {
    "occurred_at": [
        datetime(2023, 11, 6, tzinfo=UTC),
        datetime(2023, 6, 20, tzinfo=UTC),
        datetime(2023, 5, 8, tzinfo=UTC),
    ]
}
MAY = notes("zeppelin one", "zeppelin two", "zeppelin three", **DATED)
NEARBY = notes("one", "two", "three", vectors=[NEAR, FAIR, FAR])
VESSELS = notes("the ship sailed", "the vessel sank", "a boat left", "a recipe")

BY_EACH = notes("zeppelin", "two", vectors=[FAIR, NEAR])
IMPORTANT = notes("zeppelin boat", "zeppelin", "lunch", importance=[4, 6, 5])


def weight(leg: str, rest: str, see: Any, light: Any, heavy: Any) -> Case:
    """A leg counts for a tenth or for nine, and another for the rest."""
    beside = tuple({f"search.weights.{rest}": 1.0 - value} for value in (0.1, 0.9))
    weights = dict.fromkeys(WORDS, 0.0)
    also = {**BARE, "search.weights": weights}
    return Case(f"search.weights.{leg}", see, (0.1, light), (0.9, heavy), also, beside=(beside[0], beside[1]))


CASES: tuple[Case, ...] = (
    # --- which hits
    plain("mode", why_degraded, ("resident", None), ("backend", "not_resident"), **{"storage.path": FILE}),
    Case(
        "search.candidate_factor",
        records_read,
        (1, 1),
        (3, 3),
        {"search.mode": "backend", "search.vector_candidates": 1, "search.keyword.similar_words": "none"},
    ),
    # --- vectors
    case(
        "vector_candidates",
        search(NEARBY, "?", parts("vector"), vector=NEAR),
        (1, {1: 1.0, 2: 0.0}),
        (2, {1: 1.0, 2: 0.707}),
        weights=VECTORS,
    ),
    case("min_similarity", search(NEARBY, "?", vector=NEAR), (0.9, [1]), (0.5, [1, 2]), weights=VECTORS),
    case(
        "normalisation",
        search(NEARBY, "?", scores, vector=NEAR),
        ("peak", [1.0, 0.0]),
        ("saturation", [1.0, 0.707]),
        weights=VECTORS,
    ),
    # --- the floor
    case(
        "floor.words",
        search(notes("zeppelin", "boat"), "zeppelin glacier", vector=NEAR),
        (0.2, [1]),
        (0.9, []),
        weights=BOTH,
    ),
    case(
        "floor.similarity",
        search(NEARBY, "?", vector=NEAR),
        ({}, [1, 2]),
        ({SPACE: 0.9}, [1]),
        weights=VECTORS,
        normalisation="peak",
    ),
    # --- words
    case("keyword.language", search(notes("the lakes are cold", "a recipe"), "lake"), ("none", []), ("english", [1])),
    case("keyword.k1", search(notes("lake", "lake lake"), "lake"), (0.0, [1, 2]), (10.0, [2, 1])),
    case("keyword.b", search(LENGTHS, "lake"), (0.0, [1, 2]), (1.0, [2, 1])),
    case(
        "keyword.saturate", search(LAKES, "lake boat"), (0.0, [1, 2]), (0.1, [2, 1]), keyword__k1=10.0, keyword__b=0.0
    ),
    case(
        "keyword.neighbour_boost",
        search(turns("zeppelin", "b", "c", "d"), "zeppelin", places),
        (0.0, [0]),
        (0.5, [0, 1, 2]),
    ),
    case("keyword.similar_words", search(VESSELS, "boat"), ("none", [3]), ("wordllama-l2-supercat", [3, 1, 2])),
    # --- what is joined
    weight("vector", "keyword", search(BY_EACH, "zeppelin", vector=NEAR), [1, 2], [2, 1]),
    weight("keyword", "vector", search(BY_EACH, "zeppelin", vector=NEAR), [2, 1], [1, 2]),
    weight("graph", "keyword", search(chain, "zeppelin", parts("graph")), {2: 0.027, 3: 0.014}, {2: 0.246, 3: 0.123}),
    weight("importance", "keyword", search(IMPORTANT, "zeppelin boat"), [1, 2], [2, 1]),
    case("fusion", search(LAKES, "lake", scores), ("weighted", [0.462, 0.329]), ("rrf", [1.0, 0.984])),
    case(
        "diversity",
        search(notes("zeppelin", "zeppelin", "zeppelin x", vectors=[NEAR, NEAR, FAR]), "zeppelin", vector=NEAR),
        (0.0, [1, 2, 3]),
        (0.9, [1, 3, 2]),
    ),
    # --- what moves a hit
    case(
        "boosts.mentioned",
        search(notes("zeppelin", "zeppelin", entity=["build", "Ines"]), "zeppelin of Ines", parts("mentioned")),
        (0.0, {}),
        (1.0, {2: 0.5}),
    ),
    Case(
        "time_zone",
        search(MAY, "zeppelin on 2023-05-08", lambda outcome: outcome.query and outcome.query.when.first_us),
        ("UTC", 1_683_504_000_000_000),
        ("Asia/Tokyo", 1_683_471_600_000_000),
        BARE,
    ),
    case("boosts.date", search(MAY, "my zeppelin in May 2023"), (0.0, [1, 2, 3]), (1.0, [3, 1, 2])),
    case(
        "boosts.date_slack_ms",
        search(MAY, "my zeppelin in May 2023", parts("date")),
        (DAY_MS, {3: 0.5}),
        (100 * DAY_MS, {3: 0.5, 2: 0.405}),
        boosts__date=1.0,
    ),
    case(
        "boosts.time",
        search(notes("zeppelin", "zeppelin on Friday"), "when did the zeppelin land?"),
        (0.0, [1, 2]),
        (1.0, [2, 1]),
    ),
    case(
        "boosts.exact",
        search(notes("lake and boat", "boat lake lake"), '"lake and boat" lake'),
        (0.0, [2, 1]),
        (1.0, [1, 2]),
    ),
    case("boosts.question", search(notes("zeppelin?", "zeppelin"), "zeppelin"), (0.0, [1, 2]), (-1.0, [2, 1])),
    case(
        "boosts.recency",
        search(notes("zeppelin", "zeppelin", occurred_at=DATED["occurred_at"][1::-1]), "zeppelin"),
        (0.0, [1, 2]),
        (1.0, [2, 1]),
    ),
    case(
        "boosts.recency_half_life_ms",
        search(MAY, "zeppelin", parts("recency")),
        (DAY_MS, {1: 0.05, 2: 0.003, 3: 0.003}),
        (100 * DAY_MS, {1: 0.459, 2: 0.202, 3: 0.172}),
        boosts__recency=1.0,
    ),
    # --- links
    case(
        "graph.conversation",
        search(turns("zeppelin", "b", "c"), "zeppelin", places),
        (False, [0]),
        (True, [0, 1, 2]),
        weights=LINKS,
    ),
)
