"""Data types of the difference of two windows: changes of sources, edits of the text, the prompt cache."""

from __future__ import annotations

import uuid
from enum import StrEnum

from caliber.model.context import SourceType
from caliber.model.errors import InvalidValue
from caliber.model.lazy_dataclass import dataclass


class ChangeKind(StrEnum):
    """The change of one source between two windows."""

    CAME = "came"
    WENT = "went"
    MOVED = "moved"
    SHORTENED = "shortened"
    LENGTHENED = "lengthened"
    REVISED = "revised"


@dataclass(frozen=True, slots=True)
class SourceChange:
    """One source that is not in both windows at the same place with the same text.

    Units: ``place_before`` and ``place_after`` count the sources of a window in order of reading; None, like the
    section, where the source is not in that window. The reasons are those of the two traces; of a source that was no
    candidate the reason why it was none.
    """

    kinds: tuple[ChangeKind, ...]
    source_type: SourceType
    id: uuid.UUID | None
    label: str
    section_before: str | None
    section_after: str | None
    place_before: int | None
    place_after: int | None
    tokens_before: int
    tokens_after: int
    reason_before: str
    reason_after: str


@dataclass(frozen=True, slots=True)
class TextEdit:
    """One replacement: ``removed`` characters at ``at`` of the text before become ``inserted``."""

    at: int
    removed: int
    inserted: str


@dataclass(frozen=True, slots=True)
class PromptCache:
    """The beginning that two windows have in common, which a provider's prompt cache can keep.

    Units: ``common_tokens`` under the estimator of the window after, ``tokens`` those of its whole text; ``messages``
    the leading messages that are equal. ``broken`` is false where the text before is the beginning of the text after.
    ``section`` and ``cause`` name the first difference; ``change`` is the number in ``changes`` of its source, None
    where no source is behind it.
    """

    broken: bool
    common_bytes: int
    common_tokens: int
    tokens: int
    messages: int
    section: str | None
    cause: str | None
    change: int | None


@dataclass(frozen=True, slots=True)
class WindowDiff:
    """The difference of two persisted windows; ``edits`` make the text of one of that of the other."""

    before: uuid.UUID
    after: uuid.UUID
    same_configuration: bool
    query_before: str | None
    query_after: str | None
    max_tokens_before: int
    max_tokens_after: int
    used_tokens_before: int
    used_tokens_after: int
    changes: tuple[SourceChange, ...]
    edits: tuple[TextEdit, ...]
    cache: PromptCache

    def apply(self, text: str) -> str:
        """Return the text of the window after, from the text of the window before.

        Raises: InvalidValue for a text that is too short to be that of the window before.
        """
        out, done = [], 0
        for edit in self.edits:
            if edit.at + edit.removed > len(text):
                raise InvalidValue(field="text", reason="is not the text of the window before: it is too short")
            out += [text[done : edit.at], edit.inserted]
            done = edit.at + edit.removed
        return "".join([*out, text[done:]])
