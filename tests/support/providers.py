"""Real provider objects that count what is asked of them, or fail as services do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.protocols import ExtractedFact, FactDecision, FactQuestion, FloatMatrix, FloatVector
from caliber.model import ArtifactType, NoteType
from caliber.model.errors import CaliberError, RequestFailed
from caliber.model.learning import LearningAction
from caliber.model.providers import (
    ConsolidationAction,
    ConsolidationDecision,
    ConsolidationMember,
    ExtractedArtifact,
    ExtractionTurn,
    GeneratedNote,
    MergedNote,
    TrajectoryDigest,
)
from support.configs import DIMENSIONS


def outage() -> CaliberError:
    """Return the error of a provider whose service is down."""
    return RequestFailed(provider="test", status=503, message="service unavailable")


class CountingEmbeddings:
    """Hashed embeddings that remember every text they were asked for, and fail while told to."""

    def __init__(self, dimensions: int = DIMENSIONS) -> None:
        self._inner = HashEmbeddingProvider(dimensions, "test")
        self.asked: list[str] = []
        self.failure: Callable[[], BaseException] | None = None
        self._lock = threading.Lock()

    @property
    def model_id(self) -> str:
        return self._inner.model_id

    @property
    def dimensions(self) -> int:
        return self._inner.dimensions

    def embed(self, text: str) -> FloatVector:
        return self.embed_batch([text])[0]

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        with self._lock:
            self.asked.extend(texts)
        if self.failure is not None:
            raise self.failure()
        return np.stack([self._inner.embed(text) for text in texts])


class ScriptedSummarizer:
    """Summarizes by the first line, extracts what begins with ``KEEP``, notes what begins with ``NOTE``.

    ``failing`` names the operations that raise an outage; ``before`` is called first, with the operation's name.
    """

    model_id = "scripted"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing: set[str] = set()
        self.before: Callable[[str], None] = lambda _: None

    def _called(self, operation: str) -> None:
        self.calls.append(operation)
        self.before(operation)
        if operation in self.failing:
            raise outage()

    def summarize(self, text: str, max_tokens: int) -> str:
        self._called("summarize")
        return "summary of " + text.splitlines()[0][:max_tokens]

    def extract_artifacts(self, turns: Sequence[ExtractionTurn]) -> list[ExtractedArtifact]:
        self._called("extract_artifacts")
        return [
            ExtractedArtifact(ArtifactType.FACT, turn.content, 0.75, turn.turn_number)
            for turn in turns
            if turn.content.startswith("KEEP")
        ]

    def generate_notes(
        self, trajectory: TrajectoryDigest, scope_summaries: Sequence[str], artifacts: Sequence[ExtractedArtifact]
    ) -> list[GeneratedNote]:
        self._called("generate_notes")
        return [
            GeneratedNote("project", "topic", NoteType.FACT, f"learned: {item.content}", 0.6) for item in artifacts[:1]
        ]

    def merge_notes(self, a: GeneratedNote, b: GeneratedNote) -> MergedNote:
        self._called("merge_notes")
        content = a.content if b.content in a.content else f"{a.content}; {b.content}"
        return MergedNote(a.entity, a.entity_type, a.note_type, content, max(a.confidence, b.confidence))

    def verify_contradiction(self, a: str, b: str) -> bool:
        self._called("verify_contradiction")
        return False

    def decide_consolidation(self, clusters: Sequence[Sequence[ConsolidationMember]]) -> list[ConsolidationDecision]:
        self._called("decide_consolidation")
        return [
            ConsolidationDecision(ConsolidationAction.KEEP, tuple(item.key for item in cluster)) for cluster in clusters
        ]


class ScriptedLearner(ScriptedSummarizer):
    """A learning provider that answers with ``facts`` and ``decide``, whatever it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: Callable[[Sequence[ExtractionTurn]], list[ExtractedFact]] = lambda _: []
        self.decide: Callable[[FactQuestion], FactDecision] = lambda _: FactDecision(LearningAction.ADD)
        self.asked: list[ExtractionTurn] = []
        self.questions: list[FactQuestion] = []

    def extract_facts(self, user: str, turns: Sequence[ExtractionTurn]) -> list[ExtractedFact]:
        self._called("extract_facts")
        self.asked += turns
        return self.facts(turns)

    def decide_facts(self, questions: Sequence[FactQuestion]) -> list[FactDecision]:
        self._called("decide_facts")
        self.questions += questions
        return [self.decide(each) for each in questions]
