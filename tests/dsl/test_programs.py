"""Generated programs that compile, in every form; and the same programs broken in every way people break them.

Issue of the language, "Done when": 500 round-trip, 500 broken ones are told what is wrong and where.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import evidence
from support.configs import config
from support.dsl.broken_programs import WAYS, Broken
from support.dsl.parser_tables import assert_said_alike
from support.dsl.sound_programs import SoundProgram, laid_out, sound_program

from caliber.config import CaliberConfig
from caliber.config.manual.render import render_json, render_toml
from caliber.config.parsing import parse_json, parse_toml
from caliber.dsl import compile_text, format_text, load_config, parse
from caliber.dsl.writing import render_caliber
from caliber.model.errors import MultipleErrors, ProgramFault

BASE = config("store.db")
SOUND, SPLIT, BROKEN_EACH_WAY = evidence.scale(8, 500), evidence.scale(3, 100), evidence.scale(4, 63)


@pytest.fixture(scope="module")
def figures() -> Iterator[dict[str, Any]]:
    """The totals of the run; recorded once all is done."""
    seen: dict[str, Any] = {"seed": evidence.seed()}
    started = time.monotonic()
    yield seen
    title = "Programs of the language: in every form the same, and broken ones told what is wrong"
    evidence.record("language", title, {**seen, "seconds": round(time.monotonic() - started)})


def made(number: int) -> SoundProgram:
    return sound_program(evidence.seed() * 10_000 + number, BASE)


def test_sound_programs_say_the_same_in_every_form(figures: dict[str, Any]) -> None:
    # C-186, C-173: laid out, printed from what was compiled, as TOML, as JSON
    definitions: Counter[str] = Counter()
    for number in range(SOUND):
        program = made(number)
        definitions.update(part.kind for part in program.parts)
        text = program.text()
        laid_out = format_text(text)
        assert parse(laid_out) == parse(text)
        assert format_text(laid_out) == laid_out
        meant = compile_text(text, base=BASE)
        assert compile_text(laid_out, base=BASE) == meant
        printed = render_caliber(meant)
        assert format_text(printed) == printed
        for again in (
            compile_text(printed),
            CaliberConfig.from_mapping(parse_toml(render_toml(meant))),
            CaliberConfig.from_mapping(parse_json(render_json(meant))),
        ):
            assert again == meant
            assert again.hash == meant.hash
    figures["sound programs, the same laid out, printed anew, as TOML and as JSON"] = SOUND
    figures["definitions in them"] = ", ".join(f"{count} {kind}" for kind, count in sorted(definitions.items()))


def test_a_program_in_several_files_is_the_same(tmp_path: Path, figures: dict[str, Any]) -> None:
    for number in range(SPLIT):
        program = made(number)
        chance = random.Random(number)
        folder = tmp_path / str(number)
        (folder / "below").mkdir(parents=True)
        (folder / "whole.caliber").write_text(program.text())
        lines = ['caliber: "0.1.0" {']
        for at, part in enumerate(program.parts):
            name = f"{chance.choice(['', 'below/'])}{at}.caliber"
            body = laid_out(part.pieces, chance)
            (folder / name).write_text(f'caliber: "0.1.0" {{\n{body}\n}}')
            lines.append(f'include "{name}"')
        (folder / "split.caliber").write_text("\n".join([*lines, "}"]))
        split, whole = (load_config(folder / f"{name}.caliber", base=BASE) for name in ("split", "whole"))
        assert split == whole
    figures["sound programs, the same over several files"] = SPLIT


def test_broken_programs_are_told_what_and_where(figures: dict[str, Any]) -> None:
    # C-172
    for way, breaking in WAYS.items():
        told: Counter[str] = Counter()
        number = 0
        while told["programs"] < BROKEN_EACH_WAY:
            assert number < 3 * BROKEN_EACH_WAY + 10, "what is broken so stays sound too often"
            broken = breaking(made(number), random.Random(number))
            faults = faults_of(broken.text)
            number += 1
            if not faults:
                told["still sound"] += 1  # such as an option of a provider, which may be called anything
                continue
            told["programs"] += 1
            told["faults"] += len(faults)
            told["suggestions"] += sum("did you mean" in str(fault) for fault in faults)
            for fault in faults:
                assert_located(fault, broken.text)
            assert_suggested(broken, faults)
        figures[f"{way}: programs, faults, suggestions, drawn again as they stayed sound"] = (
            f"{told['programs']}, {told['faults']}, {told['suggestions']}, {told['still sound']}"
        )
    figures["broken programs"] = BROKEN_EACH_WAY * len(WAYS)


def test_shipped_tables_and_those_made_here_say_the_same(figures: dict[str, Any]) -> None:
    # decision 0145: every text that one takes, refuses or finds at fault, the other does, with the same places
    told: Counter[bool] = Counter()
    for number in range(SOUND):
        program = made(number)
        told[assert_said_alike(program.text())] += 1
        for breaking in WAYS.values():
            told[assert_said_alike(breaking(program, random.Random(number)).text)] += 1
    assert min(told[True], told[False]) >= SOUND
    figures["read alike with shipped tables and with those made anew: programs, and what is none"] = (
        f"{told[True]}, {told[False]}"
    )


def faults_of(text: str) -> list[Any]:
    try:
        compile_text(text, name="broken.caliber", base=BASE)
    except MultipleErrors as error:
        return error.errors
    return []


def assert_located(fault: Any, text: str) -> None:
    """Each fault has its line, its column, the line itself and a caret under it."""
    assert isinstance(fault, ProgramFault), f"{fault}\n{text}"
    lines = text.split("\n")
    assert 1 <= fault.line <= len(lines)
    line = lines[fault.line - 1]
    assert 1 <= fault.column <= len(line) + 1
    assert str(fault).startswith(f"broken.caliber:{fault.line}:{fault.column}: error: ")
    shown, carets = (part[2:] for part in fault.excerpt.split("\n"))
    at = carets.index("^")
    assert set(carets.strip()) == {"^"}
    if "<redacted>" not in shown:  # an address may hold a secret, and what it is told as is longer or shorter
        assert line.replace("\t", " ").rstrip()[fault.column - 1 - at :].startswith(shown.rstrip())


def assert_suggested(broken: Broken, faults: list[Any]) -> None:
    """A misspelt word's error suggests the right one."""
    if broken.meant:
        said = [str(fault).split("\n")[0] for fault in faults]
        assert any(f"did you mean `{broken.meant}" in text or broken.meant in text for text in said), said
