"""Texts that token estimators are fitted to and measured on: many kinds, the same on every run.

Everything is on the machine already: the sources and documentation of Python's standard library, JSON and logs made
from its data, the Universal Declaration of Human Rights in twenty languages and short texts of our own (corpus/).
Nothing is random but what a fixed seed draws. Other versions of Python have other sources, so a fit names its version.
"""

from __future__ import annotations

import ast
import base64
import difflib
import functools
import hashlib
import http
import inspect
import json
import random
import sysconfig
import textwrap
import unicodedata
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from html import entities
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "corpus"
STDLIB = Path(sysconfig.get_path("stdlib"))
HEADERS = Path(sysconfig.get_path("include"))
SEED = 20240611
LARGEST = 6_000  # characters of a document
SHORT = (90, 320)  # characters of a span, the size of a note or a turn
KINDS = ("english", "code", "json", "cjk", "latin", "scripts", "mixed")
CJK = ("zh", "zh-hans", "zh-hant", "ja", "ko")
LATIN = ("de", "es", "fr", "it", "pl", "pt", "tr", "vi")


@dataclass(frozen=True)
class Document:
    """One text. ``held_out`` documents are never fitted to."""

    kind: str
    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """Return whether the document is only measured: one in three, by its name, parts of a whole together."""
        return hashlib.sha256(self.name.partition("#")[0].encode()).digest()[0] % 3 == 0


def documents(*, docstrings: bool = True) -> list[Document]:
    """Return all documents, in a fixed order.

    Without ``docstrings``, which take a second to parse, those made of them are left out; every kind has others.
    """
    out: list[Document] = []
    for source in (_topics, _docstrings, _modules, _other_code, _json, _declarations, _own, _records, _chats, _emoji):
        if docstrings or source not in (_docstrings, _chats):
            out += source()
    return [document for document in out if len(document.text.encode()) > 200]


def spans(chosen: list[Document]) -> list[Document]:
    """Return short pieces of documents, cut at white space where there is some: what notes and turns look like."""
    drawn = random.Random(SEED)
    out = []
    for document in chosen:
        text = document.text
        for number in range(1 + min(5, len(text) // 1_000)):
            size = drawn.randint(*SHORT)
            if document.kind == "cjk":
                size //= 2
            start = drawn.randrange(max(1, len(text) - size))
            if start:
                space = text.find(" ", start, start + 40)
                start = space + 1 if space >= 0 else start
            piece = text[start : start + size].strip()
            if piece:
                out.append(Document(document.kind, f"{document.name}#{number}", piece))
    return out


def _chunks(text: str, size: int = LARGEST) -> Iterator[str]:
    """Cut a text at line ends into pieces of about ``size`` characters."""
    piece: list[str] = []
    length = 0
    for line in text.splitlines(keepends=True):
        piece.append(line)
        length += len(line)
        if length >= size:
            yield "".join(piece)
            piece, length = [], 0
    if piece:
        yield "".join(piece)


# --- English ------------------------------------------------------------------------------------


def _topics() -> list[Document]:
    from pydoc_data.topics import topics

    return [Document("english", f"topic/{name}", text[:LARGEST]) for name, text in sorted(topics.items())]


@functools.cache
def _sources() -> list[Path]:
    """Return every third module of the standard library itself; tests and generated tables are left out."""
    folders = [folder for folder in STDLIB.iterdir() if folder.is_dir() and folder.name != "site-packages"]
    found = sorted(
        path
        for path in [*STDLIB.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]
        if not {"test", "tests", "site-packages", "pydoc_data", "lib2to3", "encodings", "idlelib", "idle_test"}
        & set(path.relative_to(STDLIB).parts)
    )
    return [path for path in found if path.stat().st_size > 2_000][::2]


@functools.cache
def _docstrings() -> list[Document]:
    out = []
    for path in _sources():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kept = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        said = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kept)]
        text = "\n\n".join(inspect.cleandoc(item) for item in said if len(item) > 40)
        if len(text) > 800:
            out.append(Document("english", f"doc/{path.relative_to(STDLIB).as_posix()}", text[:LARGEST]))
    return out


