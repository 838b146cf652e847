"""Memories and rules of injection of a program: what they become, and each fault where it stands."""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cli_runs import caliber, caliber_json
from support.configs import config

import caliber as package
from caliber.config import CaliberConfig, PolicyAction, PostgresConfig, profiles
from caliber.config.manual.render import render_json, render_toml
from caliber.config.secret import LiteralDsn
from caliber.dsl import check, check_text, compile_text, format_text, load_config
from caliber.dsl.scan import scan
from caliber.dsl.source import Source
from caliber.dsl.writing import render_caliber
from caliber.model.declared import MemoryCategory
from caliber.model.errors import (
    ConfigError,
    InvalidConfigValue,
    InvalidValue,
    MissingRequired,
    MultipleErrors,
    ProgramFault,
    ProviderNotSupported,
)
from caliber.schema.declared_memories import bind_declared
from caliber.schema.memory_types import (
    Field,
    FieldType,
    Index,
    IndexType,
    Lifecycle,
    MemoryType,
    Retention,
    RetentionKind,
)
from caliber.schema.relations.storage import FIRST_CODE

CONFIG = config("store.db")
EXAMPLE = Path(__file__).parent.parent / "data" / "source_example.caliber"
MEMORY = """
memory decision {
  type: semantic
  schema: {
    title: text,
    content: text,
    content_embedding: embedding,
    state: enum("open", "made"),
    confidence: float,
    decided_at: optional(timestamp),
    kind: optional(enum("small", "large"))
  }
  retention: 90d
  parent: trajectory
  lifecycle: auto_close(schedule("0 3 * * *"))
  inject_on: [task_start, schedule("0 4 * * *")]
  key: [title, state]
  index: { state: hash, created_at: btree, content_embedding: hnsw, title: gin }
}
"""


SUBSET = ("error_log", "code_patch", "design_decision", "fact", "tool_result")


def program(body: str) -> str:
    return f'caliber: "0.1.0" {{\n{body}\n}}\n'


def faults_of(body: str, base: CaliberConfig = CONFIG) -> list[str]:
    with pytest.raises(MultipleErrors) as caught:
        compile_text(program(body), name="a.caliber", base=base)
    assert all(isinstance(fault, ProgramFault) for fault in caught.value.errors), caught.value
    return [str(fault).split("\n")[0].removeprefix("a.caliber:") for fault in caught.value.errors]


# --- the example of the source documents ---------------------------------------------------------


def test_the_example_is_that_of_the_source_documents() -> None:
    # C-173: token by token
    tokens = [token.text for token in scan(Source(EXAMPLE.read_text(encoding="utf-8"), "example")).tokens]
    assert len(tokens) == EXAMPLE_TOKENS
    assert hashlib.sha256("\n".join(tokens).encode()).hexdigest() == EXAMPLE_DIGEST


EXAMPLE_TOKENS = 603
EXAMPLE_DIGEST = "e076f0f6cb3f66e3a23614d6f7a79fcdc239bfce8b65a2699ce729c7a143b25d"


def test_the_example_compiles_with_the_warnings_that_the_decisions_name() -> None:
    # C-173, K-004, K-059, K-068, K-072
    made = check(EXAMPLE, base="reference")
    said = [(item.line, item.column, item.reason.split(":")[0].split(";")[0]) for item in made.warnings]
    assert said == [
        (6, 17, "this address is that of one machine"),
        (16, 11, "redis is not supported yet"),
        (38, 7, "trajectory is in every store, with the indexes it needs"),
        (54, 16, "a scope that closes when it closes is circular"),
        (57, 7, "scope is in every store, with the indexes it needs"),
        (77, 7, "artifact is in every store, with the indexes it needs"),
        (100, 7, "note is in every store, with the indexes it needs"),
        (121, 7, "turn_buffer is in every store, with the indexes it needs"),
        (175, 66, f"artifact_type is declared as one of {', '.join(SUBSET)}, not constraint"),
    ]
    assert all("^^^" in item.excerpt for item in made.warnings)
    assert load_config(EXAMPLE, base="reference") == made.config


