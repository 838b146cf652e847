"""Every knob acts, or its own declaration says that nothing reads it yet. Source: design section 8."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo
from support.configs import config

import caliber
from caliber.config import CaliberConfig
from caliber.config.knobs import Section
from caliber.config.render import render_toml

ROOT = Path(caliber.__file__).parent

READ_THROUGH = {
    "embedding.embed_turns": "MODES",
    "embedding.embed_notes": "MODES",
    "embedding.embed_artifacts": "MODES",
    "embedding.embed_summaries": "MODES",
    "assembly.section_max_tokens": "section_cap",
    "pcp.recovery_points.max_checkpoints": "checkpoint_retention",
    "access.default_visibility": "for_role",
    # tokens.vocabulary has the same last name.
    "cache_dir": r"\.cache_path",
    "pcp.anti_sprawl.vocabulary": r"anti_sprawl\.vocabulary",
    "trust": r"trust\.of_turn",
    # Read by one function, through the names of RetrySettings.
    "llm_retry_config": "RetrySettings",
}
"""Knobs that other rooms read by another name than their own."""


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


def _source() -> str:
    files = (file for file in ROOT.rglob("*.py") if "config" not in file.relative_to(ROOT).parts)
    return "\n".join(file.read_text() for file in files)


KNOBS = dict(_knobs(CaliberConfig))


def _is_later(field: FieldInfo) -> bool:
    about: Any = field.json_schema_extra
    return bool(about["later"])


def test_a_knob_is_read_outside_the_configuration_or_says_that_it_is_not() -> None:
    source = _source()

    def is_read(path: str) -> bool:
        prefix = next((known for known in READ_THROUGH if path == known or path.startswith(f"{known}.")), None)
        name = READ_THROUGH[prefix] if prefix else rf"\.{path.rsplit('.', 1)[-1]}"
        return re.search(rf"{name}\b", source) is not None

    silent = [path for path, field in KNOBS.items() if not _is_later(field) and not is_read(path)]
    assert silent == [], "nothing reads these knobs: wire them, or declare them later=True"
    wired = [path for path, field in KNOBS.items() if _is_later(field) and is_read(path)]
    assert wired == [], "these knobs are read by now: take later=True away"


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
