"""Checks of a window that a caller passes: every field that a dosage reads has a value of its type.

A window may be built by hand, or come out of another format than ours: the errors name the part that is wrong.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Collection, Sequence
from datetime import date, datetime
from typing import Any, Final

from caliber.model.context import SectionType
from caliber.model.errors import InvalidValue
from caliber.model.windows import AssemblyDecision, ContextSection, Message, SourceRef

SPOKEN_TYPES: Final = (SectionType.USER, SectionType.CURRENT)
_MOST: Final = 2**31 - 1
"""The greatest number that a window holds: tokens, versions, priorities and characters are fewer."""
_FUNCTION: Final = ("name", "arguments")


def not_a_window(reason: str) -> InvalidValue:
    """Return the error of a window whose parts do not belong together."""
    return InvalidValue(field="window", reason=f"{reason}; assemble it again")


def check_sections(window: Any, kinds: Collection[str]) -> None:
    """Refuse a window whose figures, sections or sources no assembly makes; ``kinds`` are the kinds of sources.

    Raises: InvalidValue.
    """
    figures = (window.used_tokens, window.max_tokens, window.stable_prefix_tokens)
    if not all(map(_is_count, figures)) or not window.max_tokens:
        raise not_a_window("has a number of tokens that is none")
    if not _all_are(window.sections, ContextSection):
        raise not_a_window("has sections that are none")
    if window.used_tokens and not window.sections:
        raise not_a_window("has tokens and no sections")
    for section in window.sections:
        _check_section(section, kinds)
    names = [section.name for section in window.sections]
    spoken = [section.section_type for section in window.sections if section.section_type in SPOKEN_TYPES]
    if len(set(names)) < len(names) or len(set(spoken)) < len(spoken):
        raise not_a_window("has a section twice")
    if window.text != "".join(section.content for section in window.sections):
        raise not_a_window("has another text than its sections")


def check_rest(window: Any) -> None:
    """Refuse a window whose messages, decisions or other fields no assembly makes. Raises: InvalidValue."""
    if not isinstance(window.window_id, uuid.UUID):
        raise not_a_window("has no id")
    if not isinstance(window.assembled_at, datetime) or window.assembled_at.tzinfo is None:
        raise not_a_window("was assembled at no instant")
    if not _all_are(window.messages, Message) or not all(map(_is_message, window.messages)):
        raise not_a_window("has a message without a role, a text or the parts of a call")
    if not _all_are(window.assembly_trace, AssemblyDecision) or not all(map(_is_decision, window.assembly_trace)):
        raise not_a_window("has a decision about no source")


def _check_section(section: Any, kinds: Collection[str]) -> None:
    if not _is_text(section.name) or not isinstance(section.section_type, SectionType):
        raise not_a_window("has a section without a name or a type")
    named = f"({section.name})"
    if not _is_text(section.content):
        raise not_a_window(f"has a section without a valid Unicode text {named}")
    if not _is_count(section.token_count) or not _is_int(section.priority) or type(section.compressible) is not bool:
        raise not_a_window(f"has a section without its tokens, priority or compressible {named}")
    if not _all_are(section.sources, SourceRef) or not section.sources:
        raise not_a_window(f"has a section without sources {named}")
    for ref in section.sources:
        if not isinstance(ref.source_type, str) or ref.source_type not in kinds:
            raise not_a_window(f"has a source of an unknown kind {named}")
        if not _is_span(ref.span, len(section.content)):
            raise not_a_window(f"has a source outside of its section {named}")
        if not _is_key(ref.id) or not _is_count(ref.version) or not _is_count(ref.tokens) or not _is_score(ref):
            raise not_a_window(f"has a source without its id, version, tokens or relevance {named}")
        if ref.day is not None and not isinstance(ref.day, date):
            raise not_a_window(f"has a source with a day that is none {named}")


def _all_are(values: Any, kind: type) -> bool:
    is_sequence = isinstance(values, Sequence) and not isinstance(values, str)
    return is_sequence and all(isinstance(each, kind) for each in values)


def _is_int(value: Any) -> bool:
    return type(value) is int and -_MOST <= value <= _MOST


def _is_count(value: Any) -> bool:
    return _is_int(value) and value >= 0


def _is_key(value: Any) -> bool:
    return value is None or isinstance(value, uuid.UUID)


def _is_score(ref: Any) -> bool:
    return isinstance(ref.relevance, int | float) and math.isfinite(ref.relevance) and abs(ref.relevance) < _MOST


def _is_span(value: Any, length: int) -> bool:
    if not isinstance(value, tuple | list) or len(value) != 2 or not all(map(_is_count, value)):
        return False
    return bool(value[0] < value[1] <= length)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value))


def _is_message(message: Any) -> bool:
    named = all(each is None or _is_text(each) for each in (message.name, message.tool_call_id))
    calls = message.tool_calls
    return (
        named
        and _is_text(message.role)
        and _is_text(message.content)
        and _all_are(calls, dict)
        and all(map(_is_call, calls))
        and _all_are(message.thinking, dict)
        and all(_is_text(each.get("type")) and _is_text(each.get("thinking", "")) for each in message.thinking)
        and isinstance(message.is_error, bool)
    )


def _is_call(call: dict[str, Any]) -> bool:
    function = call.get("function")
    return (
        _is_text(call.get("id"))
        and isinstance(function, dict)
        and all(_is_text(function.get(each)) for each in _FUNCTION)
    )


def _is_decision(decision: Any) -> bool:
    named = isinstance(decision.source_type, str) and isinstance(decision.section, str)
    return named and _is_key(decision.target_id) and _is_int(decision.rank)
