"""A case for each knob: two values, and what is seen of a running part of CALIBER with either.

``CASES`` has them all, by path; ``tests/contract/test_knobs.py`` runs them. Source: issue "The DSL and the policy
engine", item 7; design section 8.
"""

from __future__ import annotations

from support.knobs import files, indexes, lifecycles, memories, providers, searches, servers, trust, windows
from support.knobs.case import Case, Place

SECTIONS = (windows, providers, searches, lifecycles, files, memories, servers, indexes, trust)
CASES: tuple[Case, ...] = tuple(case for section in SECTIONS for case in section.CASES)

COVERED = (
    "access.",
    "aio.",
    "assembly.",
    "checkpoint_retention",
    "close.",
    "context_window_persistence.",
    "debug.",
    "embedding_provider.",
    "llm_retry_config.",
    "lock_timeout",
    "notes.",
    "pcp.",
    "persona",
    "polic",
    "previous_embedding_provider.",
    "principal.",
    "search.",
    "section_priorities.",
    "summarization_provider.",
    "system_instructions",
    "token",
    "trajectory.",
    "trust.",
    "validation_mode",
)
"""The parts of the tree that are complete."""

__all__ = ["CASES", "COVERED", "Case", "Place"]
