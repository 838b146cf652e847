"""The command line: every command, what it says when something is wrong, and how it ends. Source: design section 7."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner
from support.cli_runs import caliber, caliber_json, command, many_commits
from support.waits import until

import caliber as package
from caliber.cli.app import COMMANDS, cli
from caliber.storage.migrate import migrations

UNKNOWN = "0190f3c2-7c00-7000-8000-000000000000"
HELP = Path(__file__).parent.parent / "golden" / "cli_help.txt"


@pytest.fixture(scope="module")
def talk(_begun: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a conversation and a note-like document in its store, for copies."""
    folder = shutil.copytree(_begun, tmp_path_factory.mktemp("talk"), dirs_exist_ok=True)
    (folder / "talk.jsonl").write_text(
        '{"role": "user", "content": "Which driver do we use for SQLite?"}\n'
        '{"role": "assistant", "content": "We use apsw, since it exposes all of SQLite."}\n'
    )
    (folder / "facts.md").write_text("# Drivers\n\nSQLite is reached through apsw, PostgreSQL through psycopg.\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        caliber("ingest", "chat", "talk.jsonl")
        caliber("ingest", "files", "facts.md")
    return folder


@pytest.fixture
def remembered(here: Path, talk: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(talk, here, dirs_exist_ok=True)


# --- help and lookup ----------------------------------------------------------------------------


def test_help_lists_every_command_and_the_exit_codes() -> None:
    text = caliber("--help").stdout
    for name in COMMANDS:
        assert f"\n  {name} " in text
    assert "Exit codes:" in text


def test_help_of_every_command_is_the_one_on_record() -> None:
    parts = []
    names = [[], *([name] for name in COMMANDS), ["ingest", "git"], ["ingest", "chat"], ["ingest", "files"]]
    names += [["db", name] for name in ("list", "migrate", "check", "maintain")]
    for path in names:
        result = CliRunner().invoke(cli, [*path, "--help"], prog_name="caliber", terminal_width=80)
        assert result.exit_code == 0
        parts.append(f"$ caliber {' '.join([*path, '--help'])}\n{result.stdout}")
    text = "\n".join(parts)
    if not HELP.exists():  # pragma: no cover
        HELP.write_text(text)
    assert text == HELP.read_text(), f"remove {HELP.name} and run this test again, if the new help is meant"


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom caliber.cli.app import cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'pydantic', 'apsw', 'rich', 'caliber.config', 'caliber.engine', 'caliber.api'}\n"
        "print(sorted(set(sys.modules) & heavy),"
        " file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command("--help"), capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(took) < 0.4, "CPU seconds, whatever else runs: 0.15 on a quiet machine"


def test_version_and_no_arguments() -> None:
    assert package.__version__ in caliber("--version").stdout
    nothing = caliber(code=2)
    assert "Usage:" in nothing.stderr
    assert "error" not in nothing.stderr.lower().split("usage:")[0]


def test_unknown_commands_and_options_are_mistakes_with_a_suggestion() -> None:
    assert "did you mean 'search'?" in caliber("serch", "x", code=2).stderr
    assert "--help" in caliber("stats", "--nope", code=2).stderr
    assert caliber_json("serch", code=2)["error"]["kind"] == "usage"


@pytest.mark.parametrize("arguments", [
    ["stats"], ["check"], ["create"], ["context", "latest"], ["search", "x"], ["db", "check"], ["ingest", "git", "."],
])  # fmt: skip
def test_without_a_configuration_commands_say_how_to_get_one(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = caliber(*arguments, code=2)
    assert "caliber init" in result.stderr
    assert not result.stdout
    assert "caliber init" in caliber_json(*arguments, code=2)["error"]["hint"]


def test_configuration_is_found_by_option_then_variable_then_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caliber("init", "--path", "other.toml", "--store", "other.db")
    caliber("create", "-c", "other.toml")
    assert caliber_json("check")["store"].endswith("caliber.db")
    assert caliber_json("check", "-c", "other.toml")["store"].endswith("other.db")
    assert caliber_json("-c", "other.toml", "check")["store"].endswith("other.db")
    from caliber.cli.app import cli as root

    named = CliRunner(env={"CALIBER_CONFIG": str(here / "other.toml")}).invoke(root, ["check", "--json"])
    assert json.loads(named.stdout)["store"].endswith("other.db")
    both = CliRunner(env={"CALIBER_CONFIG": "nowhere.toml"}).invoke(root, ["check", "--json", "-c", "caliber.toml"])
    assert json.loads(both.stdout)["store"].endswith("caliber.db")


# --- init, check, create ------------------------------------------------------------------------


def test_init_writes_a_commented_file_that_checks_and_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = caliber("init").stdout
    assert "caliber create" in said
    text = (tmp_path / "caliber.toml").read_text()
    assert text.count("\n") <= 40
    assert "sound" in caliber("check").stdout
    caliber("init", "--full", "--path", "full.toml")
    assert (tmp_path / "full.toml").read_text().count("#") > 100
    assert caliber_json("check", "full.toml")["config_hash"] == caliber_json("check")["config_hash"]
    caliber("create")
    with package.open(tmp_path / "caliber.toml", principal=package.Principal.admin()) as memory:
        assert memory.admin.stats()["records"]["turn"] == 0


def test_init_never_overwrites_unasked(here: Path) -> None:
    (here / "caliber.toml").write_text("mine")
    refused = caliber("init", code=2)
    assert "--force" in refused.stderr
    assert (here / "caliber.toml").read_text() == "mine"
    caliber("init", "--force")
    assert "sound" in caliber("check").stdout
    assert [file.name for file in here.iterdir() if file.name.startswith(".")] == []


def test_init_in_json_and_into_places_that_do_not_work(here: Path) -> None:
    caliber("init", "--path", "caliber.json", "--store", "j.db")
    assert caliber_json("check", "caliber.json")["ok"]
    assert ".toml or .json" in caliber("init", "--path", "x.yaml", code=2).stderr
    assert "does not exist" in caliber("init", "--path", "no/where.toml", code=2).stderr
    assert "is a folder" in caliber("init", "--path", ".", code=2).stderr
    assert "reference" in caliber("init", "--profile", "wild", code=2).stderr


def test_check_lists_every_fault_at_once_and_ends_with_one(here: Path) -> None:
    caliber("init", "--full", "--force")
    text = (here / "caliber.toml").read_text()
    broken = text.replace("token_budget = 8000", 'token_budget = -1\ntokn = "x"').replace(
        "lock_timeout =", "lock_timeot ="
    )
    (here / "bad.toml").write_text(broken)
    result = caliber("check", "bad.toml", code=1)
    for word in ("token_budget", "tokn", "lock_timeout"):
        assert word in result.stdout
    found = caliber_json("check", "bad.toml", code=1)
    assert not found["ok"]
    assert len(found["faults"]) >= 3
    other = caliber("stats", "-c", "bad.toml", code=2)
    assert "token_budget" in other.stderr
    assert "there is no such file" in caliber("check", "nowhere.toml", code=2).stderr
    (here / "broken.toml").write_text("a = [")
    assert "line" in caliber("check", "broken.toml", code=1).stdout


def test_create_twice_is_a_mistake_unless_it_is_said_to_be_fine(here: Path) -> None:
    assert "already" in caliber("create", code=2).stderr
    assert caliber_json("create", "--exist-ok")["created"] is False


def test_a_file_that_is_no_store_is_refused_and_left_alone(here: Path) -> None:
    (here / "caliber.db").unlink()
    (here / "caliber.db").write_text("a diary, not a database, and long enough to be looked at by anybody")
    for arguments in (["stats"], ["create", "--exist-ok"], ["db", "migrate"]):
        assert "not a CALIBER store" in caliber(*arguments, code=2).stderr
    assert (here / "caliber.db").read_text().startswith("a diary")
    assert "not a CALIBER store" in caliber("doctor", code=1).stdout


def test_a_missing_store_says_to_create_it(here: Path) -> None:
    (here / "caliber.db").unlink()
    assert "caliber create" in caliber("stats", code=2).stderr
    assert "not created yet" in caliber("check").stdout


# --- asking -------------------------------------------------------------------------------------


def test_context_search_explain_and_replay_work_together(remembered: Path) -> None:
    window = caliber_json("context", "latest", "--query", "Which driver for SQLite?", "--max-tokens", "500")
    assert window["used_tokens"] <= 500
    assert any("apsw" in section["content"] for section in window["sections"])
    assert window["messages"]
    again = caliber_json("replay", window["window_id"])
    assert again["identical"]
    assert again["text"] == window["text"]
    explained = caliber_json("explain", window["window_id"])
    assert explained["inputs"]["query"] == "Which driver for SQLite?"
    included = explained["inclusions"][0]["id"]
    assert caliber_json("explain", window["window_id"], "--exclusion", included)["verdict"] == "included"
    assert "is in the window" in caliber("explain", window["window_id"], "--exclusion", included).stdout
    assert "unknown" in caliber("explain", window["window_id"], "--exclusion", UNKNOWN).stdout
    hits = caliber_json("search", "SQLite driver", "--kind", "note", "--limit", "3")
    assert hits["status"] == "ok"
    assert "apsw" in hits["hits"][0]["content"]
    # design section 10: how far each record is trusted is shown wherever it is
    assert hits["hits"][0]["trust"] == "tool"
    assert caliber_json("search", "driver", "--filter", "trust=tool")["hits"]
    assert not caliber_json("search", "driver", "--filter", "trust=system", "--filter", "trust=web")["hits"]
    assert "must be one of system, user, tool, web" in caliber("search", "x", "--filter", "trust=me", code=2).stderr
    assert {item["trust"] for item in explained["inclusions"] if item["type"] == "note"} == {"tool"}
    assert "trust label is tool" in caliber("explain", window["window_id"], "--exclusion", hits["hits"][0]["id"]).stdout


def test_latest_names_the_newest_window_of_any_task(here: Path) -> None:
    assert "caliber context latest" in caliber("explain", "latest", code=2).stderr
    caliber("ingest", "chat", str(_chat(here, "one.jsonl", "Which driver?")))
    first = caliber_json("context", "latest", "--query", "driver")
    (task,) = {first["trajectory_id"]}
    caliber("ingest", "chat", str(_chat(here, "two.jsonl", "Which lamp?")))
    second = caliber_json("context", "latest", "--query", "lamp")
    assert second["trajectory_id"] != task
    assert caliber_json("explain", "latest")["window_id"] == second["window_id"]
    third = caliber_json("context", task, "--query", "driver, again")
    assert caliber_json("explain", "latest")["window_id"] == third["window_id"]
    assert caliber_json("replay", "latest")["window_id"] == third["window_id"]
    assert "is no window" in caliber("explain", "newest", code=2).stderr


def _chat(folder: Path, name: str, said: str) -> Path:
    (folder / name).write_text(f'{{"role": "user", "content": "{said}"}}\n')
    return folder / name


def test_people_get_a_window_they_can_read_on_eighty_columns(remembered: Path) -> None:
    result = caliber("context", "latest", "--query", "Which driver for SQLite?")
    assert "of 8,000 tokens" in result.stdout
    assert "facts.md § Drivers" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 90
    assert "\x1b" not in result.stdout
    text = caliber("context", "latest", "--query", "Which driver for SQLite?", "--text").stdout
    assert text.startswith("#")
    listed = caliber("search", "SQLite driver").stdout
    assert "facts.md § Drivers" in listed
    window = caliber_json("context", "latest")["window_id"]
    assert "replayed byte for byte" in caliber("replay", window).stdout
    explained = caliber("explain", window).stdout
    assert "included:" in explained
    assert "; trust tool" in explained
    assert all(" tool" in shown for shown in (result.stdout, listed))


def test_context_trace_accounts_for_every_candidate(remembered: Path) -> None:
    window = caliber_json("context", "latest", "--trace")
    explained = caliber_json("explain", window["window_id"])
    assert len(window["assembly_trace"]) == explained["inputs"]["candidates"]


@pytest.mark.parametrize(("arguments", "said"), [
    (["context", "nonsense"], "no trajectory"),
    (["context", UNKNOWN], "db list trajectories"),
    (["context", "latest", "--max-tokens", "0"], "max-tokens"),
    (["context", "latest", "--max-tokens", "-5"], "max-tokens"),
    (["context", "latest", "--max-tokens", "999999"], "token_budget"),
    (["explain", UNKNOWN], "caliber db list windows"),
    (["explain", "x"], "no window"),
    (["replay", UNKNOWN], "was not found"),
    (["search", "x", "--filter", "nonsense"], "NAME=VALUE"),
    (["search", "x", "--filter", "nonsense=1"], "cannot be filtered by"),
    (["search", "x", "--filter", "note_type=wild"], "must be one of"),
    (["search", "x", "--filter", "trajectory_id=wild"], "no trajectory_id"),
    (["search", "x", "--kind", "wild"], "unknown kind; there are note"),
    (["search", "x", "--limit", "0"], "limit"),
    (["search", "x", "--limit", "100000"], "at most 999"),
    (["db", "list", "wild"], "wild"),
])  # fmt: skip
def test_mistakes_end_with_two_and_say_what_to_do(remembered: Path, arguments: list[str], said: str) -> None:
    assert said in caliber(*arguments, code=2).stderr
    error = caliber_json(*arguments, code=2)["error"]
    assert error["exit_code"] == 2


def test_a_budget_that_holds_nothing_that_was_said_says_what_would(here: Path) -> None:
    (here / "talk.jsonl").write_text('{"role": "user", "content": "Which driver do we use for SQLite?"}\n')
    caliber("ingest", "chat", "talk.jsonl")
    arguments = ("context", "latest", "--max-tokens", "1")
    assert "cannot hold anything" in caliber(*arguments, code=2).stderr
    assert caliber_json(*arguments, code=2)["error"]["exit_code"] == 2


def test_a_filter_of_a_text_column_is_not_taken_for_a_number(remembered: Path) -> None:
    with closing(package.open("caliber.toml", principal=package.Principal.admin())) as memory:
        memory.add_note(entity="2023", entity_type="year", note_type="fact", content="a dry year", confidence=0.9)
    hits = caliber_json("search", "dry", "--filter", "entity=2023")["hits"]
    assert [hit["content"] for hit in hits] == ["a dry year"]


def test_search_filters_are_combined(remembered: Path) -> None:
    assert caliber_json("search", "driver", "--filter", "role=user")["hits"][0]["kind"] == "turn"
    both = caliber_json("search", "", "--filter", "role=user", "--filter", "role=assistant", "--limit", "9")
    assert len(both["hits"]) == 2
    assert caliber_json("search", "driver", "--kind", "note", "--filter", "note_type=preference")["status"] == "empty"
    assert "nothing found" in caliber("search", "driver", "--kind", "note", "--filter", "note_type=preference").stdout
    assert len(caliber_json("search", "", "--limit", "2")["hits"]) == 2


def test_search_explains_itself(remembered: Path) -> None:  # issue, Build 8: --explain
    told = caliber("search", "which driver\u2019s used?", "--explain").stdout
    assert "words      driver, use" in told
    assert "stop words which" in told
    assert "keyword +" in told
    found = caliber_json("search", "driver")
    assert found["analysis"]["words"] == ["driver"]
    best = found["hits"][0]
    assert "keyword" in best["found_by"]
    assert sum(best["breakdown"].values()) == pytest.approx(best["score"], abs=1e-5)


def test_search_without_an_embedding_provider_goes_by_words(here: Path) -> None:
    from caliber.cli.setup import render
    from caliber.config import profiles

    config = profiles.reference("plain.db", embedding_provider=None)
    (here / "plain.toml").write_text(render(config, Path("plain.toml")))
    caliber("create", "-c", "plain.toml")
    assert "nothing found" in caliber("search", "anything", "-c", "plain.toml").stdout
    assert caliber_json("search", "anything", "-c", "plain.toml")["reason"] is None
    assert "nothing is found by meaning" in caliber("doctor", "-c", "plain.toml").stdout


def test_context_before_anything_was_remembered(here: Path) -> None:
    assert "caliber ingest" in caliber("context", "latest", code=2).stderr


# --- looking after ------------------------------------------------------------------------------


def test_stats_and_lists_show_what_is_there(remembered: Path) -> None:
    found = caliber_json("stats")
    assert found["records"]["turn"] == 2
    assert "turn" in caliber("stats").stdout
    for what, count in (("trajectories", 2), ("scopes", 2), ("notes", 1), ("artifacts", 0), ("windows", 0)):
        assert caliber_json("db", "list", what)["total"] == count
        caliber("db", "list", what)
    assert caliber_json("db", "list", "events", "--limit", "1")["total"] > 1
    assert "Which driver" in caliber("db", "list", "trajectories").stdout


def test_verify_maintain_and_migrate_on_a_sound_store(remembered: Path) -> None:
    assert "sound" in caliber("db", "check").stdout
    assert caliber_json("db", "check") == {"ok": True, "findings": []}
    assert "removed" in caliber_json("db", "maintain")
    assert caliber_json("db", "migrate")["applied"] == []
    assert "nothing to do" in caliber("db", "migrate").stdout


def test_a_planned_version_is_shown_then_applied(remembered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: nothing but the version's number changes."""
    step = migrations.MigrationStep("more", 1, 1)
    following = migrations.SCHEMA_VERSION + 1
    monkeypatch.setattr(migrations, "MIGRATIONS", {**migrations.MIGRATIONS, following: step})
    assert f"would apply schema version {following}" in caliber("db", "migrate", "--plan").stdout
    assert f"applied schema version {following}" in caliber("db", "migrate").stdout
    assert "up to date" in caliber("db", "migrate").stdout


def test_a_damaged_store_is_found(remembered: Path) -> None:
    file = remembered / "caliber.db"
    caliber("db", "check")
    raw = bytearray(file.read_bytes())
    for at in range(len(raw) // 2, len(raw) - 4096, 4096):
        raw[at : at + 2048] = b"\xa5" * 2048
    file.write_bytes(bytes(raw))
    result = CliRunner(env={"CALIBER_CONFIG": None}).invoke(cli, ["doctor"])
    assert result.exit_code == 1
    assert "problem" in result.stdout
    assert CliRunner(env={"CALIBER_CONFIG": None}).invoke(cli, ["db", "check"]).exit_code == 1


def test_doctor_reports_on_everything_and_works_without_a_configuration(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = caliber_json("doctor")
    assert found["ok"]
    areas = {item["area"] for item in found["findings"]}
    assert areas == {"installation", "configuration", "store"}
    texts = " ".join(item["text"] for item in found["findings"])
    for word in ("SQLite", "kernels", "embed", "Python"):
        assert word in texts
    assert "all is well" in caliber("doctor").stdout
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    alone = caliber_json("doctor")
    assert {item["level"] for item in alone["findings"] if item["area"] == "configuration"} == {"hint"}


def test_doctor_names_the_exact_command_for_a_missing_extra(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    import importlib.metadata

    real = importlib.metadata.version

    def without_numba(name: str) -> str:
        if name == "numba":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", without_numba)
    assert "pip install 'caliber-memory[jit]'" in caliber("doctor").stdout


def test_another_process_holding_the_lock_is_a_problem_not_a_mistake(here: Path) -> None:
    text = (here / "caliber.toml").read_text()
    (here / "caliber.toml").write_text(text.replace('busy_timeout_ms = "5s"', 'busy_timeout_ms = "50ms"'))
    (here / "talk.jsonl").write_text('{"role": "user", "content": "hello"}\n')
    holder = (
        "import apsw, sys\nc = apsw.Connection('caliber.db')\nc.execute('BEGIN IMMEDIATE')\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], cwd=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline().strip() == "held"
        result = caliber("ingest", "chat", "talk.jsonl", code=1)
        assert "lock" in result.stderr
        process.communicate("")
    assert caliber_json("ingest", "chat", "talk.jsonl")["added"] == 1


# --- how a process ends -------------------------------------------------------------------------


def test_a_reader_that_has_enough_is_no_error(remembered: Path) -> None:
    with subprocess.Popen(
        command("db", "list", "events", "--limit", "1000"),
        cwd=remembered,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 141
    assert said == b""


@pytest.mark.prove
def test_interrupting_an_import_ends_with_130_and_loses_nothing(here: Path) -> None:
    source = many_commits(here / "long", 2_000)
    # A git that stops in the middle of its log: however busy the machine, the import is not over before the interrupt.
    slow, go = here / "slow", here / "go"
    slow.mkdir()
    (slow / "git").write_text(
        '#!/bin/sh\nPATH=${PATH#*:}\ncase " $* " in\n'
        f'*" log "*) git "$@" | {{ head -c 200000; until [ -e {go} ]; do sleep 0.05; done; cat; }} ;;\n'
        '*) exec git "$@" ;;\nesac\n'
    )
    (slow / "git").chmod(0o755)
    environment = {**os.environ, "PATH": f"{slow}:{os.environ['PATH']}"}
    with subprocess.Popen(
        command("ingest", "git", source),
        cwd=here,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        with closing(apsw.Connection("caliber.db", flags=apsw.SQLITE_OPEN_READONLY)) as store:
            store.set_busy_timeout(1_000)
            until(lambda: store.execute("SELECT count(*) FROM turn").get >= 50, seconds=60)
        process.send_signal(signal.SIGINT)
        try:
            out, said = process.communicate(timeout=60)
        finally:
            process.kill()
            go.touch()
    assert process.returncode == 130, said
    assert "interrupted" in said
    assert "Traceback" not in said
    assert out == ""
    stored = caliber_json("stats")["records"]["turn"]
    assert 0 < stored < 2_000
    assert caliber_json("db", "check")["ok"]
    rest = caliber_json("ingest", "git", source)
    assert rest["counts"]["commits"] == 2_000 - stored
    assert caliber_json("stats")["records"]["turn"] == 2_000


def test_debug_shows_the_traceback_and_nothing_else_does(here: Path) -> None:
    done = subprocess.run(command("context", UNKNOWN, "--debug"), cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    caliber("context", UNKNOWN, code=2)


def test_an_unexpected_fault_asks_to_be_reported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from caliber.admin import inspection

    def broken(_: object) -> dict[str, object]:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(inspection, "stats", broken)
    result = caliber("stats", code=1)
    assert "please report" in result.stderr
    assert caliber_json("stats", code=1)["error"]["code"] == "CALIBER_INTERNAL"


def test_remembered_text_cannot_steer_the_terminal(here: Path) -> None:
    evil = "title \x1b[2J\x1b]0;owned\x07 end\u202e reversed"
    (here / "evil.jsonl").write_text(json.dumps({"role": "user", "content": evil}) + "\n")
    caliber("ingest", "chat", "evil.jsonl")
    shown = (
        caliber("context", "latest").stdout
        + caliber("db", "list", "trajectories").stdout
        + caliber("search", "").stdout
    )
    assert "title" in shown
    assert not set("\x1b\x07\u202e") & set(shown)
    assert caliber_json("search", "")["hits"][0]["content"] == evil


def test_output_survives_a_terminal_that_is_not_unicode(remembered: Path) -> None:
    import os

    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for arguments in (["context", "latest"], ["doctor"], ["search", "driver", "--json"]):
        done = subprocess.run(command(*arguments), cwd=remembered, capture_output=True, check=False, env=env)
        assert done.returncode == 0, done.stderr
        done.stdout.decode("ascii")


def test_the_module_runs_like_the_command(here: Path) -> None:
    done = subprocess.run(command("check", "--json"), cwd=here, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["ok"]
    assert done.stderr == ""


def test_full_text_is_made_and_dropped_from_the_command_line(remembered: Path) -> None:
    # K-170: rebuild-search
    assert json.loads(caliber("db", "rebuild-search", "--json").stdout)["full_text"] is None
    assert "written anew" in caliber("db", "rebuild-search", "--full-text").stdout
    document = json.loads(caliber("db", "rebuild-search", "--json").stdout)
    assert document["full_text"] > 0
    assert document["ok"]
    assert "sound" in caliber("db", "check").stdout
    assert json.loads(caliber("db", "rebuild-search", "--drop", "--json").stdout)["dropped"] is True
    assert "there was none" in caliber("db", "rebuild-search", "--drop").stdout


def _changed(folder: Path, old: str, new: str) -> Path:
    text = (folder / "caliber.toml").read_text()
    assert old in text
    target = folder / "changed.toml"
    target.write_text(text.replace(old, new))
    return target


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('provider_type = "extractive"', 'provider_type = "cohere"', "not supported"),
        ('on = "task_end"', 'on = "schedule"\ncron = "0 3 * * *"', "a schedule has none"),
    ],
)
def test_check_lists_what_would_keep_the_store_from_opening(here: Path, old: str, new: str, says: str) -> None:
    caliber("init", "--full", "--force")
    changed = _changed(here, old, new)
    document = caliber_json("check", changed, code=1)
    assert not document["ok"]
    assert any(says in fault["message"] for fault in document["faults"])
    caliber("stats", "-c", changed, code=2)


def test_a_folder_as_store_is_called_a_folder(here: Path) -> None:
    (here / "place").mkdir()
    changed = _changed(here, 'path = "caliber.db"', 'path = "place"')
    assert "is a folder" in caliber("create", "-c", changed, code=2).stderr


def test_a_configuration_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / ".c.toml.x1y2"))

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    said = caliber("init", "--path", tmp_path / "c.toml", code=1).stderr
    assert f"{tmp_path / 'c.toml'}: Permission denied" in said
