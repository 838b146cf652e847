"""Our own backends as targets of the shipped contract suite."""

from __future__ import annotations

import pytest
from support.configs import config
from support.databases import BACKENDS, RecycledSchemas

from caliber.backends import backend as backend_module
from caliber.testing import ContractTarget


@pytest.fixture(params=sorted(BACKENDS), scope="module")
def contract_target(request: pytest.FixtureRequest) -> ContractTarget:
    """The backend that the shipped suite proves."""
    name: str = request.param
    if name == "postgres":
        request.getfixturevalue("postgres")
        schemas = RecycledSchemas()
        return ContractTarget(
            name=name,
            module=schemas,
            fresh=schemas.fresh,
            discard=schemas.discard,
            lacks={"gapless": "a rolled back transaction keeps its number; readers go by snapshots"},
        )
    in_memory = "it ends with its handle"
    return ContractTarget(
        name=name,
        module=backend_module("sqlite"),
        fresh=lambda folder: config(":memory:" if name == "sqlite-memory" else str(folder / "store.db")),
        lacks={}
        if name == "sqlite"
        else {"reopen": in_memory, "sharing": in_memory, "snapshots": "a reader keeps writers waiting in memory"},
    )