def test_what_the_example_means() -> None:
    # C-174 to C-182
    made = load_config(EXAMPLE, base="reference")
    assert isinstance(made.storage, PostgresConfig)
    assert (str(made.storage.dsn), made.storage.pool_max) == ("postgres://localhost:5432/caliber", 10)
    assert (made.vector.dimensions, made.vector.hnsw_m, made.vector.hnsw_ef_construction) == (1_536, 16, 64)
    memories = {memory.name: memory.declared for memory in made.memories}
    assert list(memories) == ["trajectory", "scope", "artifact", "note", "turn_buffer"]
    assert memories["note"].inject_on[0].on == "task_start"
    assert memories["turn_buffer"].retention.kind is RetentionKind.SCOPE
    assert memories["turn_buffer"].lifecycle is Lifecycle.AUTO_CLOSE
    assert memories["scope"].parent == "trajectory"
    assert memories["artifact"].artifacts == SUBSET
    assert [(item.field, item.type) for item in memories["trajectory"].indexes] == [
        ("trajectory_id", IndexType.BTREE),
        ("status", IndexType.HASH),
        ("created_at", IndexType.BTREE),
    ]
    assert memories["note"].fields[5].type is FieldType.EMBEDDING
    shown = {
        policy.name: [(rule.on, rule.cron, [action.shown for action in rule.actions]) for rule in policy.rules]
        for policy in made.policies
    }
    closing = ["summarize turn_buffer", "extract_artifacts turn_buffer", "checkpoint scope", "prune turn_buffer"]
    assert shown == {
        "scope_management": [("scope_close", None, closing)],
        "trajectory_completion": [
            ("task_end", None, ["summarize scope", "extract_artifacts scope", "notify trajectory_complete"])
        ],
        "note_generation": [
            ("task_end", None, ["consolidate_notes trajectory"]),
            ("schedule", "0 0 * * *", ["prune note"]),
        ],
        "context_injection": [("task_start", None, ["inject note", "inject artifact"])],
    }
    injected = made.policies[3].rules[0].actions
    assert [action.action for action in injected] == [PolicyAction.INJECT] * 2
    assert [action.mode.min_relevance for action in injected if action.mode is not None] == [0.7, 0.8]
    assert [
        (rule.memory, rule.mode.shown, rule.priority, rule.max_tokens, rule.filter) for rule in made.injection_rules
    ] == [
        ("note", "relevant(0.7)", 80, 2000, "confidence > 0.5 and valid_until > now()"),
        ("artifact", "top_k(10)", 90, 3000, 'artifact_type = "design_decision" or artifact_type = "constraint"'),
        ("scope", "summary", 70, 1000, "trajectory_id = current_trajectory"),
    ]


def test_the_example_is_written_and_read_again() -> None:
    # C-186
    made = load_config(EXAMPLE, base="reference")
    assert compile_text(render_caliber(made)) == made
    assert CaliberConfig.from_toml(render_toml(made)) == made
    assert CaliberConfig.from_json(render_json(made)) == made
    text = EXAMPLE.read_text(encoding="utf-8")
    laid_out = format_text(text)
    assert format_text(laid_out) == laid_out
    assert compile_text(laid_out, base="reference") == made


def test_check_shows_the_warnings_of_the_example() -> None:
    shown = caliber("check", str(EXAMPLE), "--base", "reference").stdout
    assert shown.count(": warning: ") == 9
    assert "is sound, with 9 warnings" in shown
    said = caliber_json("check", str(EXAMPLE), "--base", "reference")
    assert said["ok"]
    assert [item["line"] for item in said["warnings"]] == [6, 16, 38, 54, 57, 77, 100, 121, 175]
    assert said["injection_rules"] == ["note", "artifact", "scope"]
    assert caliber("check", str(EXAMPLE), "--base", "reference", "--strict", code=1).stdout == shown
    assert "storage.schema_name is required" in caliber("check", str(EXAMPLE), code=1).stdout


# --- what definitions become ---------------------------------------------------------------------


def test_a_memory_of_ones_own_compiles() -> None:
    # C-130 to C-148, C-183
    (made,) = compile_text(program(MEMORY), base=CONFIG).memories
    declared = made.declared
    assert (declared.name, declared.category, declared.parent) == ("decision", "semantic", "trajectory")
    assert [(item.name, item.optional) for item in declared.fields][-2:] == [("decided_at", True), ("kind", True)]
    assert declared.fields[-1].values == ("small", "large")
    assert (declared.retention.kind, declared.retention.duration_ms) == (RetentionKind.DURATION, 90 * 86_400_000)
    assert declared.closes_on.cron == "0 3 * * *"
    assert [when.cron for when in declared.inject_on] == [None, "0 4 * * *"]


@pytest.mark.parametrize(("written", "kind", "amount"), [
    ("persistent", RetentionKind.PERSISTENT, None),
    ("session", RetentionKind.SESSION, None),
    ("scope", RetentionKind.SCOPE, None),
    ("2w", RetentionKind.DURATION, 14 * 86_400_000),
    ("max(7)", RetentionKind.MAX, 7),
    ("compress_on: scope_close", RetentionKind.COMPRESS_ON, "scope_close"),
    ('compress_on: schedule("0 3 * * *")', RetentionKind.COMPRESS_ON, "0 3 * * *"),
])  # fmt: skip
def test_retention_of_every_kind(written: str, kind: RetentionKind, amount: Any) -> None:
    # C-136 to C-138
    made = compile_text(program(f"memory d {{ type: meta schema: {{ a: text }} retention: {written} }}"), base=CONFIG)
    kept = made.memories[0].retention
    when = None if kept.when is None else (kept.when.cron or kept.when.on.value)
    assert (kept.kind, kept.duration_ms or kept.count or when) == (kind, amount)
    assert compile_text(render_caliber(made)) == made


def test_rules_compile_in_their_order_and_filters_have_one_form() -> None:
    # C-160 to C-163, C-186
    body = (
        MEMORY
        + """
        inject decision into context {
          name: large_ones
          filter: (kind  =  "large" and confidence>=0.5) or (decided_at = null)
          priority: 10
          mode: full
        }
        inject turn into context { mode: top_k(3) priority: 1 max_tokens: 100 }
        """
    )
    made = compile_text(program(body), base=CONFIG)
    first, second = made.injection_rules
    assert (first.memory, first.name, first.mode.shown) == ("decision", "large_ones", "full")
    assert first.filter == 'kind = "large" and confidence >= 0.5 or decided_at = null'
    assert (second.memory, second.mode.shown, second.max_tokens) == ("turn_buffer", "top_k(3)", 100)
    assert compile_text(render_caliber(made)) == made
    assert CaliberConfig.from_toml(render_toml(made)) == made


