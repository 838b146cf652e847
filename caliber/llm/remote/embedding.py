"""Embedding clients of OpenAI-compatible services, Voyage and Ollama.

A batch is one request, or as many as ``batch_tokens`` requires. An answer with vectors for some of its texts keeps
those; the other texts get errors of their own. A request that is refused for its content is halved until the text at
fault stands alone.

Source: C-246, C-247, C-487, M-004 to M-012; docs/decisions/0047-answers-are-checked.md.
"""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from caliber.llm.embedding import checked_vector, whole_batch
from caliber.llm.protocols import FloatMatrix, FloatVector
from caliber.llm.remote.answers import Answer
from caliber.llm.remote.http import HttpClient
from caliber.llm.texts import require_text, valid_unicode
from caliber.model.errors import CaliberError, EmbeddingFailed, InvalidResponse, RequestFailed
from caliber.model.providers import TokenCounter

if TYPE_CHECKING:
    from caliber.config.providers import ProviderConfig

Results = dict[int, FloatVector | CaliberError]

_OF_THE_CONTENT: Final = frozenset({400, 413, 422})
"""Codes by which a service refuses a request for good: too long, too many texts, disallowed content."""


class RemoteEmbeddingProvider(ABC):
    """An embedding service of one protocol. Threads may share it, and it works after fork.

    The service decides whether equal texts have equal vectors; the cache in front of it sees to that.
    """

    path = ""

    def __init__(self, client: HttpClient, settings: ProviderConfig, count_tokens: TokenCounter) -> None:
        assert settings.dimensions is not None  # or it had been refused
        self._client = client
        self._name = settings.provider_type
        self._model = settings.model
        self._dimensions = settings.dimensions
        self._count_tokens = count_tokens
        self._options = settings.options

    @property
    def model_id(self) -> str:
        """Protocol and model; the address may change without another name."""
        return f"{self._name}:{self._model}"

    @property
    def dimensions(self) -> int:
        """The length that every vector must have."""
        return self._dimensions

    def embed(self, text: str) -> FloatVector:
        """Return the vector of one text. Shapes: f32[dimensions]. Raises: as ``embed_batch``."""
        vector: FloatVector = self.embed_batch([text])[0]
        return vector

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of all texts, in their order.

        Shapes: f32[n, dimensions].
        Raises: EmbeddingFailed (an empty text; some of the batch, naming which), RateLimited, RequestFailed,
            AuthenticationFailed, InvalidResponse, DimensionMismatch, InvalidVector, Unavailable.
        """
        return whole_batch(self.embed_some(texts), self._dimensions)

    def embed_some(self, texts: Sequence[str]) -> list[FloatVector | CaliberError]:
        """Return a vector or an error per text, in their order."""
        results: Results = {}
        pending: list[int] = []
        for at, text in enumerate(texts):
            try:
                require_text(text, at)
            except EmbeddingFailed as error:
                results[at] = error
            else:
                pending.append(at)
        outage: CaliberError | None = None
        for group in self._groups(pending, texts):
            if outage is None:
                outage = self._ask_apart(group, texts, results)
            for at in group:
                if outage is not None:
                    results.setdefault(at, outage)
        return [results[at] for at in range(len(texts))]

    def close(self) -> None:
        """Close the connections; requests under way end with Unavailable."""
        self._client.close()

    def _groups(self, pending: Sequence[int], texts: Sequence[str]) -> Iterator[list[int]]:
        """Yield the positions of each request: as many texts as ``batch_tokens`` holds, at least one."""
        most = self._options["batch_tokens"]
        group: list[int] = []
        total = 0
        for at in pending:
            tokens = self._count_tokens(texts[at])
            if group and total + tokens > most:
                yield group
                group, total = [], 0
            group.append(at)
            total += tokens
        if group:
            yield group

    def _ask_apart(self, group: list[int], texts: Sequence[str], results: Results) -> CaliberError | None:
        """Fill in the results of a group; return the error that rules out further requests."""
        parts = [group]
        # A text that cannot be embedded is alone after this many halvings; more refusals in a row are about all.
        allowed = refusals = len(group).bit_length() + 1
        while parts:
            part = parts.pop()
            try:
                answered = self._ask([texts[at] for at in part])
            except RequestFailed as error:
                if error.context.get("status") not in _OF_THE_CONTENT:
                    return error
                allowed -= 1
                if len(part) == 1:
                    results[part[0]] = error
                if not allowed:
                    return error
                if len(part) > 1:
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
            except CaliberError as error:
                return error
            else:
                allowed = refusals
                results.update(zip(part, answered, strict=True))
        return None

    def _ask(self, texts: Sequence[str]) -> list[FloatVector | CaliberError]:
        tokens = sum(self._count_tokens(text) for text in texts)
        answer = self._client.post(self.path, self._request([valid_unicode(text) for text in texts]), tokens=tokens)
        self._client.settle(tokens, self._used(answer))
        found = self._vectors(answer, len(texts))
        missing = InvalidResponse(provider=self._name, reason="it has no vector for this text", retryable=True)
        return [checked_vector(found.get(at, missing), self._dimensions, self._name) for at in range(len(texts))]

    @abstractmethod
    def _request(self, texts: list[str]) -> dict[str, Any]:
        """Return the document that asks for the vectors of these texts."""

    @abstractmethod
    def _vectors(self, answer: Answer, count: int) -> dict[int, object]:
        """Return the vector of each of ``count`` texts in a service's document, by position."""

    def _used(self, answer: Answer) -> int | None:
        """Return the tokens that the service counted, if it reports them."""
        usage = answer.optional("usage")
        return None if usage is None else usage.counted("total_tokens")


