"""Work that began before ``forget`` writes nothing of the person after it: results, errors and deferred writes.

Each piece of work reads the person's records, then the person is forgotten, then the work goes on.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.configs import policy
from support.erasure.byte_search import searched, values
from support.evidence import share
from support.inspection import inspect
from support.memories import FACT
from support.providers import CountingEmbeddings, ScriptedLearner
from support.threads import begin

import caliber
from caliber.context.service import ContextService
from caliber.engine.stale_inputs import StaleInputs
from caliber.llm.cache import content_hash
from caliber.llm.protocols import ExtractedFact, FactDecision
from caliber.model import FixedClock, Principal
from caliber.model.errors import CaliberError, SummarizationFailed
from caliber.model.learning import LearningAction, PersonAttribute
from caliber.policies import policy_engine

PERSON = "zaphod@heart.example"
SECRET = "qbeeblebroxian"
"""A word in the person's own records."""
HOST = "host@other.example"


class Interrupted:
    """Forgets the person at the first chance after ``armed`` is set, in another thread, as another caller would."""

    def __init__(self) -> None:
        self.memory: Any = None
        self.armed = False
        self.done = False

    def arm(self) -> None:
        """Forget at the next chance."""
        self.armed = True

    def __call__(self) -> bool:
        """Forget; return whether that happened in this call."""
        if not self.armed or self.done:
            return False
        self.done = True
        reports: list[Any] = []
        thread = begin(lambda: reports.append(self.memory.forget(user=PERSON)))
        thread.result()
        assert reports[0].proven
        return True


def foreign(text: str) -> Exception:
    return ValueError(f"cannot read {text}")


def ours(text: str) -> Exception:
    return SummarizationFailed(reason=f"cannot read {text}")


def passing(text: str) -> Exception:
    return SummarizationFailed(reason=f"cannot read {text}", retryable=True)


ERRORS: dict[str, Callable[[str], Exception] | None] = {
    "answers": None, "fails": ours, "fails for now": passing, "fails in its own way": foreign,
}  # fmt: skip


class Model(ScriptedLearner):
    """Answers or fails with the words that it was asked about, after the person was forgotten."""

    def __init__(self, forget: Interrupted, error: Callable[[str], Exception] | None) -> None:
        super().__init__()
        self._forget = forget
        self._error = error

    def _asked(self, text: str) -> None:
        if self._forget() and self._error is not None:
            raise self._error(text)

    def summarize(self, text: str, max_tokens: int) -> str:
        self._asked(text)
        return f"summary of {text}"

    def extract_artifacts(self, turns: Any) -> Any:
        self._asked(" ".join(turn.content for turn in turns))
        return super().extract_artifacts(turns)

    def extract_facts(self, user: str, turns: Any) -> list[ExtractedFact]:
        self._asked(" ".join(turn.content for turn in turns))
        return [
            ExtractedFact("user", PersonAttribute.OTHER, turn.content, turn.content, turn.turn_number) for turn in turns
        ]

    def decide_facts(self, questions: Any) -> list[FactDecision]:
        self._asked(" ".join(question.statement for question in questions))
        return [FactDecision(LearningAction.ADD, reason=question.statement) for question in questions]


class Vectors(CountingEmbeddings):
    """Embeds, or fails with the words that it was asked about, after the person was forgotten."""

    def __init__(self, forget: Interrupted, error: Callable[[str], Exception] | None) -> None:
        super().__init__()
        self._forget = forget
        self._error = error

    def embed_batch(self, texts: Any) -> Any:
        if self._forget() and self._error is not None:
            raise self._error(" ".join(texts))
        return super().embed_batch(texts)


def said(memory: caliber.Caliber, *texts: str, user: str = HOST) -> Any:
    """Append turns to a new task of a user; return its scope."""
    task = memory.start_trajectory("talk", user=user)
    scope = memory.current_scope(task.trajectory_id)
    assert scope is not None
    for text in texts:
        memory.append_turn(scope.scope_id, role="user", content=text)
    return scope


def note(memory: caliber.Caliber, content: str, **options: Any) -> Any:
    about = {"entity": "thing", "entity_type": "topic", "note_type": "fact", "confidence": 0.9}
    return memory.add_note(content=content, **{**about, **options})


NAMING = f"I met {PERSON} today"
SCHEDULED = {**FACT, "retention": {"kind": "compress_on", "when": {"on": "schedule", "cron": "0 3 * * *"}}}


def learning(memory: caliber.Caliber, arm: Callable[[], None], _: FixedClock) -> None:
    arm()
    memory.remember([{"role": "user", "content": NAMING}], user=HOST)


def turn_policy(memory: caliber.Caliber, arm: Callable[[], None], _: FixedClock) -> None:
    scope = said(memory)
    arm()
    memory.append_turn(scope.scope_id, role="user", content=NAMING)


def scope_close(memory: caliber.Caliber, arm: Callable[[], None], _: FixedClock) -> None:
    scope = said(memory, NAMING)
    arm()
    memory.close_scope(scope.scope_id)


