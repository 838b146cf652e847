"""Members of the handle: the flat core that every agent uses, two attributes, and facets. Source: design, section 7."""

from __future__ import annotations

from support.api.public_facets import made_by

from caliber.api.caliber import Caliber
from caliber.api.subsystems import Facets

CORE = {
    "start_session", "end_session", "start_trajectory", "complete_trajectory", "suspend_trajectory",
    "resume_trajectory", "trajectory", "open_scope", "close_scope", "current_scope", "append_turn", "append_turns",
    "delete_turn", "delete_turns", "remember", "restore_note",
    "conversations", "create_artifact", "add_note", "update_note", "supersede_note", "end_note", "delete_note",
    "undo_note", "consolidate_notes", "get", "records", "search", "search_many", "assemble_context", "explain",
    "replay", "trace", "forget", "acting_as", "as_user", "as_agent", "transaction", "flush", "close",
}  # fmt: skip
IDENTITY = {"principal", "config"}
"""Attributes, which do nothing: for whom the handle acts, and as what it was opened."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_handle_has_the_core_and_facets() -> None:
    facets = {name for name, value in vars(Facets).items() if isinstance(value, property)}
    assert public(Facets) == facets
    assert public(Caliber) - facets == CORE | IDENTITY


def test_each_facet_is_a_class_of_a_room_with_calls_of_its_own() -> None:
    for name, value in vars(Facets).items():
        if isinstance(value, property):
            facet = made_by(value)
            room = facet.__module__.split(".")[1]
            assert room not in ("api", "engine"), name
            assert public(facet), name
