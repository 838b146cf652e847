"""A process of the next version of CALIBER: it knows one schema version more, and then another.

Told by lines on its standard input what to do; answers each with a line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from caliber.storage.migrate import migrations  # first of all: other modules take the version from it

OLD = migrations.SCHEMA_VERSION
migrations.SCHEMA_VERSION = OLD + 1


def step(name: str, reader: int, writer: int, *statements: str) -> migrations.MigrationStep:
    return migrations.MigrationStep(name, reader, writer, convert=lambda _: statements)


EXPAND = step("mood of notes", OLD, OLD, "ALTER TABLE note ADD COLUMN mood TEXT", "CREATE TABLE mood (name TEXT)")
NO_OLD_WRITERS = step("every note has a mood", OLD, OLD + 1, "UPDATE note SET mood = 'plain' WHERE mood IS NULL")
NO_OLD_READERS = step("moods have a table", OLD + 1, OLD + 1, "INSERT INTO mood (name) VALUES ('plain')")


def main() -> None:
    from support.configs import config
    from support.inspection import inspect, session_of

    import caliber
    from caliber.model.errors import CaliberError

    settings: Any = None
    table = ""
    memory: Any = None
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order, _, rest = line.strip().partition(" ")
        answer: Any = None
        try:
            if order == "use":
                path, knobs, table = json.loads(rest)
                settings = config(path, **knobs)
                for version in [version for version in migrations.MIGRATIONS if version > OLD]:
                    del migrations.MIGRATIONS[version]
                migrations.MIGRATIONS[OLD + 1] = EXPAND
            elif order == "migrate":
                answer = caliber.migrate(settings)
            elif order == "contract":
                version = max(migrations.MIGRATIONS) + 1
                migrations.MIGRATIONS[version] = NO_OLD_WRITERS if version == OLD + 2 else NO_OLD_READERS
                answer = caliber.migrate(settings)
            elif order == "open":
                memory = caliber.open(settings)
            elif order == "write":
                name, count = rest.split()
                for number in range(int(count)):
                    kept = memory.add_note(
                        entity="e", entity_type="t", note_type="fact", content=f"{name} {number}", confidence=0.5
                    )
                    answer = str(kept.note_id)
            elif order == "mood":
                update = f"UPDATE {table} SET mood = 'calm'"
                inspect(memory).write(lambda uow, update=update: session_of(uow).command(update))
            elif order == "moods":
                with inspect(memory).store.read() as session:
                    answer = [row[0] for row in session.command(f"SELECT mood FROM {table} ORDER BY mood")]
            elif order == "notes":
                found = memory.search("", kinds=["note"], limit=500, consistency="latest")
                answer = sorted(hit.content for hit in found.hits)
            elif order == "verify":
                answer = memory.admin.verify()
            elif order == "close":
                memory.close()
        except CaliberError as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
