"""A team of agents that share a store, with a task of a user that one of them works on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from support.databases import Backend
from support.threads import at_once

import caliber
from caliber.model import Principal
from caliber.model.errors import NotFound
from caliber.model.time import FixedClock, from_us

NOTE = {"entity": "parser", "entity_type": "thing", "note_type": "fact", "confidence": 0.5}


class Team:
    """A planner that may delegate to coders, two coders, a reviewer; and a task of Ana that the planner works on."""

    def __init__(self, backend: Backend, **knobs: Any) -> None:
        self.clock = FixedClock()
        options = {"embedding_provider": None, "policies": [], "jobs__poll_ms": 0, "delegation_timeout": "1h", **knobs}
        self.memory = backend.open(clock=self.clock, **options)
        registry = self.memory.agents
        registry.register("planner", type="planner", can_delegate_to=["coder", "planner"])
        for name in ("ada", "bob"):
            registry.register(name, type="coder", can_delegate_to=["coder", "planner", "reviewer"])
        registry.register("rev", type="reviewer")
        self.planner, self.ada, self.bob, self.rev = (self.act_as(each) for each in ("planner", "ada", "bob", "rev"))
        self.ana = self.memory.acting_as(Principal.user("ana"))
        self.task = self.planner.start_trajectory("ship the parser", user="ana").trajectory_id
        scope = self.planner.current_scope(self.task)
        self.scope = scope.scope_id
        self.artifact = self.planner.create_artifact(
            self.scope, artifact_type="code_patch", content="zebra patch", extraction_method="explicit"
        ).artifact_id
        self.note = self.planner.add_note(
            content="The zebra parser is recursive.", visible_to=["agent:planner"], **NOTE
        )

    @property
    def now(self) -> datetime:
        return from_us(self.clock.now_us())

    def act_as(self, name: str) -> caliber.Caliber:
        return self.memory.acting_as(Principal.agent(name))

    def delegate(self, **options: Any) -> Any:
        to = {} if "to_type" in options or "to" in options else {"to": "ada"}
        return self.planner.agents.delegations.delegate("write tests", **{"parent": self.task, **to, **options})

    def begun(self, **options: Any) -> Any:
        """Return a delegation that ada works on."""
        given = self.delegate(**options)
        self.ada.agents.delegations.accept(given.delegation_id)
        return self.ada.agents.delegations.start(given.delegation_id)

    def race(self, accept: Callable[[caliber.Caliber], object], refused: type[Exception]) -> str:
        """Let ada and bob accept the same twice at once, all but one of them ``refused``; return who won."""
        barrier, won, lost = threading.Barrier(4), list[str](), list[str]()

        def run(name: str) -> None:
            barrier.wait()
            try:
                accept(getattr(self, name))
            except refused:
                lost.append(name)
            else:
                won.append(name)

        at_once([partial(run, name) for name in ("ada", "bob") * 2])
        (winner,) = set(won)
        assert sorted(won + lost) == ["ada", "ada", "bob", "bob"]
        return winner

    def sees(self, handle: caliber.Caliber) -> set[str]:
        """Return which of the shared records a handle gets, and finds."""
        out = set()
        hits = {hit.id for hit in handle.search("zebra").hits}
        for name, key in (("artifact", self.artifact), ("note", self.note.note_id)):
            try:
                handle.get(key)
            except NotFound:
                assert key not in hits
            else:
                assert key in hits
                out.add(name)
        return out
