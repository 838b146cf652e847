"""All contract tests and fixtures, for ``from contract.suite import *`` in a backend's test module."""

from __future__ import annotations

from contract import fixtures
from contract.suite import (
    bulk,
    changes,
    declared,
    errors,
    filters,
    irregular,
    races,
    rules,
    statements,
    transactions,
    values,
)

MODULES = (declared, values, rules, statements, filters, irregular, transactions, races, changes, errors, bulk)

_FOUND = {
    name: getattr(module, name)
    for module in MODULES
    for name in vars(module)
    if name.startswith(("test_", "contract_"))
}
_FOUND.update({name: getattr(fixtures, name) for name in fixtures.NAMES})
globals().update(_FOUND)

__all__ = sorted(_FOUND)
