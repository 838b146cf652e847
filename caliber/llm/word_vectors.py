"""Vectors of single words, from the token vectors of the static model: what tells similar words apart from others.

A word's vector depends on the model and the language only, never on what a store holds: what is hidden leaves no
trace in it, and every rebuild gives the same one.

Source: decision 0064; the model: docs/decisions/0013-static-embeddings.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caliber.llm.protocols import FloatMatrix
from caliber.llm.static import StaticModel, load_static_model, static_model_folder

DIMENSIONS = 128
"""The leading dimensions of the model that are used: an embedding of their own."""

_WORD_START = "\u2581"


def word_model_folder() -> Path:
    """Return where the model's files are. Raises: ExtraNotInstalled."""
    return static_model_folder("search.keyword.similar_words")


class WordVectors:
    """Vectors of stems: the mean of the model's own whole words with that stem, else of the stem's tokens.

    Raises:  ExtraNotInstalled without the extra ``embed``
    """

    def __init__(self, stem: Callable[[str], str]) -> None:
        self._stem = stem
        self._folder = word_model_folder()
        self._lock = threading.Lock()
        self._loaded: tuple[StaticModel, dict[str, list[int]]] | None = None

    def vectors(self, stems: Sequence[str]) -> FloatMatrix:
        """Return the unit vector of each stem; zeros for one that the model knows nothing of.

        Shapes:  n stems -> f32[n, 128]
        """
        model, rows_of = self._model()
        out = np.zeros((len(stems), DIMENSIONS), np.float32)
        for at, stem in enumerate(stems):
            known = rows_of.get(stem)
            if known is None:
                tokens = model.tokenizer.encode(stem, add_special_tokens=False).ids
                total = _rows(model, tokens).sum(axis=0)
            else:
                rows = _rows(model, known)
                norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
                total = (rows / np.where(norms > 0, norms, 1.0)).sum(axis=0)
            norm = float(np.sqrt((total * total).sum()))
            if norm > 0:
                out[at] = total / norm
        return out

    def _model(self) -> tuple[StaticModel, dict[str, list[int]]]:
        with self._lock:
            if self._loaded is None:
                model = load_static_model(self._folder)
                rows_of: dict[str, list[int]] = {}
                for token, row in sorted(model.tokenizer.get_vocab().items(), key=lambda item: item[1]):
                    word = token[len(_WORD_START) :]
                    if token.startswith(_WORD_START) and len(word) > 1 and word.isalpha():
                        rows_of.setdefault(self._stem(word.lower()), []).append(row)
                self._loaded = (model, rows_of)
            return self._loaded


def _rows(model: StaticModel, numbers: Sequence[int]) -> NDArray[Any]:
    return model.rows[list(numbers), :DIMENSIONS].astype(np.float64)
