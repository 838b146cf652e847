"""Files based on a profile: the same configuration as the full file, values that override, and bases that are none.

Profiles for kinds of agents are complete, and different from the reference exactly where their tables say.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber as run
from support.cli_runs import caliber_json
from support.configs import HASH_PROVIDER, USER
from support.evidence import share

import caliber
from caliber.cli.app import COMMANDS
from caliber.cli.setup import EMBEDDINGS, SUMMARIES
from caliber.config import CaliberConfig, profiles
from caliber.config.faults import section_at
from caliber.config.manual.render import render_json, render_toml
from caliber.config.profiles import fitting, services
from caliber.config.profiles.agents import AGENT_PROFILES, SHARES
from caliber.dsl import check, compile_text
from caliber.dsl.writing import render_caliber
from caliber.engine.refusals import refusals
from caliber.model.errors import ConfigError, IncompatibleOptions, InvalidConfigValue, MultipleErrors

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"\b(?!AES-|SHA-|UTF-|ISO-)[A-Z]{1,2}-\d{1,3}\b")
"""A requirement's code, such as K-007: of use to those who build CALIBER alone."""


def made(text: str) -> CaliberConfig:
    return CaliberConfig.from_toml(text)


def faults(text: str) -> list[ConfigError]:
    with pytest.raises(MultipleErrors) as caught:
        made(text)
    found: list[ConfigError] = caught.value.errors
    return found


# --- the same configuration ----------------------------------------------------------------------


def test_a_base_alone_is_its_profile(tmp_path: Path) -> None:
    for name, profile in profiles.PROFILES.items():
        (tmp_path / "a.toml").write_text(f'base = "{name}"\n')
        (tmp_path / "a.json").write_text(json.dumps({"base": name}))
        (tmp_path / "a.caliber").write_text(f'caliber: "0.1.0" {{ config {{ base: "{name}" }} }}')
        for suffix in ("toml", "json", "caliber"):
            assert caliber.load_config(tmp_path / f"a.{suffix}") == profile(tmp_path / "caliber.db"), (name, suffix)


@pytest.mark.parametrize(("embedding", "summaries"), share(itertools.product(EMBEDDINGS, SUMMARIES), 1, daily=5))
def test_a_short_file_is_the_same_configuration_as_the_full_one(embedding: str, summaries: str, tmp_path: Path) -> None:
    for name in profiles.PROFILES:
        for suffix in share(("toml", "json", "caliber"), 1, daily=3):
            files = tmp_path / f"short.{suffix}", tmp_path / f"full.{suffix}"
            options = ("--profile", name, "--embedding", embedding, "--summaries", summaries, "--force")
            run("init", *options, "--path", files[0])
            run("init", *options, "--path", files[1], "--full")
            short, full = (check(file) for file in files)
            assert short.config == full.config
            assert [item.reason for item in short.warnings] == [item.reason for item in full.warnings]
            assert (short.origin.base, full.origin) == (name, None)
            assert files[0].read_text().count("\n") <= 40
            assert not CODE.findall(files[0].read_text() + files[1].read_text())


def test_a_profile_embeds_where_the_extra_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert made('base = "reference"').embedding_provider == profiles.reference("a.db").embedding_provider is not None
    monkeypatch.setattr(fitting, "EMBED_EXTRA", ("no_such_module",))
    file = tmp_path / "a.toml"
    file.write_text('base = "reference"\n')
    without = check(file)
    assert without.config == profiles.reference(tmp_path / "caliber.db")
    assert without.config.embedding_provider is None
    (warning,) = without.warnings
    assert "install the extra 'embed'" in str(warning)
    file.write_text('base = "reference"\nembedding_provider = "none"\n')
    assert check(file).warnings == (), "the file decides"
    file.write_text('base = "reference"\nembedding_provider = "static"\n')
    assert check(file).config.embedding_provider is not None, "and means the same everywhere"


# --- values that override ------------------------------------------------------------------------


