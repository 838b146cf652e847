"""Checks see commits of other processes at once, whatever ``resident.read_consistency`` is. Source: issue 17."""

from __future__ import annotations

from typing import Any

from support.drawn import needs

from caliber.model.guard.validation import IssueType

FACTS = ("The staging Redis instance listens on port 6379.", "The staging Redis instance listens on port 6380.")


@needs("sharing")
def test_checks_see_what_another_process_committed(backend: Any) -> None:
    options = {"policies": [], "jobs__poll_ms": 0, "resident__read_consistency": "local"}
    writer, reader = backend.open(**options), backend.open(**options)
    task = writer.start_trajectory("note ports", user="ana").trajectory_id
    scope = writer.current_scope(task).scope_id
    assert reader.pcp.validate(task).valid
    made = [
        writer.create_artifact(scope, artifact_type="fact", content=text, extraction_method="explicit")
        for text in FACTS
    ]
    writer.flush()
    for target in (task, scope):
        found = [issue.issue_type for issue in reader.pcp.validate(target).issues]
        assert found.count(IssueType.CONTRADICTION) == 1
    newest = writer.create_artifact(scope, artifact_type="code_patch", content="x = 1", extraction_method="explicit")
    assert reader.pcp.lint(newest.artifact_id).issues is not None
    writer.artifacts.end(made[0].artifact_id)
    assert not [issue for issue in reader.pcp.validate(task).issues if issue.issue_type is IssueType.CONTRADICTION]
