"""Programs that compile, made from a seed: every kind of definition, in words that say what they are.

Each piece of such a program has a role, so that it can be broken in a way that is known: a keyword misspelt, a value of
another type, a name that names nothing.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from caliber.config import CaliberConfig
from caliber.config.policies import ON_SCHEDULE, OWN_TARGETS, TARGETS, PolicyAction
from caliber.dsl.printer import quoted

KIND, KEY, CHOICE = "kind", "key", "choice"
"""Words that the language has: of definitions, of their settings, and of what a setting can be."""
NAME, REFERENCE, COLUMN = "name", "reference", "column"
NUMBER, TEXT, DURATION, BRACKET = "number", "text", "duration", "bracket"

_TRIGGERS: Final = ("task_start", "task_end", "scope_close", "turn")
_CRONS: Final = ("0 3 * * *", "*/5 * * * 1-5", "0 0 1 * *")
_OWN: Final = ("task", "person", "event_log", "memory", "config", "type", "place", "include")
_BUILT_IN: Final[Mapping[str, Mapping[str, str]]] = {
    "note": {
        "note_id": "uuid", "entity": "text", "note_type": "fact preference", "confidence": "float",
        "valid_until": "timestamp", "token_count": "int", "content_embedding": "embedding",
    },
    "artifact": {
        "artifact_id": "uuid", "artifact_type": "fact code_patch design_decision", "content": "text",
        "content_embedding": "embedding", "created_at": "timestamp",
    },
    "scope": {"scope_id": "uuid", "summary": "text", "summary_embedding": "embedding", "created_at": "timestamp"},
    "trajectory": {"trajectory_id": "uuid", "goal_summary": "text", "status": "active completed"},
    "turn_buffer": {"turn_id": "uuid", "role": "user assistant", "content": "text", "token_count": "int"},
}  # fmt: skip
_PARENTS: Final = {"scope": ("trajectory",), "artifact": ("scope", "trajectory"), "turn_buffer": ("scope",)}
_FIELDS: Final = ("title", "owner", "weight", "moment", "colour", "shelf_mark")
_TYPES: Final = ("uuid", "text", "text", "int", "float", "bool", "timestamp", "json", "low middle high")
_INDEXES: Final = {"text": ("btree", "hash", "gin"), "embedding": ("hnsw", "ivfflat"), "json": ()}
_COMPARED: Final = {
    "uuid": ("=", "!="),
    "text": ("=", "!=", "~", "contains"),
    "int": ("=", "!=", "<", ">", "<=", ">="),
    "float": ("<", ">", "<=", ">="),
    "timestamp": ("<", ">", "<=", ">="),
    "bool": ("=", "!="),
}
_KNOBS: Final = ("assembly", "lint_config", "pcp", "search", "resident", "write_behind", "events", "llm_retry_config")


class Piece(NamedTuple):
    """A token or a few that belong together."""

    text: str
    role: str = ""


class Part(NamedTuple):
    """One definition."""

    kind: str
    name: str
    pieces: tuple[Piece, ...]


class SoundProgram(NamedTuple):
    """A program in parts; ``text`` lays it out, with comments between, as the seed says."""

    parts: tuple[Part, ...]
    seed: int

    @property
    def pieces(self) -> list[Piece]:
        return [*_HEAD, *(piece for part in self.parts for piece in part.pieces), Piece("}", BRACKET)]

    def text(self, pieces: Sequence[Piece] | None = None) -> str:
        return laid_out(self.pieces if pieces is None else pieces, random.Random(self.seed))


_HEAD: Final = (Piece("caliber", KIND), Piece(":"), Piece('"0.1.0"', TEXT), Piece("{", BRACKET))
_SPACES: Final = (*(" " for _ in range(15)), "\n", "\n    ", "\t", "\r\n", " /* why */ ", " // why not\n", " (* ) *) ")


def laid_out(pieces: Sequence[Piece], chance: random.Random) -> str:
    """Return pieces as a text, with any space and comments between."""
    return "".join(piece.text + chance.choice(_SPACES) for piece in pieces)


def sound_program(seed: int, base: CaliberConfig) -> SoundProgram:
    """Return a program that compiles on top of a configuration."""
    return _Making(seed, base).program()


class _Making:
    def __init__(self, seed: int, base: CaliberConfig) -> None:
        self._seed = seed
        self._chance = random.Random(seed)
        self._base = base.to_mapping()
        self._out: list[Piece] = []
        self._parts: list[Part] = []
        self._fields: dict[str, dict[str, str]] = {name: dict(fields) for name, fields in _BUILT_IN.items()}

    def program(self) -> SoundProgram:
        some = self._some
        declared = [*some(list(_BUILT_IN), 2), *some(_OWN, 3)]
        for name in declared:
            self._part("memory", name, lambda name=name: self._memory(name))
        for name in some(("nightly", "closing", "on_start", "policy"), 3):
            self._part("policy", name, self._policy)
        # A conversation has one rule, and a task has no text of its own.
        rules = some([name for name in self._fields if name not in ("turn_buffer", "trajectory")], 3)
        rules += some(["turn_buffer"], 1)
        for name in rules:
            self._part("inject", name, lambda name=name: self._rule(name))
        if self._often(0.4):
            self._part("adapter", "main", self._adapter)
        provider = self._often(0.4)
        if provider:
            self._part("provider", "words", self._provider)
        self._part("config", "", lambda: self._config(provider))
        self._chance.shuffle(self._parts)
        return SoundProgram(tuple(self._parts), self._seed)

    # --- writing -------------------------------------------------------------------------------

    def _some(self, of: Sequence[Any], most: int) -> list[Any]:
        return self._chance.sample(list(of), self._chance.randint(0, min(most, len(of))))

    def _often(self, share: float) -> bool:
        return self._chance.random() < share

    def _put(self, *pieces: Piece | str) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                piece = Piece(piece, BRACKET if piece in "{}[]()" else "")
            self._out.append(piece)

    def _part(self, kind: str, name: str, body: Callable[[], None]) -> None:
        self._out = []
        self._put(Piece(kind, KIND))
        if name:
            self._put(Piece(name, REFERENCE if kind == "inject" else NAME))
        if kind == "inject":
            self._put(Piece("into", KIND), Piece("context", CHOICE))
        self._put("{")
        body()
        self._put("}")
        self._parts.append(Part(kind, name, tuple(self._out)))

    def _key(self, name: str) -> None:
        self._put(Piece(name, KEY), ":")

    def _choice(self, key: str, value: str) -> None:
        self._key(key)
        self._put(Piece(value, CHOICE))

    def _call(self, name: str, *arguments: Piece) -> None:
        self._put(Piece(name, CHOICE), "(")
        self._listed([lambda one=one: self._put(one) for one in arguments])
        self._put(")")

    def _listed(self, items: Sequence[Callable[[], object]]) -> None:
        for number, item in enumerate(items):
            if number:
                self._put(",")
            item()

    def _trigger(self, of: Sequence[str] = _TRIGGERS) -> str:
        if self._often(0.2):
            self._call("schedule", Piece(quoted(self._chance.choice(_CRONS)), TEXT))
            return "schedule"
        trigger = self._chance.choice(of)
        self._put(Piece(trigger, CHOICE))
        return trigger

    def _duration(self) -> Piece:
        return Piece(f"{self._chance.randint(1, 400)}{self._chance.choice('smhdw')}", DURATION)

    def _number(self, low: int, high: int) -> Piece:
        return Piece(str(self._chance.randint(low, high)), NUMBER)

    def _share(self) -> Piece:
        return Piece(repr(round(self._chance.random(), 3)), NUMBER)

    # --- memories ------------------------------------------------------------------------------

    def _memory(self, name: str) -> None:
        if name in _BUILT_IN:
            names = self._some(list(_BUILT_IN[name]), 4) or [next(iter(_BUILT_IN[name]))]
            fields = {field: _BUILT_IN[name][field] for field in names}
        else:
            fields = {name: self._chance.choice(_TYPES) for name in self._some(_FIELDS, 5)}
            fields["content"] = "text"
            if self._often(0.3):
                fields["content_embedding"] = "embedding"
            self._fields[name] = {**fields, "created_at": "timestamp"}
        parts: list[Callable[[], None]] = [
            lambda: self._choice("type", self._chance.choice(("semantic", "working", "episodic", "meta"))),
            lambda: self._schema(fields, own=name not in _BUILT_IN),
            lambda: self._retention(name),
            lambda: self._indexes(fields),
        ]
        if self._often(0.3):
            parts.append(lambda: self._lifecycle(name))
        parents = _PARENTS.get(name, ()) if name in _BUILT_IN else ("trajectory", "scope")
        if parents and self._often(0.4):
            parts.append(lambda: self._put(Piece("parent", KEY), ":", Piece(parents[0], REFERENCE)))
        self._key_field = "content" if name not in _BUILT_IN and self._often(0.3) else None
        if self._key_field is not None:
            parts.append(lambda: self._put(Piece("key", KEY), ":", "[", Piece("content", COLUMN), "]"))
        if self._often(0.3):
            parts.append(self._artifacts)
        if self._often(0.3):
            parts.append(self._inject_on)
        self._chance.shuffle(parts)
        for part in parts:
            part()

    def _schema(self, fields: Mapping[str, str], *, own: bool) -> None:
        self._key("schema")
        self._put("{")
        for number, (name, kind) in enumerate(fields.items()):
            if number:
                self._put(",")
            self._put(Piece(name, NAME), ":")
            optional = own and self._often(0.2) and kind != "embedding" and name != self._key_field
            if optional:
                self._put(Piece("optional", CHOICE), "(")
            if " " in kind:
                self._call("enum", *(Piece(quoted(value), TEXT) for value in kind.split()))
            else:
                self._put(Piece(kind, CHOICE))
            if optional:
                self._put(")")
        self._put("}")

    def _retention(self, name: str) -> None:
        self._key("retention")
        kinds = ["persistent"] if name in ("scope", "trajectory") else ["persistent", "duration", "max", "compress_on"]
        kinds += [] if name in ("note", "scope", "trajectory") else ["session", "scope"]
        kind = self._chance.choice(kinds)
        if kind == "duration":
            self._put(self._duration())
        elif kind == "max":
            self._call("max", self._number(1, 10_000))
        else:
            self._put(Piece(kind, CHOICE))
            if kind == "compress_on":
                self._put(":")
                self._trigger(("task_end", "scope_close"))  # before that there is nothing to compress

    def _indexes(self, fields: Mapping[str, str]) -> None:
        chosen = [(name, self._chance.choice(_INDEXES.get(kind, ("btree", "hash")) or ("",))) for name, kind in
                  self._some(list(fields.items()), 2)]  # fmt: skip
        self._key("index")
        self._put("{")
        for number, (name, kind) in enumerate((name, kind) for name, kind in chosen if kind):
            if number:
                self._put(",")
            self._put(Piece(name, REFERENCE), ":", Piece(kind, CHOICE))
        self._put("}")

    def _lifecycle(self, name: str) -> None:
        self._key("lifecycle")
        if self._often(0.5):
            self._put(Piece("explicit", CHOICE))
        else:
            self._put(Piece("auto_close", CHOICE), "(")
            self._trigger()
            self._put(")")

    def _artifacts(self) -> None:
        self._key("artifacts")
        self._put("[")
        self._listed([lambda one=one: self._put(Piece(quoted(one), TEXT)) for one in ("fact", "code_patch")])
        self._put("]")

    def _inject_on(self) -> None:
        self._key("inject_on")
        self._put("[")
        self._listed([self._trigger for _ in range(self._chance.randint(1, 3))])
        self._put("]")

    # --- rules and policies --------------------------------------------------------------------

    def _mode(self, memory: str) -> None:
        kinds = ("full", "top_k") if memory == "turn_buffer" else ("full", "summary", "top_k", "relevant")
        kind = self._chance.choice(kinds)
        if kind == "top_k":
            self._call(kind, self._number(1, 50))
        elif kind == "relevant":
            self._call(kind, self._share())
        else:
            self._put(Piece(kind, CHOICE))

    def _rule(self, memory: str) -> None:
        self._key("mode")
        self._mode(memory)
        self._key("priority")
        self._put(self._number(0, 1000))
        if self._often(0.5):
            self._key("max_tokens")
            self._put(self._number(1, 4000))
        # What artifacts and turns say is kept as bytes, which filters do not compare.
        compared = {name: kind for name, kind in self._fields[memory].items() if " " in kind or kind in _COMPARED}
        kinds = {name: kind for name, kind in compared.items() if name != "content" or memory not in _BUILT_IN}
        columns = self._some(list(kinds.items()), 4)
        if columns:
            self._key("filter")
            self._filter(columns)

    def _filter(self, columns: Sequence[tuple[str, str]]) -> None:
        if len(columns) == 1:
            self._comparison(*columns[0])
            return
        at = self._chance.randint(1, len(columns) - 1)
        for number, some in enumerate((columns[:at], columns[at:])):
            if number:
                self._put(Piece(self._chance.choice(("and", "or")), KIND))
            bracketed = self._often(0.5)
            if bracketed:
                self._put("(")
            self._filter(some)
            if bracketed:
                self._put(")")

    def _comparison(self, name: str, kind: str) -> None:
        values = kind.split() if " " in kind else []
        self._put(Piece(name, COLUMN), Piece(self._chance.choice(("=", "!=") if values else _COMPARED[kind])))
        if values:
            self._put(Piece(quoted(self._chance.choice(values)), TEXT))
        elif kind == "uuid":
            self._put(Piece(self._chance.choice(("current_trajectory", "current_scope", "current_agent")), CHOICE))
        elif kind == "text":
            self._put(Piece(quoted(self._chance.choice(("Lisbon", "^team [1-4]", 'a "b"', "é\\n"))), TEXT))
        elif kind == "int":
            self._put(self._number(0, 10_000))
        elif kind == "float":
            self._put(self._share())
        elif kind == "bool":
            self._put(Piece(self._chance.choice(("true", "false")), CHOICE))
        elif self._often(0.5):
            self._put(Piece("now", CHOICE), "(", ")")
        else:
            self._put(Piece('"2026-03-01T12:00:00Z"', TEXT))

    def _policy(self) -> None:
        for _ in range(self._chance.randint(1, 3)):
            self._put(Piece("on", KIND))
            trigger = self._trigger()
            self._put(":", "[")
            self._listed([functools.partial(self._action, trigger) for _ in range(self._chance.randint(1, 3))])
            self._put("]")

    def _action(self, trigger: str) -> None:
        action = self._chance.choice(ON_SCHEDULE if trigger == "schedule" else tuple(PolicyAction))
        if action is PolicyAction.NOTIFY:
            self._call(action.value, Piece('"done"', TEXT))
            return
        own = [name for name in self._fields if name not in _BUILT_IN] if action in OWN_TARGETS else []
        targets = [str(target) for target in TARGETS[action]]
        if action is PolicyAction.INJECT:
            targets = [target for target in targets if target not in ("turn_buffer", "trajectory")]
        target = Piece(self._chance.choice([*targets, *own]), REFERENCE)
        self._put(Piece(action.value, CHOICE), "(", target)
        if action is PolicyAction.PRUNE:
            self._put(",")
            if target.text in ("note", "artifact") and self._often(0.5):
                self._call("below_confidence", self._share())
            else:
                self._call("older_than", self._duration())
        elif action is PolicyAction.INJECT:
            self._put(",")
            self._mode(target.text)
        self._put(")")

    # --- adapter, provider, config ---------------------------------------------------------------

    def _adapter(self) -> None:
        self._choice("type", "sqlite")
        self._key("connection")
        self._put(Piece(quoted(self._chance.choice((":memory:", "agent.db", "sqlite:///a/b.db"))), TEXT))
        self._key("options")
        self._put("{", Piece('"readers"', TEXT), ":", self._number(1, 8), "}")

    def _provider(self) -> None:
        self._key("provider_type")
        self._put(Piece("extractive"))  # others may come with packages: any name will do
        self._key("model")
        self._put(Piece('"extractive"', TEXT))
        self._key("options")
        self._put("{", "}")

    def _config(self, provider: bool) -> None:
        if provider:
            self._put(Piece("summarization_provider", KEY), ":", Piece("words", REFERENCE))
        if self._often(0.5):
            self._key("token_budget")
            self._put(self._number(8000, 12_000))
        if self._often(0.5):
            self._key("persona")
            self._put(Piece(quoted('You say "no".\\n\\tThen \\\\ stop. é'), TEXT))
        for section in self._some([name for name in _KNOBS if isinstance(self._base.get(name), dict)], 3):
            knobs = [
                (name, value) for name, value in self._base[section].items() if isinstance(value, (int, float, str))
            ]
            chosen = self._some(knobs, 3)
            if self._often(0.3):
                for name, value in chosen:
                    self._key(f"{section}.{name}")
                    self._put(_value(value))
                continue
            self._put(Piece(section, KEY), *([":"] if (table := self._often(0.4)) else []), "{")
            for number, (name, value) in enumerate(chosen):
                self._put(*([","] if table and number else []), Piece(name, KEY), ":", _value(value))
            self._put("}")


def _value(value: bool | int | float | str) -> Piece:
    if isinstance(value, bool):
        return Piece(str(value).lower(), CHOICE)
    if isinstance(value, str):
        return Piece(quoted(value), TEXT)
    return Piece(repr(value), NUMBER)
