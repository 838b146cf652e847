"""Class ``SourceError``: a source of an import that cannot be read, with a remedy."""

from __future__ import annotations


class SourceError(Exception):
    """A source that cannot be imported: a message, a remedy, and whether the fault is in the call or in the data."""

    def __init__(self, message: str, hint: str, *, in_data: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.in_data = in_data
