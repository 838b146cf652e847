"""``ingest git``: histories of every kind, documents that change, and repositories that mean harm."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
from support.cli_runs import caliber, caliber_json, commit, git, many_commits, repository

import caliber as package
from caliber.api.caliber import Caliber
from caliber.importing.documents import SCOPE_COMMITS
from caliber.importing.git import Repository

DECISION = "# 0001: Use apsw\n\n**Decision.** SQLite is reached through apsw.\n\n**Why.** It exposes all of SQLite.\n"
README = (
    "# Engine\n\nAn engine that remembers everything you tell it.\n\n## Install\n\nRun pip install engine, and start.\n"
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of three commits in two months, with documents."""
    folder = repository(tmp_path_factory.mktemp("made") / "engine")
    commit(
        folder,
        "Start the engine\n\nIt runs.",
        {"engine.py": "x = 1\n", "logo.png": b"\x89PNG\0\0"},
        "2024-01-10T10:00:00+01:00",
    )
    commit(
        folder,
        "Document it",
        {"README.md": README, "docs/decisions/0001-apsw.md": DECISION},
        "2024-01-20T10:00:00+00:00",
    )
    commit(folder, "Make it faster", {"engine.py": "x = 2\ny = 3\n"}, "2024-02-01T09:00:00+00:00")
    return folder


@pytest.fixture
def source(here: Path, engine: Path) -> Path:
    """A copy of it, to change."""
    return shutil.copytree(engine, here / "engine", symlinks=True)


def opened() -> Caliber:
    return package.open("caliber.toml", principal=package.Principal.admin())


def notes() -> dict[str, str]:
    with opened() as memory:
        return {note.entity: note.content for note in memory.storage.notes.all() if note.active}


def test_commits_become_turns_and_months_become_scopes(source: Path) -> None:
    found = caliber_json("ingest", "git", "engine")
    assert found["counts"]["commits"] == 3
    assert found["counts"]["scopes_closed"] == 1
    with opened() as memory:
        first, second = memory.storage.scopes.list_by_trajectory(uuid.UUID(found["trajectory_id"]))
        turns = memory.storage.turns.list_by_scope(first.scope_id)
        assert [turn.role.value for turn in turns] == ["user"] * 2
        assert turns[0].text.startswith("Start the engine\n\nIt runs.\n\ncommit ")
        assert turns[0].name == "Ada Lovelace"
        assert turns[0].occurred_at.isoformat() == "2024-01-10T09:00:00+00:00"
        assert "2 files changed, +1 −0" in turns[0].text
        assert "logo.png  binary" in turns[0].text
        assert first.closed_at is not None
        assert first.summary
        assert second.is_open
        assert second.turn_count == 1


def test_documents_become_notes_and_decisions_become_artifacts_too(source: Path) -> None:
    caliber("ingest", "git", "engine")
    kept = notes()
    assert kept["README.md § Install"].startswith("Run pip install")
    assert "exposes" not in kept["README.md § Install"]
    assert kept["docs/decisions/0001-apsw.md"].startswith("0001: Use apsw")
    with opened() as memory:
        artifacts = [item for item in memory.storage.artifacts.all() if item.artifact_type == "design_decision"]
        assert DECISION in [item.text for item in artifacts]
    hits = caliber_json("search", "how do I install it", "--kind", "note")["hits"]
    assert hits[0]["label"] == "README.md § Install"


def test_importing_again_adds_nothing_and_says_so(source: Path) -> None:
    first = caliber_json("ingest", "git", "engine")
    before = caliber_json("stats")["records"]
    result = caliber("ingest", "git", "engine")
    assert "nothing was added" in result.stdout
    again = caliber_json("ingest", "git", "engine")
    assert again["added"] == 0
    assert again["counts"]["commits_known"] == 3
    assert again["trajectory_id"] == first["trajectory_id"]
    after = caliber_json("stats")["records"]
    for kind in ("trajectory", "scope", "turn", "note", "artifact", "embedding"):
        assert after[kind] == before[kind], kind


def test_a_clone_elsewhere_is_the_same_history(source: Path, here: Path) -> None:
    first = caliber_json("ingest", "git", "engine")
    git(here, "clone", "-q", str(source), "copy")
    git(here, "clone", "-q", "--bare", str(source), "bare.git")
    for path in ("copy", "bare.git"):
        again = caliber_json("ingest", "git", path)
        assert again["added"] == 0
        assert again["trajectory_id"] == first["trajectory_id"]


