"""``ingest files``, and how documents are cut into sections."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cli_runs import caliber, caliber_json, git, repository

import caliber as package
from caliber.importing import documents
from caliber.text import sections

GUIDE = """# Guide

An introduction that is long enough.

## Install <!-- hidden -->

Run the installer and wait for it.

```sh
# not a heading
install --now
```

Details
-------

Underlined headings count as well.

### Deeper

Even deeper things are said down here.

## Badge

![b](x.svg)
"""


@pytest.fixture
def here(here: Path) -> Path:
    """A folder with a store, and next to it a tree of files."""
    tree = here / "tree"
    for name, content in {
        "guide.md": GUIDE,
        "code/main.py": "def main():\n    return 'forty-two'\n",
        "latin.txt": "Grüße aus Zürich, mit Umlauten",
        ".hidden/secret.md": "# Secret\n\nnobody should read this text",
        ".env": "PASSWORD=hunter2",
        "node_modules/lib/readme.md": "# Lib\n\na library somebody else wrote",
        "myenv/pyvenv.cfg": "home = x",
        "myenv/lib.py": "code of a virtual environment",
        "package-lock.json": "{}",
        "empty.md": "",
    }.items():
        file = tree / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode("latin-1" if name == "latin.txt" else "utf-8"))
    (tree / "image.bin").write_bytes(bytes(range(256)) * 10)
    (tree / "huge.txt").write_text("x" * 2_000_000)
    (tree / "link.md").symlink_to(tree / "guide.md")
    return here


def everything() -> str:
    with package.open("caliber.toml", principal=package.Principal.admin()) as memory:
        texts = [f"{note.entity}\n{note.content}" for note in memory.storage.notes.all() if note.active]
        return "\n".join(texts + [item.text for item in memory.storage.artifacts.all()])


def test_text_is_kept_and_everything_else_left_out_and_counted(here: Path) -> None:
    found = caliber_json("ingest", "files", "tree")
    text = everything()
    for kept in ("guide.md § Install", "forty-two", "Grüße aus Zürich"):
        assert kept in text
    for left_out in ("nobody", "hunter2", "somebody else", "virtual environment", "xxxx"):
        assert left_out not in text
    assert sum(found["skipped"].values()) >= 8
    assert "left out" in caliber("ingest", "files", "tree").stdout


def test_importing_again_adds_nothing_and_changes_replace(here: Path) -> None:
    caliber("ingest", "files", "tree")
    assert caliber_json("ingest", "files", "tree")["added"] == 0
    guide = here / "tree" / "guide.md"
    guide.write_text(GUIDE.replace("wait for it", "do not wait"))
    (here / "tree" / "code" / "main.py").write_text("def main():\n    return 'forty-three'\n")
    found = caliber_json("ingest", "files", "tree")["counts"]
    assert (found["notes"], found["notes_replaced"], found["artifacts"], found["artifacts_replaced"]) == (1, 1, 1, 1)
    assert "wait for it" not in everything()
    guide.unlink()
    assert caliber_json("ingest", "files", "tree")["counts"]["notes_archived"] > 0
    assert "guide.md" not in everything()


def test_ignore_rules_of_git_are_followed(here: Path) -> None:
    tree = repository(here / "tree")
    (tree / ".gitignore").write_text("*.txt\n")
    git(tree, "add", "guide.md")
    found = caliber_json("ingest", "files", "tree")
    assert found["uses_git"]
    text = everything()
    assert "Zürich" not in text
    assert "forty-two" in text


def test_a_single_file_and_a_missing_one(here: Path) -> None:
    assert caliber_json("ingest", "files", "tree/guide.md")["counts"]["documents"] == 1
    assert caliber_json("ingest", "files", "tree/guide.md")["added"] == 0
    assert "no such file" in caliber("ingest", "files", "nowhere", code=2).stderr


def test_two_folders_of_one_name_do_not_replace_each_other(here: Path) -> None:
    for parent in ("a", "b"):
        (here / parent / "docs").mkdir(parents=True)
        (here / parent / "docs" / "x.md").write_text(f"# Title\n\nThis is what folder {parent} says about it.\n")
        caliber("ingest", "files", f"{parent}/docs")
    text = everything()
    assert "folder a says" in text
    assert "folder b says" in text


# --- sections -----------------------------------------------------------------------------------


def test_markdown_is_cut_at_headings_of_both_kinds_and_not_inside_code() -> None:
    found = {section.title: section.text for section in sections.split("guide.md", GUIDE)}
    assert list(found) == ["Guide", "Install", "Details", "Details › Deeper"]
    assert "# not a heading" in found["Install"]


def test_restructured_text_is_cut_at_its_headings() -> None:
    text = "=====\nTitle\n=====\n\nAn opening.\n\nFirst\n-----\n\nThe first part.\n\nLast\n-----\n\nThe last part.\n"
    assert [section.headings for section in sections.split("x.rst", text)] == [
        ("Title",), ("Title", "First"), ("Title", "Last"),
    ]  # fmt: skip


def test_front_matter_is_no_section() -> None:
    found = sections.split("x.md", "---\ntitle: A page of a site\n---\n# Page\n\nSomething that is worth reading.\n")
    assert [section.text for section in found] == ["Something that is worth reading."]


@pytest.mark.parametrize("name", ["x.md", "x.rst", "x.adoc", "x.txt"])
@given(
    text=st.text(max_size=400)
    | st.lists(st.sampled_from(["# A", "==", "---", "```", "text that says a bit", "", "- x", "~~~"])).map("\n".join)
)
def test_any_text_is_cut_without_failing_and_within_bounds(name: str, text: str) -> None:
    for section in sections.split(name, text):
        assert len(section.text) <= sections.PART_CHARS
        assert section.text.strip()


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=3_000), st.integers(20, 200))
def test_parts_lose_no_letter(text: str, limit: int) -> None:
    pieces = sections.parts(text, limit)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(len(piece) <= max(limit, len(text) if len(pieces) == 1 else limit) for piece in pieces)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("README.md", True), ("README", True), ("docs/guide.rst", True), ("pkg/readme.rst", True),
        ("CHANGES.txt", True),
        ("docs/decisions/0001-x.md", True), ("adr/0002-y.md", True), ("src/main.py", False), ("src/notes.md", False),
        ("docs/logo.png", False), ("tests/data/readme.txt", False), ("requirements.txt", False), ("history.py", False),
    ],
)  # fmt: skip
def test_which_files_of_a_repository_explain_it(path: str, expected: bool) -> None:
    assert documents.is_document(path) is expected


def test_which_documents_are_decisions() -> None:
    decision = "# 1. Use X\n\n## Status\n\nAccepted\n\n## Context\n\nc\n\n## Decision\n\nWe use X.\n"
    assert documents.is_decision("docs/adr/0001-use-x.md", decision)
    assert documents.is_decision("notes/anything.md", decision)
    assert not documents.is_decision("docs/adr/README.md", "# Decisions\n\nA list of them, kept here.\n")
    assert not documents.is_decision("docs/guide.md", GUIDE)
    assert documents.decision_in_short("docs/adr/0001-use-x.md", decision) == "1. Use X\nWe use X."


# --- trust --------------------------------------------------------------------------------------


def labels(active: bool = True) -> list[str]:
    with package.open("caliber.toml", principal=package.Principal.admin()) as memory:
        notes = [note.trust.value for note in memory.storage.notes.all() if note.active or not active]
        kept = [item.trust.value for item in memory.storage.artifacts.all() if item.superseded_by is None or not active]
        return sorted(notes + kept)


def test_files_are_what_a_program_read_unless_somebody_vouches_for_them(here: Path) -> None:
    # design section 10
    before = caliber_json("ingest", "files", "tree")["counts"]
    count = before["notes"] + before["artifacts"]
    assert labels() == ["tool"] * count
    # Another label is another statement: the old one is replaced, not kept beside.
    again = caliber_json("ingest", "files", "tree", "--trust", "web")["counts"]
    assert (again["notes_replaced"], again["artifacts_replaced"]) == (before["notes"], before["artifacts"])
    assert labels() == ["web"] * count
    assert len(labels(active=False)) == 2 * count
    assert "system" in caliber("ingest", "files", "tree", "--trust", "me", code=2).stderr


def test_names_that_are_not_utf8_are_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    caliber("init")
    caliber("create")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "kept.md").write_text("# Kept\n\nThis document has a name that can be said.\n")
    for name in (b"b\xff.txt", b"c\xfe.md"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_text("# Lost\n\nThis one is long enough too.\n")
    found = caliber_json("ingest", "files", folder)
    assert found["counts"]["documents"] == 1
    assert found["unnamed"] == ["b\\xff.txt", "c\\xfe.md"]
    assert found["skipped"]["named in what is not UTF-8"] == 2
    said = caliber("ingest", "files", folder).stdout
    assert "b\\xff.txt" in said
    repository(folder)
    (folder / "docs").mkdir()
    for name in (b"b\xff.md", b"c\xfe.md"):
        Path(os.fsdecode(os.fsencode(folder) + b"/docs/" + name)).write_text("# Lost\n\nThis one is long enough too.\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all of it")
    found = caliber_json("ingest", "git", folder)
    assert sorted(found["unnamed"]) == ["docs/b\\xff.md", "docs/c\\xfe.md"]
    other = Path(os.fsdecode(os.fsencode(tmp_path) + b"/g\xff"))
    folder.rename(other)
    for source in ("files", "git"):
        assert "not UTF-8" in caliber("ingest", source, other, code=2).stderr


def test_a_pipe_is_no_folder_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    caliber("init")
    caliber("create")
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder" in caliber("ingest", "files", tmp_path / "pipe", code=2).stderr


def test_importing_nothing_is_a_mistake_and_leaves_nothing_behind(here: Path) -> None:
    (here / "empty").mkdir()
    assert "nothing to remember" in caliber("ingest", "files", "empty", code=2).stderr
    (here / "large.txt").write_text("a" * 2_000)
    refused = caliber("ingest", "files", "large.txt", "--max-bytes", "1000", code=2).stderr
    assert "1 larger than 1,000 bytes" in refused
    assert caliber_json("db", "list", "trajectories")["total"] == 0


def test_a_folder_whose_files_are_gone_may_be_imported_again(here: Path) -> None:
    folder = here / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# A\n\nWe decided to keep this one.\n")
    (folder / "b.md").write_text("# B\n\nThis one will stay as well.\n")
    first = caliber_json("ingest", "files", "docs")
    assert first["counts"]["documents"] == 2
    (folder / "a.md").unlink()
    (folder / "b.md").unlink()
    gone = caliber_json("ingest", "files", "docs")
    assert gone["trajectory_id"] == first["trajectory_id"]
    assert gone["counts"]["notes_archived"] == first["counts"]["notes"]
