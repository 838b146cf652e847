"""Built-in relations have names and codes that nothing else has."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from support.inspection import inspect

from caliber.model.time import from_us
from caliber.schema.relation import Relation, integer
from caliber.schema.relations import ARTIFACT, DIRECTORY, JOB, MEMORY_TYPE, NOTE, RELATIONS, check_codes
from caliber.schema.relations.storage import CODE_MAX, FIRST_CODE, LAST_CODE
from caliber.schema.traits import Pruned
from caliber.schema.validity import is_active, is_valid, validity
from caliber.storage.write.ending import prune
from tests.support.declarations import check_declaration


def test_no_two_relations_share_a_name_or_a_code() -> None:
    # issue 12, First, item 4: two relations had the code 47
    relations = {relation.name: relation for relation in (*RELATIONS, *DIRECTORY)}
    assert len({relation.code for relation in relations.values()}) == len(relations)
    assert (MEMORY_TYPE.code, JOB.code) == (47, 51)
    assert all(0 < relation.code < FIRST_CODE for relation in relations.values())


@pytest.mark.parametrize("relation", [*RELATIONS, *DIRECTORY], ids=lambda relation: relation.name)
def test_columns_that_a_declaration_names_are_there(relation: Relation) -> None:
    check_declaration(relation)


@pytest.mark.parametrize(("name", "code", "message"), [
    ("another", NOTE.code, f"note and another both have the code {NOTE.code}"),
    ("note", FIRST_CODE - 1, "two relations have the name note"),
    ("another", FIRST_CODE, f"another has the code {FIRST_CODE}, which is not in 1 to 63"),
    ("another", LAST_CODE, f"another has the code {LAST_CODE}, which is not in 1 to 63 or {LAST_CODE + 1} to"),
    ("another", CODE_MAX + 1, f"another has the code {CODE_MAX + 1}, which is not in 1 to 63"),
    ("another", 0, "another has the code 0, which is not in 1 to 63"),
])  # fmt: skip
def test_relation_whose_code_or_name_is_taken_is_refused(name: str, code: int, message: str) -> None:
    planted = Relation(
        name, "others", object, (integer("number"),), ("number",), code, "Planted.",
        derived=None, erase=None, links=None, trust=None, exported=None,
    )  # fmt: skip
    with pytest.raises(AssertionError, match=message):
        check_codes((*RELATIONS, planted))


_SHARED_CODE = """
from caliber.schema import relation

class SharedCode(relation.Relation):
    def __init__(self, **fields):
        super().__init__(**{**fields, "code": 47} if fields["name"] == "job" else fields)

relation.Relation = SharedCode
import caliber.schema.relations
"""


@pytest.mark.parametrize("options", [(), ("-O",)])
def test_codes_are_checked_when_relations_are_imported(options: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, *options, "-c", _SHARED_CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith("AssertionError: job and memory_type both have the code 47\n"), done.stderr


# --- validity --------------------------------------------------------------------------------------
# Before it was declared once, a superseded record was still given vectors, and was pruned a second time.
# Source: K-080, K-190, C-228, C-452; docs/decisions/0203.


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
