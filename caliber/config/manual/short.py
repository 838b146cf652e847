"""Text of the short configuration file of ``caliber init``: a base profile and what users change first."""

from __future__ import annotations

import json
from typing import Any, Final

from caliber.config.manual.render import about, render_value
from caliber.config.nested import value_at
from caliber.config.profiles.fitting import NAMES
from caliber.config.tree import CaliberConfig
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import format_duration

HEADER: Final = (
    "A configuration of CALIBER. `caliber check` sums it up, `caliber check --explain KEY` explains any setting,",
    "`caliber init --full` writes all of them out. Durations: 250ms, 30s, 15m, 1h, 7d, 2w.",
)
BASE: Final = f"The profile that supplies what this file omits: {', '.join(NAMES)}."
EMBEDDING: Final = (
    "Vectors to find texts by meaning: static, minilm (both on this machine), openai, voyage, ollama, none."
)
SUMMARIES: Final = "Summaries: extractive (on this machine, no language model), openai, anthropic, ollama, none."
BUDGET: Final = "Longest context window, in tokens."
STORE: Final = "The store: one SQLite file, relative to this file."
TENANCY: Final = "A store for each tenant, in the database of [storage], or in the folder tenants beside its file."
PRINCIPAL: Final = (
    "The principal of a handle that is opened without one: the application acts for the user of a task or call."
)
_POSTGRES: Final = 'In PostgreSQL: adapter = "postgres" and dsn = "env:NAME", a variable that holds the address.'
_EXAMPLES: Final = (
    ("How long records of operation stay: a duration, or forever.", "retention", ("windows_ms", "events_ms")),
    ("Most memory that the store may take, in bytes.", "resident", ("resident_bytes",)),
)


@dataclass(frozen=True, slots=True)
class Short:
    """The choices of a short configuration file, and the configuration that they make."""

    profile: str
    store: str
    embedding: str
    summaries: str
    config: CaliberConfig

    @property
    def data(self) -> dict[str, Any]:
        """The nested data of the file."""
        data: dict[str, Any] = {
            "base": self.profile,
            "embedding_provider": self.embedding,
            "summarization_provider": self.summaries,
            "token_budget": self.config.token_budget,
            "storage": {"adapter": "sqlite", "path": self.store},
            "principal": {"kind": self.config.principal.kind.value, "id": self.config.principal.id},
        }
        if self.config.tenancy is not None:
            data["tenancy"] = {"new_tenants": self.config.tenancy.new_tenants}
        return data

    @property
    def keys(self) -> list[str]:
        """The comment on the variables that hold the keys of services; empty without any."""
        both = (self.config.embedding_provider, self.config.summarization_provider)
        names = sorted({one.api_key.name for one in both if one is not None and one.api_key is not None})
        return [f"Keys of services are read from the environment: {', '.join(names)}."] if names else []


def short_json(short: Short) -> str:
    """Return the choices as an indented JSON document."""
    return json.dumps(short.data, indent=2, ensure_ascii=False) + "\n"


def short_toml(short: Short) -> str:
    """Return the choices as a commented TOML document of at most 40 lines."""
    data = short.data
    lines = [*(f"# {line}" for line in HEADER)]
    comments = {
        "base": ["", f"# {BASE}"],
        "embedding_provider": ["", f"# {EMBEDDING}"],
        "summarization_provider": [f"# {SUMMARIES}"],
        "token_budget": [*(f"# {line}" for line in short.keys), "", f"# {BUDGET}"],
    }
    for name, comment in comments.items():
        lines += [*comment, f"{name} = {render_value(data[name])}"]
    lines += ["# Texts that every window begins with.", '# system_instructions = "…"', '# persona = "…"']
    lines += ["", f"# {STORE}", f"# {_POSTGRES}", "[storage]"]
    lines += [f"{name} = {render_value(value)}" for name, value in data["storage"].items()]
    if "tenancy" in data:
        lines += ["", f"# {TENANCY}", "[tenancy]", f"new_tenants = {render_value(data['tenancy']['new_tenants'])}"]
    lines += ["", f"# {PRINCIPAL}", "[principal]"]
    lines += [f"{name} = {render_value(value)}" for name, value in data["principal"].items()]
    values = short.config.to_mapping()
    for meaning, section, names in _EXAMPLES:
        lines += ["", f"# {meaning}", f"# [{section}]"]
        fields = type(getattr(short.config, section)).model_fields
        for name in names:
            value = value_at(values, f"{section}.{name}")
            is_time = isinstance(value, int) and about(fields[name])["unit"] == "ms"
            lines.append(f"# {name} = {render_value(format_duration(value) if is_time else value)}")
    return "\n".join(lines) + "\n"
