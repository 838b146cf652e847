"""The source of the package: names of classes, private attributes, files opened by path."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import caliber

PACKAGE = Path(caliber.__file__).parent


def classes(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the name of each class that modules define, those of nested classes and stubs too."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name


def public() -> set[str]:
    """Return names of ``caliber``, of data types, of facets, and of what the calls of facets take and return."""
    stub = PACKAGE / "api" / "asynchronous.pyi"  # generated from the signatures of all that is public
    imports = (
        node for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    )
    names = {alias.name for node in imports for alias in node.names if (node.module or "").startswith("caliber.")}
    facets = {name.removeprefix("Async") for name in classes([stub])}
    return {*caliber.__all__, *names, *facets, *classes((PACKAGE / "model").rglob("*.py"))}


def test_a_public_class_shares_its_name_with_no_other() -> None:
    found = Counter(classes(PACKAGE.rglob("*.py")))
    names = public()
    assert {"Disagreement", "Todos", "ContextWindow", "Caliber"} <= names
    assert [name for name in sorted(names) if found[name] > 1] == []


def test_a_second_class_of_a_name_is_counted(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / f"{name}.py").write_text("class Todo:\n    class Part: ...\n\nclass _Todo: ...\n")
    assert Counter(classes(tmp_path.glob("*.py"))) == {"Todo": 2, "Part": 2}


# --- private attributes ----------------------------------------------------------------------------


CLI = Path(__file__).parents[2] / "caliber" / "cli"
OF_TUPLES = frozenset({"_replace", "_asdict", "_fields", "_make"})
"""Names that the standard library gives named tuples."""


def private(source: str) -> Iterator[str]:
    """Yield the private attributes of other objects that a module reads, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own and node.attr not in OF_TUPLES:
                yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", sorted(CLI.rglob("*.py")), ids=lambda path: str(path.relative_to(CLI)))
def test_no_module_reads_a_private_attribute(path: Path) -> None:
    assert list(private(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("breach", [
    "def show(memory):\n    return memory._engine.clock\n",
    "class Watch:\n    def peek(self):\n        return self._memory._searching.locate(1)\n",
    "with opened as memory:\n    memory._reader = None\n",
])  # fmt: skip
def test_a_planted_breach_is_seen(breach: str) -> None:
    assert len(list(private(breach))) == 1


def test_own_attributes_and_those_of_tuples_are_no_breach() -> None:
    assert (
        list(private("class A:\n    def f(self, row):\n        return self._x, row._replace(a=1), row.__class__\n"))
        == []
    )


# --- files opened by path --------------------------------------------------------------------------
# Closing any other descriptor of such a file drops the locks that protect it (caliber/model/process/files.py). A plugin
# watches every test for opens at run time (tests/support/storage/locks_held.py); this finds those that no test makes.


THE_MODULE = "model/process/files.py"
CALLS = re.compile(
    r"(os|io|codecs)\.(open|sendfile)|open|(mmap\.)?mmap|shutil\.(copy\w*|move)|.*\.(read|write)_(bytes|text)"
    r"|(.*\.)?ZipFile|(np|numpy)\.(load|save|fromfile|memmap|tofile)|sqlite3\..*|.*\.from_file|.*\.ParquetFile"
)
_MODE = re.compile(r"[rwax][bt+]*")
OTHERWISE = {
    "cli/failures.py os.open": "the null device",
    "cli/demo/": "files of the demo's own folder",
    "cli/memory/ingest.py listing_files.read_text": "a function of a module that is looked at",
    "config/memories.py": "files of the package",
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


@pytest.mark.parametrize("call", [
    "open(path).close()",
    "os.close(os.open(path, os.O_RDONLY))",
    "path.open('rb')",
    "Path(path).read_bytes()",
    "shutil.copyfile(path, other)",
    "mmap.mmap(-1, 5)",
    "zipfile.ZipFile(path)",
    "sqlite3.connect(path)",
])  # fmt: skip
def test_a_planted_open_is_found(tmp_path: Path, call: str) -> None:
    (tmp_path / "planted.py").write_text(f"def forget(path):\n    {call}\n")
    assert opens(tmp_path)


# --- imports of scripts ----------------------------------------------------------------------------


ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*ROOT.glob("bench/*.py"), *ROOT.glob("bench/retrieval/*.py"), *ROOT.glob("tools/*.py")])
OURS = ("caliber", "retrieval", "support", "contract")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_is_there(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("bench", "tests"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.module or node.module.partition(".")[0] not in OURS:
            continue
        module = importlib.import_module(node.module)
        for name in node.names:
            if not hasattr(module, name.name):
                importlib.import_module(f"{node.module}.{name.name}")
