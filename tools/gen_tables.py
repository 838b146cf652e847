"""Generate the parser's tables from the grammar, caliber/dsl/grammar.*.json, and the declarations that come along.

Usage: python tools/gen_tables.py [--check]

With --check nothing is written; the exit code is 1 if a committed file differs from what would be. The tables are those
that lark makes, with its states in an order of their own: lark's differs from run to run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lark.grammar import Rule
from lark.lexer import TerminalDef

from caliber import dsl
from caliber.config.memories import PACKAGED
from caliber.dsl import tables

ROOT = Path(__file__).resolve().parent.parent
OPEN = ("data", "parser", "memo", "tokens", "states")
"""Tables that are written with a line for each part, so that a change of the grammar can be read."""


def generated() -> dict[Path, str]:
    """Return every generated file with the text it must have."""
    grammar = tables.GRAMMAR.read_text(encoding="utf-8")
    made = {tables.file(name): text(name, grammar) for name in tables.STARTS}
    return made | {file.with_suffix(".json"): declared(file) for file in PACKAGED.glob("*.caliber")}


def declared(file: Path) -> str:
    """Return the memories of a program as a configuration holds them, a line each."""
    memories = dsl.compile_text(file.read_text("utf-8"), name=file.name, base="reference").to_mapping()["memories"]
    return "[\n" + ",\n".join(json.dumps(memory) for memory in memories) + "\n]\n"


def text(name: str, grammar: str) -> str:
    """Return the tables of a parser as they are shipped."""
    data, memo = tables.build(name, grammar, None).memo_serialize([TerminalDef, Rule])
    # What is no data is given when they are loaded.
    del data["options"]["lexer"], data["options"]["transformer"], data["parser"]["lexer_conf"]["lexer_type"]
    data["parser"]["parser"] = ordered(data["parser"]["parser"])
    return "".join(laid_out({"origin": tables.origin(grammar), "data": data, "memo": memo})) + "\n"


def ordered(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same table with tokens by name, and states as they are met from the first."""
    names = {token: at for at, token in enumerate(sorted(table["tokens"].values()))}
    states = {
        state: {table["tokens"][token]: action for token, action in actions.items()}
        for state, actions in table["states"].items()
    }
    met = list(dict.fromkeys(table["start_states"].values()))
    for state in met:
        shifts = [after for _, (reduce, after) in sorted(states[state].items()) if not reduce]
        met.extend(dict.fromkeys(after for after in shifts if after not in met))
    assert len(met) == len(states), "a state that nothing leads to"
    number = {state: at for at, state in enumerate(met)}

    def renamed(action: Any) -> Any:
        reduce, to = action
        return [reduce, to if reduce else number[to]]

    return {
        "tokens": {at: token for token, at in names.items()},
        "states": {
            number[state]: {names[token]: renamed(action) for token, action in sorted(states[state].items())}
            for state in met
        },
        "start_states": {start: number[state] for start, state in table["start_states"].items()},
        "end_states": {start: number[state] for start, state in sorted(table["end_states"].items())},
    }


def laid_out(value: Mapping[Any, Any], indent: str = " ") -> Iterator[str]:
    """Yield a mapping as JSON, a line a part."""
    before = "{\n"
    for key, item in value.items():
        yield f'{before}{indent}"{key}": '
        if key in OPEN:
            yield from laid_out(item, indent + " ")
        else:
            yield json.dumps(item, separators=(",", ":"))
        before = ",\n"
    yield f"\n{indent[:-1]}}}"


def main() -> int:
    """Write the files, or with ``--check`` only say which are not what they must be."""
    stale = {path: made for path, made in generated().items() if not path.exists() or path.read_text("utf-8") != made}
    if "--check" in sys.argv[1:]:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(ROOT)} is out of date; run make gen\n")
        return 1 if stale else 0
    for path, made in stale.items():
        path.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
