"""Faults of a program: all of them in one run, each with line, column, the line itself and a caret."""

from __future__ import annotations

import pytest
from support.cli_runs import caliber

from caliber.dsl import ast, format_text, parse, read
from caliber.model.errors import MultipleErrors, ProgramFault

BROKEN = """caliber: "0.1.0" {
  adapter primary {
    type sqlite
    connection: "postgres://me:hunter2@db/x" 5
  }
  polcy nightly {
    on task_end: [notify("done")]
  }
  memory note {
    retention: 5x
    lifecycle: explicit
    parent: Note
    index: { a: btree, b: hash, }
  }
  inject note into context {
    mode: top_k(10
    priority: 90
  }
}
"""


def faults_of(text: str) -> list[ProgramFault]:
    with pytest.raises(MultipleErrors) as caught:
        parse(text, name="agent.caliber")
    return [fault for fault in caught.value.errors if isinstance(fault, ProgramFault)]


def test_all_faults_of_a_file_are_found_in_one_run() -> None:
    # C-172, C-122
    found = faults_of(BROKEN)
    assert [(fault.line, fault.column) for fault in found] == [
        (3, 10), (4, 46), (6, 3), (10, 16), (12, 13), (13, 33), (17, 5), (18, 3),
    ]  # fmt: skip
    assert found[2].suggestion == "policy"
    assert "units are ms, s, m, h, d, w" in found[3].reason
    assert "lower-case" in found[4].reason
    assert found[6].expected == ("a comparison", ")", ",") or ")" in found[6].expected
    assert "expected ) for the ( of line 16" in found[7].reason


def test_a_fault_shows_its_line_with_a_caret() -> None:
    (fault,) = faults_of('caliber: "0.1.0" {\n  memory note {\n    type = meta\n  }\n}')
    assert str(fault) == (
        "agent.caliber:3:10: error: = is not expected here; expected ., : or {\n      type = meta\n           ^"
    )


def test_what_parses_of_a_broken_file_is_kept() -> None:
    parsed = read(BROKEN)
    kinds = [
        (item.kind, item.name.text, item.whole)
        for item in parsed.program.items
        if isinstance(item, ast.Definition) and item.name
    ]
    assert kinds == [("adapter", "primary", False), ("memory", "note", False), ("inject", "note", False)]
    note = next(parsed.program.definitions("memory"))
    assert [entry.key.text for entry in note.entries if isinstance(entry, ast.Setting)] == ["lifecycle", "parent"]


def named(program: ast.Program) -> list[str]:
    return [item.name.text for item in program.items if isinstance(item, ast.Definition) and item.name is not None]


def test_credentials_are_never_repeated() -> None:
    # K-072
    with pytest.raises(MultipleErrors) as caught:
        parse(BROKEN)
    assert "hunter2" not in str(caught.value)
    (fault,) = faults_of('caliber: "0.1.0" { provider p { api_key: "sk-123456" 7 } }')
    assert "sk-123456" not in str(fault)


@pytest.mark.parametrize(("text", "reason"), [
    ("", "a program begins with"),
    ("memory note {}", "a program begins with"),
    ('caliber: "0.1.0" { memory a { type: meta }', "this { is not closed"),
    ('caliber: "0.1.0" { memory a { type: "meta } }', "this text is not closed"),
    ('caliber: "0.1.0" { /* memory a { type: meta } }', "this comment is not closed"),
    ('caliber: "0.1.0" { } }', "this } has no opening bracket"),
    ('caliber: "0.1.0" { } memory a { }', "memory is not expected here: the program ends before it"),
    ("caliber: \"0.1.0\" { memory a { type: 'meta' } }", "texts stand in double quotes"),
    ('caliber: "0.1.0" { memory a { b: "\\q" } }', "\\q is not an escape"),
    ('caliber: "0.1.0" { memory a { b: 99999999999999999999d } }', "longer than 2^63"),
    ('caliber: "0.1.0" { memory a { b: ' + "(" * 40 + " } }", "nested more than 32 deep"),
    ('caliber: "0.1.0" { memory a { b: \0 } }', "zero character"),
    ('caliber: "0.1.0" { memory a { b: "\ud800" } }', "not valid Unicode"),
    ('caliber: "0.1.0" { memory a { retention: 5 m } }', "5 m"),
])  # fmt: skip
def test_each_kind_of_broken_text_is_named(text: str, reason: str) -> None:
    found = faults_of(text)
    if reason == "5 m":  # C-169: a unit touches its number, so `m` here is something else
        assert [(fault.line, fault.column) for fault in found] == [(1, 44)]
    else:
        assert any(reason in fault.reason for fault in found), [str(fault) for fault in found]


