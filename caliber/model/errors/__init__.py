"""Exception classes of CALIBER: one tree below ``CaliberError``.

::

    CaliberError(code, context, retryable)
    ├── StorageError            CALIBER_STORAGE
    │   ├── NotFound            the record does not exist, or may not be seen
    │   ├── InsertFailed, TransactionFailed
    │   ├── Conflict            a lost race, or a reused idempotency key
    │   ├── SchemaMismatch      the store is not ours, or of another version
    │   └── Unavailable         locked, full, read-only, closed, forked, timed out; mostly retryable
    ├── LlmError                CALIBER_LLM
    │   ├── ProviderNotConfigured, RequestFailed, RateLimited, InvalidResponse
    │   ├── AuthenticationFailed     the provider refused the key
    │   └── EmbeddingFailed, SummarizationFailed
    ├── ValidationError         CALIBER_VALIDATION
    │   ├── InputError          an argument is wrong: RequiredFieldMissing, InvalidValue,
    │   │                       ShapeError, DTypeError, NonFiniteError, InvalidRow
    │   ├── AmbiguousSubject    it is not clear enough whom to forget
    │   ├── ConstraintViolation, CircularReference, StaleData, Contradiction
    │   ├── InvalidStateTransition, NoCheckpointAvailable
    │   └── BudgetTooSmall
    ├── ConfigError             CALIBER_CONFIG
    │   ├── MissingRequired, InvalidConfigValue, IncompatibleOptions
    │   ├── ProviderNotSupported, ExtraNotInstalled
    │   ├── ProgramFault        something wrong in a .caliber file, and where
    │   └── MultipleErrors
    ├── VectorError             CALIBER_VECTOR
    │   └── DimensionMismatch, InvalidVector
    ├── AgentError              CALIBER_AGENT
    │   ├── NotRegistered, LockExpired
    │   ├── LockAcquisitionFailed
    │   ├── MessageDeliveryFailed, MailboxFull, DelegationFailed, HandoffFailed
    │   └── PermissionDenied
    └── InternalError           CALIBER_INTERNAL   a fault of ours: please report it

Every error carries its fields in ``context``, is picklable, and never contains content, keys or
connection strings. A driver's own error stays as ``__cause__``.

Source: C-058 to C-093, design sections 10 and 11.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

_MESSAGE_CHARS: Final = 500
"""The longest part of a message that is logged."""


class CaliberError(Exception):
    """Root of every error that CALIBER raises on purpose."""

    family: ClassVar[str] = "CALIBER_INTERNAL"
    template: ClassVar[str] = ""
    default_retryable: ClassVar[bool] = False
    hint: ClassVar[str] = ""

    def __init__(self, message: str | None = None, /, *, retryable: bool | None = None, **context: Any) -> None:
        self.context: dict[str, Any] = context
        self.retryable: bool = self.default_retryable if retryable is None else retryable
        self.message: str = _printable(message if message is not None else self._render())
        super().__init__(self.message)

    @property
    def code(self) -> str:
        """The stable family code, such as ``CALIBER_STORAGE``."""
        return self.family

    @property
    def kind(self) -> str:
        """The stable name of this error inside its family, such as ``not_found``."""
        out = []
        for index, char in enumerate(type(self).__name__.rstrip("_")):
            if char.isupper() and index:
                out.append("_")
            out.append(char.lower())
        return "".join(out)

    def _render(self) -> str:
        text = self.template.format_map(_Missing(self.context)) if self.template else type(self).__name__
        return f"{text}. {self.hint}" if self.hint else text

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are not set: the fields of this kind of error.
        context = self.__dict__.get("context")
        if context is not None and name in context:
            return context[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.retryable, self.context, getattr(self, "__notes__", [])))


def error_fields(error: BaseException) -> dict[str, str]:
    """Return the kind of an error of any type, and how its message begins, as the payload of an event has them."""
    kind = error.kind if isinstance(error, CaliberError) else type(error).__name__
    return {"error": kind, "message": _printable(str(error)[:_MESSAGE_CHARS])}


def in_a_line(error: BaseException) -> str:
    """Return the kind and the beginning of the message of an error of any type, as a row has them."""
    return ": ".join(error_fields(error).values())


def _printable(text: str) -> str:
    """Return a message as every terminal and log takes it: it may quote a name that is no text."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


