"""Classes that declare derived columns (hash, token count, fingerprint) and rules between columns, as data.

The sets are closed: ``caliber.storage.compile.derived`` computes derived columns, for one record and for whole columns;
``caliber.storage.bulk.checks`` evaluates rules over whole columns, ``caliber.admin.table`` for one record.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from caliber.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Derived:
    """One rule: ``column`` follows from the columns ``of``.

    ``exact``: the rule gives the only right value, and another one is refused. Else a writer may state its own.
    """

    column: str
    of: tuple[str, ...]
    sources: frozenset[str] = field(init=False)
    """Every column that the value is computed from."""
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", frozenset(self.of))


@dataclass(frozen=True, slots=True)
class Sha256(Derived):
    """The SHA-256 of one column: of a text's UTF-8, or of bytes. The writer states it where that column is empty."""

    exact: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Tokens(Derived):
    """The tokens of columns of text or bytes, added up; an empty column has none."""


@dataclass(frozen=True, slots=True)
class RecordHash(Derived):
    """The SHA-256 of a JSON object of columns. A column without a value is left out: adding one changes no hash."""


@dataclass(frozen=True, slots=True)
class Fingerprint(Derived):
    """The SHA-256 of a statement: a JSON list of the columns ``of``, its readers, and ``later`` ones.

    A statement with ``readers`` is its author's own: nobody finds, or adds to, one hidden from him. The sorted readers
    and the ``author`` are part of it, else null. Columns that became part ``later`` are left out where they have no
    value, so that older fingerprints stay as they are.
    """

    readers: str = field(kw_only=True)
    author: str = field(kw_only=True)
    later: tuple[str, ...] = field(kw_only=True)
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", frozenset((*self.of, self.readers, self.author, *self.later)))


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
