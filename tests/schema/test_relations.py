"""Built-in relations have names and codes that nothing else has."""

from __future__ import annotations

import subprocess
import sys

import pytest

from caliber.schema.relation import Relation, integer
from caliber.schema.relations import DIRECTORY, JOB, MEMORY_TYPE, NOTE, RELATIONS, check_codes
from caliber.schema.relations.memory import CODE_MAX, FIRST_CODE, LAST_CODE
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


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("another", NOTE.code, f"note and another both have the code {NOTE.code}"),
        ("note", FIRST_CODE - 1, "two relations have the name note"),
        ("another", FIRST_CODE, f"another has the code {FIRST_CODE}, which is not in 1 to 63"),
        ("another", LAST_CODE, f"another has the code {LAST_CODE}, which is not in 1 to 63 or {LAST_CODE + 1} to"),
        ("another", CODE_MAX + 1, f"another has the code {CODE_MAX + 1}, which is not in 1 to 63"),
        ("another", 0, "another has the code 0, which is not in 1 to 63"),
    ],
)
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