# --- code ---------------------------------------------------------------------------------------


@functools.cache
def _modules() -> list[Document]:
    out = []
    for path in _sources():
        name = path.relative_to(STDLIB).as_posix()
        pieces = list(_chunks(path.read_text(encoding="utf-8")))
        middle = len(pieces) // 2
        out.append(Document("code", f"py/{name}#{middle}", pieces[middle]))
    return out


def _other_code() -> list[Document]:
    headers = sorted(HEADERS.rglob("*.h"))[::3]
    out = [Document("code", f"c/{path.name}", path.read_text(encoding="utf-8")[:LARGEST]) for path in headers]
    scripts = sorted((STDLIB / "venv" / "scripts").rglob("*"))
    for path in [*scripts, STDLIB / "idlelib" / "help.html", *sorted((STDLIB / "turtledemo").glob("*.py"))]:
        if path.is_file():
            for number, piece in enumerate(_chunks(path.read_text(encoding="utf-8"))):
                out.append(Document("code", f"script/{path.name}#{number}", piece))
    return out


# --- JSON ---------------------------------------------------------------------------------------


def _tree(node: ast.AST, depth: int = 0) -> Any:
    if depth > 6:
        return type(node).__name__
    out: dict[str, Any] = {"type": type(node).__name__}
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            out[name] = _tree(value, depth + 1)
        elif isinstance(value, list):
            out[name] = [_tree(item, depth + 1) if isinstance(item, ast.AST) else repr(item) for item in value[:6]]
        elif value is None or isinstance(value, str | int | float | bool):
            out[name] = value
        else:
            out[name] = repr(value)
    return out


def _day(drawn: random.Random) -> str:
    return f"2025-{drawn.randint(1, 12):02}-{drawn.randint(1, 28):02}"


def _calls(drawn: random.Random) -> list[dict[str, Any]]:
    """Return tool calls and results as agents exchange them."""
    verbs = ("get", "list", "create", "update", "search", "delete", "run", "read", "write")
    things = ("customer", "invoice", "file", "ticket", "note", "calendar_event", "message", "order", "repository")
    words = (
        "the",
        "a",
        "of",
        "order",
        "payment",
        "failed",
        "please",
        "check",
        "status",
        "user",
        "report",
        "due",
        "next",
    )
    out = []
    for _ in range(drawn.randint(4, 14)):
        arguments: dict[str, Any] = {
            "id": str(uuid.UUID(int=drawn.getrandbits(128), version=4)),
            "limit": drawn.choice((5, 10, 20, 100)),
            "query": " ".join(drawn.choices(words, k=drawn.randint(2, 8))),
            "createdAt": f"{_day(drawn)}T{drawn.randint(0, 23):02}:05:09.318Z",
            "amount": round(drawn.uniform(1, 5_000), 2),
            "active": drawn.random() < 0.5,
            "tags": drawn.choices(things, k=drawn.randint(0, 4)),
            "parentId": None,
        }
        chosen = dict(drawn.sample(sorted(arguments.items()), drawn.randint(2, 7)))
        out.append({"role": "tool", "name": f"{drawn.choice(verbs)}_{drawn.choice(things)}", "arguments": chosen})
    return out


