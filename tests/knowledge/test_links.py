"""Links between records: made, removed, listed, followed, by whoever may see both ends.

Source: B-022 to B-026, M-092; docs/api.md.
"""

from __future__ import annotations

import itertools
import uuid
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.drawn import needs
from support.memories import FACT
from support.threads import at_once

from caliber.model import EdgeRelation
from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.errors import (
    CircularReference,
    ConstraintViolation,
    DTypeError,
    InvalidValue,
    LockExpired,
    NotFound,
    PermissionDenied,
)
from caliber.model.references import EntityRef

SYMMETRIC = ("contradicts", "related_to", "link")
KINDS = ("supports", "contradicts", "related_to", "caused_by", "link")


@pytest.fixture(params=["resident", "backend"])
def memory(backend: Any, request: pytest.FixtureRequest) -> Any:
    if request.param == "backend" and not backend.has("full text"):
        pytest.skip("only in memory")
    return backend.open(backend.config(memories=[FACT], search__mode=request.param))


def note(memory: Any, what: str, **more: Any) -> uuid.UUID:
    made = memory.add_note(entity=what, entity_type="topic", content=f"about {what}", confidence=0.9, **more)
    return made.note_id  # type: ignore[no-any-return]


def test_links_are_made_listed_and_removed(memory: Any) -> None:
    links = memory.links
    a, b, c = (note(memory, name) for name in "abc")
    fact = memory.records("fact").insert(subject="Ada", kind="claim")
    made = links.add(a, "supports", b, weight=0.5)
    assert (made.source.id, made.target.id, made.relation, made.weight) == (a, b, "supports", 0.5)
    assert links.add(a, "supports", b, weight=0.5) == made, "one link of a kind"
    assert links.add(a, "supports", b, weight=0.25).edge_id == made.edge_id
    other = links.add(b, "supports", a)
    assert other.edge_id != made.edge_id, "it holds one way"
    third = links.add(EntityRef(memory.records("fact").relation.name, fact.record_id), "caused_by", a)
    assert [edge.edge_id for edge in links.list(a)] == [made.edge_id, other.edge_id, third.edge_id]
    assert links.list(a, relation="caused_by") == links.list(fact.record_id) == [third]
    assert links.list(c) == []
    assert links.remove(a, "supports", b)
    assert not links.remove(a, "supports", b), "twice"
    assert [edge.edge_id for edge in links.list(b)] == [other.edge_id]
    assert links.add(a, "supports", b).edge_id != made.edge_id, "made anew"


@pytest.mark.parametrize("kind", KINDS)
def test_a_symmetric_link_is_stored_once(memory: Any, kind: str) -> None:
    a, b = note(memory, "a"), note(memory, "b")
    first = memory.links.add(a, kind, b)
    if kind in SYMMETRIC:
        assert memory.links.add(b, kind, a) == first
        assert memory.links.remove(b, kind, a)
        assert memory.links.list(a) == []
    elif kind == "supports":
        assert memory.links.add(b, kind, a) != first
    else:
        with pytest.raises(CircularReference):
            memory.links.add(b, kind, a)


def test_no_circle_of_causes(memory: Any) -> None:
    names = [note(memory, name) for name in "abcd"]
    for one, other in itertools.pairwise(names):
        memory.links.add(one, "caused_by", other)
    memory.links.add(names[0], "caused_by", names[3])
    with pytest.raises(CircularReference, match=str(names[1])):
        memory.links.add(names[3], "caused_by", names[1])
    one, other = (memory.records("fact").insert(subject=name, kind="claim").record_id for name in "xy")
    memory.links.add(one, "supersedes", other)
    with pytest.raises(CircularReference):
        memory.links.add(other, "supersedes", one)
    with pytest.raises(InvalidValue, match="by its own call, such as supersede_note"):
        memory.links.add(names[0], "supersedes", names[1])
    memory.links.remove(names[1], "caused_by", names[2])
    memory.links.add(names[3], "caused_by", names[1])


def test_a_link_may_have_a_name_of_its_own(memory: Any) -> None:
    a, b = note(memory, "a"), note(memory, "b")
    links = memory.links
    edge = links.add(a, "answers", b)
    assert edge.relation == "answers"
    assert links.add(a, "answers", b) == edge
    assert [each.relation for each in links.list(b)] == ["answers"]
    assert links.add(b, "answers", a) != edge  # it holds one way, and may lead back
    assert [each.distance for each in links.neighbours(a, relation="answers")] == [1]
    assert links.neighbours(a, relation="asks") == []
    assert links.remove(a, "answers", b)
    assert links.add(a, "caused_by", b).relation is EdgeRelation.CAUSED_BY