def test_values_of_the_file_override_the_base() -> None:
    config = made(
        'base = "chat-companion"\ntoken_budget = 9000\npersona = "Brief."\npolicies = []\n'
        '[retention]\nwindows_ms = "forever"\n[embedding.embed]\nturn = "off"\n[storage]\npath = "b.db"\n'
    )
    expected = profiles.chat_companion(
        "b.db",
        token_budget=9_000,
        persona="Brief.",
        policies=[],
        **{"retention.windows_ms": "forever", "embedding.embed.turn": "off"},
    )
    assert config == expected
    assert config.pcp.dosage.max_context_tokens == 9_000, "knobs that must agree follow"


@pytest.mark.parametrize(("text", "changes"), [
    ('embedding_provider = "voyage"', services.chosen("voyage", None)),
    ('summarization_provider = "anthropic"', services.chosen(None, "anthropic")),
    ('embedding_provider = "none"\nsummarization_provider = "none"', services.chosen("none", "none")),
    ("[embedding_provider]\ndimensions = 64", {"embedding_provider.dimensions": 64}),
    ("[vector]\nhnsw_m = 24", {"vector.hnsw_m": 24}),
    (
        '[embedding_provider]\nprovider_type = "openai"\nmodel = "text-embedding-3-large"\ndimensions = 3072',
        {
            **services.chosen("openai", None),
            "embedding_provider": {**services.EMBEDDING["openai"], "model": "text-embedding-3-large",
                                   "dimensions": 3_072},
        },
    ),
    ("checkpoint_retention = 9", {"checkpoint_retention": 9}),
])  # fmt: skip
def test_a_provider_is_a_word_or_a_section_over_its_kind(text: str, changes: dict[str, Any]) -> None:
    assert made(f'base = "coding-agent"\n{text}\n') == profiles.coding_agent("caliber.db", **changes)


def test_vectors_of_a_length_of_their_own_are_handed_in() -> None:
    config = made('base = "reference"\n[vector]\ndimensions = 1536\n')
    assert config.embedding_provider is None
    assert config.vector.dimensions == 1_536


def test_a_store_in_postgresql_has_the_knobs_of_one() -> None:
    config = made('base = "ops-agent"\n[storage]\nadapter = "postgres"\ndsn = "env:MY_DSN"\n')
    assert config == profiles.ops_agent("env:MY_DSN", **{"storage.adapter": "postgres"})
    (fault,) = faults('base = "ops-agent"\n[storage]\nadapter = "postgres"\n')
    assert fault.context["field"] == "storage.dsn"


def test_a_program_overrides_its_base_too(tmp_path: Path) -> None:
    text = 'caliber: "0.1.0" { config { base: "ops-agent" token_budget: 9000 embedding_provider: "none" } }'
    assert compile_text(text) == profiles.ops_agent("caliber.db", token_budget=9_000, embedding_provider=None)
    (tmp_path / "b.caliber").write_text('caliber: "0.1.0" { config { base: "ops-agent" } }')
    (tmp_path / "a.caliber").write_text('caliber: "0.1.0" { include "b.caliber" config { token_budget: 9000 } }')
    included = caliber.load_config(tmp_path / "a.caliber")
    assert included == profiles.ops_agent(tmp_path / "caliber.db", token_budget=9_000)


# --- what is no base -----------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "says"), [
    ('"chat_companion"', "did you mean chat-companion? there are reference, coding-agent"),
    ('"Chat-Companion"', "did you mean chat-companion?"),
    ('"helper"', "there is no such profile; there are reference"),
    ('""', "there is no such profile"),
    (f'"{"x" * 10_000}"', "there is no such profile"),
    ('"other.toml"', "names a profile, not a file: a file cannot be the base of another"),
    ('"caliber.toml"', "names a profile, not a file"),
    ("7", "must be the name of a profile in quotes: reference"),
    ("true", "must be the name of a profile in quotes"),
    ('["reference"]', "must be the name of a profile in quotes"),
    ('{ base = "reference" }', "must be the name of a profile in quotes"),
])  # fmt: skip
def test_what_is_no_profile_is_refused_with_what_there_is(value: str, says: str, tmp_path: Path) -> None:
    (fault,) = faults(f"base = {value}\n")
    assert isinstance(fault, InvalidConfigValue)
    assert fault.context["field"] == "base"
    assert says in str(fault)
    assert len(str(fault)) < 400
    file = tmp_path / "caliber.toml"
    file.write_text(f"base = {value}\n")
    with pytest.raises(MultipleErrors, match="base"):
        caliber.open(file)
    with pytest.raises(MultipleErrors, match="base"):
        caliber.create(file)
    assert "base" in run("stats", "-c", file, code=2).stderr


