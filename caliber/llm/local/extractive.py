"""Rule-based summary and extraction provider: no language model, offline, deterministic."""

from __future__ import annotations

from collections.abc import Sequence

from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.protocols import EmbeddingProvider
from caliber.model.providers import (
    ConsolidationDecision,
    ConsolidationMember,
    ExtractedArtifact,
    ExtractionTurn,
    GeneratedNote,
    MergedNote,
    TokenCounter,
    TrajectoryDigest,
)

MODEL = "extractive"
# Raised whenever a rule or a number of this provider changes: its answers are then those of another model.
_VERSION = "extractive-2"
_HASHED_DIMENSIONS = 512


class ExtractiveProvider:
    """A ``SummarizationProvider`` of rules: nothing in its answers that was not in its input.

    Sentences are compared by ``embedding_provider``; without one by hashed words. Threads may share it. The rules and
    their word lists load with the first call that needs them.
    """

    quotes = True
    """Artifacts quote their source turn, notes quote their sources line by line."""

    def __init__(self, count_tokens: TokenCounter, embedding_provider: EmbeddingProvider | None) -> None:
        self._count_tokens = count_tokens
        self._embedder = embedding_provider or HashEmbeddingProvider(_HASHED_DIMENSIONS, MODEL)

    @property
    def model_id(self) -> str:
        """The rules and the sentence comparison: both determine a summary."""
        return f"{_VERSION}+{self._embedder.model_id}"

    def summarize(self, text: str, max_tokens: int) -> str:
        """Return the text's most central sentences, in its order; never above ``max_tokens``.

        Raises: InvalidValue, SummarizationFailed, and what the embedding provider raises.
        """
        from caliber.text import textrank

        return textrank.summarize(text, max_tokens, self._count_tokens, self._embedder)

    def extract_artifacts(self, turns: Sequence[ExtractionTurn]) -> list[ExtractedArtifact]:
        """Return the artifacts that the rules find, in order of turns."""
        from caliber.text import note_rules

        return note_rules.extract_artifacts(turns)

    def generate_notes(
        self,
        trajectory: TrajectoryDigest,
        scope_summaries: Sequence[str],
        artifacts: Sequence[ExtractedArtifact],
    ) -> list[GeneratedNote]:
        """Return the notes that the rules draw from artifacts, summaries and goal."""
        from caliber.text import note_rules

        return note_rules.generate_notes(trajectory, scope_summaries, artifacts)

    def merge_notes(self, a: GeneratedNote, b: GeneratedNote) -> MergedNote:
        """Return one note with the statements of both. Raises: InvalidValue (K-111)."""
        from caliber.text import note_rules

        return note_rules.merge_notes(a, b)

    def verify_contradiction(self, a: str, b: str) -> bool:
        """Return whether the two contradict each other, as far as careful rules can tell."""
        from caliber.text import note_rules

        return note_rules.verify_contradiction(a, b)

    def decide_consolidation(self, clusters: Sequence[Sequence[ConsolidationMember]]) -> list[ConsolidationDecision]:
        """Return one decision per cluster: supersede the nearly identical, keep the rest."""
        from caliber.text import note_rules

        return note_rules.decide_consolidation(clusters)
