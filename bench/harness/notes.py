"""The notes that searches are about: texts, their vectors, the exact answer, and CALIBER holding them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from support.inspection import inspect

import caliber
from caliber import EntityRef, EntityType
from caliber.api.caliber import Caliber
from caliber.config import CaliberConfig
from caliber.embedding.embedding_target import attach
from caliber.embedding.service import Embeddings
from caliber.knowledge.notes import NewNote, add_note
from caliber.llm.protocols import EmbeddingProvider
from caliber.model.knowledge import NoteType
from caliber.model.trust import TrustLabel
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.artifacts import check_artifact, create_artifact
from harness.report import amount

ME = EntityRef(EntityType.AGENT, uuid.UUID(int=1))
ARTIFACTS, TURNS = 1_000, 200
QUICK_TASK = (40, 20)  # artifacts and turns
QUERY = "what was decided about parsing empty input"
TOPICS = ("parser", "cache", "network", "budget", "queue", "index", "lock", "cursor", "schema", "clock")
TEAMS = tuple(f"team {number}" for number in range(10))
LIMIT = 10
TOLERANCE = 1e-5  # what sums of 256 products in single precision may differ by
CHUNK = 5_000
# What the vector peers answer: nothing but the similarity of meanings.
BY_VECTOR = {
    "search.weights": {"vector": 1.0, "keyword": 0.0, "graph": 0.0, "importance": 0.0},
    "search.normalisation": "saturation",
    "search.keyword.similar_words": "none",
    "search.boosts.mentioned": 0.0,
    "search.boosts.date": 0.0,
    "search.boosts.time": 0.0,
    "search.boosts.exact": 0.0,
    "search.boosts.question": 0.0,
    "search.boosts.recency": 0.0,
}


def sentence(number: int) -> str:
    """Return a text of about twenty words that differs from all others."""
    topic, other = TOPICS[number % 10], TOPICS[(number // 10) % 10]
    return (
        f"In case {number} the {topic} was changed so that the {other} no longer waits for it, after {number % 97} "
        f"attempts showed that step {number % 31} was the slow one."
    )


def team(number: int) -> str:
    """Return the team of a note: a tenth of all are of each team, across all topics."""
    return TEAMS[number * 7919 % 7907 % 10]


@dataclass(frozen=True)
class Notes:
    """So many notes, embedded by the provider that the profile ``reference`` configures."""

    texts: list[str]
    vectors: np.ndarray
    query: np.ndarray

    @property
    def size(self) -> str:
        return f"{amount(len(self.texts))} notes"

    @property
    def dimensions(self) -> int:
        return int(self.vectors.shape[1])

    @cached_property
    def similarities(self) -> np.ndarray:
        """The exact cosine of every note with the query."""
        rows, query = self.vectors.astype(np.float64), self.query.astype(np.float64)
        return rows @ query / (np.linalg.norm(rows, axis=1) * np.linalg.norm(query))

    def best(self, of: str | None = None) -> np.ndarray:
        """Return the exact scores of the best, of all notes or those of a team."""
        scores = self.similarities
        if of is not None:
            scores = scores[[team(number) == of for number in range(len(self.texts))]]
        return np.sort(scores)[::-1][:LIMIT]

    def recall(self, numbers: Sequence[int], of: str | None = None) -> float:
        """Return the share of the best that an answer has; notes as good as the last of the best count as well."""
        assert all(of in (None, team(number)) for number in numbers)
        assert len(set(numbers)) == len(numbers) <= LIMIT
        worst = self.best(of)[-1] - TOLERANCE
        return int(np.count_nonzero(self.similarities[list(numbers)] >= worst)) / LIMIT

    def embed(self) -> Callable[[Sequence[str]], list[list[float]]]:
        """Return the embeddings as peers ask for them: looked up, so that no one's time holds the model's."""
        known = dict(zip(self.texts, self.vectors, strict=True)) | {QUERY: self.query}
        return lambda texts: [known[text].tolist() for text in texts]


def make(count: int, provider: EmbeddingProvider) -> Notes:
    """Return ``count`` notes."""
    texts = [sentence(number) for number in range(count)]
    return Notes(texts, provider.embed_batch(texts), provider.embed_batch([QUERY])[0])


class Ours:
    """A store that holds notes, open, and which note is which."""

    def __init__(self, memory: Caliber, config: CaliberConfig, notes: Notes) -> None:
        self.memory = memory
        self.config = config
        self.notes = notes
        self.number_of: dict[uuid.UUID, int] = {}

    def add(self, numbers: Sequence[int]) -> None:
        """Add notes in one transaction, with the vectors there are already."""
        embedder = inspect(self.memory).part(Embeddings).embedder
        assert embedder is not None
        target = embedder.configured

        def work(uow: UnitOfWork) -> None:
            for number in numbers:
                text = self.notes.texts[number]
                note, _ = add_note(uow, NewNote(f"case {number}", team(number), NoteType.FACT, text, 0.9, 45))
                attach(uow, "note", note.note_id, text, [(target, self.notes.vectors[number : number + 1])])
                self.number_of[note.note_id] = number

        inspect(self.memory).write(work)

    def add_task(self, artifacts: int = ARTIFACTS, turns: int = TURNS) -> uuid.UUID:
        """Start a trajectory with artifacts and turns, as an agent has them after some months; return its id."""
        engine, embedder = inspect(self.memory).engine, inspect(self.memory).part(Embeddings).embedder
        assert embedder is not None
        target = embedder.configured
        task = self.memory.start_trajectory("Keep the service running", initiator=ME)
        scope = self.memory.current_scope(task.trajectory_id)
        assert scope is not None
        texts = [sentence(number) for number in range(artifacts)]
        vectors = embedder.provider.embed_batch(texts)

        def work(uow: UnitOfWork) -> None:
            for text, vector in zip(texts, vectors, strict=True):
                new = check_artifact(engine.estimator, artifact_type="fact", content=text, extraction_method="explicit")
                artifact, _ = create_artifact(uow, scope.scope_id, new, unlabelled=TrustLabel.TOOL)
                attach(uow, "artifact", artifact.artifact_id, text, [(target, [vector])])

        engine.write(work)
        roles = ("user", "assistant")
        said = [{"role": roles[number % 2], "content": sentence(number)} for number in range(turns)]
        self.memory.append_turns(scope.scope_id, said)
        self.memory.flush()
        return task.trajectory_id

    def search(self, of: str | None = None) -> Any:
        """Search all notes, or those of a team, with every leg."""
        return _search(self.memory, of)

    def numbers(self, found: Any) -> list[int]:
        """Return which notes are found."""
        return [self.number_of[hit.id] for hit in found.hits]

    @contextmanager
    def by_vector(self) -> Iterator[Callable[[str | None], Any]]:
        """Search the same store by vector alone."""
        only = caliber.profiles.reference(self.config.storage.resolve_path(), **BY_VECTOR)
        with caliber.open(only, principal=caliber.Principal.admin()) as memory:
            yield lambda of: _search(memory, of)

    def statements(self, of: str | None = None) -> int:
        """Return how many SQL statements a search runs."""
        count = inspect(self.memory).store.statement_count
        before = count()
        self.search(of)
        return int(count() - before)


def _search(memory: Caliber, of: str | None) -> Any:
    return memory.search(QUERY, kinds=["note"], limit=LIMIT, filter=None if of is None else {"entity_type": of})


@contextmanager
def opened(folder: Path, count: int, *, waiting: int = 0, provider: EmbeddingProvider | None = None) -> Iterator[Ours]:
    """Make a store with ``count`` notes, and texts and vectors for ``waiting`` more."""
    sizes = {} if provider is None else {"vector.dimensions": provider.dimensions}
    config = caliber.profiles.reference(folder / "notes.db", **sizes)
    caliber.create(config)
    with caliber.open(config, principal=caliber.Principal.admin(), embedding_provider=provider) as memory:
        embedder = inspect(memory).part(Embeddings).embedder
        assert embedder is not None
        ours = Ours(memory, config, make(count + waiting, embedder.provider))
        for begin in range(0, count, CHUNK):
            ours.add(range(begin, min(begin + CHUNK, count)))
        memory.flush()
        yield ours


@contextmanager
def settled(memory: Caliber) -> Iterator[None]:
    """Flush the deferred writes of a round before another's round begins."""
    yield
    memory.flush()


def latencies(call: Callable[[], object], seconds: float) -> np.ndarray:
    """Return the seconds of each call, for so long."""
    for _ in range(10):
        call()
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end or not took:
        call()
        took.append(time.perf_counter() - begin)
    return np.asarray(took)