class OpenAIEmbeddingProvider(RemoteEmbeddingProvider):
    """``POST /embeddings``, as OpenAI and many others offer it."""

    path = "/embeddings"

    def _request(self, texts: list[str]) -> dict[str, Any]:
        document = {"model": self._model, "input": texts, "encoding_format": self._options["encoding_format"]}
        if self._options["send_dimensions"]:
            document["dimensions"] = self._dimensions
        return document

    def _vectors(self, answer: Answer, count: int) -> dict[int, object]:
        items = answer.field("data").items(count)
        found: dict[int, object] = {}
        for place, item in enumerate(items):
            index = item.optional("index")
            if index is None and len(items) != count:
                item.refuse("has no index, and there are fewer vectors than texts")
            at = place if index is None else index.whole(0, count - 1)
            if at in found:
                item.refuse("has an index that came before")
            found[at] = _vector(item.field("embedding").value, self._name)
        return found


class VoyageEmbeddingProvider(OpenAIEmbeddingProvider):
    """``POST /embeddings`` of Voyage; a text that is too long is refused, never cut by the service."""

    @property
    def model_id(self) -> str:
        """Protocol, model and, if configured, the type of the texts."""
        kind = self._options["input_type"]
        return super().model_id if kind == "none" else f"{super().model_id}/{kind}"

    def _request(self, texts: list[str]) -> dict[str, Any]:
        document: dict[str, Any] = {"model": self._model, "input": texts, "truncation": False}
        if self._options["encoding_format"] == "base64":
            document["encoding_format"] = "base64"
        if self._options["send_dimensions"]:
            document["output_dimension"] = self._dimensions
        if self._options["input_type"] != "none":
            document["input_type"] = self._options["input_type"]
        return document


class OllamaEmbeddingProvider(RemoteEmbeddingProvider):
    """``POST /api/embed`` of Ollama; a text that is too long is refused, never cut by the service."""

    path = "/api/embed"

    def _request(self, texts: list[str]) -> dict[str, Any]:
        document = {
            "model": self._model,
            "input": texts,
            "truncate": False,
            "keep_alive": self._options["keep_alive"],
        }
        if self._options["send_dimensions"]:
            document["dimensions"] = self._dimensions
        return document

    def _vectors(self, answer: Answer, count: int) -> dict[int, object]:
        items = answer.field("embeddings").items(count)
        if len(items) != count:
            answer.refuse(f"has {len(items)} vectors for {count} texts, and does not say of which")
        return {at: _vector(item.value, self._name) for at, item in enumerate(items)}

    def _used(self, answer: Answer) -> int | None:
        return answer.counted("prompt_eval_count")


def _vector(value: object, provider: str) -> object:
    """Return one embedding of an answer as an array, or the error that it is."""
    if isinstance(value, list):
        try:
            array = np.asarray(value)
        except (ValueError, OverflowError):
            array = np.empty(0, np.object_)
        # Whole numbers are numbers too; anything else, nested lists and text among them, is no vector.
        if array.ndim == 1 and array.dtype.kind in "fiu":
            return array.astype(np.float64)
    elif isinstance(value, str):
        try:
            raw = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raw = b"?"
        if len(raw) % 4 == 0:
            return np.frombuffer(raw, "<f4").astype(np.float32)
    return InvalidResponse(provider=provider, reason="a vector is not a list of numbers")
