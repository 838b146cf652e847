"""A process that fills the space of a new model, and is killed by whoever started it.

Run as ``reembedding_process.py PATH [BATCHES]``. Prints a line of JSON for each batch, and ``done`` at the end; after
so many batches it waits to be killed.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.configs import HASH_PROVIDER, config

import caliber
from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.protocols import FloatMatrix, FloatVector

OLD = HASH_PROVIDER
NEW = {**HASH_PROVIDER, "model": "newer", "dimensions": 48}
BATCH = 8


class Slow:
    """Real hashed vectors, a few milliseconds a batch: there is time to be killed in, and after the last one no end."""

    model_id = "hash-1:newer"
    dimensions = 48

    def __init__(self, batches: float) -> None:
        self._batches = batches
        self._inner = HashEmbeddingProvider(48, "newer")

    def embed(self, text: str) -> FloatVector:
        return self._inner.embed(text)

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        time.sleep(0.004)
        self._batches -= 1
        if self._batches < 0:
            sys.stdin.read()
        return np.stack([self._inner.embed(text) for text in texts])


def main() -> None:
    settings = config(
        sys.argv[1],
        embedding_provider=NEW,
        previous_embedding_provider=OLD,
        **{
            "vector.dimensions": 48,
            "embedding.reembed": "manual",
            "embedding.batch_size": BATCH,
            "search.keyword.similar_words": "none",
        },
    )
    batches = float(sys.argv[2]) if len(sys.argv) > 2 else math.inf
    with caliber.open(settings, embedding_provider=Slow(batches)) as memory:
        print("ready", flush=True)
        came = memory.storage.embedding_spaces.reembed(progress=lambda _, *done: print(json.dumps(done), flush=True))
        print("done", came.made, flush=True)


if __name__ == "__main__":
    main()
