"""Declared types of row rules across columns: not before another, only with another; checked elsewhere.

``caliber.storage.bulk.checks`` evaluates them over whole columns, ``caliber.admin.table`` for one record.
"""

from __future__ import annotations

from caliber.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class NotBefore:
    """``column`` is not before ``earlier``, where both have a value."""

    column: str
    earlier: str

    @property
    def reason(self) -> str:
        """The fault of a record that breaks the rule."""
        return f"must not be before {self.earlier}"


@dataclass(frozen=True, slots=True)
class OnlyWith:
    """``column`` has a value exactly where the column ``kind`` holds ``value``."""

    column: str
    kind: str
    value: str

    @property
    def reason(self) -> str:
        """The fault of a record that breaks the rule."""
        return f"goes with the kind {self.value}, and only with it"


Rule = NotBefore | OnlyWith
