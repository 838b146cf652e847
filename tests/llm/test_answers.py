"""Answers of a service: each is read, or it is an InvalidResponse that quotes nothing of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.llm.model_server import ModelServer
from support.llm.services import embeddings, language_model

from caliber.llm.remote.answers import Answer, parse_json
from caliber.llm.remote.chat import ChatModel
from caliber.llm.remote.embedding import RemoteEmbeddingProvider
from caliber.model.errors import CaliberError, InvalidResponse, SummarizationFailed
from caliber.model.knowledge import NoteType

MARK = "quoted-by-nobody"

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([MARK, "", "0.5", "AAAA", "fact"])
NAMES = st.sampled_from(
    (
        *("data", "index", "embedding", "embeddings", "usage", "total_tokens", "choices", "message", "content", "type"),
        *("tool_use", "name", "input", "stop_reason", "finish_reason", "done_reason", "refusal", "text", MARK),
    )
)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=30
)
SERVER = ModelServer(endpoint="http://127.0.0.1:9")  # providers are made, nobody is asked


@pytest.fixture(scope="module")
def embedding_kinds() -> list[RemoteEmbeddingProvider]:
    return [embeddings(SERVER, kind, api_key=None) for kind in ("openai", "ollama")]


@pytest.fixture(scope="module")
def chat_kinds() -> list[ChatModel]:
    return [language_model(SERVER, kind)._model for kind in ("openai", "anthropic", "ollama")]


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or the error it raises."""
    try:
        return call()
    except (InvalidResponse, SummarizationFailed) as error:
        return error


@given(DOCUMENTS, st.integers(1, 4))
def test_any_document_is_vectors_or_an_error(
    embedding_kinds: list[RemoteEmbeddingProvider], document: Any, count: int
) -> None:
    # M-011, M-012
    for provider in embedding_kinds:
        found = outcome(lambda provider=provider: provider._vectors(Answer(document, "p"), count))
        outcome(lambda provider=provider: provider._used(Answer(document, "p")))
        if isinstance(found, CaliberError):
            assert MARK not in str(found)
        else:
            assert set(found) <= set(range(count))
            assert all(isinstance(value, np.ndarray | InvalidResponse) for value in found.values())


@given(DOCUMENTS)
def test_any_document_is_a_models_answer_or_an_error(chat_kinds: list[ChatModel], document: Any) -> None:
    # C-497
    for model in chat_kinds:
        outcome(lambda model=model: model._used(Answer(document, "p")))
        read = outcome(lambda model=model: model._read("summarize", Answer(document, "p")))
        assert isinstance(read, Answer | CaliberError)
        assert MARK not in str(read)


@given(DOCUMENTS, st.sampled_from(["", "x", "```json\n", "{}", "\n```", "[", '{"a":1,"a":2}']))
def test_any_text_is_a_table_or_an_error(document: Any, more: str) -> None:
    text = json.dumps(document)
    for written in (text, more + text, text + more, f"```json\n{text}\n```"):
        read = outcome(lambda written=written: parse_json(written, "p", retryable=True))
        if isinstance(read, CaliberError):
            assert read.retryable
            assert MARK not in str(read)
        else:
            assert isinstance(read.value, dict)


@given(DOCUMENTS)
def test_each_reader_gives_its_type_or_an_error(document: Any) -> None:
    answer = Answer(document, "p", "the value")
    readers: list[tuple[Callable[[], Any], type]] = [
        (lambda: answer.text(10), str),
        (answer.fraction, float),
        (lambda: answer.whole(-5, 5), int),
        (answer.flag, bool),
        (lambda: answer.choice(NoteType), NoteType),
        (lambda: answer.items(3), list),
        (lambda: answer.only(["data"]), Answer),
    ]
    for read, kind in readers:
        value = outcome(read)
        if isinstance(value, InvalidResponse):
            assert str(value).startswith("p sent an answer that cannot be used: the value")
            assert MARK not in str(value)
        else:
            assert type(value) is kind
