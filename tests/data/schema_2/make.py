"""Make a store of schema 2: a record of every relation, a declared memory, vectors and windows.

Run it in this folder, with the code of the commit that README.md names. Nothing imports it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.configs import USER, config, policy
from support.memories import FACT

import caliber
from caliber.model import FixedClock
from caliber.schema.relations import BY_NAME, RELATIONS
from caliber.storage.compile.codec import codec_of
from caliber.storage.migrate.migrations import SCHEMA_VERSION
from caliber.testing.entities import plain
from caliber.testing.world import session_of

HERE = Path()
"""The configuration is kept in the store, and names no folder."""


def fingerprint(window: Any) -> dict[str, Any]:
    """Return a window as ``test_version_before.py`` compares it."""
    return {
        "window_id": str(window.window_id),
        "text": window.text,
        "messages": window.to_messages(),
        "used_tokens": window.used_tokens,
        "sources": [
            [str(source.id), source.version, repr(source.relevance), source.tokens]
            for section in window.sections
            for source in section.sources
        ],
        "trace": [[str(each.target_id), each.action.value, each.reason] for each in window.assembly_trace],
    }


def main() -> None:
    assert SCHEMA_VERSION == 2
    for name in ("store.sqlite", "archive.zip"):
        (HERE / name).unlink(missing_ok=True)
    behind = {f"embedding__embed_{kind}": "commit" for kind in ("turns", "notes", "artifacts", "summaries", "memories")}
    settings = config(
        str(HERE / "store.sqlite"),
        memories=[FACT],
        policies=[policy("scope_close", {"action": "summarize", "target": "turn_buffer"})],
        **behind,
    )
    caliber.create(settings)
    clock = FixedClock()
    with caliber.open(settings, clock=clock) as memory:
        session = memory.start_session(initiator=USER)
        task = memory.start_trajectory("Plan the garden", initiator=USER, session=session.session_id, tags=("ü",))
        scope = memory.current_scope(task.trajectory_id)
        assert scope is not None
        for content in ("The tomatoes go beside the wall.", "Water them every evening.", "früh 🌅\0"):
            clock.advance(ms=7)
            memory.append_turn(scope.scope_id, role="user", content=content)
        memory.close_scope(scope.scope_id)
        scope = memory.open_scope(task.trajectory_id)
        memory.append_turn(scope.scope_id, role="assistant", content="Noted: tomatoes, wall, evening.")
        memory.append_turn(scope.scope_id, role="tool", content=b"\xff raw", tool_call_id="1")
        memory.create_artifact(
            scope.scope_id, artifact_type="fact", content="the wall faces south", extraction_method="explicit"
        )
        notes = [
            memory.add_note(
                entity="garden", entity_type="place", note_type="fact", content=content, confidence=0.75,
                idempotency_key=f"note-{place}",
            )
            for place, content in enumerate(("roses grow slowly", "tomatoes need sun", "basil likes company"))
        ]  # fmt: skip
        memory.storage.notes.update(notes[0].note_id, content="roses grow very slowly")
        facts = memory.records("fact")
        said = [facts.insert(subject=subject, kind="claim", content=f"{subject} is tall") for subject in ("Oak", "Elm")]
        memory.agents.locks.acquire("shed", holder="gardener")
        memory.add_note(entity="x", entity_type="y", note_type="fact", content="Zoë Brontë was here", confidence=0.5)
        memory.forget(texts=("Zoë Brontë",))
        windows = [
            memory.assemble_context(task.trajectory_id, query=query, max_tokens=limit)
            for query, limit in (("tomatoes", 4_000), ("tomatoes", 60), (None, 4_000))
        ]
        memory.flush()
        store = memory._engine.store

        def fill(uow: Any) -> None:
            """Write a record of each relation that has none yet."""
            run = session_of(uow).run
            for relation in RELATIONS:
                plans = store.plans[relation.name]
                if not run(plans.count, ())[0][0]:
                    known = {"trajectory_id": task.trajectory_id, "scope_id": scope.scope_id}
                    given = {name: value for name, value in known.items() if relation.has(name)}
                    if relation.name == "pending_injection":
                        given |= {"memory": "fact", "kind": "full"}
                    run(plans.insert, codec_of(relation).encode(plain(relation, **given)))
                    print("filled", relation.name)

        store.write(fill)
    with caliber.open(settings, clock=clock) as memory:
        assert memory.admin.verify() == []
        hits = memory.search("tomatoes need", limit=5).hits
        expected = {
            "now_us": clock.now_us(),
            "trajectory_id": str(task.trajectory_id),
            "windows": [fingerprint(window) for window in windows],
            "hits": [[hit.kind, str(hit.id), hit.content, repr(hit.score)] for hit in hits],
            "notes": {str(note.note_id): memory.get(note.note_id).content for note in notes},
            "facts": {str(fact.record_id): fact.subject for fact in said},
        }
        memory.flush()
        memory.admin.backup(HERE / "archive.zip")
        with memory._engine.store.read() as reading:
            plans = memory._engine.store.plans
            expected["rows"] = {name: reading.run(plans[name].count, ())[0][0] for name in plans}
    assert all(expected["rows"][name] for name in BY_NAME), expected["rows"]
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