def task_end(memory: caliber.Caliber, arm: Callable[[], None], _: FixedClock) -> None:
    scope = said(memory, NAMING)
    arm()
    memory.complete_trajectory(scope.trajectory_id, status="success", summary="done")


def blocks(memory: caliber.Caliber, arm: Callable[[], None], _: FixedClock) -> None:
    arm()
    said(memory, NAMING, "hello", "hello", "hello", "hello")
    memory.jobs.run_due()


def blocks_of_the_person(memory: caliber.Caliber, arm: Callable[[], None], _: FixedClock) -> None:
    arm()
    said(memory, SECRET, "hello", "hello", "hello", "hello", user=PERSON)
    memory.jobs.run_due()


def schedule(memory: caliber.Caliber, arm: Callable[[], None], clock: FixedClock) -> None:
    records = memory.records("fact")
    for number in range(3):
        records.insert(subject="ship", kind="claim", content=f"{number} seen by {PERSON}")
    memory.jobs.run_due()
    clock.advance(ms=86_400_000)
    arm()
    memory.jobs.run_due()


WORK: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "learning": (learning, {}),
    "a turn's policy": (turn_policy, {"policies": [policy("turn", {"action": "summarize", "target": "turn_buffer"})]}),
    "the closing of a scope": (
        scope_close, {"policies": [policy("scope_close", {"action": "extract_artifacts", "target": "turn_buffer"})]}
    ),
    "the end of a task": (task_end,
                          {"policies": [policy("task_end", {"action": "summarize", "target": "turn_buffer"})]}),
    "summaries of turns": (blocks, {"assembly__evict_block_turns": 4}),
    "summaries of the person's turns": (blocks_of_the_person, {"assembly__evict_block_turns": 4}),
    "a schedule": (schedule, {"memories": [SCHEDULED]}),
}  # fmt: skip


def left(backend: Any, memory: caliber.Caliber, folder: Path) -> set[tuple[str, bytes]]:
    """Return the traces of the person that are found, once all waiting work is done."""
    memory.flush()
    memory.jobs.run_due()
    memory.flush()
    needles = [PERSON.encode(), SECRET.encode()]
    found = set(searched(backend, memory, folder, needles))
    held = [str(text) for text in inspect(memory).engine.memory.held()]
    return found | {("memory", needle) for needle in needles for text in held if needle.decode() in text}


CASES = [
    (work, error, on_error)
    for work, (_, knobs) in WORK.items()
    for error in ERRORS
    for on_error in (("continue", "abort") if "policies" in knobs else ("continue",))
]


@pytest.mark.parametrize(("work", "error", "on_error"), share(CASES, 4, daily=16))
def test_a_provider_that_answers_late(backend: Any, tmp_path: Path, work: str, error: str, on_error: str) -> None:
    forget = Interrupted()
    act, knobs = WORK[work]
    clock = FixedClock(1_800_000_000_000_000)
    memory = backend.open(
        clock=clock,
        summarization_provider=Model(forget, ERRORS[error]),
        **{"policies": [], "jobs__poll_ms": 0, "policy_engine__on_error": on_error, **knobs},
    )
    memory.identities.resolve(PERSON)
    note(memory, f"keeps {SECRET}", user=PERSON)
    forget.memory = memory
    with contextlib.suppress(CaliberError, ValueError):  # the caller's own error
        act(memory, forget.arm, clock)
    assert forget.done
    assert left(backend, memory, tmp_path) == set()
    assert memory.admin.verify() == []


def of_the_person(memory: caliber.Caliber, arm: Callable[[], None], _: FixedClock) -> None:
    arm()
    note(memory, f"hides {SECRET}", user=PERSON)
    memory.flush()


def naming(memory: caliber.Caliber, arm: Callable[[], None], _: FixedClock) -> None:
    arm()
    said(memory, NAMING)
    memory.flush()


def query(memory: caliber.Caliber, arm: Callable[[], None], _: FixedClock) -> None:
    arm()
    memory.search(f"where is {PERSON} {SECRET}")


EMBEDDED = {"a note": of_the_person, "a turn": naming, "a query": query}


@pytest.mark.parametrize(("work", "error"), share(itertools.product(EMBEDDED, ERRORS), 3, daily=9))
def test_a_vector_that_comes_late(backend: Any, tmp_path: Path, work: str, error: str) -> None:
    forget = Interrupted()
    clock = FixedClock(1_800_000_000_000_000)
    provider = Vectors(forget, ERRORS[error])
    memory = backend.open(
        clock=clock, embedding_provider=provider, policies=[], jobs__poll_ms=0, embedding__embed={"default": "behind"}
    )
    memory.identities.resolve(PERSON)
    note(memory, f"keeps {SECRET}", user=PERSON)
    memory.flush()
    forget.memory = memory
    with contextlib.suppress(CaliberError, ValueError):  # the caller's own error
        EMBEDDED[work](memory, forget.arm, clock)
    assert forget.done
    assert left(backend, memory, tmp_path) == set()
    cached = [value for table, value in values(backend, memory) if table == "embedding_cache"]
    assert not any(content_hash(text) in cached for text in provider.asked if SECRET in text or PERSON in text)