class _Missing(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def _rebuild(
    cls: type[CaliberError], message: str, retryable: bool, context: dict[str, Any], notes: list[str]
) -> CaliberError:
    error = cls(message, retryable=retryable, **context)
    for note in notes:
        error.add_note(note)
    return error


class InternalError(CaliberError):
    """A fault of CALIBER's own; never the caller's."""


# --- storage ---------------------------------------------------------------------------------


class StorageError(CaliberError):
    """Something is wrong with, or in, the durable store."""

    family = "CALIBER_STORAGE"


class NotFound(StorageError):
    """The record does not exist, or the acting principal may not see it."""

    template = "{entity_type} {id} was not found"


class InsertFailed(StorageError):
    template = "{entity_type} could not be inserted: {reason}"


class TransactionFailed(StorageError):
    template = "the transaction failed: {reason}"


class Conflict(StorageError):
    """Another writer was first, or an idempotency key came again with other content."""

    template = "{entity_type} {id}: {reason}"


class SchemaMismatch(StorageError):
    """The file or schema is not a CALIBER store, or belongs to another version."""

    template = "{store}: {reason}"


class Unavailable(StorageError):
    """The store cannot serve this call now: locked, full, read-only, closed, forked, timed out."""

    template = "the store is unavailable ({reason})"
    default_retryable = True


# --- language models and embeddings ------------------------------------------------------------


class LlmError(CaliberError):
    """A provider of embeddings or summaries failed."""

    family = "CALIBER_LLM"


class ProviderNotConfigured(LlmError):
    template = "no {capability} provider is configured"


class RequestFailed(LlmError):
    template = "{provider} answered {status}: {message}"
    default_retryable = True


class AuthenticationFailed(LlmError):
    """The provider refused the key, or wants one; asking again with it changes nothing."""

    template = "{provider} answered {status}: {message}"


class RateLimited(LlmError):
    template = "{provider} asks to wait {retry_after_ms} ms"
    default_retryable = True


class InvalidResponse(LlmError):
    template = "{provider} sent an answer that cannot be used: {reason}"


class EmbeddingFailed(LlmError):
    template = "embedding failed: {reason}"


class SummarizationFailed(LlmError):
    template = "summarizing failed: {reason}"


# --- validation --------------------------------------------------------------------------------


class ValidationError(CaliberError):
    """A value or a state breaks a rule of the model."""

    family = "CALIBER_VALIDATION"


class InputError(ValidationError):
    """An argument of the call is wrong; nothing was written."""


class RequiredFieldMissing(InputError):
    template = "{field} is required"


class InvalidValue(InputError):
    template = "{field}: {reason}"


class ShapeError(InputError):
    template = "{field}: expected shape {expected}, got {got}"


class DTypeError(InputError):
    template = "{field}: expected {expected}, got {got}"


class NonFiniteError(InputError):
    template = "{field} contains NaN or infinity"


class InvalidRow(InputError):
    """One row of many is wrong: its number, counted from 0, and its column; nothing of the others was kept."""

    template = "row {row}, {field}: {reason}"


class AmbiguousSubject(ValidationError):
    """A name of the subject also names others, or could; nothing was erased."""

    template = "the subject is ambiguous: {reason}"


class ConstraintViolation(ValidationError):
    template = "{constraint}: {reason}"


class CircularReference(ValidationError):
    template = "{entity_type} refers to itself through {ids}"


class StaleData(ValidationError):
    template = "{entity_type} {id} is stale ({age})"


class Contradiction(ValidationError):
    template = "{artifact_a} contradicts {artifact_b}"


class InvalidStateTransition(ValidationError):
    template = "{entity_type} cannot go from {from_state} to {to_state}"


class NoCheckpointAvailable(ValidationError):
    template = "trajectory {trajectory_id} has no checkpoint to recover from"


class BudgetTooSmall(ValidationError):
    template = "max_tokens={max_tokens} cannot hold anything: the smallest possible window needs {needed}"


# --- configuration -----------------------------------------------------------------------------


class ConfigError(CaliberError):
    """The configuration is missing something, or contradicts itself."""

    family = "CALIBER_CONFIG"


class MissingRequired(ConfigError):
    template = "{field} is required"


class InvalidConfigValue(ConfigError):
    template = "{field} = {value}: {reason}"


class IncompatibleOptions(ConfigError):
    template = "{option_a} and {option_b} do not go together: {reason}"


class ProviderNotSupported(ConfigError):
    template = "{provider} is not supported"


class ExtraNotInstalled(ConfigError):
    """A feature needs an optional dependency that is not installed."""

    template = "{feature} needs the extra '{extra}': pip install 'caliber-memory[{extra}]'"


class ProgramFault(ConfigError):
    """A fault in a ``.caliber`` file: its position, the line, the expected tokens, and a suggestion.

    Fields: file, line, column (from 1), reason, expected, suggestion, excerpt.
    """

    def _render(self) -> str:
        text = "{file}:{line}:{column}: error: {reason}".format_map(_Missing(self.context))
        suggestion, expected = self.context.get("suggestion"), self.context.get("expected")
        if suggestion:
            text += f"; did you mean `{suggestion}`?"
        elif expected:
            text += f"; expected {one_of(expected)}"
        excerpt = self.context.get("excerpt")
        return f"{text}\n{excerpt}" if excerpt else text


class MultipleErrors(ConfigError):
    """All faults of a configuration at once, each a ``ConfigError`` in ``errors``."""

    def __init__(
        self, message: str | None = None, /, *, retryable: bool | None = None, errors: list[ConfigError], **context: Any
    ) -> None:
        super().__init__(message, retryable=retryable, errors=errors, **context)

    def _render(self) -> str:
        errors: list[ConfigError] = self.context["errors"]
        lines = [f"{len(errors)} fault{'s' if len(errors) != 1 else ''} in the configuration:"]
        lines.extend("  - " + str(error).replace("\n", "\n    ") for error in errors)
        if any(lacks_a_base(error) for error in errors):
            lines.append(BASE_HINT)
        return "\n".join(lines)


BASE_HINT = (
    'a file that states only some knobs needs a profile for the others: begin it with base = "reference" (in a '
    '.caliber file: config { base: "reference" }); `caliber init --from FILE` writes all of them out'
)


def lacks_a_base(fault: ConfigError) -> bool:
    """Return whether a fault is one that a profile as a base would mend: a whole section, or a knob of none."""
    return isinstance(fault, MissingRequired) and "." not in str(fault.context.get("field", "."))


def one_of(names: tuple[str, ...]) -> str:
    """Return alternatives as a sentence names them: ``a, b or c``."""
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names)


