"""Chat clients of OpenAI, Anthropic and Ollama: one question, one JSON object as the answer.

Source: C-103, C-104, C-497; docs/decisions/0047-answers-are-checked.md.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from caliber.llm.remote.answers import Answer, parse_json
from caliber.llm.remote.http import HttpClient
from caliber.model.errors import InvalidResponse, SummarizationFailed
from caliber.model.lazy_dataclass import dataclass
from caliber.model.providers import TokenCounter

if TYPE_CHECKING:
    from caliber.config.providers import SummarizerConfig

ANTHROPIC_VERSION: Final = "2023-06-01"
"""The version of Anthropic's protocol that is spoken here."""

_REPLY_CHARS: Final = 64
"""Maximum characters of an answer per requested token; a longer one is no valid answer."""


@dataclass(frozen=True, slots=True)
class ModelQuestion:
    """A question to a model: ``name`` of the call, instructions, material, and the JSON schema of the answer."""

    name: str
    instructions: str
    material: Mapping[str, Any]
    schema: Mapping[str, Any]


class ChatModel(ABC):
    """A language model behind one protocol. Threads may share it, and it works after fork."""

    path = ""

    def __init__(self, client: HttpClient, settings: SummarizerConfig, count_tokens: TokenCounter) -> None:
        assert settings.chat is not None  # or it had been refused
        self._client = client
        self.name = settings.provider_type
        self.model = settings.model
        self._settings = settings.chat
        self._count_tokens = count_tokens
        self._options = settings.options

    def ask(self, question: ModelQuestion) -> Answer:
        """Return the table that the model answers with, not checked beyond being JSON.

        Raises: AuthenticationFailed, RateLimited, RequestFailed, InvalidResponse, SummarizationFailed (the model
            refused), Unavailable.
        """
        settings = self._settings
        material = json.dumps(question.material, ensure_ascii=False).encode("utf-8", "replace").decode()
        tokens = self._count_tokens(question.instructions) + self._count_tokens(material) + settings.max_output_tokens
        answer = self._client.post(self.path, self._request(question, material), tokens=tokens)
        self._client.settle(tokens, self._used(answer))
        return self._read(question.name, answer)

    def close(self) -> None:
        """Close the connections; requests under way end with Unavailable."""
        self._client.close()

    @abstractmethod
    def _request(self, question: ModelQuestion, material: str) -> dict[str, Any]:
        """Return the document that asks."""

    @abstractmethod
    def _read(self, call: str, answer: Answer) -> Answer:
        """Return the model's table in a service's document."""

    @abstractmethod
    def _used(self, answer: Answer) -> int | None:
        """Return the tokens that the service counted, if it reports them."""

    def _temperature(self) -> dict[str, Any]:
        value = self._settings.temperature
        return {} if isinstance(value, str) else {"temperature": value}

    def _parsed(self, text: Answer) -> Answer:
        most = self._settings.max_output_tokens * _REPLY_CHARS
        return parse_json(text.text(most), self.name, retryable=True)

    def _cut_off(self) -> InvalidResponse:
        most = self._settings.max_output_tokens
        return InvalidResponse(
            provider=self.name, reason=f"the model's answer is cut off at chat.max_output_tokens = {most}"
        )

    def _declined(self) -> SummarizationFailed:
        return SummarizationFailed(reason=f"{self.name}: the model declined to answer")


class OpenAIChat(ChatModel):
    """``POST /chat/completions``, as OpenAI and many others offer it."""

    path = "/chat/completions"

    def _request(self, question: ModelQuestion, material: str) -> dict[str, Any]:
        document: dict[str, Any] = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": question.instructions},
                {"role": "user", "content": material},
            ],
            self._options["limit_field"]: self._settings.max_output_tokens,
            **self._temperature(),
        }
        form = self._options["answer_format"]
        if form == "json_schema":
            schema = {"name": question.name, "strict": True, "schema": question.schema}
            document["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif form == "json_object":
            document["response_format"] = {"type": "json_object"}
        return document

    def _read(self, call: str, answer: Answer) -> Answer:  # noqa: ARG002  (only tools are named)
        choices = answer.field("choices").items(1)
        if not choices:
            answer.refuse("has no choices")
        message = choices[0].field("message")
        ended = choices[0].optional("finish_reason")
        if message.optional("refusal") is not None or (ended is not None and ended.value == "content_filter"):
            raise self._declined()
        if ended is not None and ended.value == "length":
            raise self._cut_off()
        return self._parsed(message.field("content"))

    def _used(self, answer: Answer) -> int | None:
        usage = answer.optional("usage")
        return None if usage is None else usage.counted("total_tokens")


class AnthropicChat(ChatModel):
    """``POST /messages``: the answer is the input of a tool that the model has to use, which keeps it to the schema."""

    path = "/messages"

    def _request(self, question: ModelQuestion, material: str) -> dict[str, Any]:
        tool = {
            "name": question.name,
            "description": "Takes the answer.",
            "input_schema": question.schema,
        }
        return {
            "model": self.model,
            "max_tokens": self._settings.max_output_tokens,
            "system": question.instructions,
            "messages": [{"role": "user", "content": material}],
            "tools": [tool],
            "tool_choice": {"type": "tool", "name": question.name},
            **self._temperature(),
        }

    def _read(self, call: str, answer: Answer) -> Answer:
        ended = answer.optional("stop_reason")
        if ended is not None and ended.value == "refusal":
            raise self._declined()
        if ended is not None and ended.value == "max_tokens":
            raise self._cut_off()
        for part in answer.field("content").items(100):
            kind = part.field("type")
            if kind.value == "tool_use" and part.field("name").value == call:
                arguments = part.field("input").value
                return Answer(arguments, self.name, retryable=True)
        raise InvalidResponse(provider=self.name, reason="the model did not answer as asked", retryable=True)

    def _used(self, answer: Answer) -> int | None:
        usage = answer.optional("usage")
        return None if usage is None else usage.counted("input_tokens", "output_tokens")


class OllamaChat(ChatModel):
    """``POST /api/chat`` of Ollama, which keeps the model to the schema."""

    path = "/api/chat"

    def _request(self, question: ModelQuestion, material: str) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [
                {"role": "system", "content": question.instructions},
                {"role": "user", "content": material},
            ],
            "stream": False,
            "format": question.schema,
            "keep_alive": self._options["keep_alive"],
            "options": {
                "num_predict": self._settings.max_output_tokens,
                "num_ctx": self._options["context_tokens"],
                **self._temperature(),
            },
        }

    def _read(self, call: str, answer: Answer) -> Answer:  # noqa: ARG002  (only tools are named)
        ended = answer.optional("done_reason")
        if ended is not None and ended.value == "length":
            raise self._cut_off()
        return self._parsed(answer.field("message").field("content"))

    def _used(self, answer: Answer) -> int | None:
        return answer.counted("prompt_eval_count", "eval_count")
