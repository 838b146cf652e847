"""Windows of the profiles as they ship: a chat is told something early, and is asked about it later."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber as run
from support.cli_runs import caliber_json
from support.configs import ADMIN, USER
from support.drawn import NAMES, needs
from support.evidence import scale

from caliber import Caliber, ContextWindow
from caliber.config import CaliberConfig, profiles
from caliber.model.context import AssemblyAction, SourceType
from caliber.model.time import FixedClock
from caliber.model.trajectory import Artifact

PROFILES = [
    *((name, "reference") for name in NAMES),
    ("postgres", "coding-agent"), ("sqlite", "chat-companion"), ("sqlite", "ops-agent"),
]  # fmt: skip
"""The reference on each database, every other profile on one: windows are made in memory, of records that the contract
of databases has all of them keep alike."""
MINUTE_MS = 60_000
FACT = "By the way, my dog is called Pixel."
QUESTION = "What is my dog called?"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "decisions"
WORDS = re.findall(
    r"\w+",
    "table window garden river market letter engine winter planet mirror basket copper forest ladder meadow needle "
    "orange pepper ribbon saddle temple valley walnut yellow anchor barrel candle donkey",
)


def shipped(backend: Any, profile: str, **overrides: Any) -> CaliberConfig:
    """Return a shipped profile for a backend; only what would make a test wait or differ by chance is changed."""
    knobs = {
        "principal": ADMIN,
        "resident.feed_poll_ms": 0,
        "resident.warm_after_ms": 0,
        **({} if profile in ("coding-agent", "ops-agent") else {"embedding.embed.turn": "commit"}),
        **{name.replace("__", "."): value for name, value in {**backend.knobs, **overrides}.items()},
    }
    return profiles.PROFILES[profile](backend.path, **knobs)


def words(number: int, count: int) -> str:
    """Return so many words of small talk, others for each number."""
    return " ".join(WORDS[(number * 7 + at * (1 + number % 5)) % len(WORDS)] for at in range(count)).capitalize() + "."


class Chat:
    """A conversation of one user: each message is a minute after the one before."""

    def __init__(self, memory: Caliber, clock: FixedClock, goal: str = "A chat") -> None:
        self.memory = memory
        self.clock = clock
        self.task = memory.start_trajectory(goal, initiator=USER).trajectory_id

    @property
    def scope(self) -> uuid.UUID:
        scope = self.memory.current_scope(self.task) or self.memory.open_scope(self.task)
        return scope.scope_id

    def fact(self, content: str) -> Artifact:
        return self.memory.create_artifact(
            self.scope, artifact_type="fact", content=content, extraction_method="explicit", confidence=1.0
        )

    def say(self, *messages: tuple[str, str]) -> None:
        turns = []
        for role, content in messages:
            self.clock.advance(ms=MINUTE_MS)
            turns.append({"role": role, "content": content, "occurred_at": None})
        self.memory.append_turns(self.scope, turns)

    def exchanges(self, first: int, count: int, length: int) -> None:
        """Go on for some exchanges, each answer of so many words."""
        self.say(
            *(
                item
                for number in range(first, first + count)
                for item in (("user", f"Tell me more, {number}."), ("assistant", words(number, length)))
            )
        )

    def window(self, question: str, max_tokens: int | None = None) -> ContextWindow:
        self.say(("user", question))
        return self.memory.assemble_context(self.task, max_tokens=max_tokens)


def chat_with(backend: Any, settings: CaliberConfig) -> Chat:
    clock = FixedClock()
    return Chat(backend.open(settings, clock=clock), clock)


def conversation(window: ContextWindow) -> list[uuid.UUID]:
    """Return the turns that a window shows as the conversation, oldest first."""
    sections = [section for section in window.sections if section.name in ("user", "current")]
    return [source.id for section in sections for source in section.sources if source.id is not None]


def check_filled(window: ContextWindow) -> None:
    """Check that at most 15 % of the budget stays unused while a candidate that was left out would fit it."""
    left = window.max_tokens - window.used_tokens
    waiting = [
        item
        for item in window.assembly_trace
        if item.action is AssemblyAction.EXCLUDE
        and item.rule_id in ("budget_limit", "section_limit", "left_with_block")
    ]
    if left > 0.15 * window.max_tokens:
        # A turn of the conversation comes with all that followed it, so that one alone says nothing.
        alone = [item for item in waiting if item.rule_id != "left_with_block"]
        assert all(item.tokens > left - 40 for item in alone), (left, [item.reason for item in alone][:3])


# --- 1: turns are recalled -----------------------------------------------------------------------


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed often"])
@pytest.mark.parametrize(("backend", "profile"), PROFILES, indirect=["backend"])
def test_what_was_said_first_is_in_every_window_that_asks_for_it(backend: Any, profile: str, closed: bool) -> None:
    chat = chat_with(backend, shipped(backend, profile))
    memory = chat.memory
    chat.say(("user", FACT), ("assistant", "What a lovely name."))
    for first in range(0, 200, 20):
        chat.exchanges(first, 20, 30)
        if closed:
            memory.close_scope(chat.scope)
    later = Chat(memory, chat.clock, "Another chat")
    missed = [
        (where, budget)
        for budget in (300, 500, 1_000, 2_000, 4_000)
        for where, task in (("same task", chat), ("new task", later))
        if "Pixel" not in task.window(QUESTION, budget).text
    ]
    assert missed == []


@needs("reopen")
def test_an_ingested_chat_is_recalled_by_the_latest_task(backend: Any, tmp_path: Path) -> None:
    settings = shipped(backend, "reference")
    backend.create(settings)
    file = tmp_path / "caliber.json"
    file.write_text(settings.canonical_json())
    talk = [{"role": "user", "content": FACT}, {"role": "assistant", "content": "What a lovely name."}]
    for number in range(200):
        talk += [
            {"role": "user", "content": f"Tell me more, {number}."},
            {"role": "assistant", "content": words(number, 30)},
        ]
    other = [{"role": "user", "content": "Good morning."}, {"role": "assistant", "content": "Good morning to you."}]
    lines = [{"id": "first", "messages": talk}, {"id": "second", "messages": other}]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run("-c", file, "ingest", "chat", tmp_path / "chat.jsonl")
    for budget in (300, 1_000, 4_000):
        found = caliber_json("-c", file, "context", "latest", "--query", QUESTION, "--max-tokens", budget)
        assert FACT in found["text"], budget
        assert "Good morning to you." in found["text"], budget


@pytest.mark.parametrize("mode", ["top_k(10)", "relevant(0.3)"])
def test_a_rule_on_turns_takes_the_most_relevant(backend: Any, mode: str) -> None:
    kind, count, least = ("top_k", 10, None) if mode.startswith("top_k") else ("relevant", None, 0.3)
    rule = {"memory": "turn_buffer", "mode": {"kind": kind}, "priority": 50}
    rule["mode"] |= {"count": count} if count else {"min_relevance": least}
    chat = chat_with(backend, shipped(backend, "reference", injection_rules=[rule]))
    chat.say(("user", FACT), ("assistant", "What a lovely name."))
    chat.exchanges(0, 100, 30)
    for budget in (500, 2_000):
        window = chat.window(QUESTION, budget)
        assert FACT in window.text
        (brought,) = [item for item in chat.memory.explain(window.window_id)["rules"] if item["rule"] == "turn_buffer"]
        assert brought["mode"] == mode
        assert 1 <= brought["included"] <= (10 if count else 20)


# --- 2: no window with one message only ----------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "profile", "length"),
    [
        *((name, "reference", 440) for name in NAMES),
        ("sqlite", "reference", 900),
        ("sqlite", "chat-companion", 176),
        ("postgres", "chat-companion", 400),
        ("sqlite", "ops-agent", 440),
        ("postgres", "coding-agent", 900),
    ],
    indirect=["backend"],
)
def test_no_window_shows_one_message_where_more_fits(backend: Any, profile: str, length: int) -> None:
    settings = shipped(backend, profile)
    chat = chat_with(backend, settings)
    memory = chat.memory
    said: list[uuid.UUID] = []
    for number in range(scale(16, 40)):
        window = chat.window(f"Tell me more, {number}.")
        said = [turn.turn_id for turn in memory.storage.turns.all()]
        shown = conversation(window)
        # Two exchanges and the question: they fit all of these budgets.
        assert shown[-5:] == said[-5:], number
        assert window.used_tokens <= window.max_tokens == settings.token_budget
        check_filled(window)
        chat.say(("assistant", words(number, length)))


# --- 3: a small record is not crowded out --------------------------------------------------------


@pytest.mark.parametrize(("backend", "profile"), PROFILES, indirect=["backend"])
def test_a_small_artifact_with_the_answer_enters_at_every_budget(backend: Any, profile: str) -> None:
    chat = chat_with(backend, shipped(backend, profile))
    memory = chat.memory
    artifact = chat.fact("The invoices go to the office in Lisbon, second floor.")
    assert artifact.token_count <= 20
    chat.exchanges(0, 30, 30)
    chat.say(("user", "Where do the invoices go?"))
    missed = []
    for budget in range(100, 1_001, 50):
        window = memory.assemble_context(chat.task, max_tokens=budget)
        if artifact.text not in window.text:
            missed.append((budget, memory.explain(window.window_id, exclusion=artifact.artifact_id)["reason"]))
    assert missed == []


# --- 4: a cap gives way --------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "profile"), PROFILES, indirect=["backend"])
def test_a_long_artifact_enters_where_there_is_room(backend: Any, profile: str) -> None:
    chat = chat_with(backend, shipped(backend, profile))
    memory = chat.memory
    artifact = chat.fact("The plan of the harbour, in short. " + words(3, 245))
    assert 300 <= artifact.token_count <= 520
    for question in ("What is the plan of the harbour?", "Hello there."):
        window = chat.window(question, 4_000)
        assert artifact.text in window.text, memory.explain(window.window_id, exclusion=artifact.artifact_id)
        (source,) = [
            source
            for section in window.sections
            for source in section.sources
            if source.source_type is SourceType.ARTIFACT
        ]
        assert source.id == artifact.artifact_id


# --- 5: a large budget is used -------------------------------------------------------------------


@pytest.mark.prove
@pytest.mark.parametrize(("backend", "profile"), PROFILES, indirect=["backend"])
@needs("reopen")
def test_a_question_about_a_repository_uses_the_budget(backend: Any, profile: str, tmp_path: Path) -> None:
    settings = shipped(backend, profile)
    backend.create(settings)
    file = tmp_path / "caliber.json"
    file.write_text(settings.canonical_json())
    run("-c", file, "ingest", "files", DOCS)
    clock = FixedClock()
    memory = backend.open(settings, clock=clock)
    chat = Chat(memory, clock, "Explain the project")
    chat.say(("user", "How is a write made durable, and what happens to searches when a process is killed?"))
    for budget in (2_000, min(8_000, settings.token_budget)):
        window = memory.assemble_context(chat.task, max_tokens=budget)
        assert window.used_tokens >= 0.85 * budget, (window.used_tokens, budget)
        kinds = {source.source_type for section in window.sections for source in section.sources}
        assert kinds >= {SourceType.ARTIFACT, SourceType.NOTE}
        check_filled(window)


# --- 6: closing a scope takes nothing from view --------------------------------------------------


@pytest.mark.parametrize(("backend", "profile"), PROFILES, indirect=["backend"])
def test_closing_a_scope_keeps_the_last_exchanges_in_view(backend: Any, profile: str) -> None:
    chat = chat_with(backend, shipped(backend, profile))
    memory = chat.memory
    chat.exchanges(0, 10, 60)
    before = [turn.turn_id for turn in memory.storage.turns.all()]
    memory.close_scope(chat.scope)
    for budget in (1_000, 4_000):
        window = chat.window("And the one before that?", budget)
        shown = conversation(window)
        assert shown[0:1] != []
        assert [turn for turn in shown if turn in before][-4:] == before[-4:], budget
        contents = [message["content"].rpartition("—\n")[2] for message in window.to_messages()]
        said = [f"Tell me more, {number}." for number in (8, 9)]
        assert [text for text in contents if text in said] == said
        assert contents[-1] == "And the one before that?"
    # A closed scope of another conversation, a day ago, is past: it is recalled, not shown as if it went on.
    chat.clock.advance(ms=24 * 60 * MINUTE_MS)
    window = chat.window("Good morning!", 4_000)
    assert window.to_messages()[-1]["content"].rpartition("—\n")[2] == "Good morning!"


# --- a correction is no duplicate ----------------------------------------------------------------


DEPLOYMENT = "The deployment of the payment service to the production cluster in Frankfurt is {} for Monday morning."
LINK = "The password reset link for the staging environment is valid for {} hours, then it is requested again."


@pytest.mark.parametrize(
    ("said", "corrected", "question"),
    [
        (DEPLOYMENT.format("approved"), DEPLOYMENT.format("not approved"), DEPLOYMENT.format("approved")[:-1] + "?"),
        (
            LINK.format(24),
            LINK.format(48),
            "Is the password reset link for the staging environment valid for 24 hours?",
        ),
        ("Anna owes Ben fifty euros.", "Ben owes Anna fifty euros.", "Who owes whom fifty euros?"),
    ],
    ids=["a word", "a number", "an order"],
)
def test_a_correction_that_reads_almost_the_same_is_recalled(
    backend: Any, said: str, corrected: str, question: str
) -> None:
    chat = chat_with(backend, shipped(backend, "reference"))
    chat.say(("user", said), ("assistant", "Noted."), ("user", corrected), ("assistant", "All right."))
    chat.clock.advance(ms=24 * 60 * MINUTE_MS)
    later = Chat(chat.memory, chat.clock, "Another day")
    assert corrected in later.window(question, 1_000).text


def test_the_same_words_about_two_things_are_two_facts(backend: Any) -> None:
    """A note's entity and a turn's speaker count: the same words about two things are two facts."""
    memory = backend.open(shipped(backend, "reference", embedding__embed__note="commit"), clock=FixedClock())
    words = "runs the payment service on four machines with replicas in Frankfurt and in Dublin since last winter."
    for entity in ("cluster-eu-1", "cluster-eu-2"):
        memory.add_note(entity=entity, entity_type="cluster", note_type="fact", content=words, confidence=0.9)
    earlier = memory.start_trajectory("A group", initiator=USER).trajectory_id
    scope = memory.current_scope(earlier)
    for name in ("maria", "john"):
        memory.append_turn(scope.scope_id, role="user", name=name, content="I have been a strict vegetarian for years.")
    task = memory.start_trajectory("Another day", initiator=USER).trajectory_id
    text = memory.assemble_context(task, query="which cluster runs the payment service?", max_tokens=3_000).text
    assert "cluster-eu-1" in text
    assert "cluster-eu-2" in text
    text = memory.assemble_context(task, query="who is a strict vegetarian?", max_tokens=3_000).text
    assert "maria" in text
    assert "john" in text
