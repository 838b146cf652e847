"""Registry of providers: the one that a configuration names, and the error for an unknown name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from caliber.llm import (
    EmbeddingProvider,
    SummarizationProvider,
    build_embedding_provider,
    build_summarization_provider,
)
from caliber.llm.registry import EMBEDDING
from caliber.model.errors import (
    CaliberError,
    ConfigError,
    IncompatibleOptions,
    InvalidConfigValue,
    MissingRequired,
    ProviderNotSupported,
)

ROOT = Path(__file__).parents[2]


@dataclass
class Settings:
    provider_type: str
    model: str
    dimensions: int | None = None
    endpoint: str | None = None
    api_key: object | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    http: Any = None
    chat: Any = None


STATIC = "wordllama-l2-supercat"


def test_each_named_embedding_provider_is_built() -> None:
    # C-102, C-246, C-248
    static = build_embedding_provider(Settings("static", STATIC))
    short = build_embedding_provider(Settings("static", STATIC, dimensions=64))
    hashed = build_embedding_provider(Settings("hash", "tests", dimensions=48))
    assert (static.dimensions, short.dimensions, hashed.dimensions) == (256, 64, 48)
    assert isinstance(static, EmbeddingProvider)
    assert hashed.model_id == "hash-1:tests"


def test_the_extractive_provider_is_built_with_and_without_embeddings() -> None:
    # C-103, C-497
    hashed = build_embedding_provider(Settings("hash", "tests", dimensions=48))
    for embedder in (None, hashed):
        provider = build_summarization_provider(Settings("extractive", "extractive"), embedder, len)
        assert isinstance(provider, SummarizationProvider)
        assert provider.summarize("Some words here. Other words there.", 20) in (
            "Some words here.",
            "Other words there.",
        )
    assert provider.model_id == "extractive-2+hash-1:tests"


def test_an_unknown_type_lists_the_known_ones() -> None:
    with pytest.raises(ProviderNotSupported, match="'cohere' is not supported; supported: hash, minilm") as caught:
        build_embedding_provider(Settings("cohere", "m"))
    assert caught.value.supported == tuple(sorted(EMBEDDING))
    with pytest.raises(ProviderNotSupported, match="supported: anthropic, extractive"):
        build_summarization_provider(Settings("voyage", "m"), None, len)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (Settings("static", "another"), InvalidConfigValue),
        (Settings("static", STATIC, dimensions=100), InvalidConfigValue),
        (Settings("static", STATIC, endpoint="http://localhost"), IncompatibleOptions),
        (Settings("static", STATIC, api_key="env:KEY"), IncompatibleOptions),
        (Settings("static", STATIC, options={"speed": 3}), InvalidConfigValue),
        (Settings("hash", "m"), MissingRequired),
        (Settings("hash", "m", dimensions=0), InvalidConfigValue),
        (Settings("hash", "", dimensions=8), InvalidConfigValue),
    ],
)
def test_settings_that_cannot_hold_are_refused_and_none_is_ignored(
    settings: Settings, error: type[ConfigError]
) -> None:
    with pytest.raises(error):
        build_embedding_provider(settings)


@pytest.mark.parametrize(
    "settings",
    [
        Settings("extractive", "another"),
        Settings("extractive", "extractive", endpoint="http://localhost"),
        Settings("extractive", "extractive", options={"damping": 0.5}),
    ],
)
def test_settings_of_the_extractive_provider_are_checked_too(settings: Settings) -> None:
    with pytest.raises(ConfigError):
        build_summarization_provider(settings, None, len)


def test_errors_never_show_a_key() -> None:
    # M-013, C-105
    with pytest.raises(CaliberError) as caught:
        build_embedding_provider(Settings("static", STATIC, api_key="sk-very-secret"))
    assert "sk-very-secret" not in str(caught.value) + repr(caught.value.context)


def test_the_reference_profile_names_providers_that_exist(tmp_path: Path) -> None:
    # Issue 2, providers: without an LLM everything still works.
    from caliber.config import profiles

    config = profiles.reference(tmp_path / "store.db")
    assert config.embedding_provider is not None
    assert config.summarization_provider is not None
    embedder = build_embedding_provider(config.embedding_provider)
    assert embedder.dimensions == config.embedding_provider.dimensions
    build_summarization_provider(config.summarization_provider, embedder, len)


def test_importing_the_room_is_cheap() -> None:
    script = (
        "import sys, json, numpy\n"
        "before = set(sys.modules)\n"
        "import caliber.llm\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    loaded = json.loads(done.stdout)
    assert not [name for name in loaded if name.split(".")[0] in ("tokenizers", "safetensors", "pydantic", "logging")]
    assert "caliber.llm.local.static" not in loaded
    assert len(loaded) < 35  # half of them are the model
