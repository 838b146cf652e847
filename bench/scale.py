"""Cost of a tenant besides its records, and of a backup of one: the figures of ``docs/scale.md``.

``python bench/scale.py`` in a checkout, with the extras ``postgres`` and ``arrow``: some ten seconds, on a private
PostgreSQL server without fsync. What it prints is for reading, and decides no goal. ``--quick`` shows that it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

import caliber
from caliber.admin.backup import backup, restore
from caliber.admin.checking import check_store
from caliber.backends import bare_store
from caliber.config import CaliberConfig, profiles
from caliber.model.progress import unheard

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.local_server import LocalServer

TENANTS, QUICK_TENANTS = 20, 2
NOTES, QUICK_NOTES = 20_000, 100
DSN = "CALIBER_SCALE_DSN"
HASHED = {"provider_type": "hash", "model": "scale", "dimensions": 384, "options": {}}


def settings(path: str, **knobs: Any) -> CaliberConfig:
    return profiles.reference(path, **{"embedding_provider": HASHED, "resident.feed_poll_ms": 0, **knobs})


def tenant(name: str) -> CaliberConfig:
    return settings(f"env:{DSN}", **{"storage.adapter": "postgres", "storage.schema_name": name})


def memory_mb(line: str) -> float:
    """Return a figure of this process: ``VmRSS`` now, ``VmHWM`` at most."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split(f"{line}:")[1].split()[0]) / 1_024


def measured(what: str, work: Any) -> Any:
    """Print how long ``work`` takes, and how much more memory than before at most."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before, began = memory_mb("VmRSS"), time.monotonic()
    result = work()
    took = time.monotonic() - began
    sys.stdout.write(f"{what:<46} {took:8.2f} s   {memory_mb('VmHWM') - before:6.1f} MB more at most\n")
    return result


def tenants(dsn: str, count: int) -> None:
    measured(f"create {count} tenants", lambda: [caliber.create(tenant(f"t{place}")) for place in range(count)])
    caliber.open(tenant("t0")).close()
    opened = measured(f"open {count} empty tenants", lambda: [caliber.open(tenant(f"t{n}")) for n in range(count)])
    with psycopg.connect(dsn) as connection:
        text = "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
        row = connection.execute(text).fetchone()
    sys.stdout.write(f"connections of {count} open tenants at rest: {row[0] if row else '?'}\n")
    for memory in opened:
        memory.close()


def backups(folder: Path, notes: int) -> None:
    with caliber.open(tenant("t0"), principal=caliber.Principal.admin()) as memory:
        texts = [f"note {place} " + "about engines and tracks " * 20 for place in range(notes)]
        columns = {"entity": "e", "entity_type": "t", "note_type": "fact", "confidence": 0.5}
        table = {name: [value] * notes for name, value in columns.items()} | {"content": texts}
        memory.storage.bulk_load("note", pa.table(table))
        while memory.storage.embeddings.count() < notes:
            time.sleep(0.01)
    archive, file = folder / "all.zip", settings(str(folder / "store.db"))
    with bare_store(tenant("t0")) as store:
        made = measured("back up PostgreSQL", lambda: backup(store, archive, replace=False, progress=unheard))
        sys.stdout.write(f"{sum(made.rows.values()):,} rows, {made.bytes:,} bytes\n")
    measured("restore into SQLite", lambda: restore(file, archive, replace=False, progress=unheard))
    measured("restore into PostgreSQL", lambda: restore(tenant("t1"), archive, replace=False, progress=unheard))
    with bare_store(file) as store:
        measured("copy the SQLite file", lambda: backup(store, folder / "all.db", replace=False, progress=unheard))
        sys.stdout.write(f"{(folder / 'all.db').stat().st_size:,} bytes\n")
        findings = measured("check SQLite, without memory", lambda: check_store(store, file, unheard))
    with bare_store(tenant("t0")) as store:
        findings += measured("check PostgreSQL, without memory", lambda: check_store(store, tenant("t0"), unheard))
    assert findings == [], findings


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What a tenant costs, and what a backup takes.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to see that it runs")
    quick = parser.parse_args(arguments).quick
    sys.stdout.write(f"load {os.getloadavg()}, {os.cpu_count()} processors\n")
    with tempfile.TemporaryDirectory() as raw:
        folder = Path(raw)
        folder.chmod(0o755)
        with LocalServer.start(folder / "server", fsync=False, settings={"max_connections": 200}) as server:
            os.environ[DSN] = server.dsn
            tenants(server.dsn, QUICK_TENANTS if quick else TENANTS)
            backups(folder, QUICK_NOTES if quick else NOTES)


if __name__ == "__main__":
    main()
