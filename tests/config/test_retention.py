"""A retention without a meaning is refused, with the reason. Source: C-136 to C-138."""

from __future__ import annotations

from typing import Any

import pytest
from support.configs import config

from caliber.model.errors import CaliberError


def kept(name: str, kind: str, **how: Any) -> dict[str, Any]:
    return {
        "name": name, "type": "working", "fields": [{"name": "content", "type": "text"}],
        "retention": {"kind": kind, **how},
    }  # fmt: skip


@pytest.mark.parametrize(("memory", "reason"), [
    (kept("trajectory", "max", count=1), "a task stays until it is purged"),
    (kept("scope", "duration", duration_ms="1d"), "a scope stays with its task"),
    (kept("note", "scope"), "belong to no scope"),
    (kept("scratch", "compress_on", when={"on": "task_start"}), "nothing to compress"),
    (kept("turn_buffer", "compress_on", when={"on": "turn"}), "next window"),
])  # fmt: skip
def test_a_retention_without_a_meaning_is_refused(memory: dict[str, Any], reason: str) -> None:
    # C-136: nothing is accepted and then ignored
    with pytest.raises(CaliberError, match=reason):
        config(":memory:", memories=[memory])