def test_a_link_whose_name_is_forgotten_goes(memory: Any) -> None:
    a, b = note(memory, "a"), note(memory, "b")
    for name in ("likes_quirinus", "likes", "related_to"):
        memory.links.add(a, name, b)
    memory.remember([{"role": "user", "content": "Hello, I am Quirinus."}], user="quirinus")
    assert memory.forget(user="quirinus", texts=["quirinus"]).findings == 0
    memory.forget(user="quirinus", texts=["related"])  # a name of CALIBER's stays
    assert [each.relation for each in memory.links.list(a)] == ["likes", "related_to"]


def test_what_cannot_be_linked_is_said(memory: Any) -> None:
    a, b = note(memory, "a"), note(memory, "b")
    task = memory.start_trajectory("talk", user="anna")
    links = memory.links
    with pytest.raises(InvalidValue, match="is not linked to itself"):
        links.add(a, "supports", a)
    for wrong in ("likes it", "Likes", "", "1st", "x" * 49):
        with pytest.raises(InvalidValue):
            links.add(a, wrong, b)
    with pytest.raises(InvalidValue, match="weight"):
        links.add(a, "supports", b, weight=1.5)
    with pytest.raises(DTypeError, match="weight"):
        links.add(a, "supports", b, weight="much")
    for call in (partial(links.add, a, "supports"), partial(links.add, uuid.uuid4(), "supports")):
        with pytest.raises(NotFound):
            call(uuid.uuid4())
    with pytest.raises(InvalidValue, match="a user has no links"):
        links.add(a, "supports", EntityRef.user("anna"))
    with pytest.raises(LockExpired):
        links.add(a, "supports", b, guard=LockToken("file", 1))
    memory.delete_note(b)
    with pytest.raises(ConstraintViolation, match="is no longer in use"):
        links.add(a, "supports", b)
    assert links.list(a) == []
    with pytest.raises(NotFound):
        links.list(uuid.uuid4())
    assert links.add(a, "link", task.trajectory_id).target.id == task.trajectory_id


def test_links_of_what_is_gone_go_too(memory: Any) -> None:
    a = note(memory, "a")
    facts = memory.records("fact")
    fact = facts.insert(subject="Ada", kind="claim")
    memory.links.add(a, "supports", fact.record_id)
    facts.delete(fact.record_id)
    assert memory.links.list(a) == memory.links.neighbours(a) == []
    # M-092: of records of every kind, whatever deleted them
    task = memory.start_trajectory("talk", user="anna")
    scope = memory.current_scope(task.trajectory_id)
    turn = memory.append_turn(scope.scope_id, role="user", content="x")
    b = note(memory, "b")
    memory.links.add(turn.turn_id, "link", a)
    memory.links.add(a, "link", task.trajectory_id)
    kept = memory.links.add(a, "link", b)
    memory.admin.purge_trajectory(task.trajectory_id)
    planned = memory.admin.sweep(dry_run=True)
    assert memory.admin.sweep().links == planned.links > 0
    assert [edge.edge_id for edge in memory.storage.edges.all()] == [kept.edge_id]
    assert memory.admin.sweep().count == 0
    assert [each.kind for each in memory.admin.check() if each.relation == "edge"] == []
    assert memory.admin.verify() == []


def test_each_sees_the_links_between_what_it_sees(memory: Any) -> None:
    anna, bo = (memory.acting_as(Principal.user(name)) for name in ("anna", "bo"))
    hers, shared = note(anna, "hers"), note(memory, "shared")
    anna.links.add(hers, "supports", shared)
    assert len(anna.links.list(shared)) == 1
    assert bo.links.list(shared) == bo.links.neighbours(shared) == []
    for call in (partial(bo.links.list, hers), partial(bo.links.add, shared, "supports", hers)):
        with pytest.raises(NotFound):
            call()
    with pytest.raises((PermissionDenied, NotFound)):
        bo.links.remove(hers, "supports", shared)
    assert len(anna.links.list(shared)) == 1


pairs = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["supports", "related_to"]), st.integers(0, 5)), max_size=9
)


