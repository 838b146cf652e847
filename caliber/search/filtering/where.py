"""Compiled filter of one search: a predicate per kind, its variables' values, and a key to cache its verdicts.

Source: C-161 to C-165; docs/decisions/0147.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caliber.model.lazy_dataclass import dataclass
from caliber.schema.predicate import Predicate, Variable, variables_in


@dataclass(frozen=True, slots=True)
class Where:
    """A filter compiled for each searched kind, and the values of its variables."""

    predicates: Mapping[str, Predicate]
    variables: Mapping[Variable, Any]

    def key(self, kind: str) -> tuple[Predicate, tuple[Any, ...]] | None:
        """Return the cache key of a kind's verdicts; None where they change with the clock."""
        asked = variables_in(self.predicates[kind])
        if Variable.NOW in asked:
            return None
        return self.predicates[kind], tuple(self.variables[name] for name in sorted(asked))