def test_new_commits_go_on_where_the_last_import_ended(source: Path) -> None:
    caliber("ingest", "git", "engine")
    commit(source, "Fix it", {"engine.py": "x = 4\n"}, "2024-02-02T09:00:00+00:00")
    found = caliber_json("ingest", "git", "engine")
    assert (found["counts"]["commits"], found["counts"]["scopes_closed"]) == (1, 0)
    commit(source, "A new month", {"engine.py": "x = 5\n"}, "2024-03-02T09:00:00+00:00")
    found = caliber_json("ingest", "git", "engine")
    assert (found["counts"]["commits"], found["counts"]["scopes_closed"]) == (1, 1)
    with opened() as memory:
        numbers = [turn.turn_number for turn in memory.storage.turns.all()]
        assert numbers == list(range(5))


def test_documents_that_change_replace_what_they_said(source: Path) -> None:
    caliber("ingest", "git", "engine")
    commit(source, "Say it better", {"README.md": README.replace("and start", "and wait")})
    found = caliber_json("ingest", "git", "engine")["counts"]
    assert (found["notes"], found["notes_replaced"], found["notes_archived"]) == (1, 1, 0)
    assert notes()["README.md § Install"].endswith("and wait.")
    hits = caliber_json("search", "how do I install it", "--kind", "note")["hits"]
    assert not [hit for hit in hits if "and start" in hit["content"]]
    commit(source, "Back again", {"README.md": README})
    caliber("ingest", "git", "engine")
    assert notes()["README.md § Install"].endswith("and start.")
    commit(source, "Less", {"README.md": "# Engine\n\nAn engine that remembers everything you tell it.\n"})
    assert caliber_json("ingest", "git", "engine")["counts"]["notes_archived"] == 1
    assert "README.md § Install" not in notes()
    assert caliber_json("db", "check")["ok"]


def test_decisions_that_change_supersede_and_can_come_back(source: Path) -> None:
    def in_force() -> list[str]:
        with opened() as memory:
            return [
                item.text
                for item in memory.storage.artifacts.all()
                if (item.idempotency_key or "").startswith("file:")
                and item.superseded_by is None
                and item.retired_at is None
            ]

    name = "docs/decisions/0001-apsw.md"
    other = DECISION.replace("apsw", "sqlite3")
    for text in (DECISION, other, DECISION):
        commit(source, "Decide", {name: text})
        caliber("ingest", "git", "engine")
        assert in_force() == [text]
    assert caliber_json("ingest", "git", "engine")["added"] == 0
    commit(source, "Undecide", {name: None})
    caliber("ingest", "git", "engine")
    assert in_force() == []


def test_windows_from_before_a_change_still_replay(source: Path) -> None:
    caliber("ingest", "git", "engine")
    window = caliber_json("context", "latest", "--query", "how do I install it")
    commit(source, "Say it better", {"README.md": "# Engine\n\nGone.\n", "docs/decisions/0001-apsw.md": None})
    caliber("ingest", "git", "engine")
    again = caliber_json("replay", window["window_id"])
    assert again["identical"]
    assert again["text"] == window["text"]


def test_what_is_not_committed_stays_out(source: Path) -> None:
    (source / "README.md").write_text("# Secret\n\nNothing that was committed, only being written.\n")
    caliber("ingest", "git", "engine")
    assert not [content for content in notes().values() if "being written" in content]


def test_limit_and_no_documents(source: Path) -> None:
    found = caliber_json("ingest", "git", "engine", "--limit", "1", "--no-documents")["counts"]
    assert (found["commits"], found["notes"]) == (1, 0)


def test_messages_in_any_encoding_are_kept_byte_for_byte(here: Path) -> None:
    folder = repository(here / "odd")
    who = b"A <a@b> 1700000000 +0000"
    script = b"commit refs/heads/main\nauthor %s\ncommitter %s\ndata 16\nbroken \xff\xfe utf-8\x01"
    script += b"M 644 inline a\ndata 1\n1\n"
    git(folder, "fast-import", "--quiet", raw=script.replace(b"%s", who))
    git(folder, "reset", "-q", "--hard")
    commit(folder, b"", {"a": "2"})
    commit(folder, "3\t4\tlooks/like/numstat\n\ndiff --git a/x b/x\n\x1e\x1d", {"a\nb": "3", 'q"uote': "4", "ü": "5"})
    git(folder, "config", "i18n.commitEncoding", "ISO-8859-1")
    commit(folder, "Zürich".encode("latin-1"), {"a": "6"})
    found = caliber_json("ingest", "git", "odd")
    assert found["counts"]["commits"] == 4
    with opened() as memory:
        turns = list(memory.storage.turns.all())
        assert turns[0].content.startswith(b"broken \xff\xfe utf-8\x01\n")
        assert turns[1].text.startswith("(no message)\n")
        assert turns[2].text.startswith("3\t4\tlooks/like/numstat")
        assert "3 files changed, +3 −0" in turns[2].text
        assert turns[3].text.startswith("Zürich\n")
    assert caliber_json("ingest", "git", "odd")["added"] == 0


