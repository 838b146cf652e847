"""Consistency checks between settings of different sections, such as limits, weights and providers.

Each check names the paths it reads. It runs whenever those are valid, even when other parts of the configuration are
not, so that one attempt reports everything.

Source: C-109, C-120, C-489, C-493, K-006, K-007 and as noted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

import pydantic
from pydantic import BaseModel, TypeAdapter

from caliber.config.access.rights import RightsConfig
from caliber.config.context import SECTION_NAMES
from caliber.config.faults import section_in, wrong
from caliber.config.injection import InjectionRule, rule_names
from caliber.config.search import WEIGHT_TOLERANCE
from caliber.config.secret import readable
from caliber.config.tenancy import TenancyConfig
from caliber.model.access import AgentRole, PrincipalKind
from caliber.model.context import ContextPersistence
from caliber.model.embedding import EmbedMode, VectorIndexType
from caliber.model.errors import ConfigError, IncompatibleOptions, InternalError, InvalidConfigValue, MissingRequired
from caliber.schema.memories import BUILT_IN

HALFVEC_MAX: Final = 4_000  # pgvector indexes up to here; above it only exact search is possible (C-493)
PGVECTOR_MAX: Final = 16_000  # pgvector stores no more

Rule = Callable[..., Iterator[ConfigError]]
CHECKS: list[tuple[tuple[str, ...], Rule]] = []


def check(*paths: str) -> Callable[[Rule], Rule]:
    """Register a rule that is given the values at ``paths``, in order."""

    def register(rule: Rule) -> Rule:
        CHECKS.append((paths, rule))
        return rule

    return register


def _clash(option_a: str, option_b: str, reason: str) -> IncompatibleOptions:
    return IncompatibleOptions(option_a=option_a, option_b=option_b, reason=reason)


# --- limits of one window (K-006) ----------------------------------------------------------------


@check("token_budget", "pcp.dosage.max_context_tokens")
def _dosage(budget: int, most: int) -> Iterator[ConfigError]:
    if most > budget:
        reason = f"{most} must not exceed {budget}: lower the former, or raise the latter"
        yield _clash("pcp.dosage.max_context_tokens", "token_budget", reason)


# --- stores and tenants --------------------------------------------------------------------------


@check("storage")
def _login(storage: Any) -> Iterator[ConfigError]:
    yield from _login_of("storage", storage)


@check("tenancy")
def _tenancy(tenancy: Any) -> Iterator[ConfigError]:
    if not isinstance(tenancy, TenancyConfig):
        return  # not there, or wrong by itself
    if tenancy.new_tenants not in tenancy.sources:
        names = ", ".join(readable(name) for name in tenancy.sources)
        yield wrong("tenancy.new_tenants", tenancy.new_tenants, f"is not a data source; there are {names}")
    for name, source in tenancy.sources.items():
        yield from _login_of(f"tenancy.sources.{readable(name)}", source)


def _login_of(path: str, storage: Any) -> Iterator[ConfigError]:
    if getattr(storage, "login_role", None) is not None and storage.login_secret is None:
        yield MissingRequired(field=f"{path}.login_secret")


# --- providers and vectors -----------------------------------------------------------------------


@check("llm_retry_config.initial_backoff", "llm_retry_config.max_backoff")
def _backoff(initial: int, most: int) -> Iterator[ConfigError]:
    if most < initial:
        reason = f"max_backoff ({most} ms) must be >= initial_backoff ({initial} ms)"
        yield _clash("llm_retry_config.max_backoff", "llm_retry_config.initial_backoff", reason)


@check("embedding_provider", "vector")
def _vector_needed(provider: object, vector: object) -> Iterator[ConfigError]:
    if provider is not None and vector is None:
        yield MissingRequired(field="vector")


@check("embedding_provider.dimensions", "vector.dimensions")
def _dimensions(provider: int | None, vector: int | None) -> Iterator[ConfigError]:
    if provider is not None and vector is not None and provider != vector:
        reason = f"{provider} and {vector} must be equal"
        yield _clash("embedding_provider.dimensions", "vector.dimensions", reason)


@check("previous_embedding_provider", "embedding_provider", "vector")
def _previous(previous: object, provider: object, vector: object) -> Iterator[ConfigError]:
    if previous is not None and provider is None and vector is None:
        yield _clash(
            "previous_embedding_provider",
            "embedding_provider",
            "it serves searches until the vectors of embedding_provider are complete, and that is not set; "
            "to keep the earlier model, set it as embedding_provider",
        )


@check("vector.dimensions", "vector.index_type")
def _index(dimensions: int | None, index: VectorIndexType | None) -> Iterator[ConfigError]:
    if dimensions is None:
        return
    if dimensions > PGVECTOR_MAX:
        reason = f"no adapter stores more than {PGVECTOR_MAX} dimensions on every database"
        yield _clash("vector.dimensions", "storage.adapter", reason)
    elif dimensions > HALFVEC_MAX and index is not VectorIndexType.EXACT:
        reason = f"above {HALFVEC_MAX} dimensions only index_type exact is possible"
        yield _clash("vector.dimensions", "vector.index_type", reason)


@check("vector.hnsw_m", "vector.hnsw_ef_construction")
def _hnsw(links: int | None, candidates: int | None) -> Iterator[ConfigError]:
    if links is not None and candidates is not None and candidates < 2 * links:
        reason = f"hnsw_ef_construction ({candidates}) must be at least twice hnsw_m ({links})"
        yield _clash("vector.hnsw_ef_construction", "vector.hnsw_m", reason)


def embed_modes(embedding: Any) -> Mapping[str, Any] | None:
    """Return the entries of ``embedding.embed``, valid or not; None where it is no table."""
    modes = embedding.get("embed") if isinstance(embedding, Mapping) else getattr(embedding, "embed", None)
    return {name: modes[name] for name in modes if isinstance(name, str)} if isinstance(modes, Mapping) else None


@check("embedding", "embedding_provider", "vector")
def _embed(embedding: Any, provider: object, vector: object) -> Iterator[ConfigError]:
    if provider is not None or vector is not None:
        return
    for name, mode in (embed_modes(embedding) or {}).items():
        if mode in (EmbedMode.BEHIND, EmbedMode.COMMIT):
            reason = "without embedding_provider and vector nothing can be embedded: choose off"
            yield _clash(f"embedding.embed.{readable(name)}", "embedding_provider", reason)


@check("search.weights.vector", "search.weights.keyword", "search.weights.graph", "search.weights.importance")
def _weights(vector: float, keyword: float, graph: float, importance: float) -> Iterator[ConfigError]:
    total = vector + keyword + graph + importance
    if abs(total - 1.0) > WEIGHT_TOLERANCE:
        yield InvalidConfigValue(field="search.weights", value=total, reason="the four weights must add up to 1")


@check("access.rights", "memories")
def _rights(rights: Any, memories: Any) -> Iterator[ConfigError]:
    declared = [getattr(memory, "name", "") for memory in memories] if isinstance(memories, tuple) else []
    kinds = sorted({*(binding.relation.name for binding in BUILT_IN.values()), *filter(None, declared)})
    roles = [role.value for role in AgentRole]
    for name, rule in rights.items() if isinstance(rights, Mapping) else ():
        if not isinstance(name, str):
            continue  # reported as no name at all
        if name not in roles and not (name.startswith("agent:") and name.removeprefix("agent:").strip()):
            yield wrong("access.rights", name, "name an agent, such as agent:planner, or a role: " + ", ".join(roles))
        for part in ("read", "write") if isinstance(rule, RightsConfig) else ():
            for kind in getattr(rule, part):
                if kind not in kinds:
                    reason = "there is no such kind; there are " + ", ".join(map(readable, kinds))
                    yield wrong(f"access.rights.{readable(name)}.{part}", kind, reason)


@check("search.weights.vector", "embedding_provider", "vector")
def _vector_weight(weight: float, provider: object, vector: object) -> Iterator[ConfigError]:
    if weight > 0 and provider is None and vector is None:
        reason = "without embedding_provider and vector there is no vector leg: give its weight to the others"
        yield _clash("search.weights.vector", "embedding_provider", reason)


@check("search.keyword.similar_words", "search.keyword.language")
def _similar(model: str, language: str) -> Iterator[ConfigError]:
    if model != "none" and language not in ("english", "porter"):
        yield _clash("search.keyword.similar_words", "search.keyword.language", f"{model} knows English words only")


# --- context -------------------------------------------------------------------------------------


@check("context_window_persistence.kind", "context_window_persistence.ttl_ms")
def _persistence(kind: ContextPersistence, ttl: int | None) -> Iterator[ConfigError]:
    if kind is ContextPersistence.TTL and ttl is None:
        yield MissingRequired(field="context_window_persistence.ttl_ms")
    if kind is not ContextPersistence.TTL and ttl is not None:
        yield _clash(
            "context_window_persistence.ttl_ms", "context_window_persistence.kind", "only kind = ttl has a ttl_ms"
        )


@check("context_window_persistence.kind", "context_window_persistence.ttl_ms", "retention.windows_ms")
def _windows(kind: ContextPersistence, ttl: int | None, kept: int | None) -> Iterator[ConfigError]:
    if kept is None:
        return
    if kind is ContextPersistence.PERMANENT:
        reason = 'permanent windows need retention.windows_ms = "forever"'
        yield _clash("context_window_persistence.kind", "retention.windows_ms", reason)
    elif kind is ContextPersistence.TTL and ttl is not None and ttl > kept:
        reason = f"windows that live {ttl} ms would be removed after {kept} ms"
        yield _clash("context_window_persistence.ttl_ms", "retention.windows_ms", reason)


@check("tokens.estimator", "tokens.vocabulary")
def _tokens(estimator: str, vocabulary: str | None) -> Iterator[ConfigError]:
    if estimator != "bytes" and vocabulary is None:
        yield MissingRequired(field="tokens.vocabulary")


@check("assembly.section_shares", "section_priorities.custom", "injection_rules")
def _shares(
    shares: Mapping[str, tuple[float, float]], custom: tuple[tuple[str, int], ...], rules: Any
) -> Iterator[ConfigError]:
    ruled = rules if isinstance(rules, tuple) and all(isinstance(rule, InjectionRule) for rule in rules) else ()
    known = {*SECTION_NAMES, *(name for name, _ in custom), *(section for _, section in rule_names(ruled))}
    for name in shares:
        if name not in known:
            reason = "there is no such section; known are " + ", ".join(sorted(map(readable, known)))
            yield wrong("assembly.section_shares", name, reason)
    floors = math.fsum(floor for floor, _ in shares.values())
    if floors > 1 + WEIGHT_TOLERANCE:
        yield wrong("assembly.section_shares", floors, "the floors of all sections must not exceed 1 together")


@check("pcp.anti_sprawl.vocabulary_enforcement", "pcp.anti_sprawl.vocabulary")
def _vocabulary(enforced: bool, terms: tuple[str, ...]) -> Iterator[ConfigError]:
    if enforced and not terms:
        reason = "an empty vocabulary allows no term at all: list terms, or turn vocabulary_enforcement off"
        yield _clash("pcp.anti_sprawl.vocabulary_enforcement", "pcp.anti_sprawl.vocabulary", reason)


@check("pcp.anti_sprawl.on_write", "pcp.anti_sprawl.linter_enabled")
def _lint_on_write(mode: str | None, enabled: bool) -> Iterator[ConfigError]:
    if mode is not None and not enabled:
        reason = "a linter that is off finds nothing: turn linter_enabled on, or leave on_write out"
        yield _clash("pcp.anti_sprawl.on_write", "pcp.anti_sprawl.linter_enabled", reason)


@check("principal.kind", "principal.role")
def _role(kind: PrincipalKind, role: object) -> Iterator[ConfigError]:
    if role is not None and kind is not PrincipalKind.AGENT:
        yield _clash("principal.role", "principal.kind", "only an agent has a role")


# --- running them --------------------------------------------------------------------------------


class _Unreadable(Exception):
    """The value at a path is missing or wrong, which is reported elsewhere."""


def run_valid(config: BaseModel, about: str | None = None) -> list[ConfigError]:
    """Return the faults between the knobs of a configuration whose single values are all right.

    ``about`` names the one section whose rules are to be run.
    """
    rules = CHECKS if about is None else _rules_about(about)
    return [fault for paths, rule in rules for fault in rule(*(_get(config, path) for path in paths))]


@functools.cache
def _rules_about(section: str) -> list[tuple[tuple[str, ...], Rule]]:
    return [(paths, rule) for paths, rule in CHECKS if any(path.partition(".")[0] == section for path in paths)]


def run(root: type[BaseModel], data: Mapping[str, Any]) -> list[ConfigError]:
    """Return the faults between those knobs of ``data`` that are right by themselves."""
    out: list[ConfigError] = []
    for paths, rule in CHECKS:
        try:
            values = [_read(root, data, path) for path in paths]
        except _Unreadable:
            continue
        out.extend(rule(*values))
    return out


def _get(config: Any, path: str) -> Any:
    value = config
    for part in path.split("."):
        if value is None:
            return None
        value = getattr(value, part)
    return value


def _read(root: type[BaseModel], data: Any, path: str) -> Any:
    """Return the value at a path of unvalidated data, validated by itself."""
    section: type[BaseModel] = root
    node = data
    *parents, last = path.split(".")
    for part in parents:
        node = _child(section, node, part)
        if node is None:
            return None
        inner = section_in(section.model_fields[part].annotation)
        if inner is None:
            raise InternalError(f"a check of the configuration names {path}, which does not exist")
        section = inner
    value = _child(section, node, last)
    field = section.model_fields[last]
    if value is None and not field.is_required():
        return None
    if section_in(field.annotation) is not None:
        return value
    try:
        return _validator(section, last).validate_python(value)
    except pydantic.ValidationError:
        pass
    raise _Unreadable


@functools.cache
def _validator(section: type[BaseModel], name: str) -> TypeAdapter[Any]:
    # Making one costs more than everything it is used for.
    field = section.model_fields[name]
    kind: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return TypeAdapter(kind)


def _child(section: type[BaseModel], node: Any, name: str) -> Any:
    if isinstance(node, BaseModel):
        return getattr(node, name)
    if not isinstance(node, Mapping):
        raise _Unreadable
    if name in node:
        value = node[name]
    elif section.model_fields[name].is_required():
        raise _Unreadable
    else:
        value = None
    if value is None and section.model_fields[name].is_required() and section_in(section.model_fields[name].annotation):
        raise _Unreadable
    return value