def test_a_wrong_base_in_a_program_is_shown_where_it_stands() -> None:
    with pytest.raises(MultipleErrors) as caught:
        compile_text('caliber: "0.1.0" {\n  config {\n    base: "refrence"\n    tokn: 5\n  }\n}', name="a.caliber")
    first = str(caught.value.errors[0])
    assert first.startswith("a.caliber:3:11")
    assert "did you mean reference?" in first


def test_two_bases_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('base = "reference"\n')
    assert caliber.load_config(file, base="reference") == profiles.reference(tmp_path / "caliber.db")
    for other in ("ops-agent", profiles.reference("a.db")):
        with pytest.raises(MultipleErrors) as caught:
            caliber.load_config(file, base=other)
        (fault,) = caught.value.errors
        assert isinstance(fault, IncompatibleOptions)
        assert "remove one of the two" in str(fault)
    assert "remove one of the two" in run("check", file, "--base", "ops-agent", code=1).stdout


def test_a_word_that_is_no_provider_is_refused_with_what_there_is() -> None:
    both = faults('base = "reference"\nembedding_provider = "opnai"\nsummarization_provider = "sk-1234567890"\n')
    assert [fault.context["field"] for fault in both] == ["embedding_provider", "summarization_provider"]
    assert "static, minilm, openai, voyage, ollama, none" in str(both[0])
    assert "sk-1234567890" not in str(both[1]), "perhaps a key"


def test_faults_of_a_file_with_a_base_are_all_reported() -> None:
    found = faults('base = "reference"\ntoken_budget = "many"\ntokn = 1\n[search]\nmode = "fast"\n')
    assert {fault.context["field"] for fault in found} == {"token_budget", "tokn", "search.mode"}


# --- commands and the call -----------------------------------------------------------------------


def test_check_and_explain_tell_the_file_from_its_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("caliber.toml").write_text('base = "chat-companion"\n[search.boosts]\nexact = 0.7\n')
    summed = caliber_json("check")
    assert (summed["base"], summed["stated"]) == ("chat-companion", ["search.boosts.exact"])
    assert "base           chat-companion; this file sets search.boosts.exact" in run("check").stdout
    section = run("check", "--explain", "search.boosts").stdout
    assert "search.boosts.exact = 0.7  (this file)" in section
    assert "search.boosts.recency = 0.15  (base chat-companion)" in section
    assert "(from this file; no profile has this value)" in run("check", "--explain", "search.boosts.exact").stdout
    recency = run("check", "--explain", "search.boosts.recency").stdout
    assert "here         0.15  (from the base chat-companion)" in recency
    assert caliber_json("check", "--explain", "search.boosts.recency")["stated"] is False
    run("init", "--from", "caliber.toml", "--path", "full.toml")
    assert caliber_json("check", "full.toml")["config_hash"] == summed["config_hash"]
    assert caliber_json("check", "full.toml")["base"] is None


def test_commands_work_on_a_file_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("caliber.toml").write_text('base = "reference"\nembedding_provider = "none"\n')
    run("create")
    Path("notes.md").write_text("# Drivers\n\nSQLite is reached through apsw.\n")
    run("ingest", "files", "notes.md")
    assert "apsw" in run("search", "SQLite").stdout
    assert "sound" in run("check").stdout
    run("doctor")


