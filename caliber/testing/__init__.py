"""Contract test suite for authors of database backends: every promise that the storage layer relies on.

A test module of the backend's own says what to prove and takes every test over::

    import pytest
    import my_backend
    from caliber import profiles
    from caliber.testing import ContractTarget
    from caliber.testing.suite import *

    @pytest.fixture(scope="session")
    def contract_target():
        return ContractTarget(
            name="mine",
            module=my_backend,
            fresh=lambda folder: profiles.reference(folder / "store.db"),
            lacks={"full text": "the database has no index of words"},
        )

What a backend lacks is declared with its reason, which each skipped test shows. docs/backends.md tells the rest.

``inspect`` returns the parts of an open store; it needs no extra.

Raises: ExtraNotInstalled when the suite is asked for and pytest or Hypothesis is missing.
Source: design sections 2 and 11.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from caliber.model.errors import ExtraNotInstalled

if TYPE_CHECKING:
    from caliber.testing.inspection import Inspector, held_back, inspect, replaced, session_of
    from caliber.testing.target import CAPABILITIES, Capability, ContractTarget

if (_pytest := sys.modules.get("pytest")) is not None:
    # Before they are imported: pytest rewrites their assertions, so that failures show values.
    _pytest.register_assert_rewrite("caliber.testing.suite", "caliber.testing.world")

_SUITE = ("CAPABILITIES", "Capability", "ContractTarget")
_INSIDES = ("Inspector", "held_back", "inspect", "replaced", "session_of")

__all__ = [
    "CAPABILITIES",
    "Capability",
    "ContractTarget",
    "Inspector",
    "held_back",
    "inspect",
    "replaced",
    "session_of",
]


def __getattr__(name: str) -> Any:
    if name in _INSIDES:
        return getattr(importlib.import_module("caliber.testing.inspection"), name)
    if name not in _SUITE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        importlib.import_module("hypothesis")
        importlib.import_module("pytest")
    except ImportError as error:
        raise ExtraNotInstalled(feature="the contract suite", extra="testing") from error
    return getattr(importlib.import_module("caliber.testing.target"), name)
