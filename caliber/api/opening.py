"""Functions that create, migrate, open, restore and purge a store; ``open`` returns a ``Caliber``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from caliber.api.caliber import Caliber
from caliber.api.starting import handle_of, start_engine
from caliber.backends import backend
from caliber.config import CaliberConfig
from caliber.config.storage import MEMORY
from caliber.dsl.loading import ConfigSource, config_of
from caliber.llm.protocols import EmbeddingProvider, SummarizationProvider
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.erasure import ForgetReport
from caliber.model.errors import DTypeError
from caliber.model.progress import Progress, Tracer, unheard
from caliber.model.time import Clock, SystemClock
from caliber.storage.protocol import ConnectionPool

if TYPE_CHECKING:
    from caliber.admin.backup import RestoreReport
    from caliber.storage.migrate.memory_steps import MigrationPlan


def _of_tenant(config: CaliberConfig, tenant: str | None) -> CaliberConfig:
    if tenant is None:
        return config
    from caliber.api.tenants import tenant_config

    return tenant_config(config, tenant)


def create(config: ConfigSource, *, tenant: str | None = None, exist_ok: bool = False) -> None:
    """Create an empty store: the configured one, or one for a new tenant, which is added to the directory.

    A tenant's name is any text of up to 1,024 bytes of UTF-8 without control characters.

    Raises: Conflict when it exists and ``exist_ok`` is false, Unavailable, SchemaMismatch, MultipleErrors;
        MissingRequired for a tenant without the section tenancy.
    """
    settings = config_of(config)
    _create(settings, tenant, exist_ok=arguments.as_flag(exist_ok, "exist_ok"))


def _create(settings: CaliberConfig, tenant: str | None, *, exist_ok: bool) -> None:
    if tenant is not None:
        from caliber.api.tenants import Tenants

        with Tenants(settings, create=True) as tenants:
            tenants.create(tenant, exist_ok=exist_ok)
        return
    backend(settings.storage.adapter).create(settings, exist_ok=exist_ok, clock_us=SystemClock().now_us)


def _add_memories(settings: CaliberConfig) -> None:
    """Give a store the declared memories, fields and indexes that it lacks. Raises: as ``migrate``."""
    plan = backend(settings.storage.adapter).plan_migration(settings, clock_us=SystemClock().now_us)
    if plan.steps and not plan.versions:  # a store of an older version is migrated when somebody says so
        migrate(settings)


def migrate(
    config: ConfigSource, *, tenant: str | None = None, drop: Sequence[str] = (), progress: Progress | None = None
) -> list[int]:
    """Bring a store up to this version's schema and the declared memories; return the schema versions applied.

    ``drop`` names memories (``NAME``, with its records) and fields (``NAME.FIELD``) to remove. Nothing else is removed.
    ``progress`` is called with the number of texts indexed and the total, where full text is rebuilt.

    Raises: as ``create``; SchemaMismatch for a declaration that what is there cannot become; InvalidValue.
    """
    settings = _of_tenant(config_of(config), tenant)
    arguments.as_callback(progress, "progress")
    named = arguments.as_names(drop, "drop")
    applied = backend(settings.storage.adapter).migrate(settings, clock_us=SystemClock().now_us, drop=named)
    if settings.memories or named:
        from caliber.admin.checking import complete_full_text  # most stores declare no memories

        complete_full_text(settings, progress)
    return applied


def plan_migration(config: ConfigSource, *, tenant: str | None = None, drop: Sequence[str] = ()) -> MigrationPlan:
    """Return the steps that ``migrate`` would run and skip, without running them. Raises: as ``migrate``."""
    settings = _of_tenant(config_of(config), tenant)
    module = backend(settings.storage.adapter)
    return module.plan_migration(settings, clock_us=SystemClock().now_us, drop=arguments.as_names(drop, "drop"))


def restore(
    config: ConfigSource,
    path: str | os.PathLike[str],
    *,
    tenant: str | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> RestoreReport:
    """Replace the configured store with the content of a backup (``admin.backup``): ``*.zip``, or ``*.db`` of SQLite.

    All or nothing: a failure leaves the old store. The archive is checked before, and the restored rows are read back
    before the commit. Programs that have the store open reload everything; their writes after the backup are lost. A
    missing store is created; a ``tenant`` must be in the directory.

    Raises: Conflict for a store that holds records, unless ``replace``; StorageError for a damaged backup;
        InvalidValue, SchemaMismatch, Unavailable, ExtraNotInstalled.
    """
    from caliber.admin import backup as backups  # few processes restore

    settings = _of_tenant(config_of(config), tenant)
    source, over = arguments.as_path(path, "path"), arguments.as_flag(replace, "replace")
    report = arguments.as_callback(progress, "progress") or unheard
    return backups.restore(settings, source, replace=over, progress=report)


def purge(
    config: ConfigSource,
    *,
    tenant: str | None = None,
    dry_run: bool = False,
    wait_ms: int | None = None,
    scrub_log: bool = False,
) -> ForgetReport:
    """Remove a store and everything in it, files and all; ``dry_run`` only counts its records.

    ``scrub_log`` has the log of a PostgreSQL server written over too.

    A tenant's name stays in the directory as dropped. What keeps copies elsewhere is named in the report.

    Raises: Unavailable when others have it open, or it is not there; SchemaMismatch, MultipleErrors.
    """
    from caliber.erasure.service import purge_store

    settings = config_of(config)
    arguments.as_flag(dry_run, "dry_run")
    arguments.as_flag(scrub_log, "scrub_log")
    if tenant is None:
        return purge_store(settings, dry_run=dry_run, wait_ms=wait_ms, scrub_log=scrub_log)
    from caliber.api.tenants import Tenants

    with Tenants(settings) as tenants:
        left_behind = tenants.get(tenant).old is not None
        report = purge_store(tenants.config(tenant), dry_run=dry_run, wait_ms=wait_ms, scrub_log=scrub_log)
        if dry_run or (report.remaining and report.findings):  # the log may remain when the store is gone
            return report
        tenants.drop(tenant)
    kept = ["the directory of tenants keeps its name, as dropped"]
    if left_behind:
        kept.append("what it left behind when it moved was removed, and neither overwritten nor looked through")
    return replace(report, out_of_reach=(*report.out_of_reach, *kept))


def open(  # noqa: A001  (the pinned name)
    config: ConfigSource,
    *,
    tenant: str | None = None,
    create: bool = False,
    memories: Sequence[str | Mapping[str, Any]] = (),
    principal: Principal | None = None,
    embedding_provider: EmbeddingProvider | None = None,
    previous_embedding_provider: EmbeddingProvider | None = None,
    summarization_provider: SummarizationProvider | None = None,
    clock: Clock | None = None,
    connection_pool: ConnectionPool | None = None,
    tracer: Tracer | None = None,
) -> Caliber:
    """Open a store; what is None comes from the configuration.

    ``create`` creates what is not there: the store, and declared memories, fields and indexes that it lacks.
    ``memories`` are declared besides those of the configuration: names of declarations that come with CALIBER
    (``"blocks"``), or mappings as in a configuration.

    ``config`` is a configuration, the path of one, or the path of a store (``agent.db``) of profile ``chat_companion``.

    ``principal`` is whom the handle acts for; in the shipped profiles the application, which acts for the user of a
    task or call, and else sees what is shared. What administers needs ``Principal.admin()``.

    ``tenant`` opens the store of a tenant, wherever the directory of ``tenancy`` says it is; without it ``storage`` is
    opened.

    ``connection_pool`` is a pool of the caller's, such as ``psycopg_pool.ConnectionPool``, that a store in PostgreSQL
    is to take its connections from (decision 0090); whoever made it closes it.

    ``tracer`` is told of every operation, such as ``caliber.integrations.otel.OpenTelemetry()``; docs/observability.md.

    Raises: Unavailable (missing, locked, read-only, a tenant that is moving or was dropped), NotFound (no such tenant),
        SchemaMismatch (not a store, another version: it says what to run), MultipleErrors, ExtraNotInstalled.
    """
    stated = config_of(config)
    if added := tuple(arguments.as_items(memories, "memories", "a sequence of names or declarations")):
        stated = config_of(stated.with_overrides(memories=[*stated.to_mapping()["memories"], *added]))
    if makes := arguments.as_flag(create, "create") and (tenant is not None or stated.storage.shown != MEMORY):
        _create(stated, tenant, exist_ok=True)
    settings = _of_tenant(stated, tenant)
    if makes and settings.memories:
        _add_memories(settings)
    who = settings.principal.to_principal() if principal is None else arguments.as_principal(principal)
    time = arguments.as_clock(clock)
    for method in () if connection_pool is None else ("getconn", "putconn"):
        call = getattr(connection_pool, method, None)
        if not callable(call) or inspect.iscoroutinefunction(call):
            raise DTypeError(
                field="connection_pool",
                expected="a pool such as psycopg_pool.ConnectionPool",
                got=type(connection_pool).__name__,
            )
    engine = start_engine(
        settings,
        clock=time,
        embedding_provider=embedding_provider,
        previous_embedding_provider=previous_embedding_provider,
        summarization_provider=summarization_provider,
        connection_pool=connection_pool,
        tracer=arguments.as_tracer(tracer),
    )
    return handle_of(Caliber(engine, who))
