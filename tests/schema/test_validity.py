"""Retired records are retired for everybody: one rule, ``schema.validity``, replaced several.

Before it was declared once, a superseded record was still given vectors, and was pruned a second time.
Source: K-080, K-190, C-228, C-452; docs/decisions/0203.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from support.inspection import inspect

from caliber.model.time import from_us
from caliber.schema.relations import ARTIFACT, NOTE, RELATIONS
from caliber.schema.traits import Pruned
from caliber.schema.validity import is_active, is_valid, validity
from caliber.storage.write.ending import prune

ENDED = [(relation, column) for relation in (NOTE, ARTIFACT) for column in relation.active]


def made(agent: Any, relation: Any, content: str) -> Any:
    return agent.note(content) if relation is NOTE else agent.keep(content)


def end(memory: Any, relation: Any, record: Any, column: str, by: Any) -> None:
    key = getattr(record, relation.key[0])
    value = (
        getattr(by, relation.key[0]) if column == "superseded_by" else from_us(inspect(memory).engine.clock.now_us())
    )
    getattr(memory.storage, relation.plural).update(key, **{column: value})


@pytest.mark.parametrize(("relation", "column"), ENDED, ids=[f"{relation.name}-{name}" for relation, name in ENDED])
def test_what_is_out_of_use_is_nowhere_in_use(relation: Any, column: str, memory: Any, start: Any) -> None:
    agent = start(memory)
    other, gone = made(agent, relation, "the ferry leaves at nine"), made(agent, relation, "the ferry leaves at ten")
    key = getattr(gone, relation.key[0])
    end(memory, relation, gone, column, other)
    assert key not in {hit.id for hit in memory.search("ferry", kinds=[relation.name], limit=9).hits}
    assert key not in {getattr(item, relation.key[0]) for item in memory.records(relation.name).find()}
    assert key in {getattr(item, relation.key[0]) for item in memory.records(relation.name).find(valid=False)}
    (space,) = memory.storage.embedding_spaces.all()
    with inspect(memory).store.read() as session:
        progress = inspect(memory).store.statements[f"embedding.progress_{relation.name}"]
        wanted = session.run(progress, (space.space_id.bytes,))
    assert wanted[0][0] == 1, "it is to have no vector any more"
    later = inspect(memory).engine.clock.now_us() + 10**9
    found = inspect(memory).write(lambda uow: [getattr(i, relation.key[0]) for i in uow.stale(relation, later, 2.0)])
    assert found == [getattr(other, relation.key[0])], "what is archived by pruning is taken once"
    assert inspect(memory).write(lambda uow: prune(uow, relation, [memory.get(key)])) == 0


def test_every_relation_that_ends_says_when_it_counts() -> None:
    for relation in RELATIONS:
        if relation.ends is not None and relation.ends.pruned is Pruned.ARCHIVED:
            assert relation.ends.archive in relation.active
            assert validity(relation) is not None
        if relation.ends is not None and relation.ends.supersede is not None:
            assert relation.ends.supersede in relation.active


def test_a_record_holds_from_its_beginning_until_before_its_end(memory: Any, start: Any) -> None:
    agent = start(memory)
    at = from_us(inspect(memory).engine.clock.now_us())
    note = agent.note("the bridge is closed", valid_from=at, valid_until=at + timedelta(days=1))
    assert is_active(NOTE, note)
    assert note.active
    second = timedelta(microseconds=1)
    moments = (at - second, at, at + timedelta(days=1) - second, at + timedelta(days=1))
    assert [is_valid(NOTE, note, moment) for moment in moments] == [False, True, True, False]
