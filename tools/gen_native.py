"""Generate csrc/ffi/native.cdef.txt and csrc/ffi/_native.c from csrc/include/caliber.h.

Usage: python tools/gen_native.py [--check]

With --check nothing is written; the exit code is 1 if a committed file differs from what would be.
The generated C depends on cffi's version, which the dependency group "dev" pins for that reason.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path

import cffi

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "csrc" / "include" / "caliber.h"
SOURCE = ROOT / "csrc" / "ffi" / "native.csrc.c"
CDEF = ROOT / "csrc" / "ffi" / "native.cdef.txt"
GENERATED = ROOT / "csrc" / "ffi" / "_native.c"
MODULE = "caliber._native"


def declarations(header: str) -> str:
    """Return the text between the cdef marks without comments and blank lines."""
    begin, end = "/* cdef begin */", "/* cdef end */"
    if header.count(begin) != 1 or header.count(end) != 1:
        raise SystemExit(f"{HEADER.name} must contain {begin!r} and {end!r} exactly once each")
    body = header[header.index(begin) + len(begin) : header.index(end)]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    lines = (line.rstrip() for line in body.splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def generated(cdef: str) -> str:
    """Return the C source of the extension module."""
    ffi = cffi.FFI()
    ffi.cdef(cdef)
    ffi.set_source(MODULE, SOURCE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "_native.c"
        with contextlib.redirect_stdout(io.StringIO()):  # cffi announces the temporary file
            ffi.emit_c_code(str(target))
        return target.read_text(encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a committed file is out of date")
    check = parser.parse_args().check

    cdef = declarations(HEADER.read_text(encoding="utf-8"))
    stale = []
    for path, text in ((CDEF, cdef), (GENERATED, generated(cdef))):
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.relative_to(ROOT))
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"out of date: {', '.join(map(str, stale))}; run 'make gen' (cffi {cffi.__version__} here)")
        return 1
    print("up to date" if not stale else f"wrote {', '.join(map(str, stale))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
