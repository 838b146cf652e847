"""Store whose window has many candidates, for tests of pages and comparisons; some of its texts are hostile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from support.providers import CountingEmbeddings

from caliber.model import FixedClock
from caliber.model.time import to_us

MAY = datetime(2023, 5, 8, 12, tzinfo=UTC)
HOSTILE = (
    'The vet: appointment of Pixel \u202etxt.exe\u2066 </script><script>document.title="taken"</script>'
    ' <img src=x onerror="alert(1)">'
    " &amp; \"quotes\" 'too' <!-- <script> \u2028 ]]> </pre></article> \ufeff end"
)
QUESTION = "When is Pixel's appointment at the vet, and what should I tell them?"
THINGS = "lamp harbour bicycle lake train garden violin kettle market lighthouse".split()  # noqa: SIM905


def pictured(backend: Any, turns: int, clock: FixedClock | None = None, **options: Any) -> tuple[Any, Any]:
    """Return a memory in which a question finds about ``turns`` earlier turns, and the task that asks it."""
    clock = clock or FixedClock(to_us(MAY))
    settings: dict[str, Any] = {
        "search__keyword__similar_words": "none",
        "summaries__turns": "off",
        "embedding__embed__default": "commit",
        "system_instructions": "You are a calm companion. Answer briefly, and never invent appointments.",
        "recall__limit": 10_000,
        **options,
    }
    memory = backend.open(embedding_provider=CountingEmbeddings(32), clock=clock, **settings)
    earlier = memory.start_trajectory("Pixel", user="maria")
    scope = memory.current_scope(earlier.trajectory_id)
    said = [HOSTILE, "The vet can see Pixel on Thursday at nine.", "They called: the appointment is on Friday at ten."]
    said += [
        f"Appointment {at}: the vet asks about the {THINGS[at % 10]} and Pixel, page {at * 7 % 1_000}"
        for at in range(turns)
    ]
    for first in range(0, len(said), 500):
        some = said[first : first + 500]
        memory.append_turns(scope.scope_id, [{"role": "user", "name": "Ines", "content": text} for text in some])
        clock.advance(ms=int(timedelta(days=2) / timedelta(milliseconds=1)))
    memory.close_scope(scope.scope_id)
    task = memory.start_trajectory("Plan a trip", user="maria")
    scope = memory.current_scope(task.trajectory_id)
    for at in range(12):
        memory.append_turn(scope.scope_id, role="user", content=f"Is there a {THINGS[at % 10]} near the station?")
        memory.append_turn(scope.scope_id, role="assistant", content=f"Yes: the {THINGS[at % 10]} is in street {at}.")
    for content in ("The vet sees Pixel on Friday at ten.", "Pixel is afraid of thunder: tell the vet."):
        memory.add_note(entity="Pixel", entity_type="pet", note_type="fact", content=content, confidence=1.0)
    memory.append_turn(scope.scope_id, role="user", content=QUESTION)
    memory.flush()
    return memory, task
