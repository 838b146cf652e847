"""The contract suite: every promise that storage relies on, for whoever writes a backend.

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

Raises: ExtraNotInstalled when pytest or Hypothesis is missing.
Source: design sections 2 and 11.
"""

from __future__ import annotations

from caliber.model.errors import ExtraNotInstalled

try:
    import hypothesis as _hypothesis  # noqa: F401  (asked for here, so that the message comes before any test)
    import pytest
except ImportError as error:
    raise ExtraNotInstalled(feature="the contract suite", extra="testing") from error

# Before they are imported, or their assertions say nothing but that they failed.
pytest.register_assert_rewrite("caliber.testing.suite", "caliber.testing.world")

from caliber.testing.target import CAPABILITIES, Capability, ContractTarget  # noqa: E402

__all__ = ["CAPABILITIES", "Capability", "ContractTarget"]
