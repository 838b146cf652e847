"""Loader of TOML and JSON configuration files: parses by suffix, resolves relative paths, reports errors.

Source: C-123, design section 8.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from caliber.config.bases import Completed, complete
from caliber.config.faults import wrong
from caliber.config.parsing import MAX_BYTES, fail, parse_json, parse_toml
from caliber.config.secret import PREFIX
from caliber.config.storage import MEMORY
from caliber.config.tree import CaliberConfig, values_of
from caliber.model.errors import InvalidConfigValue
from caliber.model.process.files import read_bytes
from caliber.model.process.interrupts import let_through

PROGRAM_SUFFIX: Final = ".caliber"


def complete_file(file: Path, *, base: CaliberConfig | str | None = None) -> Completed:
    """Return the data of a ``.toml`` or ``.json`` file, completed by its base, or ``base``.

    Raises: MultipleErrors for a file that cannot be read or parsed, or whose base is no profile.
    """
    parsers = {".toml": parse_toml, ".json": parse_json}
    suffix = file.suffix.lower()
    if suffix not in parsers:
        fail(wrong("path", file.name, "a configuration ends in .caliber, .toml or .json"))
    completed = complete(parsers[suffix](read_file(file)), values_of(base))
    return completed._replace(data=anchor(completed.data, file.absolute().parent))


def anchor(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return ``data`` with its relative paths led from ``folder``."""
    out = dict(data)
    if isinstance(out.get("cache_dir"), str):
        out["cache_dir"] = _anchored(out["cache_dir"], folder)
    out["storage"] = _with_path(out.get("storage"), folder)
    if out["storage"] is None:
        del out["storage"]
    tenancy = out.get("tenancy")
    if isinstance(tenancy, dict):
        out["tenancy"] = {**tenancy}
        if "directory" in tenancy:
            out["tenancy"]["directory"] = _with_path(tenancy["directory"], folder)
        sources = tenancy.get("sources")
        if isinstance(sources, dict):
            out["tenancy"]["sources"] = {name: _with_path(source, folder) for name, source in sources.items()}
    return out


def _with_path(section: Any, folder: Path) -> Any:
    if isinstance(section, dict) and isinstance(section.get("path"), str):
        return {**section, "path": _anchored(section["path"], folder)}
    return section


def _anchored(path: str, folder: Path) -> str:
    if not path.strip() or path == MEMORY or path.startswith((PREFIX, "~")) or "://" in path:
        return path
    return os.path.normpath(folder / path)


def read_file(file: Path) -> str:
    """Return the text of a file that may hold a configuration. Raises: MultipleErrors with one fault."""
    try:
        reason = "is a pipe, not a file"  # opening it would wait for a writer
        if not file.is_fifo():
            raw = read_bytes(file, MAX_BYTES + 1)
            if len(raw) <= MAX_BYTES:
                return raw.decode("utf-8-sig")
            reason = f"is larger than {MAX_BYTES} bytes"
    except FileNotFoundError:
        reason = "there is no such file; write one with `caliber init`"
    except IsADirectoryError:
        reason = "is a folder, not a file"
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text (byte {error.start})"
    except (OSError, ValueError) as error:
        let_through(error)
        reason = f"cannot be read ({getattr(error, 'strerror', None) or 'not a usable path'})"
    return fail(InvalidConfigValue(f"{file}: {reason}", field="path", value=str(file), reason=reason))
