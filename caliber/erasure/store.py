"""Purge of a whole tenant: deletes all its records together with its files or its schema."""

from __future__ import annotations

from caliber.backends import bare_store
from caliber.config import CaliberConfig
from caliber.model import arguments
from caliber.model.erasure import ErasureKind, ForgetReport, Searched

_WAIT_MS = 10_000


def purge_store(config: CaliberConfig, *, dry_run: bool, wait_ms: int | None, scrub_log: bool) -> ForgetReport:
    """Remove a store. Raises: as ``purge`` of ``caliber.api.opening``."""
    wait = _WAIT_MS if wait_ms is None else arguments.as_whole(wait_ms, "wait_ms")
    with bare_store(config) as store:
        with store.read() as session:
            counts = {
                item.name: session.run(store.plans[item.name].count, ())[0][0] for item in store.catalog.relations
            }
        erased = {name: count for name, count in counts.items() if count}
        if dry_run:
            return ForgetReport(ErasureKind.STORE, True, erased)
        remaining = store.eraser.destroy(wait / 1_000)
        if scrub_log and not remaining:
            remaining = store.eraser.scrub_log(wait / 1_000)
        places = []
        for place in store.eraser.leftovers():
            parts = [len(part) for part in place.parts]
            places.append(Searched(place.name, place.kind, sum(parts), len(parts)))
        return ForgetReport(
            ErasureKind.STORE,
            False,
            erased,
            searched=tuple(places),
            remaining=tuple(remaining),
            out_of_reach=tuple(store.eraser.out_of_reach()),
        )
