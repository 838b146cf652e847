"""What a sound configuration may ask for that this version does not do: refused, never silently ignored."""

from __future__ import annotations

from caliber.config import CaliberConfig
from caliber.llm.registry import build_embedding_provider, build_summarization_provider
from caliber.model.enums import Trigger
from caliber.model.errors import CaliberError, InvalidConfigValue, ProviderNotSupported


def refusals(config: CaliberConfig) -> list[CaliberError]:
    """Return why no program could open a store with this configuration; empty when one can."""
    found: list[CaliberError] = []
    if config.resident.evaluator != "numpy":
        # Nothing is compiled yet; taking the knob and ignoring it would be a silent default.
        found.append(
            ProviderNotSupported(
                "resident.evaluator = 'numba' comes with the compiled evaluators; use 'numpy'", provider="numba"
            )
        )
    for at, policy in enumerate(config.policies):
        for place, rule in enumerate(policy.rules):
            if rule.on is Trigger.SCHEDULE:
                found.append(
                    InvalidConfigValue(
                        field=f"policies[{at}].rules[{place}].on",
                        value=rule.on.value,
                        reason="there is no scheduler yet, so nothing would ever run this rule",
                    )
                )
    return found


def provider_refusals(config: CaliberConfig) -> list[CaliberError]:
    """Return why the providers that the configuration names cannot be built here; nothing is loaded."""
    found: list[CaliberError] = []
    embedding = None
    try:
        if config.embedding_provider is not None:
            embedding = build_embedding_provider(config.embedding_provider)
    except CaliberError as error:
        found.append(error)
    try:
        if config.summarization_provider is not None:
            build_summarization_provider(config.summarization_provider, embedding, len)
    except CaliberError as error:
        found.append(error)
    return found
