"""List of all built-in relations, ordered so that referenced relations come first."""

from collections.abc import Iterable

from caliber.schema.relation import Relation
from caliber.schema.relations.access import GRANT, IDENTITY
from caliber.schema.relations.agents import (
    AGENT,
    AGENT_GROUP,
    AGENT_MESSAGE,
    DELEGATION,
    GROUP_MEMBER,
    HANDOFF,
    LOCK,
    LOCK_WAITER,
)
from caliber.schema.relations.context import CONTENT_VERSION, CONTEXT_WINDOW, PENDING_INJECTION
from caliber.schema.relations.embedding import EMBEDDING, EMBEDDING_CACHE, EMBEDDING_SPACE
from caliber.schema.relations.events import ERASURE, EVENT
from caliber.schema.relations.jobs import JOB
from caliber.schema.relations.knowledge import EDGE, NOTE, PERSON_FACT, USAGE
from caliber.schema.relations.pcp import CHECKPOINT, CONFLICT
from caliber.schema.relations.storage import (
    CHANGE,
    CODE_MAX,
    CONFIG_DOCUMENT,
    FIRST_CODE,
    LAST_CODE,
    MEMORY_TYPE,
    SCHEMA_MIGRATION,
    TENANT,
)
from caliber.schema.relations.trajectory import ARTIFACT, SCOPE, SESSION, TRAJECTORY, TURN, TURN_SUMMARY
from caliber.schema.relations.workspace import CALENDAR_EVENT, TODO, TODO_DEPENDENCY, WORKSPACE_VALUE

RELATIONS: tuple[Relation, ...] = (
    SESSION,
    TRAJECTORY,
    SCOPE,
    TURN,
    TURN_SUMMARY,
    ARTIFACT,
    CHECKPOINT,
    AGENT,
    AGENT_GROUP,
    GROUP_MEMBER,
    NOTE,
    PERSON_FACT,
    USAGE,
    EDGE,
    CONFLICT,
    EMBEDDING_SPACE,
    EMBEDDING,
    EMBEDDING_CACHE,
    CONTEXT_WINDOW,
    CONTENT_VERSION,
    PENDING_INJECTION,
    LOCK,
    LOCK_WAITER,
    DELEGATION,
    HANDOFF,
    WORKSPACE_VALUE,
    TODO,
    TODO_DEPENDENCY,
    CALENDAR_EVENT,
    AGENT_MESSAGE,
    EVENT,
    CHANGE,
    ERASURE,
    JOB,
    IDENTITY,
    GRANT,
    CONFIG_DOCUMENT,
    MEMORY_TYPE,
    SCHEMA_MIGRATION,
)

DIRECTORY: tuple[Relation, ...] = (TENANT, SCHEMA_MIGRATION)
"""The relations of the tenant directory, which is a separate store."""


def check_codes(relations: Iterable[Relation]) -> None:
    """Raise AssertionError unless each relation has a unique name and a unique code in the range of built-in relations.

    Change records name relations by their codes; ``FIRST_CODE`` to ``LAST_CODE`` belong to declared memories.
    """
    by_code: dict[int, str] = {}
    names: set[str] = set()
    for relation in relations:
        if relation.name in names:
            raise AssertionError(f"two relations have the name {relation.name}")
        if relation.code in by_code:
            raise AssertionError(f"{by_code[relation.code]} and {relation.name} both have the code {relation.code}")
        if not (0 < relation.code < FIRST_CODE or LAST_CODE < relation.code <= CODE_MAX):
            raise AssertionError(
                f"{relation.name} has the code {relation.code}, which is not in 1 to {FIRST_CODE - 1}"
                f" or {LAST_CODE + 1} to {CODE_MAX}"
            )
        names.add(relation.name)
        by_code[relation.code] = relation.name


check_codes((*RELATIONS, TENANT))

MIRRORED: tuple[Relation, ...] = tuple(relation for relation in RELATIONS if relation.mirrored)

BY_CODE: dict[int, Relation] = {relation.code: relation for relation in RELATIONS}
BY_NAME: dict[str, Relation] = {relation.name: relation for relation in RELATIONS}

__all__ = [
    "AGENT",
    "AGENT_GROUP",
    "AGENT_MESSAGE",
    "ARTIFACT",
    "BY_CODE",
    "BY_NAME",
    "CALENDAR_EVENT",
    "CHANGE",
    "CHECKPOINT",
    "CONFIG_DOCUMENT",
    "CONFLICT",
    "CONTENT_VERSION",
    "CONTEXT_WINDOW",
    "DELEGATION",
    "DIRECTORY",
    "EDGE",
    "EMBEDDING",
    "EMBEDDING_CACHE",
    "EMBEDDING_SPACE",
    "ERASURE",
    "EVENT",
    "GRANT",
    "GROUP_MEMBER",
    "HANDOFF",
    "IDENTITY",
    "JOB",
    "LOCK",
    "LOCK_WAITER",
    "MEMORY_TYPE",
    "MIRRORED",
    "NOTE",
    "PENDING_INJECTION",
    "PERSON_FACT",
    "RELATIONS",
    "SCHEMA_MIGRATION",
    "SCOPE",
    "SESSION",
    "TENANT",
    "TODO",
    "TODO_DEPENDENCY",
    "TRAJECTORY",
    "TURN",
    "TURN_SUMMARY",
    "USAGE",
    "WORKSPACE_VALUE",
    "Relation",
]
