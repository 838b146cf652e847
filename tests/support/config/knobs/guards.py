"""Knobs of the guard of memory: what a validation finds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from support.config.knobs.case import Agent, Case, Place, works

from caliber.config import CaliberConfig
from caliber.model.access import Principal
from caliber.model.time import FixedClock

DAY_MS = 86_400_000
GROUNDING = {
    "require_source_for_facts": False,
    "confidence_threshold": 0.0,
    "stale_data_max_age_ms": 30 * DAY_MS,
    "conflict_resolution": "manual",
}
PORTS = ("The staging Redis instance listens on port 6379.", "The staging Redis instance listens on port 6380.")


def issues(config: CaliberConfig, place: Place, **options: Any) -> list[str]:
    """Return the issues of a task with a note of ten days ago that is likely, and names the task."""
    clock = FixedClock()
    agent = Agent(place.open(config, clock=clock, **options))
    for content in PORTS:
        agent.keep(content, source_turn=None, confidence=0.6)
    agent.memory.flush()
    clock.advance(ms=10 * DAY_MS)
    found = agent.memory.pcp.validate(agent.trajectory_id)
    return sorted({f"{each.severity} {each.issue_type}" for each in found.issues})


def case(
    path: str, one: tuple[Any, Any], other: tuple[Any, Any], see: Callable[..., Any] = issues, **given: Any
) -> Case:
    settings = {name.replace("__", "."): value for name, value in given.items()}
    fixed = {f"pcp.grounding.{name}": value for name, value in GROUNDING.items()}
    return Case(path, see, one, other, {"policies": [], "summarization_provider": None, **fixed, **settings})


def kept(config: CaliberConfig, place: Place) -> str:
    """Return which of two facts recording their contradiction keeps: the older one is surer."""
    agent = Agent(place.open(config, clock=(clock := FixedClock())))
    sides = {}
    for port, name in zip(PORTS, ("surer", "newer"), strict=True):
        sides[agent.keep(port, source_turn=None, confidence=0.9 if name == "surer" else 0.6).artifact_id] = name
        clock.advance(ms=1)
    agent.memory.flush()
    (conflict,) = agent.memory.pcp.validate(agent.trajectory_id, record=True).conflicts
    return str(conflict.status) if conflict.kept is None else sides[conflict.kept.id]


def at_odds(config: CaliberConfig, place: Place) -> list[str]:
    """Return the conflicts of two agents that decide, write and lock the same."""
    memory = place.open(config)
    first, second = (memory.acting_as(Principal.agent(name)) for name in ("ada", "bob"))
    for handle, content in zip((first, second), PORTS, strict=True):
        handle.add_note(entity="redis", entity_type="service", note_type="decision", content=content, confidence=0.9)
    value = first.workspace.values.set("plan", 1)
    second.workspace.values.set("plan", 2)
    works(lambda: first.workspace.values.set("plan", 3, version=value.version))
    first.agents.locks.acquire("plan")
    works(lambda: second.agents.locks.acquire("plan"))
    return [str(each.conflict_type) for each in memory.conflicts.list()]


def linted(config: CaliberConfig, place: Place) -> list[str]:
    """Return the issues of an artifact with tags, nearly the same as four others."""
    agent = Agent(place.open(config))
    words = "Tags: misc\n" + " ".join(f"word{number}" for number in range(40))
    agent.keep(words + " and more that is said about the same things at the end")
    for number in range(3):
        agent.keep(words + "." * number)
    artifact = agent.keep(words + "!")
    agent.memory.flush()
    found = agent.memory.pcp.lint(artifact.artifact_id)
    return [f"{each.issue_type} {len(each.entities)}" for each in found.issues]


def written(config: CaliberConfig, place: Place) -> Any:
    """Return the issues that storing broken JSON leaves in the event log, or the error."""
    agent = Agent(place.open(config))
    done = works(lambda: agent.keep("{", schema_version="json"))
    agent.memory.flush()
    events = agent.memory.trace(agent.trajectory_id, event_type="validation_run")
    return done if done != "done" else [name for event in events for name in event.payload.keys() - {"id", "valid"}]


LINT = {
    "linter_enabled": True,
    "vocabulary_enforcement": False,
    "vocabulary": [],
    "duplicate_detection": False,
    "duplicate_similarity": 0.99,
    "max_artifact_size": 100,
}


def lint_case(name: str, one: tuple[Any, Any], other: tuple[Any, Any], **given: Any) -> Case:
    fixed = {f"pcp.anti_sprawl.{knob}": value for knob, value in {**LINT, **given}.items()}
    return Case(
        f"pcp.anti_sprawl.{name}", linted, one, other, {"policies": [], "summarization_provider": None, **fixed}
    )


CONTRADICTION = "warning contradiction"

CASES = (
    Case(
        "agents.contention_ms",
        at_odds,
        (None, ["incompatible_decision", "concurrent_write"]),
        (0, ["incompatible_decision", "concurrent_write", "resource_contention"]),
        {"policies": [], "embedding_provider": None},
    ),
    case("contradiction_threshold", (0.5, [CONTRADICTION]), (1.0, [])),
    case("pcp.grounding.confidence_threshold", (0.5, [CONTRADICTION]), (0.7, ["info low_confidence", CONTRADICTION])),
    case(
        "pcp.grounding.require_source_for_facts",
        (False, [CONTRADICTION]),
        (True, ["error missing_source", CONTRADICTION]),
    ),
    case(
        "pcp.grounding.stale_data_max_age_ms",
        (11 * DAY_MS, [CONTRADICTION]),
        (9 * DAY_MS, [CONTRADICTION, "warning stale_data"]),
    ),
    dataclasses.replace(
        case("pcp.grounding.conflict_resolution", ("newest", "newer"), ("highest_confidence", "surer"), see=kept),
        more=(("manual", "escalated"),),
    ),
    lint_case("linter_enabled", (False, []), (True, ["oversized 1"])),
    lint_case("max_artifact_size", (100, ["oversized 1"]), (1_000, [])),
    lint_case(
        "vocabulary_enforcement",
        (False, []),
        (True, ["vocabulary_violation 1"]),
        vocabulary=["other"],
        max_artifact_size=1_000,
    ),
    lint_case(
        "vocabulary",
        (["misc"], []),
        (["other"], ["vocabulary_violation 1"]),
        vocabulary_enforcement=True,
        max_artifact_size=1_000,
    ),
    Case(
        "pcp.anti_sprawl.on_write",
        written,
        ("warn", ["malformed_content"]),
        ("refuse", "ConstraintViolation"),
        {"policies": [], "summarization_provider": None, **{f"pcp.anti_sprawl.{name}": LINT[name] for name in LINT}},
    ),
    lint_case("duplicate_detection", (False, []), (True, ["duplicate 4"]), max_artifact_size=1_000),
    lint_case(
        "duplicate_similarity",
        (0.99, ["duplicate 4"]),
        (0.5, ["duplicate 5"]),
        duplicate_detection=True,
        max_artifact_size=1_000,
    ),
)
