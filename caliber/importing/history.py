"""Importer of a git history as one trajectory: each commit becomes two turns, each month a scope.

Closing a scope runs the configured policies, so a finished month leaves a summary and artifacts of its messages; the
current month stays open and is read turn by turn. A scope ends after a hundred commits, too. Source:
docs/decisions/0022.

Source: docs/decisions/0022.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from caliber.api.caliber import Caliber
from caliber.importing.git import Commit, Repository
from caliber.importing.source import Imported, open_scope_of
from caliber.model.trajectory import Scope, Trajectory, TurnRole
from caliber.model.trust import TrustLabel

SCOPE_COMMITS: Final = 100
"""Most commits of one scope: as many as a window can hold as turns, and a summary can cover."""
_SHOWN_FILES: Final = 12
_KEY: Final = "git:"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")


def import_history(
    memory: Caliber,
    repository: Repository,
    trajectories: Sequence[Trajectory],
    done: Imported,
    *,
    limit: int | None,
    trust: TrustLabel,
    started: Callable[[int], Callable[[int], None]],
) -> None:
    """Append the commits that none of ``trajectories`` has to the last of them, oldest first.

    ``started`` is called with their number, and returns a counter.
    """
    trajectory = trajectories[-1]
    scope = open_scope_of(memory, trajectory)
    imported, month, in_scope = _known(memory, trajectories, scope)
    hashes = repository.hashes(limit)
    fresh = [name for name in hashes if name not in imported]
    done.commits_known = len(hashes) - len(fresh)
    advance = started(len(fresh))
    batch: list[Commit] = []

    def store() -> None:
        nonlocal batch
        if batch:
            turns = memory.append_turns(scope.scope_id, [turn_of(commit, trust) for commit in batch])
            done.commits += len(batch)
            done.turns += len(turns)
            advance(len(batch))
            batch = []

    for commit in repository.commits(fresh):
        later = "" if commit.authored_at is None else commit.authored_at.strftime("%Y-%m")
        if in_scope and (in_scope >= SCOPE_COMMITS or (later and month and later > month)):
            store()
            memory.close_scope(scope.scope_id)
            done.scopes_closed += 1
            scope = memory.open_scope(trajectory.trajectory_id)
            in_scope = 0
        month = max(month, later)
        in_scope += 1
        batch.append(commit)
    store()


def _known(memory: Caliber, trajectories: Sequence[Trajectory], current: Scope) -> tuple[set[str], str, int]:
    """Return the commits stored already, the newest month among them, and how many the open scope has."""
    imported: set[str] = set()
    month = ""
    in_scope = 0
    scopes = memory.storage.scopes
    for scope in [item for each in trajectories for item in scopes.list_by_trajectory(each.trajectory_id)]:
        for turn in memory.storage.turns.list_by_scope(scope.scope_id):
            if turn.role is TurnRole.USER and (turn.idempotency_key or "").startswith(_KEY):
                imported.add(turn.idempotency_key.split(":")[1])
                in_scope += scope.scope_id == current.scope_id
                if turn.occurred_at is not None:
                    month = max(month, turn.occurred_at.strftime("%Y-%m"))
    return imported, month, in_scope


def turn_of(commit: Commit, trust: TrustLabel) -> dict[str, Any]:
    """Return a commit as one turn, in the words of its author, who is not the user: its message and its changes."""
    author = " ".join(_CONTROL.sub(" ", commit.author).split())[:200] or None
    return {
        "role": "user",
        "content": (commit.message or b"(no message)") + f"\n\n{changes_text(commit)}".encode(),
        "name": author,
        "occurred_at": commit.authored_at,
        "idempotency_key": f"{_KEY}{commit.hash}:message",
        "trust": trust,
    }


def changes_text(commit: Commit) -> str:
    """Return the changes of a commit in the form of ``git log --stat``."""
    short = commit.hash[:10]
    if not commit.files:
        merged = f"a merge of {', '.join(parent[:10] for parent in commit.parents[1:])}"
        return f"commit {short}: {merged if len(commit.parents) > 1 else 'no files changed'}"
    plus = sum(item[0] or 0 for item in commit.files)
    minus = sum(item[1] or 0 for item in commit.files)
    count = len(commit.files)
    lines = [f"commit {short}: {count} file{'s' if count != 1 else ''} changed, +{plus} −{minus}"]
    for added, deleted, path in commit.files[:_SHOWN_FILES]:
        lines.append(f"  {path}  {'binary' if added is None or deleted is None else f'+{added} −{deleted}'}")
    if count > _SHOWN_FILES:
        lines.append(f"  … and {count - _SHOWN_FILES} more")
    return "\n".join(lines)
