"""Configurations that earlier versions stored, in today's names: a window is replayed under the one it was made under.

Only what a store keeps is read so. A file that somebody wrote says what it means in the names of its version.
"""

from __future__ import annotations

from typing import Any, Final

from caliber.config.providers import EMBED_DEFAULT

_EMBED_KNOBS: Final = {
    "embed_turns": "turn",
    "embed_notes": "note",
    "embed_artifacts": "artifact",
    "embed_summaries": "scope",
    "embed_memories": EMBED_DEFAULT,
}
"""Knobs of schema 2, each an entry of ``embedding.embed`` now."""


def renamed(data: dict[str, Any]) -> dict[str, Any]:
    """Return a stored configuration in today's names."""
    embedding = data.get("embedding")
    if isinstance(embedding, dict) and _EMBED_KNOBS.keys() <= embedding.keys():
        modes = {kind: embedding[name] for name, kind in _EMBED_KNOBS.items()}
        rest = {name: value for name, value in embedding.items() if name not in _EMBED_KNOBS}
        data = {**data, "embedding": {**rest, "embed": modes}}
    return data
