"""Find where knobs are read: which modules of CALIBER take a value out of the configuration.

A read is an attribute of a name, an argument or a field whose type is a section of the configuration, as far as the
annotations and assignments of the source say; failing that, an attribute of something that is called as its section is.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

from pydantic import BaseModel

from caliber.config import CaliberConfig
from caliber.config.manual.explaining import declared, sections_in

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "caliber"
# They check, write and show knobs, or come before the configuration; none acts there.
NOT_READERS = ("config", "dsl", "cli", "model", "kernels", "schema")
MAY_READ = re.compile(r"config|settings|Settings|storage|options")
# Read through a method of the section, or an equal knob.
THROUGH = {
    "assembly.section_shares": "share",
    "embedding.embed": "mode_of",
    "recall.from": "reach",
    "cache_dir": "cache_path",
    "access.default_visibility": "for_role",
    "access.views.interests": "for_role",
    "section_priorities": "of",
    **{f"trust.{role}_turns": "of_turn" for role in ("system", "user", "assistant", "tool")},
    **{f"pcp.dosage.max_{kind}_in_window": "most" for kind in ("scopes", "artifacts", "notes")},
    "trust.web_tools": "of_turn",
    "principal": "to_principal",
    "storage.path": "resolve_path",
    "tenancy.directory.path": "resolve_path",
    "tenancy.sources.NAME.path": "resolve_path",
}
# Read by way of a table of names, or of an equal knob.
LIKE = {
    "pcp.recovery_points.max_checkpoints": "checkpoint_retention",
}
BY_TABLE = {
    **{f"search.weights.{leg}": "SearchWeights" for leg in ("vector", "keyword", "graph", "importance")},
}
# Read of a thing whose type only a protocol knows, or a method returns.
STATED = {
    "tenancy.directory.adapter": ("caliber.tenancy.directory",),
    **{f"access.rights.NAME.{part}": ("caliber.access.rights",) for part in ("read", "write")},
    **{
        f"access.views.scoring.weights.{role}.{part}": ("caliber.search.ranking.roles",)
        for role in ("orchestrator", "optimizer", "reviewer", "executor")
        for part in ("base", "access", "recency", "relevance")
    },
}
# What rooms that cannot see the configuration call its sections.
STANDS_FOR = {
    "AnyStorage": ("StorageConfig", "PostgresConfig"),
    "AnyDirectory": ("SqliteDirectory", "PostgresDirectory"),
    "AnySource": ("SqliteSource", "PostgresSource"),
    "ProviderSettings": ("ProviderConfig", "SummarizerConfig"),
    "SummarizerSettings": ("SummarizerConfig",),
    "HttpSettings": ("HttpConfig",),
    "ChatSettings": ("ChatConfig",),
    "RetrySettings": ("RetryConfig",),
}
SETTINGS = ("settings", "options")
Types = dict[str, frozenset[str]]
NOTHING: frozenset[str] = frozenset()


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


class _Module:
    """One module that may read, taken apart once."""

    def __init__(self, path: Path) -> None:
        self.name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        self.annotated: list[ast.AnnAssign] = []
        self.functions: list[tuple[Function, list[ast.Assign], list[ast.Attribute]]] = []
        self.mentioned: set[str] = set()
        waiting: list[tuple[ast.AST, tuple[int, ...]]] = [(ast.parse(path.read_text()), ())]
        while waiting:
            node, inside = waiting.pop()  # with the functions that it stands in
            if isinstance(node, ast.AnnAssign):
                self.annotated.append(node)
            elif isinstance(node, ast.Name):
                self.mentioned.add(node.id)
            elif isinstance(node, Function):
                inside = (*inside, len(self.functions))
                self.functions.append((node, [], []))
            elif isinstance(node, ast.Assign):
                for number in inside:
                    self.functions[number][1].append(node)
            elif isinstance(node, ast.Attribute):
                for number in inside:
                    self.functions[number][2].append(node)
            waiting.extend((child, inside) for child in ast.iter_child_nodes(node))
        for _, assigned, _ in self.functions:
            assigned.sort(key=lambda node: node.lineno)


class _Source:
    """The modules that may read, and what their annotations say."""

    def __init__(self) -> None:
        self.sections: dict[str, type[BaseModel]] = {}
        self._add(CaliberConfig)
        files = (
            path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] not in NOT_READERS
        )
        self.modules = [_Module(path) for path in files if MAY_READ.search(path.read_text())]
        self.attributes: dict[str, set[str]] = defaultdict(set)  # of all modules
        self.here: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))  # of a module, of a room
        for module in self.modules:
            self.module = module.name
            for node in module.annotated:
                self._learn(node.target, self.named(node.annotation))
        for _ in range(2):  # what the first round learns of attributes helps the second
            for module in self.modules:
                self.module = module.name
                for function, assigned, _ in module.functions:
                    self.local(function, assigned)

    def _add(self, section: type[BaseModel]) -> None:
        self.sections[section.__name__] = section
        for field in section.model_fields.values():
            for inner in sections_in(field.annotation):
                if inner.__name__ not in self.sections:
                    self._add(inner)

    def named(self, annotation: ast.AST | None) -> frozenset[str]:
        """Return the sections that an annotation names."""
        if annotation is None:
            return NOTHING
        names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
        known = names & self.sections.keys()
        for name in names & STANDS_FOR.keys():
            known |= set(STANDS_FOR[name])
        return frozenset(known)

    def _learn(self, target: ast.expr, kinds: frozenset[str]) -> None:
        if isinstance(target, (ast.Attribute, ast.Name)):
            name = target.attr if isinstance(target, ast.Attribute) else target.id
            self.attributes[name] |= kinds
            self.here[self.module][name] |= kinds
            self.here[_room(self.module)][name] |= kinds

    def _elsewhere(self, name: str) -> set[str]:
        """Return the possible classes of an attribute of another module's objects: its own room's, if one has it."""
        return self.here[_room(self.module)].get(name) or self.attributes.get(name, set())

    def local(self, function: Function, assigned: list[ast.Assign]) -> Types:
        """Return the sections that names inside a function stand for."""
        arguments = function.args
        known: Types = {}
        for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            known[item.arg] = self.named(item.annotation)
        for node in assigned:
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                for one, given in pairs:
                    kinds = self.kinds(given, known)
                    if kinds and isinstance(one, ast.Name):
                        known[one.id] = known.get(one.id, NOTHING) | kinds
                    elif kinds:
                        self._learn(one, kinds)
        return known

    def kinds(self, node: ast.expr, known: Types) -> frozenset[str]:
        """Return the sections that an expression may be."""
        if isinstance(node, ast.Name):
            return known.get(node.id, NOTHING)
        if isinstance(node, ast.Attribute):
            out: set[str] = set()
            for owner in self.kinds(node.value, known):
                field = self.sections[owner].model_fields.get(node.attr)
                if field is not None:
                    out |= {kind.__name__ for kind in sections_in(field.annotation)}
            return frozenset(out or self.here[self.module].get(node.attr, ()) or self._elsewhere(node.attr))
        if isinstance(node, ast.IfExp):
            return self.kinds(node.body, known) | self.kinds(node.orelse, known)
        if isinstance(node, ast.BoolOp):
            return frozenset().union(*(self.kinds(item, known) for item in node.values))
        return NOTHING


def readers() -> dict[str, tuple[str, ...]]:
    """Return the modules that read each knob, by its path."""
    source = _Source()
    knobs = declared()
    names = {path.rsplit(".", 1)[-1] for path in knobs} | set(THROUGH.values())
    by_place: dict[tuple[str, str], set[str]] = defaultdict(set)  # (section, attribute) -> modules
    by_name: dict[tuple[str, str], set[str]] = defaultdict(set)  # (called so, attribute) -> modules
    by_table: dict[str, set[str]] = defaultdict(set)
    for module in source.modules:
        source.module = module.name
        for function, assigned, attributes in module.functions:
            known = source.local(function, assigned)
            for node in attributes:
                if node.attr not in names:
                    continue
                for kind in source.kinds(node.value, known):
                    by_place[kind, node.attr].add(module.name)
                inner = node.value
                called = inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")
                by_name[called.strip("_"), node.attr].add(module.name)
        for name in module.mentioned & set(BY_TABLE.values()):
            by_table[name].add(module.name)
    return {
        path: STATED.get(path)
        or tuple(
            sorted(
                _readers_of(path, [one.section for one in found], by_place, by_name) | by_table[BY_TABLE.get(path, "")]
            )
        )
        for path, found in knobs.items()
    }


def _readers_of(
    path: str,
    sections: list[type[BaseModel]],
    by_place: dict[tuple[str, str], set[str]],
    by_name: dict[tuple[str, str], set[str]],
) -> set[str]:
    above, _, name = LIKE.get(path, path).rpartition(".")
    above = "storage" if above == "tenancy.sources.NAME" else above
    through = THROUGH.get(path) or THROUGH.get(above)
    attribute = through or name
    kinds = [CaliberConfig] if path in LIKE else sections
    found = {module for kind in kinds for base in kind.__mro__ for module in by_place[base.__name__, attribute]}
    if not found:
        found = set(by_name[above.rpartition(".")[2] or "config", attribute])
    if not found and "_" in name and not through:
        found = {module for called in SETTINGS for module in by_name[called, attribute]}
    return found


if __name__ == "__main__":
    for path, modules in readers().items():
        sys.stdout.write(f"{path}: {', '.join(modules) or '-'}\n")
