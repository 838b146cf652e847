"""Rights of agents per kind of record: which kinds one may read and write, all records of a kind or its own.

The configuration declares them by agent or by role, and the registry narrows them by agent (``memory_access``). An
agent with a rule has no right on a kind that the rule does not name; an agent without one has every right. Source:
C-417, C-422.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from caliber.config.access.rights import AccessConfig, RightsConfig
from caliber.model.access import AgentRole
from caliber.model.agents.registry import MemoryAccess
from caliber.model.references import EntityRef, EntityType
from caliber.schema.catalog import Catalog
from caliber.schema.memories import BUILT_IN
from caliber.schema.relation import Relation

ALL: Final = "all"
OWN: Final = "own"
NONE: Final = "none"
_WIDTH: Final = {NONE: 0, OWN: 1, ALL: 2}
_AGENT: Final = f"{EntityType.AGENT.value}:"

Scopes = Mapping[str, str]
"""The scope of a right, by relation."""


class Rights(NamedTuple):
    """The rights of one agent. ``authors`` are its names as an author, ``ids`` the entities that it is."""

    read: Scopes
    write: Scopes
    authors: frozenset[str]
    ids: frozenset[bytes]
    texts: Scopes
    """The right to read the text of a record, which may follow from records of another kind."""

    @property
    def hides(self) -> bool:
        """True if the agent may not read every record of every kind."""
        return any(scope != ALL for scope in self.read.values())

    def is_author(self, created_by: str | None) -> bool:
        """Return whether the agent wrote a record."""
        return created_by is not None and created_by.rpartition("@")[0] in self.authors

    def stated(self) -> dict[str, Any]:
        """Return the limits as parameters of a search in the database: kinds with the right `all` are left out."""
        return {
            "limits": {kind: scope for kind, scope in self.texts.items() if scope != ALL},
            "authors": sorted(
                f"{name}@{role}" for name in self.authors for role in ("", *(each.value for each in AgentRole))
            ),
            "workers": sorted(key.hex().upper() for key in self.ids),
        }


class RightRules:
    """The rules of a configuration, by the relations of one store."""

    def __init__(self, access: AccessConfig, catalog: Catalog) -> None:
        self._kinds = kinds = kinds_of(catalog)
        self._texts = {name: _text_sources(catalog.by_name[name]) for name in kinds.values()}
        self._rules = {_plain(name): self._by_relation(rule) for name, rule in access.rights.items()}

    def _by_relation(self, rule: RightsConfig | MemoryAccess) -> tuple[dict[str, str], dict[str, str]]:
        read, write = (
            {relation: str(scopes.get(kind, NONE)) for kind, relation in self._kinds.items()}
            for scopes in (rule.read, rule.write)
        )
        return read, write

    def of(self, names: Iterable[str], ids: frozenset[bytes], stated: Sequence[MemoryAccess] = ()) -> Rights | None:
        """Return the rights of an agent by its names and role; None for one without a rule.

        The rules of its names go before that of its role; of several names the narrowest right counts. The rights
        ``stated`` in the registry narrow all of these.
        """
        names = frozenset(map(_plain, names))
        found = [self._rules[name] for name in sorted(names) if name in self._rules]
        own = [self._rules[name] for name in sorted(names) if name in self._rules and name.startswith(_AGENT)]
        found = (own or found) + [self._by_relation(each) for each in stated]
        if not found:
            return None
        read, write = (
            {kind: min((rule[at][kind] for rule in found), key=_WIDTH.__getitem__) for kind in found[0][at]}
            for at in (0, 1)
        )
        texts = {
            kind: min((scope, *(read[each] for each in self._texts[kind])), key=_WIDTH.__getitem__)
            for kind, scope in read.items()
        }
        return Rights(read, write, frozenset(name for name in names if name.startswith(_AGENT)), ids, texts)


def kinds_of(catalog: Catalog) -> dict[str, str]:
    """Return the kinds of records that rights may name, each with its relation."""
    kinds = {binding.relation.name: binding.relation.name for binding in BUILT_IN.values()}
    return kinds | {name: memory.relation.name for name, memory in catalog.memories.items()}


def _text_sources(relation: Relation) -> tuple[str, ...]:
    """Return the relations that the text of a record follows from."""
    texts = () if relation.text is None else relation.text.columns
    return tuple(each.derived_from for each in relation.follows if each.derived_from and each.name in texts)


def _plain(name: str) -> str:
    """Return an agent's name, or a role's, in its one form."""
    return _AGENT + EntityRef.plain_name(name.removeprefix(_AGENT)) if name.startswith(_AGENT) else name


def scope_of(scopes: Scopes, relation: Relation) -> str:
    """Return the scope of a right on the records of a relation: all, if no rule may name it."""
    return scopes.get(relation.rights.kind or relation.name, ALL)
