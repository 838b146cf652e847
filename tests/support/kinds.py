"""What every store can be searched for."""

from caliber.storage.sql.full_text import TEXTS

KINDS = tuple(relation.name for relation in TEXTS)
