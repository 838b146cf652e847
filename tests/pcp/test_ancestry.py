"""Tasks above a task: how far up windows look, what is pruned, and cycles. Source: C-250, C-251, K-097."""

from __future__ import annotations

from typing import Any

import pytest
from support.context.limits import set_limits

from caliber.model.errors import ConstraintViolation

BARE: dict[str, Any] = {"policies": [], "embedding_provider": None, "search__keyword__similar_words": "none"}


WORDS = ("apple", "banana", "cherry", "kangaroo")


def family(start: Any, memory: Any, count: int) -> list[Any]:
    """Return tasks, each below the one before, with an artifact each that names its place."""
    agents = [start(memory)]
    agents[0].keep("an artifact of task 0")
    for place in range(1, count):
        above = agents[-1]
        task = memory.start_trajectory("below", initiator=above.trajectory.initiator, parent=above.trajectory_id)
        scope = memory.current_scope(task.trajectory_id)
        memory.create_artifact(
            scope.scope_id,
            artifact_type="fact",
            content=f"an artifact of task {place}: {WORDS[place]}",
            extraction_method="explicit",
        )
        agents.append(_Task(task))
    memory.flush()
    return agents


class _Task:
    def __init__(self, trajectory: Any) -> None:
        self.trajectory = trajectory
        self.trajectory_id = trajectory.trajectory_id


def seen(window: Any) -> list[int]:
    """Return the places of the tasks whose artifacts a window shows."""
    return [place for place in range(9) if f"an artifact of task {place}" in window.text]


@pytest.mark.parametrize("order", ["priority", "stable_first"])
@pytest.mark.parametrize("query", ["", "an artifact of a task", "an artifact"])
def test_windows_look_up_as_far_as_configured(backend: Any, start: Any, order: str, query: str) -> None:
    memory = backend.open(**BARE, assembly__order=order, pcp__context_dag__max_depth=3)
    agents = family(start, memory, 4)
    assert seen(memory.assemble_context(agents[-1].trajectory_id, query=query)) == [0, 1, 2, 3]
    with pytest.raises(ConstraintViolation):
        memory.start_trajectory("deep", initiator=agents[0].trajectory.initiator, parent=agents[-1].trajectory_id)


def test_a_record_of_the_family_that_is_weakly_found_enters_as_those_not_found(backend: Any, start: Any) -> None:
    memory = backend.open(**BARE, pcp__context_dag__max_depth=3)
    agents = family(start, memory, 3)
    above, own = (agents[place].trajectory_id for place in (0, 2))
    wanted = "the quartz kangaroo of the northern harbour sleeps under the amber lantern"
    keep = {"artifact_type": "fact", "extraction_method": "explicit"}
    memory.create_artifact(memory.current_scope(own).scope_id, content=wanted, **keep)
    memory.create_artifact(memory.current_scope(above).scope_id, content="a kangaroo, seen once, long ago", **keep)
    memory.flush()
    window = memory.assemble_context(own, query=wanted)
    assert seen(window) == [0, 1, 2]
    assert "seen once" in window.text
    assert memory.replay(window.window_id) == window
    assert not [each for each in window.assembly_trace if each.rule_id == "relevance_threshold"]


@pytest.mark.parametrize("order", ["priority", "stable_first"])
@pytest.mark.parametrize("strategy", ["lru", "relevance", "hybrid"])
def test_what_is_pruned_is_of_ancestors_and_named(
    backend: Any, start: Any, order: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is scored and nothing was used: the nearer tasks stay where relevance decides, the newer where use does
    set_limits(monkeypatch, artifact_limit=2)
    memory = backend.open(
        **BARE, assembly__order=order, pcp__context_dag__prune_strategy=strategy, recall__from="trajectory"
    )
    agents = family(start, memory, 4)
    # A search finds the task's own artifact, so it takes none of the places of those that no search found.
    asked = order == "stable_first"
    window = memory.assemble_context(agents[-1].trajectory_id, query="kangaroo" if asked else "")
    assert seen(window) == ([1, 2, 3] if asked else [2, 3])
    cut = next(cut for cut in window.cut_offs if cut.filter.startswith("ancestors:"))
    assert (cut.filter, cut.limit, cut.considered) == (f"ancestors:{strategy}", 2 if asked else 1, 3)
    memory.flush()
    assert memory.replay(window.window_id) == window


@pytest.mark.parametrize("order", ["priority", "stable_first"])
def test_a_cycle_is_survived_and_named(backend: Any, start: Any, order: str) -> None:
    memory = backend.open(**BARE, assembly__order=order)
    agents = family(start, memory, 3)
    top, low = (memory.get(agent.trajectory_id) for agent in (agents[0], agents[-1]))
    memory.storage.trajectories.update(top.trajectory_id, parent_trajectory_id=low.trajectory_id)
    window = memory.assemble_context(low.trajectory_id, query="an artifact")
    assert seen(window) == [0, 1, 2]
    assert f"cycle_in_ancestry({low.trajectory_id})" in window.degraded
    assert window.status.value == "degraded"
    memory.flush()
    assert memory.replay(window.window_id) == window
    assert memory.explain(window.window_id)["status"] == "degraded"
