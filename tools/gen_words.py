"""Generate what is a word character: csrc/keyword/unicode_words.h.

Usage: python tools/gen_words.py [--check]

The Unicode version is that of the running Python. As with tools/gen_unicode.py the file is only ever moved forward.
"""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

from gen_unicode import JOINERS, SURROGATES, version

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "csrc" / "keyword" / "unicode_words.h"

NONE, WORD, DENSE = 0, 1, 2
# Scripts written without spaces between words: letters of these are indexed in overlapping pairs.
WITHOUT_SPACES = (
    range(0x0E00, 0x0F00),  # Thai, Lao
    range(0x1000, 0x10A0),  # Myanmar
    range(0x1780, 0x1800),  # Khmer
    range(0x3005, 0x3008),  # ideographic iteration mark, closing mark, zero
    range(0x3040, 0x3100),  # Hiragana, Katakana
    range(0x31F0, 0x3200),  # Katakana extensions
    range(0x3400, 0x4DC0),  # Han, extension A
    range(0x4E00, 0xA000),  # Han
    range(0xF900, 0xFB00),  # Han, compatibility
    range(0xFF66, 0xFFA0),  # Katakana, half width
    range(0x1B000, 0x1B170),  # Kana supplements
    range(0x20000, 0x40000),  # Han, extensions B and on
)
EMOJI = (range(0x2600, 0x27C0), range(0x1F000, 0x1FB00))  # each is a word, found alone and with the next
SELECTORS = range(0xFE00, 0xFE10)  # of emoji or text: no part of a word
BLOCK = 256
LAST = 0x110000


def class_of(code: int) -> int:
    """Return the class of a code point for the scanner."""
    if code in SURROGATES or code in SELECTORS:
        return NONE
    category = unicodedata.category(chr(code))
    if category in ("So", "Sk") and any(code in block for block in EMOJI):
        return DENSE
    if category[0] in "LM" or code in JOINERS:
        return DENSE if any(code in block for block in WITHOUT_SPACES) else WORD
    return WORD if category[0] == "N" or category == "Pc" else NONE


def header(found: list[int]) -> str:
    """Return the C tables: a number of a block for every 256 code points, and two bits a code point in each block."""
    blocks: dict[bytes, int] = {}
    numbers = []
    for start in range(0, LAST, BLOCK):
        packed = bytearray(BLOCK // 4)
        for at, value in enumerate(found[start : start + BLOCK]):
            packed[at // 4] |= value << (at % 4 * 2)
        numbers.append(blocks.setdefault(bytes(packed), len(blocks)))
    if len(blocks) > 256:
        raise SystemExit("more than 256 different blocks: the table needs a wider number")
    lines = [
        "/* What is a word character. Made by tools/gen_words.py; not edited by hand. */",
        "#ifndef CALIBER_UNICODE_WORDS_H",
        "#define CALIBER_UNICODE_WORDS_H",
        "",
        "#include <stdint.h>",
        "",
        f'/* UNICODE_VERSION = "{unicodedata.unidata_version}" */',
        f"static const uint8_t cal_word_blocks[{len(numbers)}] = {{",
    ]
    lines += rows(numbers)
    lines += ["};", f"static const uint8_t cal_word_classes[{len(blocks)}][{BLOCK // 4}] = {{"]
    for packed in blocks:
        lines += ["    {", *("    " + line for line in rows(list(packed))), "    },"]
    lines += ["};", "", "#endif", ""]
    return "\n".join(lines)


def rows(values: list[int]) -> list[str]:
    return ["    " + " ".join(f"{value}," for value in values[at : at + 20]) for at in range(0, len(values), 20)]


def main() -> int:
    made = header([class_of(code) for code in range(LAST)])
    current = HEADER.read_text(encoding="utf-8") if HEADER.exists() else ""
    if version(made) < version(current):
        print(f"{HEADER.name}: made with a newer Unicode than this Python's, left alone")
    elif "--check" not in sys.argv[1:]:
        HEADER.write_text(made, encoding="utf-8")
    elif version(made) == version(current) and made != current:
        print(f"{HEADER.name} was edited by hand; run tools/gen_words.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
