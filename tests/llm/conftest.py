"""A service on loopback that speaks the protocols of providers, and the key to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.llm.model_server import ModelServer, serving
from support.llm.services import KEY, KEY_NAME


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_NAME, KEY)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving() as model:
        yield model
