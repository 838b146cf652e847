"""The TextMate grammar colours programs as the language reads them; a small walk stands in for an editor."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.configs import config
from support.dsl.sound_programs import sound_program

from caliber.config import profiles
from caliber.dsl import format_text, parse, parser
from caliber.dsl.writing import render_caliber

ROOT = Path(__file__).resolve().parent.parent.parent
GRAMMAR: Any = json.loads((ROOT / "docs" / "editor" / "caliber.tmLanguage.json").read_text(encoding="utf-8"))

# The forms of the source's example (C §2.2): adapters, memory types, policies, rules of injection.
EXAMPLE = """caliber: "0.1.0" {

  // === STORAGE ADAPTER ===
  adapter primary {
    type: postgres
    connection: "postgres://localhost:5432/caliber"
    options: {
      "pool_size": 10,
      "hnsw_m": 16
    }
  }
  /* an ephemeral one */
  memory turn_buffer {
    type: ephemeral
    schema: {
      turn_id: uuid,
      role: enum("user", "assistant"),
      note: text
    }
    retention: scope
    lifecycle: auto_close(scope_close)
    index: { scope_id: btree }
  }

  policy scope_management {
    on scope_close: [
      summarize(turn_buffer),
      prune(turn_buffer, older_than(30d))
    ]
    on schedule("0 3 * * *"): [prune(note, below_confidence(0.3))]
  }

  inject note into context {
    mode: relevant
    priority: 70
    filter: confidence > 0.7 and valid_until > now()
  }
}
"""


def _patterns(rule: Any) -> list[Any]:
    out = []
    for item in rule.get("patterns", []):
        if "include" in item:
            inner = GRAMMAR["repository"][item["include"].removeprefix("#")]
            out.extend([inner] if "match" in inner or "begin" in inner else _patterns(inner))
        else:
            out.append(item)
    return out


def tokens(text: str) -> list[tuple[str, str]]:
    """Return the coloured pieces of a text with their scopes, as an editor does: the leftmost match, the first rule."""
    found: list[tuple[str, str]] = []
    rules = [(re.compile(rule.get("match") or rule["begin"]), rule) for rule in _patterns(GRAMMAR)]
    at = 0
    while at < len(text):
        hit = next(((match, rule) for pattern, rule in rules if (match := pattern.match(text, at))), None)
        if hit is None:
            at += 1
            continue
        match, rule = hit
        stop = match.end()
        if "begin" in rule:
            stop = _end(text, stop, rule)
            found.append((text[match.start() : stop], rule["name"]))
        elif "captures" in rule:
            found.extend((match[int(group)], scope["name"]) for group, scope in rule["captures"].items())
        else:
            found.append((match[0], rule["name"]))
        assert stop > at, "a rule matched nothing"
        at = stop
    return found


def _end(text: str, at: int, rule: Any) -> int:
    inner = [re.compile(item["match"]) for item in rule.get("patterns", [])]
    end = re.compile(rule["end"])
    while at < len(text):
        if match := end.match(text, at):
            return match.end()
        skipped = next((match.end() for pattern in inner if (match := pattern.match(text, at))), at + 1)
        at = skipped
    return at


def test_the_example_is_coloured_by_what_its_words_are() -> None:
    found = tokens(EXAMPLE)
    for piece, scope in [
        ("caliber", "keyword.control"),
        ('"0.1.0"', "string.quoted.double"),
        ("// === STORAGE ADAPTER ===", "comment.line.double-slash"),
        ("adapter", "keyword.control"),
        ("primary", "entity.name.type"),
        ("connection", "variable.other.property"),
        ('"postgres://localhost:5432/caliber"', "string.quoted.double"),
        ("10", "constant.numeric"),
        ("/* an ephemeral one */", "comment.block"),
        ("turn_buffer", "entity.name.type"),
        ("ephemeral", "constant.other.word"),
        ("note", "variable.other.property"),
        ("enum", "support.function"),
        ("on", "keyword.control"),
        ("scope_close", "support.function.trigger"),
        ("schedule", "support.function.trigger"),
        ("30d", "constant.numeric.duration"),
        ("0.3", "constant.numeric"),
        ("into", "keyword.control"),
        (">", "keyword.operator.comparison"),
        ("and", "keyword.operator.word"),
        ("now", "support.function"),
    ]:
        assert (piece, f"{scope}.caliber") in found, piece
    assert not [piece for piece, scope in found if scope.startswith("invalid")]
    assert sum(scope == "keyword.control.caliber" for _, scope in found) == 8
    parse(EXAMPLE)  # what is coloured here is a program


def test_every_character_of_a_whole_program_is_coloured_or_empty() -> None:
    program = render_caliber(config("a.db", system_instructions='Say "no".\n\tThen \\ stop.'))
    rest = program
    for piece, scope in tokens(program):
        before, _, rest = rest.partition(piece)
        assert before.strip() == "", (before, piece)
        assert not scope.startswith("invalid"), piece
    assert rest.strip() == ""


@pytest.mark.parametrize("name", ["scope", "policy", "config", "into", "on"])
def test_keywords_are_names_where_the_language_has_names(name: str) -> None:
    # K-054
    found = tokens(f'caliber: "0.1.0" {{\n  memory {name} {{\n    {name}: meta\n  }}\n}}')
    assert (name, "entity.name.type.caliber") in found
    assert (name, "variable.other.property.caliber") in found


# --- in step with the language -------------------------------------------------------------------

COLOUR_OF = {
    "TEXT": "string.",
    "DURATION": "constant.numeric.duration.",
    "INTEGER": "constant.numeric.",
    "FLOAT": "constant.numeric.",
    "COMPARATOR": "keyword.operator.comparison.",
}
LANGUAGE = (ROOT / "caliber" / "dsl" / "grammar.lark").read_text(encoding="utf-8")
KEYWORDS = dict(re.findall(r'^([A-Z]+): "([a-z]+)"$', LANGUAGE, re.MULTILINE))


def written() -> list[str]:
    """Return every program of the documentation, what `init` writes, and generated ones with comments between."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    blocks = [block for page in pages for block in re.findall(r"```\w*\n(.*?)```", page.read_text("utf-8"), re.DOTALL)]
    paths = [path for folder in ("caliber", "docs", "tests") for path in (ROOT / folder).rglob("*.caliber")]
    files = [path.read_text("utf-8") for path in paths]
    made = [render_caliber(make("store.db")) for make in profiles.PROFILES.values()]
    base = config("store.db")
    drawn = [format_text(sound_program(seed, base).text()) for seed in range(6)]  # editors colour line by line
    rest = 'caliber: "0.1.0" { include "a" inject note into context { filter: tags contains "a" or a starts "b" } }'
    return [EXAMPLE, rest, *(block for block in blocks if block.startswith("caliber:")), *files, *made, *drawn]


def test_what_the_language_takes_for_a_keyword_is_coloured_as_one() -> None:
    # whoever adds a keyword to grammar.lark adds it to the colours
    met = set()
    for text in written():
        parse(text)
        colours: dict[int, str] = {}
        at = 0
        for piece, scope in tokens(text):
            at = text.index(piece, at)
            colours[at] = scope
            at += len(piece)
        for token in parser.lark_parser("program").parse_interactive(text, start="program").iter_parse():
            wanted = "keyword." if token.type in KEYWORDS else COLOUR_OF.get(token.type)
            if wanted is not None:
                assert colours.get(token.start_pos or 0, "none").startswith(wanted), (
                    token,
                    text[token.start_pos :][:60],
                )
                met.add(token.type)
    assert met == {*KEYWORDS, *COLOUR_OF}


def test_a_keyword_without_a_colour_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = json.loads(json.dumps(GRAMMAR).replace("memory|policy|adapter", "memory|adapter"))
    monkeypatch.setitem(GRAMMAR, "repository", plain["repository"])
    with pytest.raises(AssertionError, match="policy"):
        test_what_the_language_takes_for_a_keyword_is_coloured_as_one()
