"""``caliber trace`` and ``caliber top``, and a change of the embedding model from the command line.

Source: C-292 to C-297, C-505; issue 17, Build 10.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber, caliber_json, command
from support.configs import HASH_PROVIDER, USER, config

import caliber as engine
import caliber as package
from caliber.config import profiles
from caliber.config.manual.render import render_toml
from caliber.config.profiles import services
from caliber.model.errors import PermissionDenied

SECRET = "the harbourmaster keeps violet paint"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    made = profiles.reference(
        str(tmp_path / "caliber.db"),
        embedding_provider=HASH_PROVIDER,
        **{"vector.dimensions": 32, "write_behind.operation_share": 1.0, "jobs.poll_ms": 0},
    )
    (tmp_path / "caliber.toml").write_text(render_toml(made), encoding="utf-8")
    return made


@pytest.fixture
def task(settings: Any) -> str:
    with engine.open(settings, create=True, principal=engine.Principal.admin()) as memory:
        task = memory.start_trajectory("find paint", initiator=USER)
        scope = memory.current_scope(task.trajectory_id)
        memory.append_turn(scope.scope_id, role="user", content=SECRET)
        checkpoint = memory.pcp.checkpoint(task.trajectory_id)
        memory.append_turn(scope.scope_id, role="assistant", content="violet it is")
        memory.assemble_context(task.trajectory_id, query="violet")
        memory.pcp.recover(task.trajectory_id, checkpoint.checkpoint_id)
        return str(task.trajectory_id)


def test_trace_tells_the_story_of_a_task(task: str) -> None:
    told = caliber("trace", task).stdout
    assert f"task {task}, active" in told
    for line in ("the task starts", "turn 0, user", "turn 1, assistant", "rolled back", "call append_turn",
                 "a window of", "the task is recovered", "2 turns", "1 recovery"):  # fmt: skip
        assert line in told, line
    assert "µs" in told or " ms" in told
    order = [told.index(part) for part in ("the task starts", "turn 0", "a window of", "the task is recovered")]
    assert order == sorted(order)
    assert "violet" not in told


def test_trace_as_json(task: str) -> None:
    found = caliber_json("trace", task)
    assert found["trajectory_id"] == task
    assert found["summary"]["context_assemblies"] == 1
    assert found["summary"]["recoveries_performed"] == 1
    assert found["state"]["scopes"] == 2
    (window,) = [step for step in found["steps"] if step["what"] == "context_assemble"]
    assert window["details"]["included"] >= 1
    calls = [step for step in found["steps"] if step["what"] == "operation"]
    assert {step["details"]["operation"] for step in calls} >= {"append_turn", "assemble_context", "recover"}
    assert all(step["duration_us"] > 0 for step in calls)
    assert "violet" not in str(found)


def test_trace_of_an_artifact_shows_its_origin_and_versions(task: str, settings: Any) -> None:
    # C-505
    with engine.open(settings, principal=engine.Principal.admin()) as memory:
        scope = memory.current_scope(task)
        made = memory.create_artifact(
            scope.scope_id, artifact_type="fact", content=SECRET, extraction_method="explicit", confidence=1.0
        )
        newer = memory.artifacts.supersede(made.artifact_id, content="violet paint is gone")
    first, second = str(made.artifact_id), str(newer.artifact_id)
    for key in (first, second):
        found = caliber_json("trace", key)
        assert (found["artifact_id"], found["trajectory_id"], found["scope_id"]) == (key, task, str(scope.scope_id))
        assert [each["artifact_id"] for each in found["versions"]] == [first, second]
        told = caliber("trace", key).stdout
        assert f"task {task}" in told
        assert f"fact {key}  this one" in told
        assert "violet" not in told
    caliber("trace", first, "--as", "user:stranger@example.com", code=2)


def test_trace_takes_the_latest_task(task: str) -> None:
    assert caliber_json("trace", "latest")["trajectory_id"] == task


def test_trace_explains_no_window(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # the events of assemblies hold how many candidates are in and out
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the events hold the counts")

    monkeypatch.setattr(engine.Caliber, "explain", refused)
    (window,) = [step for step in caliber_json("trace", task)["steps"] if step["what"] == "context_assemble"]
    assert window["details"]["excluded"] >= 0
    assert f"{window['details']['included']} in" in caliber("trace", task).stdout


def test_a_page_needs_a_file_not_a_directory(task: str) -> None:
    refused = caliber("explain", "latest", "--html", ".", code=2)
    assert "is a directory" in refused.stderr
    assert "window.html" in refused.stderr


def test_trace_of_an_unknown_task_is_an_error(task: str) -> None:
    failed = caliber("trace", "0190f3c2-7c00-7000-8000-000000000000", code=2)
    assert "was not found" in failed.stderr or "not found" in failed.stderr


def test_trace_shows_another_user_nothing(task: str) -> None:
    caliber("trace", task, "--as", "user:stranger@example.com", code=2)


def test_top_once_shows_operations_of_other_processes(settings: Any, task: str) -> None:
    found = caliber_json("top", "--window", "3600")
    operations = {each["operation"]: each for each in found["operations"]}
    assert operations["append_turn"]["recorded"] == 2
    assert (
        operations["append_turn"]["p50_us"]
        <= operations["append_turn"]["p95_us"]
        <= operations["append_turn"]["max_us"]
    )
    assert operations["append_turn"]["per_second"] == pytest.approx(2 / 3600)
    assert found["resident"]["bytes"] > 0
    assert found["records"]["turn"] == 2
    again = caliber_json("top", "--window", "3600")
    assert {each["operation"] for each in again["operations"]} == set(operations), "its own calls are not recorded"
    shown = caliber("top", "--once", "--window", "3600").stdout
    assert "append_turn" in shown
    assert "operations/s" in shown


def test_top_tells_how_to_record_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = profiles.reference(
        str(tmp_path / "caliber.db"), embedding_provider=HASH_PROVIDER, **{"vector.dimensions": 32}
    )
    (tmp_path / "caliber.toml").write_text(render_toml(made), encoding="utf-8")
    caliber("create")
    assert "write_behind.operation_share" in caliber("top", "--once").stdout


class Terminal:
    """A program in a pseudo-terminal, and everything that it has drawn."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.own, other = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        env.pop("CI", None)
        self.process = subprocess.Popen(
            command(*arguments), cwd=folder, env=env, stdin=other, stdout=other, stderr=other
        )
        os.close(other)
        self.drawn = ""

    def until(self, text: str, seconds: float = 60) -> None:
        """Read until a text is drawn."""
        waits = int(seconds * 10)
        while text not in self.drawn:
            waits -= 1
            assert waits > 0, self.drawn
            if select.select([self.own], [], [], 0.1)[0]:
                self.drawn += os.read(self.own, 65_536).decode("utf-8", "replace")

    def ended(self) -> int:
        """Return the exit code, reading what is drawn meanwhile."""
        reader = threading.Thread(target=self._read_on, daemon=True)
        reader.start()
        code = self.process.wait(timeout=60)
        os.close(self.own)
        return code

    def _read_on(self) -> None:
        try:
            while chunk := os.read(self.own, 65_536):
                self.drawn += chunk.decode("utf-8", "replace")
        except OSError:  # the other end is closed
            return


