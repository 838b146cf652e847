"""Completion of a file's settings from its base (profile or configuration), and record of those it set itself.

A file names a profile itself (``base = "chat-companion"``), or the caller does. Beside a profile, a provider may be one
word (``embedding_provider = "openai"``): the section that ``caliber init --embedding`` writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from caliber.config.faults import wrong
from caliber.config.nested import merged, value_at
from caliber.config.storage import POSTGRES_ADAPTERS
from caliber.model.errors import ConfigError, IncompatibleOptions, MultipleErrors

KNOB: Final = "base"
NONE: Final = "none"
_EMBEDS: Final = "embedding_provider"
_PROGRAM: Final = "caliber"
_STORE: Final = f"{_PROGRAM}.db"
_VARIABLE: Final = "env:CALIBER_DSN"
_SUFFIXES: Final = (".toml", ".json", ".caliber")


class Origin(NamedTuple):
    """The profile that a file is based on, and the dotted paths that the file itself sets."""

    base: str
    stated: tuple[str, ...]

    def states(self, path: str) -> bool:
        """Return whether the file itself sets the knob, a section above it or an entry of it."""
        return any(path == one or path.startswith(f"{one}.") or one.startswith(f"{path}.") for one in self.stated)


class Completed(NamedTuple):
    """The nested data of a file completed by its base; ``origin`` is None without a profile."""

    data: dict[str, Any]
    origin: Origin | None


def complete(fields: Mapping[str, Any], base: Mapping[str, Any] | str | None = None) -> Completed:
    """Return the data of a file with the settings of its base, or of ``base``.

    Raises: MultipleErrors for a base that is no profile, for two different bases, and for an unknown provider kind.
    """
    data = dict(fields)
    named = data.pop(KNOB) if KNOB in data else None
    if KNOB in fields:
        _check_profile(named, KNOB)
        if base is not None and base != named:
            other = base if isinstance(base, str) else "a configuration"
            reason = f"the file is based on {named}, and base= names {other}: remove one of the two"
            raise MultipleErrors(errors=[IncompatibleOptions(option_a=KNOB, option_b="base=", reason=reason)])
        base = named
    if base is None:
        return Completed(data, None)
    if isinstance(base, Mapping):
        return Completed(merged(base, data), None)
    _check_profile(base, KNOB)
    stated = tuple(_paths(data, ""))
    supplied, data = _fitted(base, data)
    return Completed(merged(supplied, data), Origin(base, stated))


def _check_profile(name: object, field: str) -> None:
    from caliber.config.profiles.fitting import NAMES

    names = ", ".join(NAMES)
    if not isinstance(name, str):
        reason = f"must be the name of a profile in quotes: {names}"
    elif name.lower().endswith(_SUFFIXES):
        reason = f"names a profile, not a file: a file cannot be the base of another; there are {names}"
    elif name not in NAMES:
        from caliber.model.hints import did_you_mean  # for a text of a fault alone

        hint = did_you_mean(name[:64].lower().replace("_", "-"), NAMES, mark="")
        reason = f"there is no such profile; {f'{hint} ' if hint else ''}there are {names}"
    else:
        return
    raise MultipleErrors(errors=[wrong(field, name, reason)])


def _paths(data: Mapping[str, Any], above: str) -> Iterator[str]:
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _paths(value, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def _fitted(profile: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a profile fitted to a file, and the file's data without the words for providers.

    Fitted: to its adapter, to its providers, to its vectors, and to knobs that others must agree with.
    """
    # Profiles are read when a file names one: most programs read one file, and most of those state everything.
    from caliber.config.profiles import fitting, services

    providers = _providers(fields)
    data = {name: value for name, value in fields.items() if not (name in providers and isinstance(value, str))}
    changes = {path: value for path in fitting.FOLLOWED if (value := value_at(data, path)) is not None}
    changes |= providers
    embeds = changes[_EMBEDS] = providers[_EMBEDS] if _EMBEDS in providers else _local(data)
    if embeds is None:
        changes = {path: value for path, value in changes.items() if path not in fitting.DIMENSIONS}
    else:
        changes |= services.CHANGES.get(embeds["provider_type"], {})
    adapter = value_at(data, "storage.adapter") or "sqlite"
    remote = adapter in POSTGRES_ADAPTERS
    if remote:
        changes["storage.adapter"] = "postgres"
    where = _VARIABLE if remote else _STORE
    supplied = fitting.values(profile, where, changes)
    if embeds is None and "vector" in data:
        # A space and no provider: the program hands in its vectors.
        beside = {**changes, _EMBEDS: services.EMBEDDING["static"]}
        supplied["vector"] = fitting.values(profile, where, beside)["vector"]
    supplied["storage"]["adapter"] = adapter
    if remote:
        del supplied["storage"]["dsn"]
    if isinstance(data.get("tenancy"), Mapping):
        storage = data.get("storage", {})
        filled = merged(supplied["storage"], storage) if isinstance(storage, Mapping) else supplied["storage"]
        supplied["tenancy"] = fitting.tenancy_values(data["tenancy"], filled)
    return supplied, data


def _local(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the provider of a profile for a file that names none; None where the file's vectors are of other lengths.

    Vectors of a length that the provider does not make are handed in by the program.
    """
    from caliber.config.profiles import fitting, services

    provider = services.EMBEDDING["static"]
    stated = value_at(data, "vector.dimensions")
    return provider if fitting.embed_available() and stated in (None, provider["dimensions"]) else None


def _providers(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of the providers that a file names, completed by presets; None: no provider."""
    from caliber.config.profiles import services

    tables = {
        _EMBEDS: services.EMBEDDING,
        "previous_embedding_provider": services.EMBEDDING,
        "summarization_provider": services.SUMMARIZATION,
    }
    out: dict[str, Any] = {}
    found: list[ConfigError] = []
    for knob, kinds in tables.items():
        value = fields.get(knob)
        if isinstance(value, str) and value != NONE and value not in kinds:
            names = ", ".join([*kinds, NONE])
            reason = f"there is no such kind of provider; there are {names}; or write a section [{knob}]"
            found.append(wrong(knob, value, reason))
        elif isinstance(value, str):
            out[knob] = dict(kinds[value]) if value in kinds else None
        elif isinstance(value, Mapping) and isinstance(value.get("provider_type"), str):
            out[knob] = merged(kinds.get(value["provider_type"], {}), value)
        elif value is None and knob in fields:
            out[knob] = None
    if found:
        raise MultipleErrors(errors=found)
    return out
