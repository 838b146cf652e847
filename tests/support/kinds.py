"""Kinds that every store can search."""

from caliber.storage.sql.full_text import TEXTS

KINDS = tuple(relation.name for relation in TEXTS)
