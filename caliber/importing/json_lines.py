"""Parsing of one JSON object per line, with an error for anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def json_object(raw: bytes, wrong: Callable[[str], Exception]) -> dict[str, Any]:
    """Return the JSON object of a text. Raises: the error that ``wrong`` makes of the reason."""
    try:
        data = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise wrong(f"not UTF-8 (byte {error.start + 1})") from None
    except json.JSONDecodeError as error:
        raise wrong(f"not JSON: {error.msg} at column {error.colno}") from None
    except (RecursionError, ValueError):
        raise wrong("not JSON that can be read: nested too deeply, or a number too long") from None
    if not isinstance(data, dict):
        raise wrong(f"expected an object, got {type(data).__name__}")
    return data