def test_open_creates_a_store_when_asked(tmp_path: Path) -> None:
    config = profiles.chat_companion(tmp_path / "me.db", embedding_provider=None)
    with pytest.raises(caliber.CaliberError, match="caliber create"):
        caliber.open(config)
    with caliber.open(config, create=True) as memory:
        task = memory.start_trajectory("A task", initiator=caliber.EntityRef.user("me"))
    with caliber.open(config, create=True) as memory:
        assert memory.get(task.trajectory_id, user="me") == task
    with caliber.open(profiles.reference(":memory:", embedding_provider=None), create=True) as memory:
        assert memory.admin.stats()["records"]["turn"] == 0
    with pytest.raises(caliber.CaliberError, match="create"):
        caliber.open(config, create=1)  # type: ignore[arg-type]


FIRST_CALLS = """
import asyncio

import caliber

with caliber.open(caliber.profiles.chat_companion("me.db"), create=True) as memory:
    task = memory.start_trajectory("Say hello", initiator=caliber.EntityRef.user("me"))


async def main() -> str:
    async with await caliber.aio.open(caliber.profiles.chat_companion("me.db"), create=True) as memory:
        again: caliber.model.Trajectory = await memory.get(task.trajectory_id, user="me")
        return again.trajectory_id.hex


print(asyncio.run(main()) == task.trajectory_id.hex)
"""


@pytest.mark.prove
def test_the_first_calls_run_and_are_typed(tmp_path: Path, known_types: Path) -> None:
    file = tmp_path / "first.py"
    file.write_text(FIRST_CALLS)
    ran = subprocess.run([sys.executable, file], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "True\n", "")
    for text, faults in ((FIRST_CALLS, 0), (FIRST_CALLS.replace("create=True", "create='yes'"), 1)):
        file.write_text(text)
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(known_types), str(file)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == faults, done.stdout + done.stderr


