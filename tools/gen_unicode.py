"""Generate caliber/kernels/tokens/unicode_extend.py: code points that belong to the character before them.

Usage: python tools/gen_unicode.py [--check]

The Unicode version is that of the running Python. The file is only ever moved forward: an older Python than the one
it was made with leaves it alone, so that cuts of recorded windows stay where they are.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "caliber" / "kernels" / "tokens" / "unicode_extend.py"
JOINERS = range(0x200C, 0x200E)  # zero width non-joiner and joiner
SKIN_TONES = range(0x1F3FB, 0x1F400)
TAGS = range(0xE0020, 0xE0080)  # of subdivision flags
SURROGATES = range(0xD800, 0xE000)


def extends(code: int) -> bool:
    """Tell whether a code point continues a grapheme cluster: Extend or SpacingMark of UAX 29, nearly."""
    if code in SURROGATES:
        return False
    if code in JOINERS or code in SKIN_TONES or code in TAGS:
        return True
    return unicodedata.category(chr(code)) in {"Mn", "Me", "Mc"}


def ranges() -> list[tuple[int, int]]:
    """Return the code points as inclusive ranges."""
    found: list[tuple[int, int]] = []
    for code in filter(extends, range(sys.maxunicode + 1)):
        if found and found[-1][1] == code - 1:
            found[-1] = (found[-1][0], code)
        else:
            found.append((code, code))
    return found


def table(name: str, values: list[int]) -> str:
    """Return a tuple of hexadecimal numbers, twelve a line."""
    lines = [f"{name}: tuple[int, ...] = ("]
    rows = (values[start : start + 12] for start in range(0, len(values), 12))
    lines.extend("    " + " ".join(f"0x{value:X}," for value in row) for row in rows)
    return "\n".join([*lines, ")"])


def render() -> str:
    """Return the module's text."""
    found = ranges()
    return (
        '"""Generated Unicode table of code points that extend the character before them, as inclusive ranges.\n\n'
        "Made by tools/gen_unicode.py; not edited by hand.\n"
        '"""\n\n'
        "# fmt: off\n"
        f'UNICODE_VERSION = "{unicodedata.unidata_version}"\n'
        f"{table('STARTS', [start for start, _ in found])}\n"
        f"{table('ENDS', [end for _, end in found])}\n"
    )


def version(text: str) -> tuple[int, ...]:
    """Return the Unicode version a text names, or () if it names none."""
    found = re.search(r'UNICODE_VERSION = "([\d.]+)"', text)
    return tuple(map(int, found.group(1).split("."))) if found else ()


def main() -> int:
    current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    made = render()
    if version(made) < version(current):
        print(f"{TARGET.name}: made with a newer Unicode than this Python's {unicodedata.unidata_version}, left alone")
        return 0
    if "--check" in sys.argv[1:]:
        if version(made) == version(current) and made != current:
            print(f"{TARGET.name} was edited by hand; run tools/gen_unicode.py")
            return 1
        return 0
    TARGET.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
