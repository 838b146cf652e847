"""Checked configurations: filters of those from TOML, JSON or Python compiled, all faults collected.

Source: C-122, C-161 to C-165.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from caliber.config.bases import Origin
from caliber.config.faults import ConfigWarning
from caliber.config.rules.declared import warnings_of
from caliber.config.tree import CaliberConfig
from caliber.model.errors import ConfigError, MultipleErrors
from caliber.schema.memory_types import MemoryType


class Checked(NamedTuple):
    """A configuration, the warnings about its file, and the profile that the file is based on, if any."""

    config: CaliberConfig
    warnings: tuple[ConfigWarning, ...]
    origin: Origin | None = None


def check_config(config: CaliberConfig) -> Checked:
    """Return a configuration that was not written in the language, and its warnings.

    Its filters are of the language: they are compiled here. Without any, the parser is not imported.

    Raises: MultipleErrors with a ProgramFault for everything that is wrong in a filter.
    """
    faults: list[ConfigError] = []
    warnings = [ConfigWarning(reason, field) for field, reason in warnings_of(config)]
    for number, text, memory, name in _filters(config):
        from caliber.dsl.filters import compile_condition
        from caliber.dsl.parser import read_condition
        from caliber.dsl.source import Source
        from caliber.schema.binding import binding_of

        source = Source(text, f"injection_rules[{number}].filter")
        try:
            made = compile_condition(source, read_condition(source), binding_of(memory, name))
        except MultipleErrors as error:
            faults.extend(error.errors)
        else:
            faults.extend(made.faults)
            warnings.extend(made.warnings)
    if faults:
        raise MultipleErrors(errors=faults)
    return Checked(config, tuple(warnings))


def _filters(config: CaliberConfig) -> Iterator[tuple[int, str, MemoryType | None, str]]:
    declared = {memory.name: memory.declared for memory in config.memories}
    for number, rule in enumerate(config.injection_rules):
        if rule.filter is not None:
            yield number, rule.filter, declared.get(rule.memory), rule.memory
