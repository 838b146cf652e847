"""Protocols that embedding and summary providers implement.

Providers never see storage, ids or principals. Every provider names itself in ``model_id``, so that its results can be
recorded with their origin.

Source: C-245, C-246, C-497, K-014, K-015.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from caliber.model.errors import CaliberError
from caliber.model.lazy_dataclass import dataclass
from caliber.model.learning import LearningAction, PersonAttribute
from caliber.model.providers import (
    ConsolidationDecision,
    ConsolidationMember,
    ExtractedArtifact,
    ExtractionTurn,
    GeneratedNote,
    MergedNote,
    TrajectoryDigest,
)

USER_PERSON = "user"
"""Stands for the user who wrote a message, where a fact names its person."""


@dataclass(frozen=True, slots=True)
class ExtractedFact:
    """A fact about a person that a message states; ``person`` is ``user`` or a name, ``value`` words of the message.

    ``statement`` is the fact without its subject. Units: ``source_turn`` a turn number.
    """

    person: str
    attribute: PersonAttribute
    value: str
    statement: str
    source_turn: int


@dataclass(frozen=True, slots=True)
class FactQuestion:
    """A new statement about a person, and the statements that are known about the same person."""

    person: str
    statement: str
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FactDecision:
    """The decision about a new statement: ``known`` is the place of the known one that it replaces or ends."""

    action: LearningAction
    known: int | None = None
    reason: str = ""


FloatVector: TypeAlias = NDArray[np.float32]
FloatMatrix: TypeAlias = NDArray[np.float32]


@runtime_checkable
class EmbeddingProvider(Protocol):
    """Turns texts into vectors of one model.

    Vectors of equal texts are equal bit for bit, alone or in a batch. Threads may share a provider.
    """

    @property
    def model_id(self) -> str:
        """The stable name of the model; vectors of different names are never compared."""
        ...

    @property
    def dimensions(self) -> int:
        """The length of every vector."""
        ...

    def embed(self, text: str) -> FloatVector:
        """Return the vector of one text.

        Shapes: f32[dimensions].
        Raises: EmbeddingFailed, also for an empty text (K-116).
        """
        ...

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of all texts, in their order.

        Shapes: f32[len(texts), dimensions].
        Raises: EmbeddingFailed.
        """
        ...


@runtime_checkable
class BatchedEmbedding(EmbeddingProvider, Protocol):
    """An embedding provider whose batches can fail in part; others raise for the whole batch."""

    def embed_some(self, texts: Sequence[str]) -> list[FloatVector | CaliberError]:
        """Return a vector or an error per text, in their order; raises nothing that a single text could cause."""
        ...


@runtime_checkable
class CountingEmbedding(EmbeddingProvider, Protocol):
    """An embedding provider with its own tokenizer and limit."""

    @property
    def max_tokens(self) -> int:
        """The longest text the model reads, as ``count_tokens`` counts."""
        ...

    def count_tokens(self, text: str) -> int:
        """Return how many tokens the model reads for a text."""
        ...


@runtime_checkable
class Closable(Protocol):
    """A provider that holds connections or threads. Its creator closes it."""

    def close(self) -> None:
        """Release connections and threads; running calls end with Unavailable. Closing twice is harmless."""
        ...


@runtime_checkable
class SummarizationProvider(Protocol):
    """Condenses texts and draws knowledge from them. Source: C-497, K-015.

    One that only repeats, and from no other turn than the ``source_turn`` it names, says so by an attribute ``quotes``
    that is True: then what it extracts is trusted as that turn, not as the least trusted of all it was shown.
    """

    @property
    def model_id(self) -> str:
        """The stable name of the model or rule set, recorded with its results."""
        ...

    def summarize(self, text: str, max_tokens: int) -> str:
        """Return a summary that never counts more than ``max_tokens``.

        Raises: SummarizationFailed, InvalidValue.
        """
        ...

    def extract_artifacts(self, turns: Sequence[ExtractionTurn]) -> list[ExtractedArtifact]:
        """Return the artifacts in turns, in order of turns and of places in them, without repetition."""
        ...

    def generate_notes(
        self,
        trajectory: TrajectoryDigest,
        scope_summaries: Sequence[str],
        artifacts: Sequence[ExtractedArtifact],
    ) -> list[GeneratedNote]:
        """Return knowledge that outlives the trajectory, at most one note per (entity, entity_type, note_type)."""
        ...

    def merge_notes(self, a: GeneratedNote, b: GeneratedNote) -> MergedNote:
        """Return one note with the content of both.

        Raises: InvalidValue when they are not about the same entity, entity_type and note_type (K-111).
        """
        ...

    def verify_contradiction(self, a: str, b: str) -> bool:
        """Return whether the two statements cannot both hold."""
        ...

    def decide_consolidation(self, clusters: Sequence[Sequence[ConsolidationMember]]) -> list[ConsolidationDecision]:
        """Return one decision per cluster, in their order."""
        ...


@runtime_checkable
class LearningProvider(SummarizationProvider, Protocol):
    """A summarization provider that also finds facts about people, and decides about them. ``remember`` uses it."""

    def extract_facts(self, user: str, turns: Sequence[ExtractionTurn]) -> list[ExtractedFact]:
        """Return the facts about people that a user's messages state, in their order; ``user`` is the user's name."""
        ...

    def decide_facts(self, questions: Sequence[FactQuestion]) -> list[FactDecision]:
        """Return one decision per statement, in their order."""
        ...
