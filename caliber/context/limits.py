"""Numbers of the assembly that no configuration changes (docs/decisions/0208). Source: C-121, or ours."""

from __future__ import annotations

from typing import Final

MAX_TURNS: Final = 1_000
"""Most turns considered."""
ARTIFACT_LIMIT: Final = 1_000
"""Most artifacts considered: the most relevant that a search finds, else the newest."""
SUMMARY_LIMIT: Final = 1_000
"""Most summaries of closed scopes considered: the newest."""
NOTE_SEARCH_LIMIT: Final = 20
"""Most notes picked for a query: the most relevant."""
NOTE_MIN_SIMILARITY: Final = 0.15
"""Least similarity of a note to the query, with ``assembly.relevance`` = vector: static vectors of related texts score
0.3 to 0.5 (the sources' 0.5 was meant for large models).
"""
RELEVANT_LIMIT: Final = 20
"""Most records that a rule of injection with mode relevant takes: the most relevant."""
RECENCY_FALLBACK_LIMIT: Final = 10
"""Newest records that such a rule takes when there is no query."""
RULE_LIMIT: Final = 1_000
"""Most records that a rule of injection with mode full or summary takes: the newest."""
SUMMARY_MODE_TOKENS: Final = 64
"""Longest summary of a record, by a rule with mode summary."""

CRITICAL_PRIORITY: Final = 90
"""From this priority on a section is never compressed."""
COMPRESS_RATIO: Final = 0.5
"""Share of its length to which a record is compressed."""

RECENT_EXCHANGES: Final = 2
"""Newest exchanges of the conversation that enter before anything is recalled, if they fit."""
RECENT_FROM_TOKENS: Final = 600
"""Budget below which only the last user message is certain to enter."""
PAUSE_MS: Final = 6 * 3_600_000
"""A pause after which earlier turns are past: they keep the conversation's floor, and can be recalled."""
EVICT_SHARE: Final = 0.25
"""Largest part of the conversation's share that one block may take; a larger block is halved."""
SPARE_SHARE: Final = 0.14
"""Share of the budget that records which follow the query leave to turns once the conversation fills its share."""

DUPLICATE_SIMILARITY: Final = 0.98
"""Similarity of vectors from which two records are near duplicates. With the same words, only the more relevant one
enters; else the newest one is as relevant as the most relevant.
"""
ALIKE_SHARE: Final = 0.5
"""Share of relevance that a near duplicate of a more relevant and of a newer record keeps."""
