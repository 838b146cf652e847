"""``caliber init``, ``check`` and ``doctor`` with providers over HTTP, against a service on loopback."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.llm.model_server import ModelServer, serving, status
from support.llm.services import KEY

from caliber.cli.app import cli
from caliber.cli.setup import EMBEDDINGS, SUMMARIES
from caliber.dsl.loading import load_config
from caliber.engine.refusals import provider_refusals
from caliber.llm.registry import EMBEDDING, SUMMARIZATION


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "VOYAGE_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving() as model:
        yield model


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(cli, [*arguments, "--json"], prog_name="caliber")
    assert result.exit_code == code, result.output + result.stderr
    assert KEY not in result.output + result.stderr
    return json.loads(result.stdout)


def init(server: ModelServer, embedding: str, summaries: str) -> None:
    """Write a configuration for the service on loopback."""
    run("init", "--full", "--embedding", embedding, "--summaries", summaries)
    path = Path("caliber.toml")
    text = path.read_text()
    data = tomllib.loads(text)
    for section in ("embedding_provider", "summarization_provider"):
        if "endpoint" in data.get(section, {}):
            text = text.replace(f'"{data[section]["endpoint"]}"', f'"{server.endpoint}"')
    dimensions = data.get("vector", {}).get("dimensions")
    server.dimensions = server.dimensions if dimensions is None else dimensions
    path.write_text(text)


@pytest.mark.parametrize("embedding", EMBEDDINGS)
@pytest.mark.parametrize("summaries", SUMMARIES)
def test_every_choice_of_init_is_a_configuration_that_check_takes(embedding: str, summaries: str) -> None:
    # K-002: complete, and nothing left to a default
    made = run("init", "--embedding", embedding, "--summaries", summaries)
    config = load_config("caliber.toml")
    assert provider_refusals(config) == []
    assert run("check")["ok"]
    for chosen, provider in ((embedding, config.embedding_provider), (summaries, config.summarization_provider)):
        assert (provider is None) == (chosen == "none")
        assert provider is None or provider.provider_type == chosen
        if provider is not None and provider.api_key is not None:
            assert provider.api_key.name in made["keys"]


def test_init_offers_every_kind_of_provider() -> None:
    # C-104; hash is for tests
    assert {*EMBEDDINGS} - {"none"} == {*EMBEDDING} - {"hash"}
    assert {*SUMMARIES} - {"none"} == {*SUMMARIZATION}


def test_sections_that_are_not_set_are_described_whole() -> None:
    # design section 8: nothing has to be looked up elsewhere
    run("init", "--full", "--embedding", "none", "--summaries", "extractive")
    text = Path("caliber.toml").read_text()
    for header, knobs in {
        "# [embedding_provider]": ("provider_type", "endpoint", "api_key"),
        "# [embedding_provider.http]": ("timeout_ms", "requests_per_minute", "proxy", "trusted"),
        "# [vector]": ("dimensions", "distance_metric"),
        "# [summarization_provider.http]": ("tokens_per_minute",),
        "# [summarization_provider.chat]": ("prompts", "temperature", "max_output_tokens"),
    }.items():
        part = text.split(f"{header}\n")[1].split("\n\n")[0]
        for knob in knobs:
            assert f"\n# {knob} =" in f"\n{part}", (header, knob)


def edit(old: str, new: str) -> None:
    path = Path("caliber.toml")
    text = path.read_text()
    assert text.count(old) >= 1, old
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(("old", "new", "says"), [
    ("env:VOYAGE_API_KEY", "env:NOT_SET_ANYWHERE", "the environment variable NOT_SET_ANYWHERE is not set"),
    ('input_type = "none"', 'input_type = "poem"', "must be one of none, document, query"),
    (', input_type = "none"', "", "embedding_provider.options.input_type is required"),
    ('input_type = "none"', 'input_type = "none", speed = 3', "speed"),
    ("send_dimensions = true", "send_dimensions = 1", "must be true or false"),
    ("batch_tokens = 100000", "batch_tokens = 0", "must be a whole number from 1"),
    ('endpoint = "https://api.voyageai.com/v1"', "", "embedding_provider.endpoint is required"),
    ("https://api.voyageai.com", "http://api.voyageai.com", "use https"),
    ("https://api.voyageai.com/v1", "https://", "is not a URL"),
    ("https://api.voyageai.com/v1", "https://[api", "is not a URL"),
    ("https://api.voyageai.com/v1", "https://api.voyageai.com:99999/v1", "is not a URL"),
    ("https://api.voyageai.com/v1", "https://api.voyageai.com/v1?version=2", "must end with its path"),
    ("https://api.voyageai.com/v1", "https://böse.example/v1", "must be plain ASCII"),
    ('trusted = "usual"', 'trusted = "/no/such/file.pem"', "there is no such file"),
    ('api_key = "env:VOYAGE_API_KEY"', "", "embedding_provider.api_key is required"),
    ('prompts = "builtin"', 'prompts = "/no/such/folder"', "summarize.txt"),
])  # fmt: skip
def test_check_names_what_is_wrong_with_a_provider(old: str, new: str, says: str) -> None:
    # C-104, C-105
    run("init", "--full", "--embedding", "voyage", "--summaries", "anthropic")
    edit(old, new)
    found = run("check", code=1)
    assert any(says in fault["message"] for fault in found["faults"]), found


def test_check_lists_all_faults_of_a_provider_at_once() -> None:
    run("init", "--full", "--embedding", "voyage", "--summaries", "none")
    edit('input_type = "none"', 'input_type = "poem", speed = 3')
    edit("batch_tokens = 100000", "batch_tokens = 0")
    assert len(run("check", code=1)["faults"]) == 3


def test_longer_pieces_than_the_model_reads_are_refused() -> None:
    run("init", "--full", "--embedding", "minilm", "--summaries", "none")
    edit("long_text_tokens = 254", "long_text_tokens = 255")
    (fault,) = run("check", code=1)["faults"]
    assert "of 255 tokens a piece the model would read 254" in fault["message"]


def test_doctor_asks_services_only_when_told_to(server: ModelServer) -> None:
    init(server, "ollama", "openai")
    server.replies["verify_contradiction"] = lambda _: {"contradiction": True}
    run("create")
    found = run("doctor")
    assert server.asked == []
    texts = [finding["text"] for finding in found["findings"]]
    assert any("embedding_provider is ollama" in text and "was not asked" in text for text in texts)
    assert found["ok"]
    found = run("doctor", "--network")
    texts = [finding["text"] for finding in found["findings"]]
    assert any(text.startswith("embedding a text works (") for text in texts)
    assert any(text.startswith("asking about two statements works (") for text in texts)
    assert [asked.path for asked in server.asked] == ["/api/embed", "/chat/completions"]


def test_doctor_says_what_a_service_refused(server: ModelServer) -> None:
    init(server, "openai", "none")
    server.always = status(401, {"error": {"code": "invalid_api_key"}})
    run("create")
    found = run("doctor", "--network", code=1)
    (problem,) = [finding for finding in found["findings"] if finding["level"] == "problem"]
    assert problem["text"] == (
        "embedding a text failed: openai answered 401: the key in env:OPENAI_API_KEY was refused (invalid_api_key)"
    )


def test_doctor_names_a_variable_that_is_not_set(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    init(server, "openai", "none")
    run("create")
    monkeypatch.delenv("OPENAI_API_KEY")
    found = run("doctor", code=1)
    assert any("OPENAI_API_KEY is not set" in finding["text"] for finding in found["findings"])
