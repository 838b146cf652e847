"""Kinds of records that are embedded, with the text to embed, and whether before or after the commit.

Source: design section 4, C-135.
"""

from __future__ import annotations

from caliber.config import CaliberConfig
from caliber.embedding.embedding_target import MissingVector, says_something
from caliber.model.embedding import EmbedMode
from caliber.resident.documents import document_of
from caliber.schema.catalog import Catalog
from caliber.storage.compile.codec import Row, codec_of
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork


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
