"""Class ``ConfigWarning``: a valid setting that is probably a mistake, with its path or place in the file.

Warnings are values, and nothing prints them by itself: ``caliber check`` shows and ``caliber.dsl.check`` returns them.
"""

from __future__ import annotations

from caliber.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """One doubt. Where it stands: the path of the knob, and for a ``.caliber`` file the line, as faults have it."""

    reason: str
    field: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    excerpt: str = ""

    def __str__(self) -> str:
        if not self.line:
            return f"{self.field}: {self.reason}" if self.field else self.reason
        text = f"{self.file}:{self.line}:{self.column}: warning: {self.reason}"
        return f"{text}\n{self.excerpt}" if self.excerpt else text