def test_policies_reach_memories_of_ones_own() -> None:
    # C-150, C-152, C-153
    body = MEMORY + (
        "policy p { on task_end: [summarize(decision), prune(decision, below_confidence(0.2)), "
        "inject(decision, top_k(3)), inject(turn, summary)] }"
    )
    made = compile_text(program(body), base=CONFIG)
    assert [action.shown for action in made.policies[0].rules[0].actions] == [
        "summarize decision", "prune decision", "inject decision", "inject turn_buffer",
    ]  # fmt: skip
    assert compile_text(render_caliber(made)) == made


names = st.from_regex(r"[a-z][a-z0-9_]{0,10}[a-z]", fullmatch=True)
fields = st.tuples(
    st.sampled_from(["uuid", "text", "int", "float", "bool", "timestamp", "json", 'enum("a b", "c\\"")']), st.booleans()
)


@given(
    st.dictionaries(names.map("own_{}".format), fields, min_size=1, max_size=5),
    st.sampled_from(["persistent", "session", "45m", "max(3)", "compress_on: turn"]),
    st.sampled_from(["full", "summary", "top_k(2)", "relevant(0.25)", "relevant(0)"]),
)
@settings(max_examples=10)
def test_any_memory_is_written_and_read_again(declared: dict[str, tuple[str, bool]], kept: str, mode: str) -> None:
    schema = ", ".join(f"{name}: {f'optional({kind})' if opt else kind}" for name, (kind, opt) in declared.items())
    body = f"memory own {{ type: working schema: {{ body: text, {schema} }} retention: {kept} }}"
    text = program(f"{body} inject own into context {{ mode: {mode} priority: 3 }}")
    made = compile_text(text, base=SMALL)
    for again in (compile_text(render_caliber(made)), CaliberConfig.from_toml(render_toml(made))):
        assert again == made
        assert again.hash == made.hash


SMALL = profiles.reference("store.db", embedding_provider=None)


# --- faults --------------------------------------------------------------------------------------

OWN = "type: meta schema: { a: text, n: int }"
RULE = "mode: full priority: 1"
UNSURE = "memory d { type: meta schema: { a: text, w: flaot } index: { w: hnsw, x: gin } }"


