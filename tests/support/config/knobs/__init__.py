"""A case for each knob: two values, and what is seen of a running part of CALIBER with either.

``CASES`` has them all, by path; ``tests/config/test_knobs.py`` runs them. Source: issue "The DSL and the policy
engine", item 7; design section 8.
"""

from __future__ import annotations

from support.config.knobs import (
    embeddings,
    files,
    guards,
    indexes,
    lifecycles,
    memories,
    providers,
    searches,
    servers,
    trust,
    views,
    windows,
)
from support.config.knobs.case import Case, Place

SECTIONS = (
    windows,
    providers,
    searches,
    lifecycles,
    files,
    memories,
    embeddings,
    servers,
    indexes,
    trust,
    views,
    guards,
)
CASES: tuple[Case, ...] = tuple(case for section in SECTIONS for case in section.CASES)

__all__ = ["CASES", "Case", "Place"]
