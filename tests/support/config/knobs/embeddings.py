"""Knobs of embedding: who gets vectors and when, what is embedded of a long text, and the space they live in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from contract.world import count
from support.config.knobs.case import Agent, Case, Place
from support.config.knobs.memories import left_after_two_days
from support.configs import DIMENSIONS, HASH_PROVIDER, policy
from support.inspection import inspect
from support.memories import FACT
from support.providers import CountingEmbeddings, ScriptedSummarizer, outage

import caliber
from caliber.config import CaliberConfig
from caliber.model.errors import CaliberError, MultipleErrors
from caliber.schema.relations import EMBEDDING

# --- who gets vectors --------------------------------------------------------------------------------


class Batches(CountingEmbeddings):
    """Remembers how many texts came at once, and how long each was."""

    def __init__(self, dimensions: int = DIMENSIONS) -> None:
        super().__init__(dimensions)
        self.batches: list[int] = []

    def embed_batch(self, texts: Sequence[str]) -> Any:
        self.batches.append(len(texts))
        return super().embed_batch(texts)


def vectors(memory: caliber.Caliber) -> int:
    return count(inspect(memory).store, EMBEDDING)


def one_of_each(kind: str) -> Callable[[CaliberConfig, Place], tuple[str, int]]:
    """Return the observation of writing during an outage of the provider, and what has a vector when it is over."""

    def see(config: CaliberConfig, place: Place) -> tuple[str, int]:
        provider = CountingEmbeddings()
        agent = Agent(place.open(config, embedding_provider=provider, summarization_provider=ScriptedSummarizer()))
        if kind == "summaries":
            agent.say("a turn")
        write = {
            "turns": lambda: agent.say("a turn"),
            "notes": lambda: agent.note("a note"),
            "artifacts": lambda: agent.keep("an artifact"),
            "todos": lambda: agent.memory.workspace.todos.add("a to-do"),
            "summaries": lambda: agent.memory.close_scope(agent.scope_id),
            "memories": lambda: agent.memory.records("fact").insert(subject="x", kind="claim", content="a fact"),
        }
        provider.failure = outage
        outcome = "written"
        try:
            write[kind]()
        except CaliberError:
            outcome = "refused"
        provider.failure = None
        agent.memory.flush()
        return outcome, count(inspect(agent.memory).store, EMBEDDING)

    return see


LONG = "one two three four. five six seven eight. nine ten eleven twelve."


def pieces(config: CaliberConfig, place: Place) -> tuple[int, int]:
    """Return the number of pieces of a long text that are embedded, and the number of its vectors."""
    provider = CountingEmbeddings()
    agent = Agent(place.open(config, embedding_provider=provider))
    with suppress(CaliberError):
        agent.note(LONG)
    return len(provider.asked), vectors(agent.memory)


# --- the space ---------------------------------------------------------------------------------------


class Plane:
    """Vectors of a plane that the texts themselves say."""

    model_id = "plane"
    dimensions = 2

    def embed(self, text: str) -> Any:
        return np.array([float(word) for word in text.rpartition(":")[2].split()], np.float32)

    def embed_batch(self, texts: Sequence[str]) -> Any:
        return np.stack([self.embed(text) for text in texts])


def nearest(config: CaliberConfig, place: Place) -> str:
    agent = Agent(place.open(config, embedding_provider=Plane()))
    for place_of in ("0.8 0.3", "0.3 0", "3 3"):
        agent.note(place_of)
    return str(agent.memory.search("1 0", limit=1).hits[0].content)


def space_taken(config: CaliberConfig, place: Place) -> str:
    """Return whether a provider of 16 dimensions fits."""
    try:
        place.open(config, embedding_provider=CountingEmbeddings(16))
    except MultipleErrors:
        return "refused"
    return "opened"


def vector_case(
    path: str,
    see: Any,
    one: tuple[Any, Any],
    other: tuple[Any, Any],
    *more: tuple[Any, Any],
    named: str = "",
    **also: Any,
) -> Case:
    given = {name.replace("__", "."): value for name, value in also.items()}
    quiet = {"embedding.embed": {"default": "off"}}
    base = {"search.keyword.similar_words": "none", "policies": [], "summarization_provider": None}
    return Case(path, see, one, other, {**base, **quiet, **given}, named=named, more=more)


def kind_case(kind: str, written: str, **also: Any) -> Case:
    """Return the case of one entry of ``embedding.embed``, with every other kind off."""
    named = f"embedding.embed.{kind}"
    return vector_case("embedding.embed", one_of_each(written), *WHEN, named=named, **QUICK, **also)


NOTES = {"embedding.embed.note": "commit"}
WHEN = (("off", ("written", 0)), ("commit", ("refused", 0)), ("behind", ("written", 1)))
QUICK = {"llm_retry_config.max_retries": 0}
CASES: tuple[Case, ...] = (
    vector_case("embedding_cache_retention", left_after_two_days("embedding_cache"), ("1d", 1), ("3d", 0), **NOTES),
    # --- who gets vectors
    kind_case("turn", "turns"),
    kind_case("note", "notes"),
    kind_case("artifact", "artifacts"),
    kind_case("todo", "todos"),
    kind_case("fact", "memories", memories=[FACT]),
    kind_case("default", "memories", memories=[FACT]),
    kind_case(
        "scope",
        "summaries",
        close__on_llm_failure="fail",
        policies=[policy("scope_close", {"action": "summarize", "target": "turn_buffer"})],
    ),
    # --- the space
    Case(
        "vector.dimensions",
        space_taken,
        (8, "refused"),
        (16, "opened"),
        {"search.keyword.similar_words": "none"},
        beside=({"embedding_provider.dimensions": 8}, {"embedding_provider.dimensions": 16}),
    ),
    vector_case(
        "vector.distance_metric",
        nearest,
        ("cosine", "0.3 0"),
        ("inner_product", "3 3"),
        ("l2", "0.8 0.3"),
        embedding_provider={**HASH_PROVIDER, "dimensions": 2},
        search__min_similarity=-1.0,
        search__weights={"vector": 1.0, "keyword": 0.0, "graph": 0.0, "importance": 0.0},
        **NOTES,
    ),
)
