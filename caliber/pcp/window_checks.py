"""Checks of a window that a caller passes: its sections, sources and text belong together.

A window may be built by hand, or come out of another format than ours.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from caliber.model.context import SectionType
from caliber.model.errors import InvalidValue
from caliber.model.windows import ContextWindow

SPOKEN_TYPES: Final = (SectionType.USER, SectionType.CURRENT)


def not_a_window(reason: str) -> InvalidValue:
    """Return the error of a window whose parts do not belong together."""
    return InvalidValue(field="window", reason=f"{reason}; assemble it again")


def check_sections(window: ContextWindow, kinds: Collection[str]) -> None:
    """Refuse a window whose sections or sources no assembly makes; ``kinds`` are the kinds of sources.

    Raises: InvalidValue.
    """
    if window.used_tokens and not window.sections:
        raise not_a_window("has tokens and no sections")
    for section in window.sections:
        if not section.sources:
            raise not_a_window(f"has a section without sources ({section.name})")
        for ref in section.sources:
            start, end = ref.span
            if ref.source_type not in kinds:
                raise not_a_window(f"has a source of an unknown kind ({section.name})")
            if not 0 <= start < end <= len(section.content):
                raise not_a_window(f"has a source outside of its section ({section.name})")
    names = [section.name for section in window.sections]
    spoken = [section.section_type for section in window.sections if section.section_type in SPOKEN_TYPES]
    if len(set(names)) < len(names) or len(set(spoken)) < len(spoken):
        raise not_a_window("has a section twice")
    if window.text != "".join(section.content for section in window.sections):
        raise not_a_window("has another text than its sections")
