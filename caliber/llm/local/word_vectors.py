"""Word vectors from the static model, for finding similar words in query expansion.

A word's vector depends on the model and the language only, never on the content of a store: hidden records leave no
trace in it, and every rebuild gives the same one.

Source: docs/search.md; the model: docs/decisions/0013-local-embeddings.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caliber.llm.local.static import StaticModel, load_static_model, static_model_folder
from caliber.llm.protocols import FloatMatrix

DIMENSIONS = 128
"""The leading dimensions of the model that are used, which form an embedding of their own."""

_WORD_START = "\u2581"
_shared: dict[tuple[Path, str], dict[str, list[int]]] = {}
"""The rows of the model's words by their stem, for each model and language: they are the same for every handle."""


def word_model_folder() -> Path:
    """Return the folder of the model's files. Raises: ExtraNotInstalled."""
    return static_model_folder("search.keyword.similar_words")


class WordVectors:
    """Vectors of stems: the mean of the model's whole words with that stem, else of the stem's tokens.

    ``stems_of`` must depend on the language alone: its result for the model's words is shared by the process.

    Raises:  ExtraNotInstalled without the extra ``embed``
    """

    def __init__(self, language: str, stems_of: Callable[[Sequence[str]], list[str]]) -> None:
        self._language = language
        self._stems_of = stems_of
        self._folder = word_model_folder()

    def vectors(self, stems: Sequence[str]) -> FloatMatrix:
        """Return the unit vector of each stem; zeros for an unknown stem.

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
        model = load_static_model(self._folder)
        key = (self._folder, self._language)
        rows_of = _shared.get(key)
        if rows_of is None:
            # Two threads may both come here: they compute the same, and no lock is held while another thread forks.
            rows_of = _shared.setdefault(key, self._rows_by_stem(model))
        return model, rows_of

    def _rows_by_stem(self, model: StaticModel) -> dict[str, list[int]]:
        words, rows = [], []
        whole = [(row, token) for token, row in model.tokenizer.get_vocab().items() if token.startswith(_WORD_START)]
        for row, token in sorted(whole):
            word = token[1:]
            if len(word) > 1 and word.isalpha():
                words.append(word.lower())
                rows.append(row)
        out: dict[str, list[int]] = {}
        for stem, row in zip(self._stems_of(words), rows, strict=True):
            out.setdefault(stem, []).append(row)
        return out


def _rows(model: StaticModel, numbers: Sequence[int]) -> NDArray[Any]:
    return model.rows[list(numbers), :DIMENSIONS].astype(np.float64)
