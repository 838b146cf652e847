"""Our own backends as targets of the shipped contract suite."""

from __future__ import annotations

import pytest
from support.databases import BACKENDS, RecycledSchemas
from support.drawn import LACKS

from caliber.backends import backend as backend_module
from caliber.testing import ContractTarget


@pytest.fixture(params=sorted(BACKENDS), scope="module")
def contract_target(request: pytest.FixtureRequest) -> ContractTarget:
    """The backend that the shipped suite proves."""
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
