"""Our own backends as targets of the contract suite."""

from __future__ import annotations

import re
from typing import Any

import pytest
from contract.target import ContractTarget
from support.databases import BACKENDS, RecycledSchemas
from support.drawn import LACKS
from support.tiers import tier

from caliber.backends import backend as backend_module
from caliber.schema.relations import RELATIONS

SHORT = frozenset(("agent_message", "embedding", "memory_example", "note", "scope", "trajectory", "turn"))
"""Relations that between them have every kind of column, key, rule and reference: enough for each change."""
LONG = {relation.name for relation in RELATIONS} - SHORT


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the contract of the other relations to ``make prove``: it comes from the same declarations."""
    if tier() != "daily":
        return
    left_out = {item for item in items if "contract_target" in _values(item) and _relation_of(item) in LONG}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _values(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def _relation_of(item: pytest.Item) -> str:
    """Return the relation that a case is about: the first of its parameters but for the database, or what owns that."""
    name = item.name.partition("[")[2].removeprefix(f"{_values(item)['contract_target']}-")
    return re.split(r"[-.\]]", name)[0]


@pytest.fixture(params=sorted(BACKENDS), scope="module")
def contract_target(request: pytest.FixtureRequest) -> ContractTarget:
    """The backend that the suite proves."""
    name: str = request.param
    if name != "postgres":
        return ContractTarget(
            name=name,
            module=backend_module("sqlite"),
            fresh=lambda folder: BACKENDS[name](folder).config(),
            lacks=LACKS[name],
        )
    request.getfixturevalue("postgres")
    schemas = RecycledSchemas()
    return ContractTarget(name=name, module=schemas, fresh=schemas.fresh, discard=schemas.discard, lacks=LACKS[name])
