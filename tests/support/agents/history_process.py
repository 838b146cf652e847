"""A process of several clients that use a store at random and keep their histories, until the process is killed."""

from __future__ import annotations

import os
import random
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from support.agents.history import Client, FileLog, Subject
from support.configs import config
from support.databases import DSN

import caliber

KNOBS: dict[str, Any] = {"embedding_provider": None, "policies": [], "jobs__poll_ms": 0}


class Order(NamedTuple):
    """The part of one process."""

    path: str
    knobs: dict[str, Any]
    dsn: str
    subject: Subject
    world: dict[str, Any]
    name: str
    threads: int
    seed: int
    skew_us: int
    log: Path


def true_us() -> int:
    """Return the time of the machine, which all processes share."""
    return time.time_ns() // 1_000


class SkewedClock:
    """A clock that is off."""

    def __init__(self, skew_us: int) -> None:
        self._skew_us = skew_us

    def now_us(self) -> int:
        return true_us() + self._skew_us


def work(order: Order, reports: Connection) -> None:
    """Use the store until the process is killed; report once it is open."""
    os.environ[DSN] = order.dsn
    memory = caliber.open(
        config(order.path, **{**KNOBS, **order.subject.knobs, **order.knobs}), clock=SkewedClock(order.skew_us)
    )
    log = FileLog(order.log)
    reports.send("open")

    def use(at: int) -> None:
        rng = random.Random(order.seed * 100 + at)
        client = Client(memory, order.world, f"{order.name}t{at}", rng, log, true_us)
        try:
            while True:
                order.subject.step(client)
        except BaseException as error:
            reports.send(f"{type(error).__name__}: {error}")
            raise

    threads = [threading.Thread(target=use, args=(at,)) for at in range(order.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
