"""Reasons for unrecalled records of a declared memory."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

import caliber
from caliber import EntityRef, EntityType

ME = EntityRef(EntityType.USER, uuid.UUID(int=7))


def fact(**more: Any) -> dict[str, Any]:
    fields = [{"name": "title", "type": "text"}]
    return {"name": "fact", "type": "semantic", "fields": fields, "retention": {"kind": "persistent"}, **more}


@pytest.mark.parametrize(
    ("declared", "query", "reason"),
    [
        (fact(), "What colour is the lantern?", "not_searched"),
        (fact(indexes=[{"field": "title", "type": "gin"}]), "", "no_recall"),
    ],
)
def test_a_record_that_no_search_could_bring_says_so(declared: dict[str, Any], query: str, reason: str) -> None:
    knobs = {"resident.feed_poll_ms": 0, "policies": [], "memories": [declared]}
    with caliber.open(
        caliber.profiles.PROFILES["reference"](":memory:", **knobs), principal=caliber.Principal.admin()
    ) as memory:
        task = memory.start_trajectory("a task", initiator=ME).trajectory_id
        scope = memory.open_scope(task).scope_id
        records = [
            memory.records("fact").insert(title="The lantern is green."),
            memory.records("fact").insert(title="The lantern is old.", scope=scope),
        ]
        memory.append_turn(scope, role="user", content="Hello.")
        window = memory.assemble_context(task, query=query)
        for record in records:
            answer = memory.explain(window.window_id, exclusion=record.record_id)
            assert (answer["verdict"], answer["filter"]) == ("filtered", reason)
