"""SQL statements of the workspace: values whose keys begin with a text."""

from __future__ import annotations

from caliber.schema.relations import WORKSPACE_VALUE
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.plan import Dialect
from caliber.storage.compile.spelling import quote_all


def workspace_statements(dialect: Dialect) -> dict[str, str]:
    """Return the text of each irregular statement about the workspace, in the words of a database."""
    table, row, one = (
        dialect.table(WORKSPACE_VALUE.name),
        quote_all(codec_of(WORKSPACE_VALUE).names),
        dialect.placeholder(1),
    )
    # No range of an index: databases order texts by the rules of a language.
    return {"workspace_value.by_prefix": f"SELECT {row} FROM {table} WHERE substr(key, 1, length({one})) = {one}"}
