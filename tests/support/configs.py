"""Configurations for tests: the reference profile with a provider that needs no model."""

from __future__ import annotations

import uuid
from typing import Any

from caliber.config import CaliberConfig, profiles
from caliber.model import EntityRef, EntityType

DIMENSIONS = 32
HASH_PROVIDER = {"provider_type": "hash", "model": "test", "dimensions": DIMENSIONS, "options": {}}

USER = EntityRef(EntityType.USER, uuid.UUID("0190f3c2-7c00-7000-8000-000000000001"))
ADMIN = {"kind": "human", "id": "owner", "admin": True}
"""``Principal.admin()`` as a configuration states it: most tests look at the store behind the back of access."""
AGENT = EntityRef(EntityType.AGENT, USER.id)
"""Starts tasks that every principal may see."""


def config(path: str, **overrides: Any) -> CaliberConfig:
    """Return a configuration for a store at ``path``; ``overrides`` are dotted paths with ``__`` for the dot.

    Everything that polls or waits for company is off unless a test turns it on, and a failing provider is asked
    again at once.
    """
    base: dict[str, Any] = {
        "principal": ADMIN,
        "embedding_provider": HASH_PROVIDER,
        "resident.feed_poll_ms": 0,
        "resident.warm_after_ms": 0,
        "write_behind.flush_interval_ms": 10,
        "llm_retry_config.initial_backoff": 1,
        "llm_retry_config.max_backoff": 20,
    }
    if overrides.get("storage__adapter", "sqlite") == "sqlite":
        base["storage.busy_timeout_ms"] = 30_000  # who waits for the lock on a busy machine may have to wait long
    base.update({name.replace("__", "."): value for name, value in overrides.items()})
    return profiles.reference(path, **base)


def policy(on: str, *actions: dict[str, Any], name: str = "tested") -> dict[str, Any]:
    """Return one policy with one rule."""
    return {"name": name, "rules": [{"on": on, "actions": list(actions)}]}


def scheduled(cron: str, *actions: dict[str, Any], name: str = "tested") -> dict[str, Any]:
    """Return one policy that is due by a schedule."""
    made = policy("schedule", *actions, name=name)
    made["rules"][0]["cron"] = cron
    return made
