"""A process that fills the space of a new model, and is killed by whoever started it.

Run as ``reembedding_process.py PATH MODE [BATCHES]``. With mode ``manual`` it calls ``reembed``, with ``behind`` its
job runs in the background. Prints a line of JSON for each batch, and ``done`` at the end; after so many batches it
waits to be killed.
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
from support.waits import until

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

    def __init__(self, batches: float, *, prints: bool) -> None:
        self._batches = batches
        self._prints = prints
        self.asked = 0
        self._inner = HashEmbeddingProvider(48, "newer")

    def embed(self, text: str) -> FloatVector:
        return self._inner.embed(text)

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        time.sleep(0.004)
        self._batches -= 1
        if self._batches < 0:
            sys.stdin.read()
        self.asked += len(texts)
        if self._prints:
            print(json.dumps(self.asked), flush=True)
        return np.stack([self._inner.embed(text) for text in texts])


def main() -> None:
    path, mode = sys.argv[1:3]
    settings = config(
        path,
        embedding_provider=NEW,
        previous_embedding_provider=OLD,
        **{
            "vector.dimensions": 48,
            "embedding.reembed": mode,
            "jobs.lease_ms": "300ms",
            "jobs.poll_ms": "20ms",
            "jobs.attempts_max": 1_000_000,  # whoever is killed often enough would end as failed
            "embedding.batch_size": BATCH,
            "search.keyword.similar_words": "none",
        },
    )
    batches = float(sys.argv[3]) if len(sys.argv) > 3 else math.inf
    provider = Slow(batches, prints=mode == "behind")
    with caliber.open(settings, embedding_provider=provider) as memory:
        print("ready", flush=True)
        if mode == "manual":
            report = lambda _, *done: print(json.dumps(done), flush=True)  # noqa: E731
            made = memory.storage.embedding_spaces.reembed(progress=report).made
        else:
            until(lambda: memory.storage.embedding_spaces.find("hash-1:newer@48").state == "active", seconds=120)
            made = provider.asked
        print("done", made, flush=True)


if __name__ == "__main__":
    main()
