"""The budget that a refusal asks for is enough."""

from __future__ import annotations

import uuid

import pytest

import caliber
from caliber import EntityRef, EntityType
from caliber.model.errors import BudgetTooSmall

ME = EntityRef(EntityType.USER, uuid.UUID(int=7))


@pytest.mark.parametrize("profile", ["reference", "coding-agent", "chat-companion", "ops-agent"])
@pytest.mark.parametrize("headers", [True, False])
def test_what_is_asked_for_is_enough(profile: str, headers: bool) -> None:
    knobs = {"resident.feed_poll_ms": 0, "policies": [], "assembly.section_headers": headers}
    refused = 0
    with caliber.open(caliber.profiles.PROFILES[profile](":memory:", **knobs)) as memory:
        task = memory.start_trajectory("a task", initiator=ME).trajectory_id
        scope = memory.open_scope(task).scope_id
        memory.add_note(
            entity="lantern", entity_type="thing", note_type="fact", content="The lantern is green.", confidence=0.9
        )
        memory.append_turn(scope, role="user", content="What colour is the lantern in the harbour?")
        memory.flush()
        for extra in ({}, {"persona": "You keep the harbour."}):
            for budget in range(1, 20):
                needed = 0
                try:
                    memory.assemble_context(task, max_tokens=budget, extra_sections=extra)
                except BudgetTooSmall as error:
                    needed = error.needed
                if needed:
                    refused += 1
                    assert needed > budget
                    assert memory.assemble_context(task, max_tokens=needed, extra_sections=extra).text
    assert refused