@pytest.mark.parametrize(("body", "said"), [
    # form
    ("memory d { schema: { a: text } }", ["2:8: error: the memory d needs type: …"]),
    ("memory d { type: meta }", ["2:8: error: the memory d needs schema: …"]),
    ("memory d { type: metta schema: { a: text } }", ["2:18: error: unknown type of memory; did you mean `meta`?"]),
    (f"memory d {{ {OWN} indx: {{ a: gin }} }}",
     ["2:51: error: memory definitions have no indx; did you mean `index`?"]),
    (f"memory d {{ {OWN} type: meta }}", ["2:51: error: type is given twice"]),
    ("memory d { type: meta schema: { } }", ["2:31: error: a schema is a table of at least one field"]),
    ("memory d { type: meta schema: { a: tetx } }", ["2:36: error: unknown type of field; did you mean `text`?"]),
    ("memory d { type: meta schema: { a: optional(tetx) } }",
     ["2:45: error: unknown type of field; did you mean `text`?"]),
    ("memory d { type: meta schema: { a: optional(optional(text)) } }", ["2:45: error: optional is given twice"]),
    ("memory d { type: meta schema: { a: enum } }", ["2:36: error: an enum takes its values, in quotes"]),
    ("memory d { type: meta schema: { a: enum(b) } }", ["2:36: error: an enum takes its values, in quotes"]),
    ('memory d { type: meta schema: { a: enum("b", "b") } }', ["2:46: error: values[1]: is named twice"]),
    ("memory d { type: meta schema: { a: text, a: int } }", ["2:42: error: the field a is declared twice"]),
    ('memory d { type: meta schema: { "a": text } }', ["2:33: error: the name of a field is written without quotes"]),
    (f"memory d {{ {OWN} retention: persistant }}", ["2:62: error: unknown retention; did you mean `persistent`?"]),
    (f"memory d {{ {OWN} retention: max(0) }}", ["2:62: error: retention.count: must be greater than or equal to 1"]),
    (f"memory d {{ {OWN} retention: max(x) }}", ["2:62: error: max takes a number of records"]),
    (f"memory d {{ {OWN} retention: 0d }}", ["2:62: error: retention.duration_ms: must be greater than 0"]),
    (f"memory d {{ {OWN} retention: compress_on }}", ["2:62: error: compress_on needs a trigger"]),
    (f"memory d {{ {OWN} retention: compress_on: tsk_end }}",
     ["2:75: error: tsk_end is not a trigger; did you mean `task_end`?"]),
    (f"memory d {{ {OWN} lifecycle: auto_close }}", ["2:62: error: auto_close takes one trigger"]),
    (f"memory d {{ {OWN} lifecycle: auto_close(scop_close) }}",
     ["2:73: error: scop_close is not a trigger; did you mean"]),
    (f"memory d {{ {OWN} lifecycle: explict }}", ["2:62: error: unknown lifecycle; did you mean `explicit`?"]),
    (f'memory d {{ {OWN} artifacts: ["fakt"] }}', ["2:63: error: unknown type of artifact; did you mean `fact`?"]),
    (f"memory d {{ {OWN} inject_on: [] }}", ["2:62: error: inject_on is a list of triggers"]),
    (f'memory d {{ {OWN} inject_on: [schedule("0 0 * *")] }}', ["2:63: error: cron: must be five cron fields"]),
    (f"memory d {{ {OWN} }} memory d {{ {OWN} }}", ["2:60: error: the memory d is declared twice"]),
    (f"inject note into windows {{ {RULE} }}", ["2:18: error: records are injected into context, and nothing else"]),
    ("inject note into context { priority: 1 }", ["2:8: error: a rule of note needs mode: …"]),
    ("inject note into context { mode: full }", ["2:8: error: a rule of note needs priority: …"]),
    ("inject note into context { mode: fulll priority: 1 }",
     ["2:34: error: unknown mode of injection; did you mean `full`?"]),
    ("inject note into context { mode: top_k(0) priority: 1 }", ["2:34: error: top_k takes how many, from 1 on"]),
    ("inject note into context { mode: relevant(1.1) priority: 1 }",
     ["2:34: error: relevant takes a relevance from 0 to 1"]),
    ("inject note into context { mode: relevant(1) priority: 1 prio: 2 }",
     ["2:58: error: inject definitions have no prio"]),
    ("inject note into context { mode: full priority: -1 }",
     ["2:49: error: priority: must be greater than or equal to 0"]),
    ("inject note into context { mode: full priority: high }", ["2:49: error: priority: must be a whole number"]),
    ("policy p { on turn: [inject(note)] }", ["2:22: error: inject takes what to inject and in which form"]),
    ("policy p { on turn: [inject(note, most)] }", ["2:35: error: unknown mode of injection"]),
    # memories
    (f"memory d {{ {OWN} parent: trajectry }}",
     ["2:59: error: there is no memory trajectry; did you mean `trajectory`?"]),
    (f"memory d {{ {OWN} parent: e }} memory e {{ {OWN} parent: d }}",
     ["2:59: error: circular reference: d belongs to e belongs to d", "2:121: error: circular reference: e"]),
    (f"memory d {{ {OWN} parent: d }}", ["2:59: error: circular reference: d belongs to d"]),
    ("memory note { type: meta schema: { note_id: uuid } retention: session }",
     ["2:63: error: retention.kind: records of note belong to no session, so none ends them"]),
    ("memory scope { type: meta schema: { scope_id: uuid } retention: 3d }",
     ["2:65: error: retention.kind: a scope stays with its task"]),
    ("memory note { type: meta schema: { note_id: uuid } parent: scope }", ["2:60: error: a note belongs to nothing"]),
    (f"memory d {{ {OWN} key: [b] }}", ["2:57: error: b is no field of d that a key could be made of"]),
    (f"memory d {{ {OWN} key: [a, a] }}", ["2:60: error: a is in the key twice"]),
    (f"memory d {{ {OWN} key: a }}", ["2:56: error: a key is a list of fields: [name]"]),
    (f'memory d {{ {OWN} key: ["a"] }}', ["2:57: error: the name of a field is written without quotes"]),
    ("memory d { type: meta schema: { a: optional(text) } key: [a] }",
     ["2:59: error: a is optional, and a key has all of its fields"]),
    ("memory d { type: meta schema: { a: float } key: [a] }",
     ["2:50: error: a is float; a key is made of uuid, text, int, bool, timestamp, enum"]),
    ("memory note { type: meta schema: { note_id: uuid } key: [note_id] }",
     ["2:58: error: every store has the memory note, whose records are told apart by their ids"]),
    (f"memory d {{ {OWN} index: {{ b: btree }} }}", ["2:60: error: d has no field b; it has id, created_at"]),
    (f"memory d {{ {OWN} index: {{ a: btre }} }}", ["2:63: error: unknown type of index; did you mean `btree`?"]),
    (f"memory d {{ {OWN} index: {{ n: hnsw }} }}", ["2:60: error: n is int, which hnsw does not index"]),
    (f"memory d {{ {OWN} index: {{ n: gin }} }}", ["2:60: error: n is int, which gin does not index; it is indexed"]),
    ("memory d { type: meta schema: { a: text, a_embedding: embedding } index: { a_embedding: btree } }",
     ["2:76: error: a_embedding is embedding, which btree does not index; it is indexed by hnsw or"]),
    (f"memory d {{ {OWN} index: {{ a: gin, a: btree }} }}", ["2:68: error: the field a is indexed twice"]),
    ("memory d { type: meta schema: { class: text } }", ["2:33: error: class cannot be an attribute"]),
    ("memory scope { type: meta schema: { sumary: text } }", ["2:37: error: every store has the memory scope"]),
    ("memory scope { type: meta schema: { summary: int } }", ["2:37: error: summary of scope is text, not int"]),
    ('memory note { type: meta schema: { note_type: enum("fact", "fakt") } }',
     ["2:36: error: note_type of note is never fakt; it is one of convention"]),
    ("memory note { type: meta schema: { content_embedding: text } }", ["2:36: error: content_embedding is a vector"]),
    # rules
    (f"inject trajectory into context {{ {RULE} }}", ["2:8: error: a task has no text of its own"]),
    ("policy p { on turn: [inject(trajectory, full)] }", ["2:29: error: the target of inject must be"]),
    (f"inject notes into context {{ {RULE} }}", ["2:8: error: there is no memory notes; did you mean `note`?"]),
    (f"inject note into context {{ {RULE} max_tokens: 999999 }}",
     ["2:63: error: max_tokens: 999999 exceeds the whole window"]),
    (f"inject note into context {{ {RULE} name: x }} inject scope into context {{ {RULE} name: x }}",
     ["2:118: error: another rule, or its section, is called x"]),
    (f"inject note into context {{ {RULE} filter: confidense > 0.5 }}",
     ["2:59: error: there is no field confidense; did you mean `confidence`?"]),
    (f'inject note into context {{ {RULE} filter: confidence > "high" }}',
     ["2:72: error: confidence is compared with a number"]),
    (f'inject note into context {{ {RULE} filter: note_type = "fakt" }}',
     ["2:71: error: note_type is compared with one of its values"]),
    (f"inject note into context {{ {RULE} filter: confidence > 1.5 }}",
     ["2:72: error: this never holds: confidence lies between 0 and 1"]),
    (f'inject note into context {{ {RULE} filter: entity = "a" and entity = "b" }}',
     ["2:59: error: this never holds: entity has one"]),
    (f"inject note into context {{ {RULE} filter: confidence }}", ["2:59: error: a filter consists of comparisons"]),
    (f"inject d into context {{ {RULE} filter: a > 5 }} memory d {{ {OWN} }}",
     ["2:60: error: a is compared with a text in quotes"]),
    (f'inject d into context {{ {RULE} filter: b = "x" }} memory d {{ {OWN} }}', ["2:56: error: there is no field b"]),
    (
        f"{UNSURE} inject d into context {{ {RULE} filter: w > 1 and a = 1 and class = 2 }}",
        ["2:45: error: unknown type of field; did you mean `float`?", "2:71: error: d has no field x",
         "2:151: error: a is compared with a text in quotes", "2:157: error: there is no field class"],
    ),
    # policies
    ("policy p { on task_end: [prune(nots, older_than(1d))] }",
     ["2:32: error: there is no memory nots; did you mean `note`?"]),
    ("memory d { type: meta schema: { n: int } } policy p { on task_end: [summarize(d)] }",
     ["2:79: error: d has no text to summarize"]),
    (f"memory d {{ {OWN} }} policy p {{ on task_end: [prune(d, below_confidence(0.5))] }}",
     ["2:78: error: below_confidence: d has no field confidence: float"]),
    ('policy p { on schedule("0 3 * * *"): [inject(note, full)] }',
     ["2:39: error: action: inject works on a trajectory"]),
    # one id, which is one
    ("memory d { type: meta schema: { id: text, a: text } }",
     ["2:33: error: id is the id of a record, which is a uuid; call yours otherwise"]),
    ("memory d { type: meta schema: { id: uuid, d_id: uuid, a: text } }",
     ["2:43: error: d_id is the id of a record, as id is: leave out one of them"]),
    # once, and in words of ours
    (f"memory {'a' * 49} {{ {OWN} }}", ["2:8: error: must be at most 48 lower-case letters"]),
    (f"memory Foo {{ {OWN} }}", ["2:8: error: Foo is not a name"]),
    ("policy p { on turn: [] }", ["2:21: error: actions: needs 1 or more items"]),
    # adapters
    ("adapter a { type: redis } adapter b { type: redis }",
     ["2:35: error: a store has one cache, and there is the adapter a already"]),
])  # fmt: skip
def test_faults_are_said_where_they_stand(body: str, said: list[str]) -> None:
    # C-122, C-131 to C-146, C-160 to C-164, C-239
    found = faults_of(body)
    assert len(found) == len(said), found
    for fault, start in zip(found, said, strict=True):
        assert fault.startswith(start), fault


