"""The house of design section 2: who may import whom, and which room is the door for which package.

Every import in ``caliber/`` is read from the syntax tree: at the top of a module, inside functions, under
``TYPE_CHECKING``, relative ones, and names of our modules in text (``importlib.import_module("caliber.…")``).
Typing is no excuse: a room that needs the type of a lower room declares a Protocol. ``caliber/__init__.py`` is the
only file that names rooms for type checkers alone, and it is the bottom row anyway.

``planted`` breaches of each kind prove that the checker sees them.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "caliber"

ROWS: tuple[tuple[str, ...], ...] = (
    ("model",),
    ("kernels", "schema"),
    ("config",),
    ("dsl", "text"),
    ("storage",),
    ("dump",),
    ("backends",),
    ("resident", "events", "blobs", "llm"),
    ("engine",),
    ("jobs",),
    ("access", "embedding"),
    ("search",),
    ("trajectory", "knowledge", "memories", "lineage", "decisions", "episodes", "workspace"),
    ("context",),
    ("explain",),
    ("pcp", "evolution", "learning", "blocks"),
    ("agents",),
    ("erasure",),
    ("retention",),
    ("policies",),
    ("tenancy", "admin"),
    ("api",),
    ("integrations", "importing", "aio"),
    ("cli",),
    ("__init__", "__main__"),
)
DATABASES = ("sqlite", "postgres")
ROW_OF = {room: number for number, row in enumerate(ROWS) for room in row}

FROM_KERNELS_ON = frozenset(room for row in ROWS[1:] for room in row)
DOORS: dict[str, frozenset[str]] = {"numpy": FROM_KERNELS_ON} | {
    package: frozenset({room})
    for room, packages in {
        "kernels": "cffi _cffi_backend numba llvmlite re2 tokenizers quicktok tiktoken",
        "config": "pydantic pydantic_core annotated_types cronsim",
        "dsl": "lark",
        "storage": "pyarrow",
        "backends/sqlite": "apsw",
        "backends/postgres": "psycopg psycopg_pool pgvector",
        "blobs": "zstandard blake3",
        "llm": "httpcore certifi onnxruntime safetensors wordllama",
        "text": "Stemmer dateutil",
        "lineage": "msgpack",
        "blocks": "loro",
        "cli": "click typer rich",
        "integrations": "opentelemetry",
    }.items()
    for package in packages.split()
}
"""Which room may import what is not the standard library; what is not listed has no door yet."""

_MODULE_NAME = re.compile(r"caliber(\.[A-Za-z_][A-Za-z0-9_]*)+\Z")


@dataclass(frozen=True)
class Found:
    """One import: the module named, and the line."""

    module: str
    line: int


def room_of(module: str) -> str:
    """Return the room of a module of ours, with the database for backends: ``backends/sqlite``."""
    parts = module.split(".")
    if len(parts) == 1:
        return "__init__"
    if parts[1] == "_native":
        return "kernels"
    if parts[1] == "backends" and len(parts) > 2 and parts[2] in DATABASES:
        return f"backends/{parts[2]}"
    return parts[1] if parts[1] in ROW_OF else "__init__"


def module_of(path: Path, package: Path) -> str:
    """Return the dotted name of a file under ``package``."""
    parts = ["caliber", *path.relative_to(package).with_suffix("").parts]
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


@functools.cache
def imports_of(source: str, module: str, *, is_package: bool) -> tuple[Found, ...]:
    """Return everything a module imports or names for importing."""
    return tuple(_imports(source, module, is_package=is_package))


def _imports(source: str, module: str, *, is_package: bool) -> Iterator[Found]:
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Found(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            if base == "caliber" or base.startswith("caliber."):
                # The name may be a module of that package, or something in it.
                for alias in node.names:
                    yield Found(f"{base}.{alias.name}", node.lineno)
            else:
                yield Found(base, node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE_NAME.match(node.value):
            yield Found(node.value, node.lineno)


def breaches(package: Path = PACKAGE) -> list[str]:
    """Return every breach of the house's rules under ``package``."""
    out = []
    for path in sorted(package.rglob("*.py")):
        module = module_of(path, package)
        is_package = path.name == "__init__.py"
        own = room_of(module)
        own_row = ROW_OF.get(own.split("/")[0], len(ROWS) - 1)
        top = module.split(".")[1] if "." in module else "__init__"
        if top not in ROW_OF:
            out.append(f"{module}: there is no room {top} in the design")
            continue
        for found in imports_of(path.read_text(encoding="utf-8"), module, is_package=is_package):
            where = f"{module}:{found.line}"
            if found.module == "caliber" or found.module.startswith("caliber."):
                if found.module.startswith("caliber._native") and own != "kernels":
                    out.append(f"{where} imports the native module: its door is kernels")
                    continue
                other = room_of(found.module)
                other_row = ROW_OF[other.split("/")[0]]
                if _same_room(own, other):
                    continue
                if other.startswith("backends/") and own != "backends":
                    out.append(f"{where} imports {found.module}: a database is reached through caliber.backends only")
                elif other_row == own_row:
                    out.append(f"{where} imports {found.module}: {other} is of its own row")
                elif other_row > own_row:
                    out.append(f"{where} imports {found.module}: {other} is below {own}")
            else:
                package_name = found.module.split(".")[0]
                if package_name in sys.stdlib_module_names:
                    continue
                doors = DOORS.get(package_name, frozenset())
                if own not in doors:
                    through = ", ".join(sorted(doors)) or "no room yet"
                    out.append(f"{where} imports {package_name}: its door is {through}")
    return out


