"""Two agents and a user share a plan: blocks in windows, and a model that edits them by tools.

The model is scripted, so that the example needs no network: a real one gets ``tools`` with each request.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import caliber

SCRIPT = (
    ("planner", "memory_append", {"label": "plan", "text": "1. Book the train to Lisbon."}),
    ("planner", "memory_append", {"label": "plan", "text": "2. Find a room near the river."}),
    ("writer", "memory_edit", {"label": "plan", "old": "a room", "new": "a quiet room"}),
    ("writer", "memory_edit", {"label": "plan", "old": "a hotel", "new": "a hostel"}),  # which is not there
)


def main(folder: Path) -> str:
    """Let two agents work on a plan, and return the last window."""
    with caliber.open(folder / "agents.db", memories=["blocks"], create=True) as memory:
        agents = {name: memory.as_agent(name) for name in ("planner", "writer")}
        agents["planner"].blocks.create("persona", "I plan journeys, step by step.", description="who I am")
        agents["planner"].blocks.create("plan", description="what we do next", max_chars=500)
        agents["planner"].blocks.share("plan", "writer", write=True)
        memory.as_user("ana").blocks.create("human", "Travels by train only.", description="what is known of Ana")
        for agent, tool, given in SCRIPT:  # as a model would call them
            print(f"{agent}: {tool} -> {agents[agent].blocks.call(tool, json.dumps(given))}")
        for change in agents["planner"].blocks.history("plan"):
            print(f"version {change.version} by {change.by}")
        task = agents["planner"].start_trajectory("A week in Portugal", user="ana")
        scope = memory.current_scope(task.trajectory_id)
        assert scope is not None
        memory.append_turn(scope.scope_id, role="user", content="What is left to do?")
        return agents["planner"].assemble_context(task.trajectory_id).text


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        print(main(Path(temporary)))