def test_merges_root_commits_and_empty_commits(here: Path) -> None:
    folder = repository(here / "merged")
    commit(folder, "root", {"a": "1"})
    git(folder, "checkout", "-q", "-b", "side")
    commit(folder, "side", {"b": "1"})
    git(folder, "checkout", "-q", "main")
    commit(folder, "nothing", {})
    git(folder, "merge", "-q", "--no-ff", "-m", "join", "side")
    assert caliber_json("ingest", "git", "merged")["counts"]["commits"] == 4
    with opened() as memory:
        said = [turn.text for turn in memory.storage.turns.all()]
    assert any("a merge of" in text for text in said)
    assert any("no files changed" in text for text in said)


def test_dates_that_no_calendar_has_do_not_stop_an_import(here: Path) -> None:
    folder = repository(here / "old")
    when = ("0", "99999999999999")
    script = "".join(
        f"commit refs/heads/main\nmark :{at}\nauthor A <a@b> {seconds} +0000\ncommitter A <a@b> {seconds} +0000\n"
        f"data 1\nm\n{'' if at == 1 else 'from :1' + chr(10)}M 100644 inline f\ndata 1\n{at}\n"
        for at, seconds in enumerate(when, 1)
    )
    git(folder, "fast-import", "--quiet", raw=script.encode())
    assert caliber_json("ingest", "git", "old")["counts"]["commits"] == 2


def test_an_empty_repository_is_said_to_be_empty(here: Path) -> None:
    repository(here / "empty")
    result = caliber("ingest", "git", "empty")
    assert "no commits yet" in result.stdout
    assert caliber_json("ingest", "git", "empty")["empty"]


def test_a_folder_without_git_and_no_folder_at_all(here: Path) -> None:
    (here / "plain").mkdir()
    said = caliber("ingest", "git", "plain", code=2).stderr
    assert "not a git repository" in said
    assert "ingest files" in said
    assert "no such folder" in caliber("ingest", "git", "nowhere", code=2).stderr


def test_a_shallow_clone_says_so_and_goes_on_once_deepened(source: Path, here: Path) -> None:
    git(here, "clone", "-q", "--depth", "1", source.as_uri(), "shallow")
    found = caliber_json("ingest", "git", "shallow")
    assert found["shallow"]
    assert found["counts"]["commits"] == 1
    assert "--unshallow" in caliber("ingest", "git", "shallow").stdout
    git(here / "shallow", "fetch", "-q", "--unshallow")
    whole = caliber_json("ingest", "git", "shallow")
    assert whole["trajectory_id"] == found["trajectory_id"]
    assert (whole["counts"]["commits"], whole["counts"]["commits_known"]) == (2, 1)


def test_a_missing_git_program_is_said_to_be_missing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "install git" in caliber("ingest", "git", "engine", code=2).stderr


def test_a_repository_cannot_start_programs_through_its_configuration(source: Path, here: Path) -> None:
    trap = here / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {here / 'sprung'}\n")
    trap.chmod(0o755)
    for name in (
        "core.fsmonitor",
        "diff.external",
        "core.pager",
        "log.showSignature",
        "gpg.program",
        "diff.x.textconv",
    ):
        git(source, "config", name, "true" if name == "log.showSignature" else str(trap))
    (source / ".gitattributes").write_text("*.py diff=x\n")
    git(source, "config", "color.ui", "always")
    git(source, "config", "log.decorate", "full")
    found = caliber_json("ingest", "git", "engine")
    caliber("ingest", "files", "engine")
    assert found["counts"]["commits"] == 3
    assert not (here / "sprung").exists()