@pytest.mark.parametrize("how", ["q", "ctrl-c"])
def test_top_is_live_and_quits_cleanly(settings: Any, task: str, tmp_path: Path, how: str) -> None:
    terminal = Terminal(tmp_path, "top", "--interval", "0.2", "--window", "3600")
    terminal.until("append_turn")
    with engine.open(settings, principal=engine.Principal.admin()) as memory:
        memory.search("violet")
        memory.flush()
        terminal.until("search")
    if how == "q":
        os.write(terminal.own, b"q")
    else:
        terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 0
    assert "Traceback" not in terminal.drawn
    assert "\x1b[?1049l" in terminal.drawn, "the screen of before is back"


def test_figures_of_operations_are_an_administrators(settings: Any, task: str) -> None:
    with (
        engine.open(settings, principal=engine.Principal.user("anna@example.com")) as memory,
        pytest.raises(PermissionDenied),
    ):
        memory.admin.operations()


OLD_NAME, NEW_NAME = "hash-1:test@32", "hash-1:newer@48"
NEW = {**HASH_PROVIDER, "model": "newer", "dimensions": 48}


def configure(provider: dict[str, Any], **changes: Any) -> None:
    settings = config(
        "caliber.db",
        embedding_provider=provider,
        **{
            "vector.dimensions": provider["dimensions"],
            "embedding.reembed": "manual",
            "search.keyword.similar_words": "none",
            **changes,
        },
    )
    Path("caliber.toml").write_text(render_toml(settings))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALIBER_CONFIG", raising=False)
    configure(HASH_PROVIDER)
    caliber("create")
    (tmp_path / "facts.md").write_text("# Drivers\n\nSQLite is reached through apsw.\n\n# Bees\n\nBees dance.\n")
    caliber("ingest", "files", "facts.md")
    return tmp_path


