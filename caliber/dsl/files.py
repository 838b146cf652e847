"""Loader of ``.caliber`` programs, from a text or from a file with its includes, compiled together.

Source: issue of the language; design section 8.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from caliber.config.loading import PROGRAM_SUFFIX, anchor, read_file
from caliber.config.memories import PACKAGED, packaged_names
from caliber.config.tree import CaliberConfig
from caliber.dsl import ast
from caliber.dsl.checking import Checked
from caliber.dsl.compiler import Part, compile_parts, in_order
from caliber.dsl.parser import read
from caliber.dsl.scan import FAULTS_MAX, MAX_CHARS
from caliber.dsl.source import Source
from caliber.model.errors import ConfigError, MultipleErrors, ProgramFault

FILES_MAX: Final = 256
OURS: Final = "caliber:"
"""The beginning of an included name that is no file's: of declarations that come with CALIBER."""


def load_program(file: Path, *, base: CaliberConfig | str | None = None) -> Checked:
    """Return the configuration in a ``.caliber`` file and those it includes; see ``caliber.dsl.check``."""
    parts, faults = read_parts(file)
    if faults:
        # Parts that parse are compiled too, so that one run reports all faults.
        try:
            compile_parts(parts, base=base)
        except MultipleErrors as error:
            faults.extend(_new(error, faults))
        raise MultipleErrors(errors=in_order(faults, [part.source.name for part in parts])[:FAULTS_MAX])
    return compile_parts(parts, base=base, finish=lambda data: anchor(data, file.absolute().parent))


def compile_text(text: str, *, name: str = "<text>", base: CaliberConfig | str | None = None) -> CaliberConfig:
    """Return the configuration of a program; ``check_text`` also returns its warnings.

    ``base`` is a configuration that supplies omitted settings, or the name of a profile.
    """
    return check_text(text, name=name, base=base).config


def check_text(text: str, *, name: str = "<text>", base: CaliberConfig | str | None = None) -> Checked:
    """Return the configuration of a program and its warnings; as ``compile_text`` otherwise."""
    parsed = read(text, name=name)
    included = [item.span for item in parsed.program.items if isinstance(item, ast.Include)]
    faults: list[ConfigError] = list(parsed.faults)
    faults.extend(parsed.source.fault(span, "only files can include others") for span in included[:FAULTS_MAX])
    checked: Checked | None = None
    try:
        checked = compile_parts([Part(parsed.program, parsed.source)], base=base)
    except MultipleErrors as error:
        faults.extend(_new(error, faults))
    if faults or checked is None:
        raise MultipleErrors(errors=in_order(faults, [name])[:FAULTS_MAX])
    return checked


def _new(error: MultipleErrors, faults: list[ConfigError]) -> list[ConfigError]:
    """Return the faults that are not those of a place that has one, nor perhaps only there because of one."""
    if not faults:
        return list(error.errors)
    reported = {(item.file, item.line, item.column) for item in faults if isinstance(item, ProgramFault)}
    found = [item for item in error.errors if isinstance(item, ProgramFault)]
    return [item for item in found if (item.file, item.line, item.column) not in reported]


def read_parts(file: Path) -> tuple[list[Part], list[ConfigError]]:
    """Return a file and all it includes, each once, in the order of their text, and the faults of their form.

    Raises: MultipleErrors when the file itself cannot be read.
    """
    reading = _Reading(file.absolute().parent.resolve())
    reading.file(file, str(file))
    return reading.parts, reading.faults


class _Reading:
    """Reads files, and those they include, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.parts: list[Part] = []
        self.faults: list[ConfigError] = []
        self._folder = folder
        self._chars = 0
        self._open: list[Path] = []
        self._seen: set[Path] = set()

    def file(self, file: Path, name: str) -> None:
        resolved = file.resolve()
        parsed = read(read_file(file), name=name)
        self._chars += len(parsed.source.text)
        self.faults.extend(parsed.faults)
        self._seen.add(resolved)
        self._open.append(resolved)
        for item in parsed.program.items:
            if isinstance(item, ast.Include) and len(self.faults) < FAULTS_MAX:
                self._include(parsed.source, item, file.parent)
        self._open.pop()
        self.parts.append(Part(parsed.program, parsed.source))

    def _include(self, source: Source, item: ast.Include, folder: Path) -> None:
        name, included = item.path.value.removeprefix(OURS), Path(item.path.value)
        file, is_ours = folder / included, name != item.path.value
        reason = ""
        if is_ours:
            file = PACKAGED / f"{name}{PROGRAM_SUFFIX}"
            if name not in (names := packaged_names()):
                reason = f"no such declarations come with CALIBER; there are {', '.join(names)}"
            elif file.resolve() in self._seen:
                return
        elif included.is_absolute() or not file.resolve().is_relative_to(self._folder):
            reason = "an included file lies in the folder of the first file or below it"
        elif included.suffix.lower() != PROGRAM_SUFFIX:
            reason = f"an included file ends in {PROGRAM_SUFFIX}"
        elif file.resolve() in self._open:
            reason = "this file includes itself, perhaps through another"
        elif len(self._seen) >= FILES_MAX or self._chars > MAX_CHARS:
            reason = f"a program is at most {FILES_MAX} files and {MAX_CHARS} characters"
        elif file.resolve() in self._seen:
            return  # two files may include the same third: it counts once
        if reason:
            self.faults.append(source.fault(item.path.span, reason))
            return
        try:
            self.file(file, item.path.value if is_ours else os.path.relpath(file, self._folder))
        except MultipleErrors as error:
            for fault in error.errors:
                said = fault.context.get("reason", fault.message)
                self.faults.append(source.fault(item.path.span, f"this file cannot be included: {said}"))
