"""Sound programs, each broken in one way that people break them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from support.dsl.sound_programs import (
    BRACKET,
    CHOICE,
    COLUMN,
    DURATION,
    KEY,
    KIND,
    NUMBER,
    REFERENCE,
    TEXT,
    Part,
    Piece,
    SoundProgram,
)

_OTHER: Final = {NUMBER: '"many"', TEXT: "7", DURATION: '"soon"', CHOICE: "7"}


class Broken(NamedTuple):
    """A text, and the word that was meant where one was misspelt."""

    text: str
    meant: str = ""


def misspelt(word: str, chance: random.Random) -> str:
    """Return a word with two letters swapped or one left out."""
    at = chance.randrange(1, len(word) - 1)
    swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return swapped if swapped != word and chance.random() < 0.5 else word[:at] + word[at + 1 :]


def _at(program: SoundProgram, chance: random.Random, *roles: str, letters: int = 0) -> int:
    found = [at for at, piece in enumerate(program.pieces) if (not roles or piece.role in roles)]
    found = [at for at in found if len(program.pieces[at].text) >= letters]
    return chance.choice(found) if found else -1


def _with(program: SoundProgram, at: int, *instead: Piece) -> str:
    pieces = program.pieces
    return program.text([*pieces[:at], *instead, *pieces[at + 1 :]])


def dropped(program: SoundProgram, chance: random.Random) -> Broken:
    """Return a program without one of its tokens."""
    return Broken(_with(program, _at(program, chance)))


def doubled(program: SoundProgram, chance: random.Random) -> Broken:
    """Return a program with one of its tokens twice."""
    at = _at(program, chance)
    return Broken(_with(program, at, program.pieces[at], program.pieces[at]))


def keyword(program: SoundProgram, chance: random.Random) -> Broken:
    """Return a program with a misspelt word of the language."""
    return _misspelt(program, chance, KIND, KEY, CHOICE)


def dangling(program: SoundProgram, chance: random.Random) -> Broken:
    """Return a program in which a name is that of nothing."""
    return _misspelt(program, chance, REFERENCE, COLUMN)


def _misspelt(program: SoundProgram, chance: random.Random, *roles: str) -> Broken:
    at = _at(program, chance, *roles, letters=4)
    if at < 0:
        return Broken(program.text())
    piece = program.pieces[at]
    before, _, last = piece.text.rpartition(".")
    word = misspelt(last, chance)
    return Broken(_with(program, at, Piece(f"{before}.{word}" if before else word, piece.role)), last)


def wrong_type(program: SoundProgram, chance: random.Random) -> Broken:
    """Return a program with a value of another type."""
    at = _at(program, chance, *_OTHER)
    return Broken(_with(program, at, Piece(_OTHER[program.pieces[at].role])))


def bracket(program: SoundProgram, chance: random.Random) -> Broken:
    """Return a program with another bracket in the place of one."""
    at = _at(program, chance, BRACKET)
    return Broken(_with(program, at, Piece(chance.choice("{}[]()".replace(program.pieces[at].text, "")))))


def unknown_field(program: SoundProgram, chance: random.Random) -> Broken:
    """Return a program with a setting that there is none of."""
    at = chance.choice([at for at, piece in enumerate(program.pieces) if piece.text == "{" and at > 3] or [3])
    return Broken(_with(program, at, Piece("{"), Piece("zzqx"), Piece(":"), Piece("1")))


def duplicate(program: SoundProgram, chance: random.Random) -> Broken:
    """Return a program with one of its definitions twice."""
    again: Sequence[Part] = [part for part in program.parts if part.kind != "inject"]
    part = chance.choice(again)
    return Broken(SoundProgram((*program.parts, part), program.seed).text())


WAYS: Final[dict[str, Callable[[SoundProgram, random.Random], Broken]]] = {
    "a token dropped": dropped,
    "a token doubled": doubled,
    "a keyword misspelt": keyword,
    "a value of another type": wrong_type,
    "a bracket of another kind": bracket,
    "an unknown field": unknown_field,
    "a definition twice": duplicate,
    "a name of nothing": dangling,
}
