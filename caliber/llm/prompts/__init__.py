"""Loader of the prompts for language models: one text per call, shipped or from a configured folder.

A set of prompts is part of the model: its hash is part of ``model_id``, so results of different prompts are never
mixed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from caliber.model.errors import InvalidConfigValue
from caliber.model.process.files import read_bytes
from caliber.model.process.interrupts import let_through

BUILTIN: Final = "builtin"
CALLS: Final = (
    "summarize",
    "extract_artifacts",
    "generate_notes",
    "merge_notes",
    "verify_contradiction",
    "decide_consolidation",
    "extract_facts",
    "decide_facts",
)
_MAX_BYTES: Final = 64 * 1024


def load_prompts(where: str) -> Mapping[str, str]:
    """Return the prompts by call: the built-in ones, or ``CALL.txt`` of each call in a folder.

    Raises: InvalidConfigValue when one is missing, empty, too long or not UTF-8.
    """
    folder = Path(__file__).parent if where == BUILTIN else Path(where).expanduser()
    return {call: _read(folder / f"{call}.txt", where) for call in CALLS}


def prompts_id(prompts: Mapping[str, str]) -> str:
    """Return a short name of exactly these prompts."""
    digest = hashlib.sha256("\0".join(prompts[call] for call in CALLS).encode())
    return f"prompts-{digest.hexdigest()[:8]}"


def _read(path: Path, where: str) -> str:
    fault = ""
    try:
        raw = read_bytes(path, _MAX_BYTES + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        let_through(error)
        fault = f"{path.name}: {error.strerror}"
    except UnicodeDecodeError:
        fault = f"{path.name} is not UTF-8"
    else:
        if len(raw) > _MAX_BYTES:
            fault = f"{path.name} is larger than {_MAX_BYTES} bytes"
        elif not text.strip():
            fault = f"{path.name} is empty"
    if fault:
        raise InvalidConfigValue(field="summarization_provider.chat.prompts", value=repr(where), reason=fault)
    return text.strip()
