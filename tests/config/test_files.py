"""Configuration files: parsing, paths, and what is said when a file is not one. Nothing here opens a store."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic.fields import FieldInfo
from support.cli_runs import caliber as run

import caliber
from caliber.config import CaliberConfig, profiles
from caliber.config.knobs import Section
from caliber.config.manual.render import render_json, render_toml
from caliber.config.parsing import MAX_BYTES
from caliber.dsl import check
from caliber.model.errors import ConfigError, InvalidConfigValue, MissingRequired, MultipleErrors, Unavailable

HASH_PROVIDER = {"provider_type": "hash", "model": "hash", "dimensions": 32}


def config(path: str = "store.db") -> CaliberConfig:
    return profiles.reference(path, embedding_provider=HASH_PROVIDER)


def one_fault(call: Callable[[], object]) -> ConfigError:
    with pytest.raises(MultipleErrors) as caught:
        call()
    assert len(caught.value.errors) == 1
    fault: ConfigError = caught.value.errors[0]
    return fault


@pytest.mark.parametrize(("text", "where"), [
    ("", "line 1, column 1"),
    ('{"token_budget": }', "line 1, column 18"),
    ('{\n  "a": 1,\n  "b" 2\n}', "line 3, column 7"),
    ("[1, 2]", "must be an object"),
    ("null", "must be an object"),
    ('{"a": NaN}', "NaN"),
    ('{"a": -Infinity}', "-Infinity"),
    ('{"a": 1, "a": 2}', "'a' comes twice"),
    ('{"a": {"b": 1, "b": 1}}', "'b' comes twice"),
    ('{"a": ' + "9" * 5_000 + "}", "4300 digits"),
    ("[" * 200_000, "nested too deeply"),
    ('{"a":' * 200_000, "nested too deeply"),
    (" " * (MAX_BYTES + 1), "longer than"),
])  # fmt: skip
def test_json_that_does_not_parse_is_one_fault_of_field_json(text: str, where: str) -> None:
    # C-123 K-007, design section 10: parsers are bounded in depth and size
    fault = one_fault(lambda: CaliberConfig.from_json(text))
    assert isinstance(fault, InvalidConfigValue)
    assert fault.context["field"] == "json"
    assert fault.context["value"] == text[:100]
    assert where in fault.context["reason"]
    assert where in str(fault)


@pytest.mark.parametrize(("text", "where"), [
    ("token_budget = ", "line 1, column 16"),
    ("a = 1\nb = = 2\n", "line 2, column 5"),
    ("a = 1\na = 2\n", "line 2"),
    ("[a]\n[a]\n", "line 2"),
    ("a = " + "[" * 100_000, "nested too deeply"),
    ("a = 2026-13-45", "line 1"),
    ("#" * (MAX_BYTES + 1), "longer than"),
])  # fmt: skip
def test_toml_that_does_not_parse_is_one_fault_of_field_toml(text: str, where: str) -> None:
    # C-123
    fault = one_fault(lambda: CaliberConfig.from_toml(text))
    assert isinstance(fault, InvalidConfigValue)
    assert fault.context["field"] == "toml"
    assert fault.context["value"] == text[:100]
    assert where in fault.context["reason"]


def test_text_is_expected() -> None:
    for parse in (CaliberConfig.from_json, CaliberConfig.from_toml):
        fault = one_fault(lambda parse=parse: parse(b"{}"))  # type: ignore[misc]
        assert "expected text, got bytes" in fault.context["reason"]


def test_faults_of_a_document_that_parses_are_all_reported() -> None:
    # C-123
    documents = ((CaliberConfig.from_json, '{"token_budget": -1}'), (CaliberConfig.from_toml, "token_budget = -1"))
    for parse, text in documents:
        with pytest.raises(MultipleErrors) as caught:
            parse(text)
        assert sum(isinstance(error, InvalidConfigValue) for error in caught.value.errors) == 1
        assert sum(isinstance(error, MissingRequired) for error in caught.value.errors) > 30


def test_toml_and_json_say_the_same() -> None:
    assert CaliberConfig.from_toml(render_toml(config())) == CaliberConfig.from_json(render_json(config())) == config()


@pytest.mark.parametrize(("suffix", "render"), [(".toml", render_toml), (".json", render_json), (".TOML", render_toml)])
def test_a_file_is_read_by_its_suffix(tmp_path: Path, suffix: str, render: Callable[[CaliberConfig], str]) -> None:
    file = tmp_path / f"caliber{suffix}"
    file.write_text(render(config("/data/store.db")), encoding="utf-8")
    assert caliber.load_config(file) == config("/data/store.db")
    assert caliber.load_config(str(file)) == config("/data/store.db")


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "caliber.json"
    file.write_text(render_json(config("/data/store.db")), encoding="utf-8-sig")
    assert caliber.load_config(file) == config("/data/store.db")


def test_relative_paths_lead_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "caliber.toml").write_text(
        render_toml(config("data/../store.db").with_overrides(cache_dir="cache")), encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    for given in (folder / "caliber.toml", Path("project/caliber.toml")):
        loaded = caliber.load_config(given)
        assert loaded.storage.path == str(folder / "store.db")
        assert loaded.storage.resolve_path() == str(folder / "store.db")
        assert loaded.cache_path == folder / "cache"


@pytest.mark.parametrize("path", [":memory:", "env:CALIBER_STORE", "~/store.db"])
def test_paths_that_are_not_relative_stay_as_written(tmp_path: Path, path: str) -> None:
    file = tmp_path / "caliber.toml"
    file.write_text(render_toml(config(path)), encoding="utf-8")
    assert caliber.load_config(file).storage.path == path


def test_paths_are_resolved_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    # K-072
    monkeypatch.setenv("CALIBER_STORE", "/data/a.db")
    named = config("env:CALIBER_STORE")
    assert named.storage.resolve_path() == "/data/a.db"
    monkeypatch.setenv("CALIBER_STORE", "/data/b.db")
    assert named.storage.resolve_path() == "/data/b.db"
    monkeypatch.delenv("CALIBER_STORE")
    with pytest.raises(MissingRequired, match="CALIBER_STORE"):
        named.storage.resolve_path()
    assert config("~/a.db").storage.resolve_path() == str(Path.home() / "a.db")
    assert config(":memory:").storage.resolve_path() == ":memory:"
    assert config(":memory:").storage.in_memory
    assert not config("a.db").storage.in_memory


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    fault = one_fault(lambda: caliber.load_config(tmp_path / "caliber.toml"))
    assert isinstance(fault, InvalidConfigValue)
    assert "caliber init" in str(fault)


@pytest.mark.parametrize("name", ["caliber.yaml", "caliber", "caliber.toml.bak"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(render_toml(config()), encoding="utf-8")
    fault = one_fault(lambda: caliber.load_config(tmp_path / name))
    assert ".toml or .json" in str(fault)


def test_what_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"persona = 'caf\xe9'")
    big = tmp_path / "big.json"
    with big.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    loop = tmp_path / "loop.toml"
    loop.symlink_to(loop)
    reasons = {file: one_fault(lambda file=file: caliber.load_config(file)) for file in (folder, latin, big, loop)}  # type: ignore[misc]
    assert "folder" in str(reasons[folder])
    assert "not UTF-8 text (byte 14)" in str(reasons[latin])
    assert "larger than" in str(reasons[big])
    assert "cannot be read" in str(reasons[loop])
    assert "cannot be read" in str(one_fault(lambda: caliber.load_config("a\0b.toml")))
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    assert "is a pipe" in str(one_fault(lambda: caliber.load_config(pipe))), "nobody waits for who writes"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "caliber.toml"
    file.write_text(render_toml(config()), encoding="utf-8")
    file.chmod(0)
    assert "cannot be read" in str(one_fault(lambda: caliber.load_config(file)))


def test_a_wrong_file_names_its_faults_by_path(tmp_path: Path) -> None:
    data = json.loads(render_json(config()))
    data["storage"]["readers"] = 0
    data["retention"] = "short"
    file = tmp_path / "caliber.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(MultipleErrors) as caught:
        caliber.load_config(file)
    assert {error.context["field"] for error in caught.value.errors} == {"storage.readers", "retention"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("short.toml", '[storage]\nadapter = "sqlite"\npath = "a.db"\n'),
        ("short.caliber", 'caliber: "0.1.0" { adapter a { type: sqlite connection: "a.db" } }\n'),
    ],
)
def test_a_short_file_is_told_of_a_base_which_embeds(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    with pytest.raises(MultipleErrors) as caught:
        caliber.open(file)
    said = [str(caught.value), run("check", file, code=1).stderr + run("check", file, code=1).stdout]
    for shown in said:
        assert 'base = "reference"' in shown
        assert "caliber init --from" in shown
    made = check(file, base="chat-companion")
    assert made.config.embedding_provider == profiles.chat_companion("a.db").embedding_provider
    assert made.warnings == ()
    whole = MultipleErrors(errors=[MissingRequired(field="storage.path"), MissingRequired(field="vector.dimensions")])
    assert "base" not in str(whole), "no profile says these"


def _knobs(cls: type[Section], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in cls.model_fields.items():
        inner = [
            kind
            for kind in (field.annotation, *get_args(field.annotation))
            if isinstance(kind, type) and issubclass(kind, Section)
        ]
        if inner and name != "policies":
            yield from _knobs(inner[0], f"{above}{name}.")
        elif name != "policies":
            yield f"{above}{name}", field


def test_the_path_of_a_store_is_that_of_a_configuration(tmp_path: Path) -> None:
    for place in (tmp_path / "agent.db", str(tmp_path / "agent.SQLITE")):
        with pytest.raises(Unavailable):
            caliber.open(place)
        with caliber.open(place, create=True) as memory:
            assert memory.config == caliber.profiles.chat_companion(place)
            memory.remember([{"role": "user", "content": "My dog is called Pixel."}], user="me")
        with caliber.open(place) as memory:
            assert memory.search("Pixel", user="me").hits
    with caliber.open(":memory:") as memory:
        assert memory.config.storage.path == ":memory:"
    with pytest.raises(MultipleErrors, match=r"a configuration ends in \.caliber, \.toml or \.json"):
        caliber.open(tmp_path / "agent.yaml", create=True)
    assert not (tmp_path / "agent.yaml").exists()
