"""Deterministic embedding provider by feature hashing of words and character n-grams, for tests and offline use.

Texts that share words or parts of words get similar vectors; the vectors carry no meaning beyond that.

Source: C-248; feature hashing after Weinberger et al., 2009.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from caliber.llm.local.base import LocalEmbedding
from caliber.llm.protocols import FloatVector
from caliber.model.errors import InvalidConfigValue

MAX_DIMENSIONS = 16_384

# These numbers are part of the model, as weights are of a trained one: changing one makes another model.
_VERSION = "hash-1"
_TOKEN = re.compile(r"\w{1,64}|[^\w\s]{1,64}")
_NGRAMS = (3, 4)
_WORD_WEIGHT = 1.0
_NGRAM_WEIGHT = 0.25
_KEPT_WORDS = 20_000


class HashEmbeddingProvider(LocalEmbedding):
    """Signed feature hashing over BLAKE2b to any number of dimensions, L2-normalised.

    ``model`` names the space: another name gives other, incomparable vectors. Threads may share it.

    Raises: InvalidConfigValue unless 1 <= dimensions <= 16384 and the name is not empty.
    """

    def __init__(self, dimensions: int, model: str) -> None:
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise InvalidConfigValue(
                field="embedding_provider.dimensions", value=dimensions, reason=f"must be 1 to {MAX_DIMENSIONS}"
            )
        if not model:
            raise InvalidConfigValue(field="embedding_provider.model", value=model, reason="must not be empty")
        self._dimensions = dimensions
        self._model_id = f"{_VERSION}:{model}"
        self._key = hashlib.blake2b(self._model_id.encode(), digest_size=32).digest()
        self._words: dict[str, tuple[NDArray[np.intp], NDArray[np.float64]]] = {}

    @property
    def model_id(self) -> str:
        return self._model_id

    @property
    def dimensions(self) -> int:
        return self._dimensions

    def _vector(self, text: str) -> FloatVector:
        counts = Counter(match.group() for match in _TOKEN.finditer(text.casefold()))
        total = np.zeros(self._dimensions, dtype=np.float64)
        # Sorted: floating-point sums depend on their order, and texts of equal words must be equal.
        for word, count in sorted(counts.items()):
            places, values = self.features(word)
            np.add.at(total, places, values * (1.0 + math.log(count)))
        norm = math.sqrt(float((total * total).sum()))
        if norm == 0.0:
            # All features cancelled, as they can in very few dimensions: fall back to the text as one feature.
            place, sign = self._place("".join(sorted(counts)))
            total[place] = norm = sign
            norm = abs(norm)
        return (total / norm).astype(np.float32)

    def features(self, word: str) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        cached = self._words.get(word)
        if cached is not None:
            return cached
        padded = f"<{word}>"
        places, values = [], []
        for feature, weight in [(word, _WORD_WEIGHT)] + [
            (padded[start : start + size], _NGRAM_WEIGHT) for size in _NGRAMS for start in range(len(padded) - size + 1)
        ]:
            place, sign = self._place(feature)
            places.append(place)
            values.append(sign * weight)
        found = (np.array(places, dtype=np.intp), np.array(values, dtype=np.float64))
        if len(self._words) < _KEPT_WORDS:
            self._words[word] = found
        return found

    def _place(self, feature: str) -> tuple[int, float]:
        digest = hashlib.blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=8, key=self._key).digest()
        number = int.from_bytes(digest, "little")
        return (number >> 1) % self._dimensions, 1.0 if number & 1 else -1.0