def test_a_model_is_changed_step_by_step(here: Path) -> None:
    assert "no embedding spaces" not in caliber("db", "spaces").stdout
    configure(NEW)
    said = caliber("search", "bees", code=1)
    assert f"note: {NEW_NAME} is being filled; until it is complete, nothing is found by meaning" in said.stderr
    assert "`caliber db reembed`" in said.stderr
    assert f"degraded: space_being_filled: {NEW_NAME}" in said.stderr
    assert "Bees dance" in said.stdout
    configure(NEW, previous_embedding_provider=HASH_PROVIDER)
    said = caliber("search", "bees")
    assert f"questions are answered with {OLD_NAME}" in said.stderr
    listed = caliber("db", "spaces").stdout
    assert f"{OLD_NAME}   in use" in listed
    assert "previous_embedding_provider" in listed
    assert f"{NEW_NAME} is being filled: `caliber db reembed` does it now" in listed
    assert f"searched is {OLD_NAME}, until {NEW_NAME} is complete" in caliber("stats").stdout
    assert f"{NEW_NAME} is being filled" in caliber("doctor").stdout
    assert "is the active search space" in caliber("db", "drop-space", OLD_NAME, code=2).stderr
    assert "would be filled again" in caliber("db", "drop-space", NEW_NAME, code=2).stderr
    assert "`caliber db spaces`" in caliber("db", "drop-space", "hash-1:none@8", code=2).stderr
    assert "cannot be filled here" in caliber("db", "reembed", "--space", OLD_NAME, code=2).stderr
    done = caliber("db", "reembed", "--space", NEW_NAME)
    assert "2 records got a vector; 2 of 2 have one" in done.stdout
    assert f"search uses {NEW_NAME} now, instead of {OLD_NAME}" in done.stdout
    assert f"caliber db drop-space {OLD_NAME}" in done.stdout
    assert "previous_embedding_provider is not needed" in caliber("doctor").stdout
    assert "note:" not in caliber("search", "bees").stderr
    assert f"dropped {OLD_NAME}: 2 vectors" in caliber("db", "drop-space", OLD_NAME).stdout
    spaces = caliber_json("db", "spaces")["spaces"]
    assert [(space["name"], space["state"], space["pending"]) for space in spaces] == [(NEW_NAME, "in use", 0)]
    assert "as before" in caliber("db", "reembed").stdout
    assert caliber_json("db", "reembed")["made"] == 0


def test_strays_and_rebuilding_are_told(here: Path) -> None:
    assert "no strays" in caliber("db", "sweep", "--dry-run").stdout
    with package.open("caliber.toml", principal=package.Principal.admin()) as memory:
        note = next(iter(memory.storage.notes.all()))
        memory.storage.notes.update(note.note_id, archived_at=note.created_at)
    planned = caliber("db", "sweep", "--dry-run").stdout
    assert "would remove 1 vector of records out of use" in planned
    assert "without --dry-run they go" in planned
    assert "would remove 1 vector" in caliber("db", "rebuild-search", "--dry-run").stdout
    assert caliber_json("db", "sweep")["count"] == 1
    rebuilt = caliber("db", "rebuild-search")
    assert "no strays" in rebuilt.stdout
    assert "sound" in rebuilt.stdout
    assert "verifying" in rebuilt.stderr
    document = caliber_json("db", "rebuild-search")
    assert (document["ok"], document["vectors"], document["outdated"]) == (True, 0, 0)


def test_an_outage_says_how_far_it_came_and_what_to_do(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A service that nobody answers for: the port is closed.
    quick = {"timeout_ms": 500}
    known = dict(services.EMBEDDING["ollama"])
    remote = {**known, "endpoint": "http://127.0.0.1:9", "dimensions": 48, "http": {**known["http"], **quick}}
    configure(remote, **{"llm_retry_config.max_retries": 0})
    said = caliber("db", "reembed", code=1)
    assert "stopped:" in said.stderr
    assert "0 of 2 records have a vector" in said.stderr
    assert "run `caliber db reembed` again to go on from there" in said.stderr
    document = caliber_json("db", "reembed", code=1)
    assert (document["done"], document["total"], document["error"]["exit_code"]) == (0, 2, 1)
