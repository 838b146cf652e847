"""The example of the source documents runs: its policies at their triggers, its rules in the window."""

from __future__ import annotations

from pathlib import Path

from support.configs import USER
from support.databases import Backend

import caliber
from caliber.dsl import load_config

EXAMPLE = Path(__file__).parent.parent / "data" / "source_example.caliber"


def test_the_example_of_the_source_documents_runs(backend: Backend) -> None:
    # C-174 to C-182, C-217, C-226, K-063, K-065, K-067
    made = load_config(EXAMPLE, base="reference")
    settings = made.with_overrides(storage=backend.config().to_mapping()["storage"])
    backend.create(settings)
    with caliber.open(settings, principal=caliber.Principal.admin()) as memory:
        task = memory.start_trajectory("choose a parser", initiator=USER).trajectory_id
        scope = memory.current_scope(task)
        assert scope is not None
        for content, confidence in (("The parser is lark.", 0.9), ("The parser may be slow.", 0.4)):
            memory.add_note(
                entity="parser", entity_type="module", note_type="fact", content=content, confidence=confidence
            )
        memory.append_turn(scope.scope_id, role="user", content="We decided: use lark for the parser.")
        for kind in ("design_decision", "fact"):
            memory.create_artifact(
                scope.scope_id, artifact_type=kind, content=f"the lark parser, a {kind}", extraction_method="explicit"
            )
        memory.assemble_context(task, query="lark parser")  # takes what task_start asked for
        window = memory.assemble_context(task, query="lark parser")
        assert "The parser is lark." in window.text
        assert "may be slow" not in window.text  # confidence > 0.5
        assert "a design_decision" in window.text
        assert "a fact" not in window.text  # artifact_type = "design_decision" or artifact_type = "constraint"
        memory.close_scope(scope.scope_id)
        assert "use lark" in memory.assemble_context(task, query="lark parser").text  # the scope's summary
        assert memory.storage.turns.list_by_scope(scope.scope_id) == []  # prune(turn_buffer, older_than(0s))
        memory.complete_trajectory(task, status="success", summary="lark")
        ran = [event.payload for event in reversed(memory.trace(task)) if event.event_type == "policy_execute"]
    assert [(item["policy"], item["action"], item["outcome"]) for item in ran if "policy" in item] == [
        (policy, action, "done")
        for policy, actions in (
            ("context_injection", ("inject note", "inject artifact")),
            ("memory note", ("inject note",)),
            (
                "scope_management",
                ("summarize turn_buffer", "extract_artifacts turn_buffer", "checkpoint scope", "prune turn_buffer"),
            ),
            ("trajectory_completion", ("summarize scope", "extract_artifacts scope", "notify trajectory_complete")),
            ("note_generation", ("consolidate_notes trajectory",)),
        )
        for action in actions
    ]