def test_all_faults_come_in_one_run_in_the_order_of_the_text() -> None:
    # C-122
    body = """
    memory d { type: metta schema: { a: tetx } parent: nothing_like_it }
    memory e { type: meta schema: { b: text } index: { c: btree } }
    inject d into context { mode: full priority: 1 }
    inject f into context { mode: full priority: 1 filter: a = 1 }
    inject note into context { mode: ful priority: 1 filter: x = 1 max_tokens: 999999 }
    policy p { on turn: [prune(g, older_than(1d)), inject(note, ful)] }
    """
    assert [fault.split(": error")[0] for fault in faults_of(body)] == [
        "3:22", "3:41", "3:56", "4:56", "6:12", "7:38", "7:62", "8:32", "8:65",
    ]  # fmt: skip


def test_an_embedding_needs_a_space() -> None:
    # C-120
    body = "memory d { type: meta schema: { a: text, a_embedding: embedding } }"
    (fault,) = faults_of(body, SMALL)
    assert fault.startswith("2:55: error: type: without embedding_provider and vector there are no vectors")
    assert compile_text(program(body), base=CONFIG)


def test_a_configuration_of_any_kind_is_checked_alike(tmp_path: Path) -> None:
    # C-122, C-124: TOML, JSON and Python
    data = CONFIG.to_mapping()
    data["memories"] = [
        {"name": "d", "type": "meta", "fields": [{"name": "a", "type": "text"}], "parent": "scop"},
        {"name": "d", "type": "meta", "fields": [{"name": "a", "type": "text"}]},
        {"name": "broken", "type": "metta", "fields": []},
    ]
    data["injection_rules"] = [
        {"memory": "e", "mode": {"kind": "full"}, "priority": 1, "max_tokens": 10**6},
        {"memory": "broken", "mode": {"kind": "full"}, "priority": 1},
    ]
    with pytest.raises(MultipleErrors) as caught:
        CaliberConfig.from_mapping(data)
    assert {error.context["field"] for error in caught.value.errors} == {
        "memories[2].type", "memories[2].fields", "memories[0].parent", "memories[1].name", "injection_rules[0].memory",
        "injection_rules[0].max_tokens",
    }  # fmt: skip
    wrong = {"name": "d", "type": "meta", "fields": [{"name": "a", "type": "text"}, {"name": "and", "type": "text"}]}
    with pytest.raises(MultipleErrors, match=r"memories\[0\].fields\[1\].name = 'and': and cannot be"):
        CONFIG.with_overrides(memories=[wrong])
    rule = {"memory": "note", "mode": {"kind": "full"}, "priority": 1, "filter": "confidense > 0.5"}
    made = CONFIG.with_overrides(injection_rules=[rule], **{"storage.path": str(tmp_path / "a.db")})
    (tmp_path / "c.toml").write_text(render_toml(made), encoding="utf-8")
    (tmp_path / "c.json").write_text(render_json(made), encoding="utf-8")
    for act in (lambda: load_config(tmp_path / "c.toml"), lambda: load_config(tmp_path / "c.json")):
        with pytest.raises(MultipleErrors, match=r"injection_rules\[0\].filter:1:1: error: .*`confidence`"):
            act()
    with pytest.raises(MultipleErrors, match="there is no field confidense"):
        package.create(made)
    assert not (tmp_path / "a.db").exists()


