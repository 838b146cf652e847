"""Base class of local embedding providers: embeds each text by itself, and checks inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from caliber.llm.protocols import FloatMatrix, FloatVector
from caliber.llm.texts import require_text


class LocalEmbedding(ABC):
    """An embedding provider whose vectors do not depend on a text's company."""

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """The length of every vector."""

    @abstractmethod
    def _vector(self, text: str) -> FloatVector:
        """Return the vector of a text that is one."""

    def embed(self, text: str) -> FloatVector:
        """Return the vector of one text. Shapes: f32[dimensions], unit length. Raises: EmbeddingFailed."""
        require_text(text)
        return self._vector(text)

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per text, in order. Shapes: f32[n, dimensions]. Raises: EmbeddingFailed."""
        for index, text in enumerate(texts):
            require_text(text, index)
        out = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for index, text in enumerate(texts):
            out[index] = self._vector(text)
        return out
