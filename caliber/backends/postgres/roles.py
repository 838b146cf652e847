"""Creation and removal of one login role per tenant, so that the database itself isolates tenants.

The role owns the tenant's schema and everything in it, and has no right on any other; it is a member of no other role,
so it cannot change to one. The user of the DSN creates it, needs CREATEROLE, and becomes a member of it in order to
make a schema that it owns. Source: O-1, design sections 3 and 5; docs/decisions/0130.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg

from caliber.backends.postgres.connecting.dialling import connect, password_of
from caliber.backends.postgres.connecting.errors import translate_driver
from caliber.backends.postgres.schema import dialect_for
from caliber.backends.postgres.statements import ADVISORY_CLASS
from caliber.backends.postgres.store import shared_for
from caliber.config.storage import PostgresConfig
from caliber.model.errors import CaliberError, Conflict, InternalError, Unavailable
from caliber.model.process.interrupts import managed
from caliber.storage.compile.spelling import quote

Connection = psycopg.Connection[Any]

_MARK = "CALIBER tenant "


@managed
def _as_user_of_the_dsn(settings: PostgresConfig) -> Iterator[tuple[Connection, str]]:
    role = settings.login_role
    if role is None:
        raise InternalError("there is no login role to make")
    shared = shared_for(settings.model_copy(update={"login_role": None, "login_secret": None}))
    shared = replace(shared, store=f"login role {role}")
    opened = connect(shared)
    failed: CaliberError
    try:
        dialect_for(opened, settings.schema_name, shared.store)  # the role could not install pgvector
        opened.pg.exit_pipeline_mode()
        yield opened.raw, role
    except psycopg.errors.InsufficientPrivilege as error:
        failed = Unavailable(
            f"login role {role} cannot be made or removed (missing rights): the user of the DSN needs the attribute"
            " CREATEROLE and the right to create schemas (ALTER ROLE … CREATEROLE; GRANT CREATE ON DATABASE … TO …);"
            " or leave login_role out",
            reason="missing rights",
            retryable=False,
        )
        failed.__cause__ = error
    except psycopg.Error as error:
        failed = translate_driver(error, shared.store)
    else:
        return
    finally:
        opened.close()
    raise failed from failed.__cause__


def create_role(settings: PostgresConfig) -> None:
    """Create the role and its empty schema, or check that both exist and the password is right.

    Raises: Unavailable (missing rights: it says which), Conflict for a role or schema that is not ours, MissingRequired
    """
    password = password_of(settings)
    with _as_user_of_the_dsn(settings) as (connection, role), connection.transaction():
        name, schema = quote(role), quote(settings.schema_name)
        connection.execute(b"SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (ADVISORY_CLASS, role))
        # Only the verifier is sent, and may end up in a log; the password is not.
        verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
        attributes = "NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS LOGIN"
        mark = f"{_MARK}{settings.schema_name}"
        row = connection.execute(
            b"SELECT shobj_description(oid, 'pg_authid') FROM pg_roles WHERE rolname = %s", (role,)
        ).fetchone()
        if row is None:
            connection.execute(f"CREATE ROLE {name} {attributes} PASSWORD '{verifier}'".encode())
            connection.execute(f"COMMENT ON ROLE {name} IS '{mark}'".encode())
        elif row[0] != mark:
            raise Conflict(
                f"role {role} exists already and is not this tenant's: rename it, or choose another login_role",
                entity_type="role",
                id=role,
                reason="exists",
            )
        else:
            connection.execute(f"ALTER ROLE {name} PASSWORD '{verifier}'".encode())
        connection.execute(f"GRANT {name} TO CURRENT_USER".encode())
        _schema_of(connection, role, settings.schema_name)
        connection.execute(f"REVOKE ALL ON SCHEMA {schema} FROM PUBLIC".encode())
        _close_public(connection)


def _schema_of(connection: Connection, role: str, schema: str) -> None:
    owner = connection.execute(
        b"SELECT pg_get_userbyid(nspowner)::text FROM pg_namespace WHERE nspname = %s", (schema,)
    ).fetchone()
    if owner is None:
        connection.execute(f"CREATE SCHEMA {quote(schema)} AUTHORIZATION {quote(role)}".encode())
    elif owner[0] != role:
        raise Conflict(
            f"schema {schema} is there already, and not of role {role}: remove it, or give it to that role",
            entity_type="store",
            id=schema,
            reason="exists",
        )


def _close_public(connection: Connection) -> None:
    """Keep tenants from leaving things for each other in ``public``; from PostgreSQL 15 on that is so anyway."""
    row = connection.execute(
        b"SELECT has_schema_privilege('public', n.oid, 'CREATE') AND pg_has_role(n.nspowner, 'USAGE')"
        b" FROM pg_namespace AS n WHERE n.nspname = 'public'"
    ).fetchone()
    if row is not None and row[0]:
        connection.execute(b"REVOKE CREATE ON SCHEMA public FROM PUBLIC")


def drop_role(settings: PostgresConfig) -> None:
    """Remove the role, once its schema is dropped; do nothing if this tenant has none.

    A role belongs to a whole server: it is in use while it owns anything, here or in another database.
    """
    with _as_user_of_the_dsn(settings) as (connection, role), connection.transaction():
        connection.execute(b"SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (ADVISORY_CLASS, role))
        row = connection.execute(
            b"SELECT oid, shobj_description(oid, 'pg_authid') FROM pg_roles WHERE rolname = %s", (role,)
        ).fetchone()
        if row is None or row[1] != f"{_MARK}{settings.schema_name}":
            return
        kept = b"SELECT 1 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s"
        if connection.execute(kept, (settings.schema_name,)).fetchone() is not None:
            return
        connection.execute(f"DROP OWNED BY {quote(role)} CASCADE".encode())
        used = b"SELECT 1 FROM pg_shdepend WHERE refclassid = 'pg_authid'::regclass AND refobjid = %s AND dbid <> 0"
        if connection.execute(used, (row[0],)).fetchone() is None:
            connection.execute(f"DROP ROLE {quote(role)}".encode())
