"""Filters of the language in reads: any filter, any records, the answers of ``holds``, in memory and by the database.

Source: C-161 to C-165, K-064; docs/search.md, docs/decisions/0147.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import needs
from support.evidence import examples, scale
from support.inspection import inspect
from support.search.checks import may_see
from support.storage.filled import Filled
from support.storage.predicates import MOMENTS, VARIABLES, cases, memberships

import caliber
from caliber.dsl import filters
from caliber.dsl.printer import quoted
from caliber.kernels.patterns import matches
from caliber.model import EntityRef, FixedClock, Principal, PrincipalKind
from caliber.model.errors import DTypeError, InvalidValue, NotFound, Unavailable
from caliber.model.time import to_us
from caliber.schema.memories import BUILT_IN
from caliber.schema.predicate import All, Comparison, Either, OneOf, Operator, Predicate, Variable, holds
from caliber.schema.validity import validity
from caliber.search.opening import SearchEngine
from caliber.storage.compile.conditions import filterable

EXAMPLES, ROWS = examples(15, 400), scale(20, 200)
KINDS = {"note": "note", "artifact": "artifact", "turn_buffer": "turn", "scope": "scope"}
ROOT = Principal(PrincipalKind.HUMAN, "root", is_admin=True)
AGENT = Principal(PrincipalKind.AGENT, str(uuid.UUID(int=1)))
BEFORE, NOW = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)


def spelt(predicate: Predicate) -> str | None:
    """A predicate as a person would write it; None where no text can hold one of its values."""
    if isinstance(predicate, OneOf):
        parts = [Comparison(predicate.column, Operator.EQUAL, value) for value in predicate.values]
        return spelt(Either((*parts, *parts))) if parts else None
    if not isinstance(predicate, Comparison):
        parts = [spelt(part) for part in predicate.conditions]
        if any(part is None for part in parts):
            return None
        return "(" + (" and " if isinstance(predicate, All) else " or ").join(map(str, parts)) + ")"
    value = predicate.value
    if value is None:
        said = "null"
    elif isinstance(value, Variable):
        said = value.value
    elif isinstance(value, bool):
        said = str(value).lower()
    elif isinstance(value, int | float):
        said = format(value, "f") if isinstance(value, float) else str(value)
        if float(said) != value:
            return None
    else:
        text = value.isoformat() if isinstance(value, datetime) else str(value)
        if "\x00" in text:
            return None
        said = quoted(text)
    return f"{predicate.column} {predicate.operator} {said}"


class Never(Exception):
    """The language refuses a filter that could never hold."""


class World(Filled):
    """A store with drawn records, and handles that read it from memory and through its database."""

    def __init__(self, backend: Any, mode: str) -> None:
        self.memory = backend.open(
            backend.config(search__mode=mode, embedding_provider=None),
            principal=ROOT,
            clock=FixedClock(to_us(MOMENTS[2])),
        )
        super().__init__(inspect(self.memory).store, ROWS)
        inspect(self.memory).resident.reload()
        self.memory.admin.rebuild_search()

    def is_seen(self, name: str, item: dict[str, Any], principal: Principal) -> bool:
        """Return whether a principal may see a record: notes by their readers, others by the owner of their task."""
        if name == "note":
            return may_see(item["visible_to"], principal)
        tasks = {each["trajectory_id"]: each for each in self.records["trajectory"].values()}
        task = tasks[item["trajectory_id"]]
        owner = task["initiator_id"] if task["initiator_type"] == "user" else task["user_id"]
        return owner is None or EntityRef.agent(principal.id).id in (owner, task["agent_id"])

    def check(self, memory: Any, name: str, predicate: Predicate, text: str) -> None:
        """Hold ``find``, ``count`` and ``search`` to what a person makes of a filter, record by record."""
        relation = BUILT_IN[name].relation
        known = {**VARIABLES, Variable.TRAJECTORY: None, Variable.SCOPE: None}
        known[Variable.AGENT] = uuid.UUID(AGENT.id) if memory.principal == AGENT else None
        seen = {
            item[relation.key[0]]: item
            for item in self.records[relation.name].values()
            if memory.principal.is_admin or self.is_seen(relation.name, item, memory.principal)
        }
        meant = {key for key, item in seen.items() if holds(predicate, item, known, matches)}
        condition = validity(relation)
        counted = {key for key in meant if condition is None or holds(condition, seen[key], known, matches)}
        found = memory.records(name)
        try:
            found.count(text)
        except InvalidValue as error:
            if "this never holds" in str(error):
                raise Never from None
            raise
        assert [getattr(item, relation.key[0]) for item in found.find(text, valid=False)] == sorted(meant), text
        assert {getattr(item, relation.key[0]) for item in found.find(text)} == counted
        assert found.count(text) == len(counted)
        if name in KINDS:
            if name == "scope":
                counted = {key for key in counted if seen[key]["summary_tokens"] > 0}
            hits = memory.search("", kinds=[KINDS[name]], filter=text, limit=999).hits
            assert {hit.id for hit in hits} == counted, text


@needs("full text")
@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_a_filter_in_words_means_the_same_wherever_it_is_asked(backend: Any, mode: str) -> None:
    # C-161 to C-165: the meaning, columns in memory, and the SQL of both databases
    world = World(backend, mode)
    handles = (world.memory, world.memory.acting_as(AGENT))

    @given(cases, st.sampled_from(handles))
    @settings(max_examples=EXAMPLES)
    def any_filter(case: tuple[str, Predicate], memory: Any) -> None:
        name, predicate = case
        text = spelt(predicate)
        if text is not None:
            with suppress(Never):
                world.check(memory, name, predicate, text)

    any_filter()
    world.check(world.memory, "note", Comparison("content", Operator.MATCHES, "(a|é).?b"), 'content ~ "(a|é).?b"')


@needs("full text")
@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_a_filter_by_values_means_the_same_wherever_it_is_asked(backend: Any, mode: str) -> None:
    # a predicate from the door on: columns in memory, and the parameters of prepared statements of both databases
    world = World(backend, mode)
    kinds = st.sampled_from(sorted(KINDS))

    @given(kinds.flatmap(lambda name: st.tuples(st.just(name), st.lists(memberships(name), max_size=3))))
    @settings(max_examples=EXAMPLES)
    def any_values(case: tuple[str, list[OneOf]]) -> None:
        name, wanted = case
        relation = BUILT_IN[name].relation
        values = {each.column: list(each.values) for each in wanted if each.column in filterable(relation)}
        records = world.records[relation.name].values()
        parts = [condition for condition in (validity(relation),) if condition is not None]
        parts += [OneOf(column, tuple(values[column])) for column in values]
        meant = {
            item[relation.key[0]]
            for item in records
            if all(holds(part, item, VARIABLES, matches) for part in parts)
            and (name != "scope" or item["summary_tokens"] > 0)
        }
        hits = world.memory.search("", kinds=[KINDS[name]], filter=values, limit=999).hits
        assert {hit.id for hit in hits} == meant, values

    any_values()


@pytest.fixture(params=["resident", "backend"])
@needs("full text")
def told(backend: Any, request: pytest.FixtureRequest, start: Any) -> Any:
    """An agent with notes about cities, read from memory or through the database."""
    options = {"embedding_provider": None, "search__mode": request.param}
    agent = start(backend.open(backend.config(**options), clock=FixedClock(to_us(NOW))))
    for at in range(12):
        agent.note(
            f"city {at} by the sea",
            entity="Lisbon" if at % 3 == 0 else "Porto",
            confidence=at / 16,
            importance=None if at % 4 == 3 else at % 4 + 1,
            tags=("old",) if at < 4 else ("new", "big"),
            valid_until=None if at < 6 else (BEFORE if at < 8 else NOW + timedelta(days=1)),
        )
    agent.hidden = agent.note(
        "city 99 of the secret", entity="Secret", visible_to=["agent:nobody"], confidence=0.99, importance=9
    )
    agent.say("a city in a turn")
    agent.keep("a city in an artifact", confidence=0.9)
    return agent


def cities(found: Any) -> list[int]:
    items = getattr(found, "hits", found)
    return [int(word) for item in items for word in str(item.content).split() if word.isdigit()]


def test_a_search_takes_a_condition_and_k_hits_come_back(told: Any) -> None:
    search = told.memory.search
    told.memory.flush()
    assert cities(search("city", filter="confidence > 0.6 and confidence < 0.65", limit=2)) == [10]
    assert sorted(cities(search("city 4", filter="confidence < 0.1", limit=2))) == [0, 1]
    few = search("city", filter='entity = "Lisbon" and (tags contains "new" or confidence = 0)', limit=9)
    assert sorted(cities(few)) == [0, 9]
    assert {hit.kind for hit in search("city", filter="confidence >= 0.5", limit=20).hits} == {"note", "artifact"}
    assert {hit.kind for hit in search("city", filter="created_at <= now()", limit=20).hits} > {"turn"}
    assert search("city", filter='role = "user"').hits[0].kind == "turn"
    assert sorted(cities(search("", filter='content ~ "city [67] "', limit=9))) == []
    # a search as of an instant asks its filter as of the same
    asked = {"filter": 'valid_until > now() and content ~ "city [678] "', "limit": 9}
    assert sorted(cities(search("city", as_of=BEFORE - timedelta(days=1), **asked))) == [6, 7, 8]
    many = told.memory.search_many(["city", "sea"], filter="confidence = 0.25")
    assert [cities(result) for result in many] == [[4], [4]]


def test_what_is_wrong_in_a_condition_is_said_before_anything_is_searched(told: Any) -> None:
    search = told.memory.search
    for options, said in (
        ({"filter": "confidnce > 0.5"}, "did you mean `confidence`"),
        ({"filter": "confidence > 0.5", "kinds": ["note", "turn", "scope"]}, "turn has no confidence; scope has"),
        ({"filter": "confidence > 0.5", "kinds": "turn"}, "there is no field confidence"),
        ({"filter": 'confidence > 0.5 and role = "user"'}, "there is no field role"),
        ({"filter": 'tags > "a"', "kinds": ["note"]}, "cannot be compared by >"),
        ({"filter": "confidence >"}, "<filter>:1:13"),
        ({"filter": ""}, "<filter>:1:1"),
        ({"filter": "confidence < 0.1 and confidence > 0.2"}, "this never holds"),
    ):
        with pytest.raises(InvalidValue, match=re.escape(said)):
            search("city", **options)
    with pytest.raises(Unavailable), caliber.deadline(0):
        search("city", filter="confidence > 0.5")
    assert search("city", filter="confidence > 0.5", kinds=[]).hits == ()
    with pytest.raises(InvalidValue, match="unknown kind"):
        search("city", kinds=[["note"]])


def test_nobody_finds_by_a_filter_what_they_may_not_see(told: Any) -> None:
    # M-118: not by search, find, count or an order
    admin, agent = told.memory.acting_as(ROOT), told.memory.acting_as(AGENT)
    for text in ('entity = "Secret"', "confidence > 0.9", 'content ~ "secret"', 'content contains "secret"'):
        assert cities(admin.records("note").find(text)) == [99]
        assert agent.records("note").find(text) == []
        assert agent.records("note").count(text) == 0
        assert cities(agent.search("", filter=text, kinds=["note"])) == []
    assert agent.records("note").find(entity="Secret") == []
    assert 99 not in cities(agent.records("note").find(order_by="confidence", descending=True))
    assert admin.records("note").count() == agent.records("note").count() + 1
    with pytest.raises(NotFound):
        agent.records("note").find(order_by="confidence", after=told.hidden.note_id)
    with pytest.raises(NotFound):
        agent.records("note").get(told.hidden.note_id)


def test_records_are_found_by_fields_in_an_order_and_by_pages(told: Any) -> None:
    notes = told.memory.records("note")
    assert cities(notes.find(entity="Lisbon")) == [0, 3, 9]  # 6 held until March
    assert cities(notes.find({"entity": ["Lisbon", "Porto"]}, tags="old")) == [0, 1, 2, 3]
    assert cities(notes.find("confidence > 0.5", entity="Lisbon")) == [9]
    assert cities(notes.find("valid_until <= now()")) == []
    assert cities(notes.find("valid_until <= now()", valid=False)) == [6, 7]
    assert cities(notes.find(entity=[])) == []
    assert cities(notes.find(valid_until=None, importance=None)) == [3]
    assert notes.count(entity="Porto") == 7
    assert told.memory.records("turn_buffer").find(role="user")[0].content == b"a city in a turn"
    assert [item.artifact_id for item in told.memory.records("artifact").find("confidence >= 0.9")]
    assert told.memory.records("scope").count("closed_at = null") == 1
    assert told.memory.records("trajectory").find(status="active")[0].goal == "test the store"
    by_id = notes.find(valid=False)
    assert [item.note_id for item in by_id] == sorted(item.note_id for item in by_id)
    for order, value in ((None, lambda item: 0), ("importance", lambda item: item.importance or 99)):
        for descending in (False, True):
            whole = notes.find(order_by=order, descending=descending, valid=False)
            turned = -1 if descending else 1
            keys = [(value(item) == 99, turned * value(item), turned * item.note_id.int) for item in whole]
            assert keys == sorted(keys)
            assert len(keys) == 13
            for behind in (lambda item: item, lambda item: item.note_id):
                pages, last = [], None
                while page := notes.find(
                    order_by=order, descending=descending, valid=False, limit=5, after=last and behind(last)
                ):
                    pages += page
                    last = page[-1]
                assert pages == whole
    assert notes.Record.__name__ == "Note"
    assert "confidence" in notes.fields
    assert "content_embedding" not in notes.fields


def test_a_memory_says_what_it_cannot_do(told: Any) -> None:
    notes = told.memory.records("note")
    for name in BUILT_IN:
        readers = told.memory.records(name)
        assert not any(hasattr(readers, call) for call in ("insert", "insert_many", "update", "archive", "delete"))
    for call, said in (
        (lambda: told.memory.records("notes"), "did you mean note"),
        (lambda: told.memory.records("trajectory").search("x"), "use find"),
        (lambda: notes.find(entty="x"), "filter.entty: there is no such field; did you mean entity"),
        (lambda: notes.find(order_by="tags"), "tags has no order"),
        (lambda: notes.find(note_type="rumour"), "filter.note_type: must be one of"),
        (lambda: notes.find(entity=None), "must have a value"),
        (lambda: notes.find(content_hash=b"x"), "cannot be compared"),
        (lambda: notes.find(token_count=2**70), "fit 64 bits"),
    ):
        with pytest.raises(InvalidValue, match=re.escape(said)):
            call()
    for wrong in ({"entity": 5}, {"confidence": "high"}, {"created_at": "today"}, {"token_count": True}, {"after": 5}):
        with pytest.raises(DTypeError):
            notes.find(**wrong)
    with pytest.raises(NotFound):
        notes.get(told.scope_id)
    with pytest.raises(NotFound):
        notes.find(order_by="confidence", after=uuid.uuid4())
    assert notes.find(after=uuid.UUID(int=2**128 - 1)) == []


def test_a_filter_is_compiled_once(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = filters.compile_condition

    def counted(source: Any, *rest: Any) -> Any:
        compiled.append(source.text)
        return real(source, *rest)

    monkeypatch.setattr(filters, "compile_condition", counted)
    for _ in range(3):
        memory.search("x", kinds=["note"], filter="confidence > 0.25")
    assert compiled == ["confidence > 0.25"]
    for at in range(300):
        memory.search("x", kinds=["note"], filter=f"token_count > {at}")
    assert 0 < len(inspect(memory).part(SearchEngine).filters.kept) <= 256
    memory.forget(texts=["nobody"])
    assert inspect(memory).part(SearchEngine).filters.kept == {}


def test_the_parser_waits_for_the_first_text(tmp_path: Any) -> None:
    # an agent that never writes a condition does not pay for the language
    program = """
