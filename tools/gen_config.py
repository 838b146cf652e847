"""Generate what the configuration and the language determine: two pages of docs/.

Usage: python tools/gen_config.py [--check]

The knobs come from their declarations, the forms of the language from its grammar and compiler. Only the introductions
beside this file are written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from wrapping import item, wrapped

from caliber.config import CaliberConfig, profiles
from caliber.config.manual import explaining
from caliber.config.manual.render import about, limits_of
from caliber.config.nested import value_at
from caliber.config.policies import OWN_TARGETS, TARGETS, PolicyAction
from caliber.config.profiles import services
from caliber.config.profiles.agents import AGENT_PROFILES
from caliber.config.tree import DECLARED_IN_LISTS
from caliber.dsl import compiler, files, memories, parser, policies, scan
from caliber.model.declared import MemoryCategory, Trigger
from caliber.schema.memories import BUILT_IN
from caliber.schema.memory_types import INDEXES, KEYS, OWN_INDEXES, SYSTEM, FieldType, IndexType

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATION = ROOT / "docs" / "configuration.md"
LANGUAGE = ROOT / "docs" / "dsl.md"
GRAMMAR = ROOT / "caliber" / "dsl" / "grammar.lark"

WHAT_IT_IS = {
    "config": "the knobs of [the configuration](configuration.md), nested or dotted (`assembly.fill_ratio: 0.9`)",
    "provider": "a provider of embeddings or summaries: its knobs, under a name that `config` uses",
    "adapter": "the database: `type`, `connection`, and `options`, which are knobs of `storage`",
    "policy": "automatic actions: rules `on trigger: [actions]`",
    "include": "definitions of another file, from this folder or one below it, each file once",
    "memory": "a memory type: fields, indexes, retention",
    "inject": "an injection rule: the records of a memory that enter windows",
}


def introduction(page: str) -> str:
    """Return the text before the generated part of a page."""
    return (Path(__file__).parent / "introductions" / page).read_text(encoding="utf-8")


def generated() -> dict[Path, str]:
    """Return every generated file with the text it must have."""
    return {CONFIGURATION: configuration(), LANGUAGE: language()}


# --- docs/configuration.md -----------------------------------------------------------------------


def configuration() -> str:
    """Return the page of all knobs."""
    base = profiles.reference("caliber.db", embedding_provider=dict(services.EMBEDDING["static"])).to_mapping()
    lines = [introduction("configuration.md"), *_profiles()]
    sections: dict[str, list[explaining.Declared]] = {}
    for path, several in explaining.declared().items():
        sections.setdefault(path.rpartition(".")[0], []).extend(several)
    for path, knobs in sections.items():
        lines += _section(path, knobs, base)
    for name in DECLARED_IN_LISTS:
        field = CaliberConfig.model_fields[name]
        (section,) = explaining.sections_in(field.annotation)
        lines += ["", f"## One of {name}", "", f"`[[{name}]]` in TOML, as often as there are definitions.", ""]
        lines += _definition("", section)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(path: str, knobs: list[explaining.Declared], base: dict[str, object]) -> Iterator[str]:
    yield from ("", f"## {path}" if path else "## At the top", "")
    meaning, optional = _meaning(path)
    if meaning:
        yield from wrapped(f"{meaning}{' *Optional.*' if optional else ''}")
    seen: set[str] = set()
    for one in knobs:
        if one.path in seen:
            continue
        seen.add(one.path)
        facts = about(one.field)
        name = one.path.rpartition(".")[2]
        kinds = {other.section.__name__ for other in knobs if other.path == one.path}
        stores = {other.section.__name__ for other in knobs}
        only = f" ({'SQLite' if kinds <= {'StorageConfig', 'SqliteSource', 'SqliteDirectory'} else 'PostgreSQL'})"
        value = value_at(base, one.path)
        shown = value is not None and name != "policies"
        repeats = explaining.REPEATED.get(one.path)
        yield from _knob(
            f"`{name}`{only if len(stores) > len(kinds) else ''}",
            one.field,
            [
                f"The knobs of `{repeats}`." if repeats else _accepts(one.field),
                f"Reference: `{explaining.shown(value, facts['unit'])}`." if shown else "",
            ],
        )


def _knob(name: str, field: FieldInfo, facts: list[str]) -> Iterator[str]:
    """Yield a knob as a list item: its meaning, and what is accepted."""
    optional = "" if field.is_required() else " *Optional.*"
    yield from item(f"{name}: {_line(' '.join([str(field.description), *filter(None, facts)]))}{optional}")


def _definition(above: str, section: type[BaseModel]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        inner = list(explaining.sections_in(field.annotation))
        several = "[]" if inner and "tuple" in str(field.annotation) else ""
        limits = "" if inner else _accepts(field)
        yield from _knob(f"`{above}{name}{several}`", field, [limits])
        for one in inner:
            yield from _definition(f"{above}{name}{several}.", one)


def _meaning(path: str) -> tuple[str, bool]:
    section: object = CaliberConfig
    text, optional = "", False
    for part in path.split(".") if path else ():
        if part == explaining.NAMED:
            text = "A data source, by its name."
            continue
        field = next(one.model_fields[part] for one in explaining.sections_in(section) if part in one.model_fields)
        text, optional, section = str(field.description), not field.is_required(), field.annotation
    return text, optional


def _profiles() -> Iterator[str]:
    names = list(AGENT_PROFILES)
    yield from ("## Profiles", "")
    yield "`caliber init --profile NAME` writes one of these: the reference but for what is listed, with the reasons."
    yield from ("", "- `reference`: where to start: the sources' numbers, and what was measured")
    for name in names:
        yield from item(f"`{name}`: {AGENT_PROFILES[name].about}")
    for name in names:
        yield from ("", f"### {name}", "")
        for path, change in AGENT_PROFILES[name].changes.items():
            duration = path.endswith(("_ms", "lock_timeout"))
            value = explaining.shown(change.value, "ms" if duration else "")
            value = "see the file it writes" if path == "policies" else f"`{value}`"
            embedded = " (Where texts are embedded.)" if change.vectors else ""
            yield from item(f"`{path}` = {value}: {change.why}{embedded}")


def _accepts(field: FieldInfo) -> str:
    limits = limits_of(field)
    return f"Accepts: {limits[0].lower()}{limits[1:]}" if limits else ""


def _line(text: str) -> str:
    return text.replace("\n", "\\n")


# --- docs/dsl.md ---------------------------------------------------------------------------------


def language() -> str:
    """Return the page of the language."""
    lines = [introduction("dsl.md").replace("VERSION", compiler.VERSION)]
    lines += ["## Definitions", "", "| definition | meaning |", "|---|---|"]
    lines += [f"| `{kind}` | {what} |" for kind, what in WHAT_IT_IS.items()]
    lines += ["", "Definitions may come in any order; `config` may come several times, a knob only once.", ""]
    lines += ["## Adapters and providers", "", "| `type` | `connection` is |", "|---|---|"]
    lines += [f"| `{kind}` | `storage.{knob}` |" for kind, knob in compiler.STORES.items()]
    later = [kind for kind in compiler.STORES if kind not in compiler.BUILT]
    lines += [
        "",
        f"{_words(later)} compile, and opening such a store raises `ProviderNotSupported` until they are built.",
        f"{_words(compiler.CACHES)} holds no store: beside one it is accepted with a warning, and not used.",
        "",
    ]
    lines += ["Options are knobs of `storage`. Some have the name that the source documents gave them:", ""]
    lines += ["| adapter | option | knob |", "|---|---|---|"]
    for kind, options in compiler.OPTIONS.items():
        lines += [f"| `{kind}` | `{name}` | `{knob}` |" for name, knob in options.items()]
    used = f"A provider is used when {_words(compiler.PROVIDERS, 'or')} in `config` is set to its name."
    lines += ["", *wrapped(used), ""]
    lines += [
        "## Policies",
        "",
        *wrapped(
            f'Triggers: {_words(one.value for one in Trigger)}; `schedule("0 3 * * *")` takes five cron fields. '
            "A schedule does `prune` and `notify`, which need no trajectory; `prune` then reaches the whole store. "
            "[Policies](policies.md): when each trigger fires, the range of its actions, the effect of failures."
        ),
        "",
    ]
    lines += ["| action | targets |", "|---|---|"]
    for action in PolicyAction:
        targets = _words(TARGETS[action])
        own = " and declared memories" if action in OWN_TARGETS else ""
        lines.append(f"| `{_call(action)}` | {targets or 'a channel, as text'}{own} |")
    lines += [
        "",
        "`turn` is another word for `turn_buffer`. On `task_end`, `extract_artifacts(trajectory)` consolidates notes.",
        "",
    ]
    lines += [*_memories(), *_rules(), *_warnings()]
    escapes = _words(f"\\{name}" for name in parser._ESCAPES)
    lines += ["## Values", ""]
    lines += [
        "- words (`sqlite`), `true`, `false`, `null`;",
        f"- texts in quotes, over several lines too, with the escapes {escapes};",
        "- numbers (`8000`, `0.95`, `1e-7`);",
        f"- durations: a whole number and {_words(parser._UNITS_MS, 'or')} (`30d`);",
        "- lists `[a, b]` and tables `{ name: value }`;",
        f"- conditions with {_words(_comparators())}, `and`, `or` and parentheses.",
        "",
        "Comments are `// to the end of the line`, `/* … */` and `(* … *)`. Keywords are words only where they are",
        "expected: a memory may be called `scope`.",
        "",
        "## Bounds",
        "",
        f"At most {scan.MAX_CHARS >> 20} Mi characters, {scan.MAX_TOKENS:,} words, texts, numbers, signs and comments",
        f"in a file, {files.FILES_MAX} files, brackets {scan.MAX_DEPTH} deep, {scan.FAULTS_MAX} faults reported.",
        "",
        introduction("dsl_takes.md"),
        "## Grammar",
        "",
        "As the parser reads it ([lark](https://lark-parser.readthedocs.io) notation, LALR):",
        "",
        "```",
        *GRAMMAR.read_text(encoding="utf-8").rstrip("\n").split("\n"),
        "```",
    ]
    return "\n".join(lines) + "\n"


def _memories() -> Iterator[str]:
    yield from (
        "## Memories",
        "",
        *wrapped(
            "A memory with the name of a built-in one is bound to it; any other becomes a relation of its own. "
            f"Built-in are {_words(BUILT_IN)}. A declaration of those must match them: an unknown field, or one of "
            "another type, is a fault; an enum may declare fewer values."
        ),
        "",
        "```",
        "memory decision {",
        "  type: semantic",
        "  schema: {",
        "    title: text,",
        "    content: text,",
        "    content_embedding: embedding,",
        '    state: enum("open", "made"),',
        "    decided_at: optional(timestamp)",
        "  }",
        "  retention: 90d",
        "  parent: trajectory",
        "  index: { state: hash, created_at: btree, content_embedding: hnsw }",
        "}",
        "```",
        "",
    )
    fields = [memories._SAMPLE_ENUM if kind is FieldType.ENUM else kind.value for kind in FieldType]
    about = {
        "type": _words(MemoryCategory, "or"),
        "schema": f"fields `name: type`; types are {_words(fields)}; `optional(text)`: the field may be missing",
        "retention": f"{_words(memories.RETENTIONS, 'or')}; left out: `persistent`",
        "index": f"`field: type`; types are {_words(IndexType)}",
        "lifecycle": f"{_words(memories.LIFECYCLES, 'or')}; left out: `explicit`",
        "artifacts": "the types of artifacts that it contains, as texts",
        "parent": "the memory of the records that its records belong to",
        "key": f"fields, such as `[ns, name]`, by whose values there is one record at most; of types {_words(KEYS)}",
        "history": "`none` keeps nothing of a record that is replaced or deleted; left out: `versions`",
        "shown": 'the text of a record in windows, with fields in braces: `"{subject}: {content}"`; left out: a list',
        "inject_on": "triggers at which its records enter the next window",
    }
    assert tuple(about) == memories.SETTINGS, "a setting of memories has no line here"
    for name, what in about.items():
        yield from item(f"`{name}`: {what}")
    needed = f"`type` and `schema` are needed. {_words(SYSTEM)} are in every memory, and can be indexed undeclared."
    yield from ("", *wrapped(needed), "", "Indexes are for fields of these types:", "")
    for kind, types in INDEXES.items():
        own = _words(OWN_INDEXES[kind]) or "none"
        less = "" if own == _words(types) else f"; in a declared memory {own}"
        yield from item(f"`{kind}`: {_words(types)}{less}")
    yield ""


def _rules() -> Iterator[str]:
    yield from (
        "## Injection rules",
        "",
        "[Injection rules](injection.md) select the records of a memory for windows. Without rules, the section",
        "`assembly` of the configuration decides.",
        "",
        "```",
        "inject decision into context {",
        "  name: open_decisions",
        "  mode: top_k(10)",
        "  priority: 80",
        "  max_tokens: 2000",
        '  filter: state = "open" and created_at > now()',
        "}",
        "```",
        "",
        "| setting | value |",
        "|---|---|",
    )
    about = {
        "mode": f"{_words(policies.INJECTION_MODES, 'or')}",
        "priority": "precedence of the rule when the budget is short; higher first",
        "max_tokens": "limit of its tokens; not more than `token_budget`",
        "filter": "condition over the memory's fields",
        "name": "name in traces and sections (an extension of ours); default: the memory's name",
    }
    assert tuple(about) == policies.INJECTION_SETTINGS, "a setting of rules has no line here"
    yield from (f"| `{name}` | {what} |" for name, what in about.items())
    yield from ("", f"`mode` and `priority` are needed; the target is always `{policies.TARGET}`.", "")


def _warnings() -> Iterator[str]:
    yield from (
        "## Warnings",
        "",
        "A valid setting that is probably a mistake causes a warning: `caliber check` shows it (with `--strict` the",
        "exit code is 1), also with `--json`; `caliber.dsl.check(path)` returns the configuration and the warnings.",
        "`load_config` and `open` do not report them. There are warnings for:",
        "",
        "- an adapter that is not used (`redis`), with its options;",
        "- a connection that is written out instead of named as `env:NAME`; one that may hold a password is used, and",
        "  never shown, hashed, pickled or written to another file;",
        "- a filter that compares an enum of a built-in memory with a value that its declaration leaves out;",
        "- settings without effect: `auto_close(scope_close)` on `scope`, `auto_close` where records do not close,",
        "  `artifacts` on a memory without artifacts, `index` of a built-in memory,",
        '  `inject_on: [schedule("…")]` (a schedule has no task, and so no window).',
        "",
        "A file that omits knobs, as the example of the source documents does, is checked with a profile as its base:",
        '`caliber check FILE --base reference`, and loaded with `caliber.load_config(path, base="reference")`.',
        "The embedding provider is not taken from the profile, so that a file means the same on every machine: a file",
        "without one causes a warning.",
        "",
    )


def _comparators() -> list[str]:
    grammar = GRAMMAR.read_text(encoding="utf-8")
    found = re.search(r"^COMPARATOR: /(.+?)\|\[(.+?)\]/$", grammar, re.MULTILINE)
    assert found is not None, "the grammar's COMPARATOR has another form: read it here too"
    return [*found[1].split("|"), *found[2], "contains", "starts"]


def _call(action: PolicyAction) -> str:
    inside = {
        PolicyAction.PRUNE: "target, older_than(30d)",
        PolicyAction.INJECT: "target, relevant(0.7)",
        PolicyAction.NOTIFY: '"channel"',
    }
    return f"{action.value}({inside.get(action, 'target')})"


def _words(words: object, joint: str = "and") -> str:
    quoted = [f"`{word}`" for word in words]  # type: ignore[attr-defined]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {joint} {quoted[-1]}" if quoted else ""


def main() -> int:
    """Write the files, or with ``--check`` only say which are not what they must be."""
    stale = []
    for path, text in generated().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if "--check" not in sys.argv[1:]:
                path.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv[1:]:
        sys.stderr.write(f"out of date: {', '.join(str(path.relative_to(ROOT)) for path in stale)}; run make gen\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