@pytest.mark.parametrize("text", [None, b"caliber", 3, "x" * (4 * 2**20 + 1)], ids=["none", "bytes", "number", "long"])
def test_what_is_no_program_at_all_is_refused(text: object) -> None:
    with pytest.raises(MultipleErrors, match="is not a program"):
        parse(text)  # type: ignore[arg-type]


def test_keywords_are_names_where_names_stand() -> None:
    # C-166, K-061
    program = parse(
        'caliber: "0.1.0" { memory memory { on_: 1 type: policy } inject inject into into { mode: config } }'
    )
    assert [item.name.text for item in program.items if isinstance(item, ast.Definition) and item.name] == [
        "memory",
        "inject",
    ]


@pytest.mark.parametrize("value", ['"text"', "1", "5d", "word", "a.b", "f(x)", "[1]", "{ a: 1 }", "a = 1", "(a)"])
def test_keywords_are_keys_behind_any_value(value: str) -> None:
    program = parse(f'caliber: "0.1.0" {{ config {{ a: {value} include: 1 memory {{ }} inject.config: 2 }} }}')
    (definition,) = program.definitions("config")
    assert [entry.key.text for entry in definition.entries if not isinstance(entry, ast.Rule)] == [
        "a", "include", "memory", "inject.config",
    ]  # fmt: skip


def test_and_binds_tighter_than_or() -> None:
    # C-161, K-056
    program = parse('caliber: "0.1.0" { inject a into b { filter: a = 1 or b = 2 and (c = 3 or d ~ "x") } }')
    (setting,) = next(program.definitions("inject")).settings("filter")
    assert isinstance(setting.value, ast.Joined)
    assert setting.value.operator == "or"
    both = setting.value.conditions[1]
    assert isinstance(both, ast.Joined)
    assert both.operator == "and"
    assert isinstance(both.conditions[1], ast.Joined)


def test_one_layout() -> None:
    text = """
// first
caliber:"0.1.0"{ // beside
memory note{type:semantic schema:{id:uuid,text:text}
/* before */ retention:persistent


index:{id:btree}  // why
}
policy p { on task_end:[summarize(scope),notify("a \\"b\\"")] }
}
// last"""
    assert format_text(text) == (
        '// first\ncaliber: "0.1.0" { // beside\n  memory note {\n    type: semantic\n    schema: {\n      id: uuid,\n'
        "      text: text\n    }\n    /* before */\n    retention: persistent\n\n    index: { id: btree } // why\n"
        '  }\n\n  policy p {\n    on task_end: [summarize(scope), notify("a \\"b\\"")]\n  }\n}\n// last\n'
    )


def test_fmt_rewrites_files_and_leaves_broken_ones(tmp_path) -> None:  # type: ignore[no-untyped-def]
    good, bad = tmp_path / "good.caliber", tmp_path / "bad.caliber"
    good.write_text('caliber: "0.1.0" {memory a{type:meta}}')
    bad.write_text(BROKEN)
    checked = caliber("fmt", "--check", str(good), code=1)
    assert "would change" in checked.stdout
    failed = caliber("fmt", str(good), str(bad), code=2)
    assert "polcy" in failed.stderr
    assert bad.read_text() == BROKEN
    assert good.read_text() == 'caliber: "0.1.0" {\n  memory a {\n    type: meta\n  }\n}\n'
    caliber("fmt", "--check", str(good))