import sys, caliber
from support.configs import config
memory = caliber.open(config(":memory:", embedding_provider=None))
memory.search("x", filter={"entity": "y"}); memory.records("note").find(entity="y")
assert "lark" not in sys.modules
assert not sys.modules.keys() & {"caliber.schema.declared_memories", "caliber.memories.records"}
assert memory.records("note").find('entity = "y"') == [] and "lark" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parent.parent, timeout=120)


def test_memories_of_asyncio(file_backend: Any) -> None:
    settings = file_backend.config(embedding_provider=None)
    file_backend.create(settings)
    asyncio.run(read(settings))


async def read(settings: Any) -> None:
    async with await caliber.aio.open(settings) as memory:
        kept = await memory.add_note(
            entity="Lisbon", entity_type="city", note_type="fact", content="by the sea", confidence=0.5
        )
        notes = memory.records("note")
        assert notes.name == "note"
        assert [item.note_id for item in await notes.find("confidence >= 0.5")] == [kept.note_id]
        assert await notes.count(entity="Lisbon") == 1
        assert (await notes.get(kept.note_id)).content == "by the sea"
        assert [hit.id for hit in (await notes.search("sea", "confidence < 1")).hits] == [kept.note_id]
        assert [hit.id for hit in (await memory.search("sea", filter="confidence < 1")).hits] == [kept.note_id]
        assert not hasattr(notes, "insert")
