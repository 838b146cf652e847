"""Names of a forgotten user: those that are nobody else's are searched, plain words found by the kind of a record."""

from __future__ import annotations

from typing import Any

import pytest
from support.erasure.byte_search import searched
from support.evidence import share

import caliber
from caliber.erasure.subject import Subject
from caliber.model import Principal

OPAQUE = "k7f3c9d2e1b4a55"


def note(memory: caliber.Caliber, entity: str, content: str, kind: str = "person", **options: Any) -> Any:
    return memory.add_note(entity=entity, entity_type=kind, content=content, confidence=0.9, **options)


def contents(memory: caliber.Caliber) -> set[str]:
    """Return the contents of all notes that are stored."""
    return {each.content for each in memory.acting_as(Principal.admin()).storage.notes.all()}


def test_an_opaque_id_is_searched_everywhere(backend: Any, tmp_path: Any) -> None:
    memory = backend.open()
    memory.start_trajectory("x", user=OPAQUE)
    other = memory.acting_as(Principal.user("o@example.com"))
    other.remember([{"role": "user", "content": f"My contact {OPAQUE} lives in Zagreb."}])
    note(memory, OPAQUE, "is diabetic", "user")
    note(memory, "the house", f"belongs to {OPAQUE}", "thing")
    assert memory.forget(user=OPAQUE).proven
    assert contents(memory) == {"belongs to [forgotten]"}
    assert not list(searched(backend, memory, tmp_path, [OPAQUE.encode(), b"diabetic"]))


@pytest.mark.parametrize(
    ("name", "entities"), [("maria", ("maria", "Maria")), ("ana@example.com", ("ana@example.com",) * 2)]
)
def test_notes_about_a_user_go_as_a_person_and_as_a_user(
    memory: caliber.Caliber, name: str, entities: tuple[str, str]
) -> None:
    memory.start_trajectory("x", user=name)
    for entity, kind in zip(entities, ("person", "user"), strict=True):
        note(memory, entity, "is diabetic", kind)
    assert memory.forget(user=name).proven
    assert contents(memory) == set()


def test_records_that_a_plain_name_may_not_mean_are_left_and_reported(memory: caliber.Caliber) -> None:
    memory.start_trajectory("x", user="maria")
    note(memory, "maria", "is a ship", "thing")
    note(memory, "the cellar", "Maria has the key", "place")
    note(memory, "maria", "is my neighbour", user="bob")
    note(memory, "annamaria", "is somebody else")
    report = memory.forget(user="maria")
    assert not report.proven
    assert "may name somebody else" in report.remaining[0]
    assert "notes (3)" in report.remaining[0]
    assert contents(memory) == {"is a ship", "Maria has the key", "is my neighbour", "is somebody else"}

    admin = memory.acting_as(Principal.admin())
    again = admin.forget(user="maria", texts=("maria",), even_if_shared=True)
    assert again.proven
    assert contents(memory) == {"[forgotten] has the key", "is somebody else"}


@pytest.mark.parametrize("name", share(["a", "12", "%", "note", "\u200b\u2060x", "💥"], 1, daily=3))
def test_a_name_that_is_too_short_to_search_is_reported_where_it_is(memory: caliber.Caliber, name: str) -> None:
    memory.start_trajectory("hello", user=name)
    assert memory.forget(user=name).proven
    memory.start_trajectory(f"call {name} back", user="bob")
    report = memory.forget(user=name)
    assert not report.proven
    assert "trajectories" in report.remaining[0]


@pytest.mark.parametrize(
    ("name", "is_sure"),
    [
        (OPAQUE, True), ("ana@example.com", True), ("auth0|55", True), ("maria1985", True),
        ("Ben Miller", True), ("u_1042", True),
        ("maria", False), ("Überall", False), ("covid19", False), ("iphone15", False), ("ana", False), ("12", False),
        ("fact", False), ("王小明", False), ("1234567", False), ("2024-01-02", False), ("मारिया", False),
        ("José", False),
        ("Jose\u0301", False), ("O'Neil", False), ("O\u2019Neil-Smith", False), ("anna-lena", False),
        ("+491701234567", True), ("anna-lena.m", True), ("anna-1985", True), ("Anna-Lena Miller", True),
    ],
)  # fmt: skip
def test_words_and_names_that_are_nobody_elses(name: str, is_sure: bool) -> None:
    subject = Subject.of(caliber.EntityRef.user("x"), (), names=[name])
    assert (subject.texts == (name,)) is is_sure
    assert (subject.doubtful is None) is is_sure


@pytest.mark.parametrize(("text", "left"), [
    ("see Plughart.PDF.", "see [forgotten].PDF."),
    ("files/cv_plughart.docx, plughart.jpg", "files/cv_[forgotten].docx, [forgotten].jpg"),
    ("plughart.pdfs and plughart.rs", "plughart.pdfs and plughart.rs"),
    ("cv-plughart.pdf or plughart-cv.pdf", "cv-plughart.pdf or plughart-cv.pdf"),
])  # fmt: skip
def test_a_file_may_have_the_name_of_its_person(memory: caliber.Caliber, text: str, left: str) -> None:
    task = memory.start_trajectory("x", user="bob")
    scope = memory.current_scope(task.trajectory_id)
    turn = memory.append_turn(scope.scope_id, role="user", content=text)
    admin = memory.acting_as(Principal.admin())
    memory.start_trajectory("y", user="plughart")
    # A plain word may be anybody's, also in the name of a file.
    assert memory.forget(user="plughart").proven is (left == text)
    report = admin.forget(texts=["plughart"])
    assert report.proven
    assert admin.get(turn.turn_id).content.decode() == left
    assert (report.inside_words > 0) is (left == text)
