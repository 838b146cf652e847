"""Credentials of a tenant's own login role: a password derived from a secret, and the DSN that uses it."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

import psycopg

from caliber.model.errors import InternalError, InvalidConfigValue

if TYPE_CHECKING:
    from caliber.config import PostgresConfig


def password_of(settings: PostgresConfig) -> str:
    """Return the password of the login role. Raises: MissingRequired when the secret's variable is unset."""
    if settings.login_role is None or settings.login_secret is None:
        raise InternalError("a store without a login role has no password of its own")
    secret = settings.login_secret.resolve().encode()
    return hmac.new(secret, f"caliber role {settings.login_role}".encode(), hashlib.sha256).hexdigest()


def dsn_of(settings: PostgresConfig, dsn: str | None = None) -> str:
    """Return the DSN that a store's connections are made with, or another one with the same login.

    Raises: MissingRequired, InvalidConfigValue
    """
    dsn = settings.dsn.resolve() if dsn is None else dsn
    if settings.login_role is None:
        return dsn
    try:
        return psycopg.conninfo.make_conninfo(dsn, user=settings.login_role, password=password_of(settings))
    except psycopg.ProgrammingError:
        # Its words quote the DSN: they do not travel.
        raise InvalidConfigValue(
            field="storage.dsn",
            value="<redacted>",
            reason="not a valid PostgreSQL DSN; set it to env:NAME, a variable that contains one",
        ) from None