def graph_of(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Return which modules of ours each module imports, whatever their rooms."""
    paths = {module_of(path, package): path for path in package.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        found = imports_of(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
        named = {_nearest(item.module, paths) for item in found if item.module.split(".")[0] == "caliber"}
        graph[module] = named - {module, "caliber"}
    return graph


def _nearest(name: str, modules: Mapping[str, Path]) -> str:
    """Return the module that a name is, or is in."""
    while name not in modules and "." in name:
        name = name.rpartition(".")[0]
    return name


def circles(graph: Mapping[str, set[str]], group: Callable[[str], str]) -> list[str]:
    """Return the circles among groups of modules, each as the names of its groups."""
    arrows: dict[str, set[str]] = {}
    for module, imported in graph.items():
        targets = arrows.setdefault(group(module), set())
        targets |= {group(other) for other in imported} - {group(module)}
    reached = {start: _reached(arrows, start) for start in arrows}
    found = {
        frozenset(other for other in reached[start] if start in reached.get(other, ())) | {start}
        for start in arrows
        if start in reached[start]
    }
    return sorted(" <-> ".join(sorted(circle)) for circle in found)


def _reached(arrows: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    ahead = list(arrows[start])
    while ahead:
        place = ahead.pop()
        if place not in seen:
            seen.add(place)
            ahead += arrows.get(place, ())
    return seen


def folder_of(module: str) -> str:
    """Return the folder of a room that a module is in, with a slash; a module of the room itself stands alone."""
    parts = module.split(".")
    depth = 3 if room_of(module).startswith("backends/") else 2
    return "/".join(parts[1 : depth + 1]) + ("/" if len(parts) > depth + 1 else "")


def folder_circles(package: Path = PACKAGE) -> list[str]:
    """Return the circles that a folder of a room is in, with other folders or with modules beside them."""
    return [circle for circle in circles(graph_of(package), folder_of) if "/ " in f"{circle} "]


def _same_room(own: str, other: str) -> bool:
    if own == other:
        return True
    # The registry of databases names its sub-rooms; a database does not name the registry's other rooms.
    return own == "backends" and other.startswith("backends/")


def test_house_has_no_breach() -> None:
    # design section 2
    assert breaches() == []


def test_no_circle_among_rooms() -> None:
    assert circles(graph_of(), room_of) == []


def test_no_circle_among_modules() -> None:
    assert circles(graph_of(), str) == []


def test_no_circle_among_folders_of_rooms() -> None:
    assert folder_circles() == []


def test_every_room_is_in_the_table() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    rooms |= {path.stem for path in PACKAGE.glob("*.py")}
    assert rooms <= set(ROW_OF)


def test_every_room_is_read() -> None:
    """The checker would be content with an empty folder; it must not have been given one."""
    seen = {room_of(module_of(path, PACKAGE)) for path in PACKAGE.rglob("*.py")}
    assert {"model", "kernels", "schema", "storage", "backends/sqlite", "resident", "engine", "context", "api"} <= seen
    numpy_users = {
        room_of(module_of(path, PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for found in imports_of(path.read_text(encoding="utf-8"), module_of(path, PACKAGE), is_package=False)
        if found.module.split(".")[0] == "numpy"
    }
    assert {"kernels", "resident"} <= numpy_users


PLANTED = {
    "a room below, by from caliber": ("schema/x.py", "from caliber import storage\n", "storage is below schema"),
    "its own row, further down": ("events/x.py", "from caliber.llm import cache\n", "llm is of its own row"),
    "for typing only, in a function": (
        "kernels/x.py",
        "def late():\n    if TYPE_CHECKING:\n        from caliber.config import CaliberConfig\n",
        "config is below kernels",
    ),
    "relative": ("storage/x.py", "from ..engine import engine\n", "engine is below storage"),
    "relative, from a package": ("storage/__init__.py", "from ..engine import engine\n", "engine is below storage"),
    "by importlib": ("storage/x.py", "def late():\n    return importlib.import_module('caliber.engine.engine')\n",
                     "engine is below storage"),
    "the public package": ("trajectory/x.py", "import caliber\n", "__init__ is below trajectory"),
    "a database past the registry": ("api/x.py", "from caliber.backends.sqlite.store import SqliteStore\n",
                                     "reached through caliber.backends only"),
    "a driver in the other database": ("backends/postgres/x.py", "import apsw\n", "its door is backends/sqlite"),
    "the native module": ("search/x.py", "from caliber._native import lib\n", "native module: its door is kernels"),
    "numpy in the model": ("model/x.py", "import numpy as np\n", "numpy: its door is"),
    "a package without a door": ("llm/x.py", "import requests\n", "requests: its door is no room yet"),
    "a room that is not in the table": ("helpers/x.py", "X = 1\n", "there is no room helpers"),
}  # fmt: skip


@pytest.mark.parametrize("kind", PLANTED)
def test_planted_breach_is_caught(kind: str, tmp_path: Path) -> None:
    place, source, expected = PLANTED[kind]
    path = tmp_path / "caliber" / place
    path.parent.mkdir(parents=True)
    path.write_text(source)
    found = breaches(tmp_path / "caliber")
    assert len(found) == 1, found
    assert expected in found[0]


def test_what_is_allowed_is_not_a_breach(tmp_path: Path) -> None:
    sources = {
        "kernels/x.py": "import numpy\nfrom caliber._native import lib\nfrom caliber.model import enums\n",
        "backends/__init__.py": "NAMES = {'sqlite': 'caliber.backends.sqlite'}\n",
        "backends/sqlite/x.py": "import apsw\nfrom caliber.storage.compile.plan import Plan\nfrom .y import z\n",
        "api/x.py": "from caliber.backends import backend\nimport json, numpy.typing\n",
        "__init__.py": "import importlib\nHOME = 'caliber.api.opening'\n",
        "model/x.py": "from caliber.model.time import Clock\nTEXT = 'caliber is not a module here'\n",
    }
    for place, source in sources.items():
        path = tmp_path / "caliber" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert breaches(tmp_path / "caliber") == []


CIRCLES: dict[str, tuple[Callable[[Path], list[str]], dict[str, str], str]] = {
    "three rooms, by other modules of theirs": (
        lambda package: circles(graph_of(package), room_of),
        {"search/a.py": "from caliber.context import b\n", "context/b.py": "X = 1\n",
         "context/c.py": "def late():\n    from caliber.policies.d import X\n    return X\n",
         "policies/d.py": "from ..search import a\n"},
        "context <-> policies <-> search",
    ),
    "two modules": (lambda package: circles(graph_of(package), str),
                    {"storage/x.py": "from caliber.storage import y\n", "storage/y.py": "import caliber.storage.x\n"},
                    "caliber.storage.x <-> caliber.storage.y"),
    "two folders of a room": (
        folder_circles,
        {"storage/bulk/x.py": "from caliber.storage.sql import y\n", "storage/sql/y.py": "X = 1\n",
         "storage/sql/z.py": "from ..bulk.x import X\n"},
        "storage/bulk/ <-> storage/sql/",
    ),
    "a folder and a module beside it": (
        folder_circles,
        {"search/inside/x.py": "from caliber.search.searcher import X\n", "search/inside/y.py": "X = 1\n",
         "search/searcher.py": "from caliber.search.inside.y import X\n"},
        "search/inside/ <-> search/searcher",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CIRCLES)
def test_planted_circle_is_caught(kind: str, tmp_path: Path) -> None:
    look, sources, expected = CIRCLES[kind]
    for place, source in sources.items():
        path = tmp_path / "caliber" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert look(tmp_path / "caliber") == [expected]
