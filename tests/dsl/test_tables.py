"""The parser's tables that ship with the package are those of the grammar, and are used for nothing else."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import lark
import pytest
from support.dsl.parser_tables import assert_said_alike

from caliber.dsl import parse, parser, tables
from caliber.model.errors import MultipleErrors

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = 'caliber: "0.1.0" { inject note into context { mode: full filter: a = 1 and (b > 2 or c contains "d") } }'


def _cut_short(name: str) -> None:
    file = tables.file(name)
    file.write_text(file.read_text("utf-8")[:-100], encoding="utf-8")


def _of_another_lark(name: str) -> None:
    file = tables.file(name)
    data = json.loads(file.read_text("utf-8"))
    data["origin"]["lark"] += ".post1"
    file.write_text(json.dumps(data), encoding="utf-8")


def _other_data(name: str) -> None:
    tables.file(name).write_text("[1, 2]", encoding="utf-8")


def _missing(name: str) -> None:
    tables.file(name).unlink()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The grammar and its tables in a folder of their own, where a test may change them."""
    for path in (tables.GRAMMAR, *map(tables.file, tables.STARTS)):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(tables, "GRAMMAR", tmp_path / tables.GRAMMAR.name)
    parser.lark_parser.cache_clear()
    yield tmp_path
    parser.lark_parser.cache_clear()


def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return where the names of parsers will be noted whose tables are made."""
    names: list[str] = []
    build = tables.build

    def noting(name: str, *rest: object) -> lark.Lark:
        names.append(name)
        return build(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(tables, "build", noting)
    return names


def test_shipped_tables_are_those_of_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import gen_tables

    try:
        stale = [path.name for path, text in gen_tables.generated().items() if path.read_text("utf-8") != text]
    finally:
        del sys.modules["gen_tables"]
    assert stale == [], "run make gen"


def test_nothing_is_made_where_tables_are_shipped(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = made(monkeypatch)
    assert parse(PROGRAM)
    with pytest.raises(MultipleErrors):
        parse(PROGRAM.replace("mode:", "mode"))
    assert names == []


@pytest.mark.parametrize("damage", [_cut_short, _of_another_lark, _other_data, _missing])
def test_tables_are_made_where_none_were_shipped_for_this_lark(
    damage: Callable[[str], None], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meant = parse(PROGRAM)
    parser.lark_parser.cache_clear()
    damage("program")
    names = made(monkeypatch)
    assert parse(PROGRAM) == meant
    assert names == ["program"]


def test_tables_of_another_version_of_lark_are_not_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = made(monkeypatch)
    monkeypatch.setattr(lark, "__version__", "99.0")
    assert parse(PROGRAM)
    with pytest.raises(MultipleErrors, match=r"expected \., : or {"):
        parse(PROGRAM.replace("mode:", "mode"))
    assert names == ["program", "pieces"]


def test_tables_of_another_grammar_are_not_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = made(monkeypatch)
    text = tables.GRAMMAR.read_text("utf-8")
    tables.GRAMMAR.write_text(text.replace('INTO: "into"', 'INTO: "onto"'), encoding="utf-8")
    assert parse(PROGRAM.replace("into", "onto"))
    with pytest.raises(MultipleErrors, match="did you mean `onto`"):
        parse(PROGRAM)
    assert names == ["program", "pieces"]


@pytest.mark.parametrize(("name", "token"), [("program", "INTO"), ("program", "AND"), ("pieces", "COLON")])
def test_a_fault_planted_in_the_tables_is_noticed(name: str, token: str, here: Path) -> None:
    file = tables.file(name)
    data = json.loads(file.read_text("utf-8"))
    table = data["data"]["parser"]["parser"]
    number = next(at for at, known in table["tokens"].items() if known == token)
    for actions in table["states"].values():
        actions.pop(number, None)
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(AssertionError):
        assert_said_alike(PROGRAM.replace("full", "= 7") if name == "pieces" else PROGRAM)
