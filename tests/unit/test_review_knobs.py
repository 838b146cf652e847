"""What the declaration of a knob says is told to people, and holds. Source: design section 8."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo
from support.configs import config

import caliber
from caliber.config import CaliberConfig
from caliber.config.knobs import Section
from caliber.config.manual.render import render_toml


def _knobs(cls: type[Section], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in cls.model_fields.items():
        inner = [
            kind
            for kind in (field.annotation, *get_args(field.annotation))
            if isinstance(kind, type) and issubclass(kind, Section)
        ]
        if inner and name != "policies":
            yield from _knobs(inner[0], f"{above}{name}.")
        elif name != "policies":
            yield f"{above}{name}", field


KNOBS = dict(_knobs(CaliberConfig))


def _is_later(field: FieldInfo) -> bool:
    about: Any = field.json_schema_extra
    return bool(about["later"])


def test_the_commented_file_says_which_knobs_are_not_read_yet(tmp_path: Path) -> None:
    text = render_toml(caliber.profiles.reference(tmp_path / "a.db"))
    lines = text.splitlines()
    marked = {lines[at + 1].split(" =")[0] for at, line in enumerate(lines) if "Not read yet." in line and at > 6}
    assert marked == {path.rsplit(".", 1)[-1] for path, field in KNOBS.items() if _is_later(field)}


def test_a_lock_is_held_for_lock_timeout_unless_the_call_says_otherwise() -> None:
    # C-112
    with caliber.open(config(":memory:", lock_timeout="7s")) as memory:
        lock = memory.agents.acquire("r", holder="me")
        assert (lock.expires_at - lock.acquired_at).total_seconds() == 7
        shorter = memory.agents.acquire("r", holder="me", lease_ms=1_000)
        assert (shorter.expires_at - shorter.acquired_at).total_seconds() == 1