def test_neighbours_and_paths_are_those_of_the_graph(memory: Any) -> None:
    nodes = [note(memory, f"n{at}") for at in range(6)]
    places = {node: at for at, node in enumerate(nodes)}
    links = memory.links

    @settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
    @given(pairs, st.integers(0, 5), st.integers(0, 5), st.integers(1, 4))
    def any_graph(drawn: list[tuple[int, str, int]], start: int, end: int, depth: int) -> None:
        made = {links.add(nodes[a], kind, nodes[b]).edge_id for a, kind, b in drawn if a != b}
        ends = [
            (places[edge.source.id], places[edge.target.id]) for edge in every(links, nodes) if edge.edge_id in made
        ]
        beside: dict[int, set[int]] = {at: set() for at in range(6)}
        for a, b in ends:
            beside[a].add(b)
            beside[b].add(a)
        distance, reached = {start: 0}, [start]
        for at in reached:
            for other in sorted(beside[at] - distance.keys()):
                distance[other] = distance[at] + 1
                reached.append(other)
        near = links.neighbours(nodes[start], depth=depth)
        assert {places[each.record.id]: each.distance for each in near} == {
            at: far for at, far in distance.items() if 0 < far <= depth
        }
        assert [each.distance for each in near] == sorted(each.distance for each in near)
        found = links.paths(nodes[start], nodes[end], longest=depth, limit=1_000)
        assert sorted(len(way) for way in found) == sorted(ways(ends, start, end, depth))
        for edge in every(links, nodes):
            links.remove(edge.source, edge.relation, edge.target)

    any_graph()


def every(links: Any, nodes: list[uuid.UUID]) -> list[Any]:
    return list({edge.edge_id: edge for node in nodes for edge in links.list(node)}.values())


def ways(ends: list[tuple[int, int]], start: int, end: int, longest: int) -> list[int]:
    """The lengths of all ways that pass no node twice; of two links between two nodes each is one."""
    out, open_ways = [], [(start,)]
    while open_ways:
        way = open_ways.pop()
        if way[-1] == end:
            out += [len(way) - 1] if len(way) > 1 else []
            continue
        if len(way) <= longest:
            for a, b in ends:
                other = b if a == way[-1] else a if b == way[-1] else None
                if other is not None and other not in way:
                    open_ways.append((*way, other))
    return out


@needs("sharing")
def test_what_a_handle_has_not_heard_of_is_not_shown_early(backend: Any) -> None:
    here, there = (backend.open(embedding_provider=None) for _ in range(2))
    shared = note(here, "shared")
    bo = there.acting_as(Principal.user("bo"))
    assert bo.links.list(shared) == []
    anna = here.acting_as(Principal.user("anna"))
    task = anna.start_trajectory("her talk")
    turn = anna.append_turn(anna.current_scope(task.trajectory_id).scope_id, role="user", content="hers")
    for own in (task.trajectory_id, turn.turn_id, note(anna, "hers")):
        anna.links.add(own, "supports", shared)
        assert bo.links.list(shared) == bo.links.neighbours(shared) == []
        mine = note(bo, "bos")
        with pytest.raises(NotFound, match=r"record .* was not found"):
            bo.links.add(mine, "supports", own)
    assert len(anna.links.list(shared)) == 3


def test_links_and_grants_of_a_key_go_with_its_record(memory: Any) -> None:
    shared = note(memory, "shared")
    anna, bo, cy = (memory.acting_as(Principal.user(name)) for name in ("anna", "bo", "cy"))
    task = anna.start_trajectory("talk", key="K")
    anna.access.grant(to="bo", on=task.trajectory_id, right="write")
    anna.links.add(task.trajectory_id, "link", shared)
    assert bo.trajectory("K") == task
    memory.storage.trajectories.delete(task.trajectory_id)
    again = cy.start_trajectory("another talk", key="K")
    assert again.trajectory_id == task.trajectory_id
    assert cy.links.list(again.trajectory_id) == memory.links.list(shared) == []
    with pytest.raises(NotFound):
        bo.trajectory("K")


@needs("sharing")
def test_of_many_that_make_one_link_one_does(backend: Any) -> None:
    handles = [backend.open(embedding_provider=None) for _ in range(2)]
    a, b = note(handles[0], "a"), note(handles[0], "b")
    handles[1].search("a", consistency="latest")
    ways_round = [partial(each.links.add, *pair) for each in handles for pair in ((a, "link", b), (b, "link", a))]
    assert len({edge.edge_id for edge in at_once(ways_round)}) == 1
    circle = [partial(attempt, each, *pair) for each in handles for pair in ((a, b), (b, a))]
    made = {outcome for outcome in at_once(circle) if outcome is not None}
    assert len(made) == 1, "either way round, never both"


def attempt(memory: Any, one: uuid.UUID, other: uuid.UUID) -> Any:
    try:
        return memory.links.add(one, "caused_by", other).edge_id
    except CircularReference:
        return None
