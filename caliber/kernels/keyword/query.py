"""Arguments and result of a keyword search: words, the rule of scores, neighbours, and scored documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class QueryWord(NamedTuple):
    """One word of a query: the terms that stand for it, how strongly each does, and how rare the word itself is."""

    terms: Sequence[int] | npt.NDArray[np.int64]
    strengths: Sequence[float] | npt.NDArray[np.float64]
    idf: float


class KeywordRule(NamedTuple):
    """The constants of BM25, and of the saturation of a word's sum in units of its idf (0: none)."""

    k1: float
    b: float
    mean_length: float
    saturate: float


class NeighbourBoost(NamedTuple):
    """The neighbours of each document, and the shares of their scores that it adds.

    Shapes:  before, after int64[n], -1 or >= n for none; asks uint8[n]
    """

    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    asks: npt.NDArray[np.uint8]
    near: float
    far: float
    answer: float


class WordScores(NamedTuple):
    """The result of a keyword search: documents, each with its own score and the score with neighbours.

    Shapes:  int64[m], f64[m], f64[m]
    """

    documents: npt.NDArray[np.int64]
    own: npt.NDArray[np.float64]
    scores: npt.NDArray[np.float64]
