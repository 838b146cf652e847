"""Declaration and validation of provider options: allowed names, types and ranges for each provider kind.

Source: C-104, K-002, K-003.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from caliber.model.errors import ConfigError, InvalidConfigValue, MissingRequired
from caliber.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its meaning, and its values (a choice, a whole number in a range, true or false, or text)."""

    meaning: str
    kind: type[int] | type[bool] | type[str]
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 2**31 - 1

    def fault(self, value: Any) -> str | None:
        """Return why this value cannot be taken."""
        if self.kind is bool:
            return None if isinstance(value, bool) else "must be true or false"
        if self.kind is int:
            if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
                return f"must be a whole number from {self.low} to {self.high}"
            return None
        if self.choices:
            return None if value in self.choices else f"must be one of {', '.join(self.choices)}"
        return None if isinstance(value, str) and value.strip() else "must be text"


BATCH_TOKENS = Option("most tokens of one request, as estimated; more texts are another request", int, low=1)
ENCODING = Option("how vectors travel", str, ("float", "base64"))
SEND_DIMENSIONS = Option("whether the service is asked for this length of vectors", bool)
KEEP_ALIVE = Option("how long the model stays in the service's memory, such as 5m", str)

EMBEDDING: Mapping[str, Mapping[str, Option]] = {
    "hash": {},
    "static": {},
    "minilm": {
        "threads": Option(
            "threads of one computation; with 1 equal texts have equal vectors to the bit", int, low=1, high=256
        ),
        "max_tokens": Option(
            "tokens of a text that are read, without the two that the model adds", int, low=1, high=510
        ),
    },
    "openai": {"batch_tokens": BATCH_TOKENS, "encoding_format": ENCODING, "send_dimensions": SEND_DIMENSIONS},
    "voyage": {
        "batch_tokens": BATCH_TOKENS,
        "encoding_format": ENCODING,
        "send_dimensions": SEND_DIMENSIONS,
        "input_type": Option("what the texts are said to be", str, ("none", "document", "query")),
    },
    "ollama": {"batch_tokens": BATCH_TOKENS, "keep_alive": KEEP_ALIVE, "send_dimensions": SEND_DIMENSIONS},
}

SUMMARIZATION: Mapping[str, Mapping[str, Option]] = {
    "extractive": {},
    "openai": {
        "answer_format": Option(
            "how the model is kept to the form of its answer", str, ("json_schema", "json_object", "none")
        ),
        "limit_field": Option("the field that bounds an answer", str, ("max_completion_tokens", "max_tokens")),
    },
    "anthropic": {},
    "ollama": {
        "keep_alive": KEEP_ALIVE,
        "context_tokens": Option("tokens of question and answer together that the model is set up for", int, low=1),
    },
}


def option_faults(
    field: str, kind: str, options: Mapping[str, Option], values: Mapping[str, Any]
) -> Iterator[ConfigError]:
    """Yield the faults of a provider's options: missing, out of range, unknown."""
    for name, option in options.items():
        if name not in values:
            yield MissingRequired(
                f"{field}.options.{name} is required: {option.meaning}", field=f"{field}.options.{name}"
            )
        elif (fault := option.fault(values[name])) is not None:
            shown = values[name] if isinstance(values[name], int) else "it"
            yield InvalidConfigValue(field=f"{field}.options.{name}", value=shown, reason=fault)
    unknown = sorted(set(values) - set(options))
    if unknown:
        there = f"has {', '.join(options)}" if options else "has no options"
        yield InvalidConfigValue(field=f"{field}.options", value=unknown, reason=f"provider_type {kind} {there}")