def test_inside_a_hook_the_repository_asked_for_is_read(
    source: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = repository(here / "other")
    commit(other, "other", {"a": "1"})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert caliber_json("ingest", "git", "engine")["counts"]["commits"] == 3


def test_paths_that_look_like_options(here: Path) -> None:
    folder = repository(here / "--upload-pack=x")
    commit(folder, "one", {"README.md": README})
    assert json.loads(caliber("--json", "ingest", "git", "--", "--upload-pack=x").stdout)["counts"]["commits"] == 1


def test_credentials_in_an_address_are_not_remembered(source: Path) -> None:
    git(source, "remote", "add", "origin", "https://ada:hunter2@example.org/team/engine.git")
    found = caliber("ingest", "git", "engine", "--json").stdout
    assert "hunter2" not in found
    assert Repository(source).origin == "https://example.org/team/engine.git"
    assert b"hunter2" not in Path("caliber.db").read_bytes()


def test_long_histories_are_cut_into_scopes_of_a_hundred(here: Path) -> None:
    many_commits(here / "long", 250)
    found = caliber_json("ingest", "git", "long")
    assert found["counts"]["commits"] == 250
    with opened() as memory:
        counts = [scope.turn_count for scope in memory.storage.scopes.all()]
    assert sum(counts) == 250
    assert max(counts) <= SCOPE_COMMITS


def test_two_imports_at_once_add_everything_once(source: Path, here: Path) -> None:
    from support.cli_runs import command

    runs = [
        subprocess.Popen(
            command("ingest", "git", "engine", "--json"), cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    said = [run.communicate(timeout=60) for run in runs]
    assert all(run.returncode in (0, 1) for run in runs), said
    assert any(run.returncode == 0 for run in runs)
    caliber("ingest", "git", "engine")
    records = caliber_json("stats")["records"]
    assert (records["trajectory"], records["turn"]) == (1, 3)
    assert len(notes()) == 3


def test_a_principal_that_is_no_admin_is_told_what_is_missing(source: Path, here: Path) -> None:
    file = here / "caliber.toml"
    file.write_text(file.read_text().replace('kind = "application"', 'kind = "human"'))
    assert "add --as admin" in caliber("ingest", "git", "engine", code=2).stderr
    caliber("ingest", "git", "engine", "--as", "admin")


def test_a_trajectory_that_ended_or_paused_is_gone_on_with_sensibly(source: Path) -> None:
    first = caliber_json("ingest", "git", "engine")["trajectory_id"]
    with opened() as memory:
        memory.suspend_trajectory(first)
    assert caliber_json("ingest", "git", "engine")["added"] == 0
    with opened() as memory:
        assert memory.get(first).status == "active"
        memory.complete_trajectory(first, status="success", summary="that was that")
    commit(source, "One more", {"engine.py": "x = 9\n"}, "2024-04-01T09:00:00+00:00")
    again = caliber_json("ingest", "git", "engine")
    assert again["trajectory_id"] != first
    assert (again["counts"]["commits"], again["counts"]["commits_known"]) == (1, 3)
    assert (again["counts"]["notes"], again["counts"]["notes_known"]) == (0, 3)
    assert caliber_json("ingest", "git", "engine")["added"] == 0


def test_who_wrote_a_commit_is_not_the_user(source: Path) -> None:
    # design section 10: a message of anybody's stands under the role user
    caliber("ingest", "git", "engine", "--trust", "web")
    with opened() as memory:
        records = [*memory.storage.turns.all(), *memory.storage.notes.all(), *memory.storage.artifacts.all()]
        assert {record.trust.value for record in records} == {"web"}
        assert {scope.trust.value for scope in memory.storage.scopes.all()} == {"web"}


def test_files_of_a_repository_that_was_taken_in_are_not_noted_twice(here: Path) -> None:
    commit(repository(here / "engine"), "Begin", {"README.md": README, "docs/decisions/0001-apsw.md": DECISION})
    git(here, "clone", "-q", str(here / "engine"), "src")
    taken = caliber_json("ingest", "git", "src")
    assert taken["repository"] == "src", "a clone of a folder is called as its own folder"
    again = caliber_json("ingest", "files", "src")["counts"]
    assert (again["notes"], again["notes_known"]) == (0, taken["counts"]["notes"])
    (here / "src" / "docs" / "more.md").write_text("# More\n\nThis stands in no commit yet, so files take it in.\n")
    assert caliber_json("ingest", "files", "src")["counts"]["notes"] == 1
    commit(here / "src", "More", {})
    assert caliber_json("ingest", "git", "src")["counts"]["notes"] == 0, "the other way round as well"
