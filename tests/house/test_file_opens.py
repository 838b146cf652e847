"""Only one module of the package opens files by path: it refuses those of stores that are open.

Closing any other descriptor of such a file drops the locks that protect it (caliber/model/process/files.py). A plugin
watches every test for opens at run time (tests/support/storage/locks_held.py); this one finds those that no test makes.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import caliber

PACKAGE = Path(caliber.__file__).parent
THE_MODULE = "model/process/files.py"
CALLS = re.compile(
    r"(os|io|codecs)\.(open|sendfile)|open|(mmap\.)?mmap|shutil\.(copy\w*|move)|.*\.(read|write)_(bytes|text)"
    r"|(.*\.)?ZipFile|(np|numpy)\.(load|save|fromfile|memmap|tofile)|sqlite3\..*|.*\.from_file|.*\.ParquetFile"
)
_MODE = re.compile(r"[rwax][bt+]*")
OTHERWISE = {
    "cli/failures.py os.open": "the null device",
    "cli/bench.py": "files of the checkout",
    "cli/demo/": "files of the demo's own folder",
    "cli/memory/ingest.py listing_files.read_text": "a function of a module that is looked at",
    "dsl/tables.py": "files of the package",
    "explain/page/render.py": "files of the package",
    "dump/archive.py zipfile.ZipFile": "over files that the module opened",
    "storage/bulk/parquet.py parquet.ParquetFile": "after the module refused the path",
    "kernels/tokens/tokenizer.py Tokenizer.from_file": "after the module refused the path",
    "llm/local/static.py np.memmap": "a file of an installed package that the module opened before",
}


def opens(root: Path) -> list[str]:
    """Return the calls below ``root`` that open a file by its path, each as ``module call``."""
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_bytes())) if name != THE_MODULE else ():
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                mode = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
                by_mode = called.endswith(".open") and isinstance(mode, str) and _MODE.fullmatch(mode)
                if by_mode or CALLS.fullmatch(called):
                    found.append(f"{name} {called}")
    return found


def test_files_are_opened_in_one_module() -> None:
    found = opens(PACKAGE)
    assert [each for each in found if not each.startswith(tuple(OTHERWISE))] == []
    assert [each for each in OTHERWISE if not any(call.startswith(each) for call in found)] == []


@pytest.mark.parametrize(
    "call",
    [
        "open(path).close()",
        "os.close(os.open(path, os.O_RDONLY))",
        "path.open('rb')",
        "Path(path).read_bytes()",
        "shutil.copyfile(path, other)",
        "mmap.mmap(-1, 5)",
        "zipfile.ZipFile(path)",
        "sqlite3.connect(path)",
    ],
)
def test_a_planted_open_is_found(tmp_path: Path, call: str) -> None:
    (tmp_path / "planted.py").write_text(f"def forget(path):\n    {call}\n")
    assert opens(tmp_path)
