"""Kinds of records that are embedded; scan for those without a vector, left by a writer that died or is elsewhere.

Source: design section 4, C-245.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable

from caliber.config import CaliberConfig
from caliber.embedding.embedding_target import EmbeddingTarget, MissingVector, says_something
from caliber.embedding.reembedding import Walk
from caliber.engine import pacing
from caliber.model.embedding import EmbedMode
from caliber.resident.documents import document_of
from caliber.schema.catalog import Catalog
from caliber.storage.compile.codec import Row, codec_of
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork

_PAGE_ROWS = 4_096
"""Rows one look for missing vectors takes into memory; the next look finds the rest."""


class MissingVectorScan:
    """The spaces that are still to be scanned, the progress of each, and the time of the next scan."""

    def __init__(self, store: Store, kinds: tuple[str, ...], targets: Iterable[EmbeddingTarget]) -> None:
        self._store = store
        self._kinds = kinds
        self._walks: dict[bytes, Walk] = {}
        self._to_walk = {target.key for target in targets}
        self.at_s: float | None = None
        """The time of the next scan, on the monotonic clock; None: no scan is due."""
        self._looked_s = 0.0

    def later(self) -> bool:
        """Schedule a scan once other processes had time to embed; return whether none was scheduled."""
        if self.at_s is not None:
            return False
        self.at_s = time.monotonic() + pacing.foreign_wait_s(self._looked_s)
        return True

    def now(self) -> None:
        """Schedule a scan for the next step."""
        self.at_s = time.monotonic()

    def due(self, now: float, targets: Iterable[EmbeddingTarget]) -> bool:
        """Return whether a scan is due, and if so begin it for ``targets``."""
        if self.at_s is None or now < self.at_s:
            return False
        self.at_s = None
        self._to_walk.update(target.key for target in targets)
        return True

    def skip(self) -> None:
        """Leave out the first scan: every record has its vectors."""
        self._to_walk.clear()

    def rescan(self, target: EmbeddingTarget) -> None:
        """Have a space looked through once more, when the look under way is over."""
        self._to_walk.add(target.key)

    def whole(self, target: EmbeddingTarget, *, stored: bool) -> Generator[int, None, None]:
        """Yield the sizes of the next batches of the queue, until every record that lacks a vector now was among them.

        First the queued records; then, page by page, the ``stored`` ones without a vector. Later writes are not waited
        for. If abandoned half way, the space must be scanned again.
        """
        yield len(target.queue)
        if not stored:
            return
        # A running scan may have passed records that lack a vector now.
        self._walks.pop(target.key, None)
        self._to_walk.discard(target.key)
        walk = Walk(self._store, target.key, self._kinds)
        try:
            while (page := walk.page(_PAGE_ROWS)) is not None:
                queued = {item.owner for item in target.queue.copy()}
                found = [item for item in page if item.owner not in queued and item.owner not in target.refused]
                target.queue.extendleft(reversed(found))
                yield len(found)
        except BaseException:
            self._to_walk.add(target.key)
            raise

    def look(self, target: EmbeddingTarget) -> int:
        """Queue a page of the stored records without a vector, whatever the cause; return the number of rows queued."""
        walk = self._walks.get(target.key)
        if walk is None:
            if target.key not in self._to_walk:
                return 0
            self._to_walk.discard(target.key)
            self._looked_s = 0.0
            walk = self._walks[target.key] = Walk(self._store, target.key, self._kinds)
        while not target.queue:
            begun = time.monotonic()
            page = walk.page(_PAGE_ROWS)
            self._looked_s += time.monotonic() - begun
            if page is None:
                del self._walks[target.key]
                break
            target.queue.extend(item for item in page if item.owner not in target.refused)
        return len(target.queue)


class EmbeddedKinds:
    """The embedded kinds of one store: built-in ones, and declared memories with an embedding."""

    def __init__(self, catalog: Catalog, config: CaliberConfig) -> None:
        settings = config.embedding
        self._relations = catalog.by_name
        self._texts = {
            relation.name: relation.text.embedded
            for relation in catalog.relations
            if relation.text is not None and relation.text.embedded is not None
        }
        names = {memory.relation.name: name for name, memory in catalog.memories.items()}
        self.modes = {kind: settings.mode_of(names.get(kind, kind)) for kind in self._texts}
        self.wanted = tuple([kind for kind in self._texts if self.modes[kind] is not EmbedMode.OFF])
        """The kinds that get vectors. With mode ``commit`` too the worker embeds records without one: those of an
        earlier model, or changed since."""
        self._places = {kind: self._place(kind) for kind in self.all}

    @property
    def all(self) -> tuple[str, ...]:
        """Every kind that can have vectors."""
        return tuple(self._texts)

    def commits(self, kind: str) -> bool:
        """Return whether vectors are committed with their records."""
        return self.modes.get(kind) is EmbedMode.COMMIT

    def _place(self, kind: str) -> tuple[int, int]:
        relation = self._relations[kind]
        codec = codec_of(relation)
        return codec.index(relation.key[0]), codec.index(self._texts[kind])

    def owner_of(self, kind: str, row: Row) -> bytes | None:
        """Return the key of a row that is to have vectors; None for another."""
        if self.modes.get(kind, EmbedMode.OFF) is EmbedMode.OFF:
            return None
        key: bytes = row[self._places[kind][0]]
        return key

    def text_of(self, kind: str, row: Row) -> str:
        """Return the text of a row that is embedded."""
        content = row[self._places[kind][1]]
        if content is None:
            return ""
        text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
        if not says_something(text):
            return text
        # The text that is indexed for keywords, too: a record has one text.
        return document_of(self._relations[kind], row, text).decode("utf-8", "surrogatepass")

    def still_says(self, uow: UnitOfWork, item: MissingVector) -> bool:
        """Return whether a record is still there with the content its vector was made from."""
        relation = self._relations[item.kind]
        entity = uow.find(relation, item.owner)
        return entity is not None and self.text_of(item.kind, codec_of(relation).encode(entity)) == item.text

    def is_stored(self, store: Store, item: MissingVector) -> bool:
        """Return the same as ``still_says``, outside of a transaction."""
        plans = store.plans[item.kind]
        with store.read() as session:
            found = [plans.codec.encode(plans.codec.decode(row)) for row in session.run(plans.get, (item.owner,))]
        return any(self.text_of(item.kind, row) == item.text for row in found)