ENGAGED: dict[str, Callable[[caliber.Caliber, Any], Any]] = {
    "a record": lambda own, made: own.get(made.note_id),
    "a new note": lambda own, _: note(own, f"keeps {SECRET} too"),
    "a window": lambda own, made: own.assemble_context(made.task, query=f"{SECRET} of {PERSON}"),
    "a task": lambda own, _: own.start_trajectory(f"go on with {SECRET}"),
}


@dataclass
class Made:
    """Records of the person, and the scope of a task of others in which the person is named."""

    note_id: Any
    task: Any
    shared: Any


def planted(memory: caliber.Caliber) -> Made:
    memory.identities.resolve(PERSON)
    own = said(memory, f"keeps {SECRET}", user=PERSON)
    shared = said(memory, NAMING)
    made = note(memory, f"keeps {SECRET}", user=PERSON)
    memory.flush()
    return Made(made.note_id, own.trajectory_id, shared)


@pytest.mark.parametrize("work", ENGAGED)
def test_a_call_that_queues_its_rows_late(backend: Any, tmp_path: Path, work: str) -> None:
    forget = Interrupted()
    memory = backend.open(policies=[], jobs__poll_ms=0)
    made = planted(memory)
    forget.memory = memory
    behind = inspect(memory).behind
    put = behind.put
    behind.put = lambda *entries: (forget(), put(*entries))
    forget.arm()
    with contextlib.suppress(CaliberError):
        ENGAGED[work](memory.acting_as(Principal.user(PERSON)), made)
    assert forget.done
    assert left(backend, memory, tmp_path) == set()


@pytest.mark.parametrize("durability", ["behind", "commit"])
def test_a_window_of_others_that_is_stored_late(
    backend: Any, tmp_path: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget = Interrupted()
    memory = backend.open(policies=[], jobs__poll_ms=0, write_behind__window_durability=durability)
    made = planted(memory)
    forget.memory = memory
    left_behind = ContextService.leave_behind
    monkeypatch.setattr(ContextService, "leave_behind", lambda *given: (forget(), left_behind(*given))[1])
    forget.arm()
    with contextlib.suppress(StaleInputs):
        memory.assemble_context(made.shared.trajectory_id, query=f"who is {PERSON}")
    assert forget.done
    assert left(backend, memory, tmp_path) == set()
    window = memory.assemble_context(made.shared.trajectory_id, query="who?")
    assert memory.replay(window.window_id).text == window.text


@pytest.mark.parametrize("frequency", ["per_turn", "per_scope"])
def test_a_checkpoint_that_is_stored_late(
    backend: Any, tmp_path: Path, frequency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget = Interrupted()
    memory = backend.open(policies=[], jobs__poll_ms=0, pcp__recovery_points__frequency=frequency)
    made = planted(memory)
    forget.memory = memory
    build = policy_engine.build_state

    def late(*given: Any, **options: Any) -> Any:
        state = build(*given, **options)
        forget()
        return state

    monkeypatch.setattr(policy_engine, "build_state", late)
    forget.arm()
    if frequency == "per_turn":
        memory.append_turn(made.shared.scope_id, role="user", content="hello")
    else:
        memory.close_scope(made.shared.scope_id)
    assert forget.done
    assert left(backend, memory, tmp_path) == set()
    assert memory.storage.checkpoints.count() == (2 if frequency == "per_turn" else 1), "made again"


class Broken(Model):
    """Fails with the words that it is asked about until ``error`` is taken away."""

    error: Callable[[str], Exception] | None = passing

    def _asked(self, text: str) -> None:
        if self.error is not None:
            raise passing(text)


def test_an_error_of_before_keeps_no_words_of_the_person(backend: Any, tmp_path: Path) -> None:
    # Neither a note without a task nor the turn of a guest is named by the job whose error quotes it.
    clock, words = FixedClock(1_800_000_000_000_000), f"hides {SECRET} in the cellar"
    model, vectors = Broken(Interrupted(), None), CountingEmbeddings()
    vectors.failure = lambda: passing(words)
    memory = backend.open(
        clock=clock,
        summarization_provider=model,
        embedding_provider=vectors,
        policies=[],
        jobs__poll_ms=0,
        embedding__embed={"default": "behind"},
    )
    host = memory.acting_as(Principal.user(HOST))
    task = host.start_trajectory("talk").trajectory_id
    host.access.grant(to=PERSON, on=task, right="write")
    memory.remember([{"role": "user", "content": f"I {words}."}], user=PERSON, task=task)
    note(memory, words, user=PERSON)
    with contextlib.suppress(SummarizationFailed):
        memory.flush()
    memory.jobs.run_due()
    errors = [job.error or "" for job in memory.acting_as(Principal.admin()).jobs.list(limit=100)]
    assert any(SECRET in error for error in errors), errors
    model.error = vectors.failure = None
    assert memory.forget(user=PERSON).proven
    assert left(backend, memory, tmp_path) == set()
