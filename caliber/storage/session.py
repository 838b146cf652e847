"""One connection inside one transaction, as plans run on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from caliber.storage.codec import Row
from caliber.storage.plan import Plan


class StatementSession(Protocol):
    """One connection inside one transaction."""

    def run(self, plan: Plan, parameters: Sequence[Any]) -> list[Row]:
        """Run a plan and return all its rows."""
        ...

    def changed(self, plan: Plan, parameters: Sequence[Any]) -> int:
        """Run a plan and return how many rows it changed."""
        ...