def test_what_is_checked_of_an_index_is_what_can_be_made(tmp_path: Path) -> None:
    # C-140, C-141: each type of field by each index, and fields that are not declared
    lines: list[str] = []
    refused_by_create: set[int] = set()
    fits: dict[IndexType, set[str]] = {index: set() for index in IndexType}
    undeclared = ["created_at", "sequence", "id", "trust", "nothing"]
    for kind, index in itertools.product([*FieldType, *undeclared], IndexType):
        body, other, name = Field("body", FieldType.TEXT), Field("other", FieldType.INT), str(kind)
        if isinstance(kind, FieldType):
            name = "body_embedding" if kind is FieldType.EMBEDDING else "field"
            other = Field(name, kind, ("x",) if kind is FieldType.ENUM else ())
        kept, indexes = Retention(RetentionKind.PERSISTENT), (Index(name, index),)
        memory = MemoryType(f"own_{len(lines)}", MemoryCategory.META, (body, other), kept, indexes)
        typed = 'enum("x")' if other.values else other.type
        schema = f"schema: {{ body: text, {other.name}: {typed} }}"
        try:
            bind_declared(memory, FIRST_CODE)
        except InvalidValue:
            refused_by_create.add(len(lines))
        else:
            fits[index].add(kind)
        lines.append(f"memory {memory.name} {{ type: meta {schema} index: {{ {name}: {index} }} }}")
    refused = {int(said.split(":")[0]) - 2 for said in faults_of("\n".join(lines))}  # each with its place
    assert refused == refused_by_create
    sound = "\n".join(line for at, line in enumerate(lines) if at not in refused)
    package.create(compile_text(program(sound), base=CONFIG).with_overrides(**{"storage.path": str(tmp_path / "a.db")}))
    unordered = {FieldType.JSON, FieldType.EMBEDDING, FieldType.TEXTS, FieldType.UUIDS, FieldType.BYTES}
    compared = {*FieldType, "created_at", "sequence", "id"} - unordered
    assert fits == {
        IndexType.BTREE: compared,
        IndexType.HASH: compared,
        IndexType.GIN: {FieldType.TEXT},
        IndexType.HNSW: {FieldType.EMBEDDING},
        IndexType.IVFFLAT: {FieldType.EMBEDDING},
    }


