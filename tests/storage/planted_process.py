"""A process of a planted schema version, which its argument names; see ``support.storage.planted_versions``.

Told by lines on its standard input what to do; answers each with a line of JSON.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.storage.planted_versions import become

MOOD = become(int(sys.argv[1]))


def killed_at(statement: int, migrate: Any) -> bool:
    """Migrate in a child that SIGKILL ends before its n-th statement; return whether it got so far."""
    from caliber.backends.postgres.connecting.connection import PgConnection
    from caliber.backends.sqlite.connecting.connection import SqliteConnection

    child = os.fork()
    if not child:
        count = 0

        def counted(original: Any) -> Any:
            def run(*arguments: Any) -> Any:
                nonlocal count
                count += 1
                if count == statement:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments)

            return run

        for kind in (SqliteConnection, PgConnection):
            for name in ("command", "run"):
                setattr(kind, name, counted(getattr(kind, name)))
        try:
            migrate()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def main() -> None:
    from pyarrow import parquet
    from support.configs import config
    from support.inspection import inspect

    import caliber
    from caliber.model.errors import CaliberError
    from caliber.model.time import from_us

    settings: Any = None
    memory: Any = None

    def moods() -> list[Any]:
        memory.search("", consistency="latest")  # follows the feed
        mirror = inspect(memory).resident
        rows = mirror.snapshot["mood"]
        held = [mirror.entity(rows, row) for row in range(rows.length) if rows.live_mask[row]]
        late = ("strength", "words")
        return sorted([item.said, str(item.feeling), *(getattr(item, name, None) for name in late)] for item in held)

    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order, _, rest = line.strip().partition(" ")
        answer: Any = None
        try:
            if order == "use":
                path, knobs = json.loads(rest)
                settings = config(path, **knobs)
            elif order == "create":
                caliber.create(settings)
            elif order == "migrate":
                answer = caliber.migrate(settings)
            elif order == "kill":
                answer = killed_at(int(rest), functools.partial(caliber.migrate, settings))
            elif order == "open":
                memory = caliber.open(settings)
            elif order == "write":
                fields = json.loads(rest)
                kind: Any = MOOD.column("feeling").enum
                fields["feeling"] = kind(fields["feeling"])
                item = MOOD.entity(mood_id=uuid.uuid4(), felt_at=from_us(1), **fields)
                inspect(memory).write(lambda uow, item=item: uow.insert(MOOD, item))
            elif order == "moods":
                answer = moods()
            elif order == "backup":
                memory.admin.backup(rest)
            elif order == "export":
                with memory.storage.bulk_read("mood") as reader:
                    parquet.write_table(reader.read_all(), rest)
            elif order == "load":
                memory.storage.bulk_load("mood", parquet.read_table(rest), on_existing="skip")
            elif order == "restore":
                caliber.restore(settings, rest)
            elif order == "verify":
                answer = memory.admin.verify() + [str(found) for found in memory.admin.check() if not found.harmless]
            elif order == "close":
                memory.close()
        except CaliberError as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