@functools.cache
def _json() -> list[Document]:
    drawn = random.Random(SEED)
    found: list[tuple[str, Any]] = []
    statuses = [{"code": s.value, "name": s.name, "phrase": s.phrase, "detail": s.description} for s in http.HTTPStatus]
    found.append(("http", statuses))
    names = sorted(entities.html5.items())
    found += [(f"entities/{start}", dict(names[start : start + 120])) for start in range(0, len(names), 450)]
    for start in range(0x21, 0x3000, 700):
        rows = [
            {
                "code": f"U+{code:04X}",
                "name": unicodedata.name(chr(code), ""),
                "category": unicodedata.category(chr(code)),
            }
            for code in range(start, start + 60)
        ]
        found.append((f"unicode/{start}", rows))
    for path in _sources()[::6]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found.append((f"tree/{path.stem}", [_tree(node) for node in tree.body[:8]]))
        members = [
            {
                "name": node.name,
                "line": node.lineno,
                "doc": ast.get_docstring(node),
                "args": [a.arg for a in node.args.args],
            }
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
        ]
        found.append((f"members/{path.stem}", members[:40]))
    found += [(f"calls/{number}", _calls(drawn)) for number in range(60)]
    for number in range(20):
        rows = [
            [drawn.randint(0, 10 ** drawn.randint(1, 9)), round(drawn.gauss(0, 50), 4), drawn.random()]
            for _ in range(60)
        ]
        found.append((f"numbers/{number}", {"columns": ["count", "mean", "share"], "rows": rows}))
    out = []
    for name, value in found:
        style: dict[str, Any] = drawn.choice(
            ({"indent": 2}, {"indent": 4}, {}, {"separators": (",", ":")}, {"ensure_ascii": False})
        )
        out.append(Document("json", f"json/{name}", json.dumps(value, **style)[:LARGEST]))
    return out


# --- other languages ----------------------------------------------------------------------------


def _kind(language: str) -> str:
    if language in CJK:
        return "cjk"
    return "english" if language == "en" else "latin" if language in LATIN else "scripts"


_FULL_WIDTH = str.maketrans(",;:()?!", "，；：（）？！")


@functools.cache
def _declarations() -> list[Document]:
    out = []
    for path in sorted((HERE / "udhr").glob("*.txt")):
        articles = path.read_text(encoding="utf-8").split("\n\n")
        for start in range(0, len(articles), 2):
            text = "\n\n".join(articles[start : start + 2])
            # The Chinese texts are typed with ASCII punctuation; what people write has full-width signs.
            text = text.translate(_FULL_WIDTH) if path.stem.startswith("zh") and start % 3 else text
            out.append(Document(_kind(path.stem), f"udhr/{path.stem}/{start}", text))
    return out


def _own() -> list[Document]:
    out = []
    for path in sorted((HERE / "own").glob("*.txt")):
        for number, text in enumerate(path.read_text(encoding="utf-8").split("\n---\n")):
            out.append(Document(_kind(path.stem), f"own/{path.stem}/{number}", text))
    return out


# --- mixed --------------------------------------------------------------------------------------


def _log(drawn: random.Random, count: int) -> str:
    levels = ("INFO", "WARNING", "ERROR", "DEBUG")
    parts = ("http.server", "store", "worker-3", "scheduler", "auth", "cache")
    said = (
        "request finished status=200 duration_ms={n}",
        "connection from 10.0.{n}.17:{m} closed",
        "retrying in {n} ms (attempt 2 of 5)",
        "could not open /var/lib/app/data-{n}.db: permission denied",
        "job {u} took {n} ms",
        "cache miss for key user:{n}:profile",
    )
    lines = []
    for _ in range(count):
        text = drawn.choice(said).format(
            n=drawn.randint(1, 999), m=drawn.randint(1024, 65535), u=uuid.UUID(int=drawn.getrandbits(128), version=4)
        )
        at = f"{_day(drawn)} {drawn.randint(0, 23):02}:17:{drawn.randint(0, 59):02},{drawn.randint(0, 999):03}"
        lines.append(f"{at} {drawn.choice(levels):7} {drawn.choice(parts)}: {text}")
    return "\n".join(lines)


def _table(drawn: random.Random, count: int) -> str:
    if drawn.random() < 0.5:
        rows = [
            f"{drawn.randint(1, 99999)},{drawn.uniform(0, 100):.3f},{drawn.choice(('yes', 'no'))},{_day(drawn)}"
            for _ in range(count)
        ]
        return "\n".join(["id,score,active,day", *rows])
    rows = [f"| item {number} | {drawn.randint(1, 500)} | {drawn.uniform(0, 9):.2f} |" for number in range(count)]
    return "\n".join(["| name | count | mean |", "|---|---|---|", *rows])


