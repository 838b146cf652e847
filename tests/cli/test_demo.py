"""``demo``: the main job on real input."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support.cli_runs import caliber, caliber_json, commit, repository
from support.local_server import LocalServer

import caliber as package

DECISION = "# 0001: Use apsw\n\n**Decision.** SQLite is reached through apsw.\n\n**Why.** It exposes all of SQLite.\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALIBER_CONFIG", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a history and documents."""
    folder = repository(tmp_path_factory.mktemp("made") / "project")
    texts = {
        f"docs/page{at}.md": f"# Page {at}\n\n" + f"Sentence about topic {at} of the storage engine. " * 30
        for at in range(20)
    }
    commit(folder, "Begin the storage engine", {"a.py": "1", "docs/decisions/0001-apsw.md": DECISION})
    for at in range(4):
        commit(folder, f"Tidy up {at}", {"b.py": f"{at}"})
    for at in range(4):
        commit(folder, f"Storage engine: step {at}", {"a.py": f"{at}"}, f"2024-02-1{at}T10:00:00+00:00")
    commit(folder, "Write it down", texts, "2024-03-01T10:00:00+00:00")
    return folder


@pytest.fixture
def project(here: Path, made: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(made, here / "project", symlinks=True)


def test_the_demo_shows_the_whole_job(project: Path, here: Path) -> None:
    result = caliber("demo", "project", "--assemblies", "20")
    for said in (
        "10 commits as 10 turns", "21 documents",
        "When was this done: Begin the storage engine?", "of 2,000 tokens", "of 8,000 tokens", "relevance",
        "2 of 2 windows replayed byte for byte", "memory equals the store", "SQL statements per assembly: 0", "p50",
        "p99", ".demo/demo.caliber",
    ):  # fmt: skip
        assert said in result.stdout, said
    assert max(len(line) for line in result.stdout.splitlines() if str(here) not in line) <= 80
    assert (here / ".demo" / ".gitignore").read_text() == "*\n"
    with package.open(".demo/demo.caliber", principal=package.Principal.admin()) as memory:
        assert memory.admin.stats()["records"]["turn"] == 14  # one of each commit; two questions, and an answer to each
    assert "is not in this window" not in result.stdout
    assert " of 20 " not in result.stderr


@pytest.mark.prove
def test_the_demo_runs_on_postgresql(project: Path, here: Path) -> None:
    with LocalServer.start(fsync=False) as server:
        result = caliber("demo", "project", "--postgres", server.dsn, "--assemblies", "10")
        assert "drop that schema" in caliber("demo", "project", "--postgres", server.dsn, code=2).stderr
    for said in (
        "the schema caliber_demo", "2 of 2 windows replayed byte for byte", "memory equals the store",
        "SQL statements per assembly: 0", "CALIBER_DEMO_DSN",
    ):  # fmt: skip
        assert said in result.stdout, said
    assert "adapter: postgres" in (here / ".demo" / "knobs.caliber").read_text()


def test_a_server_that_cannot_be_reached_is_said(project: Path) -> None:
    result = caliber("demo", "project", "--postgres", "postgresql://ada:secret@127.0.0.1:1/x", code=1)
    assert "no server answers there" in result.stderr
    assert "secret" not in result.stderr + result.stdout
    assert "not a valid PostgreSQL DSN" in caliber("demo", "project", "--postgres", "nowhere", code=2).stderr


def test_the_demo_runs_from_its_program_and_another_rule_makes_another_window(project: Path, here: Path) -> None:
    # issue 6, "Done when": from a .caliber file and nothing else; a changed rule is seen by explain
    found = caliber_json("demo", "project", "--assemblies", "10")
    assert sorted(file.name for file in (here / ".demo").iterdir() if file.suffix in (".toml", ".json")) == []
    window = found["windows"][1]
    changed = Path(".demo/changed.caliber")
    rule = re.compile(r"(inject note into context \{\s*mode: )top_k\(20\)")
    changed.write_text(rule.sub(r"\1top_k(1)", Path(found["config"]).read_text()))
    assert caliber_json("context", "latest", "--query", window["question"], "-c", changed)["used_tokens"]
    told = caliber_json("explain", "latest", "-c", changed)
    assert [item["type"] for item in told["inclusions"]].count("note") == 1
    assert sum(len(item["sources"]) for item in window["sections"] if item["name"] == "notes") > 1


def test_each_question_has_its_answer_in_the_window(project: Path) -> None:
    first, second = caliber_json("demo", "project", "--assemblies", "10")["windows"]
    assert first["question"] == "When was this done: Begin the storage engine?"
    assert first["answer"] == "[Ada Lovelace, 10 January 2024] Begin the storage engine"
    assert first["answer"] in first["text"]
    assert second["question"].startswith("What should I know about Page ")
    assert second["answer"] in " ".join(second["text"].split())


def test_figures_for_programs(project: Path) -> None:
    found = caliber_json("demo", "project", "--assemblies", "20")
    assert found["reopened"]["ok"]
    assert found["reopened"]["replayed"] == 2
    figures = found["figures"]
    assert figures["sql_statements_per_assembly"] == 0
    assert 0 < figures["p50_us"] <= figures["p99_us"]
    assert found["exclusion"]["verdict"] in ("excluded", "cut_off", "filtered")
    assert [window["used_tokens"] <= window["max_tokens"] for window in found["windows"]] == [True, True]


def test_questions_can_be_asked_and_the_folder_chosen(project: Path, here: Path) -> None:
    found = caliber_json(
        "demo", "project", "--assemblies", "10", "-q", "What is topic 7?", "-q", "Who knows?", "--folder", "mine"
    )
    assert [window["question"] for window in found["windows"]] == ["What is topic 7?", "Who knows?"]
    assert "page7" in found["windows"][0]["text"]
    assert (here / "mine" / "demo.caliber").exists()
    assert "at most twice" in caliber("demo", "project", "-q", "1", "-q", "2", "-q", "3", code=2).stderr


def test_the_same_content_gives_the_same_questions(project: Path) -> None:
    first = caliber_json("demo", "project", "--assemblies", "10")["windows"]
    again = caliber_json("demo", "project", "--assemblies", "10")["windows"]
    assert [window["question"] for window in first] == [window["question"] for window in again]


def test_without_git_it_takes_text_files_and_says_so(here: Path) -> None:
    (here / "plain").mkdir()
    (here / "plain" / "notes.md").write_text(
        "# Gardening\n\nTomatoes want sun, and water in the morning.\n\n## Soil\n\nLoose soil is best.\n"
    )
    result = caliber("demo", "plain", "--assemblies", "10")
    assert "not a git repository: taking its text files" in result.stdout
    assert "1 document, " in result.stdout
    empty = repository(here / "unborn")
    (empty / "x.md").write_text("# Only a file\n\nNothing has been committed here so far.\n")
    assert "without commits" in caliber("demo", "unborn", "--assemblies", "10").stdout


def test_nothing_to_remember_and_nothing_there(here: Path) -> None:
    (here / "void").mkdir()
    assert "nothing to remember" in caliber("demo", "void", code=2).stderr
    assert "no such" in caliber("demo", "nowhere", code=2).stderr


def test_a_store_that_no_demo_made_is_never_touched(project: Path, here: Path) -> None:
    (here / "real").mkdir()
    caliber("init", "--path", "real/caliber.toml")
    caliber("create", "-c", "real/caliber.toml")
    before = (here / "real" / "caliber.db").read_bytes()
    assert "no demo made" in caliber("demo", "project", "--folder", "real", code=2).stderr
    assert (here / "real" / "caliber.db").read_bytes() == before


def test_a_demo_leaves_the_source_as_it_was(project: Path) -> None:
    before = sorted(str(file) for file in project.rglob("*") if file.is_file())
    caliber("demo", "project", "--assemblies", "10")
    assert sorted(str(file) for file in project.rglob("*") if file.is_file()) == before
