"""Profiles for kinds of agents: complete, and different from the reference exactly where their tables say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber as run
from support.configs import HASH_PROVIDER, USER

import caliber
from caliber.config import CaliberConfig, profiles
from caliber.config.faults import section_at
from caliber.config.manual.render import render_json, render_toml
from caliber.config.profiles.agents import AGENT_PROFILES, SHARES
from caliber.dsl import compile_text
from caliber.dsl.writing import render_caliber
from caliber.engine.refusals import refusals

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
