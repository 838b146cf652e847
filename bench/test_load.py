"""Load as agents make it: by a schedule, in one process, while others write. Goals: design section 9.

Latencies count from the planned arrival (``harness/load.py``). Ratios compare figures of one run: what the machine
does to one it does to the other.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness.load import Stream, histogram, open_load, open_load_of
from harness.notes import ME, QUERY, QUICK_TASK, opened, sentence
from harness.report import amount
from harness.scale import usual

import caliber
import caliber.aio
from caliber.config.manual.render import render_toml
from caliber.llm.local.hashed import HashEmbeddingProvider

NOTES, QUICK_NOTES = 10_000, 500
SECONDS, QUICK_SECONDS = usual(4.0, full=60.0), 0.2
READERS, SEARCHES = 4, 50  # a second and reader
WRITERS, APPENDS = 2, 250  # a second and writer
USERS, REQUESTS = 20, 100  # a second, of all users together
MANY, QUICK_MANY, DIMENSIONS = usual(20_000, full=1_000_000), 300, 384
PERCENTILES = (50, 99, 99.9)


def percentiles(took: Any) -> dict[float, float]:
    """Return percentiles in milliseconds."""
    return {percent: float(np.percentile(took, percent)) * 1e3 for percent in PERCENTILES}


def test_searches_under_mixed_load(
    tmp_path: Path, figure: Callable[..., None], show: Callable[[str, list[str]], None], quick: bool
) -> None:
    """Readers search while writers append turns, each to a task of its own, and vectors are made behind."""
    seconds = QUICK_SECONDS if quick else SECONDS
    with opened(tmp_path, QUICK_NOTES if quick else NOTES) as store:
        memory = store.memory

        def writer() -> Stream:
            task = memory.start_trajectory("Append", initiator=ME)
            scope = memory.current_scope(task.trajectory_id)
            assert scope is not None
            return Stream(lambda: memory.append_turn(scope.scope_id, role="user", content=sentence(7)), APPENDS)

        readers, writers = [Stream(store.search, SEARCHES)] * READERS, [writer() for _ in range(WRITERS)]
        open_load(readers, min(1.0, seconds))
        rest = np.concatenate(open_load(readers, seconds))
        begin = time.perf_counter()
        both = open_load([*readers, *writers], seconds)
        rate = sum(map(len, both[READERS:])) / (time.perf_counter() - begin)
        load, appends = np.concatenate(both[:READERS]), np.concatenate(both[READERS:])
    task = f"{READERS * SEARCHES} searches a second, {amount(len(store.notes.texts))} notes"
    figure(f"{task}: turns appended a second beside", rate, "turns/s", at_least=0.95 * WRITERS * APPENDS)
    for where, took in (("at rest", rest), ("under load", load)):
        for percent, value in percentiles(took).items():
            figure(f"{task}, {where}: p{percent:g}", value, "ms")
        ratio = np.percentile(took, 99.9) / np.percentile(took, 50)
        figure(f"{task}, {where}: p99.9 to p50", ratio, "x", at_most=10)
    figure(f"{task}: p99 of an append beside", percentiles(appends)[99], "ms")
    show(f"{task}:", histogram({"at rest": rest, "under load": load}))


def test_asynchronous_users(tmp_path: Path, figure: Callable[..., None], quick: bool) -> None:
    """Users of one event loop: each remembers two messages, then asks for a window, and so on."""
    config = caliber.profiles.chat_companion(tmp_path / "users.db")
    seconds = QUICK_SECONDS if quick else SECONDS

    def user(memory: caliber.aio.AsyncCaliber, name: str) -> Callable[[], Any]:
        said, last = iter(range(1 << 30)), None

        async def request() -> None:
            nonlocal last
            at, task = next(said), last
            if at % 2 and task is not None:
                window = await memory.assemble_context(task, query=QUERY)
                assert window.used_tokens
                return
            messages = [{"role": "user", "content": sentence(at)}, {"role": "assistant", "content": sentence(at + 1)}]
            last = (await memory.remember(messages, user=name)).trajectory_id

        return request

    async def run() -> tuple[float, list[float]]:
        async with await caliber.aio.open(config, create=True) as memory:
            users = [user(memory, f"user {number}") for number in range(USERS)]
            await asyncio.gather(*(call() for call in users for _ in range(2)))
            end, count = time.perf_counter() + seconds, 0

            async def without_rest(call: Callable[[], Any]) -> None:
                nonlocal count
                while time.perf_counter() < end:
                    await call()
                    count += 1

            await asyncio.gather(*map(without_rest, users))
            return count / seconds, await open_load_of(users, REQUESTS, seconds)

    rate, took = asyncio.run(run())
    task = f"{USERS} asynchronous users, remember and window in turn"
    figure(f"{task}: requests a second, without a pause", rate, "", at_least=REQUESTS)
    figure(f"{task}: p95 at {REQUESTS} requests a second", float(np.percentile(took, 95)) * 1e3, "ms", at_most=250)


# --- many notes ------------------------------------------------------------------------------------------

FRESH = """
    import json, pathlib, statistics, sys, time
    import caliber
    began, seen = time.perf_counter(), {}
    def lap(name):
        global began
        now = time.perf_counter()
        seen[name], began = (now - began) * 1e3, now
    def often(name, call):
        took = []
        for _ in range(int(sys.argv[3])):
            start = time.perf_counter()
            call()
            took.append(time.perf_counter() - start)
        seen[name] = statistics.median(took) * 1e3
    query = "what was decided about parsing empty input"
    with caliber.open(sys.argv[1], principal=caliber.Principal.admin()) as memory:
        lap("open")
        assert memory.search(query, kinds=["note"]).hits
        lap("first search")
        assert memory.assemble_context(sys.argv[2], query=query).used_tokens
        lap("first window")
        often("search", lambda: memory.search(query, kinds=["note"]))
        often("window", lambda: memory.assemble_context(sys.argv[2], query=query))
        status = pathlib.Path("/proc/self/status")
        if status.exists():
            seen["memory"] = int(status.read_text().split("VmRSS:")[1].split()[0]) / 1024
    print(json.dumps(seen))
"""


def test_many_notes_in_one_process(tmp_path: Path, figure: Callable[..., None], quick: bool) -> None:
    """A fresh process opens a store of many notes, searches it and assembles windows; ``--full``: a million."""
    provider = HashEmbeddingProvider(DIMENSIONS, "bench")
    with opened(tmp_path, QUICK_MANY if quick else MANY, provider=provider) as store:
        task, size = store.add_task(*QUICK_TASK), store.notes.size
        hashed = {"provider_type": "hash", "model": "bench", "dimensions": DIMENSIONS, "options": {}}
        file = tmp_path / "caliber.toml"
        file.write_text(render_toml(store.config.with_overrides(embedding_provider=hashed)), encoding="utf-8")
    command = [sys.executable, "-c", textwrap.dedent(FRESH), str(file), str(task), "1" if quick else "20"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    for name, value in json.loads(done.stdout).items():
        figure(f"{size} of {DIMENSIONS} dimensions: {name}", value, "MB" if name == "memory" else "ms")
