"""Asking real stores: one a conversation, kept on disk, opened again for every configuration to compare."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import caliber
from caliber import EntityRef, EntityType
from caliber.config import CaliberConfig
from caliber.config.profiles import PROFILES
from caliber.config.profiles.services import EMBEDDING
from caliber.llm import build_embedding_provider
from caliber.llm.protocols import EmbeddingProvider, FloatMatrix, FloatVector
from retrieval.baseline import Baseline
from retrieval.conversations import Conversation, Remembered, remember
from retrieval.measures import DEPTH, Scored, measure

SPACES: Mapping[str, Mapping[str, Any]] = {
    "static": {},
    "minilm": {
        "embedding_provider": dict(EMBEDDING["minilm"]),
        "embedding.long_text_tokens": EMBEDDING["minilm"]["options"]["max_tokens"],
    },
    "none": {"embedding_provider": None},
}
"""What each space changes in the reference profile."""

INITIATOR = EntityRef(EntityType.AGENT, uuid.UUID(int=1))


class Remembering:
    """A provider that embeds each text once for the whole run: the same questions meet many configurations."""

    def __init__(self, provider: EmbeddingProvider) -> None:
        self._provider = provider
        self._known: dict[str, FloatVector] = {}
        self.seconds: list[float] = []

    @property
    def model_id(self) -> str:
        return self._provider.model_id

    @property
    def dimensions(self) -> int:
        return self._provider.dimensions

    def embed(self, text: str) -> FloatVector:
        if text not in self._known:
            began = time.perf_counter()
            self._known[text] = self._provider.embed(text)
            self.seconds.append(time.perf_counter() - began)
        return self._known[text]

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        return np.array([self.embed(text) for text in texts], np.float32).reshape(len(texts), self.dimensions)


@dataclass(frozen=True)
class Kept:
    """A conversation in a store of its own."""

    path: Path
    remembered: Remembered

    @property
    def conversation(self) -> Conversation:
        return self.remembered.conversation

    @property
    def names(self) -> Mapping[str, str]:
        return self.remembered.names


@dataclass(frozen=True)
class Asked:
    """The outcome of asking every question once: measures, seconds of each search, reasons of degraded ones."""

    scored: Scored
    seconds: NDArray[np.float64]
    degraded: tuple[str, ...]


class Stores:
    """All conversations in one embedding space."""

    def __init__(
        self,
        conversations: Sequence[Conversation],
        folder: Path,
        space: str,
        *,
        profile: str = "reference",
        leave_open: bool = False,
        create_with: Mapping[str, Any] | None = None,
    ) -> None:
        """``leave_open`` leaves the last session's scope open; ``create_with`` has knobs to write the stores under."""
        self.space = space
        self._profile = PROFILES[profile]
        self._leave_open = leave_open
        self._create_with = create_with or {}
        self._folder = folder
        self.provider: Remembering | None = None
        self.kept = [self._keep(conversation) for conversation in conversations]

    def configuration(self, path: Path, overrides: Mapping[str, Any]) -> CaliberConfig:
        """Return the profile in this space, changed by ``overrides`` (dotted paths)."""
        settings: dict[str, Any] = {"policies": [], "resident.feed_poll_ms": 0, **SPACES[self.space], **overrides}
        if self.space == "none":
            settings["embedding.embed"] = {"default": "off"}
        return self._profile(path, **settings)

    def open(self, path: Path, overrides: Mapping[str, Any]) -> caliber.Caliber:
        config = self.configuration(path, overrides)
        if self.provider is None and config.embedding_provider is not None:
            self.provider = Remembering(build_embedding_provider(config.embedding_provider))
        return caliber.open(config, principal=caliber.Principal.admin(), embedding_provider=self.provider)

    def _keep(self, conversation: Conversation) -> Kept:
        path = self._folder / f"{conversation.name}-{self.space}.db"
        caliber.create(self.configuration(path, self._create_with))
        with self.open(path, self._create_with) as memory:
            return Kept(path, remember(memory, conversation, INITIATOR, leave_open=self._leave_open))

    def ask(self, overrides: Mapping[str, Any], *, warm: bool = True) -> Asked:
        """Ask every question of its conversation's store under a configuration; times mean something when ``warm``."""
        scored: dict[str, NDArray[np.float64]] = {}
        seconds: list[float] = []
        degraded: set[str] = set()
        for kept in self.kept:
            questions = kept.conversation.questions
            with self.open(kept.path, overrides) as memory:
                if warm:
                    # What is made on first use (indexes, vectors of questions) is no part of a search's time.
                    memory.search_many([question.text for question in questions], kinds=("turn",), limit=1)
                rows = []
                for question in questions:
                    began = time.perf_counter()
                    found = memory.search(question.text, kinds=("turn",), limit=DEPTH)
                    seconds.append(time.perf_counter() - began)
                    rows.append(measure([kept.names[str(hit.id)] for hit in found.hits], question.evidence))
                    if found.reason is not None:
                        degraded.add(found.reason)
            scored[kept.conversation.name] = np.array(rows)
        return Asked(Scored(scored), np.array(seconds), tuple(sorted(degraded)))


def ask_baseline(conversations: Sequence[Conversation]) -> Scored:
    """Ask every question of BM25 with lending neighbours."""
    scored = {}
    for conversation in conversations:
        turns = conversation.turns
        index = Baseline([turn.document for turn in turns], [turn.session for turn in turns])
        rows = [
            measure([turns[at].name for at in index.ranked(question.text, DEPTH)], question.evidence)
            for question in conversation.questions
        ]
        scored[conversation.name] = np.array(rows)
    return Scored(scored)
