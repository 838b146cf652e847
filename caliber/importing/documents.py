"""Importer of documents and decision records as notes per section, of other files as artifacts, and of git.

A section's note is named after its path and headings. Unchanged sections are left alone, changed ones are superseded,
removed ones archived: memory matches the present documents, and old windows still replay. In a task with an owner
sections are artifacts too: artifacts belong to the owner, notes to everybody.

A git history is one trajectory: each commit becomes two turns, each month a scope. Closing a scope runs the configured
policies, so a finished month leaves a summary and artifacts of its messages; the current month stays open and is read
turn by turn. A scope ends after a hundred commits, too.

Source: docs/decisions/0022.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from caliber.api.caliber import Caliber
from caliber.importing.git import Commit, Repository
from caliber.importing.source import Imported, open_scope_of
from caliber.model.arguments import MAX_NAME_CHARS
from caliber.model.knowledge import Note, NoteType
from caliber.model.references import EntityType
from caliber.model.time import SystemClock, from_us
from caliber.model.trajectory import Artifact, ArtifactType, Scope, Trajectory, TurnRole
from caliber.model.trust import TrustLabel
from caliber.text import sections

ARTIFACT_CHARS: Final = 6_000
"""Longest artifact made of a file that is no document: a screen or two of code."""
_DECISION_FOLDERS: Final = re.compile(r"(^|/)(adrs?|decisions|decision-records|rfcs?)/[^/]+$", re.IGNORECASE)
_DECISION_NAMES: Final = re.compile(r"(^|/)(adr[-_ ]?\d+|\d{3,4}[-_])[^/]*\.(md|markdown|rst|adoc|txt)$", re.IGNORECASE)
_INDEX_NAMES: Final = frozenset(("readme", "index", "template", "adr-template", "0000-template"))
_DECISION_WORDS: Final = re.compile(
    r"^\W*(status|context|decision|consequences|why|instead of)\b", re.IGNORECASE | re.MULTILINE
)
_TOP_NAMES: Final = re.compile(
    r"(readme|contributing|changelog|changes|history|news|architecture|design|security|authors|install|governance|"
    r"roadmap|upgrading|migration|code_of_conduct)([._-][^/]*)?$",
    re.IGNORECASE,
)
_DOCUMENT_FOLDERS: Final = re.compile(r"(^|/)docs?/", re.IGNORECASE)
_PROCEDURES: Final = re.compile(
    r"\b(install|usage|getting started|how to|build|develop|run|test|release|deploy|setup|quick ?start)", re.IGNORECASE
)
_KEY: Final = "file:"


def is_document(path: str) -> bool:
    """Return whether a file of a repository is one that explains it: README and its like, docs, decision records."""
    suffix = PurePosixPath(path).suffix.lower()
    if suffix not in sections.DOCUMENT_SUFFIXES:
        return False
    name = PurePosixPath(path).name
    if _TOP_NAMES.match(name):
        return suffix != ".txt" or path.count("/") == 0
    return suffix != "" and suffix != ".txt" and (bool(_DOCUMENT_FOLDERS.search(path)) or is_decision_path(path))


def is_decision_path(path: str) -> bool:
    """Return whether a path is where decision records are kept."""
    stem = PurePosixPath(path).stem.lower()
    return stem not in _INDEX_NAMES and bool(_DECISION_FOLDERS.search(path) or _DECISION_NAMES.search(path))


def is_decision(path: str, text: str) -> bool:
    """Return whether a document is a decision record: kept like one, or written like one."""
    words = {match.lower() for match in _DECISION_WORDS.findall(text)}
    if is_decision_path(path):
        return bool(words & {"decision", "status", "context", "why"})
    return words >= {"status", "context", "decision"}


def as_text(raw: bytes) -> str | None:
    """Return bytes as text, or None for binary content."""
    if b"\0" in raw[:8192] and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return None
    for encoding in ("utf-8-sig", "utf-16") if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else ("utf-8-sig",):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    text = raw.decode("latin-1")
    odd = sum(1 for char in text[:8192] if ord(char) < 32 and char not in "\t\n\r\f")
    return None if odd > len(text[:8192]) // 100 else text


def name_space(name: str, trajectory: Trajectory) -> str:
    """Return the namespace of a source's notes: readable, and different for sources of one name."""
    return f"{name[:200]}@{trajectory.initiator.id.hex[:8]}"


