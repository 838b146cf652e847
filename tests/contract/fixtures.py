"""Pytest fixtures of the contract suite; a backend's tests override ``contract_target``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contract.memories import MEMORIES
from contract.target import ContractTarget
from contract.world import Contract, World

NAMES = ("contract", "world")


@pytest.fixture
def contract(contract_target: ContractTarget, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contract]:
    """The target of one contract test: it makes the stores."""
    made = Contract(contract_target, lambda: tmp_path_factory.mktemp("contract"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def world(contract_target: ContractTarget, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A store that the tests of a module share."""
    made = Contract(contract_target, lambda: tmp_path_factory.mktemp("world"))
    yield World(made.store({"memories": MEMORIES}))
    made.close()
