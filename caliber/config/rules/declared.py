"""Consistency checks of declared memories, injection rules and policies, and a configuration's warnings.

References to a broken definition are not reported again, since its content is unknown.

Source: C-122, C-139 to C-146, C-160, C-183, K-058 to K-060, K-068, K-072.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import pydantic

from caliber.config.faults import NOT_SHOWN, wrong
from caliber.config.injection import CONVERSATION, InjectionKind, InjectionRule, rule_names
from caliber.config.knobs import Section
from caliber.config.memories import MemoryConfig, memory_name
from caliber.config.policies import PolicyAction, PolicyConfig, PolicyTarget
from caliber.config.providers import EMBED_DEFAULT
from caliber.config.rules.checks import check, embed_modes
from caliber.config.secret import LiteralDsn, readable
from caliber.model.declared import Trigger
from caliber.model.embedding import EmbedMode
from caliber.model.errors import ConfigError, MissingRequired
from caliber.schema.memories import BUILT_IN, window_of
from caliber.schema.memory_types import FieldType, RetentionKind
from caliber.schema.relations import RELATIONS

S = TypeVar("S", bound=Section)

_ENDED_BY: Final = {
    RetentionKind.SESSION: ("session_id", "trajectory_id"),
    RetentionKind.SCOPE: ("scope_id",),
}
"""The columns by which records belong to a scope or session that ends."""
_TRUST: Final = re.compile(r"\btrust\b")
_NAMED_IN: Final = {"fields": "name", "indexes": "field"}
_MOST: Final = 1_000
_CLOSES: Final = {
    PolicyTarget.TURN_BUFFER.value: (Trigger.SCOPE_CLOSE, Trigger.TASK_END),
    PolicyTarget.SCOPE.value: (Trigger.TASK_END,),
}
"""Built-in memories that close by themselves, with the trigger: in every store, declared or not."""
_LITERAL: Final = "this address is that of one machine; with env:MY_DSN the same file serves others"
_SEALED: Final = (
    "this address may hold a password, and whoever reads the file reads it: name it as env:MY_DSN; it is used, and not "
    "shown or written anywhere"
)

_ASKING: Final = (PolicyAction.SUMMARIZE, PolicyAction.EXTRACT_ARTIFACTS, PolicyAction.CONSOLIDATE_NOTES)
_UNSUMMARIZED: Final = (
    "asks who summarizes, and nobody does: set summarization_provider (extractive needs no model), unless the program "
    "that opens the store brings its own; without one this fails each time"
)


def _sound(kind: type[S], items: Any) -> list[S | None]:
    """Return definitions, with None in place of invalid ones."""
    # There cannot be more: another check reports the excess.
    return [_one(kind, item) for item in items[:_MOST]] if isinstance(items, (list, tuple)) else []


def _one(kind: type[S], item: Any) -> S | None:
    if isinstance(item, kind):
        return item
    try:
        return kind.model_validate(item)
    except pydantic.ValidationError:
        return None


def valid_memories(items: Any) -> list[MemoryConfig | None]:
    """Return declared memories, with None in place of invalid ones."""
    return _sound(MemoryConfig, items)


def _names(items: Any, key: str = "name") -> list[str | None]:
    """Return the names of definitions, or the names they refer to, of broken definitions too."""
    out: list[str | None] = []
    for item in items if isinstance(items, (list, tuple)) else ():
        name = item.get(key) if isinstance(item, Mapping) else getattr(item, key, None)
        out.append(name if isinstance(name, str) else None)
    return out


def _memories_named(memories: Any, key: str = "name") -> list[str | None]:
    return [None if name is None else memory_name(name) for name in _names(memories, key)]


def _known(memories: Any) -> dict[str, None]:
    return dict.fromkeys([*(name for name in _memories_named(memories) if name is not None), *BUILT_IN])


def _unknown(what: str, got: str, known: Iterable[str]) -> str:
    from caliber.model.hints import did_you_mean  # for a text of a fault alone

    names = list(known)
    hint = did_you_mean(got, names, f"there are {', '.join(names)}")
    return f"there is no {what} {got}; {hint}"


# --- names ---------------------------------------------------------------------------------------


@check("memories")
def _memories_twice(memories: Any) -> Iterator[ConfigError]:
    yield from _twice("memories", "memory", _memories_named(memories))


@check("policies")
def _policies_twice(policies: Any) -> Iterator[ConfigError]:
    yield from _twice("policies", "policy", _names(policies))


def _twice(path: str, what: str, names: list[str | None]) -> Iterator[ConfigError]:
    seen: set[str] = set()
    for at, name in enumerate(names):
        if name in seen:
            yield wrong(f"{path}[{at}].name", name, f"the {what} {name} is declared twice")
        if name is not None:
            seen.add(name)


# --- memories ------------------------------------------------------------------------------------


@check("memories")
def _parents(memories: Any) -> Iterator[ConfigError]:
    names, parents, known = _memories_named(memories), _memories_named(memories, "parent"), _known(memories)
    above = {name: parent for name, parent in zip(names, parents, strict=True) if name is not None}
    for at, (name, parent) in enumerate(zip(names, parents, strict=True)):
        path = f"memories[{at}].parent"
        if parent is not None and parent not in known:
            yield wrong(path, parent, _unknown("memory", parent, known))
        elif name is not None and parent is not None:
            chain = dict.fromkeys([name])
            while parent is not None and parent not in chain:
                chain[parent] = None
                parent = above.get(parent)
            if parent == name:
                yield wrong(path, above[name], f"circular reference: {' belongs to '.join([*chain, name])}")


@check("memories")
def _fields(memories: Any) -> Iterator[ConfigError]:
    sound = valid_memories(memories)
    if not any(sound):
        return
    from caliber.schema.binding import faults  # every relation is declared behind it

    for at, item in enumerate(sound):
        if item is None:
            continue
        for fault in faults(item.declared):
            inner = ""
            if fault.part in ("parent", "history"):
                said = getattr(item, fault.part)
            elif fault.part == "key":
                inner, said = f"[{fault.at}]", item.key[fault.at]
            else:
                key = _NAMED_IN[fault.part]
                inner, said = f"[{fault.at}].{key}", getattr(getattr(item, fault.part)[fault.at], key)
            yield wrong(f"memories[{at}].{fault.part}{inner}", said, fault.reason)


@check("memories", "embedding_provider", "vector")
def _embeddings(memories: Any, provider: object, vector: object) -> Iterator[ConfigError]:
    if provider is not None or vector is not None:
        return
    for at, item in enumerate(valid_memories(memories)):
        for number, field in enumerate(() if item is None else item.fields):
            if field.type is FieldType.EMBEDDING:
                reason = "without embedding_provider and vector there are no vectors: set one, or leave the field out"
                yield wrong(f"memories[{at}].fields[{number}].type", field.type.value, reason)


@check("embedding", "memories")
def _embedded_kinds(embedding: Any, memories: Any) -> Iterator[ConfigError]:
    modes = embed_modes(embedding)
    if modes is None:
        return
    if EMBED_DEFAULT not in modes:
        yield MissingRequired(field=f"embedding.embed.{EMBED_DEFAULT}")
    own = {name for name in _memories_named(memories) if name is not None and name not in BUILT_IN}
    sound = [item for item in valid_memories(memories) if item is not None and item.name in own]
    without = {item.name for item in sound if all(field.type is not FieldType.EMBEDDING for field in item.fields)}
    known = [EMBED_DEFAULT, *(relation.name for relation in RELATIONS if relation.embedded is not None)]
    known += sorted(own - without)
    for name, mode in modes.items():
        if name in known:
            continue
        if name in without:
            reason = f"{name} has no embedding: declare a field of type embedding in it, or remove this entry"
        elif name == PolicyTarget.TRAJECTORY:
            reason = "a task has no text of its own that could be embedded: remove this entry"
        else:
            reason = _unknown("kind", readable(name), map(readable, known))
        shown = None if mode in tuple(EmbedMode) else NOT_SHOWN
        yield wrong(f"embedding.embed.{readable(name)}", mode, reason, shown=shown)


@check("memories")
def _retentions(memories: Any) -> Iterator[ConfigError]:
    for at, item in enumerate(valid_memories(memories)):
        if item is None:
            continue
        kind, path = item.retention.kind, f"memories[{at}].retention.kind"
        bound = BUILT_IN.get(item.name)
        stays = None if bound is None or bound.relation.memory is None else bound.relation.memory.stays
        if bound is not None and kind in _ENDED_BY and not any(map(bound.relation.has, _ENDED_BY[kind])):
            yield wrong(path, kind.value, f"records of {item.name} belong to no {kind}, so none ends them")
        elif kind is not RetentionKind.PERSISTENT and stays is not None:
            yield wrong(path, kind.value, stays)
        elif kind is RetentionKind.COMPRESS_ON and item.name not in BUILT_IN and not _has_text(item):
            yield wrong(path, kind.value, f"{item.name} has no text to summarize")
        on = None if item.retention.when is None else item.retention.when.on
        path = f"memories[{at}].retention.when.on"
        if on is Trigger.TASK_START:
            yield wrong(path, on.value, "a task that starts has nothing to compress")
        elif on is Trigger.TURN and item.name == PolicyTarget.TURN_BUFFER:
            yield wrong(path, on.value, "the next window needs the turns of an open scope")


# --- rules and policies --------------------------------------------------------------------------


@check("memories", "injection_rules")
def _injected(memories: Any, rules: Any) -> Iterator[ConfigError]:
    known = _known(memories)
    for at, rule in enumerate(_sound(InjectionRule, rules)):
        if rule is not None and rule.memory not in known:
            yield wrong(f"injection_rules[{at}].memory", rule.memory, _unknown("memory", rule.memory, known))
        elif rule is not None and rule.memory in BUILT_IN and window_of(rule.memory) is None:
            reason = "a task has no text of its own that could enter a window; its scopes and artifacts have"
            yield wrong(f"injection_rules[{at}].memory", rule.memory, reason)


@check("injection_rules", "section_priorities.custom")
def _rule_sections(rules: Any, custom: tuple[tuple[str, int], ...]) -> Iterator[ConfigError]:
    sound = _sound(InjectionRule, rules)
    declared = [rule for rule in sound if rule is not None]
    if len(declared) < len(sound):
        return  # without the broken ones, others would be called otherwise
    used = {name: f"the section {name} is no rule's" for name in ("system", "persona", "user", "current")}
    used |= {name: f"section_priorities.custom has a section {name}" for name, _ in custom}
    for at, (rule, names) in enumerate(zip(declared, rule_names(declared), strict=True)):
        if rule.memory == CONVERSATION and not rule.mode.kind.ranks:
            continue
        for name in dict.fromkeys(names):
            if name in used:
                yield wrong(f"injection_rules[{at}].name", name, f"{used[name]}; give this rule another name")
            used[name] = f"another rule, or its section, is called {name}"


@check("injection_rules")
def _conversation(rules: Any) -> Iterator[ConfigError]:
    spoken = False
    for at, rule in enumerate(_sound(InjectionRule, rules)):
        if rule is None or rule.memory != CONVERSATION or rule.mode.kind.ranks:
            continue
        path, kind = f"injection_rules[{at}]", rule.mode.kind
        if spoken:
            yield wrong(f"{path}.memory", rule.memory, "another rule injects the conversation already")
        spoken = True
        if kind is not InjectionKind.FULL:
            reason = "a conversation enters word for word: full, or top_k or relevant to recall turns"
            yield wrong(f"{path}.mode.kind", kind.value, reason)


@check("injection_rules", "token_budget")
def _rule_budgets(rules: Any, budget: int) -> Iterator[ConfigError]:
    for at, rule in enumerate(_sound(InjectionRule, rules)):
        if rule is not None and rule.max_tokens is not None and rule.max_tokens > budget:
            reason = f"{rule.max_tokens} exceeds the whole window: token_budget is {budget}"
            yield wrong(f"injection_rules[{at}].max_tokens", rule.max_tokens, reason)


@check("memories", "policies")
def _targets(memories: Any, policies: Any) -> Iterator[ConfigError]:
    own = {item.name: item for item in valid_memories(memories) if item is not None}
    known = _known(memories)
    for at, policy in enumerate(_sound(PolicyConfig, policies)):
        for number, rule in enumerate(() if policy is None else policy.rules):
            for place, action in enumerate(rule.actions):
                path = f"policies[{at}].rules[{number}].actions[{place}]"
                target = action.target
                if target is None or target in BUILT_IN:
                    continue
                if target not in known:
                    yield wrong(f"{path}.target", target, _unknown("memory", target, known))
                elif target in own:
                    for name, reason in _cannot(action.action, action.below_confidence is not None, own[target]):
                        yield wrong(f"{path}.{name}", target, reason)


def _has_text(memory: MemoryConfig) -> bool:
    return any(field.type is FieldType.TEXT for field in memory.fields)


def _cannot(action: PolicyAction, graded: bool, memory: MemoryConfig) -> Iterator[tuple[str, str]]:
    kinds = {field.name: field.type for field in memory.fields}
    if action is PolicyAction.SUMMARIZE and not _has_text(memory):
        yield "target", f"{memory.name} has no text to summarize"
    if graded and kinds.get("confidence") is not FieldType.FLOAT:
        yield "below_confidence", f"{memory.name} has no field confidence: float"


# --- warnings ------------------------------------------------------------------------------------


def warnings_of(config: Any) -> Iterator[tuple[str, str]]:
    """Yield the warnings about a valid configuration: the path of a knob and the reason."""
    yield from _unsummarized(config)
    dsn = getattr(config.storage, "dsn", None)
    if isinstance(dsn, LiteralDsn):
        yield "storage.dsn", _SEALED if dsn.is_sealed else _LITERAL
    for at, memory in enumerate(config.memories):
        closes = None if memory.closes_on is None else memory.closes_on.on
        if closes is not None and closes not in _CLOSES.get(memory.name, ()):
            if memory.name == PolicyTarget.SCOPE and closes is Trigger.SCOPE_CLOSE:  # K-068
                reason = "a scope that closes when it closes is circular: this has no effect"
            else:
                reason = f"records of {memory.name} do not close at {closes}: this has no effect; see retention"
            yield f"memories[{at}].lifecycle", reason
        if memory.indexes and memory.name in BUILT_IN:
            named = ", ".join(index.field for index in memory.indexes)
            reason = f"{memory.name} is in every store, with the indexes it needs: declaring {named} has no effect"
            yield f"memories[{at}].indexes[0]", reason
        for place, when in enumerate(memory.inject_on):
            if when.on is Trigger.SCHEDULE:
                reason = f"{when.shown} is no moment of a task, whose window this would be for: this has no effect"
                yield f"memories[{at}].inject_on[{place}]", reason
        declared = next((field.values for field in memory.fields if field.name == "artifact_type"), ())
        for place, kind in enumerate(memory.artifacts):
            if memory.name != PolicyTarget.ARTIFACT:
                yield f"memories[{at}].artifacts", f"{memory.name} is not made of artifacts: this has no effect"
                break
            if declared and kind not in declared:
                reason = f"{kind} is none of the values of artifact_type that are declared here"
                yield f"memories[{at}].artifacts[{place}]", reason
    yield from _unlabelled(config)


def _unlabelled(config: Any) -> Iterator[tuple[str, str]]:
    """Yield requests that bring records into a window past a rule's filter on their label: a trigger has no filter."""
    asked = {rule.memory for rule in config.injection_rules if _TRUST.search(rule.filter or "")}
    asked.discard(PolicyTarget.TURN_BUFFER.value)  # which no trigger injects
    reason = "this brings records of {} into one window whatever their trust, which a rule of theirs asks for"
    for at, policy in enumerate(config.policies):
        for rule_at, rule in enumerate(policy.rules):
            for place, action in enumerate(rule.actions):
                if action.action is PolicyAction.INJECT and action.target in asked:
                    yield f"policies[{at}].rules[{rule_at}].actions[{place}]", reason.format(action.target)
    for at, memory in enumerate(config.memories):
        if memory.inject_on and memory.name in asked:
            yield f"memories[{at}].inject_on", reason.format(memory.name)


def _unsummarized(config: Any) -> Iterator[tuple[str, str]]:
    """Yield requests for summaries without a configured provider; a program may pass its own."""
    if config.summarization_provider is not None:
        return
    asking = []
    for at, policy in enumerate(config.policies):
        for number, rule in enumerate(policy.rules):
            for place, action in enumerate(rule.actions):
                if action.action in _ASKING:
                    asking.append((f"policies[{at}].rules[{number}].actions[{place}]", action.shown))
    for at, memory in enumerate(config.memories):
        if memory.retention.kind is RetentionKind.COMPRESS_ON:
            asking.append((f"memories[{at}].retention", f"compress_on of {memory.name}"))
    for path, what in asking:
        yield path, f"{what} {_UNSUMMARIZED}"