class Documents:
    """The documents of one source in memory, compared with their present text; ``trust`` is their label.

    Records imported under another label before are replaced, as if they had changed. Content that the notes of
    ``others``, other imports of the same files, hold already is not stored again.
    """

    def __init__(
        self,
        memory: Caliber,
        trajectory: Trajectory,
        namespace: str,
        done: Imported,
        trust: TrustLabel,
        others: Iterable[Trajectory] = (),
    ) -> None:
        self._memory = memory
        self._trust = trust
        self._trajectory = trajectory
        self._namespace = namespace
        self._done = done
        self._scope = open_scope_of(memory, trajectory)
        self._now = from_us(SystemClock().now_us())
        self._shared = trajectory.initiator.entity_type is EntityType.SYSTEM
        self._notes: dict[tuple[str, str], list[Note]] = {}
        self._imported: set[tuple[str, NoteType]] = set()
        besides = {name_space("", other) for other in others if other.trajectory_id != trajectory.trajectory_id}
        for note in memory.storage.notes.all() if self._shared else ():
            if note.namespace is None or not note.active:
                continue
            source = f"@{note.namespace.rpartition('@')[2]}"
            if source == name_space("", trajectory):  # whatever the identity of the source was then
                self._notes.setdefault((note.entity, note.entity_type), []).append(note)
            elif source in besides and note.trust is trust:
                self._imported.add((note.content, note.note_type))
        self._artifacts: dict[str, list[Artifact]] = {}
        for artifact in memory.storage.artifacts.list_by_trajectory(trajectory.trajectory_id):
            if artifact.superseded_by is None and artifact.retired_at is None and artifact.rolled_back_at is None:
                self._artifacts.setdefault(_place(artifact.idempotency_key), []).append(artifact)

    def document(self, path: str, text: str) -> None:
        """Keep a document: sections as notes; a decision record whole as an artifact, and in short as a note.

        For an owner nothing becomes a note.
        """
        self._done.documents += 1
        if is_decision(path, text):
            self._done.decisions += 1
            self._artifact(path, text, ArtifactType.DESIGN_DECISION)
            if self._shared:
                self._note(path, "decision", NoteType.STRATEGY, decision_in_short(path, text))
            return
        seen: dict[str, int] = {}
        for section in sections.split(path, text):
            name = f"{path} § {section.title}" if section.title else path
            seen[name] = seen.get(name, 0) + 1
            entity = name if seen[name] == 1 else f"{name} ({seen[name]})"
            kind = NoteType.PROCEDURE if _PROCEDURES.search(section.title) else NoteType.FACT
            if self._shared:
                self._note(entity[:MAX_NAME_CHARS], "document", kind, section.text)
            else:
                self._artifact(entity, f"{entity}\n{section.text}", ArtifactType.FACT)

    def file(self, path: str, text: str) -> None:
        """Keep a file that is no document, such as code, as artifacts of a screen or two."""
        self._done.documents += 1
        pieces = sections.parts(text.rstrip(), ARTIFACT_CHARS)
        for number, piece in enumerate(pieces, 1):
            place = path if len(pieces) == 1 else f"{path} ({number} of {len(pieces)})"
            if piece.strip():
                self._artifact(place, f"{place}\n{piece}", ArtifactType.CUSTOM)

    def finish(self) -> None:
        """Archive the notes whose text is in none of the documents any more."""
        for notes in self._notes.values():
            for note in notes:
                self._memory.storage.notes.update(note.note_id, archived_at=self._now)
                self._done.notes_archived += 1
        for artifacts in self._artifacts.values():
            for artifact in artifacts:
                if artifact.idempotency_key is not None and artifact.idempotency_key.startswith(_KEY):
                    self._memory.storage.artifacts.update(artifact.artifact_id, retired_at=self._now)

    def _note(self, entity: str, entity_type: str, note_type: NoteType, content: str) -> None:
        before = self._notes.pop((entity, entity_type), [])
        if not before and (content, note_type) in self._imported:
            self._done.notes_known += 1
            return
        same = [
            note
            for note in before
            if note.content == content and note.note_type is note_type and note.trust is self._trust
        ]
        if same:
            self._done.notes_known += 1
            current = same[0]
        else:
            current = self._memory.add_note(
                entity=entity,
                entity_type=entity_type,
                note_type=note_type,
                content=content,
                confidence=1.0,
                namespace=self._namespace,
                source_trajectory_ids=(self._trajectory.trajectory_id,),
                trust=self._trust,
            )
            self._done.notes += 1
        for note in before:
            if note.note_id != current.note_id:
                self._memory.storage.notes.update(note.note_id, superseded_by=current.note_id)
                self._done.notes_replaced += 1

    def _artifact(self, place: str, text: str, artifact_type: ArtifactType) -> None:
        digest = hashlib.sha256(f"{self._trust.value}\0{text}".encode()).hexdigest()
        key = f"{_KEY}{place[-900:]}:{digest}"
        before = self._artifacts.pop(_place(key), [])
        current = next((item for item in before if item.idempotency_key == key), None)
        if current is not None:
            self._done.artifacts_known += 1
        else:
            current = self._memory.create_artifact(
                self._scope.scope_id,
                artifact_type=artifact_type,
                content=text,
                extraction_method="explicit",
                confidence=1.0,
                idempotency_key=key,
                trust=self._trust,
            )
            if current.superseded_by is not None or current.retired_at is not None:
                # The file has an earlier content again: that version becomes active again.
                self._memory.storage.artifacts.update(current.artifact_id, superseded_by=None, retired_at=None)
            if current.idempotency_key == key:
                self._done.artifacts += 1
            else:  # another file has the same text; content is stored once per trajectory
                self._done.artifacts_known += 1
                return
        for artifact in before:
            if artifact.artifact_id != current.artifact_id:
                self._memory.storage.artifacts.update(artifact.artifact_id, superseded_by=current.artifact_id)
                self._done.artifacts_replaced += 1


def _place(key: str | None) -> str:
    return "" if key is None else key.rpartition(":")[0]


def decision_in_short(path: str, text: str) -> str:
    """Return a decision's title and its outcome, as one short text."""
    found = sections.split(path, text)
    title = sections.title_of(path, text)
    decided = next(
        (item for item in found if re.search(r"\bdecision\b", item.title, re.IGNORECASE)), found[0] if found else None
    )
    body = "" if decided is None else decided.text
    return sections.parts(f"{title}\n{body}".strip(), 800)[0]


SCOPE_COMMITS: Final = 100
"""Most commits of one scope: as many as a window can hold as turns, and a summary can cover."""
_SHOWN_FILES: Final = 12
_COMMIT_KEY: Final = "git:"
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
            if turn.role is TurnRole.USER and (turn.idempotency_key or "").startswith(_COMMIT_KEY):
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
        "idempotency_key": f"{_COMMIT_KEY}{commit.hash}:message",
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
