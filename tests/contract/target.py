"""Description of the backend under test (module, empty stores, missing capabilities), and all capabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Final

import pytest

from caliber.backends.protocol import BackendModule
from caliber.config import CaliberConfig
from caliber.model.errors import InvalidValue
from caliber.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Capability:
    """Something a backend does. Without a mandatory one nothing above it is right, and no reason excuses it."""

    meaning: str
    mandatory: bool


CAPABILITIES: Final[Mapping[str, Capability]] = {
    "values": Capability("every value of every column comes back as it went in", mandatory=True),
    "rules": Capability("the database refuses what breaks a rule of a relation", mandatory=True),
    "order": Capability("pages and access paths list rows completely and in their order", mandatory=True),
    "statements": Capability("every statement is there, and answers as every other backend's", mandatory=True),
    "transactions": Capability("a write is whole or nothing, whoever else writes", mandatory=True),
    "conditional updates": Capability("a row that another changed is not overwritten", mandatory=True),
    "changes": Capability("a commit and its change record are one", mandatory=True),
    "errors": Capability("what fails is an error of CALIBER's, without values in it", mandatory=True),
    "reopen": Capability("what was stored can be opened again; without it, opening makes the store", mandatory=False),
    "sharing": Capability("several handles, and several processes, use one store", mandatory=False),
    "snapshots": Capability("a reader's boundary stays while others commit", mandatory=False),
    "gapless": Capability("change records are numbered without gaps, in the order of commits", mandatory=False),
    "bulk": Capability("whole relations are loaded and read", mandatory=False),
    "full text": Capability("the database itself finds texts by words", mandatory=False),
}


def _keep(_: CaliberConfig) -> None:
    pass


@dataclass(frozen=True, slots=True)
class ContractTarget:
    """One backend under the suite.

    ``fresh`` gets an empty folder of its own and returns the configuration of a store that does not exist yet; where
    ``reopen`` is lacking, opening makes it. ``discard`` gets it back once the test is over and every handle is closed.
    ``lacks`` maps capabilities to the reasons why the backend does not have them.

    Raises: InvalidValue for a capability that there is not, or a reason that says nothing.
    """

    name: str
    module: BackendModule
    fresh: Callable[[Path], CaliberConfig]
    lacks: Mapping[str, str] = field(default_factory=dict)
    discard: Callable[[CaliberConfig], None] = _keep

    def __post_init__(self) -> None:
        for capability, reason in self.lacks.items():
            if capability not in CAPABILITIES:
                names = ", ".join(CAPABILITIES)
                raise InvalidValue(field="lacks", reason=f"there is no capability {capability!r}; there are {names}")
            if not reason.strip():
                raise InvalidValue(field="lacks", reason=f"say why {capability!r} is lacking")

    def has(self, capability: str) -> bool:
        """Return whether the backend declares a capability."""
        return capability not in self.lacks

    def needs(self, capability: str) -> None:
        """Skip the running test, with the declared reason, where a capability is lacking; fail if it is mandatory."""
        if self.has(capability):
            return
        reason = f"{self.name} lacks {capability!r} ({CAPABILITIES[capability].meaning}): {self.lacks[capability]}"
        if CAPABILITIES[capability].mandatory:
            pytest.fail(f"{reason}; no backend can do without it")
        pytest.skip(reason)
