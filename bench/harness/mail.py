"""Processes that receive messages: one at a time as they come, or a full mailbox by many consumers."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import caliber
from caliber.model import Principal

BATCH, IN_TRANSACTION = 100, 1_000
SENDER, RECEIVER, TYPE = "ann", "bob", "worker"
KNOBS: dict[str, Any] = {"embedding_provider": None, "policies": [], "agents.messages.pending_max": 1_000_000}
Variable = tuple[str, str]
"""A variable of the environment and its value: the DSN, for configurations that name it."""


def mail(memory: caliber.Caliber, name: str) -> Any:
    """Return the messages of an agent."""
    return memory.as_agent(name).agents.messages


def _opened(config: Any, dsn: Variable | None) -> caliber.Caliber:
    if dsn is not None:
        os.environ[dsn[0]] = dsn[1]
    return caliber.open(config, principal=Principal.admin())


def fill(memory: caliber.Caliber, numbers: range) -> None:
    """Send a message a number to the type of the consumers, many in one transaction."""
    for begin in range(0, len(numbers), IN_TRANSACTION):
        mail(memory, SENDER).send_many(numbers[begin : begin + IN_TRANSACTION], to_type=TYPE)


def _receive(config: Any, dsn: Variable | None, idle_s: float, reports: Connection) -> None:
    """Report the share of a core that waiting takes, then when each message came; acknowledge each."""
    with _opened(config, dsn) as memory:
        messages = mail(memory, RECEIVER)
        assert list(messages.listen(idle_ms=1)) == []
        reports.send("ready")
        reports.recv()
        began, cpu = time.perf_counter(), time.process_time()
        assert list(messages.listen(idle_ms=int(idle_s * 1_000))) == []
        reports.send((time.process_time() - cpu) / (time.perf_counter() - began))
        for message in messages.listen():
            came = time.monotonic()
            messages.ack(message)
            reports.send((message.payload, came))
            if message.payload is None:
                return


def _consume(config: Any, dsn: Variable | None, name: str, reports: Connection) -> None:
    """Claim and acknowledge batches until nothing is left; report the payloads, and the end of each batch."""
    with _opened(config, dsn) as memory:
        messages = mail(memory, name)
        assert messages.claim() == []
        reports.send("ready")
        reports.recv()
        payloads: list[Any] = []
        while found := messages.claim(BATCH):
            assert messages.ack(found) == len(found) <= BATCH
            payloads += [each.payload for each in found]
        reports.send((payloads, time.monotonic()))
        reports.recv()


@contextmanager
def _running(target: Any, arguments: Sequence[tuple[Any, ...]]) -> Iterator[list[Connection]]:
    starting = multiprocessing.get_context("spawn")
    running = []
    try:
        for each in arguments:
            ours, theirs = starting.Pipe()
            process = starting.Process(target=target, args=(*each, theirs))
            process.start()
            running.append((process, ours))
            theirs.close()
        for _, ours in running:
            assert ours.recv() == "ready"
        yield [ours for _, ours in running]
        for process, _ in running:
            process.join(60)
    finally:
        for process, ours in running:
            process.kill()
            process.join()
            ours.close()


@contextmanager
def receiver(config: Any, dsn: Variable | None, idle_s: float) -> Iterator[tuple[float, Connection]]:
    """Run a receiver; give the share of a core that it takes while it waits, and the pipe of its reports."""
    with _running(_receive, [(config, dsn, idle_s)]) as (reports,):
        reports.send("wait")
        yield reports.recv(), reports


def consumed(config: Any, dsn: Variable, consumers: Sequence[str], send: Callable[[], None]) -> tuple[float, list[Any]]:
    """Empty a mailbox that ``send`` fills, by several processes; return the seconds, and the payloads of all."""
    with _running(_consume, [(config, dsn, name) for name in consumers]) as reports:
        send()
        began = time.monotonic()
        for each in reports:
            each.send("go")
        results = [each.recv() for each in reports]
        for each in reports:
            each.send("end")
    ended = max(end for payloads, end in results if payloads)
    return ended - began, list(itertools.chain.from_iterable(payloads for payloads, _ in results))
