"""Safe parsing of TOML and JSON text, with limits of size and depth. Source: C-123, design section 10."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from caliber.config.secret import scrub
from caliber.model.errors import ConfigError, InvalidConfigValue, MultipleErrors

MAX_BYTES: Final = 4 << 20
QUOTED_CHARS: Final = 100


def fail(error: ConfigError) -> NoReturn:
    """Raise ``error`` as every fault of a configuration is raised."""
    raise MultipleErrors(errors=[error])


def _unparsed(kind: str, text: object, reason: str) -> ConfigError:
    start = scrub(text[: 4 * QUOTED_CHARS])[:QUOTED_CHARS] if isinstance(text, str) else ""
    return InvalidConfigValue(f"this is not {kind.upper()}: {reason}", field=kind, value=start, reason=reason)


def parse_toml(text: str) -> dict[str, Any]:
    """Return a TOML document as nested data.

    Raises: MultipleErrors with one fault of field ``toml``, with line and column.
    """
    reason = _unfit(text)
    if reason is None:
        import tomllib

        try:
            return tomllib.loads(text)
        except RecursionError:
            reason = "it is nested too deeply"
        except ValueError as error:
            reason = str(error).replace("at end of document", _end(text))
    fail(_unparsed("toml", text, reason))


def parse_json(text: str) -> dict[str, Any]:
    """Return a JSON document, which must be an object, as nested data.

    Raises: MultipleErrors with one fault of field ``json``, with line and column.
    """
    reason = _unfit(text)
    if reason is None:
        try:
            data = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
            if isinstance(data, dict):
                return data
            reason = "the document must be an object"
        except RecursionError:
            reason = "it is nested too deeply"
        except json.JSONDecodeError as error:
            reason = f"{error.msg} (at line {error.lineno}, column {error.colno})"
        except ValueError as error:
            reason = str(error)
    fail(_unparsed("json", text, reason))


def _unfit(text: object) -> str | None:
    if not isinstance(text, str):
        return f"expected text, got {type(text).__name__}"
    return f"it is longer than {MAX_BYTES} characters" if len(text) > MAX_BYTES else None


def _end(text: str) -> str:
    return f"at line {text.count(chr(10)) + 1}, column {len(text) - text.rfind(chr(10))}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"the key {key[:64]!r} comes twice in one object")
        out[key] = value
    return out


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that a configuration can hold")