# --- vectors -----------------------------------------------------------------------------------


class VectorError(CaliberError):
    """A vector does not fit the space it is used in."""

    family = "CALIBER_VECTOR"


class DimensionMismatch(VectorError):
    template = "expected {expected} dimensions, got {got}"


class InvalidVector(VectorError):
    template = "not a usable vector: {reason}"


# --- agents ------------------------------------------------------------------------------------


class AgentError(CaliberError):
    """Something between agents went wrong: locks, messages, permissions."""

    family = "CALIBER_AGENT"


class NotRegistered(AgentError):
    template = "agent {agent_id} is not registered"


class LockAcquisitionFailed(AgentError):
    template = "{resource} is locked by another holder"
    default_retryable = True


class LockExpired(AgentError):
    template = "lock on {resource} has expired or was taken over"


class MessageDeliveryFailed(AgentError):
    template = "message {message_id}: {reason}"


class MailboxFull(MessageDeliveryFailed):
    template = "the receiver has {pending} pending messages, as many as it may have; send again once it has read some"
    default_retryable = True


class DelegationFailed(AgentError):
    template = "delegation failed: {reason}"


class HandoffFailed(AgentError):
    template = "handoff failed: {reason}"


class PermissionDenied(AgentError):
    template = "{agent_id} may not {action} {resource}"