def test_what_users_read_names_no_requirement() -> None:
    pages = {path.name: path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md")}
    helps = {name: run(name, "--help").stdout for name in COMMANDS}
    said = {name: run("check", "--explain", name).stdout for name in ("token_budget", "search.min_similarity", "pcp")}
    readme = (ROOT / "README.md").read_text("utf-8")
    for name, text in {"README.md": readme, **pages, **helps, **said}.items():  # docs/errors.md has all texts of errors
        assert not CODE.findall(text), name


NAMES = sorted(AGENT_PROFILES)
OF_VECTORS = {"embedding_provider": HASH_PROVIDER}


def _flat(data: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        path = f"{above}{name}"
        if isinstance(value, dict) and path != SHARES:
            yield from _flat(value, f"{path}.")
        else:
            yield path, value


def _differing(one: CaliberConfig, other: CaliberConfig) -> set[str]:
    left, right = dict(_flat(one.to_mapping())), dict(_flat(other.to_mapping()))
    assert left.keys() == right.keys()
    return {path for path in left if left[path] != right[path]}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("vectors", [True, False])
def test_a_profile_differs_from_the_reference_where_its_table_says(name: str, vectors: bool) -> None:
    # K-002 O-14
    given: dict[str, Any] = OF_VECTORS if vectors else {"embedding_provider": None}
    config = profiles.PROFILES[name]("store.db", **given)
    changes = AGENT_PROFILES[name].changes
    stated = {path for path, change in changes.items() if vectors or not change.vectors}
    assert _differing(config, profiles.reference("store.db", **given)) == stated
    assert profiles.reasons(name, config) == {path: changes[path].why for path in stated}
    assert refusals(config) == []


@pytest.mark.parametrize("name", NAMES)
def test_what_a_profile_changes_acts_and_has_its_reason(name: str) -> None:
    # O-14
    for path, change in AGENT_PROFILES[name].changes.items():
        *above, last = path.split(".")
        section = section_at(tuple(above), CaliberConfig)
        if section is None:  # an entry of a table
            *above, last = above
            section = section_at(tuple(above), CaliberConfig)
        if above == ["storage"]:
            section = caliber.config.StorageConfig
        assert last in section.model_fields, path
        assert 10 < len(change.why) <= 100
        assert change.why.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_the_same_in_every_kind_of_file(name: str) -> None:
    # design section 8
    config = profiles.PROFILES[name]("store.db", **OF_VECTORS)
    reasons = profiles.reasons(name, config)
    toml, program = render_toml(config, reasons), render_caliber(config, reasons)
    assert CaliberConfig.from_toml(toml) == config
    assert CaliberConfig.from_json(render_json(config)) == config
    assert compile_text(program) == config
    for path, why in reasons.items():
        entry = path.removeprefix("embedding.embed.")
        here = f"Here: {why}\n" if entry == path else f"Here, {entry}: {why}\n"
        assert f"# {here}" in toml
        assert f"// {here}" in program


def test_a_reason_stands_only_beside_the_value_it_is_for() -> None:
    config = profiles.coding_agent("store.db", **OF_VECTORS, token_budget=4_000, **{"search.boosts.exact": 0.5})
    reasons = profiles.reasons("coding-agent", config)
    assert "search.boosts.exact" not in reasons
    assert "search.boosts.exact" in profiles.reasons("coding-agent", profiles.coding_agent("store.db", **OF_VECTORS))
    assert config.pcp.dosage.max_context_tokens == 4_000
    # Shares, not tokens: they follow the budget by themselves.
    assert config.assembly.share("artifacts") == profiles.coding_agent("store.db").assembly.share("artifacts")
    assert profiles.reasons("reference", profiles.reference("store.db")) == {}


@pytest.mark.parametrize(
    ("name", "suffix"), [("coding-agent", "toml"), ("chat-companion", "caliber"), ("ops-agent", "json")]
)
def test_init_writes_a_profile_and_check_finds_it_sound(name: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"agent.{suffix}"
    run("init", "--full", "--profile", name, "--path", file, "--embedding", "none")
    run("check", file)
    assert ("Here: " in file.read_text()) == (suffix != "json")


def test_two_profiles_make_different_windows_of_one_store(tmp_path: Path) -> None:
    # C-094 C-095 C-219
    store = tmp_path / "one.db"
    of = {name: profiles.PROFILES[name](store, embedding_provider=None) for name in NAMES}
    caliber.create(of["chat-companion"])
    with caliber.open(of["chat-companion"]) as memory:
        task = memory.start_trajectory("Repair the build", initiator=USER)
        scope = memory.current_scope(task.trajectory_id)
        assert scope is not None
        words = " ".join(f"word{number}" for number in range(120))
        memory.append_turns(
            scope.scope_id, [{"role": "user", "content": f"Build {number} failed. {words}"} for number in range(60)]
        )
        for number in range(12):
            memory.create_artifact(
                scope.scope_id,
                artifact_type="error_log",
                content=f"Build error {number}: {words}",
                extraction_method="explicit",
            )
    windows = {}
    for name, config in of.items():
        with caliber.open(config) as memory:
            windows[name] = memory.assemble_context(task.trajectory_id, query="build error")
    used = {name: window.used_tokens for name, window in windows.items()}
    assert used["chat-companion"] <= 4_000 < used["ops-agent"] <= 16_000
    assert used["ops-agent"] < used["coding-agent"] <= 32_000
    used_by = {
        name: {section.name: section.token_count / window.used_tokens for section in window.sections}
        for name, window in windows.items()
    }
    # Made for talk, or for what was made: the same store, other shares of the window.
    assert used_by["chat-companion"].get("artifacts", 0) < used_by["coding-agent"]["artifacts"]
    # The sources fill strictly: the conversation up to its cap, no turn apart as the last message or behind the rest.
    assert {"earlier", "current"} <= used_by["chat-companion"].keys()
    assert not {"earlier", "recall", "current"} & used_by["sources"].keys()
    assert list(used_by["sources"]) == ["user", "artifacts"]
