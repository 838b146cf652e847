"""Contract of a database backend as tests: every promise that the storage layer relies on.

A test module of a backend says what to prove and takes every test over::

    import pytest
    import my_backend
    from caliber import profiles
    from contract.suite import *
    from contract.target import ContractTarget

    @pytest.fixture(scope="session")
    def contract_target():
        return ContractTarget(
            name="mine",
            module=my_backend,
            fresh=lambda folder: profiles.reference(folder / "store.db"),
            lacks={"full text": "the database has no index of words"},
        )

A backend declares what it lacks with the reason, which each skipped test shows. docs/backends.md has the rest.

Source: design sections 2 and 11.
"""

from __future__ import annotations

import pytest

# Before they are imported: pytest rewrites their assertions, so that failures show values.
pytest.register_assert_rewrite("contract.suite", "contract.world")