def _records() -> list[Document]:
    """Logs, tables, diffs, digests, encoded bytes: what tools answer."""
    drawn = random.Random(SEED + 1)
    out = [Document("mixed", f"log/{number}", _log(drawn, drawn.randint(8, 40))) for number in range(40)]
    out += [Document("mixed", f"table/{number}", _table(drawn, drawn.randint(15, 60))) for number in range(20)]
    for number in range(15):
        lines = [
            f"{drawn.randbytes(drawn.choice((16, 20, 32))).hex()}  src/module_{line}/file{line}.py"
            for line in range(25)
        ]
        out.append(Document("mixed", f"digests/{number}", "\n".join(lines)))
        raw = base64.b64encode(drawn.randbytes(drawn.randint(300, 1_200))).decode()
        body = "\n".join(textwrap.wrap(raw, 64)) if number % 2 else raw
        out.append(
            Document("mixed", f"base64/{number}", f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----")
        )
    for path in _sources()[::8]:
        lines = path.read_text(encoding="utf-8").splitlines()[:400]
        changed = [line.replace("self", "this") if drawn.random() < 0.05 else line for line in lines]
        text = "\n".join(difflib.unified_diff(lines, changed, f"a/{path.name}", f"b/{path.name}", lineterm=""))
        out.append(Document("mixed", f"diff/{path.name}", text[:LARGEST]))
    return out


def _chats() -> list[Document]:
    """Conversations that change between prose, code, JSON, other languages and emoji."""
    drawn = random.Random(SEED + 2)
    parts: dict[str, list[str]] = {}
    for document in [*_topics(), *_docstrings(), *_modules(), *_json(), *_declarations(), *_own()]:
        parts.setdefault(f"{document.kind}/{document.held_out}", []).append(document.text)
    faces = [chr(code) for code in range(0x1F600, 0x1F640)] + ["✅", "⚠️", "❌", "→", "•", "👍🏽", "🇩🇪", "👩‍💻"]
    out = []
    for number in range(160):
        name = f"chat/{number}"
        # A conversation takes its parts from documents on its own side of the split.
        side = Document("mixed", name, "").held_out
        said = []
        for turn in range(drawn.randint(3, 9)):
            kind = drawn.choice(("english", "english", "english", "code", "json", "cjk", "latin", "scripts"))
            text = drawn.choice(parts[f"{kind}/{side}"])
            start = drawn.randrange(max(1, len(text) - 300))
            piece = text[start : start + drawn.randint(60, 700)].strip()
            if kind in ("code", "json"):
                piece = f"```{'python' if kind == 'code' else 'json'}\n{piece}\n```"
            face = " " + "".join(drawn.choices(faces, k=drawn.randint(1, 3))) if drawn.random() < 0.3 else ""
            said.append(f"{'user' if turn % 2 == 0 else 'assistant'}: {piece}{face}")
        out.append(Document("mixed", name, "\n\n".join(said)))
    return out


def _emoji() -> list[Document]:
    drawn = random.Random(SEED + 3)
    known = [chr(code) for code in (*range(0x1F300, 0x1F650), *range(0x1F680, 0x1F6C0), *range(0x2600, 0x27C0))]
    common = [*"😀😂😊👍🙏🎉🔥✨✅❌⚠💡🚀📝🤔👀💯"]
    out = []
    for number in range(12):
        lines = []
        for _ in range(30):
            icon = drawn.choice(common if drawn.random() < 0.7 else known)
            name = unicodedata.name(icon, "SIGN").lower()
            lines.append(f"{icon} {name}" + drawn.choice(("", " " + drawn.choice(common) * 2, "!")))
        out.append(Document("mixed", f"emoji/{number}", "\n".join(lines)))
    return out
