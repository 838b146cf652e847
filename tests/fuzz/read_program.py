"""Fuzz target of the language: any text is read, or refused with the fault and its place, and nothing else happens.

What is read is laid out once and for all and says the same; what compiles is printed, and that compiles to the same.
The parser's shipped tables say of a text what tables made here say of it.

A program for atheris: ``python read_program.py [libFuzzer options] [corpus folders]``; ``make fuzz`` runs it.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # before what stands beside this folder is imported
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from caliber.dsl import compile_text, filters, format_text, parse
from caliber.dsl.writing import render_caliber
from caliber.model.errors import ConfigError, MultipleErrors, ProgramFault
from caliber.schema.memories import BUILT_IN

if TYPE_CHECKING:
    from support.dsl.sound_programs import SoundProgram

SECONDS = 10
"""For one text of at most 4 KB: what is looked for takes minutes."""
_OTHERS = (*'{}[]():,"\\', "on", "and", "7", "30d", '"a"', "inject", "zzqx", "-1e9", "//")


@functools.cache
def _base() -> Any:
    from support.configs import config

    return config("store.db")


@functools.cache
def _said_alike() -> Callable[[str], object]:
    from support.dsl.parser_tables import assert_said_alike

    return assert_said_alike


@functools.lru_cache(maxsize=256)
def _sound(seed: int) -> SoundProgram:
    from support.dsl.sound_programs import sound_program

    return sound_program(seed, _base())


def edited(data: bytes) -> str:
    """Return a sound program with tokens dropped, doubled, swapped or put in the place of others, as the bytes say."""
    from support.dsl.sound_programs import Piece

    program = _sound(data[0] if data else 0)
    pieces = program.pieces
    for at in range(1, len(data) - 2, 3):
        place, way = (data[at] << 8 | data[at + 1]) % len(pieces), data[at + 2]
        if way < 64 and len(pieces) > 1:
            del pieces[place]
        elif way < 128:
            pieces.insert(place, pieces[place])
        elif way < 192:
            other = (place + way - 127) % len(pieces)
            pieces[place], pieces[other] = pieces[other], pieces[place]
        else:
            pieces[place] = Piece(_OTHERS[way % len(_OTHERS)])
    return program.text(pieces)


def laid_out(text: str) -> None:
    once = format_text(text)
    assert parse(once) == parse(text)
    assert format_text(once) == once


def compiled(text: str) -> None:
    made = compile_text(text, base=_base())
    printed = render_caliber(made)
    assert compile_text(printed) == made


def filtered(text: str) -> None:
    filters.compile_filter(text, list(BUILT_IN.values())[len(text) % len(BUILT_IN)])


_USES: tuple[Callable[[str], None], ...] = (laid_out, compiled, filtered)


def check(data: bytes) -> None:
    """Assert what the language promises of any text; the first byte says what the others are."""
    kind, rest = (data[0] if data else 0) % 4, data[1:]
    text = edited(rest) if kind == 3 else rest.decode("utf-8", "surrogateescape")
    for use in (laid_out, compiled) if kind == 3 else (_USES[kind],):
        before = time.process_time()
        faults = refusals(use, text)
        assert time.process_time() - before < SECONDS
        for fault in faults:
            assert_told(fault, text)
    _said_alike()(text)


def refusals(use: Callable[[str], None], text: str) -> list[ConfigError]:
    """Return the faults of a text, at least one where it is refused; any other error is a finding."""
    try:
        use(text)
    except MultipleErrors as error:
        return error.errors or [ConfigError("refused without a reason")]
    return []


def assert_told(fault: ConfigError, text: str) -> None:
    """Assert that a fault has its place, its line and a caret; what is missing of a configuration stands nowhere."""
    said = str(fault)
    assert said != "refused without a reason"
    assert 0 < len(said) < 20_000
    if isinstance(fault, ProgramFault):
        assert 1 <= fault.line <= text.count("\n") + 1
        assert fault.column >= 1
        assert "^" in fault.excerpt


def functions(modules: Iterable[types.ModuleType]) -> Iterator[types.FunctionType]:
    """Yield every function and method of modules."""
    for module in modules:
        for value in vars(module).values():
            own = getattr(value, "__module__", "") == module.__name__
            inside = vars(value).values() if own and isinstance(value, type) else (value,) if own else ()
            yield from (item for item in inside if isinstance(item, types.FunctionType))


def main() -> None:
    import atheris

    for module in ("files", "filters", "printer", "writing"):
        importlib.import_module(f"caliber.dsl.{module}")
    watched = ("caliber.dsl", "caliber.config.policies", "caliber.config.rules.declared", "caliber.schema.binding")
    for function in functions([module for name, module in sorted(sys.modules.items()) if name.startswith(watched)]):
        atheris.instrument_func(function)
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