def test_a_file_without_filters_does_not_wait_for_the_parser(tmp_path: Path) -> None:
    made = compile_text(program(MEMORY), base=CONFIG).with_overrides(**{"storage.path": str(tmp_path / "a.db")})
    (tmp_path / "c.toml").write_text(render_toml(made), encoding="utf-8")
    code = (
        "import sys, uuid, caliber, caliber.dsl.loading as loading; config = loading.load_config(sys.argv[1])\n"
        "caliber.create(config)\n"
        "with caliber.open(config) as memory:\n"
        "    user = caliber.EntityRef(caliber.EntityType.USER, uuid.uuid4())\n"
        "    memory.assemble_context(memory.start_trajectory('a window', initiator=user).trajectory_id)\n"
        "print([name for name in ('lark', 'caliber.dsl.parser') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "c.toml")], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


# --- connection strings --------------------------------------------------------------------------

MARK = "hunter2"
SEALED = [
    f"postgres://me:{MARK}@db.example/agent",
    f"postgres://db.example/agent?password={MARK}",
    f"host=db.example password={MARK}",
    f"postgres://{MARK}@db.example",
]


@pytest.mark.parametrize("dsn", SEALED)
def test_a_connection_string_with_a_password_is_used_and_never_shown(dsn: str) -> None:
    # K-072
    text = program(f'adapter a {{ type: postgres connection: "{dsn}" }}')
    made = check_text(text, base="reference")
    assert isinstance(made.config.storage, PostgresConfig)
    assert made.config.storage.dsn.resolve() == dsn
    (warning,) = made.warnings
    assert "may hold a password" in warning.reason
    shown = [str(warning), repr(warning), repr(made), repr(made.config.storage), made.config.storage.shown]
    shown += [made.config.canonical_json(), str(made.config.to_mapping()), str(copy.deepcopy(made.config.storage))]
    for render in (render_toml, render_json, render_caliber):
        with pytest.raises(InvalidConfigValue, match="env:MY_DSN") as refused:
            render(made.config)  # type: ignore[operator]
        shown.append(str(refused.value))
    with pytest.raises(TypeError, match="not pickled") as unpickled:
        pickle.dumps(made.config)
    known = CaliberConfig.from_canonical(made.config.canonical_json())
    assert known == made.config
    with pytest.raises(MissingRequired, match="set it to env:MY_DSN"):
        known.storage.dsn.resolve()  # type: ignore[union-attr]
    changed = made.config.with_overrides(token_budget=4_000, **{"pcp.dosage.max_context_tokens": 4_000})
    assert changed.storage.dsn.resolve() == dsn  # type: ignore[union-attr]
    with pytest.raises(MultipleErrors, match="set it to env:MY_DSN") as again:
        CaliberConfig.from_mapping(made.config.to_mapping())
    with pytest.raises(MultipleErrors) as refused_in_toml:
        profiles.reference(dsn, **{"storage.adapter": "postgres"})
    with pytest.raises(MultipleErrors) as broken:
        compile_text(text.replace("adapter a", "adapter a b"), base="reference")
    shown += [str(item.value) for item in (unpickled, again, refused_in_toml, broken)]
    assert not [item for item in shown if MARK in item]


def test_a_connection_string_without_one_is_a_plain_value() -> None:
    dsn = LiteralDsn("postgresql://db.example:5432,other/agent_1")
    assert not dsn.is_sealed
    assert (str(dsn), dsn.resolve(), dsn.is_set) == ("postgresql://db.example:5432,other/agent_1",) * 2 + (True,)
    assert pickle.loads(pickle.dumps(dsn)) == copy.copy(dsn) == dsn
    assert hash(dsn) == hash(LiteralDsn(str(dsn)))
    for name in LiteralDsn.__slots__:
        with pytest.raises(AttributeError):
            setattr(dsn, name, "postgres://elsewhere")
        with pytest.raises(AttributeError):
            delattr(dsn, name)
    made = check_text(program('adapter a { type: postgres connection: "env:MY_DSN" }'), base="reference")
    assert made.warnings == ()
    with pytest.raises(MultipleErrors, match="env: needs the name of a variable"):
        check_text(program('adapter a { type: postgres connection: "env: MY_DSN" }'), base="reference")


@pytest.mark.parametrize(
    ("adapter", "connection"), [("libsql", "agent.db"), ("libsql", "env:MY_STORE"), ("cockroachdb", "env:MY_DSN")]
)
def test_adapters_of_later_issues_compile_and_are_refused_by_open(adapter: str, connection: str) -> None:
    # C-159, K-004, O-3
    text = program(f'adapter a {{ type: {adapter} connection: "{connection}" }}')
    made = compile_text(text, base="reference")
    assert made.storage.adapter == adapter
    with pytest.raises(ProviderNotSupported) as caught:
        package.open(made)
    assert caught.value.context["provider"] == adapter
    assert compile_text(render_caliber(made)) == made


def test_redis_alone_holds_no_store() -> None:
    # C-159: nor is the store that of a base
    text = 'adapter cache { type: redis connection: "redis://localhost" }'
    for base in (None, "reference"):
        with pytest.raises(MultipleErrors) as caught:
            compile_text(program(text), base=base)
        assert [error.context["provider"] for error in caught.value.errors if isinstance(error, ProviderNotSupported)]
        assert "use sqlite or postgres" in str(caught.value)
    made = compile_text(program(f'{text} config {{ storage.path: "a.db" }}'), base="reference")
    assert made.storage.path == "a.db"


# --- on what a file stands -----------------------------------------------------------------------


def test_a_profile_fits_itself_to_the_file(tmp_path: Path) -> None:
    bare = compile_text(program('adapter a { type: sqlite connection: "a.db" }'), base="ops-agent")
    assert bare == profiles.ops_agent("a.db")
    unembedded = compile_text(program('config { embedding_provider: null storage.path: "a.db" }'), base="ops-agent")
    assert unembedded == profiles.ops_agent("a.db", embedding_provider=None)
    local = compile_text(
        program(
            'provider p { provider_type: static model: "m" dimensions: 64 options: { } }'
            'config { embedding_provider: p storage.path: "b.db" }'
        ),
        base="reference",
    )
    assert (local.embedding_provider.model, local.vector.dimensions) == ("m", 64)
    (tmp_path / "part.toml").write_text('[storage]\npath = "c.db"\n', encoding="utf-8")
    assert load_config(tmp_path / "part.toml", base="reference").storage.path == os.fspath(tmp_path / "c.db")  # type: ignore[union-attr]
    assert load_config(tmp_path / "part.toml", base=CONFIG).token_budget == CONFIG.token_budget
    with pytest.raises(MultipleErrors, match=r"there is no such profile; did you mean reference\? there are reference"):
        load_config(tmp_path / "part.toml", base="referense")


def test_init_completes_a_file(tmp_path: Path) -> None:
    part, whole = tmp_path / "part.caliber", tmp_path / "whole.caliber"
    part.write_text(program('adapter a { type: sqlite connection: "a.db" } policy p { }'), encoding="utf-8")
    assert "ops-agent" in caliber("init", "--from", str(part), "--profile", "ops-agent", "--path", str(whole)).stdout
    assert load_config(whole) == load_config(part, base="ops-agent")
    failed = caliber("init", "--from", str(part), "--store", "b.db", "--path", str(whole), "--force", code=2)
    assert "--store does not go with --from: part.caliber decides it" in failed.stderr


@pytest.mark.parametrize(("memory", "said"), [
    ("turn_buffer { type: meta schema: { role: text } lifecycle: auto_close(scope_close) }", ""),
    ("scope { type: meta schema: { summary: text } lifecycle: auto_close(task_end) }", ""),
    ("scope { type: meta schema: { summary: text } lifecycle: auto_close(turn) }", "records of scope do not close at"),
    ("d { type: meta schema: { a: text } lifecycle: auto_close(task_end) }", "records of d do not close at task_end"),
    ('d { type: meta schema: { a: text } artifacts: ["fact"] }', "d is not made of artifacts"),
    ('artifact { type: meta schema: { content: text } artifacts: ["fact"] }', ""),
    ('artifact { type: meta schema: { artifact_type: enum("fact") } artifacts: ["fact", "custom"] }',
     "custom is none of the values of artifact_type"),
    ("note { type: meta schema: { confidence: float } index: { confidence: btree } }",
     "note is in every store, with the indexes it needs: declaring confidence has no effect"),
    ("d { type: meta schema: { a: text } index: { a: btree } }", ""),
    ('d { type: meta schema: { a: text } inject_on: [task_start, schedule("0 3 * * *")] }',
     'schedule("0 3 * * *") is no moment of a task'),
    ("d { type: meta schema: { a: text } inject_on: [task_start] }", ""),
])  # fmt: skip
def test_what_has_no_effect_is_a_warning(memory: str, said: str) -> None:
    # C-139, C-142, C-143, C-145
    warnings = check_text(program(f"memory {memory}"), base=CONFIG).warnings
    assert [item.reason.startswith(said) for item in warnings] == ([True] if said else [])


def test_what_a_trigger_brings_past_a_filter_for_trust_is_a_warning() -> None:
    # design section 10: rules keep untrusted text out, and a trigger has no filter
    body = """
    memory fact { type: semantic schema: { content: text } inject_on: [turn] }
    policy p { on turn: [notify("x"), inject(note, full), inject(turn_buffer, full), inject(artifact, full)] }
    inject note into context { mode: full priority: 1 filter: confidence > 0.1 and trust = "user" }
    inject fact into context { mode: full priority: 1 filter: trust != "web" }
    inject turn_buffer into context { mode: full priority: 1 filter: trust != "web" }
    inject artifact into context { mode: full priority: 1 }
    """
    warnings = check_text(program(body), base=CONFIG).warnings
    said = [(item.line, item.reason.split(" into")[0]) for item in warnings]
    assert said == [(3, "this brings records of fact"), (4, "this brings records of note")]


@pytest.mark.parametrize(("body", "place", "what"), [
    ('on task_end: [notify("over"), summarize(scope)]', (3, 31), "summarize scope"),
    ("on scope_close: [extract_artifacts(turn_buffer)]", (3, 18), "extract_artifacts turn_buffer"),
    ("on task_end: [extract_artifacts(trajectory)]", (3, 15), "consolidate_notes trajectory"),
    ("on task_end: [prune(note, older_than(1d)), checkpoint(scope)]", None, ""),
])  # fmt: skip
def test_what_asks_for_a_summary_that_nobody_makes_is_a_warning(
    body: str, place: tuple[int, int] | None, what: str
) -> None:
    # C-150, C-151: a program may bring a provider of its own, so it is no fault
    nobody = config("store.db", summarization_provider=None, policies=[])
    text = program(f"policy p {{\n{body}\n}}")
    assert check_text(text, base=CONFIG).warnings == ()
    warnings = check_text(text, base=nobody).warnings
    assert [(item.line, item.column) for item in warnings] == ([] if place is None else [place])
    assert all(item.reason.startswith(f"{what} asks who summarizes, and nobody does") for item in warnings)


def test_a_retention_that_asks_for_a_summary_that_nobody_makes_is_a_warning() -> None:
    # C-138
    nobody = config("store.db", summarization_provider=None, policies=[])
    text = program("memory artifact { type: episodic schema: { content: text } retention: compress_on: task_end }")
    assert check_text(text, base=CONFIG).warnings == ()
    (warning,) = check_text(text, base=nobody).warnings
    assert (warning.line, warning.reason.split(";")[0].split(":")[0]) == (
        2, "compress_on of artifact asks who summarizes, and nobody does",
    )  # fmt: skip


def test_warnings_of_other_files_say_the_knob(tmp_path: Path) -> None:
    made = load_config(EXAMPLE, base="reference")
    (tmp_path / "c.toml").write_text(render_toml(made), encoding="utf-8")
    said = [str(item).split("\n")[0] for item in check(tmp_path / "c.toml").warnings]
    assert [item.split(": ")[0] for item in said] == [
        "storage.dsn",
        "memories[0].indexes[0]",
        "memories[1].lifecycle",
        *(f"memories[{at}].indexes[0]" for at in range(1, 5)),
        "injection_rules[1].filter:1:54",
    ]
    assert issubclass(ProgramFault, ConfigError)
