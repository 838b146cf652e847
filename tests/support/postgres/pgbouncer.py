"""The real PgBouncer, where it is installed; CALIBER_TEST_PGBOUNCER names it where it is not on the path."""

from __future__ import annotations

import os
import shutil

import psycopg
from support.waits import until

PROGRAM = os.environ.get("CALIBER_TEST_PGBOUNCER") or shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"


def until_it_answers(dsn: str) -> None:
    """Wait for a pool that was just started."""

    def answers() -> bool:
        try:
            psycopg.connect(dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    until(answers, seconds=20)
